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
from collections.abc import Sequence
from typing import NamedTuple

from timebeam.schema.layouts import Archive, Row
from timebeam.schema.layouts.archive import keys as archive_keys
from timebeam.schema.layouts.archive import rows as archive_rows
from timebeam.schema.layouts.opentsdb import keys as data_keys
from timebeam.schema.layouts.removal import Deleted, Removal
from timebeam.transforms.bigtable.conditional import Replacement, replace_cells
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.table_reader import read_rows

_ATTEMPTS = 20
_ROWS_AT_ONCE = 200  # a row can have megabytes


class SealedRemovals(NamedTuple):
    """The part of a deletion that is in the archive."""

    target: Target
    layout: Archive
    deleted: Deleted

    def is_of_archive(self, removal: Removal) -> bool:
        """Whether a removal is of a row of the archive."""
        return removal.mutation.table == self.layout.archive_table

    def hour_rows(self, removal: Removal) -> list[Row]:
        """Data rows without cells, of the hours that the removal from a row of the archive changes."""
        options, deleted = self.layout.options, self.deleted
        key = archive_keys.parse_key(options, removal.mutation.key)
        at = options.salt_width + options.uid_width_metric
        start_s = max(key.base_s, deleted.first_ms // 1000 // data_keys.SPAN_S * data_keys.SPAN_S)
        end_s = min(key.end_s, deleted.last_ms // 1000 + 1)
        return [
            Row(self.layout.data_table, key.data[:at] + base_s.to_bytes(4, "big") + key.data[at + 4 :], ())
            for base_s in range(start_s, end_s, data_keys.SPAN_S)
        ]

    def carry_out(self, rows: Sequence[Row]) -> None:
        """Deletes the points from the archive rows of the series and spans of some rows.

        Args:
          rows: of the data table, that points were deleted from before; and of the archive.

        Raises:
          RuntimeError: other programs keep changing a row.
          GoogleAPICallError: rows could not be changed; others may have been.
        """
        keys = self._archive_keys(rows)
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            self._rewrite(keys[start : start + _ROWS_AT_ONCE])

    def _rewrite(self, pending: Sequence[bytes]) -> None:
        """Rewrites rows of the archive; see `carry_out`."""
        for _ in range(_ATTEMPTS):
            if not pending:
                return
            stored = read_rows(self.target, self.layout.archive_table, pending)
            replacements = [self._replacement(key, stored.get(key)) for key in pending]
            done = replace_cells(self.target, self.layout.archive_table, replacements)
            pending = [key for key, is_done in zip(pending, done, strict=True) if not is_done]
        raise RuntimeError(
            f"table {self.layout.archive_table}, row {pending[0].hex()}: other programs keep changing it: "
            "run the same command again"
        )

    def _archive_keys(self, rows: Sequence[Row]) -> list[bytes]:
        """The keys of the archive rows of some rows.

        A series without a span in a block is left out: no seal has written rows of it, and one that is at
        work reads its points again after it has chosen the span.
        """
        options, table = self.layout.options, self.layout.archive_table
        data = {
            row.key: archive_rows.span_row(options, table, row.key, 1).key
            for row in rows
            if row.table != table
        }
        codes = {
            key: cell.value[0]
            for key, row in read_rows(self.target, table, sorted(set(data.values()))).items()
            for cell in row.cells
            if cell.qualifier == archive_rows.SPAN
        }
        keys = {row.key for row in rows if row.table == table}
        keys |= {
            archive_keys.archive_key(options, key, codes[block_key])
            for key, block_key in data.items()
            if block_key in codes
        }
        return sorted(keys)

    def _replacement(self, key: bytes, row: Row | None) -> Replacement:
        """Replaces a row as it was read; a damaged one keeps its cells."""
        removal = None
        if row is not None:
            with contextlib.suppress(ValueError):
                removal = archive_rows.remove_points(self.layout.options, row, self.deleted)
        new = Row(self.layout.archive_table, key, removal.mutation.cells if removal else ())
        guard, changed = archive_rows.replacing_row(row, new, int(time.time() * 1000))
        *cells, seal = changed.cells
        return Replacement(key, guard, seal, cells, changed.deleted if removal else ())
