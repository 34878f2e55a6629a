"""Cells with the time of their points (tsd.storage.use_otsdb_timestamp), and which values win on reading."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.cases import HERE
from tests.schema.stores.plain_opentsdb import number
from tests.support.decoded import decode_row
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.formats import message_format
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import Decimals, OpenTsdbCellTime, OpenTsdbOptions

GOLDEN = json.loads((Path(HERE) / "otsdb_timestamp.json").read_text())
BASE_MS = 1356998400000
SERIES = Series.of("m", {"host": "a"})
KEY = SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1")
MAX = OpenTsdb(OpenTsdbOptions(cell_time=OpenTsdbCellTime.EVENT, decimals=Decimals.DOUBLE))
MIN = OpenTsdb(
    OpenTsdbOptions(cell_time=OpenTsdbCellTime.EVENT, decimals=Decimals.DOUBLE, use_max_value=False)
)

Sent = tuple[int, bool, int | float]
offsets = st.integers(0, 3) | st.sampled_from([0, 1000, 2000])
sent = st.tuples(
    st.integers(0, 2).map(lambda second: second * 1000) | offsets,
    st.booleans(),
    st.integers(-3, 3) | st.sampled_from([0.5, -2.5, 300, 2.0, -(1 << 40)]),
).map(lambda one: one if one[0] % 1000 == 0 else (one[0], True, one[2]))


def cells_of(layout: OpenTsdb, arrivals: list[list[Sent]]) -> list[Cell]:
    """The cells of points of one row; each list is a batch of its own arrival, all packed together."""
    fragments = []
    for arrival_ms, points in enumerate(arrivals):
        batch = PointBatch.of(
            [(SERIES, BASE_MS + offset, in_ms, value) for offset, in_ms, value in points], arrival_ms
        )
        encoded = layout.encode(batch, [KEY] if points else [])
        assert not encoded.rejected
        assert len(points) == encoded.duplicates + len(plain_columns([points]))
        fragments += list(encoded.fragments)
    if not fragments:
        return []
    assert len({fragment.key for fragment in fragments}) == 1
    return list(
        pack_row(
            layout, "tsdb", fragments[0].key, [fragment.packed for fragment in fragments], Packing.POINTS
        ).cells
    )


def plain_columns(arrivals: list[list[Sent]]) -> dict[bytes, tuple[int, bytes]]:
    """Column by column what a TSD would have put, one point after the other: (time in ms, value)."""
    found = {}
    for offset, in_ms, value in [point for points in arrivals for point in points]:
        if isinstance(value, float):
            raw, flags = struct.pack(">d", value), 0xF
        else:
            width = next(
                width for width in (1, 2, 4, 8) if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1
            )
            raw, flags = value.to_bytes(width, "big", signed=True), width - 1
        if in_ms:
            column = (0xF0000000 | offset << 6 | flags).to_bytes(4, "big")
        else:
            column = (offset // 1000 << 4 | flags).to_bytes(2, "big")
        found[column] = (BASE_MS + offset, raw)
    return found


def test_points_become_the_cells_of_a_tsd() -> None:
    (case,) = GOLDEN["cases"]
    body = json.dumps(case["steps"][0]["http"][2]).encode()
    batch = message_format("opentsdb-json").parse(Message(body, 5)).batch
    (fragment,) = MAX.encode(batch, [KEY]).fragments
    row = pack_row(MAX, "tsdb", fragment.key, [fragment.packed], Packing.POINTS)
    found = [
        ["tsdb", row.key.hex(), cell.family, cell.qualifier.hex(), cell.value.hex(), cell.timestamp_ms * 1000]
        for cell in row.cells
    ]
    assert found == case["cells"]
    decoded = decode_row(MAX, row, batch.series[0])
    assert [value for *_, value in decoded.batch.points()] == [1, 1.5, 3]


@given(st.lists(st.lists(sent, max_size=6), max_size=3))
def test_cells_and_winners(arrivals: list[list[Sent]]) -> None:
    """Each column has the last point put into it; of one instant the greatest, or smallest, is read."""
    columns = plain_columns(arrivals)
    times: dict[int, list[bytes]] = {}
    for column, (time_ms, _) in columns.items():
        times.setdefault(time_ms, []).append(column)
    for layout, best in ((MAX, max), (MIN, min)):
        cells = cells_of(layout, arrivals)
        assert {cell.qualifier: (cell.timestamp_ms, cell.value) for cell in cells} == columns
        assert len(cells) == len(columns)
        decoded = decode_row(layout, Row("tsdb", b"\0\0\1\x50\xe2\x27\0\0\0\1\0\0\1", cells), SERIES)
        assert not decoded.corruption
        values = {time_ms: value for _, time_ms, value in decoded.batch.points()}
        assert values.keys() == times.keys()
        for time_ms, found in times.items():
            assert values[time_ms] == best(_value(column, columns[column][1]) for column in found)


def _value(column: bytes, raw: bytes) -> int | float:
    if column[-1] & 8:
        (value,) = struct.unpack(">d", raw)
        return float(value)
    return int.from_bytes(raw, "big", signed=True)


def test_compacted_columns_of_a_tsd_are_read_by_the_same_rule() -> None:
    cells = [
        Cell("t", bytes.fromhex("00000010"), BASE_MS + 1000, bytes.fromhex("050900")),
        Cell("t", bytes.fromhex("0000"), BASE_MS, b"\x07"),
        Cell("t", bytes.fromhex("001b"), BASE_MS + 1000, struct.pack(">f", 8.5)),
    ]
    row = Row("tsdb", b"\0\0\1\x50\xe2\x27\0\0\0\1\0\0\1", cells)
    assert [value for *_, value in decode_row(MAX, row, SERIES).batch.points()] == [7, 9]
    assert [value for *_, value in decode_row(MIN, row, SERIES).batch.points()] == [5, 8.5]


def test_a_value_that_cannot_be_read_never_wins() -> None:
    cells = [Cell("t", b"\0\2", BASE_MS, b"\x7f\xff\xff"), Cell("t", b"\0\0", BASE_MS, b"\1")]
    row = Row("tsdb", b"\0\0\1\x50\xe2\x27\0\0\0\1\0\0\1", cells)
    assert [number(value) for *_, value in decode_row(MAX, row, SERIES).batch.points()] == [("int", 1)]


def test_packings() -> None:
    assert MAX.writing.packings == (Packing.POINTS,)
    assert MAX.writing.packing_limit
    assert OpenTsdb().writing.packing_limit == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("event", OpenTsdbCellTime.EVENT), ("arrival", OpenTsdbCellTime.ARRIVAL)]
)
def test_options(text: str, expected: OpenTsdbCellTime) -> None:
    layout = OpenTsdb(OpenTsdbOptions.of({"cell_time": text, "use_max_value": False}))
    assert layout.options.cell_time is expected
    assert not layout.options.use_max_value
