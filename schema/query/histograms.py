"""Histograms as the answer of a query: a result for each bucket, or for each percentile.

core/TsdbQuery.generateHistogramBucketDataPoints and HistogramDataPointsToDataPointsAdaptor of OpenTSDB 2.4.1:
their results have the names of the metric with `_LOW_HIGH`, `_UNDERFLOW`, `_OVERFLOW` or `_pct_P` behind it.
Unlike there, buckets are those of all times and not of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from schema.histograms import Histogram, merged
from schema.points import Series
from schema.query.answer import NONE, Result, common_tags, group_key

SUM = "sum"


def answer_histograms(
    metric: str,
    found: Mapping[Series, Mapping[int, Histogram]],
    group_by: Sequence[str],
    aggregator: str,
    percentiles: Sequence[float],
) -> list[Result]:
    """Groups histograms, sums those of one time, and makes series of them.

    Args:
      found: by series and time in ms.
      group_by: see `schema.query.answer.answer`.
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
    for series in found:
        key = group_key(series, group_by, aggregator)
        if key is not None:
            groups.setdefault(key, []).append(series)
    results = []
    for _, members in sorted(groups.items()):
        at: dict[int, list[Histogram]] = {}
        for series in members:
            for time_ms, one in found[series].items():
                at.setdefault(time_ms, []).append(one)
        summed = {time_ms: merged(some) for time_ms, some in sorted(at.items())}
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
        (f"_pct_{float(percent)}", {time_ms: one.percentile(percent) for time_ms, one in summed.items()})
        for percent in percentiles
    ]


def _buckets(summed: Mapping[int, Histogram]) -> list[tuple[str, dict[int, int]]]:
    """(end of the name, counts by time) of each bucket; of a time without it there is none."""
    bounds = sorted({one for histogram in summed.values() for one in histogram.buckets})
    named = [
        (
            f"_{_bound(low)}_{_bound(high)}",
            {
                time_ms: one.buckets[low, high]
                for time_ms, one in summed.items()
                if (low, high) in one.buckets
            },
        )
        for low, high in bounds
    ]
    return [
        *named,
        ("_UNDERFLOW", {time_ms: one.underflow for time_ms, one in summed.items()}),
        ("_OVERFLOW", {time_ms: one.overflow for time_ms, one in summed.items()}),
    ]


def _bound(value: float) -> str:
    """A float32 in the fewest digits, always with a point."""
    return np.format_float_positional(np.float32(value), trim="0")
