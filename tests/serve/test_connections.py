"""Connections are shared by the processes that listen on one socket, and send at once."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from uvicorn.server import ServerState

from timebeam.pipelines.serve.connections import SharingLoop, TimedProtocol

CONNECTIONS = 5


def test_one_connection_is_taken_at_a_time() -> None:
    async def taken(listening: socket.socket) -> list[int]:
        protocols: list[asyncio.Protocol] = []

        def protocol() -> asyncio.Protocol:
            protocols.append(asyncio.Protocol())
            return protocols[-1]

        server = await asyncio.get_running_loop().create_server(protocol, sock=listening)
        counts = [0]
        while counts[-1] < CONNECTIONS:
            await asyncio.sleep(0)  # one turn of the loop
            counts.append(len(protocols))
        server.close()
        return counts

    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as listening:
        clients = [socket.create_connection(listening.getsockname()) for _ in range(CONNECTIONS)]
        with asyncio.Runner(loop_factory=SharingLoop) as runner:
            counts = runner.run(taken(listening))
        for client in clients:
            client.close()
    assert sorted(set(counts)) == list(range(CONNECTIONS + 1))


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
