"""The same ingest and the same rollup on several engines, with one worker process and with two.

    python -m benchmarks.engines
    PRISM_LOCATION=/path/to/prism python -m benchmarks.engines --repeats 3

| engine | is | needs |
|---|---|---|
| `plain` | the default: all in one process; what the others are compared with | |
| `multi_processing` | Beam's local runner with worker processes | |
| `prism` | Beam's Prism, with the processes of `worker_pool` | `prism` on PATH, or PRISM_LOCATION |
| `flink` | Apache Flink, from `timebeam.pipelines.local.flink` | Java, and Maven the first time |

With `--dry_points 20000000`, `ingest --dry_run` of so many points on the local runner's processes, which
waits for no emulator: `dry run, CPU s of main` is what no second worker can share. Besides, each worker
imports for about two seconds, so few points show no gain.

Starts an emulator of its own and ingests the same files into new tables for each run; after it the
tables must hold the same cells as those of `plain` (see `table_content`); docs/explanation/engines.md
explains the figures. Linux only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import bench
from benchmarks.bench import TARGET, BenchmarkError, drop, log, run_child
from benchmarks.generate import Load, write
from benchmarks.table_content import NamedCell, named_cells
from benchmarks.worker_pool import WorkerPool
from timebeam.pipelines.local import flink
from timebeam.pipelines.options.values import read_config
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.transforms.rollup.job import rollup_tables

PLAIN = "plain"
_STEP_S = 10
_FILES = 4
_SAMPLE_SECONDS = 0.2
_WORKER_MARKS = ("sdk_worker_main", "SdkHarness", "multiprocessing.spawn")
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
    """One command.

    Attributes:
      seconds: what the command times itself, without imports.
      worker_cpu: processor seconds of all worker processes.
      points: those that its summary counts as read.
    """

    seconds: float
    worker_cpu: float
    points: int


def prism() -> str | None:
    """Where the program of Prism is."""
    return os.environ.get("PRISM_LOCATION") or shutil.which("prism")


def missing(engine: str) -> str | None:
    """Why an engine cannot be had here."""
    if engine == "prism" and not prism():
        return "no prism on PATH, and PRISM_LOCATION is not set"
    if engine == "flink":
        return flink.missing()
    return None


@contextlib.contextmanager
def started(engine: str, workers: int, folder: Path) -> Iterator[list[str]]:
    """An engine: the options for commands that are to run on it."""
    if engine == "multi_processing":
        yield ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    elif engine == "prism":
        with WorkerPool(workers) as pool:
            flags = ["--runner=PrismRunner", f"--prism_location={prism()}", "--environment_type=EXTERNAL"]
            yield [*flags, f"--environment_config={pool.address}"]
    elif engine == "flink":
        with flink.engine(folder, workers=workers) as flags:
            yield flags
    else:
        yield []


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

    def read(self) -> float:
        """Seconds of all of them."""
        return sum(now - self._before.get(pid, 0.0) for pid, now in self._seconds.items())

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

    def run(self, engine: str, workers: int) -> dict[str, Turn]:
        """Ingests and rolls up on an engine; the figures of both.

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
        with started(engine, workers, self._folder) as flags:
            for name, options in commands.items():
                more = ["--summary=json", f"--dead_letters={self._folder / 'dead'}"]
                with CpuClock() as clock:
                    child = run_child(["-m", "timebeam", name, *where, *options, *more, *flags])
                summary = json.loads(child.output.splitlines()[-1])
                turns[name] = Turn(summary["seconds"], clock.read(), summary["points_read"])
        self._check(layout, turns, f"{engine}, {workers} workers")
        return turns

    def _check(self, layout: OpenTsdb, turns: Mapping[str, Turn], case: str) -> None:
        """Compares the tables with those of the first run, and drops them."""
        rollups = [spec.name for spec in rollup_tables(read_config(str(self._config)), layout)]
        tables = [layout.data_table, *(name for name in rollups if "rollup-" in name or "preagg" in name)]
        cells = set(named_cells(TARGET, layout, tables))
        self._expected = self._expected or cells
        if cells != self._expected:
            missing_cells, more = self._expected - cells, cells - self._expected
            for label, differing in (("missing", missing_cells), ("not expected", more)):
                for cell in sorted(differing)[:3]:
                    log(f"{label}: {cell}")
            raise BenchmarkError(f"{case}: {len(missing_cells)} cells are missing, {len(more)} not expected")
        for name, turn in turns.items():
            if turn.points != self.points:
                raise BenchmarkError(f"{case}, {name}: {turn.points} points read of {self.points}")
        drop(TARGET, dict.fromkeys([*(spec.name for spec in layout.tables()), *rollups]))
        log(
            f"{case}: {len(cells):,} cells, equal; "
            + ", ".join(f"{k} {v.seconds:.1f} s" for k, v in turns.items())
        )


