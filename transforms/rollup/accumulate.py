"""Raw points into accumulators, by row of the rollup tables: the large part of the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
import numpy as np

from schema.layouts import Finding, Selection
from schema.layouts.opentsdb.keys import row_key
from schema.points import PointBatch, Reason, RefusedError, Rejected, Series, Stage, join
from schema.rollup.accumulate import accumulate, aggregatable
from schema.rollup.buckets import Buckets, merge
from schema.rollup.pieces import packed_rows
from schema.rollup.plan import IntervalPlan, Plan
from transforms import metrics
from transforms.bigtable.limits import refused_row
from transforms.bigtable.reader import TableReader
from transforms.rejected import RejectedOutput, refuse
from transforms.rollup.job import SINGLE, RollupJob, RollupRowKey
from transforms.series_keys import SeriesKeys

BATCH_POINTS = 500_000
CHUNK_HOURS = 6

Piece = tuple[str, bytes]
"""(aggregator of the group, or SINGLE, and the packed accumulators)."""


class Chunk(NamedTuple):
    """The points of one metric in [start_s, end_s), whole hours."""

    metric: str
    start_s: int
    end_s: int


class ChunksFn(beam.DoFn):
    """Anything in; the chunks of all metrics that are rolled up out."""

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Chunk]:
        """See the class."""
        plan, config = self._job.plan, self._job.config
        step = CHUNK_HOURS * 3600
        start, end = plan.start_ms // 1000, -(-plan.end_ms // 1000)
        for metric in self._job.metric_uids(TableReader(self._job.target)):
            if config.takes(Series(metric, ())) or any(
                one.group(Series(metric, tuple((key, "") for key in one.keep)))
                for one in config.pre_aggregates
            ):
                for at in range(start - start % step, end, step):
                    yield Chunk(metric, max(at, start), min(at + step, end))


class AccumulateFn(beam.DoFn):
    """`Chunk` in; ((table, row key), (aggregator, packed accumulators)) out, what is refused to `REJECTED`.

    The accumulators of a chunk are merged before they go out, so that a group of many series, too,
    is one piece for each chunk.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job
        self._keys = SeriesKeys(job.target, job.layout, job.uids, dry_run=job.dry_run)

    def setup(self) -> None:
        """Opens the UID table."""
        self._keys.open()

    def process(self, chunk: Chunk) -> Iterator[tuple[RollupRowKey, Piece] | RejectedOutput]:
        """See the class."""
        lengths = sorted({one.interval.seconds for one in self._job.plan.intervals if one.source is None})
        parts: dict[int, list[Buckets]] = {length: [] for length in lengths}
        for batch in self._batches(chunk):
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            good, rejected = aggregatable(batch)
            for one in rejected:
                yield refuse(one)
            metrics.count("points_packed", len(good))
            for length in lengths:
                parts[length].append(accumulate(good, length))
                if len(parts[length]) > 8:
                    parts[length] = [merge(parts[length])]
        if not parts[lengths[0]]:
            return
        found = {length: merge(some) for length, some in parts.items()}
        for interval in self._job.plan.intervals:
            if interval.source is not None:
                found[interval.interval.seconds] = found[interval.source.seconds].coarser(
                    interval.interval.seconds
                )
        for interval in self._job.plan.intervals:
            buckets = found[interval.interval.seconds].within(interval.start_s * 1000, interval.end_s * 1000)
            yield from self._pieces(buckets, interval)

    def _batches(self, chunk: Chunk) -> Iterator[PointBatch | Rejected]:
        """The points of a chunk, within the plan, in large batches of whole rows."""
        plan: Plan = self._job.plan
        start_ms, end_ms = max(plan.start_ms, chunk.start_s * 1000), min(plan.end_ms, chunk.end_s * 1000)
        layout = self._job.layout
        held: list[PointBatch] = []
        size = 0
        wanted = Selection(chunk.metric, {}, start_ms, end_ms - 1)
        for found in layout.select(wanted, TableReader(self._job.target)):
            if isinstance(found, Finding):
                yield Rejected(found.key, Reason.CORRUPT_FILE, found.text, Stage.READ, found.table)
                continue
            metrics.count("messages_read")
            decoded = layout.decode(found.row, found.series)
            for text in decoded.damage:
                yield refused_row(found.row, Reason.CORRUPT_FILE, text, Stage.READ)
            batch = decoded.batch
            inside = (batch.times_ms >= start_ms) & (batch.times_ms < end_ms)
            if not inside.all():
                batch = batch.take(np.flatnonzero(inside))
            if len(batch):
                metrics.count("points_read", len(batch))
                held.append(batch)
                size += len(batch)
            if size >= BATCH_POINTS:
                yield join(held)
                held, size = [], 0
        if held:
            yield join(held)

    def _pieces(
        self, buckets: Buckets, plan: IntervalPlan
    ) -> Iterator[tuple[RollupRowKey, Piece] | RejectedOutput]:
        """What the buckets of one interval become: rollups of series, and of groups."""
        config, interval = self._job.config, plan.interval
        if not interval.is_default:
            names: list[Series | RefusedError | None] = []
            for series in buckets.series:
                try:
                    names.append(config.rollup_series(series) if config.takes(series) else None)
                except RefusedError as error:
                    names.append(error)
            yield from self._rows(buckets, names, interval.table, SINGLE, plan)
        groups = [config.groups(series) for series in buckets.series]
        for group_set in _layers(groups):
            of_groups = buckets.of_groups([group for group, _ in group_set])
            wanted = {group: aggregators for group, aggregators in group_set if group is not None}
            for aggregator in sorted({name for found in wanted.values() for name in found}):
                tagged = [
                    config.group_series(group, aggregator) if aggregator in wanted[group] else None
                    for group in of_groups.series
                ]
                yield from self._rows(of_groups, tagged, interval.pre_aggregation_table, aggregator, plan)

    def _rows(
        self,
        buckets: Buckets,
        stored: Sequence[Series | RefusedError | None],
        table: str,
        aggregator: str,
        plan: IntervalPlan,
    ) -> Iterator[tuple[RollupRowKey, Piece] | RejectedOutput]:
        """Pieces of those series that are to be stored, under the names given."""
        wanted = [one for one in stored if isinstance(one, Series)]
        found = dict(zip(wanted, self._keys.of(wanted), strict=True))
        keys = [found[one] if isinstance(one, Series) else one for one in stored]
        for number, base_s, packed in packed_rows(buckets, plan.interval, hours=plan.interval.is_default):
            key = keys[number]
            if key is None:
                continue
            if isinstance(key, RefusedError):
                source = str(buckets.series[number]).encode()
                yield refuse(Rejected(source, key.reason, key.message, Stage.ASSIGN))
                keys[number] = None
                continue
            yield (table, row_key(key, base_s)), (aggregator, packed)


def _layers(
    groups: Sequence[dict[Series, tuple[str, ...]]],
) -> Iterator[list[tuple[Series | None, tuple[str, ...]]]]:
    """A series may be in several groups; each layer has at most one of each series."""
    none: tuple[Series | None, tuple[str, ...]] = (None, ())
    listed = [sorted(found.items()) for found in groups]
    for at in range(max((len(found) for found in listed), default=0)):
        yield [found[at] if at < len(found) else none for found in listed]
