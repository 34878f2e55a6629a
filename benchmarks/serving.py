"""Queries of dashboards, by `timebeam serve` and `timebeam query`, beside the bare read of the same rows.

    python -m benchmarks.serving
    python -m benchmarks.serving --scale 0.1 --baseline ../older-checkout

Loads an emulator with packed points: 100 series of 6 hours at 10 s with decimals, 1,000 series of 6 hours at
1 s with integers, and a year of minutes of one series, which is rolled up too. `--scale` has fewer series and
fewer days of the year. All columns take turns in one run, each in a process of its own.

| figure | is |
|---|---|
| `bare read` | the rows of the query, read by our reader and dropped |
| `decoded` | the same rows, read and decoded |
| `baseline` | `timebeam query` of the checkout that `--baseline` names, in its process, imports done |
| `query` | `timebeam query` of today, likewise |
| `served` | a request to `timebeam serve --cache_bytes 0`, until the last byte of the answer |
| `cached` | the same of a server with its caches, which has answered this request before |
| `CPU s` | processor time of the process that reads, decodes and aggregates, without the emulator's |
| `first byte` | wall time from the request to the first byte of its answer |
| `queries/s`, `p50`, `p99` | 8 clients, each with random hosts, by servers of one and two workers |

All columns must give the same answer; another one ends the program with exit code 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode

from benchmarks import bench
from benchmarks.bench import ROOT, TARGET, BenchmarkError, log, run_child
from timebeam.pipelines.local.emulator import child
from timebeam.schema.layouts import Finding, ReadableLayout, Reader, Row, Scan, Selected, Selection
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.transforms.readers.table_reader import TableReader, read_ahead, scan_rows

START_S = 1_420_070_400  # 2015-01-01
_HOUR_S, _DAY_S = 3600, 86_400
_FILE_POINTS = 5_000_000
_CLIENTS, _CLIENT_HOSTS = 8, 3
_SECONDS = 120
_ROLLUPS = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {"table": "tsdb", "preAggregationTable": "preagg", "interval": "1m", "rowSpan": "1h"}
        | {"defaultInterval": True},
        {"table": "rollup-1h", "preAggregationTable": "preagg-1h", "interval": "1h", "rowSpan": "1n"},
        {"table": "rollup-1d", "preAggregationTable": "preagg-1d", "interval": "1d", "rowSpan": "1y"},
    ],
}


class Turn(NamedTuple):
    """Wall time and processor time in s of one query, and its answer: values by time in s, by tags."""

    seconds: float
    cpu: float
    answer: dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Query:
    """A query, as a command and as a request.

    Attributes:
      tags: `key=value`, which group.
      turns: how many times as often as the others, since it is short.
    """

    name: str
    metric: str
    seconds: int
    aggregator: str
    downsample: str = ""
    tags: tuple[str, ...] = ()
    rollups: bool = False
    turns: int = 1

    @property
    def arguments(self) -> list[str]:
        """The command, without its layout."""
        words = ["query", self.metric, "--start", str(START_S), "--end", str(START_S + self.seconds - 1)]
        words += ["--aggregator", self.aggregator, "--output", "json"]
        words += ["--downsample", self.downsample] if self.downsample else []
        keys = [tag.partition("=")[0] for tag in self.tags]
        return words + (["--tag", *self.tags, "--group_by", *keys] if keys else [])

    @property
    def target(self) -> str:
        """The target of the request."""
        usage = "" if self.rollups else "rollup_raw"
        braces = f"{{{','.join(self.tags)}}}" if self.tags else ""
        m = ":".join(filter(None, (self.aggregator, self.downsample, usage, self.metric + braces)))
        return "/api/query?" + urlencode({"start": START_S, "end": START_S + self.seconds - 1, "m": m})

    @property
    def selection(self) -> Selection:
        """The points that it reads."""
        tags = dict(tag.split("=") for tag in self.tags)
        values = {key: frozenset() if value == "*" else frozenset({value}) for key, value in tags.items()}
        return Selection(self.metric, values, START_S * 1000, (START_S + self.seconds) * 1000 - 1)


HOSTS, SECONDS, YEAR = "web.load", "net.bytes", "room.temperature"


def queries(series: int, days: int) -> list[Query]:
    """The queries; `series` of the metric `SECONDS`, so many days of a year."""
    many = f"{series:,} series"
    return [
        Query("5m-avg by host, 6 h", HOSTS, 6 * _HOUR_S, "sum", "5m-avg", ("host=*",), turns=3),
        Query("one series, raw, 6 h", HOSTS, 6 * _HOUR_S, "sum", tags=("host=h000",), turns=10),
        Query("1m-avg sum by dc, 6 h", HOSTS, 6 * _HOUR_S, "sum", "1m-avg", ("dc=*",), turns=3),
        Query(f"{many}, 1m-avg sum, 1 h", SECONDS, _HOUR_S, "sum", "1m-avg"),
        Query(f"{many}, 10m-max by host, 1 h", SECONDS, _HOUR_S, "sum", "10m-max", ("host=*",)),
        Query("year of one series, 1d-avg", YEAR, days * _DAY_S, "sum", "1d-avg"),
        Query("the same with rollups", YEAR, days * _DAY_S, "sum", "1d-avg", rollups=True, turns=10),
        Query(f"{many}, 10m-avg sum, 6 h", SECONDS, 6 * _HOUR_S, "sum", "10m-avg"),
    ]


def _lines(series: int, days: int) -> Iterator[str]:
    """The points as `put` lines."""
    chance = random.Random(1)
    for metric, count, step in ((HOSTS, max(_CLIENTS, series // 10), 10), (SECONDS, series, 1)):
        tails = [f" host=h{number:03} dc=d{number % 4}\n" for number in range(count)]
        values = [f"{chance.randrange(1_000_000)}" for _ in range(9973)]
        if metric == HOSTS:
            values = [f"{value[:-3] or 0}.{value[-3:]}" for value in values]
        number = 0
        for time_s in range(START_S, START_S + 6 * _HOUR_S, step):
            for tail in tails:
                number = (number + 7) % len(values)
                yield f"put {metric} {time_s} {values[number]}{tail}"
    for time_s in range(START_S, START_S + days * _DAY_S, 60):
        yield f"put {YEAR} {time_s} {chance.randrange(4000) / 100} site=a\n"


def load(folder: Path, series: int, days: int) -> list[str]:
    """Stores the points and the rollups of the year; returns the options of the layout."""
    place = ["--layout=opentsdb", f"--project={TARGET.project}", f"--instance={TARGET.instance}"]
    config = folder / "rollups.json"
    config.write_text(json.dumps(_ROLLUPS))
    run_child(["-m", "timebeam", "tables", "create", *place, f"--rollup_config={config}"])
    path, dead = folder / "points.txt", f"--dead_letters={folder / 'dead'}"
    ingest = ["ingest", *place, "--format=opentsdb-text", "--bigtable_writer=direct", "--auto_create_metrics"]
    lines = _lines(series, days)
    while True:
        with path.open("w") as stream:
            count = 0
            for count, line in enumerate(lines, 1):
                stream.write(line)
                if count == _FILE_POINTS:
                    break
        if not count:
            break
        run_child(["-m", "timebeam", *ingest, f"--input={path}", dead])
        path.unlink()
    period = [f"--start={START_S}", f"--end={START_S + days * _DAY_S}"]
    run_child(["-m", "timebeam", "rollup", *place, f"--rollup_config={config}", *period, dead])
    return place


_DRIVER = """
import contextlib, importlib, io, json, sys, time
main = importlib.import_module(sys.argv[1]).main
for line in sys.stdin:
    output = io.StringIO()
    started, worked = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(output):
        code = main(json.loads(line))
    figures = time.perf_counter() - started, time.process_time() - worked, code, output.getvalue()
    print(json.dumps(figures), flush=True)
