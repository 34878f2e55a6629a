"""A query out of the JSON body of a POST: core/TSQuery as Jackson reads it for OpenTSDB 2.4.1.

docs/spec/opentsdb.md §8.2. Unknown members are passed over; null is the same as none.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from timebeam.schema.api.errors import ApiError
from timebeam.schema.api.request import Request
from timebeam.schema.api.ts_query import RawQuery, RawSubQuery, check_filters
from timebeam.schema.query.numbers import MAX_COUNTER, RateOptions
from timebeam.schema.query.question import TagFilter

_Long = Annotated[int, msgspec.Meta(ge=-MAX_COUNTER, le=MAX_COUNTER)]
_Flag = bool | None
_Text = str | None


class _Filter(msgspec.Struct, rename="camel"):
    type: _Text = None
    tagk: _Text = None
    filter: _Text = None
    group_by: _Flag = None


class _RateOptions(msgspec.Struct, rename="camel"):
    counter: _Flag = None
    counter_max: _Long | None = None
    reset_value: _Long | None = None
    drop_resets: _Flag = None


class _SubQuery(msgspec.Struct, rename="camel"):
    aggregator: _Text = None
    metric: _Text = None
    tsuids: list[str] | None = None
    downsample: _Text = None
    rate: _Flag = None
    rate_options: _RateOptions | None = None
    tags: dict[str, str] | None = None
    filters: list[_Filter] | None = None
    explicit_tags: _Flag = None
    pre_aggregate: _Flag = None
    rollup_usage: _Text = None
    percentiles: list[float] | None = None
    show_histogram_buckets: _Flag = None


class _Query(msgspec.Struct, rename="camel"):
    start: str | int | float | None = None
    end: str | int | float | None = None
    queries: list[_SubQuery] | None = None
    ms_resolution: _Flag = None
    show_tsuids: _Flag = msgspec.field(default=None, name="showTSUIDs")
    show_query: _Flag = None
    show_stats: _Flag = None
    show_summary: _Flag = None
    no_annotations: _Flag = None
    global_annotations: _Flag = None
    timezone: _Text = None
    use_calendar: _Flag = None


def json_query(request: Request) -> RawQuery:
    """The query of the body of a request.

    Raises:
      ApiError: it is no JSON, or not that of a query, in a TSD's words.
    """
    try:
        body: _Query = msgspec.convert(request.json(), _Query, strict=False)
        check_filters(sum(len(query.filters or ()) + len(query.tags or ()) for query in body.queries or ()))
        queries = [_sub_query(query) for query in body.queries or ()]
        start, end = _time(body.start), _time(body.end)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise ApiError("Unable to parse the given JSON", details=str(error)) from error
    return RawQuery(
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


def _sub_query(query: _SubQuery) -> RawSubQuery:
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
    return RawSubQuery(
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
