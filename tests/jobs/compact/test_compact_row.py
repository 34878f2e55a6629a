"""One row compacted: the same points, fewer cells, and nothing deleted but what went in.

Points are read by the plain loops of `plain_opentsdb`, never by the code under test.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.schema.stores import plain_opentsdb as plain
from tests.support.budget import examples
from tests.support.inputs.opentsdb_columns import (
    KEY,
    apply,
    columns,
    content,
    elements,
    is_points,
    newest,
    put,
    qualifier_of,
    rows,
    versions,
)
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rows import Cell, Deletion, Row
from timebeam.schema.stores.opentsdb.columns import rewrite_row
from timebeam.schema.stores.opentsdb.columns.rewrite_row import compact_row

NEVER = 1 << 40
FORMS = st.sampled_from((Packing.COMPACTED, Packing.APPEND))


def row_of(*cells: tuple[int, str, str]) -> Row:
    """A row of (timestamp in ms, qualifier and value in hex)."""
    return Row("tsdb", KEY, [Cell("t", bytes.fromhex(q), at, bytes.fromhex(v)) for at, q, v in cells])


def hexed(row: Row | None) -> list[tuple[int, str, str]]:
    assert row is not None
    return [(cell.timestamp_ms, cell.qualifier.hex(), cell.value.hex()) for cell in row.cells]


@given(rows(), FORMS)
@examples(100)
def test_the_points_are_the_same_and_what_is_no_points_stays(row: Row, form: Packing) -> None:
    held = versions(row)
    made = compact_row(row, form, NEVER)
    apply(held, made)
    after = newest(held)
    assert content(after) == content(row)
    kept = [cell for cell in row.cells if not is_points(cell)]
    assert [cell for cell in after.cells if not is_points(cell)] == kept
    for cell in row.cells:  # corruption stays for the operator to see
        one = row._replace(cells=[cell])
        values = content(one).values()
        if is_points(cell) and cell.value and (not values or None in values):
            assert cell in after.cells
    assert all(len(column) <= 1 for column in held.values())
    assert compact_row(after, form, NEVER) is None


@given(rows(corrupt=False), FORMS)
@examples(100)
def test_one_cell_is_left_of_sound_rows(row: Row, form: Packing) -> None:
    held = versions(row)
    made = compact_row(row, form, NEVER)
    apply(held, made)
    after = newest(held)
    assert len(after.cells) == min(1, len(row.cells))
    if made is None:
        return
    (cell,) = after.cells
    assert cell.timestamp_ms == max(one.timestamp_ms for one in row.cells)
    expected = [element for _, (_, element) in sorted(plain.read_row(_raw(row)).items())]
    if form is Packing.APPEND:
        assert cell.qualifier == b"\x05\x00\x01"
        assert plain.split_append(cell.value) == expected
        return
    assert plain.split_column(cell.qualifier, cell.value) == expected
    trailer = cell.value[sum(len(one.value) for one in expected) :]
    mixed = len({one.in_ms for one in expected}) == 2
    assert trailer == (b"" if len(expected) == 1 else b"\x01" if mixed else b"\x00")


def _raw(row: Row) -> list[tuple[int, bytes, bytes]]:
    return [(cell.timestamp_ms, cell.qualifier, cell.value) for cell in row.cells]


@st.composite
def arrivals(draw: st.DrawFn) -> list[Cell]:
    """Points that are stored while a compaction runs: newer than all that is there."""
    found = draw(st.lists(columns(), min_size=1, max_size=3, unique_by=lambda one: one[0]))
    return [Cell("t", qualifier, draw(st.integers(4, 5)), value) for qualifier, value in found]


@given(rows(), arrivals(), FORMS)
@examples(100)
def test_what_is_written_meanwhile_survives(row: Row, late: list[Cell], form: Packing) -> None:
    """As if it had been written before: but a TSD's append column grows, and is never replaced."""
    held, expected = versions(row), versions(row)
    arrived = [cell for cell in late if len(cell.qualifier) != 3]
    made = compact_row(row, form, NEVER)
    put(expected, *arrived)
    put(held, *arrived)
    apply(held, made)
    assert content(newest(held)) == content(newest(expected))


@given(rows(corrupt=False), elements(), FORMS)
def test_an_append_meanwhile_survives(row: Row, late: plain.Element, form: Packing) -> None:
    """A TSD appends to 050000 only; the version it makes holds all that was in there."""
    held = versions(row)
    column = held.setdefault(("t", b"\x05\x00\x00"), {})
    grown = (column[max(column)] if column else b"") + qualifier_of(late) + late.value
    made = compact_row(row, form, NEVER)
    column[9] = grown
    expected = content(newest(held))
    apply(held, made)
    assert content(newest(held)) == expected


def test_a_point_meanwhile_under_a_qualifier_that_is_deleted() -> None:
    row = row_of((10, "0000", "01"), (20, "0010", "02"))
    held = versions(row)
    made = compact_row(row, Packing.COMPACTED, NEVER)
    put(held, *row_of((21, "0000", "07")).cells)
    apply(held, made)
    assert content(newest(held)) == {0: ("int", 7), 1000: ("int", 2)}


