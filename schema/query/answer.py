"""From the series that a query found to its answer: grouping, downsampling, aggregation, JSON.

OpenTSDB 2.4 core/TsdbQuery.GroupByAndAggregateCB, core/SpanGroup and
tsd/HttpJsonSerializer.formatQueryAsyncV1; docs/spec/opentsdb.md §8.3.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence

import numpy as np

from timebeam.schema.annotations.record import Annotation
from timebeam.schema.points import Int64s, Series
from timebeam.schema.query.aggregate import AGGREGATORS, Values, aggregate
from timebeam.schema.query.downsample import Downsampling, Fill, downsample, fill_gaps

NONE = "none"
_HOUR_MS = 3_600_000
"""The aggregator that keeps every series apart."""


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSeries:
    """A series that passed the filters of a query, and its points.

    Attributes:
      times_ms: int64[n], strictly increasing, in ms.
      values: int64[n] if all points are integers, else float64[n].
      downsampled: whether they are already those of the intervals that the query asks for, float64[n].
    """

    series: Series
    times_ms: Int64s
    values: Values
    downsampled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The answer for one group of series.

    Attributes:
      tags: every tag key for which the series that have it agree on one value, sorted.
      aggregate_tags: the tag keys seen with two or more values, sorted.
      times_ms: int64[n], strictly increasing, in ms.
      values: int64[n] or float64[n]; NaN where an interval or all its values are missing.
      nan_is_null: whether a NaN is to be shown as null (fill null), else as NaN.
      annotations: of the series of the group, by start.
      global_annotations: those of no series that were asked for, by start; the same in all results.
    """

    metric: str
    tags: dict[str, str]
    aggregate_tags: list[str]
    times_ms: Int64s
    values: Values
    nan_is_null: bool = False
    annotations: Sequence[Annotation] = ()
    global_annotations: Sequence[Annotation] = ()


def answer(
    metric: str,
    series_found: Iterable[FoundSeries],
    group_by: Sequence[str],
    aggregator: str,
    downsampling: Downsampling | None,
    start_ms: int,
    end_ms: int,
) -> list[Result]:
    """Groups, downsamples and aggregates; only points of [start_ms, end_ms] come out.

    The points of `series_found` should reach beyond that range: interpolation at its edges needs each
    series' neighbours outside of it, and the last interval needs its points after `end_ms`.
    (See `reach`.) An interval that
    starts before `start_ms` is not shown. A series belongs to its group, and to the group's tags,
    if its points, or its intervals, begin by `end_ms` and do not end before `start_ms`.

    Args:
      series_found: distinct series of the metric, in any order.
      group_by: tag keys; the series with equal values for them form a group, and a series that
        lacks one of them is in no group. Aggregator none ignores this.
      aggregator: a key of `AGGREGATORS`, or `none`.

    Returns:
      The results that have points, in the order of the values of `group_by` (none: of the series).

    Raises:
      ValueError: unknown aggregator, a range that ends before it starts, or too large a fill.
    """
    if aggregator != NONE and aggregator not in AGGREGATORS:
        names = ", ".join([*AGGREGATORS, NONE])
        raise ValueError(f"no aggregator {aggregator!r}; choose from {names}")
    if end_ms < start_ms:
        raise ValueError(f"the range ends, at {end_ms} ms, before it starts, at {start_ms} ms")
    groups: dict[tuple[str, ...], list[FoundSeries]] = {}
    for item in sorted(series_found, key=lambda item: item.series.tags):
        key = group_key(item.series, group_by, aggregator)
        shown = _downsampled(item, downsampling, start_ms, end_ms)
        if key is not None and shown is not None:
            groups.setdefault(key, []).append(shown)
    nan_is_null = downsampling is not None and downsampling.fill is Fill.NULL
    results = []
    for _, members in sorted(groups.items()):
        points = [(member.times_ms, member.values) for member in members]
        times_ms, values = points[0] if aggregator == NONE else aggregate(AGGREGATORS[aggregator], points)
        inside = slice(*np.searchsorted(times_ms, (start_ms, end_ms + 1)))
        tags, differing = common_tags([member.series for member in members])
        if len(times_ms[inside]):
            results.append(Result(metric, tags, differing, times_ms[inside], values[inside], nan_is_null))
    return results


