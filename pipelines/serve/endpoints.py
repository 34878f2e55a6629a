"""The endpoints of the API: a request in, a status and JSON out. No HTTP here.

docs/spec/opentsdb.md §8. What is no endpoint is a 404 in a TSD's words.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.queries import check_method, query
from timebeam.pipelines.serve.searches import lookup, suggest, uid_meta
from timebeam.schema.api.errors import ApiError, not_found
from timebeam.schema.api.filter_texts import CONFIG_FILTERS
from timebeam.schema.api.request import Request
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.query.question import NONE

TSD_VERSION = "2.4.1"
"""The version of OpenTSDB whose answers these are: what clients look at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request.

    Attributes:
      body: what its JSON holds.
    """

    status: int
    body: Any
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def respond(api: Api, request: Request) -> Response:
    """The answer to a request; an error of the client's is an answer too."""
    try:
        endpoint = ENDPOINTS.get(request.path.rstrip("/"))
        if endpoint is None:
            raise not_found()
        return Response(200, endpoint(api, request))
    except ApiError as error:
        return Response(error.status, error.body(), error.headers)


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
    "/api/search/lookup": lookup,
    "/api/suggest": suggest,
    "/api/uid/uidmeta": uid_meta,
    "/api/version": _version,
}
"""By path, without the slash at the end."""
