"""Accumulates raw points by chunk of the raw table.

| accumulators of | go |
|---|---|
| intervals that divide an hour, of single series: a row has all their points | to the writer, as mutations |
| intervals, of series or groups, whose points are all in the chunk | the same, at the end of the chunk |
| other intervals | to the shuffle, as accumulators |

Only intervals that span several chunks are shuffled: long intervals and groups of large metrics.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput

from timebeam.schema.core.reading import Reader
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.writing import SeriesKey
from timebeam.schema.rollup.accumulate import Accumulated, Accumulator
from timebeam.schema.rollup.accumulators import Buckets, row_fragments
from timebeam.schema.rollup.config import RollupInterval
from timebeam.schema.rollup.day_plan import RollupPlan
from timebeam.schema.stores.opentsdb.keys import SPAN_S, row_key
from timebeam.transforms.bigtable.reader import sampled
from timebeam.transforms.dead_letters.rejected import refuse
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.buffered import windowed
from timebeam.transforms.ingest.assign import SeriesKeys
from timebeam.transforms.read.chunks import Chunk, hour_chunks
from timebeam.transforms.read.table_reader import RememberingReader, TableReader, within
from timebeam.transforms.rollup.chunk_points import NumberedChunk, NumberReader, give_back_memory, read_period
from timebeam.transforms.rollup.rollup_cells import TableInPlace, encode
from timebeam.transforms.rollup.rollup_job import (
    SINGLE,
    OutputTable,
    RollupJob,
    RollupRowKey,
    RollupSeriesKeys,
)

_TABLES_AT_ONCE = 2  # of existing cells that are read

PackedGroup = tuple[str, bytes]
"""(aggregator of the group, or SINGLE, and the packed accumulators)."""

PIECES: Final = "pieces"
"""The output of accumulators that a shuffle merges."""

SHARED: Final = "shared"
"""The output of intervals that several chunks share."""


class SharedIntervals(NamedTuple):
    """Intervals of some metrics that lie in several chunks.

    Attributes:
      metric: one of them; all have the same aggregators.
      interval: which of the configuration's, as 1d.
      table: their table, without prefix.
      start_s, end_s: those that start in [start_s, end_s).
    """

    uids: tuple[bytes, ...]
    metric: str
    interval: str
    table: str
    start_s: int
    end_s: int


def typed(outputs: Any, tag: str) -> PCollection[Any]:
    """An output of one of these steps, with its element type, which Beam does not infer."""
    collection: PCollection[Any] = outputs[tag]
    collection.element_type = {PIECES: tuple[RollupRowKey, PackedGroup], SHARED: SharedIntervals}[tag]
    return collection


class ChunksFn(beam.DoFn):
    """Anything in; the chunks of all metrics that are rolled up out, and `SharedIntervals` to `SHARED`."""

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[NumberedChunk | TaggedOutput[Any, SharedIntervals]]:
        job = self._job
        metric_uids = job.layout.metric_uids(TableReader(job.target))
        rolled_up = {metric: uid for metric, uid in metric_uids.items() if any(job.kind(metric))}
        samples = sampled(job.target, job.layout.data_table)
        for number, part in enumerate(job.parts):
            start_s, end_s = part.plan.start_ms // 1000, -(-part.plan.end_ms // 1000)
            chunks = hour_chunks(samples, job.layout, part.only(rolled_up), start_s, end_s, job.kind)
            for _, group in itertools.groupby(chunks, key=lambda chunk: chunk.uids):
                metric_chunks = list(group)
                yield from metrics.planned([NumberedChunk(number, chunk) for chunk in metric_chunks])
                for shared in shared_intervals(job, part.plan, metric_chunks):
                    yield TaggedOutput(SHARED, shared)


def shared_intervals(
    job: RollupJob, rollup_plan: RollupPlan, chunks: Sequence[Chunk]
) -> list[SharedIntervals]:
    """The intervals of metrics that no chunk writes alone; `chunks` are all chunks of these metrics."""
    uids, metric = chunks[0].uids, chunks[0].metrics[0]
    shared: dict[SharedIntervals, None] = {}  # without duplicates, if series and groups share a table
    for plan in rollup_plan.intervals:
        for output in job.tables(plan.interval, metric):
            between = functools.partial(SharedIntervals, uids, metric, plan.interval.interval, output.table)
            reached_s = plan.start_s
            for start_s, end_s in sorted(
                (in_place.start_s, in_place.end_s)
                for in_place in (job.in_place(plan, output, chunk) for chunk in chunks)
                if not in_place.is_empty
            ):
                if reached_s < start_s:
                    shared[between(reached_s, start_s)] = None
                reached_s = max(reached_s, end_s)
            if reached_s < plan.end_s:
                shared[between(reached_s, plan.end_s)] = None
    return list(shared)


class AccumulateFn(beam.DoFn):
    """`NumberedChunk` in; `EncodedRow` out, ((table, row key), `PackedGroup`) to `PIECES`, and refusals.

    The accumulators of a chunk are merged first, so that each group has few elements for each chunk. Points
    and existing cells of a chunk are read while the chunk before it is accumulated and written.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job
        self._keys = SeriesKeys(job.target, job.layout, job.uids, dry_run=job.dry_run)
        self._reader: RememberingReader | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._begun: _ChunkWork | None = None

    def setup(self) -> None:
        """Opens the UID table."""
        give_back_memory()
        self._keys.open()
        self._pool = ThreadPoolExecutor(_TABLES_AT_ONCE, "timebeam-existing")

    def teardown(self) -> None:
        """Ends the threads that read."""
        self._stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        """Starts a cache of names for the bundle: metrics have many tags in common."""
        self._stop()  # a bundle that failed may still read
        self._reader = RememberingReader(TableReader(self._job.target), self._job.layout.uid_table)

    def process(self, numbered: NumberedChunk) -> Iterator[Any]:
        assert self._pool is not None
        assert self._reader is not None
        plan, names = self._job.parts[numbered.part].plan, RollupSeriesKeys(self._job, self._keys)
        work = _ChunkWork(self._job, plan, names, numbered.chunk, self._reader, self._pool)
        begun, self._begun = self._begun, work
        if begun is not None:
            yield from begun.output()

    def finish_bundle(self) -> Iterator[Any]:
        """The output of the last chunk."""
        begun, self._begun = self._begun, None
        if begun is not None:
            yield from windowed(begun.output())

    def _stop(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.stop()


class _ChunkWork:
    """Starts to read a chunk, whose metrics are of one kind (`RollupJob.kind`), and makes its output."""

    def __init__(
        self,
        job: RollupJob,
        rollup_plan: RollupPlan,
        names: RollupSeriesKeys,
        chunk: Chunk,
        reader: Reader,
        pool: Executor,
    ) -> None:
        self._job, self._names, self._metric = job, names, chunk.metrics[0]
        self._in_place: dict[tuple[str, bool], TableInPlace] = {}  # by interval, and whether it is of groups
        self._outputs = [
            (plan, output)
            for plan in rollup_plan.intervals
            for output in job.tables(plan.interval, self._metric)
        ]
        for plan, output in self._outputs:
            in_place = job.in_place(plan, output, chunk)
            if not in_place.is_empty:
                table = TableInPlace(job, in_place, output.table, chunk, reader, pool)
                self._in_place[plan.interval.interval, output.of_groups] = table
        start_ms, end_ms = period = read_period(rollup_plan, chunk)
        chunk_reader = within(reader, job.layout, chunk.keys)
        select = functools.partial(job.layout.select_metrics, chunk.uids, start_ms, end_ms - 1, chunk_reader)
        self._points = NumberReader(job.layout, lambda: names.noted(select()), period)

    def output(self) -> Iterator[Any]:
        """See `AccumulateFn`."""
        lengths = {plan.interval.seconds for plan, _ in self._outputs}
        accumulator = Accumulator(lengths, ends=self._job.config.has_ends)
        for batch in self._points:
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            metrics.count("points_packed", len(batch))
            accumulator.add(batch)
            if accumulator.is_full:
                yield from self._take(accumulator)
        yield from self._take(accumulator)
        yield from self._end()
        metrics.work_done()

    def stop(self) -> None:
        """Ends reading."""
        self._points.stop()

    def _take(self, accumulator: Accumulator) -> Iterator[Any]:
        """The output of the accumulators of some rows."""
        accumulated = accumulator.take()
        if accumulated is None:
            return
        if self._job.is_single(self._metric):
            yield from self._by_interval(accumulated, of_groups=False)
        for grouping in self._names.groupings(accumulated.series):
            yield from self._by_interval(accumulated.of_groups(grouping), of_groups=True)

    def _end(self) -> Iterator[Any]:
        """The output at the end of the chunk."""
        for plan, output in self._outputs:
            table = self._in_place.get((plan.interval.interval, output.of_groups))
            if table is None:
                continue
            merged = table.merged()
            if merged is not None:
                yield from self._out(merged, plan.interval, output, table)
            yield from table.unwritten()

    def _by_interval(self, accumulated: Accumulated, *, of_groups: bool) -> Iterator[Any]:
        """The output of the accumulators of series, or of groups."""
        by_length = accumulated.by_length()
        for plan, output in self._outputs:
            if output.of_groups == of_groups:
                buckets = by_length[plan.interval.seconds].within(plan.start_s * 1000, plan.end_s * 1000)
                yield from self._ready(buckets, plan.interval, output)

    def _ready(self, buckets: Buckets, interval: RollupInterval, output: OutputTable) -> Iterator[Any]:
        """Writes complete accumulators, keeps those that the chunk completes, shuffles others."""
        table = self._in_place.get((interval.interval, output.of_groups))
        if table is not None:
            in_place, buckets = table.split(buckets)
            if output.of_groups or SPAN_S % interval.seconds:
                table.hold(in_place)
            else:
                yield from self._out(in_place, interval, output, table)
        if len(buckets):
            yield from self._out(buckets, interval, output, None)

    def _out(
        self, buckets: Buckets, interval: RollupInterval, output: OutputTable, table: TableInPlace | None
    ) -> Iterator[Any]:
        """Accumulators as mutations, or packed for the shuffle."""
        aggregators = self._names.aggregators(buckets.series) if output.of_groups else [SINGLE]
        for aggregator in aggregators:
            if output.of_groups:
                keys, refused = self._names.of_groups(buckets.series, aggregator)
            else:
                keys, refused = self._names.single(buckets.series)
            yield from map(refuse, refused)
            if table is None:
                yield from _packed_groups(buckets, keys, interval, output.table, aggregator)
            else:
                encoding = functools.partial(encode, self._job, interval, aggregator)
                yield from table.rows(buckets, keys, encoding)


def _packed_groups(
    buckets: Buckets,
    keys: Sequence[SeriesKey | None],
    interval: RollupInterval,
    table: str,
    aggregator: str,
) -> Iterator[TaggedOutput[Any, tuple[RollupRowKey, PackedGroup]]]:
    """The packed accumulators of the series, or groups, that have a key."""
    for number, base_s, packed in row_fragments(buckets, interval):
        key = keys[number]
        if key is not None:
            yield TaggedOutput(PIECES, ((table, row_key(key, base_s)), (aggregator, packed)))