"""


class Commands:
    """A process in which commands of a checkout run, one after the other.

    Args:
      checkout: its folder; the packages of an older one are at its top.
    """

    def __init__(self, checkout: Path, stack: contextlib.ExitStack) -> None:
        name = "timebeam.pipelines.cli" if (checkout / "timebeam").is_dir() else "pipelines.cli"
        command = [sys.executable, "-c", _DRIVER, name]
        self._process = stack.enter_context(
            subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.kill)

    def run(self, arguments: Sequence[str]) -> Turn:
        """Runs a command that prints the JSON of an answer."""
        sent, received = _stream(self._process.stdin), _stream(self._process.stdout)
        sent.write(json.dumps(arguments) + "\n")
        sent.flush()
        seconds, cpu, code, output = json.loads(received.readline())
        if code:
            raise BenchmarkError(f"{' '.join(arguments)}: exit code {code}")
        return Turn(seconds, cpu, answer_of(json.loads(output)))


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


class Server:
    """`timebeam serve` as a process of its own, at a free port."""

    def __init__(self, options: Sequence[str], folder: Path, stack: contextlib.ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        output = stack.enter_context((folder / f"serve-{self.port}").open("wb"))
        command = [sys.executable, "-m", "timebeam", "serve", "--port", str(self.port), *options]
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


def answer_of(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The values of each result."""
    return {
        json.dumps(result["tags"], sort_keys=True): {
            time: float(value) for time, value in result["dps"].items()
        }
        for result in results
    }


