"""The answer of a query from its series: grouping, downsampling, aggregation, annotations.

core/TsdbQuery.GroupByAndAggregateCB, core/SpanGroup and tsd/HttpJsonSerializer.formatQueryAsyncV1 of
OpenTSDB 2.4.1; docs/spec/opentsdb.md §8.3.

The answer of histograms has a result for each bucket or each percentile, named METRIC_LOW_HIGH,
METRIC_UNDERFLOW, METRIC_OVERFLOW or METRIC_pct_P: core/TsdbQuery.generateHistogramBucketDataPoints and
HistogramDataPointsToDataPointsAdaptor. Unlike there, the buckets of all times are shown, not only those of
the first.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Int64s, Values, to_floats
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.histograms import Histogram, merged
from timebeam.schema.core.points import Series
from timebeam.schema.query.aggregate import AGGREGATORS, Gap, Member, Points, aggregate, never_stops, rates
from timebeam.schema.query.downsample import (
    Fill,
    QueryRange,
    downsample,
    fill_gaps,
    first_whole_ms,
    interval_starts,
)
from timebeam.schema.query.question import NONE, Question


@dataclasses.dataclass(frozen=True, slots=True)
class QuerySeries:
    """A series that passed the filters of a query, and its points.

    Attributes:
      times_ms: int64[n], strictly increasing, in ms.
      values: n numbers.
      downsampled: whether they are already values of the query's intervals, as float64[n].
      tsuid: empty if it has none.
      salt: of its rows. `first`, `last` and `diff` take the series of a group in the order of salt and TSUID
        (core/TsdbQuery.SpanCmp, which leaves out the base time of row keys).
    """

    series: Series
    times_ms: Int64s
    values: Values
    downsampled: bool = False
    tsuid: bytes = b""
    salt: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The answer for one group of series.

    Attributes:
      tags: every tag key for which all series that have it agree on one value, sorted.
      aggregate_tags: the tag keys seen with two or more values, sorted.
      times_ms: int64[n], strictly increasing, in ms.
      values: n numbers; NaN where an interval or all its values are missing.
      nan_is_null: show NaN as null (fill null).
      annotations: of the series of the group, sorted by start; None if it has none in the hours that were
        read, where a TSD shows no list.
      global_annotations: if the query asks for them, sorted by start; the same in all results.
      members: the series of the group.
    """

    metric: str
    tags: dict[str, str]
    aggregate_tags: list[str]
    times_ms: Int64s
    values: Values
    nan_is_null: bool = False
    annotations: Sequence[Annotation] | None = None
    global_annotations: Sequence[Annotation] = ()
    members: Sequence[Series] = ()


def answer(
    question: Question, series_found: Iterable[QuerySeries], check: Callable[[], object] = never_stops
) -> list[Result]:
    """Groups, downsamples, computes rates and aggregates; only points of [start_ms, end_ms] come out.

    The points of `series_found` are those of `question.range`, which reaches beyond what is shown:
    interpolation at its edges needs each series' neighbours outside of it, and the last interval needs its
    points after `end_ms`. An interval that starts before `start_ms` is not shown. A series that has such
    points belongs to its group and to the group's tags, also if nothing of it is shown.

    Args:
      series_found: distinct series that pass the filters, in any order.
      check: called before the work on each series, and each time it is added to its group; what it raises
        goes through.

    Returns:
      The results, also those without points, in the order of the values of `group_by` (none: of the series).

    Raises:
      ValueError: too large a fill.
    """
    groups: dict[tuple[str, ...], list[QuerySeries]] = {}
    for item in sorted(series_found, key=lambda item: (item.salt + item.tsuid, item.series.tags)):
        key = group_key(item.series, question.group_by, question.aggregator)
        if key is not None and len(item.times_ms):
            groups.setdefault(key, []).append(item)
    downsampling = question.downsampling
    nan_is_null = downsampling is not None and downsampling.fill is Fill.NULL
    within = question.range
    results = []
    for _, items in sorted(groups.items()):
        members = []
        for item in items:
            check()
            members.append(_member(item, question, within))
        times_ms, values = _aggregated(question, members, check)
        inside = slice(*times_ms.searchsorted((question.start_ms, question.end_ms + 1)))
        series = [item.series for item in items]
        tags, differing = common_tags(series)
        times_ms, values = times_ms[inside], values[inside]
        results.append(
            Result(question.metric, tags, differing, times_ms, values, nan_is_null, members=series)
        )
    return results


def _aggregated(question: Question, members: Sequence[Member], check: Callable[[], object]) -> Points:
    if question.aggregator == NONE:
        (member,) = members
        return Points(member.times_ms, member.values)
    aggregator = AGGREGATORS[question.aggregator]
    if question.rate is not None:  # the rate at a time between two points is the one before
        aggregator = dataclasses.replace(aggregator, gap=Gap.PREVIOUS)
    return aggregate(aggregator, members, check)


