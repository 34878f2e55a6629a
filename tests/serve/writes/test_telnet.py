"""The telnet port: lines that are stored, answers to others, and lines without end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

import grpc
import pytest

from tests.support.pubsub_server import PubSubServer
from tests.support.servers.front_door import front_door
from tests.support.servers.programs import free_port
from timebeam.pipelines.serve.writes import telnet
from timebeam.pipelines.serve.writes.telnet import ANSWERS, CHUNK_BYTES, LINE_BYTES, TelnetAddress

SECONDS = 60


class Port(NamedTuple):
    address: tuple[str, int]
    server: PubSubServer

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=SECONDS)

    def lines(self) -> list[bytes]:
        """All lines that were published."""
        return [line for message in self.server.published for line in message.data.split(b"\n")]

    def wait_for(self, count: int) -> None:
        until = time.monotonic() + SECONDS
        while len(self.lines()) < count:
            assert time.monotonic() < until, self.lines()
            time.sleep(0.01)


@pytest.fixture(scope="module")
def running_port() -> Iterator[Port]:
    address = ("127.0.0.1", free_port())
    with front_door(telnet=TelnetAddress(*address)) as (_, server):
        yield Port(address, server)


@pytest.fixture
def port(running_port: Port) -> Port:
    running_port.server.published.clear()
    return running_port


def answers(connection: socket.socket) -> list[str]:
    """What is answered until the end."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received.decode().splitlines()


def put(number: int) -> bytes:
    return b"put sys.cpu %d %d host=a" % (1_356_998_400 + number, number)


def test_lines_are_published_without_an_answer(port: Port) -> None:
    with port.connect() as connection:
        text = b"".join(put(number) + (b"\r\n" if number % 2 else b"\n") for number in range(1000))
        for start in range(0, len(text), 777):  # lines that are cut anywhere
            connection.sendall(text[start : start + 777])
        connection.sendall(b"exit\n")
        assert answers(connection) == []
    assert port.lines() == [put(number) for number in range(1000)]
    assert {message.attributes["format"] for message in port.server.published} == {"opentsdb-text"}


def test_answers(port: Port) -> None:
    with port.connect() as connection:
        connection.sendall(
            b"version\nput sys.cpu 1356998400 x host=a\nput sys.cpu 0 1 host=a\nstats\n\nexit\n"
        )
        version, *others = answers(connection)
    assert version.startswith("net.opentsdb.tools 2.4.1 built at revision ")
    assert others == [
        "unknown command: stats.  Try `help'.",
        "put: invalid value: Unable to parse value to a number: 'x'",
        "put: illegal argument: Invalid timestamp 0: it must be above 0",
    ]
    assert port.lines() == []


def test_good_lines_beside_bad_ones_are_published(port: Port) -> None:
    with port.connect() as connection:
        connection.sendall(put(1) + b"\nput x\n" + put(2) + b"\nexit\n")
        (answer,) = answers(connection)
    assert answer.startswith("put: illegal argument: not enough arguments")
    assert port.lines() == [put(1), b"put x", put(2)]


def test_a_line_without_end_is_rejected_once_and_not_kept(port: Port) -> None:
    with port.connect() as connection:
        connection.sendall(b"put " + b"x" * 5_000_000 + b"\n" + put(1) + b"\nexit\n")
        (answer,) = answers(connection)
    assert answer.startswith(f"put: illegal argument: the line has more than {LINE_BYTES} bytes: put xxx")
    assert port.lines() == [put(1)]


def test_bytes_that_are_no_text(port: Port) -> None:
    with port.connect() as connection:
        connection.sendall(bytes(range(256)) * 50 + b"\n" + put(1) + b"\nexit\n")
        assert answers(connection)
    assert port.lines() == [put(1)]


def test_the_last_line_needs_its_newline(port: Port) -> None:
    with port.connect() as connection:
        connection.sendall(put(1) + b"\n" + put(2))
    port.wait_for(1)
    assert port.lines() == [put(1)]


def test_many_connections(port: Port) -> None:
    connections = [port.connect() for _ in range(200)]
    for number, connection in enumerate(connections):
        connection.sendall(put(number) + b"\n")
    port.wait_for(200)
    for connection in connections:
        connection.close()
    assert sorted(port.lines()) == sorted(put(number) for number in range(200))


def test_lines_wait_for_pubsub(port: Port) -> None:
    port.server.fault = grpc.StatusCode.UNAVAILABLE
    with port.connect() as connection:
        connection.sendall(put(1) + b"\n")
        time.sleep(0.5)
        assert port.lines() == []
        port.server.fault = None
        connection.sendall(put(2) + b"\n")
        port.wait_for(2)
    assert port.lines() == [put(1), put(2)]


def test_only_some_lines_of_a_chunk_are_answered(port: Port) -> None:
    """A sender that reads nothing could fill the memory with answers of 30 bytes to lines of two."""
    with port.connect() as connection:
        connection.sendall(b"x\n" * (CHUNK_BYTES // 2))
        connection.sendall(b"version\n" * 1000 + put(1) + b"\nexit\n")
        received = answers(connection)
    assert received[0] == "unknown command: x.  Try `help'."
    assert len(received) <= 20 * ANSWERS  # chunks are as the system cuts them
    assert port.lines() == [put(1)]


def test_idle_connections_are_closed(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """They kept others out; a byte now and then does not keep one open, but lines do."""
    monkeypatch.setattr(telnet, "IDLE_SECONDS", 0.4)
    with port.connect() as silent, port.connect() as slow, port.connect() as busy:
        for number in range(8):
            busy.sendall(put(number) + b"\n")
            with contextlib.suppress(OSError):
                slow.sendall(b"p")
            time.sleep(0.1)
        assert answers(silent) == []
        with contextlib.suppress(ConnectionResetError):
            assert answers(slow) == []
        busy.sendall(b"exit\n")
        assert answers(busy) == []
    assert port.lines() == [put(number) for number in range(8)]


def test_histograms_are_messages_of_their_own(port: Port) -> None:
    line = b"histogram sys.load 1356998400 0,1=12:u=2 host=a"
    with port.connect() as connection:
        connection.sendall(put(1) + b"\n" + line + b"\nhistogram m 1356998400 0=1 host=a\nexit\n")
        (answer,) = answers(connection)
    assert answer == "histogram: illegal argument: Unable to parse bucket bounds: 0"
    published = {
        message.attributes["format"]: message.data.split(b"\n")[0] for message in port.server.published
    }
    assert published == {"opentsdb-text": put(1), "opentsdb-histogram": line}
