"""Keys of rows without their cells."""

from __future__ import annotations

from collections.abc import Iterator

from google.cloud.bigtable.data import ReadRowsQuery, RowRange
from google.cloud.bigtable.data import row_filters as filters

from transforms.bigtable.target import Target, open_table

_FILTER = filters.RowFilterChain([filters.CellsRowLimitFilter(1), filters.StripValueTransformerFilter(True)])


def scan_keys(target: Target, table: str, start: bytes = b"", end: bytes = b"") -> Iterator[bytes]:
    """The keys of a table in [start, end), ascending; of each row one cell without its value is sent.

    Args:
      end: empty for the end of the table.
    """
    rows = RowRange(start or None, end or None)
    for row in open_table(target, table).read_rows_stream(
        ReadRowsQuery(row_ranges=[rows], row_filter=_FILTER)
    ):
        yield row.row_key
