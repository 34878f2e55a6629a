"""Rollups as ordinary points of ordinary series, for layouts without rollup tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Floats, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RefusedError
from timebeam.schema.core.batches import join
from timebeam.schema.core.contract import RollupNames
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.rollup.accumulate import BucketNumbers, numbers
from timebeam.schema.rollup.accumulators import Buckets


def rollup_points(
    buckets: Buckets, interval: str, aggregators: Sequence[str], names: RollupNames
) -> tuple[PointBatch | None, list[Rejected]]:
    """The rollups of some series as points, and refusals.

    The time of a point is the start of its interval, and so is its arrival: a second run writes the same
    cells. In layouts that store only floats, whole numbers are rounded.

    Args:
      buckets: of the interval, of series that `names` can name.
      aggregators: sum, count, min, max, first or last.

    Returns:
      The batch, None if there are no buckets; refusals of sums that do not fit a float, and of series with
      a tag key that rollups need.
    """
    batches: list[PointBatch] = []
    rejected: list[Rejected] = []
    for aggregator in aggregators:
        stored: list[Series] = []
        refused = np.zeros(len(buckets.series), np.bool_)
        for number, series in enumerate(buckets.series):
            try:
                stored.append(names.stored(series, interval, aggregator))
            except RefusedError as error:
                refused[number] = True
                stored.append(series)
                if aggregator == aggregators[0]:
                    rejected.append(Rejected(str(series).encode(), error.reason, error.message, Stage.ENCODE))
        aggregates = numbers(buckets, aggregator)
        finite = (aggregates.kinds == Kind.INTEGER) | np.isfinite(aggregates.bits.view(np.float64))
        good = np.flatnonzero(finite & ~refused[buckets.index])
        for index in np.flatnonzero(~finite & ~refused[buckets.index]).tolist():
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
