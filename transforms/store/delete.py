"""Deletes points: scans the rows of a selection, and deletes what a dry run has seen of them.

key ranges ─► scan ─► sum of checksums ─► as in the token? ─► delete: log, mark, mutate

A repeated run deletes what an interrupted one has left. Every row is logged before it changes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsSingleton
from apache_beam.runners.runner import PipelineResult

from timebeam.schema.layouts import (
    Annotations,
    Finding,
    HourMarks,
    ReadableLayout,
    Row,
    Selection,
    UidTables,
    find_capability,
)
from timebeam.schema.layouts.opentsdb import keys as row_keys
from timebeam.schema.layouts.opentsdb.delete import remove_annotations
from timebeam.schema.layouts.opentsdb.select import look_up_shown
from timebeam.schema.layouts.removal import Deleted, Removal
from timebeam.schema.layouts.writing import Name
from timebeam.schema.points import Series
from timebeam.schema.query.question import Question
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.mutate import mutate_rows
from timebeam.transforms.bigtable.reader import common_range, ranges_between, split_keys
from timebeam.transforms.bigtable.rows import MUTATIONS, WHOLE_TABLE, KeyRange
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.write import data_tables, marked
from timebeam.transforms.readers.table_reader import TableReader, within
from timebeam.transforms.rollup.touched import TouchedMarker

NAMESPACE = "timebeam-delete"
"""The namespace of this job's counters."""

_ROWS_AT_ONCE, _MUTATIONS_AT_ONCE, _BYTES_AT_ONCE = 5_000, 50_000, 4 << 20
_SERIES = 100_000  # whose test of the filters is remembered


class DeleteChunk(NamedTuple):
    """The rows of one selection in a range of keys.

    Attributes:
      number: of the selection in the job.
    """

    number: int
    keys: KeyRange


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteJob:
    """What is deleted.

    Attributes:
      questions: metric, filters and time range of each selection.
      newest_ms: cells with a later timestamp stay.
      checksum: of all cells that the dry run saw; None to delete what there is.
      begun: whether a run with this token has already begun to delete.
      log: how the names of the log's files begin.
      marker: marks changed hours for the next rollup; None if rollups stay.
      points, annotations: whether these are deleted.
      series: whether what refers to series without data rows is deleted too.
    """

    target: Target
    layout: ReadableLayout
    questions: Sequence[Question]
    newest_ms: int
    log: str
    marker: TouchedMarker | None
    checksum: int | None = None
    begun: bool = False
    points: bool = True
    annotations: bool = False
    series: bool = False
    dry_run: bool = False

    @property
    def begun_path(self) -> str:
        """The file that a run writes before it deletes."""
        return f"{self.log}-begun.json"


class DeleteFigures(NamedTuple):
    """What is deleted from one table."""

    rows: int
    cells: int
    points: int
    bytes: int


class DeleteTally(NamedTuple):
    """Result of a deletion, but for the figures of each table.

    Attributes:
      checksum: the sum of those of all cells that a dry run saw.
      changed: 1 if nothing was deleted, since the cells are not those of the dry run.
      unreadable, refused: rows that could not be read, and those that Bigtable refused to change.
    """

    checksum: int
    changed: int
    unreadable: int
    refused: int


COUNTERS = metrics.TallyCounters(NAMESPACE, DeleteTally)


def figures_by_table(result: PipelineResult) -> dict[str, DeleteFigures]:
    """What a finished pipeline has deleted, or would delete, by table."""
    counters = metrics.counted(result, NAMESPACE)
    tables = sorted({name.split("/")[1] for name in counters if "/" in name})
    return {
        table: DeleteFigures._make(counters[f"{field}/{table}"] for field in DeleteFigures._fields)
        for table in tables
    }


def _count_removal(removal: Removal) -> None:
    figures = DeleteFigures(1, len(removal.old), removal.points, removal.bytes)
    for field, by in zip(figures._fields, figures, strict=True):
        Metrics.counter(NAMESPACE, f"{field}/{removal.mutation.table}").inc(by)


