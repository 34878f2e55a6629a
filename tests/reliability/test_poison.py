"""Input and rows that can never be stored among many that can (test 6)."""

from __future__ import annotations

import base64
import collections
import json
import random
from pathlib import Path

import grpc
import pytest

from tests.support.fault_proxy import MUTATE_ROWS, BadEntries, Call, faulty, some_keys
from tests.support.inputs.poison import POISON_JSON, POISON_TEXT
from tests.support.model import row_key
from tests.support.stored import Store
from tests.support.workload import PACKINGS, Workload, check_equal, holds, letters, read_letters, run
from timebeam.schema.bits.reasons import Reason


@pytest.fixture
def work(tmp_path: Path, seed: int) -> Workload:
    """About 2,000 points in 500 rows."""
    return Workload.write(tmp_path, seed, series=50, hours=10, a_row=4)


@pytest.mark.parametrize(
    ("format_name", "poison", "writer", "packing"),
    [
        ("opentsdb-text", POISON_TEXT, "direct", "compacted"),
        ("opentsdb-json", POISON_JSON, "beam", "points"),
    ],
)
def test_poison_in_the_input(
    store: Store,
    tmp_path: Path,
    seed: int,
    format_name: str,
    poison: dict[bytes, Reason],
    writer: str,
    packing: str,
) -> None:
    """Test 6. 1 % of the lines can never be stored: the run ends well, the rest is equal.

    The dead letters hold exactly those lines, with reason, original bytes and place.
    """
    work = Workload.write(tmp_path, seed, series=50, hours=10, a_row=4, format_name=format_name)
    rng = random.Random(seed)
    put = [rng.choice(sorted(poison)) for _ in range(len(work.points) // 100)] + sorted(poison)
    work.mix_in(put, rng)
    ran = run(work, store, f"--bigtable-writer={writer}", f"--packing={packing}")
    assert ran.code == 0
    found = read_letters(work)
    expected = collections.Counter((line, poison[line]) for line in put)
    assert collections.Counter((letter.payload, letter.reason) for letter in found) == expected
    for letter in found:
        content = Path(letter.source).read_bytes()
        assert content[letter.offset : letter.offset + len(letter.payload)] == letter.payload
    summary = json.loads(ran.out)
    assert summary["points_read"] == len(work.points) + len(put)
    assert summary["rejected"] == dict(
        sorted(collections.Counter(poison[line].value for line in put).items())
    )
    check_equal(store, work.points, packing)


def reject_rows(seed: int) -> BadEntries:
    """2 % of the rows are rejected for good, as the service does with rows beyond its limits."""
    return BadEntries(grpc.StatusCode.INVALID_ARGUMENT, some_keys(0.02, seed))


@pytest.mark.parametrize("packing", PACKINGS)
def test_direct_writer_makes_dead_letters_of_rejected_rows(
    store: Store, emulator: str, work: Workload, seed: int, packing: str
) -> None:
    """Test 6, rows that Bigtable refuses. The run ends well; the dead letters hold exactly those rows
    with all their cells, and the rest is equal."""
    fault = reject_rows(seed)
    with faulty(emulator, lambda call: fault if call.method == MUTATE_ROWS else None):
        ran = run(work, store, "--bigtable-writer=direct", f"--packing={packing}")
    assert ran.code == 0
    uids, options = store.uids(), store.layout.options
    bad = {point for point in work.points if fault.chosen(row_key(point, uids, options))}
    assert 0 < len(bad) < len(work.points) // 10
    check_equal(store, [point for point in work.points if point not in bad], packing)
    assert {letter.reason for letter in read_letters(work)} == {Reason.WRITE_REFUSED}
    rejected = [json.loads(letter.payload) for letter in read_letters(work)]
    keys = [base64.b64decode(row["key"]) for row in rejected]
    assert len(keys) == len(set(keys))
    assert set(keys) == {row_key(point, uids, options) for point in bad}


def test_beam_writer_fails_the_bundle_on_a_rejected_row(
    store: Store, emulator: str, work: Workload, seed: int
) -> None:
    """Test 6 for Beam's writer: one rejected row fails the run, and every run after it.

    All other rows are stored, but there is no dead letter: only the direct writer gets past the row.
    """
    fault = reject_rows(seed)

    def plan(call: Call) -> BadEntries | None:
        return fault if call.method == MUTATE_ROWS else None

    with faulty(emulator, plan):
        for _ in range(2):
            ran = run(work, store, "--bigtable-writer=beam", "--packing=points")
            assert ran.code == 1
            assert "400 injected before the call" in ran.err
            assert not letters(work)
    uids, options = store.uids(), store.layout.options
    good = [point for point in work.points if not fault.chosen(row_key(point, uids, options))]
    assert not holds(store, work.points, "points")
    check_equal(store, good, "points")
