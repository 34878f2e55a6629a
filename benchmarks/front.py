"""The endpoints that take points beside a bare uvicorn application, with a publisher that answers at once.

    python -m benchmarks.front --requests 3000

The bare application reads, decompresses and parses the same bodies (JSON by the standard library,
protobuf by Google's parser) and answers 204. Both are one process behind uvicorn and h11; `connections`
clients each send a body when the last one is answered. The servers take turns. As from a Prometheus that has
run for a minute, all series of remote write have been sent before.

| figure | is |
|---|---|
| `times bare` | requests for each second of the server's processor time, as a share of the bare one's |
| `requests/CPU s` | requests for each second of the server's processor time |
| `requests/s` | requests for each second, on a machine that has a core for the clients |
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from uvicorn.protocols.http.h11_impl import H11Protocol

from benchmarks import bench
from tests.support.inputs.prometheus_proto import message, request_1, snappy
from timebeam.pipelines.serve.connections import TimedProtocol
from timebeam.pipelines.serve.web_application import ServerLimits, application
from timebeam.pipelines.serve.writes.bodies import BodyParser
from timebeam.pipelines.serve.writes.front_door import FrontDoor, WriteLimits
from timebeam.pipelines.serve.writes.publisher import Publisher
from timebeam.schema.bits.compression import unpack
from timebeam.transforms.query.budget import Budget

T = 1_356_998_400


class Load(NamedTuple):
    """Bodies of one kind, and what the bare application does with one."""

    path: str
    headers: dict[str, str]
    bodies: list[bytes]
    parse: Callable[[bytes], object]


def puts(points: int, count: int) -> Load:
    """Bodies of /api/put."""
    chance = random.Random(1)
    bodies = [
        json.dumps(
            [
                {
                    "metric": f"sys.cpu.user{number % 10}",
                    "timestamp": T + body,
                    "value": round(chance.random() * 100, 2),
                    "tags": {"host": f"web{body % 40:03d}", "dc": "lga", "cpu": str(number // 10)},
                }
                for number in range(points)
            ],
            separators=(",", ":"),
        ).encode()
        for body in range(count)
    ]
    return Load("/api/put", {"Content-Type": "application/json"}, bodies, json.loads)


def remote_writes(samples: int, count: int) -> Load:
    """Requests of remote write 1.0: a sample of each series, with ten labels; no series is in two bodies."""
    chance = random.Random(1)
    bodies = [
        snappy(
            request_1(
                [
                    (
                        {
                            "__name__": f"node_cpu_seconds_{number % 50}_total",
                            "cluster": "production-europe-west1",
                            "cpu": str(number % 16),
                            "datacenter": "lga",
                            "environment": "production",
                            "instance": f"web{body:03d}-{number // 50:02d}.example.com:9100",
                            "job": "node-exporter",
                            "mode": "user",
                            "namespace": "monitoring",
                            "pod": f"node-exporter-{body:03d}{number // 50:02d}",
                        },
                        [(chance.random() * 1e6, T * 1000 + body)],
                    )
                    for number in range(samples)
                ]
            )
        )
        for body in range(count)
    ]
    request = message("WriteRequest")

    def parse(body: bytes) -> object:
        return request.FromString(unpack("snappy", body))

    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    return Load("/api/v1/write", headers, bodies, parse)


def otlp_requests(points: int, count: int) -> Load:
    """Requests of OTLP from an SDK each: data points of gauges, with three attributes."""
    chance = random.Random(1)
    bodies = []
    for body in range(count):
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add()
        _add_attributes(resource.resource, {"service.name": "shop", "host.name": f"web{body:03d}"})
        scope = resource.scope_metrics.add()
        for number in range(points):
            if number % 5 == 0:
                gauge = scope.metrics.add(name=f"http.server.figure_{number // 5}").gauge
            point = gauge.data_points.add(time_unix_nano=(T + body) * 10**9, as_double=chance.random())
            route = f"/api/{number % 5}"
            _add_attributes(point, {"http.method": "GET", "http.route": route, "http.status_code": "200"})
        bodies.append(request.SerializeToString())
    headers = {"Content-Type": "application/x-protobuf"}
    return Load("/v1/metrics", headers, bodies, ExportMetricsServiceRequest.FromString)


def _add_attributes(message: Any, attributes: dict[str, str]) -> None:
    for key, text in attributes.items():
        message.attributes.add(key=key, value=AnyValue(string_value=text))


class ReadyPublisher(Publisher):
    """Confirms at once."""

    async def publish(self, data: bytes, attributes: Any, seconds: float | None) -> None:
        """Does nothing."""


def bare_application(parse: Callable[[bytes], object]) -> Any:
    """An ASGI application that reads and parses a body."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        chunks, more = [], True
        while more:
            message = await receive()
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
        parse(b"".join(chunks))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return answer


