"""How each protocol names its format and encoding, and how it is answered.

| path | sources of the answers |
|---|---|
| `/api/put` | tsd/PutDataPointRpc and tsd/HttpJsonSerializer of OpenTSDB 2.4.1 (docs/spec/opentsdb.md §9.2) |
| `/api/histogram` | tsd/HistogramDataPointRpc of OpenTSDB 2.4 (docs/spec/opentsdb.md §9.4) |
| `/write`, `/api/v2/write` | InfluxDB's API of versions 1 and 2 |
| `/api/v1/datapoints` | KairosDB (docs/spec/kairosdb.md §8) |
| `/heroic/write` | Heroic (docs/spec/heroic.md §7) |
| `/api/v1/write` | prometheus.io/docs/specs/prw |
| `/v1/metrics` | opentelemetry.io/docs/specs/otlp |
| `/write/FORMAT`, of `--formats` | our own: 204, or 400 with OpenTSDB's error body |
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from timebeam.pipelines.serve.route_requests import Response, rejection
from timebeam.pipelines.serve.writes.bodies import BodyContent
from timebeam.schema.bits.json_text import DECODER, JsonPairs, NumberText
from timebeam.schema.bits.protobuf import VARINT, encoded_bytes, encoded_varint
from timebeam.schema.bits.reasons import Reason, short
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats.base import NOT_FINITE
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request

ENCODINGS = ("gzip", "zstd")
"""Content encodings of bodies, which the stream reads too."""

_UNREADABLE = (Reason.BAD_SYNTAX, Reason.BAD_ENCODING, Reason.CORRUPT_MESSAGE, Reason.LINE_TOO_LONG)
"""Reasons to reject text that is not even a record."""


@dataclasses.dataclass(slots=True)
class Write:
    """A request to store points.

    Attributes:
      request: without its body.
      headers: by name in small letters.
      body: as it was sent.
      held_bytes: of the body, so far as it has arrived.
    """

    request: Request
    headers: Mapping[str, str]
    body: bytes = b""
    held_bytes: int = 0


class Protocol(abc.ABC):
    """How an endpoint takes points. A body is published if any of its points is, or may be, good."""

    format: str
    """The message format of its bodies."""

    def attributes(self, write: Write) -> dict[str, str]:
        """The attributes of the message: what the stream needs to read the body.

        Raises:
          ApiError: the request asks for what the stream cannot read.
        """
        encoding = write.headers.get("content-encoding", "").strip().lower().removeprefix("x-")
        if encoding in ("", "identity"):
            return {"format": self.format}
        if encoding not in ENCODINGS:
            choices = " or ".join(ENCODINGS)
            raise ApiError(f"Content-Encoding {short(encoding)!r} is not supported: send {choices}", 415)
        return {"format": self.format, "content-encoding": encoding}

    def is_published(self, content: BodyContent) -> bool:
        """Whether the body is published."""
        return content.may_have_points

    @abc.abstractmethod
    def answer(self, write: Write, content: BodyContent) -> Response:
        """The answer to a body that was published, or has nothing to publish."""

    @abc.abstractmethod
    def error(self, write: Write, error: ApiError) -> Response:
        """An error in the protocol's own form."""


def summary_of(content: BodyContent) -> str:
    """The first rejection of a body in words, and the number of all."""
    first = content.rejected[0]
    more = f" (and {content.rejected_points - 1:,} more)" if content.rejected_points > 1 else ""
    payload = short(first.payload[:200].decode("utf-8", "replace"))
    return f"{first.message}{more}: {payload}" if payload.isprintable() else f"{first.message}{more}"


