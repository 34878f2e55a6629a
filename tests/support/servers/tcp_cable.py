"""A TCP forwarder before a server, to be cut and joined again: real resets, on the same port.

Stopping a gRPC server is no substitute: it says goodbye (GOAWAY) before it cuts its calls, on which a
client of grpcio 1.85 at times waits for ever, whatever its deadline.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from timebeam.pipelines.local.emulator import HOST_VARIABLE

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: close() sends RST


class Cable:
    """Forwards connections to `upstream` while it is whole.

    Attributes:
      host: localhost:PORT, the same before and after a cut.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = ("127.0.0.1", int(upstream.rpartition(":")[2]))
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        # Bound and never listening: the port stays ours while the cable is cut.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port.bind(("127.0.0.1", 0))
        self.host = f"localhost:{self._port.getsockname()[1]}"
        self._listener = self._listen()

    def cut(self, seconds: float) -> None:
        """Resets all connections at once, and refuses new ones for so long."""
        self._sever()
        self._start(self._join_after, seconds)

    def close(self) -> None:
        """Ends it for good."""
        self._ended.set()
        self._sever()
        for thread in self._threads:
            thread.join()
        self._port.close()

    def _join_after(self, seconds: float) -> None:
        if not self._ended.wait(seconds):
            self._listener = self._listen()

    def _sever(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads
            end.close()

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(self._port.getsockname())
        listener.listen(64)
        self._start(self._accept, listener)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._upstream)
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._ends += [near, far]
                self._start(self._pump, near, far)
                self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Copies one direction until either side ends it."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


@contextlib.contextmanager
def plugged(upstream: str) -> Iterator[Cable]:
    """The clients of this process go through a cable to `upstream`, until the end of the block."""
    cable = Cable(upstream)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(HOST_VARIABLE, cable.host)
            yield cable
    finally:
        cable.close()
