"""The web application: the endpoints over HTTP, with allowed hosts, budgets, a gate and one line a request.

Starlette and uvicorn: a request is reading and numpy in a thread, so that the server only has to notice that
a client hangs up, and to answer health checks meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from google.api_core.exceptions import GoogleAPICallError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response as HttpResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import (
    ENDPOINTS,
    GRAFANA,
    PAGE,
    READS,
    Counters,
    Response,
    UnavailableError,
    as_json,
    read_body,
    rejection,
    request_of,
    respond,
    show_page,
    version,
)
from timebeam.pipelines.serve.writes.front_door import HEALTH, FrontDoor, TakesWrites
from timebeam.pipelines.serve.writes.protocols import PROTOCOLS
from timebeam.schema.bits.reasons import short
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request, not_found
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.retry import Stop, StoppedError
from timebeam.transforms.query.budget import AbandonedError, Budget, Meter

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def hosts_of(bind: str, allowed: Sequence[str]) -> frozenset[str] | None:
    """The names in `Host` that are answered at an address; None for all, on other than loopback addresses."""
    try:
        is_loopback = bind == "localhost" or ipaddress.ip_address(bind).is_loopback
    except ValueError:
        is_loopback = False
    return frozenset((*_LOOPBACK, bind, *map(str.lower, allowed))) if is_loopback or allowed else None


class KnownHosts:
    """ASGI middleware: 403 for requests to other names, and for writes from pages of other origins.

    Browsers run scripts of any site. A name of another site can resolve to the loopback address; then scripts
    of that site could read the answers. Scripts of any page may send a POST, though not see its answer:
    browsers say in Origin which page it is.
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str] | None, allowed: Sequence[str], writes: Collection[str]
    ) -> None:
        """
        Args:
          hosts: see `hosts_of`.
          allowed: names whose pages may write.
          writes: the paths of writes.
        """
        self._app, self._hosts, self._allowed = app, hosts, frozenset(map(str.lower, allowed))
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = self._rejection(scope) if scope["type"] == "http" else None
        if why is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(ApiError(why, 403).body(), 403)(scope, receive, send)

    def _rejection(self, scope: Scope) -> str | None:
        """Why a request is not answered; None if it is."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if host and self._hosts is not None and _name(host) not in self._hosts:
            name = short(_name(host) or host)
            return f"Host {name!r} is not allowed here: start the server with --allowed-host {name}"
        if origin is None or scope["path"] not in self._writes:
            return None
        page = origin.lower().rpartition("://")[2]
        if page == host or _name(page) in self._allowed:
            return None
        return f"Origin {short(origin)!r} may not write: start the server with --allowed-host and its name"


def _name(host: str) -> str | None:
    """The name, or address, without the port; None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class Gate:
    """Lets `most` requests through at once and `waiting` more wait.

    Attributes:
      running, queued: how many there are now.
    """

    def __init__(self, most: int, waiting: int) -> None:
        self._waiting, self._semaphore = waiting, asyncio.Semaphore(most)
        self._most = most
        self.running = self.queued = 0

    @property
    def is_full(self) -> bool:
        """Whether the next query has to wait."""
        return self._semaphore.locked()

    async def enter(self) -> None:
        """Waits for its turn.

        Raises:
          ApiError: too many wait already: 503, with the time to wait before the next try.
        """
        if self.is_full and self.queued >= self._waiting:
            raise UnavailableError(f"{self._most} queries run and {self._waiting} wait: try again later")
        self.queued += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.queued -= 1
        self.running += 1

    def leave(self) -> None:
        """Lets the next one in."""
        self.running -= 1
        self._semaphore.release()


_OTHER = "other"
_LOG = logging.getLogger("timebeam.serve")
_GRACE_SECONDS = 2
_READY_SECONDS = 5
_GZIP_BYTES = 1000
_GZIP_LEVEL = 1  # compression stops all other requests: level 9 takes five times as long for 16 % fewer bytes
_LOGGED_LINES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class ServerLimits:
    """What the server does at most.

    Attributes:
      budget: of one request.
      queries: that run at once.
      waiting: that wait for these.
      body_bytes: of a request.
      body_seconds: until all of it has arrived.
    """

    budget: Budget
    queries: int
    waiting: int
    body_bytes: int
    body_seconds: float = 10.0


