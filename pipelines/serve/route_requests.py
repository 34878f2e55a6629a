"""The endpoints of the API: a request in, a status and JSON out; what reads and writes have in common.

docs/spec/opentsdb.md §8. What is no endpoint is a 404 in a TSD's words.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson
from google.api_core.exceptions import GoogleAPICallError
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.types import Receive

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.metadata import annotation, ts_meta, uid_meta
from timebeam.pipelines.serve.queries import expressions, query, remote_read
from timebeam.pipelines.serve.searches import last_points, lookup, suggest
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.query.question import NONE
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request, not_found
from timebeam.transforms.query.budget import AbandonedError, OverBudgetError

_LITERALS = (
    "Accepts one or more exact values and matches if the series {match} any of them. Multiple values can be "
    "included and must be separated by the | (pipe) character. The filter is case {case} and will not allow "
    "characters that TSDB does not allow at write time."
)
_WILDCARDS = (
    "Performs pre, post and in-fix glob matching of values. The globs are case {case} and multiple wildcards "
    "can be used. The wildcard character is the * (asterisk). {lower}At least one wildcard must be present "
    "in the filter value. A wildcard by itself can be used as well to match on any value for the tag key."
)
_LOWER = "Case insensitivity is achieved by dropping all values to lower case. "
_REGEXP = (
    "Provides full, POSIX compliant regular expression using the built in Java Pattern class. Note that an "
    "expression containing curly braces {} will not parse properly in URLs. If the pattern is not a valid "
    "regular expression then an exception will be raised."
)
_JSON_EXAMPLE = '{{"type":"{kind}","tagk":"host","filter":"{value}","groupBy":false}}'


def _described(kind: str, description: str, *values: str) -> dict[str, str]:
    examples = [f"host={kind}({value})" for value in values]
    examples.append(_JSON_EXAMPLE.format(kind=kind, value=values[-1]))
    return {"examples": ",  ".join(examples[:-1]) + "  " + examples[-1], "description": description}


def _literal_or(kind: str, match: str, case: str) -> dict[str, str]:
    return _described(kind, _LITERALS.format(match=match, case=case), "web01", "web01|web02|web03")


def _wildcard(kind: str, case: str, lower: str) -> dict[str, str]:
    return _described(kind, _WILDCARDS.format(case=case, lower=lower), "web*", "web*.tsdb.net")


CONFIG_FILTERS = {
    "literal_or": _literal_or("literal_or", "contains", "sensitive"),
    "iliteral_or": _literal_or("iliteral_or", "contains", "insensitive"),
    "not_literal_or": _literal_or("not_literal_or", "does NOT contain", "sensitive"),
    "not_iliteral_or": _literal_or("not_iliteral_or", "does NOT contain", "insensitive"),
    "wildcard": _wildcard("wildcard", "sensitive", ""),
    "iwildcard": _wildcard("iwildcard", "insensitive", _LOWER),
    "regexp": _described("regexp", _REGEXP, ".*"),
}
"""The answer to /api/config/filters: what is known of each type of filter, by its name."""


MOST_PARAMETERS = 1_000


def request_of(method: str, target: str, body: bytes = b"") -> Request:
    """The request of a target; unencoded `{`, `}` and `|` are themselves.

    Raises:
      ApiError: there are more than `MOST_PARAMETERS` parameters.
    """
    path, _, query = target.partition("?")
    parameters: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError as error:
        raise ApiError(f"More than {MOST_PARAMETERS} parameters") from error
    for name, value in pairs:
        parameters.setdefault(name, []).append(value)
    return Request(method.upper(), unquote(path), parameters, body)


async def read_body(
    receive: Receive,
    most_bytes: int,
    seconds: float,
    hold: Callable[[int], None] = lambda _: None,
    advice: str = "",
) -> bytes:
    """The body of a request.

    Args:
      seconds: until all of it has arrived.
      hold: called with the bytes of each part that arrives; raises ApiError if there is no room for it.
      advice: ends the message about a body that is too long.

    Raises:
      ApiError: it is too long, does not arrive in time, or there is no room for it.
      ClientDisconnect: the client has gone.
    """
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > most_bytes:
                    raise ApiError(f"The body has more than {most_bytes:,} bytes{advice}", 413)
                hold(len(chunk))
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError as error:
        raise ApiError(f"The body did not arrive within {seconds:g} seconds", 408) from error


TSD_VERSION = "2.4.1"
"""The version of OpenTSDB whose answers these are: what clients look at."""


GRAFANA = "/grafana"
"""What paths begin with for answers without points that are NaN or null."""

SKIPPED = "X-Timebeam-Skipped"
"""The header that says how many rows could not be read; they are in the log."""


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request.

    Attributes:
      body: what its JSON holds; or the bytes of it, or of another type.
    """

    status: int
    body: Any
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    media_type: str = "application/json; charset=UTF-8"


_LOG = logging.getLogger("timebeam.serve")
_CLIENT_CLOSED = 499


class UnavailableError(ApiError):
    """A request cannot be taken now: 503, with the time to wait before the next try."""

    def __init__(self, why: str) -> None:
        super().__init__(why, 503, headers={"Retry-After": "5"})


