"""Rollups of layouts without rollup tables: ordinary points of ordinary series, in separate tables.

Each interval has its own layout: the same one with another table prefix. Accumulators are grouped by series;
their numbers are then stored like any points (index, encode, pack). Existing cells of the period that are not
written again are deleted in the mutation that writes the row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from timebeam.schema.bits.arrays import Floats, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.batches import join
from timebeam.schema.core.contract import Store, pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import WHOLE_TABLE, Cell, Row
from timebeam.schema.core.selection import Finding, RollupNames, Selected, Selection, UnknownNameError
from timebeam.schema.rollup.accumulate import Accumulated, Accumulator, BucketNumbers, numbers
from timebeam.schema.rollup.buckets import Buckets, unpacked
from timebeam.schema.rollup.day_plan import IntervalPlan, RollupPart
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.transforms.bigtable.read_ranges import ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import reject
from timebeam.transforms.ingest.encode_group_pack import RowKey
from timebeam.transforms.ingest.row_mutations import data_tables, store_index
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.table_reader import TableReader, within
from timebeam.transforms.rollup.read_chunk import (
    AccumulateFn,
    ChunkWork,
    NumberedChunk,
    NumberReader,
    read_period,
)
from timebeam.transforms.rollup.rollup_graph import (
    ExistingRange,
    Group,
    RollupEncoder,
    series_fragments,
    series_of,
)


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesRollupJob(RollupEncoder):
    """A configuration, a range of time, and where the tables are.

    Attributes:
      layout: of the points.
      parts: the intervals to write, without overlap for any metric.
      layouts: by interval, the layout of its rollups.
    """

    target: Target
    layout: Store
    config: RollupConfig
    parts: Sequence[RollupPart]
    layouts: Mapping[str, Store]

    @property
    def data_table(self) -> str:
        """The table of the points."""
        return data_tables(self.layout)[0]

    @property
    def rollup_names(self) -> RollupNames:
        """How the series of rollups are named."""
        assert self.layout.rollup_names is not None
        return self.layout.rollup_names

    @property
    def intervals(self) -> Sequence[str]:
        """The intervals of all parts, shortest first."""
        names = {plan.interval.interval for part in self.parts for plan in part.plan.intervals}
        return [interval.interval for interval in self.config.rollups if interval.interval in names]

    def stored_metrics(self, part: RollupPart, interval: str) -> Sequence[str | None]:
        """The metrics that the rollups of an interval are stored under; None means all metrics."""
        if part.metrics is None:
            return [None]
        series_and_names = (
            (Series(metric.decode(), ()), name) for metric in part.metrics for name in self.config.computed
        )
        stored = self.rollup_names.stored
        return sorted({stored(series, interval, name).metric for series, name in series_and_names})

    def table(self, interval: str) -> str:
        """The table of the rollups of an interval."""
        return data_tables(self.layouts[interval])[0]

    @property
    def tables(self) -> Sequence[str]:
        return [name for interval in self.intervals for name in data_tables(self.layouts[interval])]

    def chunks(self) -> Iterator[NumberedChunk | ExistingRange]:
        """Key ranges of the data table, or one chunk for each metric."""
        for number, part in enumerate(self.parts):
            start_s, end_s = part.plan.start_ms // 1000, -(-part.plan.end_ms // 1000)
            if part.metrics is None:
                cuts = split_keys(self.target, self.data_table, cut_at=self.layout.cut_at)
                chunks = [Chunk((), (), start_s, end_s, keys) for keys in ranges_between(cuts)]
            else:
                names = [metric.decode() for metric in sorted(part.metrics)]
                chunks = [Chunk((name,), (), start_s, end_s, WHOLE_TABLE) for name in names]
            yield from [NumberedChunk(number, chunk) for chunk in chunks]
            for plan in part.plan.intervals:
                interval = plan.interval.interval
                for metric in self.stored_metrics(part, interval):
                    yield ExistingRange((), metric, interval, self.table(interval), plan.start_s, plan.end_s)

    def accumulate(self) -> AccumulateFn:
        return _AccumulateSeriesFn(self)

    def existing(self, existing: ExistingRange) -> Iterator[tuple[RowKey, list[Cell]]]:
        layout, interval = self.layouts[existing.interval], existing.interval
        start_ms, end_ms = existing.start_s * 1000, existing.end_s * 1000
        selection = Selection(existing.metric, {}, start_ms, end_ms - 1)
        with contextlib.suppress(UnknownNameError):  # no row of the metric exists
            for selected in layout.select(selection, TableReader(self.target)):
                if isinstance(selected, Finding) or not self._is_ours(selected.series, interval):
                    continue
                times_ms = layout.decode_rows([selected]).batch.times_ms
                cells = selected.row.cells
                if len(times_ms) < len(cells) or not ((times_ms >= start_ms) & (times_ms < end_ms)).all():
                    cells = [cell for cell in cells if start_ms <= _time_ms(layout, selected, cell) < end_ms]
                yield (selected.row.table, selected.row.key), list(cells)

    def _is_ours(self, stored: Series, interval: str) -> bool:
        source = self.rollup_names.source(stored, interval)
        return source is not None and self.config.takes(source[0]) and source[1] in self.config.computed

    def encode(self, table: str, groups: list[Group]) -> Iterator[Any]:
        (interval,) = [each for each in self.config.rollups if self.table(each.interval) == table]
        layout, config = self.layouts[interval.interval], self.config
        series_packed = [(series_of(text), [packed for _, packed in fragments]) for text, fragments in groups]
        buckets = unpacked(series_packed, interval.seconds, ends=config.has_ends)
        metrics.count_rollup(f"buckets_{interval.interval}", len(buckets))
        batch, rejected = rollup_points(buckets, interval.interval, config.computed, self.rollup_names)
        yield from map(reject, rejected)
        if batch is None:
            return
        keys, batch, rejected = _keys(layout, batch)
        yield from map(reject, rejected)
        index = layout.index
        assert index is not None
        entries = [(batch.series[number], base_ms) for number, base_ms in index.entries(batch)]
        count, rejected = store_index(self.target, index, entries, dry_run=False)
        metrics.count("index_rows_written", count)
        yield from map(reject, rejected)
        encoded = layout.encode(batch, keys)
        yield from map(reject, encoded.rejected)
        rejected_points = sum(rejection.points for rejection in encoded.rejected)
        metrics.count("points_packed", len(batch) - encoded.duplicates - rejected_points)
        for row_table, key, packed in encoded.fragments:
            yield (row_table, key), packed

    def row(self, key: RowKey, encoded: Sequence[bytes]) -> Row:
        if not encoded:
            return Row(*key, [])
        (layout,) = [each for each in self.layouts.values() if key[0] in data_tables(each)]
        return pack_row(layout, *key, encoded, Packing.POINTS)


class _AccumulateSeriesFn(AccumulateFn):
    """See `AccumulateFn`; all accumulators are shuffled."""

    def __init__(self, job: SeriesRollupJob) -> None:
        super().__init__()
        self._job = job

    def begin(self, numbered: NumberedChunk) -> ChunkWork:
        job, chunk = self._job, numbered.chunk
        plan = job.parts[numbered.part].plan
        period = read_period(plan, chunk)
        selection = Selection(chunk.metrics[0] if chunk.metrics else None, {}, period[0], period[1] - 1)
        reader = within(TableReader(job.target), job.layout, chunk.keys)
        select = functools.partial(job.layout.select, selection, reader)
        several_rows = functools.partial(job.layout.several_rows, selection, reader)
        points = NumberReader(job.layout, select, period, several_rows)
        accumulator = Accumulator(
            (each.interval.seconds for each in plan.intervals), ends=job.config.has_ends
        )
        taken = _rolled_up(points, job.config)
        return ChunkWork(taken, accumulator, functools.partial(self._take, plan.intervals), stop=points.stop)

    def _take(self, intervals: Sequence[IntervalPlan], accumulated: Accumulated) -> Iterator[Any]:
        by_length = accumulated.by_length()
        for plan in intervals:
            buckets = by_length[plan.interval.seconds].within(plan.start_s * 1000, plan.end_s * 1000)
            yield from series_fragments(self._job.table(plan.interval.interval), buckets)


def _rolled_up(
    points: Iterable[PointBatch | Rejected], config: RollupConfig
) -> Iterator[PointBatch | Rejected]:
    """The points of series that the configuration names, and all rejections."""
    for batch in points:
        if isinstance(batch, Rejected):
            yield batch
            continue
        is_rolled_up = np.array([config.takes(series) for series in batch.series], np.bool_)[batch.index]
        if is_rolled_up.any():
            yield batch if is_rolled_up.all() else batch.take(np.flatnonzero(is_rolled_up))


def _time_ms(layout: Store, selected: Selected, cell: Cell) -> int:
    """The time of the point of a cell; -1 if it has none."""
    alone = Selected(selected.row._replace(cells=[cell]), selected.series)
    times_ms = layout.decode_rows([alone]).batch.times_ms
    return int(times_ms[0]) if len(times_ms) else -1


def _keys(layout: Store, batch: PointBatch) -> tuple[list[SeriesKey | None], PointBatch, list[Rejected]]:
    """(the key of each series of a batch, the points of series with a key, rejections of other series)."""
    keys: list[SeriesKey | None] = []
    rejected = []
    for series in batch.series:
        error: RejectedError | None = layout.reject(series)
        keys.append(layout.series_key(series, {}) if error is None else None)
        if error is not None:
            rejected.append(Rejected(str(series).encode(), error.reason, error.message, Stage.ENCODE))
    if rejected:
        has_key = np.array([key is not None for key in keys], np.bool_)
        batch = batch.take(np.flatnonzero(has_key[batch.index]))
    return keys, batch, rejected


def rollup_points(
    buckets: Buckets, interval: str, aggregators: Sequence[str], names: RollupNames
) -> tuple[PointBatch | None, list[Rejected]]:
    """The rollups of some series as points, and rejections.

    The time of a point is the start of its interval, and so is its arrival: a second run writes the same
    cells. In layouts that store only floats, whole numbers are rounded.

    Args:
      buckets: of the interval, of series that `names` can name.
      aggregators: sum, count, min, max, first or last.

    Returns:
      The batch, None if there are no buckets; rejections of sums that do not fit a float, and of series with
      a tag key that rollups need.
    """
    batches: list[PointBatch] = []
    rejected: list[Rejected] = []
    for aggregator in aggregators:
        stored: list[Series] = []
        is_rejected = np.zeros(len(buckets.series), np.bool_)
        for number, series in enumerate(buckets.series):
            try:
                stored.append(names.stored(series, interval, aggregator))
            except RejectedError as error:
                is_rejected[number] = True
                stored.append(series)
                if aggregator == aggregators[0]:
                    rejected.append(Rejected(str(series).encode(), error.reason, error.message, Stage.ENCODE))
        aggregates = numbers(buckets, aggregator)
        finite = (aggregates.kinds == Kind.INTEGER) | np.isfinite(aggregates.bits.view(np.float64))
        good = np.flatnonzero(finite & ~is_rejected[buckets.index])
        for index in np.flatnonzero(~finite & ~is_rejected[buckets.index]).tolist():
            series = buckets.series[buckets.index[index]]
            where = f"{aggregator} of {series} from {buckets.starts_ms[index]} ms on"
            message = f"{where}, {interval}: it does not fit a 64-bit float"
            rejected.append(Rejected(b"", Reason.NUMBER_OUT_OF_RANGE, message, Stage.ENCODE))
        batches.append(_points(tuple(stored), buckets, aggregates, good, integers=names.integers))
    batches = [batch for batch in batches if len(batch)]
    return (join(batches) if batches else None), rejected


def _points(
    stored: Sequence[Series], buckets: Buckets, aggregates: BucketNumbers, good: Int64s, *, integers: bool
) -> PointBatch:
    starts_ms = buckets.starts_ms[good]
    kinds, bits = aggregates.kinds[good], aggregates.bits[good]
    if not integers:
        floats: Floats = bits.astype(np.float64)
        bits = np.where(kinds == Kind.INTEGER, floats.view(np.int64), bits)
        kinds = np.full(len(good), Kind.FLOAT, np.uint8)
    in_s = np.zeros(len(good), np.bool_)
    return PointBatch(stored, buckets.index[good], starts_ms, in_s, kinds, bits, starts_ms)
