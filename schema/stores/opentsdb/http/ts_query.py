"""A query of the API, checked: core/TSQuery and core/TSSubQuery of OpenTSDB 2.4.1.

docs/spec/opentsdb.md §8.1 and §8.2. The JSON body of a POST is read here, as by Jackson (unknown members
are ignored, null is the same as none); `uri_query` reads a GET.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from timebeam.schema.query.aggregate import AGGREGATORS, MAX_COUNTER, RateOptions
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.question import NONE, Question, TagFilter, literals_of
from timebeam.schema.stores.opentsdb.http.api_request import (
    ApiError,
    Request,
    check_zone,
    parse_downsampling,
    parse_time,
)

MOST_FILTERS = 64
"""Of all sub queries of a request: regular expressions are compiled before anything is read."""


@dataclasses.dataclass(frozen=True, slots=True)
class SubQuery:
    """A query of one metric as it was sent.

    Attributes:
      tsuids: hex; instead of the metric.
      rate_options: None if none were sent.
      has_buckets: whether counts of buckets of histograms were asked for.
      downsampling: what `downsample` describes, once `checked`.
    """

    aggregator: str | None = None
    metric: str | None = None
    tsuids: Sequence[str] = ()
    downsample: str | None = None
    is_rate: bool = False
    rate_options: RateOptions | None = None
    filters: Sequence[TagFilter] = ()
    explicit_tags: bool = False
    pre_aggregate: bool = False
    rollup_usage: str | None = None
    percentiles: Sequence[float] | None = None
    has_buckets: bool = False
    downsampling: Downsampling | None = dataclasses.field(default=None, compare=False)

    @property
    def group_by(self) -> list[str]:
        """The tag keys that its results are told apart by."""
        return list(dict.fromkeys(tag_filter.key for tag_filter in self.filters if tag_filter.group_by))


@dataclasses.dataclass(frozen=True, slots=True)
class TsQuery:
    """A query as it was sent; what it leaves out is None.

    Attributes:
      start_ms, end_ms: the range, both inclusive, once `checked`.
    """

    start: str | None
    end: str | None
    queries: Sequence[SubQuery]
    milliseconds: bool = False
    show_tsuids: bool = False
    show_query: bool = False
    show_stats: bool = False
    show_summary: bool = False
    no_annotations: bool = False
    global_annotations: bool = False
    timezone: str | None = None
    use_calendar: bool = False
    start_ms: int = 0
    end_ms: int = 0

    def question(self, query: SubQuery) -> Question:
        """What a sub query asks, which is of a metric."""
        assert query.aggregator
        rate = (query.rate_options or RateOptions()) if query.is_rate else None
        return Question(
            query.metric or "",
            literals_of(query.filters),
            query.group_by,
            query.aggregator,
            query.downsampling,
            self.start_ms,
            self.end_ms,
            rate,
            query.filters,
            query.explicit_tags and bool(query.filters),  # without filters a TSD makes no scan filter of it
        )


def check_filters(count: int) -> None:
    """Rejects a request with more than `MOST_FILTERS` filters, before they are made.

    Raises:
      ApiError: there are more.
    """
    if count > MOST_FILTERS:
        raise ApiError(
            f"The request has {count:,} filters of tags; at most {MOST_FILTERS} are allowed. Name several "
            "values in one filter, or send several requests",
            413,
        )


def checked(query: TsQuery, now_ms: int) -> TsQuery:
    """A query with its times and its sub queries checked (TSQuery.validateAndSetQuery).

    Args:
      now_ms: what `now` and a missing end mean.

    Raises:
      ApiError: something is missing or wrong, in a TSD's words.
    """
    try:
        if not query.start:
            raise ValueError("Missing start time")
        start_ms = parse_time(query.start, query.timezone, now_ms)
        end_ms = parse_time(query.end, query.timezone, now_ms) if query.end else now_ms
        if end_ms <= start_ms:
            raise ValueError(f"End time [{end_ms}] must be greater than the start time [{start_ms}]")
        if not query.queries:
            raise ValueError("Missing queries")
        queries = [_checked_sub_query(query, sub_query) for sub_query in query.queries]
        return dataclasses.replace(query, queries=queries, start_ms=start_ms, end_ms=end_ms)
    except ValueError as error:
        raise ApiError(str(error)) from error


def _checked_sub_query(query: TsQuery, sub_query: SubQuery) -> SubQuery:
    if not sub_query.aggregator:
        raise ValueError("Missing the aggregation function")
    if sub_query.aggregator != NONE and sub_query.aggregator not in AGGREGATORS:
        raise ValueError(f"No such aggregation function: {sub_query.aggregator}")
    if not sub_query.tsuids and not sub_query.metric:
        raise ValueError("Missing the metric or tsuids, provide at least one")
    if not sub_query.downsample:
        return sub_query
    if query.timezone:
        try:
            check_zone(query.timezone)
        except ValueError as error:
            raise ValueError("The timezone specification could not be found") from error
    how = parse_downsampling(sub_query.downsample, query.use_calendar, query.timezone or "UTC")
    return dataclasses.replace(sub_query, downsampling=how)


_Long = Annotated[int, msgspec.Meta(ge=-MAX_COUNTER, le=MAX_COUNTER)]
_Flag = bool | None
_Text = str | None


class _JsonFilter(msgspec.Struct, rename="camel"):
    type: _Text = None
    tagk: _Text = None
    filter: _Text = None
    group_by: _Flag = None


class _JsonRate(msgspec.Struct, rename="camel"):
    counter: _Flag = None
    counter_max: _Long | None = None
    reset_value: _Long | None = None
    drop_resets: _Flag = None


class _JsonSubQuery(msgspec.Struct, rename="camel"):
    aggregator: _Text = None
    metric: _Text = None
    tsuids: list[str] | None = None
    downsample: _Text = None
    rate: _Flag = None
    rate_options: _JsonRate | None = None
    tags: dict[str, str] | None = None
    filters: list[_JsonFilter] | None = None
    explicit_tags: _Flag = None
    pre_aggregate: _Flag = None
    rollup_usage: _Text = None
    percentiles: list[float] | None = None
    show_histogram_buckets: _Flag = None


class _JsonQuery(msgspec.Struct, rename="camel"):
    start: str | int | float | None = None
    end: str | int | float | None = None
    queries: list[_JsonSubQuery] | None = None
    ms_resolution: _Flag = None
    show_tsuids: _Flag = msgspec.field(default=None, name="showTSUIDs")
    show_query: _Flag = None
    show_stats: _Flag = None
    show_summary: _Flag = None
    no_annotations: _Flag = None
    global_annotations: _Flag = None
    timezone: _Text = None
    use_calendar: _Flag = None


def json_query(request: Request) -> TsQuery:
    """The query of the body of a request.

    Raises:
      ApiError: it is no JSON, or not that of a query, in a TSD's words.
    """
    try:
        body: _JsonQuery = msgspec.convert(request.json(), _JsonQuery, strict=False)
        check_filters(sum(len(query.filters or ()) + len(query.tags or ()) for query in body.queries or ()))
        queries = [_sub_query(query) for query in body.queries or ()]
        start, end = _time(body.start), _time(body.end)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise ApiError("Unable to parse the given JSON", details=str(error)) from error
    return TsQuery(
        start,
        end,
        queries,
        bool(body.ms_resolution),
        bool(body.show_tsuids),
        bool(body.show_query),
        bool(body.show_stats),
        bool(body.show_summary),
        bool(body.no_annotations),
        bool(body.global_annotations),
        body.timezone,
        bool(body.use_calendar),
    )


def _sub_query(query: _JsonSubQuery) -> SubQuery:
    """A sub query; its old `tags` are filters that group."""
    filters = [
        TagFilter((item.type or "").lower(), item.tagk or "", item.filter or "", bool(item.group_by))
        for item in query.filters or ()
    ]
    filters += [TagFilter.of_value(key, value, group_by=True) for key, value in (query.tags or {}).items()]
    rate_options = None
    if query.rate_options is not None:
        sent = query.rate_options
        maximum = MAX_COUNTER if sent.counter_max is None else sent.counter_max
        rate_options = RateOptions(bool(sent.counter), maximum, sent.reset_value or 0, bool(sent.drop_resets))
    return SubQuery(
        query.aggregator,
        query.metric,
        tuple(text.upper() for text in query.tsuids or ()),
        query.downsample,
        bool(query.rate),
        rate_options,
        tuple(filters),
        bool(query.explicit_tags),
        bool(query.pre_aggregate),
        query.rollup_usage,
        None if query.percentiles is None else tuple(query.percentiles),
        bool(query.show_histogram_buckets),
    )


def _time(value: Any) -> str | None:
    """A time as text: a number as its digits."""
    if value is None or isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else repr(value)
