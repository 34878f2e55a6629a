"""Compacts rows of closed hours: reads them by metric and hours, rewrites each in one mutation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.schema.archive.archive_rows import SPANS_S, archive_key
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import Cell, Row, RowMutation, stored_bytes
from timebeam.schema.stores.opentsdb import select
from timebeam.schema.stores.opentsdb.columns.rewrite_row import compact_row
from timebeam.schema.stores.opentsdb.keys import SPAN_S, parse_key
from timebeam.schema.stores.opentsdb.select import Wanted
from timebeam.transforms.bigtable.beam_steps import REQUESTS, RowWriter
from timebeam.transforms.bigtable.read_ranges import sampled
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import mutate_rows
from timebeam.transforms.care.range_leases import Leases, RangeLease
from timebeam.transforms.dead_letters.letter import over_limit
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.row_mutations import refused_write
from timebeam.transforms.read.chunks import Chunk, hour_chunks, spread_chunks
from timebeam.transforms.read.table_reader import ParallelReader, TableReader, within

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

NAMESPACE = "timebeam-compact"
"""The namespace of this job's counters."""


class CompactTally(NamedTuple):
    """Result of a compaction: rows read, rewritten and rejected; cells and bytes of all rows read."""

    rows_read: int
    rows_rewritten: int
    rows_rejected: int
    cells_before: int
    cells_after: int
    bytes_before: int
    bytes_after: int


COUNTERS = metrics.TallyCounters(NAMESPACE, CompactTally)


@dataclasses.dataclass(frozen=True, slots=True)
class CompactJob:
    """Which rows are compacted, and how.

    Attributes:
      start_s, end_s: rows whose hours lie in [start_s, end_s), both whole hours, in seconds.
      form, settled_ms: see `compact_row`.
      leases: of this run.
      dry_run: count, and write nothing.
    """

    target: Target
    layout: OpenTsdb
    start_s: int
    end_s: int
    form: Packing
    settled_ms: int
    leases: Leases
    dry_run: bool = False


