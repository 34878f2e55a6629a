"""What a real KairosDB wrote (tests/golden/kairosdb) against what is encoded and decoded here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schema.stores import plain_kairosdb as plain
from tests.support.decoded import decode_row
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.kairosdb import encode, keys
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.schema.stores.kairosdb.options import KairosDbOptions, RowSpec

VECTORS = json.loads((Path(__file__).parents[3] / "golden/kairosdb/vectors.json").read_text())["vectors"]
TIME_MS = 1_300_000_000_000
SERIES = Series.of("cpu", {"host": "a"})
SPECS = ("legacy", "milliseconds", "seconds")
KINDS = {"kairos_long": Kind.INTEGER, "kairos_double": Kind.FLOAT, "kairos_string": Kind.TEXT}


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(vector, id=vector["id"]) for vector in VECTORS if vector["kind"] == kind]


def layout_of(spec: str) -> KairosDb:
    return KairosDb(KairosDbOptions(row_spec=RowSpec(spec)))


def stored(layout: KairosDb, series: Series, time_ms: int, value: float | str) -> tuple[bytes, Cell]:
    """(row key, cell) of one point."""
    batch = PointBatch.of([(series, time_ms, True, value)], 7)
    encoded = layout.encode(batch, [layout.series_key(series, {})])
    assert not encoded.rejected
    (fragment,) = encoded.fragments
    row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)
    (cell,) = row.cells
    assert (row.table, cell.family, cell.timestamp_ms) == ("data_points", "d", 7)
    return row.key, cell


def value_of(vector: dict[str, Any]) -> float | str:
    """The value of a vector of kind `value`."""
    value = vector["value"]
    return float(value) if vector["data_type"] == "kairos_double" else value


@pytest.mark.parametrize("vector", of_kind("row_key"))
def test_row_keys(vector: dict[str, Any]) -> None:
    series = Series.of(vector["metric"], vector["tags"])
    key = bytes.fromhex(vector["row_key_hex"])
    assert key == plain.row_key(series.metric, vector["row_time"], vector["data_type"], vector["tags"])
    if vector["timestamp"] > -(1 << 63):  # whose absolute value Java has not
        assert vector["row_time"] == plain.row_time(vector["timestamp"])
    if not vector["roundtrip"]:
        assert reads_as_something_else(key, series)
        return
    assert keys.parse_key(key) == (vector["row_time"], vector["data_type"].encode(), series)
    if vector["data_type"] in KINDS:
        parts = keys.series_key(series)
        assert keys.row_key(parts, vector["row_time"], KINDS[vector["data_type"]]) == key
        storable = 0 <= vector["timestamp"] <= keys.LAST_MS and keys.reject_series(series) is None
        if storable and vector["data_type"] == "kairos_long":
            assert stored(KairosDb(), series, vector["timestamp"], 5)[0] == key


def reads_as_something_else(key: bytes, series: Series) -> bool:
    """Whether a key cannot be read, or shows another series than it was made of: KairosDB's losses."""
    try:
        return keys.parse_key(key).series != series
    except ValueError:
        return True


@pytest.mark.parametrize(
    ("number", "reason"),
    [("row_key-026", Reason.BAD_TAG), ("row_key-032", Reason.BAD_METRIC)],
)
def test_series_that_kairosdb_rejects_or_loses_are_rejected(number: str, reason: Reason) -> None:
    (vector,) = (vector for vector in VECTORS if vector["id"] == number)
    rejected = KairosDb().reject(Series.of(vector["metric"], vector["tags"]))
    assert rejected is not None
    assert rejected.reason is reason


def test_all_other_series_are_taken() -> None:
    odd = {"row_key-026", "row_key-032"}
    for vector in VECTORS:
        if vector["kind"] == "row_key" and vector["id"] not in odd:
            assert KairosDb().reject(Series.of(vector["metric"], vector["tags"])) is None


@pytest.mark.parametrize("vector", of_kind("index_range"))
def test_the_range_of_a_metric_holds_that_of_the_old_index(vector: dict[str, Any]) -> None:
    first, last = plain.row_time(vector["start"]), plain.row_time(vector["end"])
    start, end = keys.metric_range(vector["metric"], first, last)
    assert start <= bytes.fromhex(vector["start_hex"])
    assert bytes.fromhex(vector["end_hex"]) <= end
    assert bytes.fromhex(vector["start_hex"]).startswith(start)
    head = vector["metric"].encode() + b"\0"
    assert bytes.fromhex(vector["end_hex"]).startswith(head + last.to_bytes(8, "big"))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("vector", of_kind("column"))
