"""Deletes points: scans the rows of a selection, and deletes what a dry run has seen of them.

key ranges ─► scan ─► sum of checksums ─► as in the token? ─► delete: log, mark, mutate

A repeated run deletes what an interrupted one has left. Every row is logged before it changes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from timebeam.schema.archive.view import find_archive
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.times import HOUR_S, hours_between
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion
from timebeam.schema.core.rows import WHOLE_TABLE, KeyRange, Row
from timebeam.schema.core.selection import Finding, Selected, Selection, UnknownNameError
from timebeam.schema.query.question import Question
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.read_ranges import common_range, ranges_between, split_keys
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.care.delete_from_tables import (
    COUNTERS,
    ArchiveDeletions,
    PendingRemovals,
    count_removal,
    logged_rows,
    write_begun,
    write_done,
)
from timebeam.transforms.care.range_leases import Leases, RangeLease
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.row_mutations import data_tables
from timebeam.transforms.opentsdb.delete_rows import (
    RolledTable,
    annotation_deletion,
    metric_ranges,
    metric_uids,
    rollup_deletions,
)
from timebeam.transforms.read.chunks import spread_chunks
from timebeam.transforms.read.table_reader import TableReader, read_rows, within
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

_SERIES = 100_000  # whose test of the filters is remembered
_ROWS_AT_ONCE = 500
_ARCHIVE_ROWS_AT_ONCE = 100  # a row can have megabytes


class DeleteTask(NamedTuple):
    """What is deleted from one table.

    Attributes:
      question: metric, filters and time range.
      rule: what the figures are counted under, beside the table; empty for the table only.
      rolled: the table of rollups; None for points.
      marks: whether changed hours are marked for the next rollup.
    """

    question: Question
    rule: str = ""
    rolled: RolledTable | None = None
    marks: bool = True


class DeleteChunk(NamedTuple):
    """The rows of one task in a range of keys.

    Attributes:
      number: of the task in the job.
    """

    number: int
    keys: KeyRange


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteJob:
    """What is deleted.

    Attributes:
      newest_ms: cells with a later timestamp stay.
      checksum: of all cells that the dry run saw; None to delete what there is.
      log: how the names of the log's files begin.
      killed: `start` and `rest` of `log_files`; this run completes the runs that began such a log and did not
        end it.
      interrupted: the logs of the runs to complete.
      hours_writer: marks changed hours for the next rollup; None if rollups stay.
      leases: of this run.
      moved: see `Leases.lease`.
      points, annotations: whether these are deleted.
      series: whether what refers to series without data rows is deleted too.
    """

    target: Target
    layout: ReadableStore
    tasks: Sequence[DeleteTask]
    newest_ms: int
    log: str
    hours_writer: ChangedHoursWriter | None
    killed: tuple[str, str]
    leases: Leases
    checksum: int | None = None
    interrupted: Sequence[str] = ()
    moved: int | None = None
    points: bool = True
    annotations: bool = False
    series: bool = False
    dry_run: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether an interrupted run has written the same log."""
        return self.log in self.interrupted