def test_the_bytes_and_the_deletions() -> None:
    row = row_of((10, "0000", "01"), (30, "00100020", "020300"), (20, "010000", "7b7d"), (15, "0020", "09"))
    made = compact_row(row, Packing.COMPACTED, NEVER)
    assert hexed(made) == [(30, "000000100020", "01020300")]
    assert made is not None
    assert made.deleted == [
        Deletion("t", b"\x00\x00", 11),
        Deletion("t", b"\x00\x20", 16),
        Deletion("t", bytes.fromhex("00100020"), 31),
    ]
    assert hexed(compact_row(row, Packing.APPEND, NEVER)) == [(30, "050001", "000001001002002003")]


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [(10, "0000", "01")],
        [(10, "00000010", "010200")],
        [(10, "050000", "000001001002")],
        [(10, "010000", "7b7d"), (11, "060000", "00")],
        [(10, "0000", "01"), (20, "010000", "7b7d"), (30, "00100020", "01")],
        [(10, "00000010", "010200"), (30, "00300022", "0102030400")],  # the second has a bad length
    ],
)
def test_nothing_to_gain(cells: list[tuple[int, str, str]]) -> None:
    assert compact_row(row_of(*cells), Packing.COMPACTED, NEVER) is None
    assert compact_row(row_of(*cells), Packing.APPEND, NEVER) is None


def test_a_compacted_column_that_is_extended_by_nothing_is_not_deleted() -> None:
    row = row_of((10, "0000", "09"), (20, "00000010", "010200"))
    made = compact_row(row, Packing.COMPACTED, NEVER)
    assert hexed(made) == [(20, "00000010", "010200")]
    assert made is not None
    assert made.deleted == [Deletion("t", b"\x00\x00", 11)]
    # Of the same points with a newer correction, the older version of the column goes.
    row = row_of((30, "0000", "09"), (20, "00000010", "010200"))
    made = compact_row(row, Packing.COMPACTED, NEVER)
    assert hexed(made) == [(30, "00000010", "090200")]
    assert made is not None
    assert made.deleted == [Deletion("t", bytes.fromhex("00000010"), 21), Deletion("t", b"\x00\x00", 31)]


def test_an_append_column_with_duplicates_is_rewritten() -> None:
    row = row_of((10, "050000", "001002000001001003"))
    assert hexed(compact_row(row, Packing.COMPACTED, NEVER)) == [(10, "00000010", "010300")]
    assert hexed(compact_row(row, Packing.APPEND, NEVER)) == [(10, "050001", "000001001003")]


def test_an_append_column_that_still_grows_is_left_and_what_it_beats_goes() -> None:
    row = row_of((10, "0000", "01"), (11, "0010", "02"), (12, "0020", "03"), (99, "050000", "001007"))
    made = compact_row(row, Packing.COMPACTED, 99)
    assert hexed(made) == [(12, "00000020", "010300")]
    assert made is not None
    assert [one.qualifier.hex() for one in made.deleted] == ["0000", "0010", "0020"]
    assert len(hexed(compact_row(row, Packing.COMPACTED, 100))) == 1


def test_the_floats_of_old_tsds_are_put_right() -> None:
    row = row_of((10, "000b", "00000000422a0000"), (11, "0013", "05"))
    assert hexed(compact_row(row, Packing.COMPACTED, NEVER)) == [(11, "000b0010", "422a00000500")]


def test_a_corrupt_cell_with_the_qualifier_of_the_new_one_stops_it() -> None:
    row = row_of((10, "0000", "01"), (20, "0010", "02"), (30, "00000010", "0102030405"))
    assert compact_row(row, Packing.COMPACTED, NEVER) is None
    assert hexed(compact_row(row, Packing.APPEND, NEVER)) == [(20, "050001", "000001001002")]


def test_cells_of_other_families_stay() -> None:
    row = row_of((10, "0000", "01"), (20, "0010", "02"))
    other = Cell("x", b"\x00\x20", 5, b"\x03")
    made = compact_row(row._replace(cells=[*row.cells, other]), Packing.COMPACTED, NEVER)
    assert hexed(made) == [(20, "00000010", "010200")]
    assert made is not None
    assert {one.family for one in made.deleted} == {"t"}


def many(count: int) -> Row:
    """A row with a point each of so many milliseconds."""
    cells = [
        Cell("t", struct.pack(">I", 0xF0000000 | offset << 6), 7, bytes([offset % 100]))
        for offset in range(count)
    ]
    return Row("tsdb", KEY, cells)


def test_a_column_has_at_most_16_kib_of_qualifier() -> None:
    row = many(4097 + 4096)
    held = versions(row)
    apply(held, compact_row(row, Packing.COMPACTED, NEVER))
    after = newest(held)
    assert sorted(len(cell.qualifier) for cell in after.cells) == [4, 16384, 16384]
    assert content(after) == content(row)
    assert compact_row(after, Packing.COMPACTED, NEVER) is None


def test_a_row_of_very_many_cells_is_compacted_in_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite_row, "COLUMNS", 500)
    row = many(510)
    held = versions(row)
    made = compact_row(row, Packing.COMPACTED, NEVER)
    assert made is not None
    assert len(made.deleted) == 500
    apply(held, made)
    assert content(newest(held)) == content(row)
    apply(held, compact_row(newest(held), Packing.COMPACTED, NEVER))
    after = newest(held)
    assert len(after.cells) == 1
    assert content(after) == content(row)


@example(row_of((0, "0000", "01"), (0, "0001", "0002"), (0, "f0000000", "03")))
@given(rows(corrupt=False))
def test_equal_timestamps_are_resolved_as_the_reader_does(row: Row) -> None:
    same = row._replace(cells=[cell._replace(timestamp_ms=5) for cell in row.cells])
    held = versions(same)
    apply(held, compact_row(same, Packing.COMPACTED, NEVER))
    assert content(newest(held)) == content(same)
