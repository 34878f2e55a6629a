"""The answer of a query for histograms: a result for each bucket or each percentile.

core/TsdbQuery.generateHistogramBucketDataPoints and HistogramDataPointsToDataPointsAdaptor of OpenTSDB 2.4.1:
its results are named by the metric followed by `_LOW_HIGH`, `_UNDERFLOW`, `_OVERFLOW` or `_pct_P`.
Unlike there, the buckets of all times are shown, not only those of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from timebeam.schema.points import Series
from timebeam.schema.query.answer import Result, common_tags, group_key
from timebeam.schema.query.question import NONE
from timebeam.schema.query.simple_histogram import Histogram, merged

SUM = "sum"


def answer_histograms(
    metric: str,
    histograms_of: Mapping[Series, Mapping[int, Histogram]],
    group_by: Sequence[str],
    aggregator: str,
    percentiles: Sequence[float],
) -> list[Result]:
    """Groups histograms, sums those of one time, and turns them into series.

    Args:
      histograms_of: by series and time in ms.
      group_by: see `timebeam.schema.query.answer.answer`.
      aggregator: `sum`, or `none` to keep series apart.
      percentiles: from 1 to 100; empty for the counts of the buckets.

    Raises:
      ValueError: another aggregator, or a percentile out of its range.
    """
    if aggregator not in (SUM, NONE):
        raise ValueError(f"no aggregator {aggregator!r} for histograms; choose from {SUM} and {NONE}")
    for percent in percentiles:
        if not 1 <= percent <= 100:
            raise ValueError(f"percentile {percent:g} is not from 1 to 100")
    groups: dict[tuple[str, ...], list[Series]] = {}
    for series in histograms_of:
        key = group_key(series, group_by, aggregator)
        if key is not None:
            groups.setdefault(key, []).append(series)
    results = []
    for _, members in sorted(groups.items()):
        by_time: dict[int, list[Histogram]] = {}
        for series in members:
            for time_ms, histogram in histograms_of[series].items():
                by_time.setdefault(time_ms, []).append(histogram)
        summed = {time_ms: merged(same_time) for time_ms, same_time in sorted(by_time.items())}
        tags, differing = common_tags(members)
        named = _percentiles(summed, percentiles) if percentiles else _buckets(summed)
        results += [
            Result(
                metric + suffix,
                tags,
                differing,
                np.array(list(values), np.int64),
                np.array([*values.values()]),
            )
            for suffix, values in named
        ]
    return results


def _percentiles(
    summed: Mapping[int, Histogram], percentiles: Sequence[float]
) -> list[tuple[str, dict[int, float]]]:
    """(suffix of the name, values by time) of each percentile."""
    return [
        (
            f"_pct_{float(percent)}",
            {time_ms: histogram.percentile(percent) for time_ms, histogram in summed.items()},
        )
        for percent in percentiles
    ]


def _buckets(summed: Mapping[int, Histogram]) -> list[tuple[str, dict[int, int]]]:
    """(suffix of the name, counts by time) of each bucket, for the times that have it."""
    bounds = sorted({bucket for histogram in summed.values() for bucket in histogram.buckets})
    named = [
        (
            f"_{_bound(low)}_{_bound(high)}",
            {
                time_ms: histogram.buckets[low, high]
                for time_ms, histogram in summed.items()
                if (low, high) in histogram.buckets
            },
        )
        for low, high in bounds
    ]
    return [
        *named,
        ("_UNDERFLOW", {time_ms: histogram.underflow for time_ms, histogram in summed.items()}),
        ("_OVERFLOW", {time_ms: histogram.overflow for time_ms, histogram in summed.items()}),
    ]


def _bound(value: float) -> str:
    """A float32 in the fewest digits, always with a point."""
    return np.format_float_positional(np.float32(value), trim="0")