class OpenTsdbPut(Protocol):
    """/api/put and /api/histogram, with `sync`, `sync_timeout`, `summary` and `details`."""

    def __init__(self, form: str) -> None:
        self.format = form

    def is_published(self, content: BodyContent) -> bool:
        """See `Protocol.is_published`; a TSD stores nothing of a body that is not JSON."""
        return super().is_published(content) and not _unreadable(content)

    def answer(self, write: Write, content: BodyContent) -> Response:
        if not write.body.strip():
            raise ApiError("Missing request content")
        unreadable = _unreadable(content)
        if unreadable:
            starts_well = write.body.lstrip()[:1] in (b"{", b"[") or "content-encoding" in write.headers
            start = "Unable to parse the given JSON"
            message = start if starts_well else "The JSON must start as an object or an array"
            raise ApiError(message, details=unreadable[0].message)
        if not content.points and not content.rejected_points:
            raise ApiError("No datapoints found in content")
        request = write.request
        if not (request.has("summary") or request.has("details")):
            if content.rejected_points:
                details = 'Please see the TSD logs or append "details" to the put request'
                raise ApiError("One or more data points had errors", details=details)
            return Response(204, b"")
        body: dict[str, Any] = {"success": content.points, "failed": content.rejected_points}
        if request.parameter("sync_timeout") not in (None, "0"):
            body["timeouts"] = 0
        if request.has("details"):
            body["errors"] = [_put_error(rejected) for rejected in content.rejected]
        return Response(400 if content.rejected_points else 200, body)

    def error(self, write: Write, error: ApiError) -> Response:
        return rejection(error)


def _encoded(text: str) -> bytes:
    """Text that may have half of a surrogate pair out of JSON."""
    return text.encode("utf-8", "replace")


def _plain_text(status: int, text: str, headers: Mapping[str, str]) -> Response:
    return Response(status, _encoded(f"{text}\n"), headers, "text/plain; charset=utf-8")


def _unreadable(content: BodyContent) -> list[Rejected]:
    return [rejected for rejected in content.rejected if rejected.reason in _UNREADABLE]


def _put_error(rejected: Rejected) -> dict[str, Any]:
    """An element of `errors`; the value of a point is text there."""
    encoded: orjson.Fragment | None = None
    try:
        pairs = DECODER.decode(rejected.payload.decode())
        if isinstance(pairs, JsonPairs):
            members = dict(pairs)
            point = {name: _plain(members.get(name)) for name in ("metric", "timestamp", "value", "tags")}
            point["timestamp"] = _integer(point["timestamp"])
            encoded = orjson.Fragment(orjson.dumps(point))
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        pass  # no JSON, of too many levels, or with half a surrogate pair
    return {"error": rejected.message, "datapoint": encoded}


def _plain(value: object) -> object:
    """JSON values with numbers as text."""
    if isinstance(value, NumberText):
        return str(value)
    if isinstance(value, JsonPairs):
        return {key: _plain(member) for key, member in value}
    return [_plain(member) for member in value] if isinstance(value, list) else value


def _integer(text: object) -> object:
    """A timestamp as a number, if it is an integer."""
    digits = text.removeprefix("-") if isinstance(text, str) else ""
    return int(str(text)) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text


_PRECISIONS = {"n": "ns", "u": "us", "µ": "us", **{unit: unit for unit in ("ns", "us", "ms", "s")}}


_NO_NUMBERS = {Reason.BAD_NUMBER, Reason.NUMBER_OUT_OF_RANGE}

REJECTED = "X-Timebeam-Rejected"
"""The header of an answer with 204 that says how many values of the body become dead letters."""


