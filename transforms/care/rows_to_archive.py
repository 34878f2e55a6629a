"""The data rows that `archive` reads: those of closed hours to which nobody has written lately."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.api_core.exceptions import NotFound

from timebeam.schema.archive.archive_rows import BLOCK_S
from timebeam.schema.archive.view import Archivable, ArchiveView
from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.times import HOUR_MS, HOUR_S
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import ColumnRange
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.care.range_leases import Leases
from timebeam.transforms.read.table_reader import TableReader, memory_of
from timebeam.transforms.rollup.changed_hours import read_days

BUFFER_BYTES = 64 << 20
"""Approximate memory of the data rows that are read before any is archived."""
SERIES_AT_ONCE, BYTES_AT_ONCE = 100, 8 << 20
"""Most series, and approximate bytes of data rows, that are archived together.

An hour of a series may go into an archive row of 20,000 points, and decoded points take several times the
memory of their rows."""
_BLOCK_MS = BLOCK_S * 1000


@dataclasses.dataclass(frozen=True, slots=True)
class ArchiveJob:
    """Which hours are archived, and how.

    Attributes:
      start_s, end_s: rows whose hours lie in [start_s, end_s), both whole hours, in seconds.
      quiet_ms: rows with a cell of this time or later are left, and those of hours that a writer has marked
        since then: their cells may be older, if files are ingested.
      delete_source: whether archived points are deleted from the data table.
      reader_ms: how long an archive row must not have changed before its points are deleted from the data
        table: longer than any read takes.
      leases: of this run.
      dry_run: count, and write nothing.
      clock: the time, in seconds since 1970.
    """

    target: Target
    layout: Archivable
    start_s: int
    end_s: int
    quiet_ms: int
    leases: Leases
    delete_source: bool = False
    reader_ms: int = HOUR_MS
    dry_run: bool = False
    clock: Callable[[], float] = time.time

    @property
    def archive(self) -> ArchiveView[Any]:
        """The archive of the layout."""
        return self.layout.archive_view


class ClosedRow(NamedTuple):
    """A data row that can be archived, with the cells that hold points of its closed hours.

    Attributes:
      columns: the columns that were read; None for all.
      times_ms: the times of the cells, as in `ArchiveView.times_ms`.
      is_busy: whether cells stay in the data table because the row was written or marked lately.
    """

    row: Row
    columns: ColumnRange | None
    series: SeriesKey
    times_ms: Int64s
    is_busy: bool

    @property
    def name(self) -> Series:
        """The series, named by its key: `archive` needs no names."""
        return Series(f"{self.series.head.hex()} {self.series.tail.hex()}", ())


def read_closed(job: ArchiveJob, metric: bytes, changed_s: Int64s) -> Iterator[ClosedRow]:
    """The data rows of a metric with points of closed hours."""
    reader = TableReader(job.target)
    for scan in job.archive.closed(metric, job.start_s * 1000, job.end_s * 1000, reader):
        for row in reader.scan(scan):
            with contextlib.suppress(ValueError):  # `timebeam check` reports it
                yield select_closed(job, row, scan.columns, changed_s)


def select_closed(job: ArchiveJob, row: Row, columns: ColumnRange | None, changed_s: Int64s) -> ClosedRow:
    """Selects the cells of a data row that can be archived.

    Raises:
      ValueError: the key is not that of a data row.
    """
    series = job.archive.data_row(row.key).series
    cells, times_ms = job.archive.closed_cells(row)
    is_taken = (times_ms >= job.start_s * 1000) & (times_ms < job.end_s * 1000)
    is_busy = any(cell.timestamp_ms >= job.quiet_ms for cell in row.cells)
    if is_busy:
        is_taken[:] = False
    elif len(changed_s):
        is_changed = is_taken & np.isin(times_ms // HOUR_MS * HOUR_S, changed_s)
        is_busy = bool(is_changed.any())
        is_taken &= ~is_changed
    if not is_taken.all():
        cells, times_ms = list(itertools.compress(cells, is_taken.tolist())), times_ms[is_taken]
    return ClosedRow(row._replace(cells=cells), columns, series, times_ms, is_busy)


def by_series(entries: Sequence[ClosedRow]) -> Iterator[list[ClosedRow]]:
    """The rows of up to `SERIES_AT_ONCE` series at a time, of about `BYTES_AT_ONCE`."""
    by_series: dict[SeriesKey, list[ClosedRow]] = {}
    for entry in entries:
        by_series.setdefault(entry.series, []).append(entry)
    for several in batched(by_series.values(), SERIES_AT_ONCE):
        yield from batched(itertools.chain.from_iterable(several), math.inf, _memory_of, BYTES_AT_ONCE)


def _memory_of(entry: ClosedRow) -> int:
    return memory_of(entry.row)


def changed_since(job: ArchiveJob, metric: bytes) -> Int64s:
    """The starts, in s, of the hours of a metric that writers have marked since `quiet_ms`."""
    changed_s = []
    with contextlib.suppress(NotFound):  # without rollups there is no table of marks
        changed_s = [
            hour.start_s
            for day in read_days(TableReader(job.target), job.layout, metric, job.start_s, job.end_s)
            for hour in day.hours
            if hour.metric == metric and any(time_ms >= job.quiet_ms for _, time_ms in hour.times_ms)
        ]
    return np.array(changed_s, np.int64)


def buffered(entries: Iterable[ClosedRow]) -> Iterator[list[ClosedRow]]:
    """Rows in lists of one block and about `BUFFER_BYTES`: many hours of few series, or few of many."""
    block = -1

    def block_of(entry: ClosedRow) -> int:  # a row without cells to archive stays with the one before
        nonlocal block
        block = int(entry.times_ms[0]) // _BLOCK_MS if len(entry.times_ms) else block
        return block

    for _, of_block in itertools.groupby(entries, block_of):
        yield from batched(of_block, math.inf, _memory_of, BUFFER_BYTES)
