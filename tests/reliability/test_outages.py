"""Outages: Bigtable stays away, the network is cut, the emulator dies with all its tables (tests 5, 7, 8)."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import threading
from pathlib import Path

import grpc
import pytest
from google.cloud.bigtable.batcher import MutationsBatcher

from tests.support.commands import Ran, timebeam
from tests.support.fault_proxy import AFTER, BEFORE, INCREMENT, MUTATE_ROWS, Do, Drop, Fault, faulty, nth
from tests.support.servers.tcp_cable import plugged
from tests.support.stored import Store
from tests.support.workload import WRITERS, Workload, check_equal, holds, letters, run
from timebeam.pipelines.local.emulator import Emulator
from timebeam.transforms.bigtable import retry
from timebeam.transforms.bigtable.beam_steps import REQUESTS
from timebeam.transforms.ingest import write_packed_rows

BUDGET_SECONDS = 2
BUSY_SECONDS = 30
"""By how much the last of the requests may be late on a busy machine; far below the budgets by default."""

FROM_THE_THIRD_ON = range(3, 1_000_000)
AWAY = Fault(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture
def work(tmp_path: Path, seed: int) -> Workload:
    """About 2,000 points in 500 rows."""
    return Workload.write(tmp_path, seed, series=50, hours=10, a_row=4)


@pytest.fixture
def short_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both writers repeat a request for `BUDGET_SECONDS` at most, instead of 2 or 10 minutes."""
    monkeypatch.setattr(retry, "OPERATION_SECONDS", BUDGET_SECONDS)
    make = MutationsBatcher._init_batcher

    def make_impatient(batcher: MutationsBatcher) -> None:
        batcher._batcher_kwargs["batch_operation_timeout"] = BUDGET_SECONDS
        make(batcher)

    monkeypatch.setattr(MutationsBatcher, "_init_batcher", make_impatient)


def check_reported(ran: Ran, caplog: pytest.LogCaptureFixture) -> str:
    """Asserts that a run failed and said why in one line, without a stack; the line."""
    assert ran.code == 1
    assert not ran.out
    (line,) = ran.err.splitlines()
    assert line.startswith("timebeam ingest: ")
    assert not any(record.exc_info for record in caplog.records)
    return line


