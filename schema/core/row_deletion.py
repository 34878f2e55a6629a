"""What a deletion of points takes out of a row: the cells it deletes, and those it rewrites without them.

A mutation deletes each column by its qualifier, and only the versions up to the one that was read. A cell
that is written meanwhile has another qualifier or a later timestamp, and stays: no compare-and-set is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.core.rows import Cell, Deletion, Row, stored_bytes


class DeleteRange(NamedTuple):
    """Which points are deleted.

    Attributes:
      first_ms, last_ms: their first and last time, both inclusive.
      newest_ms: cells with a later timestamp stay.
    """

    first_ms: int
    last_ms: int
    newest_ms: int

    def takes(self, times_ms: Int64s, arrivals_ms: Int64s) -> Bools:
        """bool[n]: which points are deleted, by their times and the timestamps of their cells."""
        inside = (times_ms >= self.first_ms) & (times_ms <= self.last_ms)
        return inside & (arrivals_ms <= self.newest_ms)


class RowDeletion(NamedTuple):
    """The deletion of points of one row.

    Attributes:
      mutation: deletes columns, and sets cells with the points of these columns that stay.
      old: the cells that it deletes or replaces.
      points: the number of points that are deleted.
    """

    mutation: Row
    old: Sequence[Cell]
    points: int

    @property
    def bytes(self) -> int:
        """Stored bytes that the row loses."""
        key = self.mutation.key
        before, after = (
            sum(stored_bytes(key, cell) for cell in cells) for cells in (self.old, self.mutation.cells)
        )
        return before - after

    @property
    def checksum(self) -> int:
        """A number below 2**32 that changes if a cell of `old` does."""
        content = hashlib.blake2b(self.mutation.key, digest_size=4)
        for cell in self.old:
            head = f"{cell.family} {cell.qualifier.hex()} {cell.timestamp_ms} {len(cell.value)} "
            content.update(head.encode())
            content.update(cell.value)
        return int.from_bytes(content.digest(), "big")


def remove_cells(row: Row, times_ms: Int64s, deleted: DeleteRange) -> RowDeletion | None:
    r"""The deletion of cells with a point each; None if there are none.

    >>> cells = [Cell("points", bytes([n]), 9000 + n, b"") for n in range(3)]
    >>> row, times_ms = Row("metrics", b"key", cells), np.array([0, 1000, 2000])
    >>> removal = remove_cells(row, times_ms, DeleteRange(1000, 2000, newest_ms=9001))
    >>> removal.mutation.deleted, removal.points  # the cell of 9002 is newer than those to delete
    ([Deletion(family='points', qualifier=b'\x01', before_ms=9002)], 1)

    Args:
      times_ms: int64[n], the time of each cell's point; below 0 for a cell without one.
    """
    arrivals_ms = np.array([cell.timestamp_ms for cell in row.cells], np.int64)
    is_deleted = deleted.takes(times_ms, arrivals_ms) & (times_ms >= 0)
    old = [row.cells[number] for number in np.flatnonzero(is_deleted).tolist()]
    if not old:
        return None
    return RowDeletion(row._replace(cells=(), deleted=deletions(old)), old, len(old))


def deletions(cells: Iterable[Cell]) -> list[Deletion]:
    """The deletion of each cell, and of the older versions of its column."""
    return [Deletion(cell.family, cell.qualifier, cell.timestamp_ms + 1) for cell in cells]
