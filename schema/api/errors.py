"""Errors of the API, in the shape of a TSD's (tsd/HttpSerializer.formatErrorV1 of OpenTSDB 2.4.1)."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
      message: what is wrong, in a TSD's words where it has some.
      status: HTTP status.
      details: more of it; empty for none.
      headers: of the answer, beside the usual ones.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        details: str = "",
        headers: dict[str, str] | None = None,
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