@pytest.mark.usefixtures("short_budget")
def test_bigtable_stays_away_from_the_direct_writer(
    store: Store, emulator: str, work: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """Test 5. UNAVAILABLE from some request on, for ever.

    The bundle fails when the writer's budget is spent, the run with exit code 1, one line and no
    summary; the writer holds no more than its buffer meanwhile: it repeats one request of that size
    and takes no rows; a replay after recovery gives equality.
    """
    flags = ("--bigtable-writer=direct", "--packing=points")
    with faulty(emulator, nth(MUTATE_ROWS, FROM_THE_THIRD_ON, AWAY)) as proxy:
        ran = run(work, store, *flags)
    assert "503 injected before the call" in check_reported(ran, caplog)
    assert not letters(work)
    failed = [call for call, _ in proxy.faults]
    assert failed[-1].at - failed[0].at < BUDGET_SECONDS + BUSY_SECONDS
    assert len({call.request for call in failed}) <= REQUESTS
    assert len(failed[0].request) < 2 * write_packed_rows.BUFFER_BYTES
    assert not holds(store, work.points, "points")
    assert run(work, store, *flags).code == 0
    check_equal(store, work.points, "points")


@pytest.mark.usefixtures("short_budget")
def test_beam_writer_gives_every_batch_its_own_budget_while_bigtable_stays_away(
    store: Store, emulator: str, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Test 5 for Beam's writer, which keeps to a budget in each of its requests, not in all.

    It takes in the whole bundle meanwhile and tries each of its batches to the end, four at once, so
    that neither its time nor its memory is bounded by an option. The rest is as above.
    """
    work = Workload.write(tmp_path, seed, series=50, hours=8, a_row=2)
    flags = ("--bigtable-writer=beam", "--packing=points")
    with faulty(emulator, nth(MUTATE_ROWS, FROM_THE_THIRD_ON, AWAY)) as proxy:
        ran = run(work, store, *flags)
    assert "503 injected before the call" in check_reported(ran, caplog)
    times: dict[bytes, list[float]] = collections.defaultdict(list)
    for call, _ in proxy.faults:
        times[call.request].append(call.at)
    assert len(times) > 4
    assert all(tries[-1] - tries[0] < BUDGET_SECONDS + BUSY_SECONDS for tries in times.values())
    assert run(work, store, *flags).code == 0
    check_equal(store, work.points, "points")


@pytest.mark.usefixtures("short_budget")
def test_bigtable_stays_away_from_appends(
    store: Store, emulator: str, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Test 5 for `--packing append`: the same, of single rows; what was appended twice reads the same."""
    work = Workload.write(tmp_path, seed, series=10, hours=5, a_row=20)
    with faulty(emulator, nth(INCREMENT, range(20, 1_000_000), AWAY)) as proxy:
        ran = run(work, store, "--packing=append")
    assert "503 injected before the call" in check_reported(ran, caplog)
    failed = [call for call, _ in proxy.faults]
    assert len({call.request for call in failed}) <= REQUESTS
    assert failed[-1].at - failed[0].at < BUDGET_SECONDS + BUSY_SECONDS
    assert run(work, store, "--packing=append").code == 0
    check_equal(store, work.points, "append")


@pytest.mark.parametrize(
    ("writer", "when", "packing"),
    [("beam", BEFORE, "compacted"), ("direct", AFTER, "points")],
)
def test_connections_are_cut(
    store: Store, emulator: str, work: Workload, writer: str, when: str, packing: str
) -> None:
    """Test 7. All connections are reset in the middle and refused for a while: equal, no cell twice."""
    cut = Drop(lambda: cable.cut(0.6), when)
    with faulty(emulator, nth(MUTATE_ROWS, (3,), cut)) as proxy, plugged(proxy.host) as cable:
        ran = run(work, store, f"--bigtable-writer={writer}", f"--packing={packing}")
    assert ran.code == 0
    assert len(proxy.faults) == 1
    check_equal(store, work.points, packing)


def port_of(emulator: Emulator) -> int:
    return int(emulator.host.rpartition(":")[2])


@pytest.mark.emulator
@pytest.mark.usefixtures("short_budget")
@pytest.mark.parametrize("writer", WRITERS)
def test_emulator_is_killed(
    work: Workload, prefix: str, caplog: pytest.LogCaptureFixture, writer: str
) -> None:
    """Test 8. SIGKILL in the middle; after the run a new emulator, tables created, input replayed: equal.

    The run in between reports the outage in one line.
    """
    instance, flags = ("local", "local"), (f"--bigtable-writer={writer}", "--packing=compacted")
    with Emulator() as first, first.environment():
        store, port = Store.create(instance, prefix), port_of(first)
        with faulty(first.host, nth(MUTATE_ROWS, (3,), Do(first.stop))):
            check_reported(run(work, store, *flags), caplog)
        with Emulator(port):
            Store.create(instance, prefix)
            assert run(work, store, *flags).code == 0
            check_equal(store, work.points, "compacted")


@pytest.mark.emulator
@pytest.mark.parametrize("writer", WRITERS)
def test_emulator_is_killed_and_comes_back_empty(work: Workload, prefix: str, writer: str) -> None:
    """Test 8. Killed in the middle and back at once with new tables: no silent success.

    The direct writer mostly sees errors that pass, and so ends well (exit code 0) although what was
    acknowledged before is gone; `timebeam check` tells, for the UIDs are gone too. (It has two requests
    under way: one of them may come back before the tables, which then are said to be missing.) With new
    tables and the input replayed: equal.
    """
    instance, flags = ("local", "local"), (f"--bigtable-writer={writer}", "--packing=points")
    killed, back = threading.Event(), threading.Event()

    def die() -> None:
        killed.set()
        assert back.wait(60)

    with Emulator() as first, first.environment(), contextlib.ExitStack() as later:
        store, port = Store.create(instance, prefix), port_of(first)
        with (
            faulty(first.host, nth(MUTATE_ROWS, (3,), Do(die))) as proxy,
            concurrent.futures.ThreadPoolExecutor() as pool,
        ):
            running = pool.submit(run, work, store, *flags)
            assert killed.wait(60)
            first.stop()
            second = later.enter_context(Emulator(port))
            proxy.await_upstream()
            Store.create(instance, prefix)
            back.set()
            ran = running.result()
        checked = timebeam("check", *store.flags)
        assert not holds(store, work.points, "points")
        assert ran.code == 1 or (checked.code == 1 and "has no name" in checked.out)
        if writer == "direct":
            assert ran.code == 0 or "not found" in ran.err
        second.stop()
        with Emulator(port):
            Store.create(instance, prefix)
            assert run(work, store, *flags).code == 0
            check_equal(store, work.points, "points")
