"""The processes of serving.py: queries of a checkout, servers and their clients, and what each takes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import BenchmarkError
from benchmarks.checkouts import Commands
from benchmarks.dashboards import HOST_COUNT, HOSTS, HOUR_S, Query
from timebeam.pipelines.local.emulator import child

_CLIENTS, _CLIENT_HOSTS = 8, 3
_SECONDS = 120
_MAX_POINTS = 30_000_000  # the longest query has more points than the default allows


class Turn(NamedTuple):
    """Wall time and processor time in s of one query, and its answer: values by time in s, by tags."""

    seconds: float
    cpu: float
    answer: dict[str, dict[str, float]]


def query_command(commands: Commands, arguments: Sequence[str]) -> Turn:
    """Runs `timebeam query` with JSON as its output."""
    run = commands.run(arguments)
    return Turn(run.seconds, run.cpu, answer_of(json.loads(run.output)))


class Server:
    """`timebeam serve` as a process of its own, at a free port."""

    def __init__(self, options: Sequence[str], folder: Path, stack: contextlib.ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        output = stack.enter_context((folder / f"serve-{self.port}").open("wb"))
        budget = f"--max-points={_MAX_POINTS}"
        command = [sys.executable, "-m", "timebeam", "serve", "--port", str(self.port), budget, *options]
        self._process = stack.enter_context(child([*command], output))
        stack.callback(os.killpg, self._process.pid, signal.SIGKILL)  # its workers too
        deadline = time.monotonic() + _SECONDS
        while not self._is_ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchmarkError((folder / f"serve-{self.port}").read_text())
            time.sleep(0.1)

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)

    def get(self, target: str) -> tuple[Turn, float]:
        """(the answer to a request, seconds until its first byte); without gzip."""
        with contextlib.closing(self.connection()) as connection:
            started, worked = time.perf_counter(), self._cpu()
            connection.request("GET", target)
            response = connection.getresponse()
            first = response.read(1)
            first_s = time.perf_counter() - started
            body = first + response.read()
            seconds = time.perf_counter() - started
        if response.status != 200:
            raise BenchmarkError(f"{target}: {response.status} {body[:500]!r}")
        return Turn(seconds, self._cpu() - worked, answer_of(json.loads(body))), first_s

    def turn(self, target: str) -> Turn:
        """The answer to a request."""
        return self.get(target)[0]

    def group_cpu(self) -> float:
        """Processor seconds of the process and its workers so far, to 10 ms."""
        return _cpu_of(lambda process: process.group == self._process.pid)

    def _cpu(self) -> float:
        """Processor seconds of the process, to the nanosecond: its clock by its id, as glibc numbers it."""
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def _is_ready(self) -> bool:
        with contextlib.closing(self.connection()) as connection:
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False


class _Process(NamedTuple):
    """A running process."""

    name: str
    parent: int
    group: int


def _cpu_of(is_counted: Callable[[_Process], bool]) -> float:
    """Processor seconds of some processes so far, to 10 ms."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            if is_counted(_Process(name, int(fields[1]), int(fields[2]))):
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _emulator_cpu() -> float:
    """Processor seconds of the emulator that this process has started."""
    return _cpu_of(lambda process: process.parent == os.getpid() and process.name.startswith("cbtemulator"))


def answer_of(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The values of each result."""
    return {
        json.dumps(result["tags"], sort_keys=True): {
            time: float(value) for time, value in result["dps"].items()
        }
        for result in results
    }


def clients(server: Server, requests: int) -> dict[str, float]:
    """The figures of 8 clients that ask for three random hosts each time."""
    latencies: list[float] = []
    failed: list[int] = []

    def ask(seed: int) -> None:
        chance, connection = random.Random(seed), server.connection()
        for _ in range(requests // _CLIENTS):
            names = "|".join(
                f"h{number:03}" for number in sorted(chance.sample(range(HOST_COUNT), _CLIENT_HOSTS))
            )
            query = Query("", HOSTS, 5 * HOUR_S, "sum", "5m-avg", (f"host={names}",))
            started = time.perf_counter()
            connection.request("GET", query.target)
            response = connection.getresponse()
            response.read()
            latencies.append(time.perf_counter() - started)
            if response.status != 200:
                failed.append(response.status)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(_CLIENTS)]
    clocks = {"clients": time.process_time, "server": server.group_cpu, "emulator": _emulator_cpu}
    worked = {name: clock() for name, clock in clocks.items()}
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    cpu = {name: clock() - worked[name] for name, clock in clocks.items()}
    if failed or len(latencies) != requests // _CLIENTS * _CLIENTS:
        raise BenchmarkError(f"{len(failed)} of {requests} requests failed: {set(failed)}")
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        "queries/s": len(latencies) / seconds,
        "p50, ms": percentiles[49] * 1000,
        "p99, ms": percentiles[98] * 1000,
    } | {f"{name}, CPU ms": value * 1000 / len(latencies) for name, value in cpu.items()}
