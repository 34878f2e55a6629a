"""Raw points into rollups, by chunk of the raw table: the large part of the work.

| what | goes |
|---|---|
| intervals that divide an hour, of single series: a row has all their points | to the writer, as mutations |
| intervals, of series or groups, that the chunk has all points of | the same, when the chunk has been read |
| others | as accumulators, to where those of a row meet |

So nothing is shuffled but what lies in several chunks: long intervals, and groups, of metrics that are cut.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput

from schema.layouts import SeriesKey
from schema.layouts.opentsdb.keys import SPAN_S, row_key
from schema.points import PointBatch, Rejected
from schema.rollup.accumulator import Accumulated, Accumulator
from schema.rollup.buckets import Buckets
from schema.rollup.config import RollupInterval
from schema.rollup.pieces import packed_rows
from transforms import metrics
from transforms.bigtable.reader import TableReader
from transforms.bigtable.remember import RememberingReader
from transforms.bigtable.splits import within
from transforms.bigtable.wire import EncodedRow
from transforms.chunks import Chunk, hour_chunks
from transforms.memory import give_back_memory
from transforms.rejected import REJECTED, refuse
from transforms.rollup.in_place import TableInPlace
from transforms.rollup.job import SINGLE, Output, RollupJob, RollupRowKey, encode
from transforms.rollup.names import Names
from transforms.rollup.reading import read_numbers, span_of
from transforms.series_keys import SeriesKeys

Piece = tuple[str, bytes]
"""(aggregator of the group, or SINGLE, and the packed accumulators)."""

PIECES: Final = "pieces"
"""The output of accumulators that have to meet others."""

SHARED: Final = "shared"
"""The output of chunks whose rows a shuffle puts together."""


class Shared(NamedTuple):
    """Intervals of some metrics that lie in several chunks.

    Attributes:
      interval: which of the configuration's, as 1d.
      table: that they go to, without prefix.
      start_s, end_s: those that start in [start_s, end_s).
    """

    uids: tuple[bytes, ...]
    interval: str
    table: str
    start_s: int
    end_s: int


def chunking(fn: beam.DoFn, *side_inputs: Any) -> Any:
    """A ParDo with the outputs `main`, of chunks, and `SHARED`."""
    step = beam.ParDo(fn, *side_inputs).with_output_types(Chunk)
    return step.with_outputs(SHARED, main="main")


def accumulating(fn: beam.DoFn, *side_inputs: Any) -> Any:
    """A ParDo with the outputs `main`, of mutations, `PIECES` and `REJECTED`."""
    step = beam.ParDo(fn, *side_inputs).with_output_types(EncodedRow)
    return step.with_outputs(PIECES, REJECTED, main="main")


def typed(outputs: Any, tag: str) -> PCollection[Any]:
    """An output of one of these, with its type, which Beam does not find out."""
    found: PCollection[Any] = outputs[tag]
    found.element_type = {PIECES: tuple[RollupRowKey, Piece], SHARED: Shared}[tag]
    return found


class ChunksFn(beam.DoFn):
    """Anything in; the chunks of all metrics that are rolled up out, and `Shared` to `SHARED`."""

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Chunk | TaggedOutput[Any, Shared]]:
        """See the class."""
        job = self._job
        found = job.metric_uids(TableReader(job.target))
        wanted = {metric: uid for metric, uid in found.items() if any(job.kind(metric))}
        start_s, end_s = job.plan.start_ms // 1000, -(-job.plan.end_ms // 1000)
        found_chunks = hour_chunks(job.target, job.layout, wanted, start_s, end_s, job.kind)
        for _, of_metrics in itertools.groupby(found_chunks, key=lambda chunk: chunk.uids):
            some = list(of_metrics)
            yield from some
            for shared in shared_of(job, some):
                yield TaggedOutput(SHARED, shared)


def shared_of(job: RollupJob, chunks: Sequence[Chunk]) -> list[Shared]:
    """The intervals of metrics, whose chunks are all of these, that no chunk writes alone."""
    uids = chunks[0].uids
    found: dict[Shared, None] = {}  # once, where series and groups have one table
    for plan in job.plan.intervals:
        for output in job.tables(plan.interval, chunks[0].metrics[0]):
            at = plan.start_s
            for alone in sorted(
                (one.start_s, one.end_s)
                for one in (job.in_place(plan, output, chunk) for chunk in chunks)
                if not one.is_empty
            ):
                if at < alone[0]:
                    found[Shared(uids, plan.interval.interval, output.table, at, alone[0])] = None
                at = max(at, alone[1])
            if at < plan.end_s:
                found[Shared(uids, plan.interval.interval, output.table, at, plan.end_s)] = None
    return list(found)


class AccumulateFn(beam.DoFn):
    """`Chunk` in; `EncodedRow` out, ((table, row key), `Piece`) to `PIECES`, and refusals.

    The accumulators of a chunk are merged before they go out, so that a group of many series, too,
    is few pieces for each chunk.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job
        self._keys = SeriesKeys(job.target, job.layout, job.uids, dry_run=job.dry_run)
        self._reader: RememberingReader | None = None

    def setup(self) -> None:
        """Opens the UID table."""
        give_back_memory()
        self._keys.open()

    def start_bundle(self) -> None:
        """Remembers names for as long as a bundle takes: metrics have many tags in common."""
        self._reader = RememberingReader(TableReader(self._job.target), self._job.layout.uid_table)

    def process(self, chunk: Chunk) -> Iterator[Any]:
        """See the class."""
        work = _ChunkWork(self._job, self._keys, chunk)
        held = work.accumulator()
        for batch in self._read(chunk):
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            metrics.count("points_packed", len(batch))
            held.add(batch)
            if held.is_full:
                yield from work.take(held)
        yield from work.take(held)
        yield from work.end()

    def _read(self, chunk: Chunk) -> Iterator[PointBatch | Rejected]:
        assert self._reader is not None
        layout, span = self._job.layout, span_of(self._job.plan, chunk)
        own = within(self._reader, layout, chunk.keys)
        last_ms = span.end_ms - 1
        select = functools.partial(layout.select_metrics, chunk.uids, span.start_ms, last_ms, own)
        return read_numbers(layout, select, span)


