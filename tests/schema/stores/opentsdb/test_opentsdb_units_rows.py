"""Facts of OpenTSDB's own unit tests about rows: adding, appending, compacting, reading."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schema.stores.opentsdb.unit_vectors import unhex, vectors
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import Cell
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.columns.decode_row import read_column, read_row
from timebeam.schema.stores.opentsdb.encode import columns
from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.schema.stores.opentsdb.layout import OpenTsdb

Facts = dict[str, Any]
SERIES = Series.of("sys.cpu.user", {"host": "web01"})
KEY = SeriesKey(bytes.fromhex("000001"), bytes.fromhex("000001000001"))

NEWEST_WINS = {
    ("0007", "0003"): ("0003", "00000004"),
    ("00070027", "0007"): ("00070027", "0000000000000006000000000000000500"),
}
"""What is read of columns that a TSD without tsd.storage.fix_duplicates fails at, by their qualifiers."""


def cells_of(columns: list[Facts]) -> list[Cell]:
    """The columns of a vector; without cell timestamps they are of equal age."""
    return [
        Cell("t", unhex(column["qualifier_hex"]), column.get("cell_timestamp", 0), unhex(column["value_hex"]))
        for column in columns
    ]


def compacted(elements: el.Elements) -> tuple[bytes, bytes]:
    """Qualifier and value of the column that holds these elements."""
    (cell,) = columns(elements, 0)
    return cell.qualifier, cell.value


def one_by_one(elements: el.Elements) -> list[list[bytes]]:
    """Qualifier and value of each element."""
    return [
        [el.qualifier_bytes(elements.codes[i : i + 1])[0], el.value_bytes(elements.take(slice(i, i + 1)))[0]]
        for i in range(len(elements))
    ]


@pytest.mark.parametrize(("given", "expect"), vectors("compact_row"))
def test_compact_row(given: Facts, expect: Facts) -> None:
    content = read_row(cells_of(given["columns"]))
    if "error" in expect:
        assert not given["fix_duplicates"]
        qualifier, value = NEWEST_WINS[tuple(column["qualifier_hex"] for column in given["columns"])]
    else:
        qualifier, value = expect["result"]["qualifier_hex"], expect["result"]["value_hex"]
    assert compacted(content.elements) == (unhex(qualifier), unhex(value))
    assert (content.corruption, content.skipped) == ([], expect.get("annotations", 0))


@pytest.mark.parametrize(("given", "expect"), vectors("extract_data_points"))
def test_extract_data_points(given: Facts, expect: Facts) -> None:
    content = read_row(cells_of(given["columns"]))
    assert one_by_one(content.elements) == [[unhex(part) for part in cell] for cell in expect["cells"]]
    assert content.corruption == []


@pytest.mark.parametrize(("given", "expect"), vectors("append_parse", errors=False))
def test_append_parse(given: Facts, expect: Facts) -> None:
    elements = read_column(unhex(given["qualifier_hex"]), unhex(given["value_hex"]))
    assert elements is not None
    assert one_by_one(elements) == [[unhex(part) for part in cell] for cell in expect["cells"]]
    assert el.qualifier_bytes(elements.codes)[0] == unhex(expect["qualifier_hex"])
    assert el.value_bytes(elements)[0] == unhex(expect["value_hex"])
    if given["repair_appends"]:
        assert el.append_bytes(elements) == unhex(expect["repair_rewrites_value_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("append_parse", errors=True))
def test_append_parse_of_corrupt_columns(given: Facts, expect: Facts) -> None:
    with pytest.raises(el.CorruptError, match="Corrupted value"):
        read_column(unhex(given["qualifier_hex"]), unhex(given["value_hex"]))


@pytest.mark.parametrize(("given", "expect"), vectors("annotation_key"))
def test_annotations_are_no_points(given: Facts, expect: Facts) -> None:
    assert read_column(unhex(expect["qualifier_hex"]), b"{}") is None
    layout = OpenTsdb()
    if given["tsuid_hex"]:
        assert parse_key(layout.options, unhex(expect["row_key_hex"])).uids[0] == (
            "metrics",
            unhex(given["tsuid_hex"])[:3],
        )
    else:
        with pytest.raises(ValueError, match="row key"):
            parse_key(layout.options, unhex(expect["row_key_hex"]))


def fragment(point: Facts, arrival_ms: int) -> tuple[bytes, bytes]:
    """Row key and fragment of one point of a vector."""
    in_ms = point["timestamp"] >= 1 << 32
    time_ms = point["timestamp"] if in_ms else point["timestamp"] * 1000
    value = point["value"] if point["type"] == "long" else float(point["value"])
    batch = PointBatch.of([(SERIES, time_ms, in_ms, value)], arrival_ms)
    (found,) = OpenTsdb().encode(batch, [KEY]).fragments
    return found.key, found.packed


@pytest.mark.parametrize(("given", "expect"), vectors("add_point"))
def test_add_point(given: Facts, expect: Facts) -> None:
    assert (given["metric_uid"], *given["tag_uids"]) == (KEY.head.hex(), KEY.tail.hex())
    for packing in (Packing.POINTS, Packing.COMPACTED):
        key, packed = fragment(given, 1)
        assert key == unhex(expect["row_key_hex"])
        (cell,) = pack_row(OpenTsdb(), "tsdb", key, [packed], packing).cells
        assert (cell.qualifier, cell.value) == (unhex(expect["qualifier_hex"]), unhex(expect["value_hex"]))


@pytest.mark.parametrize(("given", "expect"), vectors("add_point_sequence"))
def test_add_point_sequence(given: Facts, expect: Facts) -> None:
    appends = given.get("enable_appends", False)
    stored: dict[bytes, bytes] = {}
    for arrival_ms, point in enumerate(given["points"]):
        packing = Packing.APPEND if appends else Packing.POINTS
        key, packed = fragment(point, arrival_ms)
        (cell,) = pack_row(OpenTsdb(), "tsdb", key, [packed], packing).cells
        stored[cell.qualifier] = (stored.get(cell.qualifier, b"") if appends else b"") + cell.value
    assert stored == {unhex(qualifier): unhex(value) for qualifier, value in expect["columns"].items()}
