"""The endpoints of the API: a request in, a status and JSON out. No HTTP here.

docs/spec/opentsdb.md §8. What is no endpoint is a 404 in a TSD's words.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.last import last_points
from timebeam.pipelines.serve.queries import check_method, expressions, query
from timebeam.pipelines.serve.remote_read import remote_read
from timebeam.pipelines.serve.searches import lookup, suggest, uid_meta
from timebeam.schema.api.errors import ApiError, not_found
from timebeam.schema.api.filter_texts import CONFIG_FILTERS
from timebeam.schema.api.request import Request
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.query.question import NONE
from timebeam.transforms.query.budget import OverBudgetError

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
        endpoint = ENDPOINTS.get(path)
        if endpoint is None:
            raise not_found()
        body = endpoint(api, request)
    except ApiError as error:
        return Response(error.status, error.body(), error.headers)
    except OverBudgetError as error:
        return Response(413, ApiError(str(error), 413).body())
    skipped = {SKIPPED: str(len(api.skipped))} if api.skipped else {}
    if isinstance(body, bytes):
        return Response(200, body, {"Content-Encoding": "snappy", **skipped}, "application/x-protobuf")
    return Response(200, body, skipped)


def _aggregators(_: Api, request: Request) -> Any:
    check_method(request, ("GET", "POST"))
    return [*AGGREGATORS, NONE]


def _config_filters(_: Api, request: Request) -> Any:
    check_method(request, ("GET", "POST"))
    return CONFIG_FILTERS


def _version(_: Api, request: Request) -> Any:
    check_method(request, ("GET", "POST"))
    return {"version": TSD_VERSION, "repo": "timebeam", "timebeam": importlib.metadata.version("timebeam")}


ENDPOINTS: dict[str, Callable[[Api, Request], Any]] = {
    "/api/aggregators": _aggregators,
    "/api/config/filters": _config_filters,
    "/api/query": query,
    "/api/query/gexp": expressions,
    "/api/query/last": last_points,
    "/api/search/lookup": lookup,
    "/api/suggest": suggest,
    "/api/uid/uidmeta": uid_meta,
    "/api/v1/read": remote_read,
    "/api/version": _version,
}
"""By path, without the slash at the end."""
