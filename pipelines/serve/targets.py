"""Request targets: `/path?query`, percent-encoded, as clients of a TSD send them."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

from timebeam.schema.api.errors import ApiError
from timebeam.schema.api.request import Request

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
