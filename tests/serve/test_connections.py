"""Connections are shared by the processes that listen on one socket, and send at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import socket
from collections.abc import Iterator

import pytest
import uvicorn
from uvicorn.server import ServerState

from timebeam.pipelines.serve.connections import SharingLoop, TimedProtocol


def test_connections_are_shared_evenly() -> None:
    async def taken(listening: socket.socket) -> list[int]:
        counts = [0, 0]

        class Counted(asyncio.Protocol):
            def __init__(self, server: int) -> None:
                self.server = server

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                counts[self.server] += 1

        loop = asyncio.get_running_loop()
        servers = [
            await loop.create_server(functools.partial(Counted, number), sock=sock)
            for number, sock in enumerate((listening, listening.dup()))
        ]
        clients = [await asyncio.open_connection(*listening.getsockname()) for _ in range(8)]
        while sum(counts) < len(clients):
            await asyncio.sleep(0.01)
        for server in servers:
            server.close()
            await server.wait_closed()
        for _, client in clients:
            client.close()
        return counts

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        asyncio.Runner(loop_factory=SharingLoop) as runner,
    ):
        assert runner.run(taken(listening)) == [4, 4]


def test_many_connections_at_once_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted_sleep(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    async def take(listening: socket.socket) -> None:
        made: list[asyncio.BaseTransport] = []
        all_made = asyncio.Event()

        class Kept(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)
                if len(made) == count:
                    all_made.set()

        server = await asyncio.get_running_loop().create_server(Kept, sock=listening, backlog=count)
        await all_made.wait()
        server.close()
        await server.wait_closed()

    monkeypatch.setattr("timebeam.pipelines.serve.connections.asyncio.sleep", noted_sleep)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=count) as listening,
        contextlib.ExitStack() as clients,
        asyncio.Runner(loop_factory=SharingLoop) as runner,
    ):
        for _ in range(count):
            clients.enter_context(socket.create_connection(listening.getsockname()))
        runner.run(take(listening))
    assert 0 < sum(slept) <= 0.1


def test_a_process_without_free_descriptors_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def answered(listening: socket.socket, client: socket.socket) -> bytes:
        class Greets(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(b"hello")

        loop = asyncio.get_running_loop()
        with without_free_descriptors():
            server = await loop.create_server(Greets, sock=listening)
            while "cannot accept a connection" not in caplog.text:
                await asyncio.sleep(0.01)
        client.setblocking(False)
        received = await loop.sock_recv(client, 5)
        server.close()
        return received

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        asyncio.Runner(loop_factory=SharingLoop) as runner,
    ):
        assert runner.run(answered(listening, client)) == b"hello"


@contextlib.contextmanager
def without_free_descriptors() -> Iterator[None]:
    """Lets this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_answers_are_sent_at_once_on_a_shared_socket() -> None:
    async def connected() -> int:
        config = uvicorn.Config(lambda: None, port=0, log_level="error")
        config.load()
        loop, made = asyncio.get_running_loop(), asyncio.Event()
        protocols: list[TimedProtocol] = []

        def protocol() -> TimedProtocol:
            protocols.append(TimedProtocol(config, ServerState(), {}))
            loop.call_soon(made.set)
            return protocols[-1]

        with config.bind_socket() as listening:  # as for worker processes
            server = await loop.create_server(protocol, sock=listening)
            _, client = await asyncio.open_connection(*listening.getsockname())
            await made.wait()
            taken: socket.socket = protocols[0].transport.get_extra_info("socket")
            nodelay = taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            client.close()
            server.close()
        return nodelay

    assert asyncio.run(connected())
