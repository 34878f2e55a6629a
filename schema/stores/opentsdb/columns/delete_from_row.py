"""Deletes points from a data row of OpenTSDB: whole columns, or rewritten ones without these points.

A column of several points (docs/spec/opentsdb.md §2.1 and §3) that has points inside and outside of the range
is replaced in the same mutation, by a column of those that stay, with its timestamp. A point that loses its
instant to another column (§2.2) is not written again.
"""

from __future__ import annotations

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.core.removal import DeleteRange, RowDeletion, deletions, remove_cells
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.columns import qualifiers as el
from timebeam.schema.stores.opentsdb.columns.annotation_cells import offset_ms, read_annotations
from timebeam.schema.stores.opentsdb.columns.decode_row import (
    RowColumns,
    Winner,
    is_append,
    is_histogram,
    merge_elements,
    read_columns,
)
from timebeam.schema.stores.opentsdb.columns.pack_rows import columns
from timebeam.schema.stores.opentsdb.keys import OpenTsdbOptions


def remove_points(row: Row, base_ms: int, winner: Winner, deleted: DeleteRange) -> RowDeletion | None:
    """The deletion of the points and histograms of a row; None if it has none.

    Damaged cells and annotations stay.

    >>> column = Cell("t", bytes.fromhex("00000010"), 9000, bytes.fromhex("010200"))  # 1 at 0 s, 2 at 1 s
    >>> row, deleted = Row("tsdb", b"key", [column]), DeleteRange(1000, 1999, newest_ms=9000)
    >>> removal = remove_points(row, 0, Winner.NEWEST, deleted)
    >>> [(cell.qualifier.hex(), cell.value.hex()) for cell in removal.mutation.cells]  # what stays
    [('0000', '01')]
    >>> [cell.qualifier.hex() for cell in removal.mutation.deleted], removal.points
    (['00000010'], 1)

    Args:
      base_ms: the base time of the row, in ms.
      winner: which of several values of one instant is the point.

    Raises:
      ValueError: the points that stay would read differently, since a damaged cell has the qualifier of a new
        one.
    """
    first_ms, last_ms = deleted.first_ms - base_ms, deleted.last_ms - base_ms

    def inside(offsets_ms: Int64s) -> Bools:
        return (offsets_ms >= first_ms) & (offsets_ms <= last_ms)

    stored = read_columns(row.cells)
    is_old = np.array([cell.timestamp_ms <= deleted.newest_ms for cell in stored.cells], np.bool_)
    is_deleted = inside(stored.elements.offsets_ms) & is_old[stored.column]
    merged, column = merge_elements(stored.elements, stored.column, winner)
    winners = column[np.searchsorted(merged.offsets_ms, stored.elements.offsets_ms)]
    changed = _with_ties(stored, winners, is_old, np.unique(stored.column[is_deleted])).tolist()
    stays = ~(inside(merged.offsets_ms) & is_old[column])
    new: list[Cell] = []
    for number in changed:
        remaining = merged.take(np.flatnonzero(stays & (column == number)))
        if len(remaining):
            new += _rewritten(stored.cells[number], remaining)
    points = np.unique(stored.elements.offsets_ms[is_deleted])
    # First those that a large mutation must not separate from the new cells.
    rewritten, qualifiers = set(column[stays].tolist()), {cell.qualifier for cell in new}
    changed.sort(key=lambda n: n not in rewritten and stored.cells[n].qualifier not in qualifiers)
    old = [stored.cells[number] for number in changed]
    if new:
        _check_rest(row, old, new, winner, merged.take(np.flatnonzero(stays)))
    histograms = [
        cell
        for cell in row.cells
        if is_histogram(cell.qualifier)
        and first_ms <= offset_ms(cell.qualifier) <= last_ms
        and cell.timestamp_ms <= deleted.newest_ms
    ]
    old += histograms
    if not old:
        return None
    return RowDeletion(row._replace(cells=new, deleted=deletions(old)), old, len(points) + len(histograms))


def _with_ties(stored: RowColumns, winners: Int64s, is_old: Bools, changed: Int64s) -> Int64s:
    """The columns to rewrite, and those with a timestamp of theirs that lost an instant to them.

    Between equal timestamps the qualifier decides, and that of a rewritten column is another one.

    Args:
      winners: int64[n], the column whose point is read, for each element.
      is_old: for each column, whether the deletion may change it.
    """
    if not len(changed):
        return changed
    times_ms = np.array([cell.timestamp_ms for cell in stored.cells], np.int64)
    ties = (times_ms[stored.column] == times_ms[winners]) & (stored.column != winners)
    ties &= is_old[stored.column]
    while True:
        lost = np.setdiff1d(stored.column[ties & np.isin(winners, changed)], changed)
        if not len(lost):
            return changed
        changed = np.union1d(changed, lost)


def _rewritten(cell: Cell, remaining: el.Elements) -> list[Cell]:
    """The cells with the points of a column that stay."""
    if is_append(cell.qualifier):
        return [cell._replace(value=el.append_bytes(remaining))]
    return columns(remaining, cell.timestamp_ms)


def _check_rest(row: Row, old: list[Cell], new: list[Cell], winner: Winner, expected: el.Elements) -> None:
    """Raises ValueError unless the row has the expected points after the mutation."""
    gone = set(old)
    versions = {(cell.family, cell.qualifier): cell for cell in row.cells if cell not in gone}
    for cell in new:
        place = (cell.family, cell.qualifier)
        if place not in versions or versions[place].timestamp_ms <= cell.timestamp_ms:
            versions[place] = cell
    after = merge_elements(*_elements([*versions.values()]), winner)[0]
    if not (np.array_equal(after.codes, expected.codes) and np.array_equal(after.raws, expected.raws)):
        raise ValueError("its points outside of the range cannot be rewritten: a damaged cell is in the way")


def _elements(cells: list[Cell]) -> tuple[el.Elements, Int64s]:
    stored = read_columns(cells)
    return stored.elements, stored.column


def remove_annotations(options: OpenTsdbOptions, row: Row, deleted: DeleteRange) -> RowDeletion | None:
    """The deletion of the annotations of a row that start in the range; None if it has none.

    Damaged ones start where their columns say.

    Raises:
      ValueError: the key is not that of a row of the data table.
    """
    starts_ms = {note.cell: note.start_ms for note in read_annotations(options, row)}
    times_ms = [starts_ms.get(cell, -1) for cell in row.cells]
    return remove_cells(row, np.array(times_ms, np.int64), deleted)


def remove_rollups(
    row: Row, base_ms: int, step_ms: int, qualifier_bytes: int, deleted: DeleteRange
) -> RowDeletion | None:
    """The deletion of the numbers in a row of rollups or pre-aggregates; None if it has none in the range.

    Docs: docs/spec/opentsdb.md §7.3. Cells of another form stay.

    Args:
      base_ms: the base time of the row, in ms.
      step_ms: from one column to the next, in ms.
      qualifier_bytes: 3 with an aggregation id, else 2.
    """
    times_ms = [
        base_ms + (int.from_bytes(cell.qualifier[-2:], "big") >> 4) * step_ms
        if len(cell.qualifier) == qualifier_bytes or (qualifier_bytes == 3 and b":" in cell.qualifier[:-2])
        else -1
        for cell in row.cells
    ]
    return remove_cells(row, np.array(times_ms, np.int64), deleted)
