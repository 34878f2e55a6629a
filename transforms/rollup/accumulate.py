"""Raw points into accumulators, by row of the rollup tables: the large part of the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apache_beam as beam

from schema.layouts.opentsdb.keys import row_key
from schema.points import RefusedError, Rejected, Series, Stage
from schema.rollup.buckets import Buckets
from schema.rollup.pieces import packed_rows
from schema.rollup.plan import IntervalPlan
from transforms import metrics
from transforms.bigtable.reader import TableReader
from transforms.chunks import Chunk, hour_chunks
from transforms.rejected import RejectedOutput, refuse
from transforms.rollup.job import SINGLE, RollupJob, RollupRowKey
from transforms.rollup.reading import Accumulator, read_chunk
from transforms.series_keys import SeriesKeys

Piece = tuple[str, bytes]
"""(aggregator of the group, or SINGLE, and the packed accumulators)."""


class ChunksFn(beam.DoFn):
    """Anything in; the chunks of all metrics that are rolled up out."""

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Chunk]:
        """See the class."""
        job = self._job
        found = job.metric_uids(TableReader(job.target))
        wanted = {metric: uid for metric, uid in found.items() if self._wanted(metric)}
        start_s, end_s = job.plan.start_ms // 1000, -(-job.plan.end_ms // 1000)
        yield from hour_chunks(job.target, job.layout, wanted, start_s, end_s)

    def _wanted(self, metric: str) -> bool:
        config = self._job.config
        return config.takes(Series(metric, ())) or any(
            one.group(Series(metric, tuple((key, "") for key in one.keep))) for one in config.pre_aggregates
        )


class AccumulateFn(beam.DoFn):
    """`Chunk` in; ((table, row key), (aggregator, packed accumulators)) out, what is refused to `REJECTED`.

    The accumulators of a chunk are merged before they go out, so that a group of many series, too,
    is few pieces for each chunk.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job
        self._keys = SeriesKeys(job.target, job.layout, job.uids, dry_run=job.dry_run)

    def setup(self) -> None:
        """Opens the UID table."""
        self._keys.open()

    def process(self, chunk: Chunk) -> Iterator[tuple[RollupRowKey, Piece] | RejectedOutput]:
        """See the class."""
        job = self._job
        held = Accumulator(job.plan)
        for batch in read_chunk(job.layout, TableReader(job.target), job.plan, chunk):
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            metrics.count("points_packed", len(batch))
            held.add(batch)
            if held.is_full:
                yield from self._taken(held)
        yield from self._taken(held)

    def _taken(self, held: Accumulator) -> Iterator[tuple[RollupRowKey, Piece] | RejectedOutput]:
        for buckets, interval in zip(held.take(), self._job.plan.intervals, strict=False):
            yield from self._pieces(buckets, interval)

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
