"""Scans of many ranges and of columns, against the same picked out of the rows in plain Python."""

from __future__ import annotations

import random

import pytest
from google.cloud.bigtable.data import RowMutationEntry, SetCell

from schema.layouts import ColumnRange, Scan, TableSpec
from transforms.bigtable import reader
from transforms.bigtable.reader import scan_rows
from transforms.bigtable.tables import create_tables
from transforms.bigtable.target import Target, open_table

KEYS = [b"%03d" % number for number in range(200)]
COLUMNS = [b"a", b"b", b"c", b"d"]


@pytest.fixture(scope="module")
def target(bigtable: tuple[str, str]) -> Target:
    """An instance with a table `reader`: four columns in each of 200 rows, and one of another family."""
    target = Target(*bigtable)
    for _ in create_tables(target, [TableSpec("reader", {"f": 1, "g": 1}, True)], dry_run=False):
        pass
    cells = [("f", column) for column in COLUMNS] + [("g", b"b")]
    open_table(target, "reader").bulk_mutate_rows(
        [
            RowMutationEntry(key, [SetCell(family, column, key, 1000) for family, column in cells])
            for key in KEYS
        ]
    )
    return target


def keys_of(target: Target, ranges: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [row.key for row in scan_rows(target, Scan("reader", ranges))]


def in_order(ranges: list[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys of each range, range by range."""
    return [key for start, end in ranges for key in KEYS if start <= key and (not end or key < end)]


@pytest.mark.parametrize("most", [1, 3, 500])
def test_ranges_that_ascend_and_do_not_overlap(
    target: Target, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(reader, "_RANGES_A_REQUEST", most)
    bounds = sorted(random.Random(most).sample(KEYS, 60))
    ranges = list(zip(bounds[::2], bounds[1::2], strict=True))
    assert keys_of(target, ranges) == in_order(ranges)
    assert keys_of(target, [*ranges, (bounds[-1], b"")]) == in_order([*ranges, (bounds[-1], b"")])


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(b"", b"")],
        [(b"010", b"020"), (b"015", b"030")],
        [(b"100", b"110"), (b"010", b"020")],
        [(b"190", b""), (b"010", b"020")],
        [(b"010", b"020"), (b"", b"005"), (b"030", b"040"), (b"040", b"041")],
    ],
)
def test_each_range_is_read_in_its_turn(target: Target, ranges: list[tuple[bytes, bytes]]) -> None:
    assert keys_of(target, ranges) == in_order(ranges)


def test_one_request_has_no_more_bytes_of_keys_than_the_service_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "_RANGE_BYTES_A_REQUEST", 25)
    ranges = list(zip(KEYS[::2], KEYS[1::2], strict=True))
    assert [len(some) for some in reader._requests(ranges)] == [4] * 25


@pytest.mark.parametrize("start", [b"", b"b", b"bb"])
@pytest.mark.parametrize("end", [b"", b"c", b"cc"])
def test_columns_of_one_family(target: Target, start: bytes, end: bytes) -> None:
    scan = Scan("reader", [(b"007", b"009")], columns=ColumnRange("f", start, end))
    found = [(row.key, cell.family, cell.qualifier) for row in scan_rows(target, scan) for cell in row.cells]
    wanted = [column for column in COLUMNS if start <= column and (not end or column < end)]
    assert found == [(key, "f", column) for key in (b"007", b"008") for column in wanted]


def test_keys_alone(target: Target) -> None:
    scan = Scan("reader", [(b"007", b"008")], keys_only=True)
    ((row,),) = [list(scan_rows(target, scan))]
    assert {cell.value for cell in row.cells} == {b""}
