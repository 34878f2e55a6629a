"""Histograms as the answer of a query: a result for each bucket, or for each percentile.

core/TsdbQuery.generateHistogramBucketDataPoints and HistogramDataPointsToDataPointsAdaptor of OpenTSDB 2.4.1:
their results have the names of the metric with `_LOW_HIGH`, `_UNDERFLOW`, `_OVERFLOW` or `_pct_P` behind it.
Unlike there, buckets are those of all times and not of the first.
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
    """Groups histograms, sums those of one time, and makes series of them.

    Args:
      histograms_of: by series and time in ms.
      group_by: see `timebeam.schema.query.answer.answer`.
      aggregator: `sum`, or `none` for every series apart.
      percentiles: from 1 to 100; none for the counts of the buckets.

    Raises:
      ValueError: another aggregator, or a percentile out of its range.
    """
    if aggregator not in (SUM, NONE):
        raise ValueError(f"aggregator {aggregator!r}: histograms are summed, or kept apart: {SUM} or {NONE}")
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
    """(end of the name, values by time) of each percentile."""
    return [
        (
            f"_pct_{float(percent)}",
            {time_ms: histogram.percentile(percent) for time_ms, histogram in summed.items()},
        )
        for percent in percentiles
    ]


def _buckets(summed: Mapping[int, Histogram]) -> list[tuple[str, dict[int, int]]]:
    """(end of the name, counts by time) of each bucket; of a time without it there is none."""
    bounds = sorted({bounds_pair for histogram in summed.values() for bounds_pair in histogram.buckets})
    named = [
        (
            f"_{_bound(low)}_{_bound(high)}",
            {
                time_ms: bounds_pair.buckets[low, high]
                for time_ms, bounds_pair in summed.items()
                if (low, high) in bounds_pair.buckets
            },
        )
        for low, high in bounds
    ]
    return [
        *named,
        ("_UNDERFLOW", {time_ms: bounds_pair.underflow for time_ms, bounds_pair in summed.items()}),
        ("_OVERFLOW", {time_ms: bounds_pair.overflow for time_ms, bounds_pair in summed.items()}),
    ]


def _bound(value: float) -> str:
    """A float32 in the fewest digits, always with a point."""
    return np.format_float_positional(np.float32(value), trim="0")
