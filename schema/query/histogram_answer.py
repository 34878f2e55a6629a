"""The answer of a query for OpenTSDB's histograms.

An answer has a result for each bucket or each percentile: core/TsdbQuery.generateHistogramBucketDataPoints
and HistogramDataPointsToDataPointsAdaptor of OpenTSDB 2.4.1: its results are named by the metric followed
by `_LOW_HIGH`, `_UNDERFLOW`, `_OVERFLOW` or `_pct_P`. Unlike there, the buckets of all times are shown, not
only those of the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from timebeam.schema.core.histograms import Histogram, merged
from timebeam.schema.core.points import Series
from timebeam.schema.query.answer import Result, common_tags, group_key
from timebeam.schema.query.downsample import interval_starts
from timebeam.schema.query.question import Question

SUM = "sum"


def check_percentiles(percentiles: Sequence[float]) -> None:
    """Raises ValueError if a percentile is not from 1 to 100."""
    for percent in percentiles:
        if not 1 <= percent <= 100:
            raise ValueError(f"percentile {percent:g} is not from 1 to 100")


def answer_histograms(
    question: Question,
    histograms_of: Mapping[Series, Mapping[int, Histogram]],
    percentiles: Sequence[float],
    *,
    has_buckets: bool,
    add_points: Callable[[int], object],
) -> list[Result]:
    """Groups histograms, sums those of one time or interval, and turns the sums into series.

    Whatever its aggregator and the function of its downsampling, histograms are summed, as by a TSD;
    aggregator none keeps series apart. There are no fills and no rates.

    Args:
      histograms_of: by series and time in ms.
      percentiles: from 1 to 100; a result for each.
      has_buckets: whether there is a result for each bucket.
      add_points: takes how many points each result has; what it raises goes through.
    """
    groups: dict[tuple[str, ...], list[Series]] = {}
    for series in histograms_of:
        key = group_key(series, question.group_by, question.aggregator)
        if key is not None:
            groups.setdefault(key, []).append(series)
    results = []
    for _, members in sorted(groups.items()):
        by_time: dict[int, list[Histogram]] = {}
        for series in members:
            times_ms = np.array([*histograms_of[series]], np.int64)
            starts_ms = interval_starts(question.downsampling, times_ms, question.range)
            for start_ms, histogram in zip(starts_ms.tolist(), histograms_of[series].values(), strict=True):
                if question.start_ms <= start_ms <= question.end_ms:
                    by_time.setdefault(start_ms, []).append(histogram)
        summed = {time_ms: merged(same_time) for time_ms, same_time in sorted(by_time.items())}
        if not summed:
            continue
        tags, differing = common_tags(members)
        for suffix, values in itertools.chain(
            _percentiles(summed, percentiles), _buckets(summed) if has_buckets else ()
        ):
            add_points(len(values))
            times_ms, numbers = np.array(list(values), np.int64), np.array([*values.values()])
            metric = question.metric + suffix
            results.append(Result(metric, tags, differing, times_ms, numbers, members=members))
    return results


def _percentiles(
    summed: Mapping[int, Histogram], percentiles: Sequence[float]
) -> Iterator[tuple[str, Mapping[int, float]]]:
    """(suffix of the name, values by time) of each percentile."""
    for percent in percentiles:
        values = {time_ms: histogram.percentile(percent) for time_ms, histogram in summed.items()}
        yield f"_pct_{float(percent)}", values


def _buckets(summed: Mapping[int, Histogram]) -> Iterator[tuple[str, Mapping[int, float]]]:
    """(suffix of the name, counts by time) of each bucket, for the times that have it."""
    bounds = sorted({bucket for histogram in summed.values() for bucket in histogram.buckets})
    for low, high in bounds:
        yield (
            f"_{_bound(low)}_{_bound(high)}",
            {
                time_ms: histogram.buckets[low, high]
                for time_ms, histogram in summed.items()
                if (low, high) in histogram.buckets
            },
        )
    yield "_UNDERFLOW", {time_ms: histogram.underflow for time_ms, histogram in summed.items()}
    yield "_OVERFLOW", {time_ms: histogram.overflow for time_ms, histogram in summed.items()}


def _bound(value: float) -> str:
    """A float32 in the fewest digits, always with a point."""
    return np.format_float_positional(np.float32(value), trim="0")
