"""Merges one UID into another: its rows are moved, cell by cell, onto the keys of the other.

scan the rows of the UID ─► write their cells under the new keys ─► read these back ─► delete what is there

A cell keeps its timestamp, so of two values of a time the latest arrival wins, as if both had always been
written to one series. Cells that arrive meanwhile stay, and are moved by the next run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.regex import of_bytes
from timebeam.schema.core.annotations import parse_stored
from timebeam.schema.core.row_deletion import deletions
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Scan, prefix_range
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.columns import annotation_cells
from timebeam.schema.stores.opentsdb.columns.decode_row import is_append, read_row
from timebeam.schema.stores.opentsdb.encode import columns
from timebeam.schema.stores.opentsdb.keys import UidPair
from timebeam.schema.stores.opentsdb.options import BASE_BYTES, OpenTsdbOptions
from timebeam.transforms.bigtable.compare_and_set import Replacement, replace_cells
from timebeam.transforms.bigtable.existing_tables import table_exists
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.care.range_leases import RangeLease
from timebeam.transforms.read.table_reader import TableReader, read_rows, scan_rows
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter, read_days

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

_ROWS_AT_ONCE = 500
_MARKED_S = 600
"""Age at which marks are written again: after an hour a rollup takes them for those of a dead process."""


class MergeTally(NamedTuple):
    """What a merge did.

    Attributes:
      rows, cells: those that were moved.
      kept: cells that stay where they are: unreadable, or rollups of intervals that the new row has too.
    """

    rows: int
    cells: int
    kept: int


class MovedCells(NamedTuple):
    """A row, and its cells as they are under the new key.

    Attributes:
      old: the cells that are moved.
      new: the row that they are moved to; an append column becomes columns of its points.
    """

    row: Row
    old: Sequence[Cell]
    new: Row


def merge_uids(
    target: Target,
    layout: OpenTsdb,
    rollups: Sequence[str],
    old: UidPair,
    new: bytes,
    lease: RangeLease | None,
) -> MergeTally:
    """Moves all rows of a UID, in the data table and the tables of rollups, to another UID of its kind.

    Args:
      rollups: the tables of rollups and pre-aggregates, with prefix.
      lease: of all rows; None to count, and write nothing.

    Raises:
      GoogleAPICallError: rows could not be read or written; a repeated call goes on.
    """
    rows = cells = kept = 0
    with contextlib.ExitStack() as stack:
        mark = None
        if lease is not None:
            mark = stack.enter_context(_writing_hours(target, layout, old, new))
        for table in (layout.data_table, *rollups):
            for batch in batched(scan_rows(target, scan_of_uid(layout.options, table, old)), _ROWS_AT_ONCE):
                is_rollup = table != layout.data_table
                moved = [moved_cells(layout.options, row, old, new, is_rollup=is_rollup) for row in batch]
                existing = read_rows(target, table, [move.new.key for move in moved])
                plans, written = [], []
                for move in moved:
                    key = move.new.key
                    other = existing.get(key, move.new._replace(cells=()))
                    plan = _without_conflicts(move, other) if is_rollup else move
                    newer = _newer(plan.new, other)
                    existing[key] = other._replace(cells=[*other.cells, *newer.cells])  # for a next one
                    plans.append(plan)
                    written.append(newer)
                if mark is not None and lease is not None:
                    mark([] if is_rollup else [*batch, *(plan.new for plan in plans)])
                    write_all(target, table, [row for row in written if row.cells], lease.check)
                    stored = read_rows(target, table, [plan.new.key for plan in plans])
                    plans = [plan for plan in plans if _is_stored(plan.new, stored.get(plan.new.key))]
                    deletions = [row for plan in plans if (row := _deletion(plan)).deleted]
                    write_all(target, table, deletions, lease.check)
                    lease.check()
                    replace_cells(target, table, [each for plan in plans for each in _append_deletions(plan)])
                rows += sum(bool(plan.old) for plan in plans)
                count = sum(len(plan.old) for plan in plans)
                cells += count
                kept += sum(len(row.cells) for row in batch) - count
    return MergeTally(rows, cells, kept)


@contextlib.contextmanager
def _writing_hours(
    target: Target, layout: OpenTsdb, old: UidPair, new: bytes
) -> Iterator[Callable[[Sequence[Row]], None]]:
    """A context in which rows and rollups are moved; its function is called with the rows of each request.

    Their hours are marked until the context ends. A metric also gets the marks of the old one, whose rollups
    may differ from its points.
    """
    hours_writer, hours = ChangedHoursWriter(layout), set[tuple[bytes, int]]()
    has_marks = table_exists(target, hours_writer.table.name)
    marked_s = time.monotonic()
    kind, uid = old

    def mark(rows: Sequence[Row]) -> None:
        nonlocal marked_s
        more = set(hours_writer.hours(rows)) - hours if has_marks else set()
        hours_writer.mark(target, more, stored=False)
        hours.update(more)
        if time.monotonic() >= marked_s + _MARKED_S:
            marked_s = time.monotonic()
            hours_writer.mark(target, hours, stored=False)  # again, at a later time
            hours_writer.mark(target, hours, stored=True)  # but counted once

    if has_marks and kind == "metrics":
        for day in read_days(TableReader(target), layout, uid):
            hours.update((new, start_s) for start_s in day.changing)
        hours_writer.mark(target, hours, stored=False)
    try:
        yield mark
    finally:
        hours_writer.mark(target, hours, stored=True)


def scan_of_uid(options: OpenTsdbOptions, table: str, pair: UidPair) -> Scan:
    """The rows that have a UID in their keys, in a table with the keys of a data table."""
    kind, uid = pair
    if kind == "metrics":
        buckets = range(options.salt_buckets) if options.salt_width else range(1)
        heads = [bucket.to_bytes(options.salt_width, "big") + uid for bucket in buckets]
        return Scan(table, [prefix_range(head) for head in sorted(heads)])
    any_tag = b"\\C{%d}" % (options.uid_width_tagk + options.uid_width_tagv)
    tag = of_bytes(uid) + b"\\C{%d}" % options.uid_width_tagv
    if kind == "tagv":
        tag = b"\\C{%d}" % options.uid_width_tagk + of_bytes(uid)
    head = b"\\C{%d}" % (options.salt_width + options.uid_width_metric + BASE_BYTES)
    return Scan(table, [(b"", b"")], b"^" + head + b"(?:%s)*%s(?:%s)*$" % (any_tag, tag, any_tag))


def moved_cells(
    options: OpenTsdbOptions, row: Row, old: UidPair, new: bytes, *, is_rollup: bool
) -> MovedCells:
    """The cells of a row that can be moved, and where to; none if the new key would have a tag key twice.

    Args:
      is_rollup: all cells are numbers; the columns of some aggregations look like those of annotations.
    """
    try:
        parsed = keys.parse_key(options, row.key)
    except ValueError:
        return MovedCells(row, (), row._replace(cells=()))
    kind, uid = old

    def renamed(each: str, value: bytes) -> bytes:
        return new if (each, value) == (kind, uid) else value

    tags = [(renamed("tagk", key), renamed("tagv", value)) for key, value in parsed.tags]
    series = keys.series_key(options, renamed("metrics", parsed.metric), tags)
    key = keys.row_key(series, parsed.base_s)
    if len({key for key, _ in tags}) < len(tags):
        return MovedCells(row, (), Row(row.table, key, ()))
    if is_rollup:
        return MovedCells(row, row.cells, Row(row.table, key, row.cells))
    tsuid = (series.head[options.salt_width :] + series.tail).hex().upper()
    old_cells: list[Cell] = []
    new_cells: list[Cell] = []
    for cell in row.cells:
        if is_append(cell.qualifier):
            content = read_row([cell])
            if content.corruption:
                continue
            new_cells += columns(content.elements, cell.timestamp_ms)
        elif annotation_cells.is_annotation(cell.qualifier):
            try:
                note = parse_stored(cell.value)
            except ValueError:
                continue
            new_cells.append(cell._replace(value=dataclasses.replace(note, tsuid=tsuid).stored()))
        else:
            new_cells.append(cell)
        old_cells.append(cell)
    return MovedCells(row, old_cells, Row(row.table, key, new_cells))


def _without_conflicts(move: MovedCells, existing: Row) -> MovedCells:
    """Rollups without those of intervals that the other row has too: only the points can tell their sum.

    Equal cells stay too: as many other points have the same count.
    """
    intervals = {_interval(cell.qualifier) for cell in existing.cells}
    cells = [cell for cell in move.old if _interval(cell.qualifier) not in intervals]
    return MovedCells(move.row, cells, move.new._replace(cells=cells))


def _interval(qualifier: bytes) -> int:
    """The offset of a rollup in its row: of all aggregations, since a sum and a count belong together."""
    return int.from_bytes(qualifier[-2:], "big") >> 4


def _newer(row: Row, existing: Row) -> Row:
    """The cells of a row that are newer than those of the same columns."""
    newest = {cell.qualifier: cell.timestamp_ms for cell in existing.cells}
    return row._replace(
        cells=[cell for cell in row.cells if cell.timestamp_ms > newest.get(cell.qualifier, -1)]
    )


def _is_stored(row: Row, stored: Row | None) -> bool:
    """Whether a row has these cells, or values of the same columns that arrived at the same time or later."""
    cells = {cell.qualifier: cell for cell in (stored.cells if stored else ())}
    return all(
        (copied := cells.get(cell.qualifier)) is not None
        and (copied.value == cell.value or copied.timestamp_ms >= cell.timestamp_ms)
        for cell in row.cells
    )


def _deletion(move: MovedCells) -> Row:
    """The mutation that deletes the cells that were moved, and no later versions; without append columns."""
    old = [cell for cell in move.old if not is_append(cell.qualifier)]
    return move.row._replace(cells=(), deleted=deletions(old))


def _append_deletions(move: MovedCells) -> list[Replacement]:
    """The deletions of append columns, by compare-and-set: an append can keep the timestamp that was read."""
    return [Replacement(move.row.key, cell, None) for cell in move.old if is_append(cell.qualifier)]
