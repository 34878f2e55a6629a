"""A row of a closed hour as one cell: what a TSD's compaction makes of it, in one mutation of the row.

docs/spec/opentsdb.md §2.2, §2.3 and §3 (core/CompactionQueue of OpenTSDB 2.4.1). Unlike there, an append
column is taken in too, and nothing is read or lost between writing and deleting: the mutation deletes each
column that went in by its exact qualifier, and only the versions up to the one that was read. What is written
meanwhile has another qualifier or a newer timestamp, and stays.

The new cell has the newest timestamp of those that it replaces. So a correction that is older than the newest
point of its row, and is stored after the compaction only, is beaten by the value that it was to correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from timebeam.schema.layouts.opentsdb import elements as el
from timebeam.schema.layouts.opentsdb.merge import merge_elements
from timebeam.schema.layouts.opentsdb.pieces import FAMILY, columns
from timebeam.schema.layouts.opentsdb.rows import APPEND, RowColumns, read_columns, read_row
from timebeam.schema.layouts.tables import Cell, Deletion, Row
from timebeam.schema.layouts.writing import Packing
from timebeam.schema.points import Bools

APPEND_QUALIFIER = b"\x05\x00\x01"
"""The append column that a compaction writes. Every reader takes it, and nobody appends to it: an append to
050000 between our reading and writing would make a newer version without the points taken in here."""

COLUMNS = 50_000
"""Columns replaced at once, the oldest first; Bigtable takes 100,000 mutations of a row."""


def compact_row(row: Row, form: Packing, settled_ms: int) -> Row | None:
    """The mutation that makes one cell of the points of a row; None if there is nothing to gain.

    Cells without points, cells with damage in them and cells of other families stay as they are. A column has
    at most 16 KiB of qualifier, so that a row with more than 4096 points can become several.

    Args:
      row: as it was read: all its columns, newest versions.
      form: COMPACTED for compacted columns, APPEND for an append column.
      settled_ms: append columns that have grown at this time or later are left alone. An append in the same
        millisecond as the one read, or while the cell's timestamp is ahead of the server's clock, has the
        same timestamp, and would be deleted with it.
    """
    found = read_columns(row.cells)
    is_replaced = _replaceable(found, settled_ms)
    if not is_replaced.any():
        return None
    old = [cell for cell, chosen in zip(found.cells, is_replaced.tolist(), strict=True) if chosen]
    merged, column = merge_elements(found.elements, found.column)
    own = merged.take(np.flatnonzero(is_replaced[column]))
    new = _cells(own, form, max(cell.timestamp_ms for cell in old))
    if len(new) >= len(old) and _stored(old) == len(own):
        return None
    standing = {_version(cell) for cell in new}
    deleted = [
        Deletion(cell.family, cell.qualifier, cell.timestamp_ms + 1)
        for cell in old
        if _version(cell) not in standing
    ]
    return row._replace(cells=new, deleted=deleted) if _reads_the_same(row.cells, old, new) else None


def _replaceable(found: RowColumns, settled_ms: int) -> Bools:
    """bool[m]: which of the columns go into the new one."""
    chosen = np.array(
        [
            cell.family == FAMILY and not (_is_append(cell) and cell.timestamp_ms >= settled_ms)
            for cell in found.cells
        ],
        np.bool_,
    )
    _, _, good = found.elements.values()
    chosen[found.column[~good]] = False
    chosen[np.flatnonzero(chosen)[COLUMNS:]] = False
    return chosen


def _is_append(cell: Cell) -> bool:
    return len(cell.qualifier) == 3 and cell.qualifier[0] == APPEND


def _cells(own: el.Elements, form: Packing, timestamp_ms: int) -> Sequence[Cell]:
    """The cells that hold these elements; none if there are none, for other columns have all instants."""
    if not len(own):
        return ()
    if form is Packing.APPEND:
        return [Cell(FAMILY, APPEND_QUALIFIER, timestamp_ms, el.append_bytes(own))]
    return columns(own, timestamp_ms)


def _stored(cells: Iterable[Cell]) -> int:
    """How many elements stand in columns, duplicates within them counted."""
    return sum(
        len(el.split_append(cell.value) if _is_append(cell) else el.split_qualifiers(cell.qualifier))
        for cell in cells
    )


def _version(cell: Cell) -> tuple[bytes, int]:
    return cell.qualifier, cell.timestamp_ms


def _reads_the_same(cells: Sequence[Cell], old: Sequence[Cell], new: Sequence[Cell]) -> bool:
    """Whether a row has the same points afterwards.

    It has not if a damaged cell has the very qualifier of a new one, or if a column that stays beats the
    new one at equal timestamps.
    """
    replaced = set(old)
    kept = [cell for cell in cells if cell not in replaced]
    if {cell.qualifier for cell in kept if cell.family == FAMILY} & {cell.qualifier for cell in new}:
        return False
    before, after = read_row(cells), read_row([*kept, *new])
    return (
        np.array_equal(before.elements.codes, after.elements.codes)
        and np.array_equal(before.elements.raws, after.elements.raws)
        and (sorted(before.damage), before.skipped) == (sorted(after.damage), after.skipped)
    )
