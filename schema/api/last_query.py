"""/api/query/last: which series' last points are asked for.

tsd/QueryRpc.parseLastPointQuery of OpenTSDB 2.4.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from timebeam.schema.api.errors import ApiError
from timebeam.schema.api.request import Request
from timebeam.schema.points import Series


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
