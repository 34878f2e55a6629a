"""Connections of the HTTP server: processes share them, and one on which no request arrives is closed."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_LOG = logging.getLogger("timebeam.serve")


class SharingLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers leave connections of a shared socket to processes that have fewer of them.

    asyncio's own servers take all that wait. Clients keep their connections, so the process that sees them
    first would have all the work, and others would stay idle.
    """

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        *args: Any,
        sock: socket.socket | None = None,
        backlog: int = 100,
        **options: Any,
    ) -> asyncio.Server | SharingServer:
        """See asyncio.loop.create_server: a `sock` is one that processes share."""
        if sock is None:
            return await super().create_server(protocol_factory, *args, backlog=backlog, **options)
        sock.listen(backlog)
        return SharingServer(self, protocol_factory, sock)


_SECONDS_A_CONNECTION, _MOST_CONNECTIONS = 0.001, 5
"""How long a new connection is left to other processes, for each open one up to so many."""

_RETRY_SECONDS = 1.0


class SharingServer:
    """Takes connections: the more of them are open here, the later.

    Args:
      sock: listens already.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        sock: socket.socket,
    ) -> None:
        self._loop, self._new_protocol, self._sock = loop, protocol_factory, sock
        self._open: list[asyncio.Transport] = []
        sock.setblocking(False)
        self._task = loop.create_task(self._serve())

    def close(self) -> None:
        """Takes no more connections; does not close the socket."""
        self._loop.remove_reader(self._sock)
        self._task.cancel()

    async def wait_closed(self) -> None:
        """Waits until it takes no more connections."""
        await asyncio.wait((self._task,))

    async def _serve(self) -> None:
        while True:
            await self._arrival()
            self._open = [transport for transport in self._open if not transport.is_closing()]
            count = len(self._open)
            await asyncio.sleep(min(count, _MOST_CONNECTIONS) * _SECONDS_A_CONNECTION)
            for _ in range(max(1, count)):  # at most as many again, so many at once need not wait
                if not await self._take():
                    break

    async def _take(self) -> bool:
        """Takes a connection; False if there is none."""
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False  # another process has taken it, or the client has gone
        except OSError as error:
            _LOG.warning("cannot accept a connection: %s", error.strerror)
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        connection.setblocking(False)
        transport, _ = await self._loop.connect_accepted_socket(self._new_protocol, connection)
        self._open.append(transport)
        return True

    async def _arrival(self) -> None:
        """Waits until a connection can be taken."""
        arrived = asyncio.Event()
        self._loop.add_reader(self._sock, arrived.set)
        await arrived.wait()
        self._loop.remove_reader(self._sock)


REQUEST_SECONDS = 30.0
"""From the start of a connection, or the end of an answer, until the headers of a request have arrived."""


FREE_CHUNKS, CHUNK_BYTES = 1_000, 100
"""Chunks of a body that may be of any length; more must have so many bytes on average. h11 takes about 20
microseconds for a chunk of any length, and a read has 256 KiB: 40,000 chunks of one byte are a second."""


class _Connection(h11.Connection):
    """Rejects bodies in many short chunks, and those whose length is told twice (RFC 9112 §6.3).

    Attributes:
      is_last: an answer began before the body had ended: the connection ends with it, as the answer says. A
        client whose last bytes were on their way would send another request, and see the connection end.
    """

    is_last = False
    _chunks = _bytes = 0

    def send(self, event: Any) -> Any:
        """See h11.Connection: if it knew of the header, the connection would be closed at once, and reset."""
        self.is_last |= isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY
        data = super().send(event)
        if self.is_last and isinstance(event, h11.Response) and data is not None:
            return data.removesuffix(b"\r\n") + b"connection: close\r\n\r\n"
        return data

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("Content-Length with Transfer-Encoding")
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > FREE_CHUNKS + self._bytes // CHUNK_BYTES:
                raise h11.RemoteProtocolError("too many short chunks")
        return event


_PROBE_SECONDS = 0.25
_TCP_CLOSED = 7  # of tcp_states.h in Linux


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit on headers; the limit on a body is that of its handler.

    Without one, connections that send nothing, or a byte a second, use up those that a process takes.

    It sends what it has at once, also on a socket that several processes share, for which asyncio leaves
    Nagle's algorithm on: the body of an answer would wait 40 ms for the client to confirm its headers.
    """

    conn: _Connection
    _timer: asyncio.TimerHandle | None = None
    _is_discarding = _is_half_closed = False

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = _Connection(h11.SERVER, self.conn._max_incomplete_event_size)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        if not self._is_discarding:
            super().data_received(data)
            self._set_timer()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio allows
        """A client that sends no more gets the answers to whole requests; most such clients have gone.

        One that has gone is told by its kernel's reset after something is sent: an interim answer.
        """
        self._is_half_closed = self._is_busy and self.conn.their_state is not h11.SEND_BODY
        if self._is_half_closed and not self.cycle.response_started and self.scope["http_version"] == "1.1":
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim))
            self._probe()
        return self._is_half_closed

    def _probe(self) -> None:
        """Drops the connection as soon as it was reset, which asyncio, reading no more, cannot see."""
        if not self._is_busy or self.transport.is_closing():
            return
        information = self.transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, 1
        )
        if information[0] == _TCP_CLOSED:
            self.transport.abort()
        else:
            self.loop.call_later(_PROBE_SECONDS, self._probe)

    def on_response_complete(self) -> None:
        """Called when an answer has been sent: ends the connection if the request goes on, or no other comes.

        What is left of a body is discarded until the timer for idle connections ends: closing at once would
        reset the connection, and many clients would not see the answer.
        """
        super().on_response_complete()
        self._set_timer()
        if self._is_half_closed and not self._is_busy:
            self.transport.close()
        elif self.conn.is_last and not self.transport.is_closing():
            self._is_discarding = True
            self.transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def _set_timer(self) -> None:
        """Starts the timer while no request is under way, and stops it while one is."""
        if self._is_busy and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not self._is_busy and self._timer is None:
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
