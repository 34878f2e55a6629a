"""Rows as mutations within Bigtable's limits, written in requests with their hours marked; without Beam."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.point_fragments import CellColumns
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import (
    CELL_BYTES,
    KEY_BYTES,
    MUTATIONS,
    QUALIFIER_BYTES,
    Cell,
    Deletion,
    EncodedRow,
    Row,
    RowMutation,
    TableSpec,
    stored_bytes_of,
)
from timebeam.schema.core.selection import SeriesIndex
from timebeam.transforms.bigtable.mutation_bytes import encoded_row, plain_row, set_cells
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import mutate_rows, requests, split_row
from timebeam.transforms.dead_letters.letter import over_limit, rejected_row
from timebeam.transforms.flow import metrics


def merged_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for each table and key; of cells with one column and timestamp, the last one."""
    by_key: dict[tuple[str, bytes], list[Row]] = {}
    for row in rows:
        by_key.setdefault((row.table, row.key), []).append(row)
    return [group[0] if len(group) == 1 else _merged_row(group) for group in by_key.values()]


def _merged_row(rows: Sequence[Row]) -> Row:
    """One row of several with the same key."""
    cells = {cell[:3]: cell for row in rows for cell in row.cells}
    return rows[0]._replace(cells=list[Cell](cells.values()))


def overwriting(row: Row, existing: Iterable[Cell]) -> Row:
    """Replaces the row: sets its cells, deletes all others in `existing`."""
    new = {(cell.family, cell.qualifier): cell.timestamp_ms for cell in row.cells}
    stale = {
        (cell.family, cell.qualifier)
        for cell in existing
        if new.get((cell.family, cell.qualifier)) != cell.timestamp_ms
    }
    return row._replace(deleted=[Deletion(*column) for column in sorted(stale)])


def mutations(rows: Iterable[Row]) -> Iterator[EncodedRow | Rejected]:
    """Mutations of rows within Bigtable's limits, counted as written; rejections of other rows."""
    count = cells = size = 0
    for row in rows:
        rejected = over_limit(row)
        if rejected is not None:
            yield rejected
            continue
        count += 1
        cells += len(row.cells)
        size += len(row.cells) * stored_bytes_of(len(row.key), 0, 0, 0)
        size += sum([len(family) + len(name) + len(value) for family, name, _, value in row.cells])
        yield from map(encoded_row, split_row(row))
    metrics.count("rows_written", count)
    metrics.count("cells_written", cells)
    metrics.count("bytes_written", size)


Hours = Collection[tuple[bytes, int]]
"""(metric, start in s) of hours."""


class HoursWriter(Protocol):
    """Marks the hours of rows before they are sent, and again after they are written."""

    @property
    def table(self) -> TableSpec:
        """The table of marks."""

    def hours(self, rows: Sequence[RowMutation]) -> Hours:
        """The hours that have points in rows."""

    def mark(self, target: Target, hours: Hours, *, stored: bool) -> None:
        """Marks hours whose points are about to be sent, or are stored."""


@contextlib.contextmanager
def hours_written(
    target: Target, hours_writer: HoursWriter | None, rows: Sequence[RowMutation]
) -> Iterator[None]:
    """A context in which rows are written: marks their hours before it and after it.

    Also after an error, since rows may have been written.

    Raises:
      GoogleAPICallError: the marks could not be written.
    """
    if hours_writer is None or not rows:
        yield
        return
    hours = hours_writer.hours(rows)
    try:
        hours_writer.mark(target, hours, stored=False)
        yield
    finally:
        hours_writer.mark(target, hours, stored=True)


def data_tables(layout: ReadableStore) -> list[str]:
    """The tables of a layout that hold points."""
    return [spec.name for spec in layout.tables() if spec.holds_points]


def write_batch(target: Target, table: str, rows: Sequence[RowMutation]) -> list[Rejected]:
    """Writes rows in one request, with retries; the rejected rows.

    Raises:
      GoogleAPICallError: a row could not be written for a reason that is not its own.
    """
    return [refused_write(rows[number], str(error)) for number, error in mutate_rows(target, table, rows)]


def refused_write(row: RowMutation, reason: str) -> Rejected:
    """The dead letter of a row that Bigtable refused."""
    why = f"Bigtable refused the row: {reason}"
    return rejected_row(plain_row(row), Reason.WRITE_REFUSED, why, Stage.WRITE)


def store_index(
    target: Target, index: SeriesIndex, entries: Iterable[tuple[Series, int]], *, dry_run: bool
) -> tuple[int, list[Rejected]]:
    """Writes the index rows of entries; (their number, the rejected ones).

    Args:
      entries: see `SeriesIndex.entries`.
    """
    tables: dict[str, list[Row]] = {}
    for row in merged_rows(row for entry in entries for row in index.rows(*entry)):
        tables.setdefault(row.table, []).append(row)
    rejections: list[Rejected] = []
    for table, rows in tables.items() if not dry_run else ():
        for request in requests(rows):
            rejections += write_batch(target, table, request)
    return sum(map(len, tables.values())), rejections


def encoded_rows(table: str, keys: Sequence[bytes], cells: CellColumns) -> Iterator[EncodedRow | Rejected]:
    """Mutations that set the cells of rows with these keys, counted as written; rejections of other rows."""
    if _exceeds_limits(keys, cells):
        rows = (Row(table, key, cells.cells(number)) for number, key in enumerate(keys))
        yield from mutations(rows)
        return
    content, starts = set_cells(
        cells.families, cells.family_of, cells.qualifiers, cells.times_ms, cells.values
    )
    bounds = cells.bounds
    last_ms = cells.times_ms[bounds[1:] - 1].tolist()
    written = zip(keys, itertools.pairwise(bounds.tolist()), last_ms, strict=True)
    qualifiers, qualifier_starts = cells.qualifiers
    for key, (first, end), last in written:
        for start in range(first, end, MUTATIONS):
            stop = min(start + MUTATIONS, end)
            names = qualifiers[qualifier_starts[start] : qualifier_starts[stop]]
            yield EncodedRow(table, key, content[starts[start] : starts[stop]], stop - start, last, names)
    metrics.count("rows_written", len(keys))
    metrics.count("cells_written", len(cells.times_ms))
    key_bytes = int(np.dot(np.array([len(key) for key in keys], np.int64), np.diff(bounds)))
    family_bytes = int(np.array([len(name) for name in cells.families])[cells.family_of].sum())
    strings = len(cells.qualifiers[0]) + len(cells.values[0])
    metrics.count(
        "bytes_written",
        key_bytes + family_bytes + strings + len(cells.times_ms) * stored_bytes_of(0, 0, 0, 0),
    )


def _exceeds_limits(keys: Sequence[bytes], cells: CellColumns) -> bool:
    """Whether a row may be over one of Bigtable's limits: as `over_limit`, for all rows."""
    return bool(
        not all(0 < len(key) <= KEY_BYTES for key in keys)
        or int(np.diff(cells.qualifiers[1]).max(initial=0)) > QUALIFIER_BYTES
        or int(np.diff(cells.values[1]).max(initial=0)) > CELL_BYTES
        or int(cells.times_ms.min(initial=0)) < 0
    )