class InfluxWrite(Protocol):
    """/write of InfluxDB 1 and /api/v2/write of InfluxDB 2; database, bucket and organization are ignored.

    InfluxDB stores strings too, and clients take a 400 for the loss of the whole body. So fields that are no
    numbers fail no request: they become dead letters, and the answer counts them.
    """

    format = "influx"

    def __init__(self, version: int) -> None:
        self._version = version

    def attributes(self, write: Write) -> dict[str, str]:
        precision = write.request.parameter("precision")
        if precision and precision not in _PRECISIONS:
            raise ApiError(f"precision {short(precision)!r} is not supported: use ns, us, ms or s")
        chosen = {"influx_precision": _PRECISIONS[precision]} if precision else {}
        return super().attributes(write) | chosen

    def is_published(self, content: BodyContent) -> bool:
        """See `Protocol.is_published`; of what is answered with 204 the stream makes dead letters."""
        return super().is_published(content) or _lacks_numbers_alone(content)

    def answer(self, write: Write, content: BodyContent) -> Response:
        if _lacks_numbers_alone(content):
            return Response(204, b"", {REJECTED: str(content.rejected_points)})
        if content.rejected_points:
            start = "partial write: " if self.is_published(content) else ""
            raise ApiError(f"{start}{summary_of(content)} dropped={content.rejected_points}")
        return Response(204, b"")

    def error(self, write: Write, error: ApiError) -> Response:
        body = {"code": _INFLUX_CODES.get(error.status, "invalid"), "message": error.message}
        return Response(error.status, {"error": error.message} if self._version == 1 else body, error.headers)


def _lacks_numbers_alone(content: BodyContent) -> bool:
    """Whether a body was read, and its only rejections are fields without a number that can be stored."""
    return content.rejected_points > 0 and content.reasons <= _NO_NUMBERS and not content.is_unread


_INFLUX_CODES = {401: "unauthorized", 413: "request too large", 500: "internal error", 503: "unavailable"}


class KairosDbDatapoints(Protocol):
    """/api/v1/datapoints of KairosDB."""

    format = "kairosdb-json"

    def attributes(self, write: Write) -> dict[str, str]:
        """See `Protocol.attributes`; a content type of gzip says that the body is compressed."""
        if write.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/gzip":
            return {"format": self.format, "content-encoding": "gzip"}
        return super().attributes(write)

    def answer(self, write: Write, content: BodyContent) -> Response:
        if content.rejected_points:
            return Response(400, {"errors": [rejected.message for rejected in content.rejected]})
        if not content.points:
            raise ApiError("Invalid json. No content due to end of input.")
        return Response(204, b"")

    def error(self, write: Write, error: ApiError) -> Response:
        return Response(error.status, {"errors": [error.message]}, error.headers)


class HeroicWrite(Protocol):
    """/write of Heroic, under /heroic."""

    format = "heroic-json"

    def answer(self, write: Write, content: BodyContent) -> Response:
        if content.rejected_points:
            raise ApiError(summary_of(content))
        return Response(200, {"errors": [], "times": []})

    def error(self, write: Write, error: ApiError) -> Response:
        kind = "json-parse-error" if error.status == 400 else "error"
        body = {"message": error.message, "reason": _REASONS.get(error.status, "Error")}
        return Response(error.status, body | {"status": error.status, "type": kind}, error.headers)


class RemoteWriteRequests(Protocol):
    """/api/v1/write: Prometheus' remote write, versions 1.0 and 2.0; its encoding is told by the content."""

    format = "prometheus-remote-write"

    def attributes(self, write: Write) -> dict[str, str]:
        kind, _, parameter = write.headers.get("content-type", "").replace(" ", "").partition(";")
        proto = parameter.removeprefix("proto=") if parameter else _REMOTE_WRITE_1
        protos = _REMOTE_WRITE_1, _REMOTE_WRITE_2
        if kind.lower() not in ("", "application/x-protobuf") or proto not in protos:
            raise ApiError(f"Content-Type {short(kind)!r} with proto={short(proto)} is not supported", 415)
        encoding = write.headers.get("content-encoding", "snappy").strip().lower()
        if encoding not in ("snappy", *ENCODINGS):
            raise ApiError(f"Content-Encoding {short(encoding)!r} is not supported: send snappy", 415)
        return {"format": self.format}

    def answer(self, write: Write, content: BodyContent) -> Response:
        headers = {}
        if _REMOTE_WRITE_2 in write.headers.get("content-type", ""):
            skipped = content.skipped[NOT_FINITE] + content.skipped["stale_markers"]
            samples = max(0, content.points + skipped - content.histogram_points)
            counts = {"Samples": samples, "Histograms": content.histograms, "Exemplars": 0}
            headers = {f"X-Prometheus-Remote-Write-{name}-Written": str(n) for name, n in counts.items()}
        if content.rejected_points:
            return _plain_text(400, summary_of(content), headers)
        return Response(204, b"", headers)

    def error(self, write: Write, error: ApiError) -> Response:
        return _plain_text(error.status, error.message, error.headers)


