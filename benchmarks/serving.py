"""Queries of dashboards, by `timebeam serve` and `timebeam query`, beside the bare read of the same rows.

    python -m benchmarks.serving
    python -m benchmarks.serving --scale 0.1 --baseline ../older-checkout

Loads an emulator with the points of dashboards.py. All columns take turns in one run, each in a process of
its own. `--scale` has fewer of the series with a point each second, and fewer days of the year.

| figure | is |
|---|---|
| `bare read` | the rows of the query, read by our reader and dropped |
| `decoded` | the same rows, read and decoded |
| `baseline` | `timebeam query` of the checkout that `--baseline` names, in its process, imports done |
| `query` | `timebeam query` of today, likewise |
| `served` | a request to `timebeam serve --cache-bytes 0`, until the last byte of the answer |
| `cached` | the same of a server with its caches, which has answered this request before |
| `CPU ms` | processor time of the process that reads, decodes and aggregates, without the emulator's |
| `first byte` | wall time from the request to the first byte of its answer |
| `queries/s`, `p50`, `p99` | 8 clients, each with random hosts, by servers of one and two workers |
| `clients`, `server`, `emulator` | the processor time of a query of these; the clients are one process |

All columns must give the same answer; another one ends the program with exit code 1.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import bench
from benchmarks.bench import ROOT, TARGET, BenchmarkError, log
from benchmarks.checkouts import Commands
from benchmarks.dashboards import HOSTS, HOUR_S, Query, load, queries
from benchmarks.serving_processes import Server, Turn, clients, query_command
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Finding, Reader, Scan, Selected
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.read.table_reader import TableReader, read_ahead, scan_rows


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
        self.scans.append(scan)
        return self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        return self._reader.rows(table, keys)


def reads_of(layout: ReadableStore, query: Query) -> dict[str, Callable[[], Turn]]:
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
                assert not layout.decode_rows(selected).corruption

    return {"bare read": functools.partial(_timed, bare), "decoded": functools.partial(_timed, decoded)}


def _timed(run: Callable[[], None]) -> Turn:
    started, worked = time.perf_counter(), time.process_time()
    run()
    return Turn(time.perf_counter() - started, time.process_time() - worked, {})


def measure(
    folder: Path, *, scale: float = 1.0, turns: int = 3, requests: int = 400, baseline: str = ""
) -> bench.Cases:
    """A case for each query, and one for each number of workers with 8 clients."""
    series, days = max(40, round(1000 * scale)), max(30, round(365 * scale))
    place = load(folder, series, days)
    rollups = f"--rollup-config={folder / 'rollups.json'}"
    cases: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        serve = functools.partial(Server, folder=folder, stack=stack)
        off = ["--cache-bytes=0"]
        served, cached = serve([*place, rollups, *off]), serve([*place, rollups])
        checkouts = {"query": Commands(ROOT, stack)}
        if baseline:
            checkouts["baseline"] = Commands(Path(baseline).resolve(), stack)
        for query in queries(series, days):
            figures = cases[query.name] = {}
            arguments = [*query.arguments, *place, *([rollups] if query.rollups else [])]
            runs = {} if query.rollups else reads_of(OpenTsdb(), query)
            for name, checkout in checkouts.items():
                runs[name] = functools.partial(query_command, checkout, arguments)
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
        small = Query("", HOSTS, HOUR_S, "sum", tags=("host=h001",))
        first = [served.get(small.target)[1] * 1000 for _ in range(10 * turns)]
        cases["one series, raw, 1 h"] = {"first byte, ms": first}
        for workers, processes in ((1, "1 worker"), (2, "2 workers")):
            for caches, options in (("", off), (", caches", [])):
                server = serve([*place, *options, f"--workers={workers}"])
                clients(server, requests // 4)
                case = cases[f"8 clients, {processes}{caches}"] = {}
                for _ in range(turns):
                    for name, value in clients(server, requests).items():
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
    figures.setdefault("served, ms", []).append(done["served"].seconds * 1000)


if __name__ == "__main__":
    sys.exit(bench.main(measure))
