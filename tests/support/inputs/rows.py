"""One row of one series for tests of packing and writing, and rows out of their rejections."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from timebeam.schema.core.contract import Store
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import Cell, Row

START_MS = 1_356_998_400_000
SERIES = Series.of("sys.cpu", {"host": "web01"})
KEY = SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1")
ROW_KEY = KEY.head + (START_MS // 1000).to_bytes(4, "big") + KEY.tail


def piece(layout: Store, times_ms: Sequence[int]) -> bytes:
    """The piece of points at these times, all in the row ROW_KEY; their values are their offsets."""
    points = [(SERIES, time_ms, bool(time_ms % 1000), time_ms - START_MS) for time_ms in times_ms]
    (found,) = layout.encode(PointBatch.of(points, 1), [KEY]).fragments
    assert found.key == ROW_KEY
    return found.packed


def row_of(rejected: Rejected) -> Row:
    """The row in the payload of its rejection."""
    row = json.loads(rejected.payload)
    assert rejected.source == f"row of table {row['table']}"
    cells = [
        Cell(
            cell["family"],
            base64.b64decode(cell["qualifier"]),
            cell["timestamp_ms"],
            base64.b64decode(cell["value"]),
        )
        for cell in row["cells"]
    ]
    return Row(row["table"], base64.b64decode(row["key"]), cells)
