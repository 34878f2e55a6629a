"""Connections are shared by the processes that listen on one socket."""

from __future__ import annotations

import asyncio
import socket

from timebeam.pipelines.serve.connections import SharingLoop

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
