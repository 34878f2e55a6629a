"""Archives closed hours: merges data rows into the archive, and deletes them once it is shown to have them.

A few rows at a time, by metric and block, in this order; docs/spec/archive.md §4 says why:

| step | |
|---|---|
| read | data rows, all columns, and the archive rows of their spans |
| read again | the data rows, if archive rows change: `timebeam delete` may have been there |
| write | archive rows that change, each by compare-and-set |
| verify | the archive rows are read again; each point is compared by value |
| delete | the columns that were read, up to the version that was read, if `ArchiveJob.delete_source` |

A run that ends at any point leaves every point in at least one table, and can be repeated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.archive_rows import SeriesHeads
from timebeam.schema.archive.view import Archivable
from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import HOUR_S, floor_to
from timebeam.schema.core.batches import distinct
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.row_deletion import deletions
from timebeam.schema.core.rows import WHOLE_TABLE, Row
from timebeam.schema.core.selection import ColumnRange, Selected
from timebeam.transforms.bigtable.compare_and_set import CellColumn, Replacement, create_cells, replace_cells
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.care.rows_to_archive import (
    ArchiveJob,
    ClosedRow,
    buffered,
    by_series,
    changed_since,
    read_closed,
    select_closed,
)
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import give_back_memory
from timebeam.transforms.read.chunks import Chunk, spread_chunks
from timebeam.transforms.read.table_reader import TableReader, read_rows

_ATTEMPTS = 5


class ArchiveTally(NamedTuple):
    """Result of an archive run.

    Attributes:
      rows_read: data rows of closed hours.
      rows_busy: of these, those that were written in the last `quiet_hours`, which are left for a later run.
      rows_corrupt: of these, those that cannot be read in full, which stay.
      points_read: their points.
      rows_written: archive rows.
      points_archived: the points of the archive rows that hold points of this run.
      bytes_archived: bytes of the cells of these rows.
      rows_deleted: data rows whose columns of points were deleted.
      rows_waiting: data rows that will be deleted once their archive row is `reader_hours` old.
    """

    rows_read: int = 0
    rows_busy: int = 0
    rows_corrupt: int = 0
    points_read: int = 0
    rows_written: int = 0
    points_archived: int = 0
    bytes_archived: int = 0
    rows_deleted: int = 0
    rows_waiting: int = 0


class VerifyError(RuntimeError):
    """The archive does not hold what was written into it; nothing was deleted."""


def archive_metric(
    job: ArchiveJob, metric: bytes, check: Callable[[], None] | None = None
) -> Iterator[ArchiveTally]:
    """Archives the rows of a metric; yields a tally for every few rows.

    Args:
      metric: as in `ArchiveView.metric_keys`.
      check: called before each request that deletes from the data table.

    Raises:
      VerifyError: a row that was read back differs from what was written.
      GoogleAPICallError: the service refuses a call, or does not answer.
    """
    changed_s = changed_since(job, metric)
    for entries in buffered(read_closed(job, metric, changed_s)):
        busy = sum(entry.is_busy for entry in entries)
        yield ArchiveTally(rows_read=len(entries), rows_busy=busy)
        for some in by_series([entry for entry in entries if entry.row.cells]):
            yield _archive(job, some, changed_s, check)


def _archive(
    job: ArchiveJob, entries: Sequence[ClosedRow], changed_s: Int64s, check: Callable[[], None] | None
) -> ArchiveTally:
    """Archives data rows of one block that nobody writes to."""
    closed, batch, corrupt = _readable(job.layout, entries)
    tally = ArchiveTally(rows_corrupt=corrupt, points_read=len(batch))
    if job.dry_run or not len(batch):
        return tally
    code_of = _codes(job, closed, batch)
    keys_of = [_archive_keys(entry, code_of) for entry in closed]
    row_series = {key: entry.name for entry, keys in zip(closed, keys_of, strict=True) for key in keys}
    written: list[Row] = []
    for attempt in itertools.count(1):
        stored = read_rows(job.target, job.archive.table, sorted(row_series))
        _check_written(job.archive.table, written, stored)
        if not any(_changes(job, batch, row_series, stored)):
            break
        # Points that were deleted since they were read must not be written: a deletion replaces the archive
        # rows after it has changed the data rows, so either it is seen here, or nothing is written.
        closed, batch, _ = _readable(job.layout, _read_again(job, closed, changed_s))
        keys_of = [_archive_keys(entry, code_of) for entry in closed]
        changes = list(_changes(job, batch, row_series, stored))
        written = _write(job, changes)
        tally = tally._replace(rows_written=tally.rows_written + len(changes))
        if attempt == _ATTEMPTS:
            raise VerifyError(
                f"table {job.archive.table}: other programs keep changing rows; nothing was deleted: "
                "run it again"
            )
    # Read back, and nothing to change: the archive holds each point, or a later arrival at its time.
    tally = tally._replace(
        points_archived=sum(archive_rows.count_points(row) for row in stored.values()),
        bytes_archived=sum(len(cell.value) for row in stored.values() for cell in row.cells),
    )
    return _delete(job, closed, keys_of, stored, tally, check) if job.delete_source else tally


def _read_again(job: ArchiveJob, entries: Sequence[ClosedRow], changed_s: Int64s) -> Iterator[ClosedRow]:
    """Reads the rows again and selects the cells that can be archived now."""
    table = job.archive.data_table
    keys_of: dict[ColumnRange | None, list[bytes]] = {}
    for entry in entries:
        keys_of.setdefault(entry.columns, []).append(entry.row.key)
    for columns, keys in keys_of.items():
        for row in read_rows(job.target, table, keys, columns).values():
            yield select_closed(job, row, columns, changed_s)


def _readable(layout: Archivable, entries: Iterable[ClosedRow]) -> tuple[list[ClosedRow], PointBatch, int]:
    """(the rows that can be read in full, their points, the number of the others)."""
    entries = [entry for entry in entries if entry.row.cells]
    decoded = layout.decode_rows([Selected(entry.row, entry.name) for entry in entries])
    bad = {id(row) for row, _ in decoded.corruption} | {id(entries[number].row) for number in decoded.outside}
    if bad:
        entries = [entry for entry in entries if id(entry.row) not in bad]
        decoded = layout.decode_rows([Selected(entry.row, entry.name) for entry in entries])
    return entries, decoded.batch, len(bad)


def _codes(job: ArchiveJob, entries: Sequence[ClosedRow], batch: PointBatch) -> dict[SeriesKey, int]:
    """The span code of each series; chosen for those that have none."""
    table = job.archive.table
    points = np.bincount(batch.index, minlength=len(batch.series)).tolist()
    points_of = dict(zip(batch.series, points, strict=True))
    chosen: dict[SeriesKey, Row] = {}
    for series, group in itertools.groupby(
        sorted(entries, key=lambda entry: entry.series), lambda entry: entry.series
    ):
        of_series = list(group)
        first_s = floor_to(min(int(entry.times_ms.min()) for entry in of_series) // 1000, HOUR_S)
        last_s = floor_to(max(int(entry.times_ms.max()) for entry in of_series) // 1000, HOUR_S)
        hours = (last_s - first_s) // HOUR_S + 1
        code = archive_rows.span_for(points_of.get(of_series[0].name, 0), hours)
        chosen[series] = archive_rows.span_row(table, series, first_s, code)
    existing = read_rows(job.target, table, sorted(row.key for row in chosen.values()))
    span_cells = {
        key: row._replace(cells=[cell for cell in row.cells if cell.qualifier == archive_rows.SPAN])
        for key, row in existing.items()
    }
    codes = create_cells(job.target, table, chosen.values(), span_cells).values
    code_of = {
        series: codes[CellColumn(row.key, archive_rows.SEAL_FAMILY, archive_rows.SPAN)][0]
        for series, row in chosen.items()
    }
    unknown = set(code_of.values()) - archive_rows.SPANS_S.keys()
    if unknown:
        raise VerifyError(f"table {table} has the span code {min(unknown)}, which a newer timebeam wrote")
    return code_of


def _archive_keys(entry: ClosedRow, code_of: Mapping[SeriesKey, int]) -> set[bytes]:
    """The keys of the archive rows with the points of a data row."""
    code = code_of[entry.series]
    spans = distinct(entry.times_ms // (archive_rows.SPANS_S[code] * 1000)).tolist()
    return {archive_rows.archive_key(entry.series, span * archive_rows.SPANS_S[code], code) for span in spans}


class _Change(NamedTuple):
    """An archive row to be written: as it was read, and with its new cells."""

    stored: Row | None
    new: Row


def _changes(
    job: ArchiveJob,
    batch: PointBatch,
    row_series: Mapping[bytes, Series],
    stored: Mapping[bytes, Row],
) -> Iterator[_Change]:
    """The archive rows that lack points, or have older values.

    Args:
      row_series: the series of each archive row.
      stored: the archive rows that exist.

    Raises:
      VerifyError: a row of the archive is corrupt.
    """
    heads, table = job.archive.heads, job.archive.table
    decoded = archive_rows.decode_archive_rows(
        heads, [Selected(row, row_series[key]) for key, row in stored.items()]
    )
    if decoded.corruption:
        row, text = decoded.corruption[0]
        raise VerifyError(f"table {table}, row {row.key.hex()}: {text}; nothing was deleted")
    points, from_source = archive_rows.merged(batch, decoded.batch, by_kind=job.archive.by_kind)
    numbers = {series: number for number, series in enumerate(points.series)}
    firsts = np.searchsorted(points.index, np.arange(len(points.series) + 1))
    for key, series in row_series.items():
        if series not in numbers:
            continue
        span = archive_rows.parse_key(heads, key)
        first, end = firsts[numbers[series] : numbers[series] + 2]
        first, end = first + np.searchsorted(
            points.times_ms[first:end], [span.base_s * 1000, span.end_s * 1000]
        )
        if from_source[first:end].any():
            row_points = points.take(slice(int(first), int(end)))
            new = Row(table, key, archive_rows.archive_cells(heads, key, row_points))
            _check_encoded(heads, new, row_points)
            yield _Change(stored.get(key), new)


def _check_encoded(heads: SeriesHeads, row: Row, points: PointBatch) -> None:
    """Compares each point of a row that is to be written by value.

    Raises:
      VerifyError: a point differs.
    """
    decoded = archive_rows.decode_archive_rows(heads, [Selected(row, Series("", ()))]).batch
    for name in ("times_ms", "in_ms", "kinds", "bits", "arrivals_ms"):
        if not np.array_equal(getattr(decoded, name), getattr(points, name)):
            raise VerifyError(
                f"table {row.table}, row {row.key.hex()}: {name} differ after encoding; nothing was written "
                "nor deleted: please report it"
            )


def _check_written(table: str, written: Sequence[Row], stored: Mapping[bytes, Row]) -> None:
    """Compares rows that were read back with what was written; rows that others wrote since are left out.

    Raises:
      VerifyError: a cell differs.
    """
    for row in written:
        row_stored = stored.get(row.key)
        if archive_rows.seal_cell(row_stored) != archive_rows.seal_cell(row):
            continue
        assert row_stored is not None
        if {cell for cell in row_stored.cells if cell.qualifier != archive_rows.SPAN} != set(row.cells):
            raise VerifyError(
                f"table {table}, row {row.key.hex()}: its cells are not those that were written; nothing was "
                "deleted"
            )


def _write(job: ArchiveJob, changes: Sequence[_Change]) -> list[Row]:
    """Writes archive rows that no other program has changed since they were read; the rows."""
    replacements, rows = [], []
    for change in changes:
        guard, row = archive_rows.replacing_row(change.stored, change.new, int(job.clock() * 1000))
        *cells, seal = row.cells
        replacements.append(Replacement(row.key, guard, seal, cells, row.deleted))
        rows.append(row)
    replace_cells(job.target, job.archive.table, replacements)
    return rows


def _delete(
    job: ArchiveJob,
    entries: Sequence[ClosedRow],
    keys_of: Sequence[set[bytes]],
    stored: Mapping[bytes, Row],
    tally: ArchiveTally,
    check: Callable[[], None] | None,
) -> ArchiveTally:
    """Deletes the cells that were read, in rows whose archive rows have not changed for `reader_ms`.

    Args:
      keys_of: for each entry, the keys of the archive rows with its points.
    """
    latest_ms = int(job.clock() * 1000) - job.reader_ms
    settled = {
        key
        for key, row in stored.items()
        if (seal := archive_rows.seal_cell(row)) is not None and seal.timestamp_ms <= latest_ms
    }
    emptied = [entry.row for entry, keys in zip(entries, keys_of, strict=True) if keys <= settled]
    deleted = (row._replace(cells=(), deleted=deletions(row.cells)) for row in emptied)
    write_all(job.target, job.archive.data_table, deleted, check)
    return tally._replace(rows_deleted=len(emptied), rows_waiting=len(entries) - len(emptied))


COUNTERS = metrics.TallyCounters("timebeam-archive", ArchiveTally)


class ArchiveRows(beam.PTransform):  # type: ignore[type-arg]
    """Archives the rows of a job: a pipeline in, the tally of each few rows out."""

    def __init__(self, job: ArchiveJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> PCollection[ArchiveTally]:
        chunks = spread_chunks(root, "Metrics", functools.partial(_chunks, self._job), Chunk)
        return chunks | "Archive" >> beam.ParDo(_ArchiveFn(self._job)).with_output_types(ArchiveTally)


def _chunks(job: ArchiveJob) -> Iterator[Chunk]:
    """A chunk for each metric."""
    for name, uid in job.archive.metric_keys(TableReader(job.target)).items():
        yield Chunk((name,), (uid,), job.start_s, job.end_s, WHOLE_TABLE)


class _ArchiveFn(beam.DoFn):
    """`Chunk` in; `ArchiveTally` out."""

    def __init__(self, job: ArchiveJob) -> None:
        self._job = job

    def setup(self) -> None:
        """Limits the memory that the process keeps."""
        give_back_memory()

    def process(self, chunk: Chunk) -> Iterator[ArchiveTally]:
        job = self._job
        leased = nullcontext() if job.dry_run else job.leases.lease(chunk.uids, job.start_s, job.end_s)
        with leased as lease:
            for tally in archive_metric(job, chunk.uids[0], None if lease is None else lease.check):
                COUNTERS.add(tally)
                yield tally
        metrics.work_done()
