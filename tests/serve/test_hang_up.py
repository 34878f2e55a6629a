"""A request that nobody waits for any more ends, and gives its place to another."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

from tests.support.servers.rows_server import RowsServer, serving
from tests.support.servers.running_server import running
from timebeam.pipelines.serve import web_application
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Budget

API = Api(Target("project", "instance"), OpenTsdb(OpenTsdbOptions(table_prefix="")))
LIMITS = ServerLimits(Budget(1_000, 1_000, 1_000, 1 << 20, 30.0), queries=1, waiting=2, body_bytes=1_000)
QUERY = "/api/query?start=1356998400&end=1357009200&m=sum:sys.cpu.user"
SUGGEST = "/api/suggest?type=metrics&q=sys"


def silent(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    """A Bigtable that does not answer."""
    while context.is_active():
        time.sleep(0.02)
    yield from ()


@contextlib.contextmanager
def stalled(limits: ServerLimits = LIMITS) -> Iterator[tuple[RowsServer, httpx.Client]]:
    """A server, over a Bigtable that does not answer."""
    with serving(silent) as bigtable, running(API, limits) as client:
        yield bigtable, client


def sent(client: httpx.Client, path: str = QUERY) -> socket.socket:
    """A connection that waits for an answer."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    with serving(silent), running(API, dataclasses.replace(LIMITS, body_seconds=0.1)) as client:
        connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
        with connection:
            connection.sendall(b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            connection.settimeout(30)
            assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert client.get("/api/version").status_code == 200


def gauge(client: httpx.Client, name: str) -> int:
    lines = client.get("/metrics").text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"timebeam_queries_{name} "))


def until(condition: Callable[[], bool]) -> None:
    """Waits until it is so, at most half a minute."""
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never was so")


@pytest.mark.parametrize("path", [QUERY, SUGGEST])
def test_a_client_that_hangs_up_ends_a_scan_that_gets_no_row(path: str) -> None:
    with stalled() as (bigtable, client):
        connection = sent(client, path)
        until(lambda: len(bigtable.requests) == 1)
        assert gauge(client, "running") == 1
        connection.close()
        until(lambda: gauge(client, "running") == 0)
        assert bigtable.gone.wait(10)


def test_the_end_of_the_time_ends_a_scan_that_gets_no_row() -> None:
    budget = dataclasses.replace(LIMITS.budget, seconds=0.3)
    with stalled(dataclasses.replace(LIMITS, budget=budget)) as (bigtable, client):
        response = client.get(QUERY)
        assert response.status_code == 413
        assert "more than 0.3 seconds, the budget of a request. It stopped after 0 rows" in response.text
        until(lambda: gauge(client, "running") == 0)
        assert bigtable.gone.wait(10)


def test_readiness_is_answered_while_bigtable_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_application, "_READY_SECONDS", 0.3)
    with stalled() as (bigtable, client):
        response = client.get("/readyz")
        assert response.status_code == 503
        assert response.text == "cannot read table tsdb: no answer within 0.3 seconds\n"
        assert bigtable.gone.wait(10)


def test_a_client_that_hangs_up_leaves_the_queue() -> None:
    with stalled() as (bigtable, client):
        running_one = sent(client)
        until(lambda: gauge(client, "running") == 1)
        waiting = [sent(client) for _ in range(LIMITS.waiting)]
        until(lambda: gauge(client, "waiting") == LIMITS.waiting)
        rejected = client.get(QUERY)
        assert (rejected.status_code, rejected.headers["retry-after"]) == (503, "5")
        for connection in waiting:
            connection.close()
        until(lambda: gauge(client, "waiting") == 0)
        last = sent(client)
        until(lambda: gauge(client, "waiting") == 1)
        running_one.close()
        until(lambda: len(bigtable.requests) == 2)
        assert (gauge(client, "running"), gauge(client, "waiting")) == (1, 0)
        last.close()
        until(lambda: gauge(client, "running") == 0)


def test_a_request_waits_for_its_turn_no_longer_than_it_may_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        web_application.Meter, "seconds_left", LIMITS.budget.seconds
    )  # the work itself never ends
    monkeypatch.setattr(web_application.Meter, "seconds", 0.0)
    budget = dataclasses.replace(LIMITS.budget, seconds=0.5)
    with stalled(dataclasses.replace(LIMITS, budget=budget)) as (bigtable, client):
        connection = sent(client)
        until(lambda: len(bigtable.requests) == 1)
        response = client.get(QUERY)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        message = "0.5 seconds passed before the query could start: try again later"
        assert response.json() == {"error": {"code": 503, "message": message}}
        assert gauge(client, "waiting") == 0
        connection.close()
