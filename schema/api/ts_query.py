"""A query of the API, checked: core/TSQuery and core/TSSubQuery of OpenTSDB 2.4.1.

docs/spec/opentsdb.md §8.1 and §8.2. The two readers are `uri_query` (GET) and `json_query` (POST).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from timebeam.schema.api.downsamplings import parse_downsampling
from timebeam.schema.api.errors import ApiError
from timebeam.schema.api.times import check_zone, parse_time
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.numbers import RateOptions
from timebeam.schema.query.question import NONE, Question, TagFilter, literals_of

MOST_FILTERS = 64
"""Of all sub queries of a request: regular expressions are compiled before anything is read."""


@dataclasses.dataclass(frozen=True, slots=True)
class RawSubQuery:
    """A query of one metric as it was sent.

    Attributes:
      tsuids: hex; instead of the metric.
      rate_options: None if none were sent.
      has_buckets: whether counts of buckets of histograms were asked for.
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

    @property
    def group_by(self) -> list[str]:
        """The tag keys that its results are told apart by."""
        return list(dict.fromkeys(tag_filter.key for tag_filter in self.filters if tag_filter.group_by))


@dataclasses.dataclass(frozen=True, slots=True)
class RawQuery:
    """A query as it was sent; what it leaves out is None."""

    start: str | None
    end: str | None
    queries: Sequence[RawSubQuery]
    milliseconds: bool = False
    show_tsuids: bool = False
    show_query: bool = False
    show_stats: bool = False
    show_summary: bool = False
    no_annotations: bool = False
    global_annotations: bool = False
    timezone: str | None = None
    use_calendar: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SubQuery:
    """A query of one metric, checked."""

    raw: RawSubQuery
    downsampling: Downsampling | None


@dataclasses.dataclass(frozen=True, slots=True)
class TsQuery:
    """A query, checked.

    Attributes:
      start_ms, end_ms: the range, both inclusive.
      queries: each once.
    """

    raw: RawQuery
    start_ms: int
    end_ms: int
    queries: Sequence[SubQuery]

    def question(self, sub_query: SubQuery) -> Question:
        """What a sub query asks, which is of a metric."""
        raw = sub_query.raw
        assert raw.aggregator
        rate = (raw.rate_options or RateOptions()) if raw.is_rate else None
        return Question(
            raw.metric or "",
            literals_of(raw.filters),
            raw.group_by,
            raw.aggregator,
            sub_query.downsampling,
            self.start_ms,
            self.end_ms,
            rate,
            raw.filters,
            raw.explicit_tags,
        )


def check_filters(count: int) -> None:
    """Refuses a request with more than `MOST_FILTERS` filters, before they are made.

    Raises:
      ApiError: there are more.
    """
    if count > MOST_FILTERS:
        raise ApiError(
            f"The request has {count:,} filters of tags; at most {MOST_FILTERS} are allowed. Name several "
            "values in one filter, or send several requests",
            413,
        )


def checked(raw: RawQuery, now_ms: int) -> TsQuery:
    """A query with its times and its sub queries checked (TSQuery.validateAndSetQuery).

    Args:
      now_ms: what `now` and a missing end mean.

    Raises:
      ApiError: something is missing or wrong, in a TSD's words.
    """
    try:
        if not raw.start:
            raise ValueError("Missing start time")
        start_ms = parse_time(raw.start, raw.timezone, now_ms)
        end_ms = parse_time(raw.end, raw.timezone, now_ms) if raw.end else now_ms
        if end_ms <= start_ms:
            raise ValueError(f"End time [{end_ms}] must be greater than the start time [{start_ms}]")
        if not raw.queries:
            raise ValueError("Missing queries")
        return TsQuery(raw, start_ms, end_ms, [_checked_sub_query(raw, query) for query in raw.queries])
    except ValueError as error:
        raise ApiError(str(error)) from error


def _checked_sub_query(raw: RawQuery, query: RawSubQuery) -> SubQuery:
    if not query.aggregator:
        raise ValueError("Missing the aggregation function")
    if query.aggregator != NONE and query.aggregator not in AGGREGATORS:
        raise ValueError(f"No such aggregation function: {query.aggregator}")
    if not query.tsuids and not query.metric:
        raise ValueError("Missing the metric or tsuids, provide at least one")
    if not query.downsample:
        return SubQuery(query, None)
    if raw.timezone:
        try:
            check_zone(raw.timezone)
        except ValueError as error:
            raise ValueError("The timezone specification could not be found") from error
    return SubQuery(query, parse_downsampling(query.downsample, raw.use_calendar, raw.timezone or "UTC"))
