"""Connections of the HTTP server: processes share them, and one on which no request arrives is closed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class SharingLoop(asyncio.SelectorEventLoop):
    """An event loop that takes one connection at a time from a socket on which other processes listen too.

    One that takes all that wait, as asyncio does, can leave none for the others. Clients keep their
    connections, so these processes would stay idle.
    """

    async def create_server(
        self, *args: Any, sock: socket.socket | None = None, backlog: int = 100, **options: Any
    ) -> asyncio.Server:
        """See asyncio.loop.create_server: `backlog` is how many connections may wait."""
        at_once = backlog if sock is None else 1  # it takes as many as it lets wait
        server = await super().create_server(*args, sock=sock, backlog=at_once, **options)
        if sock is not None:
            sock.listen(backlog)
        return server


REQUEST_SECONDS = 30.0
"""From the start of a connection, or the end of an answer, until the headers of a request have arrived."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit on headers; the limit on a body is that of its handler.

    Without one, connections that send nothing, or a byte a second, use up those that a process takes.

    It sends what it has at once, also on a socket that several processes share, for which asyncio leaves
    Nagle's algorithm on: the body of an answer would wait 40 ms for the client to confirm its headers.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        self._set_timer()

    def on_response_complete(self) -> None:
        """Called when an answer has been sent."""
        super().on_response_complete()
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        """Starts the timer while no request is under way, and stops it while one is."""
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not is_busy and self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._expire, self._unread())

    def _expire(self, unread_before: int) -> None:
        """Closes the connection; drops it if the client has read nothing of an answer meanwhile."""
        unread = self._unread()
        if not unread:
            self.transport.close()
        elif unread == unread_before:
            self.transport.abort()  # closing would wait until the answer is read
        else:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._expire, unread)

    def _unread(self) -> int:
        """The bytes of an answer that the client has not taken yet."""
        return self.transport.get_write_buffer_size()
