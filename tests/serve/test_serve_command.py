"""`timebeam serve` as a command: what it rejects before it listens, and declared tables."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from starlette.applications import Starlette

from tests.support.commands import timebeam
from tests.support.parsed import options_of, place_of
from tests.support.stored import Store
from timebeam.pipelines.serve import server
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond

MARKET = Path(__file__).parents[2] / "examples" / "tables" / "market.toml"


def test_a_port_that_is_taken(bigtable: tuple[str, str], prefix: str) -> None:
    store = Store.create(bigtable, prefix)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = timebeam("serve", *store.flags, f"--port={port}")
    assert (ran.code, ran.out) == (2, "")
    assert f"port {port} of 127.0.0.1 is in use: choose another --port" in ran.err


def test_declared_tables_are_served(bigtable: tuple[str, str], prefix: str) -> None:
    where = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    flags = ["--layout=table", f"--tables={MARKET}", *where]
    assert timebeam("tables", "create", *flags).code == 0
    place, options = place_of("serve", *flags), options_of(server.ServeOptions, "serve", *flags)
    assert isinstance(server._application(place, options), Starlette)
    api = Api.of(place)
    health = request_of("GET", "/api/suggest?type=metrics&q=cpu", b"")
    assert (respond(api, health).status, respond(api, health).body) == (200, [])


@pytest.mark.parametrize("option", ["--influx-metric=m", "--otlp-histogram=counts"])
def test_wrong_options_of_formats_end_the_command(option: str) -> None:
    ran = timebeam("serve", "--write-only", "--topic=projects/p/topics/t", option)
    assert ran.code == 2
    assert option.partition("=")[0].removeprefix("--").replace("-", "_") in ran.err