def application(
    api: Api | None,
    limits: ServerLimits,
    writes: FrontDoor | None = None,
    bind: str = "127.0.0.1",
    allowed_hosts: Sequence[str] = (),
) -> Starlette:
    """The API over HTTP; needs a running event loop only when it is called.

    Args:
      api: what is read; None for a server that takes points and reads nothing.
      writes: what takes points; None for a server that reads alone.
      bind, allowed_hosts: the address, and names of it that clients use: see `hosts_of`.
    """
    server = _Server(api, limits, writes)
    answer = server.handle if api is not None else answer_without_tables
    paths = PROTOCOLS if writes is None else writes.protocols
    return Starlette(
        routes=[
            *(Route(path, server.logged(show_page)) for path in PAGE if api is not None),
            Route("/healthz", server.logged(server.health)),
            Route("/readyz", server.logged(server.readiness)),
            Route("/metrics", server.logged(server.show_metrics)),
            *(Route(path, server.logged(HEALTH[path])) for path in HEALTH if writes is not None),
            Route("/{path:path}", server.logged(answer), methods=["GET", "POST", "PUT", "DELETE"]),
        ],
        lifespan=None if writes is None else writes.running,
        middleware=[
            Middleware(KnownHosts, hosts_of(bind, allowed_hosts), allowed_hosts, paths),
            *([Middleware(TakesWrites, writes)] if writes is not None else []),
            Middleware(GZipMiddleware, minimum_size=_GZIP_BYTES, compresslevel=_GZIP_LEVEL),
        ],
    )


async def answer_without_tables(http: HttpRequest) -> HttpResponse:
    """The answer of a server that reads nothing."""
    if http.url.path == "/api/version":
        return JSONResponse(version())
    return JSONResponse(not_found().body(), 404)


_Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class _Server:
    """The handlers of one process."""

    def __init__(self, api: Api | None, limits: ServerLimits, writes: FrontDoor | None) -> None:
        self._api, self._limits, self._writes = api, limits, writes
        self._gate, self._counters = Gate(limits.queries, limits.waiting), Counters(READS)
        self._threads = ThreadPoolExecutor(limits.queries, "timebeam-query")

    async def health(self, _: HttpRequest) -> HttpResponse:
        """Whether the process answers."""
        return PlainTextResponse("ok\n")

    async def readiness(self, _: HttpRequest) -> HttpResponse:
        """Whether the data table can be read, and the last message could be published."""
        if self._writes is not None and self._writes.publisher.failure:
            return PlainTextResponse(f"cannot publish: {self._writes.publisher.failure}\n", 503)
        return PlainTextResponse("ready\n") if self._api is None else await self._reading(self._api)

    async def _reading(self, api: Api) -> HttpResponse:
        """Whether the data table can be read, within a few seconds: then its thread ends too."""
        table = next(spec.name for spec in api.store.tables() if spec.holds_points)
        target = dataclasses.replace(api.target, stop=Stop(_READY_SECONDS))
        try:
            await asyncio.to_thread(lambda: list(scan_keys(target, table, limit=1)))
        except GoogleAPICallError as error:
            return PlainTextResponse(f"cannot read table {table}: {type(error).__name__}\n", 503)
        except StoppedError:
            message = f"cannot read table {table}: no answer within {_READY_SECONDS:g} seconds\n"
            return PlainTextResponse(message, 503)
        return PlainTextResponse("ready\n")

    async def show_metrics(self, _: HttpRequest) -> HttpResponse:
        """What the process has done, for Prometheus."""
        text = self._counters.text(queries_running=self._gate.running, queries_waiting=self._gate.queued)
        if self._writes is not None:
            text += self._writes.metrics()
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def handle(self, http: HttpRequest) -> HttpResponse:
        """Any request of the API."""
        response = await self._answer(http)
        return HttpResponse(
            as_json(response.body), response.status, dict(response.headers), response.media_type
        )

    def logged(self, answer: _Handler) -> _Handler:
        """A handler whose answers are counted, and logged in a line each."""

        async def handler(http: HttpRequest) -> HttpResponse:
            begun = time.perf_counter()
            response = await answer(http)
            seconds, size = time.perf_counter() - begun, len(response.body)
            endpoint = http.url.path.rstrip("/").removeprefix(GRAFANA)
            endpoint = endpoint if endpoint in ENDPOINTS else _OTHER
            self._counters.add("timebeam_requests_total", 1, endpoint, response.status_code)
            self._counters.add("timebeam_response_seconds_total", seconds, endpoint)
            self._counters.add("timebeam_response_bytes_total", float(size), endpoint)
            _LOG.info(
                "%s %s %s %d %.1f ms %d bytes",
                http.client.host if http.client else "-",
                http.method,
                http.url.path,
                response.status_code,
                seconds * 1000,
                size,
            )
            return response

        return handler

    async def _answer(self, http: HttpRequest) -> Response:
        """The answer to a request; whatever happens is one, without a trace."""
        try:
            request = await self._request(http)
            gone = asyncio.create_task(_until_gone(http))
            try:
                await self._enter(gone)
                return await self._run(request, gone)
            finally:
                gone.cancel()
        except Exception as error:
            return rejection(error)

    async def _request(self, http: HttpRequest) -> Request:
        """The request with its body; raises as `read_body` does."""
        body = await read_body(http.receive, self._limits.body_bytes, self._limits.body_seconds)
        raw_path: bytes = http.scope.get("raw_path") or http.url.path.encode()
        query: bytes = http.scope["query_string"]
        return request_of(http.method, (raw_path + b"?" + query).decode("latin-1"), body)

    async def _enter(self, gone: asyncio.Task[None]) -> None:
        """Waits for a place in the gate, for the budget of seconds at most.

        Raises:
          ApiError: too many wait, or it has waited too long: 503.
          AbandonedError: the client has gone.
        """
        if not self._gate.is_full:
            await self._gate.enter()
            return
        entering = asyncio.create_task(self._gate.enter())
        try:
            await asyncio.wait(
                {entering, gone}, timeout=self._limits.budget.seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            is_waiting = entering.cancel()
        if gone.done():
            if not is_waiting and entering.exception() is None:
                self._gate.leave()
            raise AbandonedError("the client has gone")
        if is_waiting:
            seconds = self._limits.budget.seconds
            raise UnavailableError(
                f"{seconds:g} seconds passed before the query could start: try again later"
            )
        entering.result()

    async def _run(self, request: Request, gone: asyncio.Task[None]) -> Response:
        """The answer, computed in a thread whose place in the gate is free when it has ended.

        Raises:
          ApiError: the budget of seconds is used up, and the thread waits for Bigtable.
        """
        assert self._api is not None
        meter = Meter(self._limits.budget)
        api = self._api.for_request(meter)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, _encoded, api, request)
        work.add_done_callback(lambda _: self._gate.leave())
        gone.add_done_callback(lambda _: meter.set())
        try:
            await asyncio.wait((work,), timeout=self._limits.budget.seconds + _GRACE_SECONDS)
        finally:
            meter.set()
        if not work.done():
            work.add_done_callback(lambda done: done.exception())  # nobody asks for it any more
            seconds = self._limits.budget.seconds
            message = f"The query needs more than {seconds:g} seconds, the budget of a request: ask for less"
            raise ApiError(message, 413)
        response = work.result()
        for line in api.skipped[:_LOGGED_LINES]:
            _LOG.warning("skipped: %s", line)
        return response


def _encoded(api: Api, request: Request) -> Response:
    """The answer, its body as JSON."""
    response = respond(api, request)
    return dataclasses.replace(response, body=as_json(response.body))


async def _until_gone(http: HttpRequest) -> None:
    """Waits until the client hangs up."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
