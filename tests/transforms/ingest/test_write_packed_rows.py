"""Rows into Bigtable: both writers, appends, and what they do with errors of each kind."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import grpc
import pytest
from google.api_core.exceptions import PermissionDenied

from tests.support.decoded import decode_row
from tests.support.fault_proxy import (
    AFTER,
    BEFORE,
    INCREMENT,
    MUTATE_ROWS,
    BadEntries,
    Call,
    Fault,
    Plan,
    faulty,
    no_faults,
    nth,
)
from tests.support.inputs.rows import ROW_KEY, SERIES, START_MS, piece, row_of
from tests.support.processes.eager import eagerly
from tests.support.stored import Store
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.bigtable.mutation_bytes import encoded_row
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest import beam_writer
from timebeam.transforms.ingest.row_mutations import data_tables
from timebeam.transforms.ingest.write_packed_rows import StoreRows


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def write(
    store: Store,
    rows: Sequence[Row],
    writer: str,
    packing: Packing = Packing.POINTS,
    profile: str | None = None,
) -> list[Rejected]:
    """Writes rows in a pipeline; the rejected ones."""
    target = Target(store.target.project, store.target.instance, profile)

    def build(root: beam.Pipeline) -> dict[str, beam.PCollection[Any]]:
        appends = store.layout.writing.append_qualifier if packing is Packing.APPEND else b""
        sink = StoreRows(target, data_tables(store.layout), writer, appends=appends)
        return {"rejected": root | beam.Create([encoded_row(row) for row in rows], reshuffle=False) | sink}

    return eagerly(build)["rejected"]


def rows_of(store: Store, count: int, seed: int = 0) -> list[Row]:
    """Rows with cells of any bytes and timestamps."""
    chance = random.Random(seed)
    return [
        Row(
            store.layout.data_table,
            b"row%03d" % number + chance.randbytes(3),
            [
                Cell(
                    "t", bytes([column]) + chance.randbytes(2), chance.randrange(1 << 41), chance.randbytes(9)
                )
                for column in range(chance.randrange(1, 8))
            ],
        )
        for number in range(count)
    ]


def cells_of(rows: Sequence[Row]) -> set[tuple[bytes, bytes, int, bytes]]:
    return {(row.key, cell.qualifier, cell.timestamp_ms, cell.value) for row in rows for cell in row.cells}


@pytest.mark.parametrize("writer", ["beam", "direct"])
def test_a_writer_writes_every_cell_as_it_is(store: Store, writer: str) -> None:
    rows = rows_of(store, 60)
    assert write(store, rows, writer) == []
    assert store.cells() == cells_of(rows)
    assert write(store, rows, writer) == []
    assert store.cells() == cells_of(rows)


def test_beams_writer_rejects_rows_of_tables_that_it_does_not_write(store: Store) -> None:
    rows = rows_of(store, 5)
    bad = rows[2]._replace(table="elsewhere")
    (rejected,) = write(store, [*rows[:2], bad, *rows[3:]], "beam")
    assert (rejected.reason, rejected.stage) == (Reason.WRITE_REFUSED, Stage.WRITE)
    assert row_of(rejected) == bad
    assert store.cells() == cells_of([*rows[:2], *rows[3:]])


def test_the_direct_writer_sends_what_fits_a_request(
    store: Store, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timebeam.transforms.bigtable.beam_steps.MUTATIONS", 10)
    rows = [one._replace(cells=one.cells[:1] * 4) for one in rows_of(store, 9)]
    with faulty(emulator, no_faults) as proxy:
        assert write(store, rows, "direct", profile="with-single-cluster-routing") == []
    assert len(proxy.seen) == 5
    assert all(b"with-single-cluster-routing" in call.request for call in proxy.seen)
    assert store.cells() == cells_of(rows)


def test_the_direct_writer_holds_no_more_than_its_buffer(
    store: Store, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timebeam.transforms.ingest.write_packed_rows.BUFFER_BYTES", 1)
    rows = rows_of(store, 5)
    with faulty(emulator, no_faults) as proxy:
        assert write(store, rows, "direct") == []
    assert len(proxy.seen) == 5
    assert store.cells() == cells_of(rows)


INVALID = grpc.StatusCode.INVALID_ARGUMENT


def rejecting(poison: bytes) -> Plan:
    """The plan in which the service finds one row invalid and writes the others."""
    return nth(MUTATE_ROWS, range(1, 99), BadEntries(INVALID, poison.__eq__))


def wholly_rejecting(poison: bytes) -> Plan:
    """The plan in which the service refuses a request as a whole for the sake of one row."""
    fault = Fault(INVALID)
    return lambda call: fault if call.method == MUTATE_ROWS and poison in call.request else None


@pytest.mark.parametrize("plan", [rejecting, wholly_rejecting])
@pytest.mark.parametrize("at", [0, 7, 19])
def test_rows_rejected_for_good_are_dead_letters(store: Store, emulator: str, plan: Any, at: int) -> None:
    rows = rows_of(store, 20)
    bad = rows[at]
    with faulty(emulator, plan(bad.key)):
        (rejected,) = write(store, rows, "direct")
    assert (rejected.reason, rejected.stage) == (Reason.WRITE_REFUSED, Stage.WRITE)
    assert "injected" in rejected.message
    assert row_of(rejected) == bad
    assert store.cells() == cells_of([row for row in rows if row is not bad])


def test_beams_writer_fails_on_a_rejected_row(store: Store, emulator: str) -> None:
    rows = rows_of(store, 5)
    with (
        faulty(emulator, rejecting(rows[2].key)),
        pytest.raises(Exception, match="Errors in batch mutations"),
    ):
        write(store, rows, "beam")


RETRYABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("code", RETRYABLE, ids=lambda code: code.name)
def test_errors_that_pass_are_waited_for(
    store: Store, emulator: str, code: grpc.StatusCode, when: str
) -> None:
    rows = rows_of(store, 10)
    with faulty(emulator, nth(MUTATE_ROWS, (1, 2), Fault(code, when))) as proxy:
        assert write(store, rows, "direct") == []
    assert len(proxy.faults) == 2
    assert store.cells() == cells_of(rows)


def test_an_error_that_no_row_is_to_blame_for_is_raised(store: Store, emulator: str) -> None:
    plan = nth(MUTATE_ROWS, range(1, 99), Fault(grpc.StatusCode.PERMISSION_DENIED))
    with faulty(emulator, plan), pytest.raises(PermissionDenied, match="injected"):
        write(store, rows_of(store, 3), "direct")
    assert store.cells() == set()


def append(store: Store, times_ms: Sequence[int]) -> list[Rejected]:
    row = pack_row(
        store.layout, store.layout.data_table, ROW_KEY, [piece(store.layout, times_ms)], Packing.APPEND
    )
    return write(store, [row], "direct", Packing.APPEND)


def decoded(store: Store) -> dict[int, int | float]:
    """Value by time of the one row there is."""
    (row,) = store.rows()
    found = decode_row(store.layout, row, SERIES)
    assert not found.corruption
    return {time_ms: value for _, time_ms, value in found.batch.points()}


def test_appending_twice_grows_the_cell_and_changes_no_point(store: Store) -> None:
    times_ms = [START_MS, START_MS + 1500, START_MS + 700_000]
    expected = {time_ms: time_ms - START_MS for time_ms in times_ms}
    assert append(store, times_ms) == []
    ((_, qualifier, _, first),) = store.cells()
    assert (qualifier, decoded(store)) == (b"\x05\0\0", expected)
    assert append(store, times_ms) == []
    ((_, _, _, twice),) = store.cells()
    assert (twice, decoded(store)) == (first * 2, expected)
    assert append(store, [START_MS + 500]) == []
    assert decoded(store) == expected | {START_MS + 500: 500}


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("code", RETRYABLE, ids=lambda code: code.name)
def test_appends_are_repeated(store: Store, emulator: str, code: grpc.StatusCode, when: str) -> None:
    """Also where the answer got lost: the points then stand there twice, and are read once."""
    with faulty(emulator, nth(INCREMENT, (1,), Fault(code, when))) as proxy:
        assert append(store, [START_MS, START_MS + 1000]) == []
    assert len(proxy.faults) == 1
    assert decoded(store) == {START_MS: 0, START_MS + 1000: 1000}


def test_appends_rejected_for_good_are_dead_letters(store: Store, emulator: str) -> None:
    def plan(call: Call) -> Fault | None:
        return Fault(INVALID) if b"bad-row" in call.request else None

    table, cells = store.layout.data_table, [Cell("t", b"\x05\0\0", 5, b"\0\0\1")]
    bad, good = Row(table, b"bad-row", cells), Row(table, b"good-row", cells)
    with faulty(emulator, plan):
        (rejected,) = write(store, [bad, good], "beam", Packing.APPEND)
    assert (rejected.reason, rejected.stage) == (Reason.WRITE_REFUSED, Stage.WRITE)
    assert row_of(rejected) == bad
    assert {(key, value) for key, _, _, value in store.cells()} == {(b"good-row", b"\0\0\1")}


def test_beams_writer_leaves_the_context_of_rows_once_they_are_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the hours of all rows of a bundle would be in memory until its end."""
    monkeypatch.setattr(beam_writer, "FLUSH_COUNT", 10)
    stored: list[int] = []

    @contextlib.contextmanager
    def around(_: object) -> Iterator[None]:
        yield
        stored.append(len(store.rows()))

    fn = beam_writer._WriteWithHoursFn(store.target, store.layout.data_table, around)
    fn.start_bundle()
    for number in range(25):
        cells = [Cell("t", b"\0\0", 5, b"\1")]
        fn.process(Row(store.layout.data_table, ROW_KEY + bytes([number]), cells))
        assert len(stored) == (number + 1) // 10
    fn.finish_bundle()
    assert stored == [10, 20, 25]
