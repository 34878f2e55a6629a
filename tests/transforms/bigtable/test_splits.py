"""Cutting tables into ranges, against the emulator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.arrays import Kind
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.core.selection import Scan
from timebeam.schema.stores.kairosdb import keys
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.read_ranges import (
    ascend,
    cuts_within,
    ranges_between,
    sampled_bytes,
    split_keys,
)
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.row_mutations import write_batch
from timebeam.transforms.read.table_reader import RangeReader, TableReader, scan_within

KEYS = st.lists(st.binary(min_size=1, max_size=3), max_size=8, unique=True).map(sorted)


@pytest.fixture(scope="module")
def full(bigtable: tuple[str, str]) -> tuple[Target, str, list[bytes]]:
    target, table = Target(*bigtable), "splits-3000"
    for _ in create_tables(target, [TableSpec(table, {"t": 1}, holds_points=True)], dry_run=False):
        pass
    names = [b"%06d" % number for number in range(3000)]
    write_batch(target, table, [Row(table, name, [Cell("t", b"q", 0, b"v" * 50)]) for name in names])
    return target, table, names


def test_ranges_between_cuts_have_each_row_once(full: tuple[Target, str, list[bytes]]) -> None:
    target, table, names = full
    cuts = split_keys(target, table, most=8)
    assert 0 < len(cuts) < 8
    assert cuts == sorted(set(cuts))
    ranges = ranges_between(cuts)
    reader = TableReader(target)
    found = [
        [
            row.key
            for row in RangeReader(reader, (), one).scan(Scan(table, [(b"000100", b"002900"), (b"9", b"")]))
        ]
        for one in ranges
    ]
    assert [key for some in found for key in some] == names[100:2900]
    elsewhere = RangeReader(reader, {table}, ranges[0])
    assert [row.key for row in elsewhere.scan(Scan(table, [(b"", b"")]))] == names
    within = RangeReader(reader, (), (names[5], names[7]))
    assert sorted(within.rows(table, names[:10])) == names[5:7]


def test_the_size_of_ranges_is_estimated(full: tuple[Target, str, list[bytes]]) -> None:
    target, table, names = full
    size, whole = sampled_bytes(target, table, [(names[0], names[1500])])
    assert whole == 3000 * 50
    assert 0.3 < size / whole < 0.7
    assert sampled_bytes(target, table, [(b"", b"")])[0] == whole
    assert sampled_bytes(target, table, [])[0] == 0


def test_a_part_of_a_table_is_cut_by_what_it_holds(full: tuple[Target, str, list[bytes]]) -> None:
    target, table, names = full
    ranges = [(names[100], names[700]), (names[900], names[900]), (names[1200], names[2500])]
    cuts = split_keys(target, table, ranges, 0, 6)
    assert 0 < len(cuts) < 6
    assert cuts == sorted(set(cuts))
    assert names[100] < cuts[0]
    assert cuts[-1] < names[2500]
    scan, reader = Scan(table, ranges), TableReader(target)
    parts = [[row.key for row in reader.scan(scan_within(scan, one))] for one in ranges_between(cuts)]
    assert [key for some in parts for key in some] == names[100:700] + names[1200:2500]
    least = 500 * 50
    assert len(split_keys(target, table, [(b"", b"")], least)) <= 3000 * 50 // least
    assert split_keys(target, table, [(b"", b"")], 3000 * 50 + 1) == []
    assert split_keys(target, table, [(names[5], names[6])], 0) == []
    assert split_keys(target, table, [(b"x", b"")], 0) == []


@pytest.mark.parametrize(
    ("ranges", "answer"),
    [
        ([], True),
        ([(b"", b"")], True),
        ([(b"", b"b"), (b"b", b"c"), (b"d", b"")], True),
        ([(b"b", b""), (b"c", b"d")], False),
        ([(b"b", b"d"), (b"c", b"e")], False),
        ([(b"c", b"d"), (b"a", b"b")], False),
    ],
)
def test_ranges_that_ascend(ranges: list[tuple[bytes, bytes]], answer: bool) -> None:
    assert ascend(ranges) is answer


def test_an_empty_table_is_one_range(bigtable: tuple[str, str]) -> None:
    target, table = Target(*bigtable), "splits-none"
    for _ in create_tables(target, [TableSpec(table, {"t": 1}, holds_points=True)], dry_run=False):
        pass
    assert ranges_between(split_keys(target, table)) == [(b"", b"")]
    assert split_keys(target, table, [(b"", b"")], 0) == []


@given(KEYS, KEYS, st.binary(max_size=3))
def test_cuts_part_every_range(cuts: list[bytes], ends: list[bytes], key: bytes) -> None:
    """Each key of a range is in exactly one of the parts."""
    ranges = list(zip(ends[::2], ends[1::2], strict=False))
    parts = ranges_between(cuts_within(cuts, ranges))
    inside = [first <= key and (not end or key < end) for first, end in parts]
    assert sum(inside) == 1
    for first, end in ranges:
        assert {cut for cut in cuts if first < cut < end} <= {first for first, _ in parts}


def test_rows_of_one_series_and_time_are_never_cut_apart() -> None:
    key = keys.series_key(Series.of("a", {"b": "c"}))
    rows = [keys.row_key(key, 1_814_400_000, kind) for kind in (Kind.INTEGER, Kind.FLOAT, Kind.TEXT)]
    (cut,) = {KairosDb().cut_at(row) for row in rows}
    assert all(cut <= row and row.startswith(cut) for row in rows)
    assert KairosDb().cut_at(keys.row_key(key, 3_628_800_000, 0)) > max(rows)
