"""The endpoints of the API: a request in, a status and JSON out. No HTTP here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from timebeam.schema.api.errors import ApiError, not_found
from timebeam.schema.api.filter_texts import CONFIG_FILTERS
from timebeam.schema.api.request import Request
from timebeam.schema.layouts import Layout
from timebeam.transforms.bigtable.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request.

    Attributes:
      body: what its JSON holds.
    """

    status: int
    body: Any
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """The API over the tables of one layout."""

    target: Target
    layout: Layout

    def respond(self, request: Request) -> Response:
        """The answer to a request; an error of the client's is an answer too."""
        try:
            endpoint = _ENDPOINTS.get(request.path.rstrip("/"))
            if endpoint is None:
                raise not_found()
            return Response(200, endpoint(self, request))
        except ApiError as error:
            return Response(error.status, error.body(), error.headers)


def _config_filters(_: Api, __: Request) -> Any:
    return CONFIG_FILTERS


_ENDPOINTS: dict[str, Callable[[Api, Request], Any]] = {
    "/api/config/filters": _config_filters,
}
"""By path."""
