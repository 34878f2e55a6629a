"""Metadata as a real TSD stored it (tests/golden/opentsdb/meta_*.json), in both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.golden.meta_cases import GROUPS, AnyCell, MetaCase, created, meta_cases
from timebeam.schema.core.rows import Row
from timebeam.schema.stores.opentsdb import meta_documents
from timebeam.schema.stores.opentsdb.keys import is_of_series, tsuid_of_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import TsMeta, UidMeta, series_row, uid_rows
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

OPTIONS = OpenTsdbOptions()


def all_cases(*groups: str) -> list[Any]:
    return [pytest.param(one, id=f"{group}/{one.case.name}") for group in groups for one in meta_cases(group)]


def cells_of(row: Row) -> set[AnyCell]:
    return {AnyCell(row.table, row.key, cell.family, cell.qualifier, cell.value) for cell in row.cells}


@pytest.mark.parametrize("golden", all_cases(*GROUPS))
def test_every_cell_is_read_and_written_byte_for_byte(golden: MetaCase) -> None:
    document_count = 0
    for cell in golden.of("tsdb-meta"):
        if cell.qualifier == meta_documents.COUNTER:
            assert meta_documents.counter_bytes(meta_documents.counter_value(cell.value)) == cell.value
            continue
        assert cell.qualifier == meta_documents.DOCUMENT
        found = TsMeta.from_bytes(cell.key, cell.value)
        assert found.to_bytes() == cell.value
        assert (found.tsuid, found.custom, found.is_edited) == (cell.key, None, False)
        assert math.isnan(found.maximum)
        document_count += 1
    for cell in golden.uid_meta:
        assert UidMeta.from_bytes(meta_documents.KINDS[cell.qualifier], cell.value).to_bytes() == cell.value
        document_count += 1
    assert bool(document_count) == (golden.case.group != "meta_tracking")


@pytest.mark.parametrize("golden", all_cases("meta_full"))
def test_new_series_get_the_cells_of_a_tsd(golden: MetaCase) -> None:
    times = {cell.key: created(cell.value) for cell in golden.of("tsdb-meta") if cell.value[:1] == b"{"}
    made: set[AnyCell] = set()
    for key in {key for key, _, _ in golden.case.cells}:
        series, base_s = tsuid_of_key(OPTIONS, key)
        assert base_s == 1356998400
        made |= cells_of(series_row("tsdb-meta", series, times[series], 1))
    assert made == golden.of("tsdb-meta")


@pytest.mark.parametrize("golden", all_cases("meta_tracking"))
def test_tracked_series_get_a_counter_of_one(golden: MetaCase) -> None:
    keys = {key for key, _, _ in golden.case.cells}
    rows = [series_row("tsdb-meta", tsuid_of_key(OPTIONS, key)[0], 5, 1, document=False) for key in keys]
    assert set().union(*map(cells_of, rows)) == golden.of("tsdb-meta")


@pytest.mark.parametrize("golden", all_cases("meta_full", "meta_realtime"))
def test_the_names_of_series_get_the_cells_of_a_tsd(golden: MetaCase) -> None:
    times = {
        (meta_documents.KINDS[cell.qualifier], cell.key): created(cell.value) for cell in golden.uid_meta
    }
    pairs = {
        pair
        for key, _, _ in golden.case.cells
        for pair in tsuid_pairs(OPTIONS, tsuid_of_key(OPTIONS, key)[0])
    }
    rows = uid_rows("tsdb-uid", {pair: times[pair] for pair in pairs})
    assert len({row.key for row in rows}) == len(rows)
    assert set().union(*map(cells_of, rows)) == golden.uid_meta
    assert {cell.timestamp_ms for row in rows for cell in row.cells} == {1}


def test_members_in_any_order_unknown_ones_and_missing_ones() -> None:
    raw = (
        b'{"min":1,"x":[1],"custom":{"b":"2","a":null_},"max":2.5,"tsuid":"000001000001000001",'
        b'"retention":7,"created":5,"units":"B","displayName":null}'
    ).replace(b"null_", b'"\xc3\xa4"')
    found = TsMeta.from_bytes(bytes.fromhex("000001000001000001"), raw)
    assert (found.minimum, found.maximum, found.retention, found.created) == (1.0, 2.5, 7, 5)
    assert (found.custom, found.units, found.display_name, found.notes) == ({"b": "2", "a": "ä"}, "B", "", "")
    assert found.is_edited
    assert (
        found.to_bytes()
        == (
            '{"tsuid":"000001000001000001","displayName":"","description":"","notes":"","created":5,'
            '"custom":{"b":"2","a":"ä"},"units":"B","dataType":"","retention":7,"max":2.5,"min":1.0}'
        ).encode()
    )


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not JSON"),
        (b'{"created":"now"}', "created is not a whole number"),
        (b'{"created":true}', "created is not a whole number"),
        (b'{"notes":5}', "notes is not a string"),
        (b'{"custom":{"a":1}}', "custom is not an object of strings"),
        (b'{"custom":[]}', "custom is not an object of strings"),
        (b'{"max":"much"}', "max is not a number"),
        (b'{"max":true}', "max is not a number"),
        (b'{"tsuid":"000002"}', "metadata of series 000002 in the row of 000001"),
    ],
)
def test_corrupt_meta_data_of_a_series(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TsMeta.from_bytes(b"\0\0\1", raw)


def test_meta_data_of_another_kind() -> None:
    with pytest.raises(ValueError, match="of type TAGV in the column of TAGK"):
        UidMeta.from_bytes("tagk", UidMeta("tagv", 1).to_bytes())


def test_a_counter_has_eight_bytes() -> None:
    with pytest.raises(ValueError, match="4 bytes"):
        meta_documents.counter_value(bytes(4))


@pytest.mark.parametrize("length", [0, 3, 4, 8, 10, 14])
def test_lengths_that_no_tsuid_has(length: int) -> None:
    with pytest.raises(ValueError, match="TSUID"):
        tsuid_pairs(OPTIONS, bytes(length))
    with pytest.raises(ValueError, match="row key"):
        tsuid_of_key(OPTIONS, bytes(length + 4))


def test_widths_and_salt() -> None:
    options = OpenTsdbOptions(salt_width=2, uid_width_metric=4, uid_width_tagk=1, uid_width_tagv=2)
    key = bytes.fromhex("aaaa 00000001 50e22700 01 0002 03 0004")
    assert tsuid_of_key(options, key) == (bytes.fromhex("00000001 010002 030004"), 1356998400)
    assert tsuid_pairs(options, bytes.fromhex("00000001 010002 030004")) == [
        ("metrics", b"\0\0\0\1"),
        ("tagk", b"\1"),
        ("tagv", b"\0\2"),
        ("tagk", b"\3"),
        ("tagv", b"\0\4"),
    ]
    assert not is_of_series(options, bytes.fromhex("0000 00000000 50e22700"))
    assert is_of_series(options, key)
