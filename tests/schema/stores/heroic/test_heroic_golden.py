"""What Heroic's own serializers made (tests/golden/heroic) against what is encoded and decoded here."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schema.stores.plain_heroic import wire_key, within
from tests.support.decoded import decode_row
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.heroic.select import scans
from timebeam.schema.stores.heroic.wire_key import WireKeys, length_bytes, read_length

FILE = Path(__file__).parents[3] / "golden" / "heroic" / "heroic.json"
VECTORS = json.loads(FILE.read_text())["vectors"]
PERIOD = 1 << 32
LAYOUT, FORM = Heroic(), WireKeys()
SERIES = Series.of("k", {"a": "b"})


def all_of(kind: str) -> Any:
    """The vectors of a kind as test parameters."""
    vectors = [pytest.param(v, id=v["id"]) for v in VECTORS if v["kind"] == kind]
    return pytest.mark.parametrize("vector", vectors)


def row_of(series: Series, time_ms: int, value: float) -> Row:
    """The row that one point becomes."""
    batch = PointBatch.of([(series, time_ms, True, value)], 7)
    encoded = LAYOUT.encode(batch, [LAYOUT.series_key(series, {})])
    assert (encoded.rejected, encoded.duplicates) == ([], 0)
    (fragment,) = encoded.fragments
    return pack_row(LAYOUT, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)


def test_every_record_is_met() -> None:
    assert Counter(vector["kind"] for vector in VECTORS) == {
        "row_key": 34,
        "cell": 19,
        "value": 16,
        "length": 15,
        "query_range": 6,
        "spotify100_proto": 7,  # in tests/schema/formats/test_heroic_proto.py
    }


@all_of("row_key")
def test_row_keys(vector: dict[str, Any]) -> None:
    series = Series.of(vector["key"], vector["tags"], vector["resource"])
    key, base = bytes.fromhex(vector["row_key_hex"]), vector["base"]
    made = FORM.series_key(series)
    assert FORM.row_key(made, base) == key
    assert wire_key(series, base) == key  # the oracle of the other tests
    parts = FORM.parse(key)
    assert (parts.series, parts.base_ms, parts.is_whole) == (series, base, True)
    assert (parts.head, parts.tail) == made
    ((start, end),) = FORM.ranges(made.head, base, base)
    assert (start.hex(), end.hex()) == (vector["scan_prefix_hex"], vector["scan_end_hex"])
    rejected = LAYOUT.reject(series)
    assert (rejected is None) == vector["written"]
    if rejected is not None:
        assert rejected.reason is Reason.SERIES_NOT_STORABLE
    elif vector["timestamp"] >= 0:
        assert row_of(series, vector["timestamp"], 1.0).key == key
        assert LAYOUT.index.entry_of(key) == (series, base)


def test_the_order_of_tags_is_met() -> None:
    (vector,) = [v for v in VECTORS if v["id"] == "row_key-017"]
    assert list(vector["tags"]) != sorted(vector["tags"])  # by code point it is the other way round


@all_of("length")
def test_lengths(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    assert length_bytes(vector["value"]) == raw
    assert read_length(b"\xff" + raw + b"\x80", 1) == (vector["value"], 1 + len(raw))
    with pytest.raises(ValueError, match="ends inside a length"):
        read_length(raw[:-1], 0)


@all_of("cell")
def test_cells(vector: dict[str, Any]) -> None:
    time_ms, raw = vector["timestamp"], bytes.fromhex(vector["qualifier_hex"])
    key = FORM.row_key(FORM.series_key(SERIES), vector["base"])
    read = decode_row(LAYOUT, Row("metrics", key, [Cell("points", raw, 7, bytes(8))]), SERIES)
    assert (read.batch.times_ms.tolist(), read.corruption) == ([vector["read_back_timestamp"]], [])
    if time_ms < 0:  # Heroic writes these to where it does not find them
        batch = PointBatch.of([(SERIES, time_ms, True, 1.0)], 7)
        (rejected,) = LAYOUT.encode(batch, [FORM.series_key(SERIES)]).rejected
        assert rejected.reason is Reason.TIMESTAMP_OUT_OF_RANGE
        assert LAYOUT.index.entries(batch) == []
    else:
        row = row_of(SERIES, time_ms, 0.0)
        assert (row.key, row.cells) == (key, [Cell("points", raw, 7, bytes(8))])
        assert vector["offset"] == time_ms - vector["base"]


@all_of("value")
def test_values(vector: dict[str, Any]) -> None:
    raw, value = bytes.fromhex(vector["value_hex"]), float(vector["value"])
    row = row_of(SERIES, 1, value)
    assert row.cells == [Cell("points", b"\0\0\0\1", 7, raw)]
    batch = decode_row(LAYOUT, row, SERIES).batch
    assert batch.kinds.tolist() == [Kind.FLOAT]
    assert struct.pack(">d", batch.value(0)) == raw


def test_every_nan_becomes_the_canonical_one() -> None:
    batch = PointBatch.of([(SERIES, 1, True, 0.0)], 7)
    batch.bits[:] = np.array([0xFFF0DEADBEEF0001], np.uint64).view(np.int64)
    (fragment,) = LAYOUT.encode(batch, [FORM.series_key(SERIES)]).fragments
    (cell,) = pack_row(LAYOUT, fragment.table, fragment.key, [fragment.packed], Packing.POINTS).cells
    assert cell.value.hex() == "7ff8000000000000"


@all_of("query_range")
def test_query_ranges(vector: dict[str, Any]) -> None:
    """Heroic's (start, end] is our [start + 1, end]; and ours has what stands exactly on a base."""
    start, end, reads = vector["start"], vector["end"], vector["reads"]
    series = Series.of(vector["key"], vector["tags"])
    head = FORM.series_key(series).head
    everything = {head: (0, ((1 << 31) - 1) * PERIOD)}
    ours = list(scans(FORM, "metrics", everything, start + 1, end))
    for read in reads:
        ((first, last),) = FORM.ranges(head, read["base"], read["base"])
        assert (first.hex(), last.hex()) == (read["row_start_closed_hex"], read["row_end_open_hex"])
    bases = {time - time % PERIOD for time in (start, end)} | {read["base"] for read in reads}
    times = {at + d for at in {start, end, *bases} for d in range(-2, 3) if at + d >= 0}
    for time_ms in times:
        base, offset = time_ms - time_ms % PERIOD, time_ms % PERIOD
        key, column = wire_key(series, base), struct.pack(">I", offset)
        heroic = [
            read
            for read in reads
            if bytes.fromhex(read["row_start_closed_hex"]) <= key < bytes.fromhex(read["row_end_open_hex"])
            and read["qualifier_start_open_hex"] < column.hex() <= read["qualifier_end_closed_hex"]
        ]
        mine = [
            scan
            for scan in ours
            if any(low <= key < high for low, high in scan.ranges)
            and within(scan, Cell("points", column, 1, b""))
        ]
        assert len(mine) == (start < time_ms <= end), time_ms
        assert len(heroic) == (start < time_ms <= end and offset != 0), time_ms
