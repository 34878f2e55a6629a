"""Errors that pass: what each writer does when requests fail and may be repeated (tests 2, 3 and 4)."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.support.budget import long_after
from tests.support.fault_proxy import (
    AFTER,
    BEFORE,
    INCREMENT,
    MUTATE_ROWS,
    AnyFault,
    BadEntries,
    Fault,
    FaultProxy,
    either,
    every,
    faulty,
    nth,
    share,
    some_keys,
)
from tests.support.stored import Store
from tests.support.workload import PACKINGS, Workload, check_equal, holds, letters, run
from timebeam.transforms.bigtable.retry import OPERATION_SECONDS

ABORTED = grpc.StatusCode.ABORTED
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED
INTERNAL = grpc.StatusCode.INTERNAL
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def work(tmp_path: Path, seed: int) -> Workload:
    """About 2,000 points in 1,000 rows."""
    return Workload.write(tmp_path, seed, series=50, hours=20, a_row=2)


def check_repeated(proxy: FaultProxy) -> None:
    """Asserts that requests failed, and that each one was sent again."""
    assert proxy.faults
    for failed, _ in proxy.faults:
        assert any(call.request == failed.request and call.number > failed.number for call in proxy.seen)


@pytest.mark.parametrize(
    ("writer", "packing", "k"),
    long_after(
        2,
        [
            ("beam", "points", 3),
            ("direct", "compacted", 4),
            ("beam", "compacted", 2),
            ("direct", "points", 5),
        ],
    ),
)
def test_every_kth_request_is_unavailable(
    store: Store, emulator: str, work: Workload, writer: str, packing: str, k: int
) -> None:
    """Test 2. UNAVAILABLE before commit on every k-th MutateRows: equal, no dead letter, each repeated."""
    with faulty(emulator, every(MUTATE_ROWS, k, Fault(UNAVAILABLE))) as proxy:
        ran = run(work, store, f"--bigtable-writer={writer}", f"--packing={packing}")
    assert ran.code == 0
    assert not letters(work)
    assert len(proxy.faults) == proxy.calls[MUTATE_ROWS] // k
    check_repeated(proxy)
    check_equal(store, work.points, packing)


@pytest.mark.parametrize(
    ("writer", "packing"),
    long_after(2, [("beam", "points"), ("direct", "compacted"), ("beam", "compacted"), ("direct", "points")]),
)
def test_answers_that_get_lost_do_no_harm(
    store: Store, emulator: str, work: Workload, seed: int, writer: str, packing: str
) -> None:
    """Test 3. UNAVAILABLE after commit on 30 % of MutateRows: equal, exactly one version of each cell."""
    lost = Fault(UNAVAILABLE, AFTER)
    with faulty(emulator, either(nth(MUTATE_ROWS, (1,), lost), share(MUTATE_ROWS, 0.3, seed, lost))) as proxy:
        ran = run(work, store, f"--bigtable-writer={writer}", f"--packing={packing}")
    assert ran.code == 0
    assert not letters(work)
    check_repeated(proxy)
    check_equal(store, work.points, packing)


def test_appends_whose_answers_get_lost_read_the_same(
    store: Store, emulator: str, tmp_path: Path, seed: int
) -> None:
    """Test 3 for `--packing append`. The same faults on ReadModifyWriteRow: the decoded content is equal.

    Points stand twice in the columns that were appended to again; the later one wins and is the same.
    """
    work = Workload.write(tmp_path, seed, series=10, hours=5, a_row=20)
    with faulty(emulator, share(INCREMENT, 0.3, seed, Fault(UNAVAILABLE, AFTER))) as proxy:
        ran = run(work, store, "--packing=append")
    assert ran.code == 0
    assert len(proxy.faults) > 10
    check_equal(store, work.points, "append")


@pytest.mark.parametrize("packing", PACKINGS)
def test_direct_writer_survives_a_burst_of_every_transient_code(
    store: Store, emulator: str, work: Workload, seed: int, packing: str
) -> None:
    """Test 4. Eight requests in a row fail with five codes: equal, within the configured budget.

    They fail as a whole or in some entries, before or after they are carried out.
    """
    some = some_keys(0.2, seed)
    faults: list[AnyFault] = [
        Fault(DEADLINE_EXCEEDED, AFTER),
        BadEntries(ABORTED, some, BEFORE),
        Fault(INTERNAL, AFTER),
        BadEntries(RESOURCE_EXHAUSTED, some, AFTER),
        Fault(ABORTED, BEFORE),
        BadEntries(INTERNAL, some, BEFORE),
        Fault(RESOURCE_EXHAUSTED, BEFORE),
        BadEntries(UNAVAILABLE, some, AFTER),
    ]
    burst = either(*(nth(MUTATE_ROWS, (number,), fault) for number, fault in enumerate(faults, 2)))
    with faulty(emulator, burst) as proxy:
        ran = run(work, store, "--bigtable-writer=direct", f"--packing={packing}")
    assert ran.code == 0
    assert not letters(work)
    assert len(proxy.faults) == len(faults)
    assert proxy.seen[-1].at - proxy.seen[0].at < OPERATION_SECONDS
    check_equal(store, work.points, packing)


def test_beam_writer_survives_a_burst_of_two_codes(
    store: Store, emulator: str, work: Workload, seed: int
) -> None:
    """Test 4 for Beam's writer, with the two codes that it repeats: equal."""
    some = some_keys(0.2, seed)
    burst = either(
        nth(MUTATE_ROWS, (2,), Fault(DEADLINE_EXCEEDED, AFTER)),
        nth(MUTATE_ROWS, (3,), BadEntries(UNAVAILABLE, some, BEFORE)),
        nth(MUTATE_ROWS, (4,), Fault(UNAVAILABLE, AFTER)),
        nth(MUTATE_ROWS, (5, 6), BadEntries(DEADLINE_EXCEEDED, some, AFTER)),
    )
    with faulty(emulator, burst) as proxy:
        ran = run(work, store, "--bigtable-writer=beam", "--packing=points")
    assert ran.code == 0
    assert len(proxy.faults) == 5
    check_equal(store, work.points, "points")


@pytest.mark.parametrize(
    ("code", "entries"), long_after(1, [(INTERNAL, True), (ABORTED, False), (RESOURCE_EXHAUSTED, False)])
)
def test_beam_writer_fails_the_bundle_on_aborted_internal_and_resource_exhausted(
    store: Store,
    emulator: str,
    work: Workload,
    seed: int,
    caplog: pytest.LogCaptureFixture,
    code: grpc.StatusCode,
    entries: bool,
) -> None:
    """Test 4 for Beam's writer, with the codes that it does not repeat.

    The run fails after one such answer, to a request or to some entries, and says so in one line;
    rows are missing, without a dead letter. The same run again, without the fault, makes it equal.
    """
    fault = BadEntries(code, some_keys(0.2, seed)) if entries else Fault(code)
    flags = ("--bigtable-writer=beam", "--packing=points")
    with faulty(emulator, nth(MUTATE_ROWS, (3,), fault)):
        ran = run(work, store, *flags)
    assert ran.code == 1
    assert not ran.out
    (line,) = ran.err.splitlines()
    assert line.startswith("timebeam ingest: Beam's writer could not store all rows: ")
    assert "injected before the call" in line
    assert not any(record.exc_info for record in caplog.records)
    assert not letters(work)
    assert not holds(store, work.points, "points")
    assert run(work, store, *flags).code == 0
    check_equal(store, work.points, "points")