class OtlpMetrics(Protocol):
    """/v1/metrics: OTLP over HTTP, as protobuf or JSON. Rejected points are a partial success."""

    format = "otlp"

    def attributes(self, write: Write) -> dict[str, str]:
        if _media_type(write) not in (_PROTOBUF, _JSON):
            raise ApiError(f"Content-Type {short(_media_type(write))!r}: send {_PROTOBUF} or {_JSON}", 415)
        return super().attributes(write)

    def answer(self, write: Write, content: BodyContent) -> Response:
        if _unreadable(content):
            raise ApiError(summary_of(content))
        message = summary_of(content) if content.rejected_points else ""
        if _media_type(write) == _JSON:
            partial = {"rejectedDataPoints": str(content.rejected_points), "errorMessage": message}
            return Response(200, {"partialSuccess": partial} if message else {}, media_type=_JSON)
        partial_success = _INT + encoded_varint(content.rejected_points) + encoded_bytes(2, _encoded(message))
        return Response(200, encoded_bytes(1, partial_success) if message else b"", media_type=_PROTOBUF)

    def error(self, write: Write, error: ApiError) -> Response:
        """See `Protocol.error`: google.rpc.Status."""
        code = _RPC_CODES.get(error.status, 2)
        if _media_type(write) == _JSON:
            body: Any = {"code": code, "message": error.message}
            return Response(error.status, body, error.headers, _JSON)
        status = _INT + encoded_varint(code) + encoded_bytes(2, _encoded(error.message))
        return Response(error.status, status, error.headers, _PROTOBUF)


class FormatWrite(Protocol):
    """/write/FORMAT: a message of any format; 400 if some is rejected, of which the good is published."""

    def __init__(self, form: str) -> None:
        self.format = form

    def answer(self, write: Write, content: BodyContent) -> Response:
        if content.rejected_points:
            raise ApiError(summary_of(content))
        return Response(204, b"")

    def error(self, write: Write, error: ApiError) -> Response:
        return rejection(error)


_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_INT = bytes([1 << 3 | VARINT])
_RPC_CODES = {400: 3, 401: 16, 405: 12, 408: 4, 413: 3, 415: 3, 500: 13, 503: 14}
"""google.rpc.Code of each HTTP status."""


def _media_type(write: Write) -> str:
    return write.headers.get("content-type", "").partition(";")[0].strip().lower()


_REMOTE_WRITE_1 = "prometheus.WriteRequest"
_REMOTE_WRITE_2 = "io.prometheus.write.v2.Request"

_REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    413: "Request Entity Too Large",
    415: "Unsupported Media Type",
    503: "Service Unavailable",
}

PROTOCOLS: dict[str, Protocol] = {
    "/api/put": OpenTsdbPut("opentsdb-json"),
    "/api/histogram": OpenTsdbPut("opentsdb-histogram"),
    "/write": InfluxWrite(1),
    "/api/v2/write": InfluxWrite(2),
    "/api/v1/datapoints": KairosDbDatapoints(),
    "/heroic/write": HeroicWrite(),
    "/api/v1/write": RemoteWriteRequests(),
    "/v1/metrics": OtlpMetrics(),
}
"""The protocol of each path; all take POST alone. With those of `format_protocols` the server has all."""


def format_protocols(formats: Collection[str]) -> dict[str, Protocol]:
    """The protocols of messages of these formats, by path."""
    return {f"/write/{name}": FormatWrite(name) for name in formats}
