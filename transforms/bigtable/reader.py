"""Rows out of Bigtable: the newest version of each cell, of key ranges, with a pattern for keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.cloud.bigtable.data import ReadRowsQuery, RowRange
from google.cloud.bigtable.data import row_filters as filters
from google.cloud.bigtable.data.row import Row as BigtableRow

from schema.layouts import Cell, Finding, Row, Scan, Selected
from transforms.bigtable.target import Target, open_table

_Range = tuple[bytes, bytes]

_RANGES_A_REQUEST = 500
_RANGE_BYTES_A_REQUEST = 200_000  # of their keys; the service takes requests of some hundred KB


def scan_rows(target: Target, scan: Scan) -> Iterator[Row]:
    """The rows of a scan, ascending by key within each of its ranges, the ranges in their order.

    The service gives the rows of all ranges of a request in the order of keys, so that many ranges
    that are in that order, and do not overlap, are one request; others are one each. The client
    resumes a broken read behind the last whole row.
    """
    table, row_filter = open_table(target, scan.table), _filter(scan)
    for some in _requests(scan.ranges):
        ranges = [RowRange(start or None, end or None) for start, end in some]
        for row in table.read_rows_stream(ReadRowsQuery(row_ranges=ranges, row_filter=row_filter)):
            yield as_row(scan.table, row)


def _filter(scan: Scan) -> filters.RowFilter:
    """What is wanted of the rows of a scan."""
    chain: list[filters.RowFilter] = []
    if scan.key_pattern is not None:
        chain.append(filters.RowKeyRegexFilter(scan.key_pattern))
    if scan.columns is not None:
        family, first, end = scan.columns
        chain.append(
            filters.ColumnRangeFilter(
                family,
                first or None,
                end or None,
                inclusive_start=True if first else None,  # the client wants none without a qualifier
                inclusive_end=False if end else None,
            )
        )
    chain.append(filters.CellsColumnLimitFilter(scan.versions))
    if scan.keys_only:
        chain.append(filters.StripValueTransformerFilter(True))
    return filters.RowFilterChain(chain) if len(chain) > 1 else chain[0]


def _requests(ranges: Sequence[_Range]) -> Iterator[Sequence[_Range]]:
    """The ranges by request: as many as go together."""
    some: list[_Range] = []
    size = 0
    for one in ranges:
        behind = some and some[-1][1] and some[-1][1] <= one[0]
        size += len(one[0]) + len(one[1])
        if some and (not behind or len(some) == _RANGES_A_REQUEST or size > _RANGE_BYTES_A_REQUEST):
            yield some
            some, size = [], len(one[0]) + len(one[1])
        some.append(one)
    if some:
        yield some


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
    found: Iterable[Selected | Finding], most: int = 500_000
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
_ROWS_AT_ONCE = 1000


def as_row(table: str, row: BigtableRow) -> Row:
    """The client's row as a `Row`."""
    cells = [
        Cell(cell.family, cell.qualifier, cell.timestamp_micros // 1000, cell.value) for cell in row.cells
    ]
    return Row(table, row.row_key, cells)
