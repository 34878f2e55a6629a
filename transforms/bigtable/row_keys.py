"""Keys of rows without their cells."""

from __future__ import annotations

from collections.abc import Iterator

from google.cloud.bigtable_v2.types import RowFilter

from transforms.bigtable.merge import QualifierMerger
from transforms.bigtable.read_rows import Wanted, read
from transforms.bigtable.target import Target

_FILTER = RowFilter.pb()


def scan_keys(
    target: Target, table: str, start: bytes = b"", end: bytes = b"", limit: int = 0
) -> Iterator[bytes]:
    """The keys of a table in [start, end), ascending; of each row one cell without its value is sent.

    Args:
      end: empty for the end of the table.
      limit: at most so many; 0 for all.
    """
    row_filter = _FILTER()
    row_filter.chain.filters.add(cells_per_row_limit_filter=1)
    row_filter.chain.filters.add(strip_value_transformer=True)
    wanted = Wanted(table, row_filter, ranges=[(start, end)], limit=limit)
    for key, _ in read(target, wanted, QualifierMerger()):
        yield key
