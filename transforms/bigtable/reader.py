"""Rows out of Bigtable: the newest version of each cell, of key ranges, with a pattern for keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.cloud.bigtable.data import ReadRowsQuery, RowRange
from google.cloud.bigtable.data import row_filters as filters
from google.cloud.bigtable.data.row import Row as BigtableRow

from schema.layouts import Cell, Row, Scan
from transforms.bigtable.target import Target, open_table


def scan_rows(target: Target, scan: Scan) -> Iterator[Row]:
    """The rows of a scan, ascending by key within each of its ranges.

    The client resumes a broken read behind the last whole row.
    """
    chain: list[filters.RowFilter] = []
    if scan.key_pattern is not None:
        chain.append(filters.RowKeyRegexFilter(scan.key_pattern))
    if scan.columns is not None:
        family, first, end = scan.columns
        chain.append(
            filters.ColumnRangeFilter(
                family, first or None, end or None, inclusive_start=True, inclusive_end=False
            )
        )
    chain.append(filters.CellsColumnLimitFilter(1))
    if scan.keys_only:
        chain.append(filters.StripValueTransformerFilter(True))
    row_filter = filters.RowFilterChain(chain) if len(chain) > 1 else chain[0]
    for start, end in scan.ranges:
        query = ReadRowsQuery(row_ranges=RowRange(start or None, end or None), row_filter=row_filter)
        for row in open_table(target, scan.table).read_rows_stream(query):
            yield as_row(scan.table, row)


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


def scan_table(target: Target, table: str) -> Iterator[Row]:
    """Every row of a table."""
    query = ReadRowsQuery(row_filter=filters.CellsColumnLimitFilter(1))
    for row in open_table(target, table).read_rows_stream(query):
        yield as_row(table, row)


def read_rows(target: Target, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
    """The rows of these keys that exist."""
    found = {}
    opened = open_table(target, table)
    for at in range(0, len(keys), _KEYS_A_REQUEST):
        query = ReadRowsQuery(
            row_keys=list(keys[at : at + _KEYS_A_REQUEST]), row_filter=filters.CellsColumnLimitFilter(1)
        )
        for row in opened.read_rows(query):
            found[row.row_key] = as_row(table, row)
    return found


_KEYS_A_REQUEST = 2000


def as_row(table: str, row: BigtableRow) -> Row:
    """The client's row as a `Row`."""
    cells = [
        Cell(cell.family, cell.qualifier, cell.timestamp_micros // 1000, cell.value) for cell in row.cells
    ]
    return Row(table, row.row_key, cells)