class CompactRows(beam.PTransform):  # type: ignore[type-arg]
    """Compacts the rows of a job: a pipeline in, `Rejected` mutations out."""

    def __init__(self, job: CompactJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> PCollection[Rejected]:
        job = self._job
        return (
            spread_chunks(root, "Chunks", functools.partial(_chunks, job), Chunk)
            | "Compact" >> beam.ParDo(_CompactFn(job)).with_output_types(Rejected)
            | "Tell" >> beam.ParDo(_TellFn())
        )


def _chunks(job: CompactJob) -> Iterator[Chunk]:
    """The chunks of all metrics."""
    metric_uids = job.layout.metric_uids(TableReader(job.target))
    samples = sampled(job.target, job.layout.data_table)
    return hour_chunks(samples, job.layout, metric_uids, job.start_s, job.end_s)


class _CompactFn(beam.DoFn):
    """`Chunk` in; compacts its rows; the rejected mutations out."""

    def __init__(self, job: CompactJob) -> None:
        self._job = job
        self._pool: ThreadPoolExecutor | None = None

    def setup(self) -> None:
        """Starts the threads that write."""
        self._pool = ThreadPoolExecutor(REQUESTS)

    def teardown(self) -> None:
        """Ends them."""
        if self._pool is not None:
            self._pool.shutdown()

    def process(self, chunk: Chunk) -> Iterator[Rejected]:
        job = self._job
        if job.dry_run:
            yield from filter(None, map(over_limit, self._mutations(chunk)))
        else:
            with job.leases.lease(chunk.uids, chunk.start_s, chunk.end_s) as lease:
                yield from self._write(chunk, lease)
        metrics.work_done()

    def _write(self, chunk: Chunk, lease: RangeLease) -> Iterator[Rejected]:
        """Compacts the rows of a chunk; the rejected mutations."""

        def send(table: str, rows: list[RowMutation]) -> list[tuple[int, Exception]]:
            return mutate_rows(self._job.target, table, rows, lease.check)

        assert self._pool is not None
        writer = RowWriter(send, self._pool)
        try:
            for mutation in self._mutations(chunk):
                too_large = over_limit(mutation)
                if too_large is not None:
                    yield too_large
                    continue
                metrics.count("rows_written")
                yield from itertools.starmap(refused_write, writer.add(mutation))
            yield from itertools.starmap(refused_write, writer.finish())
        finally:
            writer.settle()

    def _mutations(self, chunk: Chunk) -> Iterator[Row]:
        """What compacts the rows of a chunk; counts all rows."""
        job = self._job
        options = job.layout.options
        wanted, bases_s = Wanted(chunk.uids), range(chunk.start_s, chunk.end_s, SPAN_S)
        scan = select.scan(options, job.layout.data_table, wanted, bases_s, job.layout.leading)
        archived = _archive_keys(job, chunk)
        for row in within(ParallelReader(job.target), job.layout, chunk.keys).scan(scan):
            if not _is_within(job, row, chunk):
                continue
            is_archived = archived and _is_archived(job, row.key, archived)
            mutation = None if is_archived else compact_row(row, job.form, job.settled_ms)
            _count(row, mutation)
            if mutation is not None:
                yield mutation


def _archive_keys(job: CompactJob, chunk: Chunk) -> set[bytes]:
    """The keys of the archive rows of a chunk.

    Their data rows are not compacted: an old value in one of them would get the arrival of the newest point,
    and win over a correction that is in the archive.
    """
    archive = job.layout.archive_view
    if not archive.is_used:
        return set()
    period_ms = chunk.start_s * 1000, chunk.end_s * 1000 - 1
    scan = archive.archive_scan(Wanted(chunk.uids), period_ms, keys_only=True)
    return {row.key for row in TableReader(job.target).scan(scan)}


def _is_archived(job: CompactJob, key: bytes, archived: set[bytes]) -> bool:
    """Whether the hour of a data row is in one of these archive rows."""
    row = job.layout.archive_view.data_row(key)
    return any(archive_key(row.series, row.start_ms // 1000, code) in archived for code in SPANS_S)


def _is_within(job: CompactJob, row: Row, chunk: Chunk) -> bool:
    """Whether the key of a row is a key of one of the hours."""
    try:
        base_s = parse_key(job.layout.options, row.key).base_s
    except ValueError:
        return False
    return chunk.start_s <= base_s < chunk.end_s and base_s % SPAN_S == 0


def _count(row: Row, mutation: Row | None) -> None:
    """Counts a row, before and after its mutation."""
    cells, size = len(row.cells), _bytes(row.key, row.cells)
    COUNTERS.count("rows_read")
    COUNTERS.count("cells_before", cells)
    COUNTERS.count("bytes_before", size)
    if mutation is not None:
        COUNTERS.count("rows_rewritten")
        changed = {(cell.family, cell.qualifier) for cell in mutation.cells}
        changed |= {(deletion.family, deletion.qualifier) for deletion in mutation.deleted}
        replaced = [cell for cell in row.cells if (cell.family, cell.qualifier) in changed]
        cells += len(mutation.cells) - len(replaced)
        size += _bytes(row.key, mutation.cells) - _bytes(row.key, replaced)
    COUNTERS.count("cells_after", cells)
    COUNTERS.count("bytes_after", size)


def _bytes(key: bytes, cells: Sequence[Cell]) -> int:
    return sum(stored_bytes(key, cell) for cell in cells)


class _TellFn(beam.DoFn):
    """Counts rejected mutations, logs the first ones, and passes all on."""

    def start_bundle(self) -> None:
        """Starts a new log."""
        self._skips = metrics.SkipLog(COUNTERS)

    def process(self, rejected: Rejected) -> Iterator[Rejected]:
        metrics.count_rejected(rejected)
        self._skips.skip("rows_rejected", f"a row is not compacted: {rejected.message}")
        yield rejected
