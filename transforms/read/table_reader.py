"""Readers of Bigtable, as `timebeam.schema.core.reading.Reader`: plain, remembering, of a key range."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.reading import ColumnRange, Finding, Reader, Scan, Selected
from timebeam.schema.core.rows import WHOLE_TABLE, KeyRange, Row
from timebeam.transforms.bigtable.chunk_columns import ColumnMerger, MergedRows
from timebeam.transforms.bigtable.chunk_rows import QualifierMerger, RowMerger
from timebeam.transforms.bigtable.reader import common_range, read_keys, read_ranges, row_filter
from timebeam.transforms.bigtable.target import Target

_ROWS_AT_ONCE = 4000

MOST_REMEMBERED_ROWS = 200_000
"""The largest number of rows that a `RememberingReader` has in memory; beyond it, all are forgotten."""


def scan_rows(target: Target, scan: Scan) -> Iterator[Row]:
    """The rows of the ranges of a scan in their order, ascending by key within each."""
    return read_ranges(target, scan.table, scan.ranges, _filter(scan), lambda: RowMerger(scan.table))


def scan_columns(target: Target, scan: Scan) -> Iterator[MergedRows]:
    """The rows of a scan of one family, in the order of `scan_rows`, many together and without `Cell`s."""
    return read_ranges(target, scan.table, scan.ranges, _filter(scan), ColumnMerger)


_ROW_BYTES, _CELL_BYTES = 500, 250  # memory of the objects, beside qualifier and value


def memory_of(row: Row) -> int:
    """About the bytes of memory that a row takes."""
    return _ROW_BYTES + sum(_CELL_BYTES + len(cell.value) + len(cell.qualifier) for cell in row.cells)


def _filter(scan: Scan) -> object:
    return row_filter(
        key_pattern=scan.key_pattern, columns=scan.columns, versions=scan.versions, keys_only=scan.keys_only
    )


class TableReader:
    """The `Reader` of a Bigtable instance."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def scan(self, scan: Scan) -> Iterator[Row]:
        return scan_rows(self._target, scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        return read_rows(self._target, table, keys)


def read_ahead(
    selection: Iterable[Selected | Finding], most: int = 100_000
) -> Iterator[list[Selected] | Finding]:
    """Rows in lists that are worth decoding together; findings one by one.

    Args:
      most: about the number of points in a list.
    """
    rows: list[Selected] = []
    size = 0
    for selected in selection:
        if isinstance(selected, Finding):
            yield selected
            continue
        rows.append(selected)
        size += selected.size
        if size >= most or len(rows) >= _ROWS_AT_ONCE:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def scan_table(target: Target, table: str) -> Iterator[Row]:
    """Every row of a table."""
    return scan_rows(target, Scan(table, [(b"", b"")]))


def read_rows(
    target: Target, table: str, keys: Sequence[bytes], columns: ColumnRange | None = None
) -> dict[bytes, Row]:
    """The existing rows with these keys, by key; with these columns, or all for None."""
    cell_filter = None if columns is None else row_filter(columns=columns)
    rows = read_keys(target, table, keys, lambda: RowMerger(table), cell_filter)
    return {row.key: row for row in rows}


def existing_keys(target: Target, table: str, keys: Sequence[bytes]) -> set[bytes]:
    """Those of the keys that rows of a table with one family have."""
    return {key for key, _ in read_keys(target, table, keys, QualifierMerger, row_filter(keys_only=True))}


class RememberingReader:
    """A `Reader` that reads each row by key once, for rows that never change, as those of the UID table.

    Missing rows are read again.

    Args:
      table: the table whose rows are remembered; None for all tables.
    """

    def __init__(self, reader: Reader, table: str | None = None) -> None:
        self._reader, self._table = reader, table
        self._rows: dict[tuple[str, bytes], Row] = {}

    def scan(self, scan: Scan) -> Iterable[Row]:
        return self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        if self._table not in (None, table):
            return self._reader.rows(table, keys)
        rows = {key: row for key in keys if (row := self._rows.get((table, key))) is not None}
        missing = [key for key in keys if key not in rows]
        if missing:
            if len(self._rows) + len(missing) > MOST_REMEMBERED_ROWS:
                self._rows = {}
            new = self._reader.rows(table, missing)
            self._rows.update({(table, key): row for key, row in new.items()})
            rows.update(new)
        return rows


def within(reader: Reader, layout: ReadableStore, keys: KeyRange) -> Reader:
    """A reader limited to the data rows in a range of keys, and to index rows with the same keys."""
    whole = {spec.name for spec in layout.tables() if not (spec.holds_points or spec.same_keys)}
    return RangeReader(reader, whole, keys)


def scan_within(scan: Scan, keys: KeyRange) -> Scan:
    """A scan limited to a range of keys; it may have no ranges."""
    ranges = [common for scanned in scan.ranges if (common := common_range(scanned, keys)) is not None]
    return dataclasses.replace(scan, ranges=ranges)


class RangeReader:
    """A `Reader` limited to a range of keys, but for the tables of `whole`."""

    def __init__(self, reader: Reader, whole: Collection[str], within: KeyRange) -> None:
        self._reader, self._whole, self._within = reader, whole, within

    def scan(self, scan: Scan) -> Iterator[Row]:
        if scan.table not in self._whole and self._within != WHOLE_TABLE:
            scan = scan_within(scan, self._within)
            if not scan.ranges:
                return
        yield from self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        if table not in self._whole:
            start, end = self._within
            keys = [key for key in keys if start <= key and (not end or key < end)]
        return self._reader.rows(table, keys)
