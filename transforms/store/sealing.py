"""Seals closed hours: merges data rows into the archive, and deletes them once it is shown to have them.

A few rows at a time, by metric and block, in this order; docs/spec/archive.md §4 says why:

| step | |
|---|---|
| read | data rows, all columns, and the archive rows of their spans |
| read again | the data rows, if archive rows change: `timebeam delete` may have been there |
| write | archive rows that change, each by compare-and-set |
| verify | the archive rows are read again; each point is compared by value |
| delete | the columns that were read, up to the version that was read, if `SealJob.delete_source` |

A run that ends at any point leaves every point in at least one table, and can be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from google.api_core.exceptions import NotFound

from timebeam.schema.layouts import Archive, Deletion, Row, Selected
from timebeam.schema.layouts.archive import keys as archive_keys
from timebeam.schema.layouts.archive import rows as archive_rows
from timebeam.schema.layouts.archive.keys import BLOCK_S
from timebeam.schema.layouts.opentsdb import select
from timebeam.schema.layouts.opentsdb.annotation_cells import is_annotation
from timebeam.schema.layouts.opentsdb.keys import SPAN_S, OpenTsdbOptions, base_s_of, parse_key
from timebeam.schema.layouts.opentsdb.rows import is_histogram
from timebeam.schema.layouts.removal import deletions
from timebeam.schema.points import PointBatch, Series
from timebeam.transforms.bigtable.conditional import CellColumn, Replacement, create_cells, replace_cells
from timebeam.transforms.bigtable.mutate import write_all
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.table_reader import TableReader, read_rows
from timebeam.transforms.rollup.touched import read_days

BUFFER_BYTES = 64 << 20
"""About the memory of the data rows that are sealed together."""
SERIES_AT_ONCE = 100
"""Series that are sealed together: an hour of a series may go into an archive row of 20,000 points."""
_ROW_BYTES, _CELL_BYTES = 500, 250  # memory of the objects, beside the value
_ATTEMPTS = 5


class SealTally(NamedTuple):
    """Result of a seal.

    Attributes:
      rows_read: data rows of closed hours.
      rows_busy: of these, those that were written in the last `quiet_hours`, which are left for a later run.
      rows_damaged: of these, those that cannot be read in full, which stay.
      points_read: their points.
      rows_written: archive rows.
      points_archived: the points of the archive rows that hold points of this run.
      bytes_archived: bytes of the cells of these rows.
      rows_deleted: data rows whose columns of points were deleted.
      rows_waiting: data rows that will be deleted once their archive row is `reader_hours` old.
    """

    rows_read: int = 0
    rows_busy: int = 0
    rows_damaged: int = 0
    points_read: int = 0
    rows_written: int = 0
    points_archived: int = 0
    bytes_archived: int = 0
    rows_deleted: int = 0
    rows_waiting: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class SealJob:
    """Which hours are sealed, and how.

    Attributes:
      start_s, end_s: rows whose hours lie in [start_s, end_s), both whole hours, in seconds.
      quiet_ms: rows with a cell of this time or later are left, and those of hours that a writer has marked
        since then: their cells may be older, if files are ingested.
      delete_source: whether sealed points are deleted from the data table.
      reader_ms: how long an archive row must not have changed before its points are deleted from the data
        table: longer than any read takes.
      dry_run: count, and write nothing.
      clock: the time, in seconds since 1970.
    """

    target: Target
    layout: Archive
    start_s: int
    end_s: int
    quiet_ms: int
    delete_source: bool = False
    reader_ms: int = 3_600_000
    dry_run: bool = False
    clock: Callable[[], float] = time.time


class VerifyError(RuntimeError):
    """The archive does not hold what was written into it; nothing was deleted."""


class _Sealable(NamedTuple):
    """A data row that can be sealed, the versions of its columns that hold points, and its series."""

    row: Row
    columns: Sequence[Deletion]
    series: Series


def seal_metric(job: SealJob, metric: bytes) -> Iterator[SealTally]:
    """Seals the rows of a metric, by its UID; a tally for each few rows.

    Raises:
      VerifyError: a row that was read back differs from what was written.
      GoogleAPICallError: the service refuses a call, or does not answer.
    """
    layout = job.layout
    span_ms = job.start_s * 1000, job.end_s * 1000 - 1
    scan = select.scan(layout.options, layout.data_table, [metric], {}, *span_ms)
    keyed = select.data_rows(layout.options, scan, span_ms, TableReader(job.target))
    sound = (row for row, key in keyed if not layout.key_error(key))
    marked_s = _marked_hours(job, metric)
    for rows in _buffered(sound, lambda row: parse_key(layout.options, row.key).base_s // BLOCK_S):
        quiet = [row for row in _quiet(job, rows) if base_s_of(layout.options, row.key) not in marked_s]
        yield SealTally(rows_read=len(rows), rows_busy=len(rows) - len(quiet))
        for some in _by_series(layout, quiet):
            yield _seal(job, some)


def _by_series(layout: Archive, rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows of `SERIES_AT_ONCE` series at a time."""
    by_tsuid: dict[bytes, list[Row]] = {}
    for row in rows:
        by_tsuid.setdefault(layout.tsuid_of(row.table, row.key), []).append(row)
    of_series = iter(by_tsuid.values())
    while some := list(itertools.islice(of_series, SERIES_AT_ONCE)):
        yield list(itertools.chain.from_iterable(some))