def test_columns(vector: dict[str, Any], spec: str) -> None:
    expected, time_ms = vector[spec], vector["timestamp"]
    column = bytes.fromhex(expected["column_hex"])
    assert column == plain.column(time_ms, spec)
    layout = layout_of(spec)
    row_ms = expected["row_time"]
    key = plain.row_key("cpu", row_ms, "kairos_long", {"host": "a"})
    decoded = decode_row(layout, Row("data_points", key, [Cell("d", column, 9, b"\x0a")]), SERIES)
    assert (decoded.corruption, decoded.skipped) == ([], 0)
    assert list(decoded.batch.points()) == [(SERIES, expected["read_back_timestamp"], 5)]
    if time_ms < 0:
        (rejected,) = layout_of("legacy").encode(PointBatch.of([(SERIES, time_ms, True, 5)], 1), []).rejected
        assert rejected.reason is Reason.TIMESTAMP_OUT_OF_RANGE
    elif spec != "seconds":
        written, cell = stored(layout, SERIES, time_ms, 5)
        assert (written, cell.qualifier, cell.value) == (key, column, b"\x0a")


@pytest.mark.parametrize("vector", of_kind("value"))
def test_values(vector: dict[str, Any]) -> None:
    if "error" in vector:
        batch = PointBatch.of([(SERIES, TIME_MS, True, "x" * 65_536)], 1)
        (rejected,) = KairosDb().encode(batch, []).rejected
        assert rejected.reason is Reason.VALUE_NOT_STORABLE
        return
    raw = bytes.fromhex(vector["value_hex"])
    if vector["data_type"] == "kairos_legacy":
        return  # what its writer puts today its reader misreads: never written here
    key = plain.row_key("cpu", plain.row_time(TIME_MS), vector["data_type"], {"host": "a"})
    row = Row("data_points", key, [Cell("d", plain.column(TIME_MS, "legacy"), 7, raw)])
    decoded = decode_row(KairosDb(), row, SERIES)
    assert (decoded.corruption, decoded.skipped) == ([], 0)
    ((_, time_ms, found),) = decoded.batch.points()
    assert time_ms == TIME_MS
    if vector["data_type"] == "kairos_complex":
        assert found == raw
        return
    value = value_of(vector)
    assert (found, type(found)) == (value, type(value)) or (found != found and value != value)
    if isinstance(value, float):
        assert decoded.batch.bits.view(np.float64).tobytes() == np.array([value]).tobytes()
    if isinstance(value, float) and not np.isfinite(value):
        batch = PointBatch.of([(SERIES, TIME_MS, True, value)], 1)
        assert KairosDb().encode(batch, []).rejected[0].reason is Reason.NUMBER_OUT_OF_RANGE
    else:
        assert plain.value_bytes(value) == (vector["data_type"], raw)
        written, cell = stored(KairosDb(), SERIES, TIME_MS, value)
        assert (written, cell) == (key, row.cells[0])


@pytest.mark.parametrize("vector", of_kind("legacy_cell_long") + of_kind("legacy_cell_float"))
def test_cells_of_rows_without_type(vector: dict[str, Any]) -> None:
    flag = vector["kind"] == "legacy_cell_float"
    column = (2 * (TIME_MS - plain.row_time(TIME_MS)) + flag).to_bytes(4, "big")
    key = plain.row_key("cpu", plain.row_time(TIME_MS), "kairos_legacy", {"host": "a"})
    row = Row("data_points", key, [Cell("d", column, 7, bytes.fromhex(vector["value_hex"]))])
    decoded = decode_row(KairosDb(), row, SERIES)
    assert decoded.corruption == []
    assert [(time, type(value), value) for _, time, value in decoded.batch.points()] == [
        (TIME_MS, float if flag else int, vector["value"])
    ]


def test_the_example_of_the_format_notes() -> None:
    key, cell = stored(KairosDb(), SERIES, TIME_MS, 5)
    assert key.hex() == "637075000000012e79039000000b6b6169726f735f6c6f6e67686f73743d613a"
    assert cell.qualifier.hex() == "6a0c7000"
    assert stored(layout_of("milliseconds"), SERIES, TIME_MS, 5)[1].qualifier.hex() == "35063800"


def test_every_vector_is_met() -> None:
    kinds = {"row_key", "index_range", "column", "value", "legacy_cell_long", "legacy_cell_float"}
    assert sum(vector["kind"] in kinds for vector in VECTORS) == 111
    assert {vector["kind"] for vector in VECTORS} - kinds == {"rest_datapoints", "telnet"}  # tests of formats
    assert encode.STRING_BYTES == 65_535