class DeletePoints(beam.PTransform):  # type: ignore[type-arg]
    """Deletes the points of a job: a pipeline in, nothing out; the counters tell what was done."""

    def __init__(self, job: DeleteJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> None:
        job = self._job
        chunks = spread_chunks(root, "Chunks", functools.partial(_chunks, job), DeleteChunk)
        if job.dry_run or (job.checksum is not None and not job.is_begun):
            sums = chunks | "Scan" >> beam.Map(_scan, job).with_output_types(int)
            if job.dry_run:
                return
            may_delete = sums | "Sum" >> beam.CombineGlobally(sum) | "Compare" >> beam.Map(_is_same, job)
        else:
            begun = root | "Begun" >> beam.Create([True], reshuffle=False)
            may_delete = begun | "Again" >> beam.Map(_again, job).with_output_types(bool)
        deleting = beam.FlatMap(_delete, AsSingleton(may_delete), job).with_output_types(int)
        rejected = chunks | "Delete" >> deleting
        if not job.series:  # else more is deleted afterwards
            rejected | "SumRejected" >> beam.CombineGlobally(sum) | "Done" >> beam.Map(_done, job)


def _chunks(job: DeleteJob) -> Iterator[DeleteChunk]:
    """Chunks of about the same size."""
    for number, task in enumerate(job.tasks):
        if len(job.tasks) > 1 and find_opentsdb(job.layout) is None:
            yield DeleteChunk(number, WHOLE_TABLE)  # its rows are found by the index
            continue
        table = data_tables(job.layout)[0] if task.rolled is None else task.rolled.name
        ranges = _key_ranges(job, task.question)
        for split in ranges_between(split_keys(job.target, table, ranges, cut_at=job.layout.cut_at)):
            if any(common_range(split, key_range) for key_range in ranges):
                yield DeleteChunk(number, split)


def _key_ranges(job: DeleteJob, question: Question) -> Sequence[KeyRange]:
    """The ranges of data rows that a selection can be in."""
    layout = find_opentsdb(job.layout)
    return (WHOLE_TABLE,) if layout is None else metric_ranges(job.target, layout, question)


def _scan(chunk: DeleteChunk, job: DeleteJob) -> int:
    """The sum of the checksums of the removals of a chunk; a dry run counts them."""
    total = 0
    for removal, _ in _removals(job, chunk):
        total += removal.checksum
        if job.dry_run:
            count_removal(removal, job.tasks[chunk.number].rule)
    if job.dry_run:
        COUNTERS.count("checksum", total)
        metrics.work_done()
    return total


def _is_same(checksum: int, job: DeleteJob) -> bool:
    """Whether the sum of all checksums is that of the dry run; then a file says that the deletion begins."""
    if checksum == job.checksum:
        _begin(job)
        return True
    COUNTERS.count("changed")
    return False


def _again(may_delete: bool, job: DeleteJob) -> bool:
    """The argument, after it has rewritten the archive rows that interrupted runs have not reached.

    Such a run may have deleted points from the data table, but not from the archive. `timebeam archive` may
    have these points in memory; it does not write into an archive row that has changed since it read it.
    """
    if not job.is_begun:
        _begin(job)
    archive = find_archive(job.layout)
    if archive is not None:
        none = DeleteRange(0, -1, 0)  # a later step deletes the remaining points
        archived = ArchiveDeletions(job.target, archive, none)
        keys = (
            key for log in job.interrupted for table, key in logged_rows(log) if table == archive.data_table
        )
        for batch in batched(keys, _ROWS_AT_ONCE):
            archived.carry_out([Row(archive.data_table, key, ()) for key in batch])
    return may_delete


def _begin(job: DeleteJob) -> None:
    """Says in the log that cells are deleted from now on, and which."""
    selections = [
        {"metric": task.question.metric, "start_ms": task.question.start_ms, "end_ms": task.question.end_ms}
        for task in job.tasks
    ]
    write_begun(job.log, {"checksum": job.checksum, "newest_ms": job.newest_ms, "selections": selections})


def _done(rejected: int, job: DeleteJob) -> None:
    """Says that the run is done, if Bigtable has refused no rows."""
    if not rejected:
        write_done(job.log, job.interrupted)


def _delete(chunk: DeleteChunk, may_delete: bool, job: DeleteJob) -> Iterator[int]:
    """Deletes a chunk's points if they are those of the dry run; the number of rejected rows."""
    if may_delete:
        task = job.tasks[chunk.number]
        hours_writer = job.hours_writer if task.marks else None
        archived = _archive_deletions(job, task)
        with _lease(job, task.question) as lease:
            pending = PendingRemovals(job.target, job.log, hours_writer, task.rule, archived, lease.check)
            for removal, series in _removals(job, chunk):
                pending.add(removal, series)
            pending.flush()
        yield pending.rejected
    metrics.work_done()


def _lease(job: DeleteJob, question: Question) -> AbstractContextManager[RangeLease]:
    """The right to rewrite the rows of a selection: two selections can share a row, and a column of it."""
    layout = find_opentsdb(job.layout)
    if layout is None:
        return job.leases.lease([question.metric.encode()], moved=job.moved)
    hours = hours_between(question.start_ms, question.end_ms + 1)
    hours_s = hours[0], hours[-1] + HOUR_S
    return job.leases.lease(metric_uids(job.target, layout, question.metric), *hours_s, moved=job.moved)


def _removals(job: DeleteJob, chunk: DeleteChunk) -> Iterator[tuple[RowDeletion, Series]]:
    """What is deleted from each row of a chunk; rows that cannot be read are logged and counted."""
    task = job.tasks[chunk.number]
    question, skips = task.question, metrics.SkipLog(COUNTERS)
    deleted = DeleteRange(question.start_ms, question.end_ms, job.newest_ms)
    if task.rolled is not None:
        reader = within(TableReader(job.target), job.layout, chunk.keys)
        for removed in rollup_deletions(job.layout, task.rolled, question.metric, deleted, reader):
            if isinstance(removed, Finding):
                _skip(skips, removed.table, removed.key, removed.text)
            else:
                yield removed
        return
    selection = Selection(question.metric, question.tags, question.start_ms, question.end_ms)
    passes = functools.lru_cache(_SERIES)(question.passes)
    cut: dict[bytes, Series] = {}  # archive rows that are read period by period
    for selected in _selected(job, selection, chunk.keys):
        if isinstance(selected, Finding):
            _skip(skips, selected.table, selected.key, selected.text)
        elif passes(selected.series):
            rows = [*selected.archived.late] if selected.archived else []
            if selected.archived and selected.archived.period is not None:
                cut[selected.row.key] = selected.series
            else:
                rows.append(selected.row)
            for row in rows:
                yield from _counted_removals(job, Selected(row, selected.series), deleted, skips)
    for keys in batched(sorted(cut), _ARCHIVE_ROWS_AT_ONCE):
        archive = find_archive(job.layout)
        assert archive is not None
        for row in read_rows(job.target, archive.table, keys).values():
            yield from _counted_removals(job, Selected(row, cut[row.key]), deleted, skips)


def _selected(job: DeleteJob, selection: Selection, keys: KeyRange) -> Iterator[Selected | Finding]:
    """The selected rows; raises BigtableError if a name has lost its UID since the job was planned."""
    try:
        yield from job.layout.select(selection, within(TableReader(job.target), job.layout, keys))
    except UnknownNameError as error:
        raise BigtableError(
            f"{error.args[0]}: it was renamed or merged since this delete began; what is deleted is "
            "in the log"
        ) from error


def _counted_removals(
    job: DeleteJob, selected: Selected, deleted: DeleteRange, skips: metrics.SkipLog
) -> Iterator[tuple[RowDeletion, Series]]:
    """`_row_removals`; a row that cannot be read is logged and counted."""
    try:
        for removal in _row_removals(job, selected, deleted):
            yield removal, selected.series
    except ValueError as error:
        _skip(skips, selected.row.table, selected.row.key, error)


def _skip(skips: metrics.SkipLog, table: str, key: bytes, why: object) -> None:
    skips.skip("unreadable", f"row {key.hex()} of {table}: {why}")


def _row_removals(job: DeleteJob, selected: Selected, deleted: DeleteRange) -> Iterator[RowDeletion]:
    """What is deleted from a row: annotations, then points.

    Raises:
      ValueError: the row cannot be read; its annotations may have been given before.
    """
    notes = annotation_deletion(job.layout, selected.row, deleted) if job.annotations else None
    if notes is not None:
        yield notes
    if job.points:
        removal = job.layout.remove(selected, deleted)
        if removal is not None:
            yield removal


def _archive_deletions(job: DeleteJob, task: DeleteTask) -> ArchiveDeletions | None:
    """What deletes from the archive; None without one, and for rollups and annotations alone."""
    archive = find_archive(job.layout)
    if archive is None or task.rolled is not None or not job.points:
        return None
    deleted = DeleteRange(task.question.start_ms, task.question.end_ms, job.newest_ms)
    return ArchiveDeletions(job.target, archive, deleted)
