"""Raw points into rollups, by chunk of the raw table: the large part of the work.

| what | of which intervals | goes |
|---|---|---|
| rollups of single series | those that divide an hour | to the writer, as mutations |
| rollups of groups, where a chunk has all their series | those that divide an hour | the same |
| all others | | as accumulators, to where those of a row meet |

A row of points has all points of an interval that divides an hour, so that nothing is left to add to it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput

from schema.layouts import SeriesKey
from schema.layouts.opentsdb.keys import row_key
from schema.points import Rejected
from schema.rollup.buckets import Buckets
from schema.rollup.pieces import packed_rows
from schema.rollup.plan import IntervalPlan
from transforms import metrics
from transforms.bigtable.reader import TableReader
from transforms.bigtable.remember import RememberingReader
from transforms.bigtable.splits import WHOLE
from transforms.bigtable.wire import EncodedRow
from transforms.chunks import Chunk, hour_chunks
from transforms.rejected import REJECTED, refuse
from transforms.rollup.in_place import HeldGroups, TableInPlace
from transforms.rollup.job import SINGLE, RollupJob, RollupRowKey, encode
from transforms.rollup.names import Names
from transforms.rollup.reading import Accumulator, read_chunk
from transforms.series_keys import SeriesKeys

Piece = tuple[str, bytes]
"""(aggregator of the group, or SINGLE, and the packed accumulators)."""

PIECES: Final = "pieces"
"""The output of accumulators that have to meet others."""

SHARED: Final = "shared"
"""The output of chunks whose rows a shuffle puts together."""


class Shared(NamedTuple):
    """A metric, and a range of time, of which several chunks have points of the same rows.

    Attributes:
      is_cut: an hour whose chunks have some of the series each; else what is longer than an hour.
    """

    metric: str
    uid: bytes
    start_s: int
    end_s: int
    is_cut: bool


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
        wanted = {
            metric: uid for metric, uid in found.items() if job.is_single(metric) or job.is_grouped(metric)
        }
        start_s, end_s = job.plan.start_ms // 1000, -(-job.plan.end_ms // 1000)
        for metric, uid in wanted.items():
            yield TaggedOutput(SHARED, Shared(metric, uid, start_s, end_s, is_cut=False))
        before: Chunk | None = None
        for chunk in hour_chunks(job.target, job.layout, wanted, start_s, end_s):
            yield chunk
            is_next = before is None or (before.uid, before.start_s) != (chunk.uid, chunk.start_s)
            if chunk.keys != WHOLE and is_next:
                shared = Shared(chunk.metric or "", chunk.uid, chunk.start_s, chunk.end_s, is_cut=True)
                yield TaggedOutput(SHARED, shared)
            before = chunk


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
        self._keys.open()

    def start_bundle(self) -> None:
        """Remembers names for as long as a bundle takes: metrics have many tags in common."""
        self._reader = RememberingReader(TableReader(self._job.target), self._job.layout.uid_table)

    def process(self, chunk: Chunk) -> Iterator[Any]:
        """See the class."""
        assert self._reader is not None
        work = _ChunkWork(self._job, self._keys, chunk)
        held = Accumulator(self._job.plan)
        for batch in read_chunk(self._job.layout, self._reader, self._job.plan, chunk):
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            metrics.count("points_packed", len(batch))
            held.add(batch)
            if held.is_full:
                yield from work.take(held)
        yield from work.take(held)
        yield from work.end()


class _ChunkWork:
    """What becomes of the accumulators of one chunk."""

    def __init__(self, job: RollupJob, keys: SeriesKeys, chunk: Chunk) -> None:
        self._job, self._names = job, Names(job, keys)
        metric = chunk.metric or ""
        self._is_single, self._is_grouped = job.is_single(metric), job.is_grouped(metric)
        self._singles: dict[str, TableInPlace] = {}
        self._groups: dict[str, TableInPlace] = {}
        self._held: dict[str, HeldGroups] = {}  # by interval
        for plan in job.plan.intervals:
            interval = plan.interval
            if self._is_single and job.single_in_place(interval):
                self._singles[interval.interval] = TableInPlace(job, plan, interval.table, chunk)
            if self._is_grouped and job.groups_in_place(interval) and chunk.keys == WHOLE:
                table = interval.pre_aggregation_table
                self._groups[interval.interval] = TableInPlace(job, plan, table, chunk)

    def take(self, held: Accumulator) -> Iterator[Any]:
        """What can go out of the accumulators of some rows."""
        for buckets, plan in zip(held.take(), self._job.plan.intervals, strict=False):
            if self._is_single and not plan.interval.is_default:
                yield from self._single(buckets, plan)
            if self._is_grouped:
                for grouping in self._names.groupings(buckets):
                    of_groups = buckets.of_groups(grouping)
                    if plan.interval.interval in self._groups:
                        self._held.setdefault(plan.interval.interval, HeldGroups()).add(of_groups)
                    else:
                        yield from self._of_groups(of_groups, plan)

    def end(self) -> Iterator[Any]:
        """What goes out when all rows of the chunk have been read."""
        plans = {plan.interval.interval: plan for plan in self._job.plan.intervals}
        for interval, held in self._held.items():
            yield from self._of_groups(held.take(), plans[interval])
        for table in (*self._singles.values(), *self._groups.values()):
            yield from table.left()

    def _single(self, buckets: Buckets, plan: IntervalPlan) -> Iterator[Any]:
        """The rollups of single series."""
        interval = plan.interval
        keys, refused = self._names.single(buckets)
        yield from map(refuse, refused)
        table = self._singles.get(interval.interval)
        if table is None:
            yield from _pieces(buckets, keys, interval.table, SINGLE, plan)
        else:
            yield from table.rows(buckets, keys, functools.partial(encode, self._job, interval, SINGLE))

    def _of_groups(self, of_groups: Buckets, plan: IntervalPlan) -> Iterator[Any]:
        """The rollups of groups."""
        interval = plan.interval
        table = self._groups.get(interval.interval)
        for aggregator in self._names.aggregators(of_groups.series):
            keys, refused = self._names.of_groups(of_groups.series, aggregator)
            yield from map(refuse, refused)
            if table is None:
                yield from _pieces(of_groups, keys, interval.pre_aggregation_table, aggregator, plan)
            else:
                encoding = functools.partial(encode, self._job, interval, aggregator)
                yield from table.rows(of_groups, keys, encoding)


def _pieces(
    buckets: Buckets, keys: Sequence[SeriesKey | None], table: str, aggregator: str, plan: IntervalPlan
) -> Iterator[TaggedOutput[Any, tuple[RollupRowKey, Piece]]]:
    """Pieces of those series, or groups, that have a key."""
    for number, base_s, packed in packed_rows(buckets, plan.interval, hours=plan.interval.is_default):
        key = keys[number]
        if key is not None:
            yield TaggedOutput(PIECES, ((table, row_key(key, base_s)), (aggregator, packed)))
