"""The same ingest and the same rollup on several engines, with one worker process and with two.

    python -m benchmarks.engines
    PRISM_LOCATION=/path/to/prism python -m benchmarks.engines --repeats 3

| engine | is | needs |
|---|---|---|
| `plain` | the default: all in one process; what the others are compared with | |
| `multi_processing` | Beam's local runner with worker processes | |
| `prism` | Beam's Prism, with the processes of `worker_pool` | `prism` on PATH, or PRISM_LOCATION |
| `dask` | a Dask cluster, with the runner of `dask_engine` | dask and distributed, installed |

Starts an emulator of its own and ingests the same files into new tables for each run; after it the
tables must hold the same cells as those of `plain` (see `table_content`). Prints one JSON document;
docs/explanation/engines.md explains it. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.generate import Load, write
from benchmarks.ingest import BenchmarkError, drop, log, run_child
from benchmarks.kernel import best_and_median, machine
from benchmarks.table_content import NamedCell, named_cells
from benchmarks.worker_pool import WorkerPool
from timebeam.pipelines.local.emulator import Emulator, EmulatorError
from timebeam.pipelines.options.values import read_config
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.rollup.job import rollup_tables

TARGET = Target("local", "local")
PLAIN = "plain"
_WITHOUT_METRICS = ("dask",)
_STEP_S = 10
_FILES = 4
_SAMPLE_SECONDS = 0.2
_WORKER_MARKS = ("sdk_worker_main", "multiprocessing.spawn")
_CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {"table": "tsdb", "preAggregationTable": "preagg", "interval": "1m", "rowSpan": "1h"}
        | {"defaultInterval": True},
        {"table": "rollup-10m", "preAggregationTable": "preagg-10m", "interval": "10m", "rowSpan": "1d"},
        {"table": "rollup-1h", "preAggregationTable": "preagg-1h", "interval": "1h", "rowSpan": "1n"},
    ],
    "timebeam": {"preAggregates": [{"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum"]}]},
}


class Turn(NamedTuple):
    """One command, in seconds.

    Attributes:
      seconds: what the command times itself, without imports.
      process_seconds: from the start of its process to its exit.
      worker_cpu: processor time of each worker process, the busiest first.
      points: those that its summary counts as stored, or read by a rollup; None if the engine has no metrics.
    """

    seconds: float
    process_seconds: float
    worker_cpu: tuple[float, ...]
    points: int | None


def prism() -> str | None:
    """Where the program of Prism is."""
    return os.environ.get("PRISM_LOCATION") or shutil.which("prism")


def missing(engine: str) -> str | None:
    """Why an engine cannot be had here."""
    if engine == "prism" and not prism():
        return "no prism on PATH, and PRISM_LOCATION is not set"
    if engine == "dask" and not importlib.util.find_spec("distributed"):
        return "dask and distributed are not installed"
    return None


@contextlib.contextmanager
def started(engine: str, workers: int) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """An engine: the options for commands that are to run on it, and what it noted of its workers."""
    if engine == "multi_processing":
        flags = ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
        yield flags, {}
    elif engine == "prism":
        with WorkerPool(workers) as pool:
            flags = ["--runner=PrismRunner", f"--prism_location={prism()}", "--environment_type=EXTERNAL"]
            noted: dict[str, Any] = {}
            yield [*flags, f"--environment_config={pool.address}"], noted
            noted["bundles"] = {number: _of_ours(counts) for number, counts in sorted(pool.bundles.items())}
    elif engine == "dask":
        from distributed import LocalCluster

        with LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster:
            runner = "--runner=benchmarks.dask_engine.EngineRunner"
            yield [runner, f"--dask_client_address={cluster.scheduler_address}"], {}
    else:
        yield [], {}


def _of_ours(counts: Mapping[str, int]) -> dict[str, int]:
    """Bundles by step, of the steps that do the work."""
    prefixes = ("Parse", "AssignUids", "Encode", "Pack", "Accumulate", "Write")
    processes: dict[str, int] = {}
    for name, count in counts.items():
        step = name.split("/")[0]
        if step in prefixes:
            processes[step] = max(processes.get(step, 0), count)
    return processes


class CpuClock:
    """The processor time of the worker processes among our descendants; used in a `with`."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._before = _worker_seconds()

    def __enter__(self) -> CpuClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def read(self) -> tuple[float, ...]:
        """Seconds of each, the largest first; those that did nothing are left out."""
        used = [now - self._before.get(pid, 0.0) for pid, now in self._seconds.items()]
        return tuple(round(cores, 1) for cores in sorted(used, reverse=True) if cores >= 0.1)

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            self._seconds.update(_worker_seconds())


