"""The answer to a query as the JSON of a TSD: tsd/HttpJsonSerializer.formatQueryAsyncV1 of OpenTSDB 2.4.1.

docs/spec/opentsdb.md §8.3.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from timebeam.schema.bits.arrays import to_floats
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.points import Series
from timebeam.schema.query.aggregate import RateOptions
from timebeam.schema.query.answer import Result
from timebeam.schema.stores.opentsdb.http.api_request import ApiError
from timebeam.schema.stores.opentsdb.http.ts_query import SubQuery, TsQuery

POINT_BYTES = 250
"""Memory of a point while an answer is written: what everything else in an answer is counted in."""

OBJECT_POINTS = 4
"""What a result without points counts, or an annotation without text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one sub query, and what a request may want to see beside it.

    Attributes:
      index: of the sub query in its request.
      tsuids: of the series; empty in a layout without.
      key_uids: of the tag keys that are filtered; empty in a layout without.
      stats: see `Evaluated`.
      interval: of the rollups that were read; empty for points alone.
    """

    index: int
    results: Sequence[Result]
    tsuids: Mapping[Series, bytes] = dataclasses.field(default_factory=dict)
    key_uids: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    stats: Mapping[str, float] = dataclasses.field(default_factory=dict)
    interval: str = ""

    def first_tsuid(self, result: Result) -> bytes:
        """The least TSUID of a result; empty in a layout without."""
        return min((self.tsuids.get(series, b"") for series in result.members), default=b"")


def answer_body(
    query: TsQuery,
    answers: Sequence[Answered],
    global_annotations: Sequence[Annotation] | None,
    *,
    arrays: bool,
    leaves_out_nan: bool = False,
    add_shown: Callable[[int], object],
) -> list[dict[str, Any]]:
    """The JSON of the answer to all sub queries; times are integers, also where they are keys.

    Args:
      arrays: whether points are pairs, else members of an object; points of one second then share a key, and
        the last one remains.
      leaves_out_nan: see `Request`.
      add_shown: takes how much each result holds, in points, before it is written; what it raises goes
        through. Text that several results repeat counts in each.
    """
    writer = _Writer(query, global_annotations, arrays, add_shown)
    body = [
        writer.result(answered, without_nan(result) if leaves_out_nan else result)
        for answered in answers
        for result in answered.results
    ]
    return [*body, {"statsSummary": _summary(answers)}] if query.show_summary else body


def _summary(answers: Sequence[Answered]) -> dict[str, Any]:
    """The statistics of all sub queries, and of each: QueryStats.getStats."""
    stats_of = {answered.index: answered.stats for answered in answers}
    names = dict.fromkeys(name for stats in stats_of.values() for name in stats)
    sums: dict[str, Any] = {name: sum(stats.get(name, 0) for stats in stats_of.values()) for name in names}
    return sums | {f"queryIdx_{index:02d}": stats for index, stats in stats_of.items()}


def without_nan(result: Result) -> Result:
    """A result without the points that are NaN."""
    is_number = ~np.isnan(to_floats(result.values))
    return dataclasses.replace(result, times_ms=result.times_ms[is_number], values=result.values[is_number])


def check_finite(results: Sequence[Result]) -> None:
    """Rejects results that overflowed: no TSD stores an infinity (core/AggregationIterator.doubleValue).

    Raises:
      ApiError: one has an infinity.
    """
    for result in results:
        infinite = np.flatnonzero(np.isinf(to_floats(result.values)))
        if len(infinite):
            raise ApiError(
                f"Got Infinity: {result.metric} with tags {result.tags} overflows at "
                f"{result.times_ms[infinite[0]]} ms; use another aggregator, or scale what is stored"
            )


def annotation_body(note: Annotation) -> dict[str, Any]:
    """The JSON of an annotation."""
    body: dict[str, Any] = {
        "tsuid": note.tsuid,
        "description": note.description,
        "notes": note.notes,
        "startTime": note.start,
        "endTime": note.end,
    }
    return body if note.custom is None else body | {"custom": dict(note.custom)}


class _Writer:
    """Writes the results of an answer; what several of them repeat is made once."""

    def __init__(
        self,
        query: TsQuery,
        global_annotations: Sequence[Annotation] | None,
        arrays: bool,
        add_shown: Callable[[int], object],
    ) -> None:
        self._query, self._arrays, self._add_shown = query, arrays, add_shown
        self._globals = None if global_annotations is None else [*map(annotation_body, global_annotations)]
        self._globals_cost = _cost(self._globals or [])
        self._query_bodies: dict[int, tuple[dict[str, Any], int]] = {}

    def result(self, answered: Answered, result: Result) -> dict[str, Any]:
        """The JSON of a result."""
        query, cost = self._query, OBJECT_POINTS + len(result.times_ms)
        beside: dict[str, Any] = {}
        if query.show_query:
            beside["query"], query_cost = self._query_body(answered)
            cost += query_cost
        if query.show_tsuids:
            cost += len(result.members)
            tsuids = (answered.tsuids.get(series, b"") for series in result.members)
            beside["tsuids"] = sorted(tsuid.hex().upper() for tsuid in tsuids if tsuid)
        if not query.no_annotations:
            if result.annotations is not None:
                beside["annotations"] = [*map(annotation_body, result.annotations)]
                cost += _cost(beside["annotations"])
            if self._globals is not None:
                beside["globalAnnotations"] = self._globals
                cost += self._globals_cost
        if query.show_stats:
            beside["stats"] = answered.stats
        self._add_shown(cost)
        return {
            "metric": result.metric,
            "tags": result.tags,
            "aggregateTags": result.aggregate_tags,
            **beside,
            "dps": _points(result, query.milliseconds, self._arrays),
        }

    def _query_body(self, answered: Answered) -> tuple[dict[str, Any], int]:
        """(the JSON of the sub query of a result, its cost)."""
        if answered.index not in self._query_bodies:
            body = _query_body(self._query.queries[answered.index], answered)
            self._query_bodies[answered.index] = body, _cost([body])
        return self._query_bodies[answered.index]


def _cost(bodies: Sequence[dict[str, Any]]) -> int:
    """How much memory some JSON objects and their text take, in points."""
    return len(bodies) * OBJECT_POINTS + len(msgspec.json.encode(bodies)) // POINT_BYTES


def _points(result: Result, milliseconds: bool, arrays: bool) -> Any:
    """The points: (time, number) pairs, or numbers by time; NaN as text or null, since JSON has none."""
    times = result.times_ms if milliseconds else result.times_ms // 1000
    numbers: Sequence[int | float | str | None] = result.values.tolist()
    if not np.isfinite(to_floats(result.values)).all():
        numbers = [_number(value, result.nan_is_null) for value in result.values.tolist()]
    points = zip(times.tolist(), numbers, strict=True)
    return list(points) if arrays else dict(points)


def _number(value: float, nan_is_null: bool) -> int | float | str | None:
    if isinstance(value, int) or math.isfinite(value):
        return value
    if math.isnan(value):
        return None if nan_is_null else "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _query_body(query: SubQuery, answered: Answered) -> dict[str, Any]:
    """A sub query, as TSSubQuery writes it."""
    filters = sorted(query.filters, key=lambda item: answered.key_uids.get(item.key, b""))
    keys = dict.fromkeys(answered.key_uids[item.key] for item in filters if item.key in answered.key_uids)
    return {
        "aggregator": query.aggregator,
        "metric": query.metric,
        "tsuids": list(query.tsuids) or None,
        "downsample": query.downsample,
        "rate": query.is_rate,
        "filters": [
            {"tagk": item.key, "filter": item.text, "group_by": item.group_by, "type": item.kind}
            for item in filters
        ],
        "percentiles": query.percentiles,
        "index": answered.index,
        "rateOptions": None if query.rate_options is None else _rate_options_body(query.rate_options),
        "filterTagKs": [base64.b64encode(uid).decode() for uid in keys] or None,
        "explicitTags": query.explicit_tags,
        "useFuzzyFilter": True,
        "preAggregate": query.pre_aggregate,
        "rollupUsage": _rollup_usage(query.rollup_usage),
        "rollupTable": answered.interval or "raw",
        "showHistogramBuckets": query.has_buckets,
        "useMultiGets": True,
        "tags": {item.key: f"{item.kind}({item.text})" for item in filters if item.group_by},
        "histogramQuery": bool(query.percentiles) or query.has_buckets,
    }


_ROLLUP_USAGES = {"ROLLUP_RAW", "ROLLUP_NOFALLBACK", "ROLLUP_FALLBACK", "ROLLUP_FALLBACK_RAW"}


def _rollup_usage(text: str | None) -> str | None:
    """What was sent, as TsdbQuery.ROLLUP_USAGE.parse reads it."""
    if text is None or text.upper() in _ROLLUP_USAGES:
        return text and text.upper()
    return "ROLLUP_NOFALLBACK"


def _rate_options_body(options: RateOptions) -> dict[str, Any]:
    return {
        "counter": options.is_counter,
        "counterMax": options.counter_max,
        "resetValue": options.reset_value,
        "dropResets": options.drops_resets,
    }
