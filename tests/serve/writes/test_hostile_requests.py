"""Requests that are slow, wrong, too long or too many: rejected, without memory kept or others stalled."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
import uvicorn
import zstandard

from tests.support.servers.front_door import Door, front_door
from timebeam.pipelines.serve import connections
from timebeam.pipelines.serve.web_application import hosts_of
from timebeam.pipelines.serve.writes.bodies import LISTED_BYTES, SHORT_BYTES, BodyContent
from timebeam.pipelines.serve.writes.front_door import BODY_BYTES, WriteLimits
from timebeam.pipelines.serve.writes.protocols import PROTOCOLS
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage

POINT = {"metric": "sys.cpu", "timestamp": 1356998400, "value": 1, "tags": {"host": "a"}}
BODY = json.dumps(POINT).encode()
SECONDS = 60


@pytest.fixture(scope="module")
def running_door() -> Iterator[Door]:
    with front_door(WriteLimits(body_seconds=2.0)) as door:
        yield door


@pytest.fixture
def door(running_door: Door) -> Iterator[Door]:
    client, server = running_door
    server.published.clear()
    yield running_door
    assert client.post("/api/put", content=BODY).status_code == 204  # it still works
    assert "timebeam_held_bytes 0\n" in client.get("/metrics").text


def raw(door: Door, *pieces: bytes, ends: bool = False) -> bytes:
    """What is answered to bytes on a new connection, until it is closed or silent."""
    url = door[0].base_url
    with socket.create_connection((url.host, url.port), timeout=5) as connection:
        answer = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                answer += data
        except (TimeoutError, ConnectionError):
            pass
        return answer


def head(*lines: str) -> bytes:
    return "\r\n".join(
        ["POST /api/put HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""]
    ).encode()


def test_a_body_that_does_not_arrive(door: Door) -> None:
    assert raw(door, head("Content-Length: 100"), b"{").startswith(b"HTTP/1.1 408 ")
    assert door[1].published == []


def test_a_client_that_leaves(door: Door) -> None:
    raw(door, head("Content-Length: 100"), b"{", ends=True)
    assert door[1].published == []


def test_a_client_that_sends_no_more_gets_its_answer(door: Door) -> None:
    request = head(f"Content-Length: {len(BODY)}") + BODY
    assert b"HTTP/1.1 204 " in raw(door, request, ends=True)
    assert [message.data for message in door[1].published] == [BODY]


def test_a_connection_is_closed_after_an_answer_before_the_end_of_a_body(door: Door) -> None:
    """The rest of the body was parsed on and on: three connections held the event loop for half a minute."""
    url = door[0].base_url
    with socket.create_connection((url.host, url.port), timeout=SECONDS) as connection:
        connection.sendall(b"GET /api/put HTTP/1.1\r\nHost: localhost\r\n")
        connection.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nconnection: close\r\n" in answer.lower()  # a client that has sent all sends no more
        connection.settimeout(0.02)
        for _ in range(300):
            with contextlib.suppress(TimeoutError, BrokenPipeError):
                connection.sendall(b"1\r\n \r\n")
                if not connection.recv(65536):
                    return
    raise AssertionError("the connection is open")


def test_a_body_in_many_short_chunks(door: Door) -> None:
    chunked = head("Transfer-Encoding: chunked")
    answer = raw(door, chunked, b"1\r\n \r\n" * (connections.FREE_CHUNKS + 100))
    assert answer.startswith(b"HTTP/1.1 400 ")
    padded = BODY.ljust(200 * connections.FREE_CHUNKS)
    pieces = [padded[start : start + 150] for start in range(0, len(padded), 150)]
    answer = raw(door, chunked, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ")


def test_a_length_beside_a_transfer_encoding(door: Door) -> None:
    whole = head(f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked").replace(
        b"Connection: close\r\n", b""
    )
    answer = raw(door, whole + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert door[1].published == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:4242", 204),
        ("127.0.0.1", 204),
        ("[::1]:4242", 204),
        ("evil.example:4242", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
    ],
)
def test_other_names_of_a_loopback_address_are_not_answered(door: Door, host: str, status: int) -> None:
    headers = {"Host": host}
    assert door[0].post("/api/put", content=BODY, headers=headers).status_code == status
    assert door[0].get("/healthz", headers=headers).status_code == (200 if status == 204 else 403)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1"])
def test_pages_of_other_origins_may_not_write(door: Door, origin: str) -> None:
    answer = door[0].post("/api/put", content=BODY, headers={"Origin": origin})
    assert answer.status_code == 403
    assert door[1].published == []
    assert door[0].get("/healthz", headers={"Origin": origin}).status_code == 200
    own = str(door[0].base_url).rstrip("/")
    assert door[0].post("/api/put", content=BODY, headers={"Origin": own}).status_code == 204


def test_names_that_are_allowed() -> None:
    assert hosts_of("0.0.0.0", []) is None
    assert "metrics.example" in (hosts_of("127.0.0.1", ["Metrics.example"]) or ())
    assert "evil.example" not in (hosts_of("0.0.0.0", ["metrics.example"]) or ("evil.example",))


@pytest.mark.parametrize("path", [path for path in PROTOCOLS if path != "/api/v1/write"])
def test_half_a_surrogate_pair_is_an_error_of_the_client(door: Door, path: str) -> None:
    half = r'"\ud800x"'
    bodies = {
        "/api/histogram": '{"metric":"m","timestamp":1356998400,"buckets":{%s:1},"tags":{"h":"a"}}',
        "/api/v1/datapoints": '[{"name":%s,"timestamp":1356998400000,"value":"x","tags":{"h":"a"}}]',
        "/heroic/write": '{"series":{"key":%s,"tags":{}},"data":{"type":%s,"data":[[1356998400000,1]]}}',
        "/v1/metrics": '{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":%s}]}]}],"x":%s}',
    }
    text = bodies.get(path, '{"metric":%s,"timestamp":%s,"value":"x","tags":{%s:"a"}}').replace("%s", half)
    for kind in ("application/json", "application/x-protobuf"):
        answer = door[0].post(f"{path}?details", content=text, headers={"Content-Type": kind})
        assert answer.status_code < 500, answer.text


@pytest.mark.parametrize("length", ["-1", "x", "1, 2", "9" * 30, "0x10"])
def test_lengths_that_are_wrong(door: Door, length: str) -> None:
    answer = raw(door, head(f"Content-Length: {length}"), BODY)
    assert answer.split(b" ")[1] in (b"400", b"413"), answer
    assert door[1].published == []


def test_a_body_that_is_too_long_by_its_length(door: Door) -> None:
    assert raw(door, head(f"Content-Length: {BODY_BYTES + 1}")).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_is_too_long_in_chunks(door: Door) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(BODY_BYTES // 1_000_000 + 2):
            yield b" " * 1_000_000

    try:
        status = door[0].post("/api/put", content=chunks()).status_code
    except httpx.TransportError:  # the answer came, and the connection was closed, before all was sent
        status = 413
    assert status == 413
    assert door[1].published == []


def test_a_body_in_chunks(door: Door) -> None:
    assert door[0].post("/api/put", content=iter([BODY[:5], BODY[5:]])).status_code == 204
    assert [message.data for message in door[1].published] == [BODY]


def test_the_longest_body_is_taken(door: Door) -> None:
    line = BODY + b"\n"
    body = line * (BODY_BYTES // len(line))
    response = door[0].post("/api/put?summary", content=body, timeout=SECONDS)
    assert response.json() == {"success": BODY_BYTES // len(line), "failed": 0}
    assert [message.data for message in door[1].published] == [body]


BOMB = b"0" * (70 << 20)
BOMBS = {
    "objects in gzip": ("/api/put", "gzip", gzip.compress(BOMB)),
    "objects in zstd": ("/api/put", "zstd", zstandard.compress(BOMB)),
    "lines in gzip": ("/write", "gzip", gzip.compress(b"x\n" + BOMB)),
    "documents in gzip": ("/heroic/write", "gzip", gzip.compress(BOMB)),
    "a Snappy block": ("/api/v1/write", "snappy", pa.compress(BOMB, codec="snappy", asbytes=True)),
    "protobuf in zstd": ("/api/v1/write", "zstd", zstandard.compress(BOMB)),
    "plain text as gzip": ("/api/put", "gzip", BODY),
    "plain text as zstd": ("/api/put", "zstd", BODY),
    "gzip without its end": ("/api/put", "gzip", gzip.compress(BODY)[:-5]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_and_corrupt_bodies(door: Door, name: str) -> None:
    path, encoding, packed = BOMBS[name]
    headers = {"Content-Encoding": encoding}
    response = door[0].post(path, content=packed, headers=headers, timeout=SECONDS)
    assert response.status_code == 400, response.text
    assert door[1].published == []


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x" * 5000, "é"])
def test_encodings_that_are_not_supported(door: Door, encoding: str) -> None:
    headers = {"Content-Encoding": encoding.encode("latin-1")}
    assert door[0].post("/api/put", content=BODY, headers=headers).status_code == 415


def test_hostile_query_strings(door: Door) -> None:
    many = "&".join(f"a{number}" for number in range(5000))
    assert door[0].post(f"/api/put?{many}", content=BODY).status_code == 400
    assert door[0].post("/api/put?%ff%00=\xff&details", content=BODY).status_code == 200


def test_a_long_body_does_not_stall_short_ones(door: Door) -> None:
    """Objects that are read one by one, since a tag is a number, take about a second."""
    point = b'{"metric":"a","timestamp":1356998400,"value":1,"tags":{"a":1}}'
    slow = b"[" + b",".join([point] * 100_000) + b"]"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        long = pool.submit(door[0].post, "/api/put?summary", content=slow, timeout=SECONDS)
        answered = 0
        while not long.done():
            assert door[0].post("/api/put", content=BODY, timeout=SECONDS).status_code == 204
            answered += 1
        assert long.result().json() == {"success": 100_000, "failed": 0}
    assert answered > 3


def test_many_connections(door: Door) -> None:
    url = door[0].base_url
    idle = [socket.create_connection((url.host, url.port), timeout=SECONDS) for _ in range(200)]
    for connection in idle:
        connection.sendall(head("Content-Length: 10") + b"{")
    assert door[0].post("/api/put", content=BODY).status_code == 204
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("start", [b"", b"POST /api/put HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_headers_that_do_not_arrive(start: bytes, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 such connections kept others out; a request after an answer has a time limit too."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    url = door[0].base_url
    whole = head(f"Content-Length: {len(BODY)}") + BODY
    for first in (b"", whole):
        with socket.create_connection((url.host, url.port), timeout=SECONDS) as connection:
            connection.sendall(first)
            if first:
                assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")
            for byte in start:
                try:
                    connection.sendall(bytes([byte]))
                except OSError:
                    break
                time.sleep(0.02)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(65536) == b""


def test_a_slow_body_or_answer_is_not_cut_by_the_time_limit_of_headers(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.1)
    url = door[0].base_url
    with socket.create_connection((url.host, url.port), timeout=SECONDS) as connection:
        connection.sendall(head(f"Content-Length: {len(BODY)}"))
        time.sleep(0.3)
        connection.sendall(BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")


def test_rejections_that_are_listed_have_a_bound() -> None:
    """1,000 rejections of a body of 64 MiB unpacked could hold as much each."""
    content = BodyContent()
    for _ in range(100):
        content.reject(Rejected(bytes(SHORT_BYTES // 2), Reason.BAD_SYNTAX, "why", Stage.PARSE))
    assert content.rejected_points == 100
    assert sum(len(rejected.payload) for rejected in content.rejected) <= LISTED_BYTES + SHORT_BYTES
    content = BodyContent()
    content.reject(Rejected(bytes(64 << 20), Reason.BAD_SYNTAX, "why", Stage.PARSE))
    assert [len(rejected.payload) for rejected in content.rejected] == [SHORT_BYTES]


def test_an_answer_that_nobody_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such connections, with their answers in memory, stayed open for good."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(32 << 20)})

    config = uvicorn.Config(app, port=0, http=connections.TimedProtocol, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = server.servers[0].sockets[0].getsockname()[:2]
    with socket.create_connection(address, timeout=SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(10).startswith(b"HTTP/1.1")
        end = time.monotonic() + SECONDS
        while server.server_state.connections and time.monotonic() < end:
            time.sleep(0.05)
        assert not server.server_state.connections
    server.should_exit = True
    thread.join()