class _ChunkWork:
    """What becomes of the accumulators of one chunk, whose metrics are of one kind (`RollupJob.kind`)."""

    def __init__(self, job: RollupJob, keys: SeriesKeys, chunk: Chunk) -> None:
        self._job, self._names, self._metric = job, Names(job, keys), chunk.metrics[0]
        self._in_place: dict[tuple[str, bool], TableInPlace] = {}  # by interval, and whether it is of groups
        self._outputs = [
            (plan, output)
            for plan in job.plan.intervals
            for output in job.tables(plan.interval, self._metric)
        ]
        for plan, output in self._outputs:
            own = job.in_place(plan, output, chunk)
            if not own.is_empty:
                table = TableInPlace(job, own, output.table, chunk)
                self._in_place[plan.interval.interval, output.of_groups] = table

    def accumulator(self) -> Accumulator:
        """Of the intervals that something is written of."""
        lengths = {plan.interval.seconds for plan, _ in self._outputs}
        return Accumulator(lengths, ends=self._job.config.has_ends)

    def take(self, held: Accumulator) -> Iterator[Any]:
        """What can go out of the accumulators of some rows."""
        found = held.take()
        if found is None:
            return
        if self._job.is_single(self._metric):
            yield from self._each(found, of_groups=False)
        for grouping in self._names.groupings(found.series):
            yield from self._each(found.of_groups(grouping), of_groups=True)

    def end(self) -> Iterator[Any]:
        """What goes out when all rows of the chunk have been read."""
        for plan, output in self._outputs:
            table = self._in_place.get((plan.interval.interval, output.of_groups))
            if table is None:
                continue
            held = table.held()
            if held is not None:
                yield from self._out(held, plan.interval, output, table)
            yield from table.left()

    def _each(self, found: Accumulated, *, of_groups: bool) -> Iterator[Any]:
        """What can go out of the accumulators of series, or of groups."""
        by_length = found.by_length()
        for plan, output in self._outputs:
            if output.of_groups == of_groups:
                buckets = by_length[plan.interval.seconds].within(plan.start_s * 1000, plan.end_s * 1000)
                yield from self._taken(buckets, plan.interval, output)

    def _taken(self, buckets: Buckets, interval: RollupInterval, output: Output) -> Iterator[Any]:
        """What goes out now of accumulators of series, or of groups; the rest is held, or shared."""
        table = self._in_place.get((interval.interval, output.of_groups))
        if table is not None:
            own, buckets = table.parted(buckets)
            if output.of_groups or SPAN_S % interval.seconds:
                table.hold(own)
            else:
                yield from self._out(own, interval, output, table)
        if len(buckets):
            yield from self._out(buckets, interval, output, None)

    def _out(
        self, buckets: Buckets, interval: RollupInterval, output: Output, table: TableInPlace | None
    ) -> Iterator[Any]:
        """Accumulators as mutations, or as pieces."""
        aggregators = self._names.aggregators(buckets.series) if output.of_groups else [SINGLE]
        for aggregator in aggregators:
            if output.of_groups:
                keys, refused = self._names.of_groups(buckets.series, aggregator)
            else:
                keys, refused = self._names.single(buckets)
            yield from map(refuse, refused)
            if table is None:
                yield from _pieces(buckets, keys, interval, output.table, aggregator)
            else:
                encoding = functools.partial(encode, self._job, interval, aggregator)
                yield from table.rows(buckets, keys, encoding)


def _pieces(
    buckets: Buckets,
    keys: Sequence[SeriesKey | None],
    interval: RollupInterval,
    table: str,
    aggregator: str,
) -> Iterator[TaggedOutput[Any, tuple[RollupRowKey, Piece]]]:
    """Pieces of those series, or groups, that have a key."""
    for number, base_s, packed in packed_rows(buckets, interval, hours=interval.is_default):
        key = keys[number]
        if key is not None:
            yield TaggedOutput(PIECES, ((table, row_key(key, base_s)), (aggregator, packed)))