class DeletePoints(beam.PTransform):  # type: ignore[type-arg]
    """Deletes the points of a job: a pipeline in, nothing out; the counters tell what was done."""

    def __init__(self, job: DeleteJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> None:
        job = self._job
        chunks = (
            root
            | "Once" >> beam.Create([None], reshuffle=False)
            | "Chunks" >> beam.ParDo(_DeleteChunksFn(job)).with_output_types(DeleteChunk)
            | "SpreadChunks" >> beam.Reshuffle()
        )
        if job.dry_run or (job.checksum is not None and not job.begun):
            sums = chunks | "Scan" >> beam.ParDo(_ScanFn(job)).with_output_types(int)
            if job.dry_run:
                return
            may_delete = sums | "Sum" >> beam.CombineGlobally(sum) | "Compare" >> beam.ParDo(_CompareFn(job))
        else:
            may_delete = root | "Begun" >> beam.Create([True], reshuffle=False)
        chunks | "Delete" >> beam.ParDo(_DeleteFn(job), AsSingleton(may_delete))


class _DeleteChunksFn(beam.DoFn):
    """Anything in; chunks of about the same size out."""

    def __init__(self, job: DeleteJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[DeleteChunk]:
        job = self._job
        table = data_tables(job.layout)[0]
        for number, question in enumerate(job.questions):
            if len(job.questions) > 1 and find_capability(job.layout, UidTables) is None:
                metrics.plan_work(1)
                yield DeleteChunk(number, WHOLE_TABLE)  # its rows are found by the index
                continue
            ranges = _key_ranges(job, question)
            cuts = split_keys(job.target, table, ranges, cut_at=job.layout.cut_at)
            for split in ranges_between(cuts):
                if any(common_range(split, key_range) for key_range in ranges):
                    metrics.plan_work(1)
                    yield DeleteChunk(number, split)


def _key_ranges(job: DeleteJob, question: Question) -> Sequence[KeyRange]:
    """The ranges of data rows that a selection can be in."""
    layout = find_capability(job.layout, UidTables)
    if layout is None:
        return (WHOLE_TABLE,)
    name = Name("metrics", question.metric)
    uids = look_up_shown(layout.options.names, layout.uid_table, [name], TableReader(job.target))
    if name not in uids:
        return ()
    return sorted(row_keys.ranges(layout.options, uids[name], question.start_ms, question.end_ms))


class _ScanFn(beam.DoFn):
    """`DeleteChunk` in; the sum of the checksums of its removals out; a dry run counts them."""

    def __init__(self, job: DeleteJob) -> None:
        self._job = job

    def process(self, chunk: DeleteChunk) -> Iterator[int]:
        total = 0
        for removal, _ in _removals(self._job, chunk):
            total += removal.checksum
            if self._job.dry_run:
                _count_removal(removal)
        if self._job.dry_run:
            COUNTERS.count("checksum", total)
            metrics.work_done()
        yield total


class _CompareFn(beam.DoFn):
    """The sum of all checksums in, whether it is that of the dry run out; a file says that it begins."""

    def __init__(self, job: DeleteJob) -> None:
        self._job = job

    def process(self, checksum: int) -> Iterator[bool]:
        is_same = checksum == self._job.checksum
        if is_same:
            write_begun(self._job)
        else:
            COUNTERS.count("changed")
        yield is_same


def write_begun(job: DeleteJob) -> None:
    """Says in the log that cells are deleted from now on."""
    selections = [
        {"metric": question.metric, "start_ms": question.start_ms, "end_ms": question.end_ms}
        for question in job.questions
    ]
    content = {"checksum": job.checksum, "newest_ms": job.newest_ms, "selections": selections}
    with FileSystems.create(job.begun_path) as file:
        file.write(json.dumps(content).encode() + b"\n")


class _DeleteFn(beam.DoFn):
    """`DeleteChunk` in, nothing out; with whether the cells are those of the dry run."""

    def __init__(self, job: DeleteJob) -> None:
        self._job = job

    def process(self, chunk: DeleteChunk, may_delete: bool) -> None:
        if may_delete:
            pending = _PendingRemovals(self._job)
            for removal, series in _removals(self._job, chunk):
                pending.add(removal, series)
            pending.flush()
        metrics.work_done()


def _removals(job: DeleteJob, chunk: DeleteChunk) -> Iterator[tuple[Removal, Series]]:
    """What is deleted from each row of a chunk; rows that cannot be read are logged and counted."""
    question = job.questions[chunk.number]
    deleted = Deleted(question.start_ms, question.end_ms, job.newest_ms)
    selection = Selection(question.metric, question.tags, question.start_ms, question.end_ms)
    passes = functools.lru_cache(_SERIES)(question.passes)
    annotated = find_capability(job.layout, Annotations) if job.annotations else None
    skips = metrics.SkipLog(COUNTERS)
    for selected in job.layout.select(selection, within(TableReader(job.target), job.layout, chunk.keys)):
        if isinstance(selected, Finding):
            skips.skip("unreadable", f"row {selected.key.hex()} of {selected.table}: {selected.text}")
            continue
        if not passes(selected.series):
            continue
        if annotated is not None:
            base_ms = row_keys.base_s_of(annotated.options, selected.row.key) * 1000
            notes = remove_annotations(selected.row, base_ms, deleted)
            if notes is not None:
                yield notes._replace(points=0), selected.series
        if not job.points:
            continue
        try:
            removal = job.layout.remove(selected, deleted)
        except ValueError as error:
            skips.skip("unreadable", f"row {selected.row.key.hex()} of {selected.row.table}: {error}")
            continue
        if removal is not None:
            yield removal, selected.series


class _PendingRemovals:
    """Removals that are logged and carried out together."""

    def __init__(self, job: DeleteJob) -> None:
        self._job = job
        self._removals: list[tuple[Removal, Series]] = []
        self._mutations = self._bytes = 0

    def add(self, removal: Removal, series: Series) -> None:
        """Adds a removal; carries out those before it if they are many."""
        mutation = removal.mutation
        self._removals.append((removal, series))
        self._mutations += len(mutation.deleted) + len(mutation.cells)
        self._bytes += sum(len(cell.qualifier) for cell in removal.old)
        self._bytes += sum(len(cell.value) for cell in mutation.cells)
        if (
            len(self._removals) >= _ROWS_AT_ONCE
            or self._mutations >= _MUTATIONS_AT_ONCE
            or self._bytes >= _BYTES_AT_ONCE
        ):
            self.flush()

    def flush(self) -> None:
        """Logs, marks and deletes; marks again, since a rollup may have read in between.

        Raises:
          GoogleAPICallError: rows could not be changed; others may have been.
        """
        if not self._removals:
            return
        job = self._job
        with FileSystems.create(f"{job.log}-{uuid.uuid4().hex}.jsonl") as file:
            for removal, series in self._removals:
                file.write(_log_line(removal, series))
        rows = [removal.mutation._replace(cells=removal.old, deleted=()) for removal, _ in self._removals]
        with marked(job.target, job.marker, rows):
            self._mutate()
        self._removals, self._mutations, self._bytes = [], 0, 0

    def _mutate(self) -> None:
        """Changes the rows, and counts them."""
        refused = set[bytes]()
        request, size = list[Row](), 0
        for piece in (piece for removal, _ in self._removals for piece in _pieces(removal.mutation)):
            count = len(piece.deleted) + len(piece.cells)
            if request and (size + count > MUTATIONS or piece.table != request[0].table):
                refused |= self._send(request)
                request, size = [], 0
            request.append(piece)
            size += count
        refused |= self._send(request)
        for removal, _ in self._removals:
            if removal.mutation.key in refused:
                COUNTERS.count("refused")
            else:
                _count_removal(removal)

    def _send(self, rows: Sequence[Row]) -> set[bytes]:
        """Changes rows of one table; returns the keys of those that Bigtable refuses."""
        errors = mutate_rows(self._job.target, rows[0].table, rows)
        return {rows[number].key for number, _ in errors}


def _pieces(mutation: Row) -> Iterator[Row]:
    """A mutation in pieces that a request takes; the new cells are in the first, with what they replace."""
    first = MUTATIONS - len(mutation.cells)
    yield mutation._replace(deleted=mutation.deleted[:first])
    for start in range(first, len(mutation.deleted), MUTATIONS):
        yield mutation._replace(cells=(), deleted=mutation.deleted[start : start + MUTATIONS])


def _log_line(removal: Removal, series: Series) -> bytes:
    """A row of the log: what is deleted from it."""
    mutation = removal.mutation
    line = {
        "table": mutation.table,
        "row": mutation.key.hex(),
        "series": str(series),
        "cells": len(removal.old),
        "rewritten": len(mutation.cells),
        "points": removal.points,
        "bytes": removal.bytes,
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def is_begun(job: DeleteJob) -> bool:
    """Whether a run with the same log has begun to delete."""
    return FileSystems.exists(job.begun_path)


def marker_of(layout: ReadableLayout) -> TouchedMarker | None:
    """What marks the hours that a deletion changes; None if the layout has no such marks."""
    marking = find_capability(layout, HourMarks)
    return None if marking is None else TouchedMarker(marking)