def check(query: Query, column: str, expected: Turn, turn: Turn) -> None:
    """Raises BenchmarkError if the answers differ by more than the order of a sum."""
    is_equal = expected.answer.keys() == turn.answer.keys() and all(
        expected.answer[tags].keys() == values.keys()
        and all(
            math.isclose(value, expected.answer[tags][time], rel_tol=1e-9) for time, value in values.items()
        )
        for tags, values in turn.answer.items()
    )
    if not is_equal or not any(turn.answer.values()):
        raise BenchmarkError(f"{query.name}: the answer of {column} is another one")


class _Recording:
    """A `Reader` that notes the scans that it is asked for."""

    def __init__(self) -> None:
        self._reader, self.scans = TableReader(TARGET), list[Scan]()

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`."""
        self.scans.append(scan)
        return self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """See `Reader.rows`."""
        return self._reader.rows(table, keys)


def reads_of(layout: ReadableLayout, query: Query) -> dict[str, Callable[[], Turn]]:
    """What reads the rows of a query, and what also decodes them, by column."""
    reader: Reader = (recording := _Recording())
    series_of = {
        selected.row.key: selected.series
        for selected in layout.select(query.selection, reader)
        if not isinstance(selected, Finding)
    }

    def bare() -> None:
        for scan in recording.scans:
            for _ in scan_rows(TARGET, scan):
                pass

    def decoded() -> None:
        for scan in recording.scans:
            rows = scan_rows(TARGET, scan)
            for selected in read_ahead(
                Selected(row, series_of[row.key]) for row in rows if row.key in series_of
            ):
                assert not isinstance(selected, Finding)
                assert not layout.decode_rows(selected).damage

    return {"bare read": functools.partial(_timed, bare), "decoded": functools.partial(_timed, decoded)}


def _timed(run: Callable[[], None]) -> Turn:
    started, worked = time.perf_counter(), time.process_time()
    run()
    return Turn(time.perf_counter() - started, time.process_time() - worked, {})


def clients(server: Server, hosts: int, requests: int) -> dict[str, float]:
    """The figures of 8 clients that ask for three random hosts each time."""
    latencies: list[float] = []
    failed: list[int] = []

    def ask(seed: int) -> None:
        chance, connection = random.Random(seed), server.connection()
        for _ in range(requests // _CLIENTS):
            names = "|".join(f"h{number:03}" for number in sorted(chance.sample(range(hosts), _CLIENT_HOSTS)))
            query = Query("", HOSTS, 5 * _HOUR_S, "sum", "5m-avg", (f"host={names}",))
            started = time.perf_counter()
            connection.request("GET", query.target)
            response = connection.getresponse()
            response.read()
            latencies.append(time.perf_counter() - started)
            if response.status != 200:
                failed.append(response.status)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(_CLIENTS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if failed or len(latencies) != requests // _CLIENTS * _CLIENTS:
        raise BenchmarkError(f"{len(failed)} of {requests} requests failed: {set(failed)}")
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        "queries/s": len(latencies) / seconds,
        "p50, ms": percentiles[49] * 1000,
        "p99, ms": percentiles[98] * 1000,
    }


def measure(
    folder: Path, *, scale: float = 1.0, turns: int = 3, requests: int = 800, baseline: str = ""
) -> bench.Cases:
    """A case for each query, and one for each number of workers with 8 clients."""
    series, days = max(40, round(1000 * scale)), max(30, round(365 * scale))
    place = load(folder, series, days)
    rollups = f"--rollup_config={folder / 'rollups.json'}"
    cases: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        serve = functools.partial(Server, folder=folder, stack=stack)
        off = ["--cache_bytes=0"]
        served, cached = serve([*place, rollups, *off]), serve([*place, rollups])
        checkouts = {"query": Commands(ROOT, stack)}
        if baseline:
            checkouts["baseline"] = Commands(Path(baseline).resolve(), stack)
        for query in queries(series, days):
            figures = cases[query.name] = {}
            arguments = [*query.arguments, *place, *([rollups] if query.rollups else [])]
            runs = {} if query.rollups else reads_of(OpenTsdb(), query)
            for name, checkout in checkouts.items():
                runs[name] = functools.partial(checkout.run, arguments)
            expected = {name: run() for name, run in runs.items()}["query"]  # which also warms up
            for name, server in (("served", served), ("cached", cached)):
                runs[name] = functools.partial(server.turn, query.target)
                runs[name]()
            for _ in range(turns * query.turns):
                done = {name: run() for name, run in runs.items()}
                for name in runs.keys() - {"bare read", "decoded"}:
                    check(query, name, expected, done[name])
                _add(figures, done)
            log(query.name)
        small = Query("", HOSTS, _HOUR_S, "sum", tags=("host=h001",))
        first = [served.get(small.target)[1] * 1000 for _ in range(10 * turns)]
        cases["one series, raw, 1 h"] = {"first byte, ms": first}
        hosts = max(_CLIENTS, series // 10)
        for workers in (1, 2):
            for caches, options in (("", off), (", caches", [])):
                server = serve([*place, *options, f"--workers={workers}"])
                clients(server, hosts, requests // 4)
                case = cases[f"8 clients, {workers} workers{caches}"] = {}
                for _ in range(turns):
                    for name, value in clients(server, hosts, requests).items():
                        case.setdefault(name, []).append(value)
    return cases


def _add(figures: dict[str, list[float]], done: dict[str, Turn]) -> None:
    """Adds a turn of all columns."""
    ratios = [("served", "decoded"), ("served", "baseline"), ("query", "baseline"), ("cached", "served")]
    for name, other in ratios:
        if other in done:
            column = f"times the {other}, {name}, CPU"
            figures.setdefault(column, []).append(done[name].cpu / done[other].cpu)
    for name, turn in done.items():
        figures.setdefault(f"{name}, CPU ms", []).append(turn.cpu * 1000)
        figures.setdefault(f"{name}, ms", []).append(turn.seconds * 1000)


if __name__ == "__main__":
    sys.exit(bench.main(measure))