def dry_runs(folder: Path, points: int, workers: Sequence[int]) -> dict[str, dict[str, float]]:
    """The figures of `ingest --dry_run` on the local runner's processes, by case."""
    write(Load(points, format="opentsdb-json", step=_STEP_S), folder / "dry.json", files=2 * _FILES)
    where = ["--layout=opentsdb", "--table_prefix=dry-"]
    run_child(["-m", "timebeam", "tables", "create", *where])
    options = ["--dry_run", "--format=opentsdb-json", f"--input={folder / 'dry*.json'}", "--summary=json"]
    options += ["--auto_create_metrics", f"--dead_letters={folder / 'dead'}"]
    cases: dict[str, dict[str, float]] = {}
    for processes in workers:
        with started("multi_processing", processes, folder) as flags, CpuClock() as clock:
            child = run_child(["-m", "timebeam", "ingest", *where, *options, *flags])
        seconds = json.loads(child.output.splitlines()[-1])["seconds"]
        figures = {"dry run, s": seconds, "dry run, CPU s of workers": clock.read()}
        figures["dry run, CPU s of main"] = child.cpu - clock.read()
        first = cases.setdefault(f"dry run, {workers[0]} workers", figures)
        figures[f"times as fast as {workers[0]} worker, dry run"] = first["dry run, s"] / seconds
        cases[f"dry run, {processes} workers"] = figures
    return cases


def measure(
    folder: Path,
    *,
    points: int = 2_000_000,
    repeats: int = 2,
    workers: Sequence[int] = (1, 2),
    engines: Sequence[str] = ("multi_processing", "prism", "flink"),
    dry_points: int = 0,
) -> bench.Cases:
    """A case for each engine and number of workers; engines take turns.

    With `dry_points`, those of `dry_runs` alone.
    """
    if dry_points:
        cases_of_dry_runs = dry_runs(folder, dry_points, workers)
        return {
            case: {name: [value] for name, value in turn.items()} for case, turn in cases_of_dry_runs.items()
        }
    runs = Bench(points, folder)
    for engine in engines:
        if why := missing(engine):
            log(f"{engine}: {why}")
    cases = [(PLAIN, 1), *itertools.product([each for each in engines if not missing(each)], workers)]
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        seconds: dict[tuple[str, str, int], float] = {}
        for engine, processes in cases:
            case = figures.setdefault(f"{engine}, {processes} workers" if engine != PLAIN else PLAIN, {})
            for name, turn in runs.run(engine, processes).items():
                seconds[name, engine, processes] = turn.seconds
                case.setdefault(f"{name}, s", []).append(turn.seconds)
                if engine != PLAIN:
                    case.setdefault(f"{name}, CPU s of workers", []).append(turn.worker_cpu)
                    plain_s = seconds[name, PLAIN, 1]
                    case.setdefault(f"times {PLAIN}, {name}", []).append(turn.seconds / plain_s)
                if processes == 2 and (name, engine, 1) in seconds:
                    faster = seconds[name, engine, 1] / turn.seconds
                    case.setdefault(f"times as fast as 1 worker, {name}", []).append(faster)
    return figures


if __name__ == "__main__":
    sys.exit(bench.main(measure))