def error_of(error: Exception) -> ApiError:
    """What a client is told of any error, without a trace; what is not its own fault is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OverBudgetError):
        return ApiError(str(error), 413)
    if isinstance(error, AbandonedError | ClientDisconnect):
        return ApiError("Client disconnected", _CLIENT_CLOSED)
    if isinstance(error, GoogleAPICallError):
        _LOG.error("Bigtable: %s", error)
        return ApiError(f"Bigtable: {type(error).__name__}", 503, headers={"Retry-After": "1"})
    _LOG.error("an error of the server", exc_info=error)
    return ApiError("Internal server error; see the log", 500)


def rejection(error: Exception) -> Response:
    """The answer to a request that failed, as a TSD words it."""
    answered = error_of(error)
    return Response(answered.status, answered.body(), answered.headers)


def as_json(body: Any) -> bytes:
    """The JSON of the body of an answer; bytes are one already.

    Text of a request may have half of a surrogate pair, which no UTF-8 can hold: a `?` is in its place.
    """
    if isinstance(body, bytes):
        return body
    try:
        return orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return orjson.dumps(_encodable(body), option=orjson.OPT_NON_STR_KEYS)


def _encodable(value: Any) -> Any:
    """The same values without halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(member) for key, member in value.items()}
    return [_encodable(member) for member in value] if isinstance(value, list | tuple) else value


def respond(api: Api, request: Request) -> Response:
    """The answer to a request; an error of the client's is an answer too.

    Raises:
      AbandonedError: the client has gone.
      GoogleAPICallError: Bigtable failed.
    """
    try:
        path = request.path.rstrip("/")
        if path.startswith(GRAFANA):
            path = path.removeprefix(GRAFANA)
            request = dataclasses.replace(request, leaves_out_nan=True)
        if path not in ENDPOINTS:
            raise not_found()
        methods, answer = ENDPOINTS[path]
        if request.method not in methods:
            details = f"The HTTP method [{request.method}] is not permitted for this endpoint"
            raise ApiError("Method not allowed", 405, details)
        body = answer(api, request)
    except (ApiError, OverBudgetError) as error:
        return rejection(error)
    skipped = {SKIPPED: str(len(api.skipped))} if api.skipped else {}
    if isinstance(body, bytes):
        return Response(200, body, {"Content-Encoding": "snappy", **skipped}, "application/x-protobuf")
    return Response(200, body, skipped)


def version(*_: object) -> Any:
    """The answer to /api/version."""
    return {"version": TSD_VERSION, "repo": "timebeam", "timebeam": _own_version()}


@functools.cache
def _own_version() -> str:
    return importlib.metadata.version("timebeam")


READS = {
    "timebeam_requests_total": ("endpoint", "status"),
    "timebeam_response_seconds_total": ("endpoint",),
    "timebeam_response_bytes_total": ("endpoint",),
}
WRITES = {
    "timebeam_writes_total": ("endpoint", "status"),
    "timebeam_written_points_total": ("endpoint", "outcome"),
    "timebeam_write_skipped_total": ("endpoint", "kind"),
}
"""The labels of all counters, by name."""


class Counters:
    """Counters of one process, by the values of their labels; only its event loop changes them."""

    def __init__(self, labels: Mapping[str, Sequence[str]]) -> None:
        """`labels`: see `READS`."""
        self._labels = labels
        self._counts = {name: collections.Counter[tuple[object, ...]]() for name in labels}

    def add(self, name: str, amount: float, *values: object) -> None:
        """Adds to a counter.

        Args:
          values: of its labels.
        """
        self._counts[name][values] += amount  # type: ignore[assignment]

    def text(self, **gauges: int) -> str:
        """All counters and some gauges, in the format of Prometheus."""
        lines = []
        for name, counts in self._counts.items():
            lines.append(f"# TYPE {name} counter")
            for values, amount in sorted(counts.items()):
                labels = ",".join(
                    f'{label}="{value}"' for label, value in zip(self._labels[name], values, strict=True)
                )
                shown = f"{amount:g}" if isinstance(amount, float) else str(amount)
                lines.append(f"{name}{{{labels}}} {shown}")
        for name, value in gauges.items():
            lines += [f"# TYPE timebeam_{name} gauge", f"timebeam_{name} {value}"]
        return "\n".join(lines) + "\n"


_GET, _GET_POST, _POST = ("GET",), ("GET", "POST"), ("POST",)

ENDPOINTS: dict[str, tuple[Sequence[str], Callable[[Api, Request], Any]]] = {
    "/api/aggregators": (_GET_POST, lambda *_: [*AGGREGATORS, NONE]),
    "/api/annotation": (_GET, annotation),
    "/api/config/filters": (_GET_POST, lambda *_: CONFIG_FILTERS),
    "/api/query": (_GET_POST, query),
    "/api/query/gexp": (_GET, expressions),
    "/api/query/last": (_GET_POST, last_points),
    "/api/search/lookup": (_GET_POST, lookup),
    "/api/suggest": (_GET_POST, suggest),
    "/api/uid/tsmeta": (_GET, ts_meta),
    "/api/uid/uidmeta": (_GET, uid_meta),
    "/api/v1/read": (_POST, remote_read),
    "/api/version": (_GET_POST, version),
}
"""The methods and the function of each path, without the slash at the end."""


def _plotly() -> bytes:
    """Plotly's own file for browsers, out of its Python package."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.encode()


_FOLDER = Path(__file__).parent
PAGE = {
    "/": ("text/html", lambda: (_FOLDER / "page.html").read_bytes()),
    "/page.js": ("text/javascript", lambda: (_FOLDER / "page.js").read_bytes()),
    "/plotly.js": ("text/javascript", _plotly),
}
"""The files of the page, by path: their types, and what reads them."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


async def show_page(http: HttpRequest) -> HttpResponse:
    """A file of the page; it loads nothing from elsewhere."""
    media_type, read = PAGE[http.url.path]
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "max-age=3600"}
    return HttpResponse(await asyncio.to_thread(read), headers=headers, media_type=media_type)
