"""Deletes points from the archive, each row by compare-and-set.

`timebeam seal` may hold points in memory that it read before they were deleted. So a deletion first deletes
from the data table. Then it replaces the archive row of each series and span that it has deleted from,
without these points. If the row holds none of them, or does not exist, only its cell `seal` changes. A seal
reads that cell before the points that it writes, and writes only if the cell is still the same
(docs/spec/archive.md §4).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive import keys as archive_keys
from timebeam.schema.archive.keys import BLOCK_S, LAST_S
from timebeam.schema.archive.view import ArchiveView
from timebeam.schema.bits.bounded import batched
from timebeam.schema.bits.times import HOUR_S, floor_to
from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.removal import DeleteRange, RowDeletion
from timebeam.schema.core.rows import Row
from timebeam.transforms.bigtable.compare_and_set import Replacement, update_rows
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import read_rows

_ROWS_AT_ONCE = 200  # a row can have megabytes


class SealedRemovals(NamedTuple):
    """The part of a deletion that is in the archive."""

    target: Target
    archive: ArchiveView[Any]
    deleted: DeleteRange

    def is_of_archive(self, removal: RowDeletion) -> bool:
        """Whether a removal is of a row of the archive."""
        return removal.mutation.table == self.archive.table

    def hour_rows(self, removal: RowDeletion) -> list[Row]:
        """Data rows without cells, of the hours that the removal from a row of the archive changes."""
        key, deleted = archive_keys.parse_key(self.archive.heads, removal.mutation.key), self.deleted
        start_s = max(key.base_s, floor_to(deleted.first_ms // 1000, HOUR_S))
        end_s = min(key.end_s, deleted.last_ms // 1000 + 1)
        return [self.archive.row_at(key.series, base_s) for base_s in range(start_s, end_s, HOUR_S)]

    def carry_out(self, rows: Sequence[Row]) -> None:
        """Deletes the points from the archive rows of the series and spans of some rows.

        Args:
          rows: of the data table, that points were deleted from before; and of the archive.

        Raises:
          RuntimeError: other programs keep changing a row.
          GoogleAPICallError: rows could not be changed; others may have been.
        """
        for keys in batched(self._archive_keys(rows), _ROWS_AT_ONCE):
            for key in update_rows(self.target, self.archive.table, keys, self._replacements):
                raise RuntimeError(
                    f"table {self.archive.table}, row {key.hex()}: other programs keep changing it: run the "
                    "same command again"
                )

    def _archive_keys(self, rows: Sequence[Row]) -> list[bytes]:
        """The keys of the archive rows of some rows.

        A series without a span in a block is left out: no seal has written rows of it, and one that is at
        work reads its points again after it has chosen the span.
        """
        table = self.archive.table
        places = [place for row in rows if row.table != table for place in self._places(row.key)]
        blocks = [archive_rows.span_row(table, series, start_s, 1).key for series, start_s, _ in places]
        codes = {
            key: cell.value[0]
            for key, row in read_rows(self.target, table, sorted(set(blocks))).items()
            for cell in row.cells
            if cell.qualifier == archive_rows.SPAN
        }
        keys = {row.key for row in rows if row.table == table}
        for block, (series, start_s, end_s) in zip(blocks, places, strict=True):
            if block in codes:
                spans = _pieces(start_s, end_s, archive_keys.SPANS_S[codes[block]])
                keys |= {archive_keys.archive_key(series, span_s, codes[block]) for span_s, _ in spans}
        return sorted(keys)

    def _places(self, key: bytes) -> Iterator[tuple[SeriesKey, int, int]]:
        """(series, start, end in s) of the deleted time of a data row, for each block that it overlaps."""
        with contextlib.suppress(ValueError):  # a seal skips such a row too
            series, start_ms, end_ms = self.archive.data_row(key)
            first_ms, last_ms, _ = self.deleted
            if first_ms <= last_ms:
                start_ms, end_ms = max(start_ms, first_ms), min(end_ms, last_ms + 1)
            start_s, end_s = max(0, start_ms // 1000), min(-(-end_ms // 1000), LAST_S + 1)
            for block_s, block_end_s in _pieces(start_s, end_s, BLOCK_S):
                yield series, block_s, block_end_s

    def _replacements(self, key: bytes, row: Row | None) -> Sequence[Replacement]:
        """Replaces a row as it was read; a damaged one keeps its cells."""
        removal = None
        if row is not None:
            with contextlib.suppress(ValueError):
                removal = archive_rows.remove_points(self.archive.heads, row, self.deleted)
        new = Row(self.archive.table, key, removal.mutation.cells if removal else ())
        guard, changed = archive_rows.replacing_row(row, new, int(time.time() * 1000))
        *cells, seal = changed.cells
        return (Replacement(key, guard, seal, cells, changed.deleted if removal else ()),)


def _pieces(start_s: int, end_s: int, span_s: int) -> Iterator[tuple[int, int]]:
    """Cuts a period at the starts of spans: [start, end) of each piece."""
    while start_s < end_s:
        next_s = start_s - start_s % span_s + span_s
        yield start_s, min(next_s, end_s)
        start_s = next_s