def _member(item: QuerySeries, question: Question, within: QueryRange) -> Member:
    """The series with its points, intervals or rates, as they are aggregated."""
    times_ms, values = item.times_ms, item.values
    downsampling = question.downsampling
    if downsampling is not None:
        floats = to_floats(values)
        if item.downsampled:
            first = int(times_ms.searchsorted(first_whole_ms(downsampling, within)))
            times_ms, floats = times_ms[first:], floats[first:]
        else:
            times_ms, floats = downsample(downsampling, times_ms, floats, within)
        times_ms, values = fill_gaps(downsampling, times_ms, floats, within)
    if question.rate is not None:
        times_ms, values = rates(times_ms, values, question.rate)
    first = int(times_ms.searchsorted(within.first_ms))
    times_ms, values = times_ms[first:], values[first:]
    if question.rate is None:
        return Member(times_ms, values)
    before = float(to_floats(values)[0]) if len(times_ms) else None
    return Member(times_ms[1:], values[1:], before)


def group_key(series: Series, group_by: Sequence[str], aggregator: str) -> tuple[str, ...] | None:
    """The identity of a series' group; None for a series without a group."""
    if aggregator == NONE:
        return tuple(name for tag in series.tags for name in tag)
    tags = dict(series.tags)
    if any(key not in tags for key in group_by):
        return None
    return tuple(tags[key] for key in group_by)


def common_tags(members: Sequence[Series]) -> tuple[dict[str, str], list[str]]:
    """(tags with one value in all series that have the key, the other tag keys), both sorted.

    Keys that only some series have are not dropped (core/SpanGroup.computeTags).

    >>> common_tags([Series.of("m", {"dc": "lga", "host": "a"}), Series.of("m", {"dc": "lga", "host": "b"})])
    ({'dc': 'lga'}, ['host'])
    """
    if len(members) == 1:
        return dict(members[0].tags), []
    seen: dict[str, set[str]] = {}
    for series in members:
        for key, value in series.tags:
            seen.setdefault(key, set()).add(value)
    common = {key: min(values) for key, values in sorted(seen.items()) if len(values) == 1}
    return common, [key for key in sorted(seen) if key not in common]


def to_json(results: Sequence[Result], milliseconds: bool) -> str:
    """The body of OpenTSDB's answer to /api/query.

    Integers are printed as integers, floats with a point or an exponent, infinities as strings; NaN as a
    string, or as null for fill null.

    >>> import numpy as np
    >>> result = Result("sys.cpu", {"host": "a"}, [], np.array([1356998400000]), np.array([1.5]))
    >>> print(to_json([result], milliseconds=False))
    [{"metric":"sys.cpu","tags":{"host":"a"},"aggregateTags":[],"dps":{"1356998400":1.5}}]

    Args:
      milliseconds: whether timestamps are in ms, not s. In s, points of one second have duplicate keys, as in
        OpenTSDB; most readers keep the last one.
    """
    return "[" + ",".join(_result_json(result, milliseconds) for result in results) + "]"


def _result_json(result: Result, milliseconds: bool) -> str:
    times = result.times_ms if milliseconds else result.times_ms // 1000
    numbers = (number_text(value, result.nan_is_null) for value in result.values.tolist())
    dps = ",".join(f'"{time}":{number}' for time, number in zip(times.tolist(), numbers, strict=True))
    head = {"metric": result.metric, "tags": result.tags, "aggregateTags": result.aggregate_tags}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1]
    for key, notes in (("annotations", result.annotations), ("globalAnnotations", result.global_annotations)):
        if notes:
            text += f',"{key}":[' + ",".join(note.shown() for note in notes) + "]"
    return text + ',"dps":{' + dps + "}}"


def number_text(value: int | float, nan_is_null: bool) -> str:
    """A number as JSON, as Jackson writes it for OpenTSDB."""
    if isinstance(value, int) or math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return "null" if nan_is_null else '"NaN"'
    return '"Infinity"' if value > 0 else '"-Infinity"'


def annotated(results: Sequence[Result], of_series: Mapping[Series, Sequence[Annotation]]) -> list[Result]:
    """The results with the annotations of their series.

    Args:
      of_series: those that start in the range; none for a series whose annotations all start outside of it.
    """
    complete = []
    for result in results:
        lists = [of_series[series] for series in result.members if series in of_series]
        notes = by_start(note for notes in lists for note in notes) if lists else None
        complete.append(dataclasses.replace(result, annotations=notes))
    return complete


def by_start(notes: Iterable[Annotation]) -> list[Annotation]:
    """Annotations sorted by start, then by series."""
    return sorted(notes, key=lambda note: (note.start_ms, note.tsuid))


def all_of(results: Iterable[Result]) -> list[Annotation]:
    """All annotations of an answer without duplicates, sorted by start."""
    return by_start(
        {note for result in results for note in (*(result.annotations or ()), *result.global_annotations)}
    )


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
