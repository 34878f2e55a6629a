"""A request of the API, and its errors in the shape of a TSD's (tsd/HttpSerializer.formatErrorV1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
      message: what is wrong, in a TSD's words where it has some.
      status: HTTP status.
      details: more of it; empty for none.
      headers: of the answer, beside the usual ones.
    """

    def __init__(
        self, message: str, status: int = 400, details: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.details = message, status, details
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON of the answer. There is never a trace in it."""
        error: dict[str, Any] = {"code": self.status, "message": self.message}
        if self.details:
            error["details"] = self.details
        return {"error": error}


class MissingParameterError(ApiError):
    """A required parameter of the query string is missing or empty."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Missing parameter <code>{name}</code>")


def not_found() -> ApiError:
    """The answer to a path that is no endpoint."""
    return ApiError("Endpoint not found", 404)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for.

    Attributes:
      method: in capital letters.
      path: decoded, without the query string.
      parameters: values by name, in their order; a parameter without a value has the empty one.
      body: as it was sent.
      leaves_out_nan: whether points that are NaN or null are left out of the answer, for Grafana's decoder.
    """

    method: str
    path: str
    parameters: Mapping[str, Sequence[str]]
    body: bytes = b""
    leaves_out_nan: bool = False

    def has(self, name: str) -> bool:
        """Whether a parameter is given, whatever its value."""
        return name in self.parameters

    def parameter(self, name: str) -> str | None:
        """The last value of a parameter, as a TSD takes it; None if it is missing."""
        values = self.parameters.get(name)
        return values[-1] if values else None

    def required(self, name: str) -> str:
        """The last value of a parameter.

        Raises:
          MissingParameterError: it is missing or empty.
        """
        value = self.parameter(name)
        if not value:
            raise MissingParameterError(name)
        return value

    def json(self) -> Any:
        """The body, decoded.

        Raises:
          ApiError: it is empty, or no JSON.
        """
        if not self.body:
            raise ApiError(
                "Missing message content",
                details="Supply valid JSON formatted data in the body of your request",
            )
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError("Unable to parse the given JSON", details=str(error)) from error
