"""The handlers of requests that store points: what is answered with 2xx is in Pub/Sub.

A request that cannot be taken now is answered with 503, never 429: by default a Prometheus drops what is
answered with 429.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Iterator, Mapping

import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from timebeam.pipelines.serve.endpoints import Response, request_of
from timebeam.pipelines.serve.writes.bodies import BodyParser
from timebeam.pipelines.serve.writes.protocols import PROTOCOLS, Protocol, Write
from timebeam.pipelines.serve.writes.publisher import Publisher, PublishError
from timebeam.pipelines.serve.writes.telnet import TelnetAddress, TelnetPort
from timebeam.pipelines.serve.writes.tokens import Tokens
from timebeam.schema.api.request import ApiError

BODY_BYTES = 9_000_000
"""The longest body: Pub/Sub takes messages of 10 MB."""

_RETRY_SECONDS = "5"
_CLIENT_CLOSED = 499
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


def unavailable(why: str) -> ApiError:
    """The answer to a request that is to be sent again."""
    return ApiError(why, 503, headers={"Retry-After": _RETRY_SECONDS})


class FrontDoor:
    """Takes points over HTTP; belongs to one event loop."""

    def __init__(
        self,
        publisher: Publisher,
        parser: BodyParser,
        limits: WriteLimits,
        tokens: Tokens | None = None,
        telnet: TelnetAddress | None = None,
    ) -> None:
        """
        Args:
          tokens: those of writers; None if everyone may write.
          telnet: where to listen for lines; None for nowhere.
        """
        self.publisher = publisher
        self._parser, self._limits, self._tokens, self._telnet = parser, limits, tokens, telnet
        self._held_bytes = 0
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._points: collections.Counter[tuple[str, str]] = collections.Counter()

    def routes(self) -> list[Route]:
        """The endpoints."""
        return [Route(path, self.handle, methods=["GET", "POST", "PUT", "DELETE"]) for path in PROTOCOLS]

    @contextlib.asynccontextmanager
    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Listens for lines meanwhile, and closes what it uses at the end."""
        try:
            if self._telnet is None:
                yield
            else:
                async with TelnetPort(self._parser, self.publisher, self._points).running(self._telnet):
                    yield
        finally:
            self._parser.close()
            await self.publisher.close()

    async def handle(self, http: HttpRequest) -> HttpResponse:
        """A request that stores points."""
        path = http.url.path
        protocol = PROTOCOLS[path]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in http.scope["headers"]}
        write = Write(request_of(http.method, path), headers)
        try:
            raw_query: bytes = http.scope["query_string"]
            write = Write(request_of(http.method, f"{path}?{raw_query.decode('latin-1')}"), headers)
            response = await self._stored(http, protocol, write)
        except ApiError as error:
            response = protocol.error(write, error)
        except ClientDisconnect:
            response = protocol.error(write, ApiError("Client disconnected", _CLIENT_CLOSED))
        except Exception:
            _LOG.exception("an error of the server")
            response = protocol.error(write, ApiError("Internal server error; see the log", 500))
        self._requests[path, response.status] += 1
        if response.status >= 400:
            client = http.client.host if http.client else "-"
            _LOG.info("%s %s %s %d", client, http.method, path, response.status)
        body = response.body if isinstance(response.body, bytes) else orjson.dumps(response.body)
        media_type = response.media_type if body else None
        return HttpResponse(body, response.status, dict(response.headers), media_type)

    async def _stored(self, http: HttpRequest, protocol: Protocol, write: Write) -> Response:
        """The answer to a request whose body has been published.

        Raises:
          ApiError: it is wrong, or cannot be taken now.
          ClientDisconnect: the client has gone.
        """
        if write.request.method != "POST":
            details = f"The HTTP method [{write.request.method}] is not permitted for this endpoint"
            raise ApiError("Method not allowed", 405, details, {"Allow": "POST"})
        if self._tokens and not self._tokens.allow(write.headers.get("authorization", "")):
            raise ApiError(
                "Unauthorized: send a token of a writer", 401, headers={"WWW-Authenticate": "Bearer"}
            )
        attributes = protocol.attributes(write)
        with self._holding() as held:
            body = await self._body(http, held)
            write = dataclasses.replace(write, request=dataclasses.replace(write.request, body=body))
            content = await self._parser.parse(body, attributes)
            if protocol.is_published(content):
                await self._publish(body, attributes)
                self._points[write.request.path, "published"] += content.points
        self._points[write.request.path, "refused"] += content.refused
        return protocol.answer(write, content)

    @contextlib.contextmanager
    def _holding(self) -> Iterator[_Held]:
        """Counts the bytes of a body while it is in memory."""
        held = _Held()
        try:
            yield held
        finally:
            self._held_bytes -= held.size

    async def _body(self, http: HttpRequest, held: _Held) -> bytes:
        """The body of a request.

        Raises:
          ApiError: it is too long, does not arrive in time, or there is no room for it.
          ClientDisconnect: the client has gone.
        """
        too_long = ApiError(f"The body has more than {BODY_BYTES:,} bytes: send less at once", 413)
        length = http.headers.get("content-length", "")
        if length.isdigit() and int(length) > BODY_BYTES:
            raise too_long
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for chunk in http.stream():
                    held.size += len(chunk)
                    self._held_bytes += len(chunk)
                    if held.size > BODY_BYTES:
                        raise too_long
                    if self._held_bytes > self._limits.held_bytes:
                        raise unavailable("Bodies that wait for Pub/Sub fill the memory set aside for them")
                    chunks.append(chunk)
        except TimeoutError as error:
            seconds = self._limits.body_seconds
            raise ApiError(f"The body did not arrive within {seconds:g} seconds", 408) from error
        return b"".join(chunks)

    async def _publish(self, body: bytes, attributes: Mapping[str, str]) -> None:
        """Publishes a body.

        Raises:
          ApiError: it was not confirmed in time.
        """
        try:
            await self.publisher.publish(body, attributes, self._limits.publish_seconds)
        except PublishError as error:
            raise unavailable(str(error)) from error

    def metrics(self) -> str:
        """What was taken, for Prometheus."""
        lines = ["# TYPE timebeam_writes_total counter"]
        lines += [
            f'timebeam_writes_total{{endpoint="{path}",status="{status}"}} {number}'
            for (path, status), number in sorted(self._requests.items())
        ]
        lines.append("# TYPE timebeam_written_points_total counter")
        lines += [
            f'timebeam_written_points_total{{endpoint="{path}",outcome="{outcome}"}} {number}'
            for (path, outcome), number in sorted(self._points.items())
        ]
        lines += ["# TYPE timebeam_held_bytes gauge", f"timebeam_held_bytes {self._held_bytes}"]
        return "\n".join(lines) + "\n"


@dataclasses.dataclass(slots=True)
class _Held:
    """The bytes of a body that have arrived."""

    size: int = 0