def serve(name: str, load: Load, listening: socket.socket) -> None:
    """Runs a server, in a process of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the benchmark's own handler raises KeyboardInterrupt
    if name == "bare":
        app, protocol = bare_application(load.parse), H11Protocol
    else:
        limits = ServerLimits(Budget(1, 1, 1, 1, 1.0), 1, 1, 1)
        app = application(None, limits, FrontDoor(ReadyPublisher(""), BodyParser({}), WriteLimits()))
        protocol = TimedProtocol
    config = uvicorn.Config(app, http=protocol, access_log=False, log_level="error")
    uvicorn.Server(config).run(sockets=[listening])


@contextlib.contextmanager
def server(name: str, load: Load) -> Iterator[tuple[int, int]]:
    """(process id, port) of a server that runs meanwhile."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    process = multiprocessing.get_context("fork").Process(target=serve, args=(name, load, listening))
    process.start()
    try:
        yield process.pid or 0, listening.getsockname()[1]
    finally:
        process.terminate()
        process.join()
        listening.close()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(port: int, requests: list[bytes]) -> None:
    """Sends requests over one connection, each after the answer to the last."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for request in requests:
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 20"), answer  # 204, or 200 of OTLP


def run(pid: int, port: int, load: Load, requests: int, connections: int) -> tuple[float, float]:
    """(processor seconds of the server, seconds) for some requests."""
    head = f"POST {load.path} HTTP/1.1\r\nHost: localhost\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in load.headers.items())
    wire = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in load.bodies]
    shares = [
        [wire[number % len(wire)] for number in range(first, requests, connections)]
        for first in range(connections)
    ]
    threads = [threading.Thread(target=send, args=(port, share)) for share in shares]
    worked, began = cpu_seconds(pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return cpu_seconds(pid) - worked, time.perf_counter() - began


def measure(folder: Path, *, requests: int = 4000, connections: int = 32, turns: int = 5) -> bench.Cases:
    """A case for each kind of body."""
    loads = {
        "50-point /api/put": puts(50, 200),
        "2,000-sample remote write": remote_writes(2000, 10),
        "50-point OTLP": otlp_requests(50, 200),
    }
    cases: dict[str, dict[str, list[float]]] = {}
    for case, load in loads.items():
        figures = cases[case] = {}
        count = requests // 10 if load.path == "/api/v1/write" else requests
        with contextlib.ExitStack() as stack:
            servers = {name: stack.enter_context(server(name, load)) for name in ("bare", "front")}
            for pid, port in servers.values():
                run(pid, port, load, 2 * len(load.bodies), connections)  # fills caches
            for _ in range(turns):
                taken = {
                    name: run(pid, port, load, count, connections) for name, (pid, port) in servers.items()
                }
                figures.setdefault("times bare", []).append(taken["bare"][0] / taken["front"][0])
                for name, (worked, seconds) in taken.items():
                    figures.setdefault(f"{name}, requests/CPU s", []).append(count / worked)
                    figures.setdefault(f"{name}, requests/s", []).append(count / seconds)
    return cases


if __name__ == "__main__":
    sys.exit(bench.main(measure, emulator=False))
