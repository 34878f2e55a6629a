"""/api/query/last, /api/suggest and /api/search/lookup: requests checked, answers in JSON.

tsd/QueryRpc.parseLastPointQuery, tsd/SuggestRpc, tsd/SearchRpc and search/TimeSeriesLookup of OpenTSDB
2.4.1; docs/spec/opentsdb.md §8.5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from timebeam.schema.core.points import Series
from timebeam.schema.series.series_patterns import Listed
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request


@dataclasses.dataclass(frozen=True, slots=True)
class LastQuery:
    """Series, by name or TSUID.

    Attributes:
      series: with exactly these tags if `back_scan` is more than 0, else with these tags and perhaps others.
      tsuids: in hex.
      resolves_names: whether the answer has metrics and tags.
      back_scan: hours from now to look back; 0 for the hour of the last write that the meta table knows.
    """

    series: Sequence[Series]
    tsuids: Sequence[str]
    resolves_names: bool
    back_scan: int


def last_query(request: Request) -> LastQuery:
    """The query of a request.

    Raises:
      ApiError: something is missing or wrong, in a TSD's words.
    """
    query = _posted(request.json()) if request.method == "POST" else _of_parameters(request)
    if not query.series and not query.tsuids:
        raise ApiError("Missing sub queries")
    return query


def _of_parameters(request: Request) -> LastQuery:
    try:
        back_scan = int(request.parameter("back_scan") or 0)
    except ValueError as error:
        raise ApiError("Unable to parse back_scan parameter") from error
    tsuids = [text for value in request.parameters.get("tsuids", ()) for text in value.split(",") if text]
    series = [_series(text) for text in request.parameters.get("timeseries", ())]
    return LastQuery(series, tsuids, request.has("resolve"), max(0, back_scan))


def _posted(body: Any) -> LastQuery:
    series, tsuids = [], []
    try:
        for query in body.get("queries") or ():
            tsuids += [str(text) for text in query.get("tsuids") or ()]
            if query.get("metric"):
                tags = {str(key): str(value) for key, value in (query.get("tags") or {}).items()}
                series.append(Series.of(str(query["metric"]), tags))
        return LastQuery(
            series, tsuids, bool(body.get("resolveNames")), max(0, int(body.get("backScan") or 0))
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ApiError("Unable to parse the given JSON", details=str(error)) from error


def _series(text: str) -> Series:
    """`metric{key=value,…}`."""
    metric, brace, rest = text.partition("{")
    if brace and not rest.endswith("}"):
        raise ApiError(f"Missing '}}' at the end of: {text}")
    tags: dict[str, str] = {}
    for tag in rest[:-1].split(",") if brace and rest != "}" else ():
        key, equals, value = tag.partition("=")
        if not key or not equals or not value or "=" in value:
            raise ApiError(f"When parsing tag '{tag}': invalid tag: {tag}")
        tags[key] = value
    return Series.of(metric, tags)


SUGGEST_LIMIT = LOOKUP_LIMIT = 25
"""The most answers to a request that names no limit."""

_KINDS = ("metrics", "tagk", "tagv")
_INT_MAX = 2**31 - 1

_Int = Annotated[int, msgspec.Meta(ge=-_INT_MAX, le=_INT_MAX)]


class _Suggest(msgspec.Struct):
    type: str | None = None
    q: str | None = None
    max: _Int | str | None = None


class _Tag(msgspec.Struct):
    key: str | None = None
    value: str | None = None


class _Lookup(msgspec.Struct, rename="camel"):
    metric: str | None = None
    tags: list[_Tag] | None = None
    limit: _Int | None = None
    use_meta: bool | None = None


_Body = TypeVar("_Body", bound=msgspec.Struct)


@dataclasses.dataclass(frozen=True, slots=True)
class SuggestQuery:
    """Names of a kind that begin with a string, at most `limit`."""

    kind: str
    start: str
    limit: int


@dataclasses.dataclass(frozen=True, slots=True)
class LookupQuery:
    """Which series are looked for.

    Attributes:
      metric: None for any.
      tags: (key, value) pairs that a series must have, None for any.
      limit: 0 for all.
      use_meta: whether the meta table may answer; else each row of the data table is an answer, so that a
        series comes once for every hour.
    """

    metric: str | None
    tags: tuple[tuple[str | None, str | None], ...]
    limit: int
    use_meta: bool

    def takes(self, series: Series) -> bool:
        """Whether a series is looked for."""
        if self.metric not in (None, "*", series.metric):
            return False
        return all(
            any(key in (None, tag[0]) and value in (None, tag[1]) for tag in series.tags)
            for key, value in self.tags
        )

    def names(self) -> Iterator[tuple[str, str]]:
        """(kind, name) of the names that must be known."""
        if self.metric not in (None, "*"):
            yield "metrics", self.metric or ""
        for key, value in self.tags:
            if key is not None:
                yield "tagk", key
            if value is not None:
                yield "tagv", value


def suggest_query(request: Request) -> SuggestQuery:
    """The names that a request looks for.

    Raises:
      ApiError: a parameter is missing or wrong.
    """
    if request.method == "POST":
        body = _converted(request.json(), _Suggest)
        if not body.type:
            raise ApiError("Missing 'type' parameter")
        kind, start, limit = body.type, body.q or "", str(body.max or "")
    else:
        kind = request.required("type")
        start, limit = request.parameter("q") or "", request.parameter("max") or ""
    number = _whole(limit, "Unable to parse 'max' as a number") if limit else 0
    if kind not in _KINDS:
        raise ApiError(f"Invalid 'type' parameter:{kind}")
    return SuggestQuery(kind, start, number if number > 0 else SUGGEST_LIMIT)


def lookup_query(request: Request) -> LookupQuery:
    """The series that a request looks for.

    Raises:
      ApiError: a parameter is missing or wrong.
    """
    if request.body:
        query = _posted_lookup(request.json())
    else:
        metric, tags = metric_and_tags(request.required("m"))
        limit = request.parameter("limit")
        number = LOOKUP_LIMIT
        if limit is not None:
            number = _whole(limit, "Unable to convert 'limit' to a valid number")
        query = LookupQuery(metric or None, tuple(tags), number, use_meta=True)
    if query.metric is None and not query.tags:
        raise ApiError("Missing metric and tags. Please supply at least one value.")
    return query


def lookup_body(query: LookupQuery, results: Iterable[Listed], milliseconds: float) -> dict[str, Any]:
    """The answer to a lookup.

    Args:
      milliseconds: how long it took.
    """
    members = [
        {
            "tsuid": result.tsuid.hex().upper() if result.tsuid else "",
            "metric": result.series.metric,
            "tags": dict(result.series.tags),
        }
        for result in results
    ]
    return {
        "type": "LOOKUP",
        **({} if query.metric is None else {"metric": query.metric}),
        "tags": [
            {"key": "*" if key is None else key, "value": "*" if value is None else value}
            for key, value in query.tags
        ],
        "limit": query.limit,
        "time": milliseconds,
        "results": members,
        "startIndex": 0,
        "totalResults": len(members),
    }


def _posted_lookup(body: Any) -> LookupQuery:
    """The lookup of a JSON body."""
    lookup = _converted(body, _Lookup)
    tags = tuple((_name(tag.key), _name(tag.value)) for tag in lookup.tags or ())
    limit = LOOKUP_LIMIT if lookup.limit is None else lookup.limit
    return LookupQuery(lookup.metric or None, tags, limit, lookup.use_meta is not False)


def _converted(body: Any, kind: type[_Body]) -> _Body:
    """A JSON body, its types checked."""
    try:
        return msgspec.convert(body, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError("Unable to parse the given JSON", details=str(error)) from error


def metric_and_tags(text: str) -> tuple[str, list[tuple[str | None, str | None]]]:
    """`metric{key=value,key=*,*=value,key=,=value}` (core/Tags.parseWithMetric).

    >>> metric_and_tags("sys.cpu.user{host=}")
    ('sys.cpu.user', [('host', None)])
    """
    metric, brace, rest = text.partition("{")
    if not brace:
        return text, []
    if not rest.endswith("}"):
        raise ApiError("Unable to parse query", details=f"Missing '}}' at the end of: {text}")
    tags = []
    for tag in rest[:-1].split(",") if rest != "}" else ():
        key, equals, value = tag.partition("=")
        if not equals or "=" in value or not (key or value):
            raise ApiError("Unable to parse query", details=f"When parsing tag '{tag}': invalid tag: {tag}")
        tags.append((_name(key), _name(value)))
    return metric, tags


def _name(text: str | None) -> str | None:
    """A name; None for `*`, and for nothing."""
    return None if text in (None, "", "*") else text


def _whole(text: str, message: str) -> int:
    """A whole number of 32 bits, as Java's Integer.parseInt takes it."""
    try:
        number = int(text)
        if not -_INT_MAX <= number <= _INT_MAX:
            raise ValueError(f"{text} is not between {-_INT_MAX:,} and {_INT_MAX:,}")
    except ValueError as error:
        raise ApiError(message, details=str(error)) from error
    return number
