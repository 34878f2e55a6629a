"""Rewrites rows: compacts a closed hour, deletes points, replaces times, and splits a rejected row.

A compaction is one mutation of the row, as by a TSD: docs/spec/opentsdb.md §2.2, §2.3 and §3
(core/CompactionQueue of OpenTSDB 2.4.1). Unlike there, append columns are compacted too, and a write during
the compaction is never lost: the mutation deletes each compacted column by its exact qualifier, and only
the versions up to the one that was read. A cell written meanwhile has another qualifier or a newer
timestamp, and stays.

The new cell has the newest timestamp of the cells that it replaces. So a correction that is older than the
newest point of its row and is stored only after the compaction loses to the value that it should correct.

A deletion replaces a column of several points (docs/spec/opentsdb.md §2.1 and §3) that has points inside and
outside of the range, in one mutation, by a column of those that stay, with its timestamp. A point that loses
its time to another column (§2.2) is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.core.contract import Restored
from timebeam.schema.core.decode_point_cells import restored_points
from timebeam.schema.core.point_fragments import Packing, SeriesSpan, SlotPoints
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, deletions, remove_cells
from timebeam.schema.core.rows import MUTATIONS, Cell, Row
from timebeam.schema.core.selection import Reader, Selected
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.columns.annotation_cells import (
    is_annotation,
    is_global,
    offset_ms,
    read_annotations,
)
from timebeam.schema.stores.opentsdb.columns.decode_row import (
    RowColumns,
    Winner,
    is_append,
    is_histogram,
    merge_elements,
    read_columns,
    read_row,
)
from timebeam.schema.stores.opentsdb.encode import FAMILY, columns, offsets_of
from timebeam.schema.stores.opentsdb.keys import base_s_of
from timebeam.schema.stores.opentsdb.options import BASE_BYTES, OpenTsdbOptions
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb


APPEND_QUALIFIER = b"\x05\x00\x01"
"""The append column that a compaction writes. Every reader accepts it, and no writer appends to it: an append
to 050000 between our read and our write would make a newer version without the points compacted here."""

COLUMNS = MUTATIONS // 2
"""Columns replaced at once, the oldest first: the mutation deletes each, and sets new ones."""


def compact_row(row: Row, form: Packing, settled_ms: int) -> Row | None:
    r"""The mutation that puts the points of a row into one cell; None if there is nothing to gain.

    Cells without points, corrupt cells and cells of other families stay. A qualifier has at most 16 KiB, so a
    row with more than 4096 points can become several cells.

    >>> points = [Cell("t", b"\x00\x00", 9000, b"\x01"), Cell("t", b"\x00\x10", 9001, b"\x02")]
    >>> row = Row("tsdb", bytes.fromhex("00000150e22700000001000001"), points)
    >>> compacted = compact_row(row, Packing.COMPACTED, settled_ms=10_000)
    >>> [(cell.qualifier.hex(), cell.timestamp_ms, cell.value.hex()) for cell in compacted.cells]
    [('00000010', 9001, '010200')]
    >>> [cell.qualifier.hex() for cell in compacted.deleted]
    ['0000', '0010']

    Args:
      row: all its columns, newest versions.
      form: COMPACTED for compacted columns, APPEND for an append column.
      settled_ms: append columns with this timestamp or a later one stay. An append in the same millisecond
        as the one read, or while the cell's timestamp is ahead of the server's clock, has the same timestamp
        and would be deleted with it.
    """
    columns = read_columns(row.cells)
    is_replaced = _replaceable(columns, settled_ms)
    if not is_replaced.any():
        return None
    old_cells = [cell for cell, chosen in zip(columns.cells, is_replaced.tolist(), strict=True) if chosen]
    merged, column = merge_elements(columns.elements, columns.column)
    new_elements = merged.take(np.flatnonzero(is_replaced[column]))
    new_cells = _cells(new_elements, form, max(cell.timestamp_ms for cell in old_cells))
    if len(new_cells) >= len(old_cells) and _stored(old_cells) == len(new_elements):
        return None
    new_versions = {_version(cell) for cell in new_cells}
    deleted = deletions(cell for cell in old_cells if _version(cell) not in new_versions)
    return (
        row._replace(cells=new_cells, deleted=deleted)
        if _reads_the_same(row.cells, old_cells, new_cells)
        else None
    )


def _replaceable(columns: RowColumns, settled_ms: int) -> Bools:
    """bool[m]: the columns that go into the new one."""
    chosen = np.array(
        [
            cell.family == FAMILY and not (is_append(cell.qualifier) and cell.timestamp_ms >= settled_ms)
            for cell in columns.cells
        ],
        np.bool_,
    )
    _, _, good = columns.elements.values()
    chosen[columns.column[~good]] = False
    chosen[np.flatnonzero(chosen)[COLUMNS:]] = False
    return chosen


def _cells(elements: el.Elements, form: Packing, timestamp_ms: int) -> Sequence[Cell]:
    """The cells for these elements; none for no elements, when other columns have all times."""
    if not len(elements):
        return ()
    if form is Packing.APPEND:
        return [Cell(FAMILY, APPEND_QUALIFIER, timestamp_ms, el.append_bytes(elements))]
    return columns(elements, timestamp_ms)


def _stored(cells: Iterable[Cell]) -> int:
    """The number of elements in these columns, duplicates included."""
    return sum(
        len(el.split_append(cell.value) if is_append(cell.qualifier) else el.split_qualifiers(cell.qualifier))
        for cell in cells
    )


def _version(cell: Cell) -> tuple[bytes, int]:
    return cell.qualifier, cell.timestamp_ms


def _reads_the_same(cells: Sequence[Cell], old_cells: Sequence[Cell], new_cells: Sequence[Cell]) -> bool:
    """Whether the row has the same points after the mutation.

    It has not if a corrupt cell has the qualifier of a new one, or if a column that stays wins over the new
    one at equal timestamps.
    """
    replaced = set(old_cells)
    kept_cells = [cell for cell in cells if cell not in replaced]
    if {cell.qualifier for cell in kept_cells if cell.family == FAMILY} & {
        cell.qualifier for cell in new_cells
    }:
        return False
    before, after = read_row(cells), read_row([*kept_cells, *new_cells])
    return (
        np.array_equal(before.elements.codes, after.elements.codes)
        and np.array_equal(before.elements.raws, after.elements.raws)
        and (sorted(before.corruption), before.skipped) == (sorted(after.corruption), after.skipped)
    )


class Replacing(NamedTuple):
    """What replaces points of columns with the timestamps of new plain or compacted ones."""

    options: OpenTsdbOptions
    packing: Packing

    def spans(self, keys: Sequence[bytes], points: SlotPoints) -> Sequence[SeriesSpan]:
        """The first and last time of the points of each row."""
        base_at = self.options.salt_width + self.options.uid_width_metric
        bases_ms = np.array([base_s_of(self.options, key) for key in keys], np.int64) * 1000
        offsets_ms, firsts = offsets_of(points), points.bounds[:-1]
        return list(
            map(
                SeriesSpan,
                [key[:base_at] + key[base_at + BASE_BYTES :] for key in keys],
                (bases_ms + np.minimum.reduceat(offsets_ms, firsts)).tolist(),
                (bases_ms + np.maximum.reduceat(offsets_ms, firsts)).tolist(),
            )
        )

    def row(self, row: Row, existing: Sequence[Cell]) -> Row:
        """A row that removes its times from existing columns with its timestamps.

        Columns of packing COMPACTED remove them from older columns too: `pack` does so for points of one row.

        Args:
          row: of plain or compacted columns.
          existing: cells of the stored row, newest versions; cells without points and corrupt ones stay.
        """
        old, new = read_columns(existing), read_columns(row.cells)
        old_times_ms = np.array([cell.timestamp_ms for cell in old.cells], np.int64)[old.column]
        new_times_ms = np.array([cell.timestamp_ms for cell in new.cells], np.int64)[new.column]
        old_times, new_times = old.elements.offsets_ms, new.elements.offsets_ms
        is_replaced = np.zeros(len(old_times), np.bool_)
        for time_ms in np.unique(new_times_ms).tolist():
            is_as_new = old_times_ms == time_ms if self.packing is Packing.POINTS else old_times_ms <= time_ms
            is_replaced |= is_as_new & np.isin(old_times, new_times[new_times_ms == time_ms])
        remaining_counts = np.bincount(old.column[~is_replaced], minlength=len(old.cells))
        set_versions = {_version(cell) for cell in row.cells}
        cells, deleted = list(row.cells), list(row.deleted)
        for number in np.unique(old.column[is_replaced]).tolist():
            cell = old.cells[number]
            if _version(cell) in set_versions:
                continue
            deleted += deletions([cell])
            if remaining_counts[number]:
                remaining = old.elements.take(np.flatnonzero((old.column == number) & ~is_replaced))
                cells += columns(remaining, cell.timestamp_ms)
        return row._replace(cells=cells, deleted=deleted)


def remove_points(row: Row, base_ms: int, winner: Winner, deleted: DeleteRange) -> RowDeletion | None:
    """The deletion of the points and histograms of a row; None if it has none.

    Corrupt cells and annotations stay.

    >>> column = Cell("t", bytes.fromhex("00000010"), 9000, bytes.fromhex("010200"))  # 1 at 0 s, 2 at 1 s
    >>> row, deleted = Row("tsdb", b"key", [column]), DeleteRange(1000, 1999, newest_ms=9000)
    >>> removal = remove_points(row, 0, Winner.NEWEST, deleted)
    >>> [(cell.qualifier.hex(), cell.value.hex()) for cell in removal.mutation.cells]  # what stays
    [('0000', '01')]
    >>> [cell.qualifier.hex() for cell in removal.mutation.deleted], removal.points
    (['00000010'], 1)

    Args:
      base_ms: the base time of the row, in ms.
      winner: which of several values of one time is the point.

    Raises:
      ValueError: the points that stay would read differently, since a corrupt cell has the qualifier of a new
        one.
    """
    stored = read_columns(row.cells)
    arrivals_ms = np.array([cell.timestamp_ms for cell in stored.cells], np.int64)
    is_deleted = deleted.takes(base_ms + stored.elements.offsets_ms, arrivals_ms[stored.column])
    merged, column = merge_elements(stored.elements, stored.column, winner)
    winners = column[np.searchsorted(merged.offsets_ms, stored.elements.offsets_ms)]
    changed = _with_ties(
        stored, winners, arrivals_ms, deleted.newest_ms, np.unique(stored.column[is_deleted])
    ).tolist()
    stays = ~deleted.takes(base_ms + merged.offsets_ms, arrivals_ms[column])
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
    times_ms = [
        base_ms + offset_ms(cell.qualifier) if is_histogram(cell.qualifier) else -1 for cell in row.cells
    ]
    histograms = remove_cells(row, np.array(times_ms, np.int64), deleted)
    count = len(points) + (histograms.points if histograms else 0)
    old += histograms.old if histograms else ()
    return RowDeletion(row._replace(cells=new, deleted=deletions(old)), old, count) if old else None


def _with_ties(
    stored: RowColumns, winners: Int64s, arrivals_ms: Int64s, newest_ms: int, changed: Int64s
) -> Int64s:
    """The columns to rewrite, and those with a timestamp of theirs that lost a time to them.

    Between equal timestamps the qualifier decides, and that of a rewritten column is another one.

    Args:
      winners: int64[n], the column whose point is read, for each element.
      arrivals_ms: the timestamp of each column; the deletion may change those up to `newest_ms`.
    """
    if not len(changed):
        return changed
    arrivals_of = arrivals_ms[stored.column]
    ties = (arrivals_of == arrivals_ms[winners]) & (stored.column != winners) & (arrivals_of <= newest_ms)
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
    rest = read_columns([*versions.values()])
    after = merge_elements(rest.elements, rest.column, winner)[0]
    if not (np.array_equal(after.codes, expected.codes) and np.array_equal(after.raws, expected.raws)):
        raise ValueError("its points outside of the range cannot be rewritten: a corrupt cell is in the way")


def restore(layout: OpenTsdb, row: Row, reader: Reader) -> Restored:
    """See `ReadableStore.restore`.

    The points belong to the series that the UIDs in the key name, whatever UIDs these names have now.

    Raises:
      ValueError: this layout, with these options, writes no such row.
    """
    options = layout.options
    if row.table != layout.data_table:
        raise ValueError(f"table {row.table!r} is not the data table of layout {layout.name}")
    if not row.cells or any(cell.family != FAMILY for cell in row.cells):
        raise ValueError(f"a data row has cells, and all in family {FAMILY}")
    other_cells = [cell for cell in row.cells if _holds_no_points(cell)]
    other_row = row._replace(cells=other_cells)
    _check_others(layout, other_row)
    if is_global(options, row.key):
        if len(other_cells) < len(row.cells) or any(is_histogram(cell.qualifier) for cell in other_cells):
            raise ValueError("a row of global annotations holds nothing else")
        return Restored(PointBatch.of([], 0), other_row)
    key_fields = keys.parse_key(options, row.key)
    series_key = keys.series_key(options, key_fields.metric, key_fields.tags)
    if key_fields.base_s % keys.SPAN_S or keys.row_key(series_key, key_fields.base_s) != row.key:
        raise ValueError(f"row key {row.key.hex()} is not that of its UIDs in a whole hour, with its salt")
    tsuid = keys.tsuid_of_key(options, row.key)[0]
    series = UidDirectory(options, reader).series([tsuid])[tsuid]
    if isinstance(series, str):
        raise ValueError(series)
    if len(series.tags) < len(key_fields.tags):
        raise ValueError(f"row key {row.key.hex()} has a tag key twice")
    points = row._replace(cells=[cell for cell in row.cells if not _holds_no_points(cell)])
    decoded = layout.decode_rows([Selected(points, series)])
    return Restored(restored_points(layout, row, decoded, series_key), other_row)


def _holds_no_points(cell: Cell) -> bool:
    return is_annotation(cell.qualifier) or is_histogram(cell.qualifier)


def _check_others(layout: OpenTsdb, row: Row) -> None:
    """Checks annotations and histograms.

    Raises:
      ValueError: one is corrupt, or is not in the cell that it belongs into.
    """
    for annotation in read_annotations(layout.options, row):
        if annotation.note is None:
            raise ValueError(annotation.corruption)
    for cell in row.cells:
        if is_histogram(cell.qualifier) and not cell.value:
            raise ValueError(f"histogram {cell.qualifier.hex()}: empty, so without the id of a codec")
