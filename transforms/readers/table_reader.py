"""The `Reader` that layouts read Bigtable with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from timebeam.schema.layouts import Cell, Finding, Row, Scan, Selected
from timebeam.transforms.bigtable.merge import QualifierMerger, RowMerger
from timebeam.transforms.bigtable.reader import read_keys, read_ranges, row_filter
from timebeam.transforms.bigtable.target import Target

_ROWS_AT_ONCE = 1000


def scan_rows(target: Target, scan: Scan) -> Iterator[Row]:
    """The rows of a scan, ascending by key within each of its ranges, the ranges in their order."""
    return read_ranges(
        target, scan.table, scan.ranges, _filter(scan), lambda: RowMerger(scan.table, Row, Cell)
    )


def scan_qualifiers(target: Target, scan: Scan) -> Iterator[tuple[bytes, list[bytes]]]:
    """(row key, the qualifiers of its cells in order) of the rows of a scan, in the order of `scan_rows`.

    Values are not sent, and no `Cell` is made.

    Args:
      scan: of a table with one family, or of the columns of one.
    """
    keys_only = _filter(dataclasses.replace(scan, keys_only=True))
    return read_ranges(target, scan.table, scan.ranges, keys_only, QualifierMerger)


def _filter(scan: Scan) -> object:
    return row_filter(
        key_pattern=scan.key_pattern, columns=scan.columns, versions=scan.versions, keys_only=scan.keys_only
    )


class TableReader:
    """The `Reader` that layouts read with."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`."""
        return scan_rows(self._target, scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """See `Reader.rows`."""
        return read_rows(self._target, table, keys)


def read_ahead(
    found: Iterable[Selected | Finding], most: int = 100_000
) -> Iterator[list[Selected] | Finding]:
    """Rows in lists that are worth decoding together; findings as they come.

    Args:
      most: points of a list, roughly.
    """
    held: list[Selected] = []
    size = 0
    for one in found:
        if isinstance(one, Finding):
            yield one
            continue
        held.append(one)
        cells = one.row.cells
        size += len(cells) + (len(cells[0].qualifier) + len(cells[0].value)) // 8 if cells else 0
        if size >= most or len(held) >= _ROWS_AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held


def scan_table(target: Target, table: str) -> Iterator[Row]:
    """Every row of a table."""
    return scan_rows(target, Scan(table, [(b"", b"")]))


def read_rows(target: Target, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
    """The rows of these keys that exist."""
    return {row.key: row for row in read_keys(target, table, keys, lambda: RowMerger(table, Row, Cell))}