def reach(downsampling: Downsampling | None, start_ms: int, end_ms: int) -> tuple[int, int]:
    """(first, last) time in ms, both inclusive, of the points that `answer` should have.

    They are those of the whole intervals, and then hours, that the range touches, as OpenTSDB reads
    rows: so that every layout gives the same answer, however long its rows are.
    """
    last_ms = end_ms
    if downsampling is not None and downsampling.interval_ms is not None:
        interval_ms = downsampling.interval_ms
        start_ms, last_ms = start_ms // interval_ms * interval_ms, end_ms // interval_ms * interval_ms
        last_ms += interval_ms - 1
    return max(0, start_ms // _HOUR_MS * _HOUR_MS), last_ms // _HOUR_MS * _HOUR_MS + _HOUR_MS - 1


def group_key(series: Series, group_by: Sequence[str], aggregator: str) -> tuple[str, ...] | None:
    """What the series of a group have in common, and others have not; None for a series of no group."""
    if aggregator == NONE:
        return tuple(name for tag in series.tags for name in tag)
    tags = dict(series.tags)
    if any(key not in tags for key in group_by):
        return None
    return tuple(tags[key] for key in group_by)


def _downsampled(
    item: FoundSeries, how: Downsampling | None, start_ms: int, end_ms: int
) -> FoundSeries | None:
    """The series with its points, or those of its intervals; None if they do not meet the range."""
    if how is None:
        return item if _meets(item.times_ms, start_ms, end_ms) else None
    times_ms, values = item.times_ms, item.values.astype(np.float64, copy=False)
    if not item.downsampled:
        times_ms, values = downsample(how, times_ms, values, start_ms, end_ms)
    if not _meets(times_ms, start_ms, end_ms):
        return None
    return FoundSeries(item.series, *fill_gaps(how, times_ms, values, start_ms, end_ms))


def _meets(times_ms: Int64s, start_ms: int, end_ms: int) -> bool:
    """Whether a series is under way at some time of the range (core/SpanGroup.add)."""
    return bool(len(times_ms)) and int(times_ms[0]) <= end_ms and int(times_ms[-1]) >= start_ms


def common_tags(members: Sequence[Series]) -> tuple[dict[str, str], list[str]]:
    """The tags on which the series that have them agree, and the keys on which they do not; both sorted.

    A key that only some series have is not dropped (core/SpanGroup.computeTags).
    """
    seen: dict[str, set[str]] = {}
    for series in members:
        for key, value in series.tags:
            seen.setdefault(key, set()).add(value)
    common = {key: min(values) for key, values in sorted(seen.items()) if len(values) == 1}
    return common, [key for key in sorted(seen) if key not in common]


def to_json(results: Sequence[Result], milliseconds: bool) -> str:
    """The body of OpenTSDB's answer to /api/query.

    Integers are printed as integers, floats with a point or an exponent; NaN and the infinities are
    strings, NaN null where the fill asks for it.

    Args:
      milliseconds: whether timestamps are in ms, else in s. Points of one second then repeat its
        key, as in OpenTSDB; most readers keep the last.
    """
    return "[" + ",".join(_result_json(result, milliseconds) for result in results) + "]"


def _result_json(result: Result, milliseconds: bool) -> str:
    times = result.times_ms if milliseconds else result.times_ms // 1000
    numbers = (number_text(value, result.nan_is_null) for value in result.values.tolist())
    dps = ",".join(f'"{time}":{number}' for time, number in zip(times.tolist(), numbers, strict=True))
    head = {"metric": result.metric, "tags": result.tags, "aggregateTags": result.aggregate_tags}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1]
    for key, notes in (
        ("annotations", result.annotations),
        ("globalAnnotations", result.global_annotations),
    ):
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
