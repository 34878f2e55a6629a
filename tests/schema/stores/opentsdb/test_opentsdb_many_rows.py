"""Rows read together are the same as rows read one by one, whatever is in them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.budget import examples
from tests.support.inputs.opentsdb_columns import columns
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import DecodedRows, Selected
from timebeam.schema.stores.opentsdb.columns.decode_row import decode_row
from timebeam.schema.stores.opentsdb.columns.decode_rows import read_rows
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbCellTime, OpenTsdbOptions

LAYOUT = OpenTsdb()
SERIES = [Series.of("m", {"host": name}) for name in "ab"]


def apart(seconds: list[int], in_ms: bool, flags: list[int]) -> list[tuple[bytes, bytes]]:
    """A plain column for each point, as they are stored by packing `points`."""
    found = []
    for second, flag in zip(sorted(seconds), flags, strict=False):
        code = (0xF << 28 | second * 1000 << 6 if in_ms else second << 4) | flag
        found.append((code.to_bytes(4 if in_ms else 2, "big"), bytes(range(1, 9))[: (flag & 7) + 1]))
    return found


FLAGS = st.sampled_from((0, 1, 3, 7, 0xB, 0xF))
APART = st.builds(
    apart,
    st.lists(st.integers(0, 3599), min_size=1, max_size=6, unique=True),
    st.booleans(),
    FLAGS.map(lambda flag: [flag] * 6) | st.lists(FLAGS, min_size=6, max_size=6),
)

# Mostly columns that are in order, so that the fast way has something to do.
CELLS = (
    APART
    | st.lists(columns(), min_size=1, max_size=1)
    | st.lists(
        columns() | st.tuples(st.binary(max_size=6), st.binary(max_size=12)),
        max_size=3,
        unique_by=lambda column: column[0],
    )
)


@st.composite
def selected(draw: st.DrawFn) -> Selected:
    number = draw(st.integers(0, 1))
    hour = draw(st.integers(0, 5))
    key = bytes.fromhex("000001") + (hour * 3600).to_bytes(4, "big") + bytes.fromhex(f"0000010000{number:02}")
    cells = [Cell("t", name, draw(st.integers(0, 3)), value) for name, value in draw(CELLS)]
    return Selected(Row("tsdb", key, cells), SERIES[number])


def one_by_one(rows: list[Selected]) -> tuple[Counter[object], list[tuple[bytes, str]]]:
    points: Counter[object] = Counter()
    corruption = []
    for row, series, _ in rows:
        decoded = decode_row(LAYOUT.options, row, series)
        batch = decoded.batch
        for at, (one, time_ms, value) in enumerate(batch.points()):
            points[one, time_ms, repr(value), bool(batch.in_ms[at]), int(batch.arrivals_ms[at])] += 1
        corruption += [(row.key, text) for _, text in decoded.corruption]
    return points, sorted(corruption)


def together(decoded: DecodedRows) -> tuple[Counter[object], list[tuple[bytes, str]]]:
    batch = decoded.batch
    points: Counter[object] = Counter()
    for at, (one, time_ms, value) in enumerate(batch.points()):
        points[one, time_ms, repr(value), bool(batch.in_ms[at]), int(batch.arrivals_ms[at])] += 1
    return points, sorted((row.key, text) for row, text in decoded.corruption)


def row_of(*hexes: str) -> Selected:
    """A row of one column."""
    qualifier, value = map(bytes.fromhex, hexes)
    key = bytes.fromhex("00000100000000000001000001")
    return Selected(Row("tsdb", key, [Cell("t", qualifier, 7, value)]), SERIES[0])


@given(st.lists(selected(), max_size=8))
@example([row_of("0000f0007d00", "2a2b00"), row_of("f0007d00f000fa00", "0102")])
@example([row_of("0000f000", "2a2b00"), row_of("7d000000", "0102")])  # each a half of what stands behind
@example([row_of("f0007d00f000", "2a2b00"), row_of("fa000000", "010203")])
@example([row_of("00000000", "2a2b00"), row_of("00100000", "2a2b00"), row_of("00000010", "2a2b")])
@examples(400)
def test_rows_together_are_as_one_by_one(rows: list[Selected]) -> None:
    assert together(LAYOUT.decode_rows(rows)) == one_by_one(rows)


@pytest.mark.parametrize(
    "cells",
    [
        [("0000", "2a"), ("0010", "2b"), ("0020", "2c")],  # a column for each point
        [("00000010", "2a2b00"), ("00200030", "2c2d00")],  # compacted columns behind each other
        [("00000010", "2a2b00"), ("0020", "2c")],
        [("00000011", "2a002b00"), ("0021", "002c")],  # integers on one byte and on two
        [("050000", "00002a00102b")],
        [("050000", "f00000432a2a2a2af00040032b2b2b2b")],
        [("0000", "2a"), ("f0007d00", "2b")],
    ],
)
def test_rows_in_good_order_are_not_left_to_the_slow_way(cells: list[tuple[str, str]]) -> None:
    row = row_of(*cells[0]).row
    row = row._replace(
        cells=[Cell("t", bytes.fromhex(name), 7, bytes.fromhex(value)) for name, value in cells]
    )
    assert read_rows([row, row]).unread == []
    assert together(LAYOUT.decode_rows([Selected(row, SERIES[0])])) == one_by_one([Selected(row, SERIES[0])])


def test_good_rows_go_the_fast_way_beside_bad_ones() -> None:
    good, bad = row_of("00000010", "2a2b00"), row_of("00000010", "2a")
    found = read_rows([good.row, bad.row, good.row])
    assert (found.numbers.tolist(), found.counts.tolist(), found.unread) == ([0, 2], [2, 2], [1])
    assert found.bits.tolist() == [0x2A, 0x2B, 0x2A, 0x2B]
    assert read_rows([]).unread == []


@given(st.lists(selected(), max_size=8), st.booleans())
def test_with_event_time_too(rows: list[Selected], greatest: bool) -> None:
    layout = OpenTsdb(OpenTsdbOptions(cell_time=OpenTsdbCellTime.EVENT, use_max_value=greatest))
    apart = [decode_row(layout.options, one.row, one.series) for one in rows]
    points = sum(len(one.batch) for one in apart)
    assert len(layout.decode_rows(rows).batch) == points