def _worker_seconds() -> dict[int, float]:
    """User and system time of each living worker process below this one, by process id."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        if any(mark in command for mark in _WORKER_MARKS):
            seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return {pid: used for pid, used in seconds.items() if _is_ours(pid, parents)}


def _is_ours(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


class Bench:
    """The input, and what `plain` made of it."""

    def __init__(self, points: int, folder: Path) -> None:
        self.points, self._folder = points, folder
        load = Load(points, format="opentsdb-json", step=_STEP_S)
        write(load, folder / "points.json", files=_FILES)
        self._config = folder / "rollups.json"
        self._config.write_text(json.dumps(_CONFIG))
        self._period = (load.start, load.start + points // load.series * _STEP_S + 3600)
        self._expected: set[NamedCell] = set()
        self._runs = 0

    def run(self, engine: str, workers: int) -> tuple[dict[str, Turn], dict[str, Any]]:
        """Ingests and rolls up on an engine; the figures of both, and what the engine noted.

        Raises:
          BenchmarkError: a command failed, or the tables do not hold what they should.
        """
        self._runs += 1
        layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"run{self._runs}-"))
        where = [f"--layout={layout.name}", f"--table_prefix={layout.options.table_prefix}"]
        config = f"--rollup_config={self._config}"
        run_child(["-m", "timebeam", "tables", "create", *where, config])
        start, end = self._period
        commands = {
            "ingest": [
                "--format=opentsdb-json",
                f"--input={self._folder / 'points*.json'}",
                "--auto_create_metrics",
                "--bigtable_writer=direct",
            ],
            "rollup": [config, f"--start={start}", f"--end={end - end % 3600}"],
        }
        turns = {}
        with started(engine, workers) as (flags, noted):
            for name, options in commands.items():
                more = ["--summary=json", f"--dead_letters={self._folder / 'dead'}"]
                with CpuClock() as clock:
                    output, seconds, _ = run_child(["-m", "timebeam", name, *where, *options, *more, *flags])
                summary = json.loads(output.splitlines()[-1])
                points = None if engine in _WITHOUT_METRICS else summary["points_read"]
                turns[name] = Turn(round(summary["seconds"], 2), round(seconds, 2), clock.read(), points)
        self._check(layout, turns, f"{engine}, {workers} workers")
        return turns, noted

    def _check(self, layout: OpenTsdb, turns: Mapping[str, Turn], case: str) -> None:
        """Compares the tables with those of the first run, and drops them."""
        rollups = [spec.name for spec in rollup_tables(read_config(str(self._config)), layout)]
        tables = [layout.data_table, *(name for name in rollups if "rollup-" in name or "preagg" in name)]
        cells = named_cells(TARGET, layout, tables)
        self._expected = self._expected or cells
        if cells != self._expected:
            missing_cells, more = self._expected - cells, cells - self._expected
            for label, differing in (("missing", missing_cells), ("not expected", more)):
                for cell in sorted(differing)[:3]:
                    log(f"{label}: {cell}")
            raise BenchmarkError(f"{case}: {len(missing_cells)} cells are missing, {len(more)} not expected")
        for name, turn in turns.items():
            if turn.points not in (None, self.points):
                raise BenchmarkError(f"{case}, {name}: {turn.points} points read of {self.points}")
        drop(TARGET, dict.fromkeys([*(spec.name for spec in layout.tables()), *rollups]))
        log(
            f"{case}: {len(cells):,} cells, equal; "
            + ", ".join(f"{k} {v.seconds} s" for k, v in turns.items())
        )

    @property
    def cells(self) -> int:
        """Cells in all tables."""
        return len(self._expected)


def figures(turns: Sequence[Turn], points: int) -> dict[str, Any]:
    """Of one command on one engine, over all turns."""
    seconds = [turn.seconds for turn in turns]
    return {
        "seconds": seconds,
        "whole_seconds": [turn.process_seconds for turn in turns],
        "points_per_second": round(points / best_and_median(seconds)["best"]),
        "worker_cpu_seconds": [turn.worker_cpu for turn in turns],
        "metrics": turns[0].points is not None,
    }


def ratios(by_one: Sequence[Turn], by_two: Sequence[Turn]) -> list[float]:
    """How many times faster two workers were than one, turn by turn."""
    return [
        round(one_worker.seconds / two_workers.seconds, 2)
        for one_worker, two_workers in zip(by_one, by_two, strict=True)
    ]


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures; engines take turns, so that all meet the same moods of the machine."""
    log(f"writing {options.points:,} points")
    bench = Bench(options.points, folder)
    absent = {engine: why for engine in options.engines if (why := missing(engine))}
    cases = [(PLAIN, 1)] + [
        (engine, workers)
        for engine in options.engines
        for workers in options.workers
        if engine not in absent and engine != PLAIN
    ]
    turns: dict[tuple[str, int], list[dict[str, Turn]]] = {case: [] for case in cases}
    notes: dict[tuple[str, int], dict[str, Any]] = {}
    for _ in range(options.repeats):
        for case in cases:
            command_turn, notes[case] = bench.run(*case)
            turns[case].append(command_turn)
    report: dict[str, Any] = {}
    for case, case_turns in turns.items():
        engine, workers = case
        commands = {name: [turn[name] for turn in case_turns] for name in case_turns[0]}
        report.setdefault(engine, {})[str(workers)] = {
            **{name: figures(command_turns, options.points) for name, command_turns in commands.items()},
            **notes[case],
        }
        if workers == 2 and (engine, 1) in turns:
            report[engine]["times_as_fast_with_2"] = {
                name: ratios([turn[name] for turn in turns[engine, 1]], command_turns)
                for name, command_turns in commands.items()
            }
    return {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "points": options.points,
        "cells": bench.cells,
        "content": "equal",
        "engines": report,
        "not here": absent,
    }


def main() -> int:
    """Returns the exit code: 1 if a run failed, or its tables differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=2_000_000, help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=("multi_processing", "prism", "dask"),
        default=["multi_processing", "prism", "dask"],
    )
    options = parser.parse_args()
    if min(options.points, options.repeats, *options.workers) < 1:
        parser.error("these are numbers of at least 1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    os.environ.setdefault("PYTHONWARNINGS", "ignore:Connecting to Bigtable emulator:RuntimeWarning")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="timebeam-") as folder,
            Emulator() as emulator,
            emulator.environment(),
        ):
            print(json.dumps(measure(options, Path(folder)), indent=2))
    except (BenchmarkError, EmulatorError) as error:
        log(str(error))
        return 1
    except KeyboardInterrupt:
        log("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
