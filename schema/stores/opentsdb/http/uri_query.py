"""A query out of the parameters of a GET: tsd/QueryRpc.parseQuery of OpenTSDB 2.4.1.

docs/spec/opentsdb.md §8.1. This TSD reads no time zone and no calendar from a query string.
"""

from __future__ import annotations

from collections.abc import Sequence

from timebeam.schema.query.aggregate import RateOptions
from timebeam.schema.query.question import TagFilter, rate_options
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request
from timebeam.schema.stores.opentsdb.http.ts_query import SubQuery, TsQuery, check_filters

_MOST_WORDS = 5


def uri_query(request: Request, expressions: Sequence[str] = ()) -> TsQuery:
    """The query of a request.

    Args:
      expressions: queries in the form of `m`, beside those of the request.

    Raises:
      ApiError: a parameter is missing or wrong, in a TSD's words.
    """
    start = request.required("start")
    texts = list(dict.fromkeys([*request.parameters.get("m", ()), *expressions]))
    check_filters(sum(text.count("=") for text in texts))  # a filter has one; in its value it is rejected
    queries = [_sub_query(text, of_tsuids=True) for text in request.parameters.get("tsuid", ())]
    queries += [metric_sub_query(text) for text in texts]
    if not queries:
        raise ApiError("Missing sub queries")
    return TsQuery(
        start,
        request.parameter("end"),
        list(dict.fromkeys(queries)),
        milliseconds=request.has("ms"),
        show_tsuids=request.has("show_tsuids"),
        show_query=request.has("show_query"),
        show_stats=request.has("show_stats"),
        show_summary=request.has("show_summary"),
        no_annotations=request.has("no_annotations"),
        global_annotations=request.has("global_annotations"),
    )


def metric_sub_query(text: str) -> SubQuery:
    """The query that a text in the form of `m` describes.

    >>> query = metric_sub_query("sum:explicit_tags:rate:1m-sum:sys.cpu.0{host=web01}")
    >>> query.aggregator, query.downsample, query.is_rate, query.explicit_tags, query.metric
    ('sum', '1m-sum', True, True, 'sys.cpu.0')
    >>> [(each.kind, each.key, each.text, each.group_by) for each in query.filters]
    [('literal_or', 'host', 'web01', True)]

    Raises:
      ApiError: it is wrong, in a TSD's words.
    """
    return _sub_query(text, of_tsuids=False)


def _sub_query(text: str, *, of_tsuids: bool) -> SubQuery:
    """`aggregator:…:metric{…}{…}`, or with TSUIDs in place of the metric."""
    if not text:
        raise ApiError("The tsuid query string was empty" if of_tsuids else "The query string was empty")
    words = text.split(":")
    if not 2 <= len(words) <= _MOST_WORDS:
        amount = "not enough" if len(words) < 2 else "too many"
        raise ApiError(f"Invalid parameter m={text} ({amount} :-separated parts)")
    metric, filters, tsuids = None, tuple[TagFilter, ...](), tuple[str, ...]()
    if of_tsuids:
        tsuids = tuple(words[-1].upper().split(","))
    else:
        try:
            metric, filters = metric_and_filters(words[-1])
        except ValueError as error:
            raise ApiError(str(error)) from error
    downsample, rate, rollup_usage = None, None, None
    percentiles: tuple[float, ...] | None = None
    starts = [word.lower() for word in words[1:-1]]
    for word in words[1:-1]:
        lower = word.lower()
        if lower.startswith("rate"):
            rate = _rate(word) if "{" in word else rate
        elif word[:1].isdigit():
            downsample = word
        elif lower.startswith("rollup_"):
            rollup_usage = word
        elif lower.startswith("percentiles"):
            percentiles = _percentiles(word)
    return SubQuery(
        words[0],
        metric,
        tsuids,
        downsample,
        any(word.startswith("rate") for word in starts),
        rate,
        filters,
        any(word.startswith("explicit_tags") for word in starts) and not of_tsuids,
        "pre-agg" in starts,
        rollup_usage,
        percentiles,
        any(word.startswith("show-histogram-buckets") for word in starts),
    )


def metric_and_filters(text: str) -> tuple[str, tuple[TagFilter, ...]]:
    """The metric of `metric{…}{…}`, and the filters of its braces; the first ones group (core/Tags).

    Raises:
      ValueError: braces or filters are wrong, in a TSD's words.
    """
    if not text:
        raise ValueError("Metric cannot be null or empty")
    metric, brace, _ = text.partition("{")
    if not brace:
        return text, ()
    if not text.endswith("}"):
        raise ValueError(f"Missing '}}' at the end of: {text}")
    if len(metric) == len(text) - 2:
        return metric, ()
    close = text.index("}")
    has_second = close != len(text) - 1
    filters: list[TagFilter] = []
    if has_second:
        for filter_text in text[text.rindex("{") + 1 : -1].split(","):
            if not filter_text:
                break
            filters.append(_filter(filter_text, "filter", group_by=False))
    for tag_text in text[len(metric) + 1 : close].split(","):
        if not tag_text and has_second:
            break
        grouping = _filter(tag_text, "tag", group_by=True)
        filters = [other for other in filters if not _is_same(other, grouping)] + [grouping]
    return metric, tuple(filters)


def _is_same(first: TagFilter, second: TagFilter) -> bool:
    """Whether two filters pass the same values, whether they group or not."""
    return (first.kind, first.key, first.text, first.ignores_case) == (
        second.kind,
        second.key,
        second.text,
        second.ignores_case,
    )


def _filter(text: str, noun: str, *, group_by: bool) -> TagFilter:
    """The filter `key=value`."""
    key, equals, value = text.partition("=")
    try:
        if not key or not equals or not value or "=" in value:
            raise ValueError(f"invalid tag: {text}")
        return TagFilter.of_value(key, value, group_by=group_by)
    except ValueError as error:
        raise ValueError(f"When parsing {noun} '{text}': {error}") from error


def _rate(text: str) -> RateOptions:
    try:
        return rate_options(text)
    except ValueError as error:
        raise ApiError(str(error)) from error


def _percentiles(text: str) -> tuple[float, ...]:
    """`percentiles[50,99.9]`."""
    start, end = text.find("["), text.find("]")
    try:
        if start < 0 or end < start:
            raise ValueError(text)
        return tuple(float(word) for word in text[start + 1 : end].split(","))
    except ValueError as error:
        raise ApiError(f"Malformated percentile query paramater: {text}") from error