def _quiet(job: SealJob, rows: Iterable[Row]) -> list[Row]:
    """The rows without a cell of `quiet_ms` or later."""
    return [row for row in rows if all(cell.timestamp_ms < job.quiet_ms for cell in row.cells)]


def _marked_hours(job: SealJob, metric: bytes) -> set[int]:
    """The starts, in s, of the hours of a metric that writers have marked since `quiet_ms`."""
    with contextlib.suppress(NotFound):  # without rollups there is no table of marks
        return {
            hour.start_s
            for day in read_days(TableReader(job.target), job.layout, metric, job.start_s, job.end_s)
            for hour in day.hours
            if any(time_ms >= job.quiet_ms for _, time_ms in hour.times_ms)
        }
    return set()


def _buffered(rows: Iterable[Row], block_of: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Rows in lists of one block and about `BUFFER_BYTES`: many hours of few series, or few of many."""
    buffer: list[Row] = []
    size = 0
    for row in rows:
        if buffer and block_of(row) != block_of(buffer[0]):
            yield buffer
            buffer, size = [], 0
        buffer.append(row)
        size += _ROW_BYTES + sum(_CELL_BYTES + len(cell.value) + len(cell.qualifier) for cell in row.cells)
        if size >= BUFFER_BYTES:
            yield buffer
            buffer, size = [], 0
    if buffer:
        yield buffer


def _seal(job: SealJob, rows: Sequence[Row]) -> SealTally:
    """Seals data rows of one block that nobody writes to."""
    sealable, batch, damaged = _readable(job.layout, rows)
    tally = SealTally(rows_damaged=damaged, points_read=len(batch))
    if job.dry_run or not len(batch):
        return tally
    archive_key_of = _archive_keys(job, sealable, batch)
    row_series = {archive_key_of[entry.row.key]: entry.series for entry in sealable}
    written: list[Row] = []
    for attempt in itertools.count(1):
        stored = read_rows(job.target, job.layout.archive_table, sorted(row_series))
        _check_written(job.layout.archive_table, written, stored)
        if not any(_changes(job, batch, row_series, stored)):
            break
        # Points that were deleted since they were read must not be written: a deletion replaces the archive
        # rows after it has changed the data rows, so either it is seen here, or nothing is written.
        keys = [entry.row.key for entry in sealable]
        reread = read_rows(job.target, job.layout.data_table, keys).values()
        sealable, batch, _ = _readable(job.layout, _quiet(job, reread))
        changes = list(_changes(job, batch, row_series, stored))
        written = _write(job, changes)
        tally = tally._replace(rows_written=tally.rows_written + len(changes))
        if attempt == _ATTEMPTS:
            raise VerifyError(
                f"table {job.layout.archive_table}: other programs keep changing rows; nothing was deleted: "
                "run it again"
            )
    # Read back, and nothing to change: the archive holds each point, or a later arrival at its instant.
    tally = tally._replace(
        points_archived=sum(archive_rows.count_points(row) for row in stored.values()),
        bytes_archived=sum(len(cell.value) for row in stored.values() for cell in row.cells),
    )
    return _delete(job, sealable, archive_key_of, stored, tally) if job.delete_source else tally


def _readable(layout: Archive, rows: Sequence[Row]) -> tuple[list[_Sealable], PointBatch, int]:
    """(the rows that can be read in full, their points, the number of the others).

    The series are named by their TSUIDs: a seal needs no names.
    """
    selected = [Selected(row, Series(layout.tsuid_of(row.table, row.key).hex(), ())) for row in rows]
    decoded = layout.decode_rows(selected)
    bad = {row.key for row, _ in decoded.damage} | {rows[number].key for number in decoded.outside}
    if bad:
        selected = [pair for pair in selected if pair.row.key not in bad]
        decoded = layout.decode_rows(selected)
    sealable = [_Sealable(row, _point_columns(row), series) for row, series in selected]
    return [entry for entry in sealable if entry.columns], decoded.batch, len(bad)


def _point_columns(row: Row) -> list[Deletion]:
    """The columns of a row without damage that hold points, up to the versions that were read."""
    return deletions(
        cell for cell in row.cells if not (is_annotation(cell.qualifier) or is_histogram(cell.qualifier))
    )


def _archive_keys(job: SealJob, sealable: Sequence[_Sealable], batch: PointBatch) -> dict[bytes, bytes]:
    """The key of the archive row of each data row, by key; chooses the spans of series that have none."""
    options, table = job.layout.options, job.layout.archive_table
    points = np.bincount(batch.index, minlength=len(batch.series)).tolist()
    points_of = dict(zip(batch.series, points, strict=True))
    chosen: dict[Series, Row] = {}
    for series, entries in itertools.groupby(
        sorted(sealable, key=lambda entry: entry.series), lambda entry: entry.series
    ):
        data_keys = [entry.row.key for entry in entries]
        bases_s = [parse_key(options, key).base_s for key in data_keys]
        hours = (max(bases_s) - min(bases_s)) // SPAN_S + 1
        code = archive_keys.span_for(points_of.get(series, 0), hours)
        chosen[series] = archive_rows.span_row(options, table, data_keys[0], code)
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
    unknown = set(code_of.values()) - archive_keys.SPANS_S.keys()
    if unknown:
        raise VerifyError(f"table {table} has the span code {min(unknown)}, which a newer timebeam wrote")
    return {
        entry.row.key: archive_keys.archive_key(options, entry.row.key, code_of[entry.series])
        for entry in sealable
    }


class _Change(NamedTuple):
    """An archive row to be written: as it was read, and with its new cells."""

    stored: Row | None
    new: Row


def _changes(
    job: SealJob,
    batch: PointBatch,
    row_series: Mapping[bytes, Series],
    stored: Mapping[bytes, Row],
) -> Iterator[_Change]:
    """The archive rows that lack points, or have older values.

    Args:
      row_series: the series of each archive row.
      stored: the archive rows that exist.

    Raises:
      VerifyError: a row of the archive is damaged.
    """
    options, table = job.layout.options, job.layout.archive_table
    decoded = archive_rows.decode_archive_rows(
        options, [Selected(row, row_series[key]) for key, row in stored.items()]
    )
    if decoded.damage:
        row, text = decoded.damage[0]
        raise VerifyError(f"table {table}, row {row.key.hex()}: {text}; nothing was deleted")
    points, from_source = archive_rows.merged(batch, decoded.batch)
    numbers = {series: number for number, series in enumerate(points.series)}
    firsts = np.searchsorted(points.index, np.arange(len(points.series) + 1))
    for key, series in row_series.items():
        if series not in numbers:
            continue
        span = archive_keys.parse_key(options, key)
        first, end = firsts[numbers[series] : numbers[series] + 2]
        first, end = first + np.searchsorted(
            points.times_ms[first:end], [span.base_s * 1000, span.end_s * 1000]
        )
        if from_source[first:end].any():
            row_points = points.take(slice(int(first), int(end)))
            new = Row(table, key, archive_rows.archive_cells(options, key, row_points))
            _check_encoded(options, new, row_points)
            yield _Change(stored.get(key), new)


def _check_encoded(options: OpenTsdbOptions, row: Row, points: PointBatch) -> None:
    """Compares each point of a row that is to be written by value.

    Raises:
      VerifyError: a point differs.
    """
    decoded = archive_rows.decode_archive_rows(options, [Selected(row, Series("", ()))]).batch
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


def _write(job: SealJob, changes: Sequence[_Change]) -> list[Row]:
    """Writes archive rows that no other program has changed since they were read; the rows."""
    replacements, rows = [], []
    for change in changes:
        guard, row = archive_rows.replacing_row(change.stored, change.new, int(job.clock() * 1000))
        *cells, seal = row.cells
        replacements.append(Replacement(row.key, guard, seal, cells, row.deleted))
        rows.append(row)
    replace_cells(job.target, job.layout.archive_table, replacements)
    return rows


def _delete(
    job: SealJob,
    sealable: Sequence[_Sealable],
    archive_key_of: dict[bytes, bytes],
    stored: dict[bytes, Row],
    tally: SealTally,
) -> SealTally:
    """Deletes the columns that were read of the rows whose archive row has not changed for long enough."""
    latest_ms = int(job.clock() * 1000) - job.reader_ms
    settled = {
        key
        for key, row in stored.items()
        if (seal := archive_rows.seal_cell(row)) is not None and seal.timestamp_ms <= latest_ms
    }
    emptied = [
        Row(entry.row.table, entry.row.key, (), entry.columns)
        for entry in sealable
        if archive_key_of[entry.row.key] in settled
    ]
    write_all(job.target, job.layout.data_table, emptied)
    return tally._replace(rows_deleted=len(emptied), rows_waiting=len(sealable) - len(emptied))
