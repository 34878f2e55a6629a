"""The handlers of requests that store points: what is answered with 2xx is in Pub/Sub.

A request that cannot be taken now is answered with 503, never 429: by default a Prometheus drops what is
answered with 429.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import functools
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.responses import Response as HttpResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from timebeam.pipelines.serve.route_requests import (
    WRITES,
    Counters,
    Response,
    UnavailableError,
    as_json,
    error_of,
    read_body,
    request_of,
)
from timebeam.pipelines.serve.writes.bodies import BodyParser
from timebeam.pipelines.serve.writes.protocols import PROTOCOLS, Protocol, Write, format_protocols
from timebeam.pipelines.serve.writes.publisher import Publisher
from timebeam.pipelines.serve.writes.telnet import TelnetAddress, TelnetPort
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request

BODY_BYTES = 9_000_000
"""The longest body: Pub/Sub takes messages of 10 MB."""

_ADVICE = ": send less at once"

_LOG = logging.getLogger("timebeam.serve")


@dataclasses.dataclass(frozen=True, slots=True)
class WriteLimits:
    """What the server takes at most.

    Attributes:
      held_bytes: of bodies that are read, parsed or published.
      body_seconds: until all of a body has arrived.
      publish_seconds: until Pub/Sub has confirmed it.
    """

    held_bytes: int = 256 << 20
    body_seconds: float = 30.0
    publish_seconds: float = 10.0


class FrontDoor:
    """Takes points over HTTP; belongs to one event loop."""

    def __init__(
        self,
        publisher: Publisher,
        parser: BodyParser,
        limits: WriteLimits,
        tokens: Tokens | None = None,
        telnet: TelnetAddress | None = None,
        formats: Collection[str] = (),
    ) -> None:
        """
        Args:
          tokens: those of writers; None if everyone may write.
          telnet: where to listen for lines; None for nowhere.
          formats: of messages that it takes at /write/FORMAT.
        """
        self.protocols: Mapping[str, Protocol] = {**PROTOCOLS, **format_protocols(formats)}
        self.publisher = publisher
        self._parser, self._limits, self._tokens, self._telnet = parser, limits, tokens, telnet
        self._held_bytes = 0
        self._counters = Counters(WRITES)

    @contextlib.asynccontextmanager
    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Listens for lines meanwhile, and closes what it uses at the end."""
        try:
            if self._telnet is None:
                yield
            else:
                async with TelnetPort(self._parser, self.publisher, self._counters).running(self._telnet):
                    yield
        finally:
            self._parser.close()
            await self.publisher.close()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request to one of `protocols`."""
        path: str = scope["path"]
        protocol = self.protocols[path]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        write = Write(Request(scope["method"], path, {}), headers)
        try:
            if query := scope["query_string"]:
                write.request = request_of(scope["method"], f"{path}?{query.decode('latin-1')}")
            response = await self._stored(write, protocol, receive)
        except Exception as error:
            response = protocol.error(write, error_of(error))
        self._counters.add("timebeam_writes_total", 1, path, response.status)
        if response.status >= 400:
            client = scope.get("client") or ("-",)
            _LOG.info("%s %s %s %d", client[0], scope["method"], path, response.status)
        await _send(response, send)

    async def _stored(self, write: Write, protocol: Protocol, receive: Receive) -> Response:
        """The answer to a request whose body has been published.

        Raises:
          ApiError: it is wrong, or cannot be taken now.
          ClientDisconnect: the client has gone.
        """
        request = write.request
        if request.method != "POST":
            details = f"The HTTP method [{request.method}] is not permitted for this endpoint"
            raise ApiError("Method not allowed", 405, details, {"Allow": "POST"})
        if self._tokens and not self._tokens.allow(write.headers.get("authorization", "")):
            message = "Unauthorized: send a token of a writer"
            raise ApiError(message, 401, headers={"WWW-Authenticate": "Bearer"})
        attributes = protocol.attributes(write)
        length = write.headers.get("content-length", "")
        if length.isdigit() and int(length) > BODY_BYTES:
            raise ApiError(f"The body has more than {BODY_BYTES:,} bytes{_ADVICE}", 413)
        hold = functools.partial(self._hold, write)
        try:
            write.body = await read_body(receive, BODY_BYTES, self._limits.body_seconds, hold, _ADVICE)
            content = await self._parser.parse(write.body, attributes)
            if protocol.is_published(content):
                await self.publisher.publish(write.body, attributes, self._limits.publish_seconds)
                self._count_points(request.path, "published", content.points)
        finally:
            self._held_bytes -= write.held_bytes
        self._count_points(request.path, "rejected", content.rejected_points)
        for kind, number in content.skipped.items():
            self._counters.add("timebeam_write_skipped_total", number, request.path, kind)
        return protocol.answer(write, content)

    def _hold(self, write: Write, size: int) -> None:
        """Counts bytes of a body as held; raises ApiError if there is no room for them."""
        write.held_bytes += size
        self._held_bytes += size
        if self._held_bytes > self._limits.held_bytes:
            raise UnavailableError("Bodies that wait for Pub/Sub fill the memory set aside for them")

    def _count_points(self, path: str, outcome: str, number: int) -> None:
        self._counters.add("timebeam_written_points_total", number, path, outcome)

    def metrics(self) -> str:
        """What was taken, for Prometheus."""
        return self._counters.text(held_bytes=self._held_bytes)


async def _send(response: Response, send: Send) -> None:
    """Sends an answer."""
    body = as_json(response.body)
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    if response.status != 204:
        headers += [
            (b"content-type", response.media_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class TakesWrites:
    """ASGI middleware: requests to its protocols are the front door's, all others the application's."""

    def __init__(self, app: ASGIApp, door: FrontDoor) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in self._door.protocols:
            await self._door.handle(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Tokens:
    """The tokens that writers may send, from a file with one token per line."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [_digest(token.encode()) for token in tokens]

    @classmethod
    def parse(cls, text: str) -> Tokens:
        """The tokens of a file: one per line, without blank lines and lines that begin with `#`.

        Raises:
          ValueError: there is none.
        """
        lines = [line.strip() for line in text.splitlines()]
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise ValueError("it has no tokens: write one per line")
        return cls(tokens)

    def allow(self, authorization: str) -> bool:
        """Whether the value of an Authorization header has one of the tokens.

        As `Bearer TOKEN`, as `Token TOKEN` (InfluxDB), or as the password of `Basic`. Each comparison takes
        the same time, whatever the token.
        """
        scheme, _, credentials = authorization.strip().partition(" ")
        token = credentials.strip().encode("utf-8", "replace")
        if scheme.lower() == "basic":
            try:
                token = base64.b64decode(token, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() not in ("bearer", "token"):
            return False
        digest = _digest(token)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


VERSION = "1.8.10"
"""The version of InfluxDB that clients are told: one with /write, /api/v2/write and /health."""

_HEADERS = {"X-Influxdb-Version": VERSION, "X-Influxdb-Build": "timebeam"}


async def ping(http: HttpRequest) -> HttpResponse:
    """204; with `verbose=true` the version."""
    if http.query_params.get("verbose", "false") in ("", "0", "false"):
        return HttpResponse(status_code=204, headers=_HEADERS)
    return JSONResponse({"version": VERSION}, headers=_HEADERS)


async def health(_: HttpRequest) -> HttpResponse:
    """The status `pass`."""
    message = "ready for writes"
    body = {"name": "influxdb", "message": message, "status": "pass", "checks": [], "version": VERSION}
    return JSONResponse(body, headers=_HEADERS)


HEALTH = {"/ping": ping, "/health": health}
"""The handler of each path of InfluxDB's API (of versions 1, 1.8 and 2) that clients ask before they write.

The answers do not depend on Pub/Sub: a client that waits for a healthy server would send nothing that shows
that Pub/Sub answers again.
"""
