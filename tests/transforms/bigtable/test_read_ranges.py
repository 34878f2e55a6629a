"""Scans of many ranges and of columns, against the same picked out of the rows in plain Python."""

from __future__ import annotations

import random

import pytest
from google.api_core import exceptions
from google.cloud.bigtable.data import RowMutationEntry, SetCell

from tests.support.data_client import open_table
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.core.selection import ColumnRange, Scan
from timebeam.transforms.bigtable import read_ranges
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import mutate_rows
from timebeam.transforms.read.table_reader import read_rows, scan_columns, scan_rows, scan_table

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
    monkeypatch.setattr(read_ranges, "_RANGES_A_REQUEST", most)
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
    monkeypatch.setattr(read_ranges, "_RANGE_BYTES_A_REQUEST", 25)
    ranges = list(zip(KEYS[::2], KEYS[1::2], strict=True))
    assert [len(some) for some in read_ranges._requests(ranges)] == [4] * 25


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


@pytest.mark.parametrize("columns", [ColumnRange("f", b"", b""), ColumnRange("f", b"b", b"d")])
def test_columns_without_values_are_those_of_the_rows(target: Target, columns: ColumnRange) -> None:
    ranges = [(b"190", b""), (b"010", b"020")]
    scan = Scan("reader", ranges, key_pattern=rb"\C*[02468]", columns=columns, keys_only=True)
    expected = {
        (row.key, cell.qualifier, cell.timestamp_ms) for row in scan_rows(target, scan) for cell in row.cells
    }
    read = {
        (rows.keys[row], bytes(qualifier), time_ms)
        for rows in scan_columns(target, scan)
        for cells in rows.cells
        for row, qualifier, time_ms in zip(cells.rows, cells.qualifiers, cells.times_ms, strict=True)
    }
    assert len({key for key, _, _ in expected}) == 10
    assert read == expected


@pytest.mark.parametrize("most", [1, 3, 2000])
def test_rows_by_their_keys(target: Target, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(read_ranges, "_KEYS_A_REQUEST", most)
    wanted = [b"150", b"none", b"007", b"150", b"199", b"00"]
    found = read_rows(target, "reader", wanted)
    assert found == {row.key: row for row in scan_table(target, "reader") if row.key in wanted}
    assert found.keys() == {b"150", b"007", b"199"}


def test_one_request_has_no_more_keys_than_the_service_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ranges, "_RANGE_BYTES_A_REQUEST", 25)
    assert [len(some) for some in read_ranges._key_requests(KEYS)] == [8] * 25
    assert list(read_ranges._key_requests([b"k" * 30, b"l"])) == [[b"k" * 30], [b"l"]]


def test_keys_of_rows(target: Target) -> None:
    assert list(scan_keys(target, "reader")) == KEYS
    assert list(scan_keys(target, "reader", b"010", b"020")) == KEYS[10:20]
    assert list(scan_keys(target, "reader", limit=3)) == KEYS[:3]


def test_a_table_that_is_not_there(target: Target) -> None:
    with pytest.raises(exceptions.NotFound):
        next(scan_table(target, "none"))


def test_rows_larger_than_a_message_of_grpc(target: Target) -> None:
    """The emulator sends a row as one message, whatever its size; gRPC takes 4 MiB if nobody says more."""
    for _ in create_tables(target, [TableSpec("large", {"f": 1}, True)], dry_run=False):
        pass
    value = random.Random(1).randbytes(3 << 20)
    rows = [Row("large", key, [Cell("f", column, 1, value) for column in COLUMNS]) for key in KEYS[:2]]
    assert not mutate_rows(target, "large", rows)
    assert list(scan_table(target, "large")) == rows
