"""The web application: the endpoints over HTTP, with budgets, a gate, metrics and one line a request.

Starlette and uvicorn: a request is reading and numpy in a thread, so that the server only has to notice that
a client hangs up, and to answer health checks meanwhile.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from google.api_core.exceptions import GoogleAPICallError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from timebeam.pipelines.serve.cache import Api
from timebeam.pipelines.serve.hosts import KnownHosts, hosts_of
from timebeam.pipelines.serve.route_requests import (
    ENDPOINTS,
    GRAFANA,
    PAGE,
    Response,
    as_json,
    request_of,
    respond,
    show_page,
    version,
)
from timebeam.pipelines.serve.writes.front_door import HEALTH, FrontDoor, TakesWrites
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request, not_found
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.retry import Stop, StoppedError
from timebeam.transforms.query.budget import AbandonedError, Budget, Meter

RETRY_SECONDS = 5


def overloaded(why: str) -> ApiError:
    """The answer to a request that is turned away: 503, with the time to wait before the next try."""
    return ApiError(f"{why}: try again later", 503, headers={"Retry-After": str(RETRY_SECONDS)})


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
            raise overloaded(f"{self._most} queries run and {self._waiting} wait")
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


class Metrics:
    """Counters of one process; only its event loop changes them."""

    def __init__(self) -> None:
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._seconds: collections.Counter[str] = collections.Counter()
        self._sizes: collections.Counter[str] = collections.Counter()

    def count(self, path: str, status: int, seconds: float, size: int) -> None:
        """Counts an answer of so many bytes."""
        endpoint = path.rstrip("/").removeprefix(GRAFANA)
        endpoint = endpoint if endpoint in ENDPOINTS else _OTHER
        self._requests[endpoint, status] += 1
        self._seconds[endpoint] += seconds  # type: ignore[assignment]
        self._sizes[endpoint] += size

    def text(self, running: int, queued: int) -> str:
        """All metrics.

        Args:
          running, queued: requests now.
        """
        lines = ["# TYPE timebeam_requests_total counter"]
        lines += [
            f'timebeam_requests_total{{endpoint="{endpoint}",status="{status}"}} {number}'
            for (endpoint, status), number in sorted(self._requests.items())
        ]
        for name, values in (("seconds", self._seconds), ("bytes", self._sizes)):
            lines.append(f"# TYPE timebeam_response_{name}_total counter")
            lines += [
                f'timebeam_response_{name}_total{{endpoint="{endpoint}"}} {value:g}'
                for endpoint, value in sorted(values.items())
            ]
        for name, value in (("running", running), ("waiting", queued)):
            lines += [f"# TYPE timebeam_queries_{name} gauge", f"timebeam_queries_{name} {value}"]
        return "\n".join(lines) + "\n"


_LOG = logging.getLogger("timebeam.serve")
_GRACE_SECONDS = 2
_READY_SECONDS = 5
_GZIP_BYTES = 1000
_GZIP_LEVEL = 1  # compression stops all other requests: level 9 takes five times as long for 16 % fewer bytes
_LOGGED_LINES = 5
_CLIENT_CLOSED = 499


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
            Middleware(KnownHosts, hosts_of(bind, allowed_hosts), allowed_hosts),
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
        self._gate, self._metrics = Gate(limits.queries, limits.waiting), Metrics()
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
        table = next(spec.name for spec in api.layout.tables() if spec.holds_points)
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
        text = self._metrics.text(self._gate.running, self._gate.queued)
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
            self._metrics.count(http.url.path, response.status_code, seconds, size)
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
        except ApiError as error:
            return Response(error.status, error.body(), error.headers)
        except (AbandonedError, ClientDisconnect):
            return Response(_CLIENT_CLOSED, ApiError("Client disconnected", _CLIENT_CLOSED).body())
        except TimeoutError:
            seconds = self._limits.budget.seconds
            message = f"The query needs more than {seconds:g} seconds, the budget of a request: ask for less"
            return Response(413, ApiError(message, 413).body())
        except GoogleAPICallError as error:
            _LOG.error("Bigtable: %s", error)
            headers = {"Retry-After": "1"}
            return Response(503, ApiError(f"Bigtable: {type(error).__name__}", 503).body(), headers)
        except Exception:
            _LOG.exception("an error of the server")
            return Response(500, ApiError("Internal server error; see the log", 500).body())

    async def _request(self, http: HttpRequest) -> Request:
        """The request with its body.

        Raises:
          ApiError: the body is too large, or does not arrive in time.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for chunk in http.stream():
                    body += chunk
                    if len(body) > self._limits.body_bytes:
                        raise ApiError(f"The body has more than {self._limits.body_bytes:,} bytes", 413)
        except TimeoutError as error:
            seconds = self._limits.body_seconds
            raise ApiError(f"The body did not arrive within {seconds:g} seconds", 408) from error
        raw_path: bytes = http.scope.get("raw_path") or http.url.path.encode()
        query: bytes = http.scope["query_string"]
        target = (raw_path + b"?" + query).decode("latin-1")
        return request_of(http.method, target, bytes(body))

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
            raise overloaded(f"{self._limits.budget.seconds:g} seconds passed before the query could start")
        entering.result()

    async def _run(self, request: Request, gone: asyncio.Task[None]) -> Response:
        """The answer, computed in a thread whose place in the gate is free when it has ended.

        Raises:
          TimeoutError: the budget of seconds is used up, and the thread waits for Bigtable.
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
            raise TimeoutError
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
