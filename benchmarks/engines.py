"""The same ingest and the same rollup on several engines, with one worker process and with two.

    python -m benchmarks.engines
    PRISM_LOCATION=/path/to/prism python -m benchmarks.engines --repeats 3
    python -m benchmarks.engines --dry_points 24000000 --repeats 0

| engine | is | needs |
|---|---|---|
| `plain` | the default: all in one process; what the others are compared with | |
| `multi_processing` | Beam's local runner with worker processes | |
| `prism` | Beam's Prism, with the processes of `worker_pool` | `prism` on PATH, or PRISM_LOCATION |
| `flink` | Apache Flink, from `timebeam.pipelines.local.flink` | Java, and Maven the first time |

`--dry_points 24000000` adds `ingest --dry-run` of so many points (two minutes), which waits for no
emulator: by the default in one process, by two such processes of half of the files each, which is what the
machine's cores give (`limit`), and by the local runner's processes. `CPU s of main` is what no second worker
can share; `CPU s of workers` includes the imports, one and a half seconds in all.

Starts an emulator of its own and ingests the same files into new tables for each run; after it the
tables must hold the same cells as those of `plain` (see `table_content`); docs/concepts/choose.md
explains the figures. Linux only.
"""

from __future__ import annotations

import concurrent.futures
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
from benchmarks.bench import TARGET, BenchmarkError, Child, cpu_seconds, drop, log, run_child
from benchmarks.generate import Load, write
from benchmarks.table_content import NamedCell, named_cells
from benchmarks.worker_pool import WorkerPool
from timebeam.pipelines.local import flink
from timebeam.pipelines.options.place import read_config
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.rollup.rollup_job import rollup_tables

PLAIN = "plain"
_STEP_S = 10
_FILES = 4
_SAMPLE_SECONDS = 0.2
_WORKER_MARKS = ("sdk_worker_main", "SdkHarness", "multiprocessing.spawn", "fork_server")
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
      main_cpu: processor seconds of the process of the command, with its imports.
      worker_cpu: processor seconds of all worker processes.
      points: those that its summary counts as read.
    """

    seconds: float
    main_cpu: float
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
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            if any(mark in command for mark in _WORKER_MARKS):
                seconds[pid] = cpu_seconds(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
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
        where = [f"--layout={layout.name}", f"--table-prefix={layout.options.table_prefix}"]
        config = f"--rollup-config={self._config}"
        run_child(["-m", "timebeam", "tables", "create", *where, config])
        start, end = self._period
        commands = {
            "ingest": [
                "--format=opentsdb-json",
                f"--input={self._folder / 'points*.json'}",
                "--auto-create-metrics",
                "--bigtable-writer=direct",
            ],
            "rollup": [config, f"--start={start}", f"--end={end - end % 3600}"],
        }
        turns = {}
        with started(engine, workers, self._folder) as flags:
            for name, options in commands.items():
                more = ["--summary=json", f"--dead-letters={self._folder / 'dead'}"]
                with CpuClock() as clock:
                    child = run_child(["-m", "timebeam", name, *where, *options, *more, *flags])
                summary = json.loads(child.output.splitlines()[-1])
                turns[name] = Turn(summary["seconds"], child.own_cpu, clock.read(), summary["points_read"])
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


class DryRuns:
    """`ingest --dry-run` of the same files in several ways."""

    _WHERE = ("--layout=opentsdb", "--table-prefix=dry-")

    def __init__(self, points: int, folder: Path) -> None:
        self._folder = folder
        write(Load(points, format="opentsdb-json", step=_STEP_S), folder / "dry.json", files=2 * _FILES)
        run_child(["-m", "timebeam", "tables", "create", *self._WHERE])

    def cases(self, workers: Sequence[int]) -> bench.Cases:
        """The figures of each way."""
        alone = self._run("dry-*")
        seconds = _seconds(alone)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            halves = list(pool.map(self._run, (f"dry-0000[0-{_FILES - 1}]*", f"dry-0000[{_FILES}-9]*")))
        limit = seconds / max(map(_seconds, halves))
        figures = {
            f"dry run, {PLAIN}": {"dry run, s": seconds, "dry run, CPU s of main": alone.cpu},
            "dry run, limit: two plain ones with half of the files each": {
                "times as fast as 1, dry run": limit,
                "dry run, s": max(map(_seconds, halves)),
                "dry run, CPU s of main": sum(half.cpu for half in halves),
            },
        }
        seconds_of_first = 0.0
        for processes in workers:
            with started("multi_processing", processes, self._folder) as flags:
                child = self._run("dry-*", *flags)
            case = {
                "dry run, s": _seconds(child),
                "dry run, CPU s of main": child.own_cpu,
                "dry run, CPU s of workers": child.cpu - child.own_cpu,
                f"times {PLAIN}, dry run": _seconds(child) / seconds,
            }
            if seconds_of_first:
                case["times as fast as 1, dry run"] = faster = seconds_of_first / _seconds(child)
                case["share of the limit, dry run"] = faster / limit
            seconds_of_first = seconds_of_first or _seconds(child)
            figures[f"dry run, multi_processing, {processes} workers"] = case
        return {case: {name: [value] for name, value in row.items()} for case, row in figures.items()}

    def _run(self, files: str, *flags: str) -> Child:
        """A dry run of some files."""
        options = ["--dry-run", "--format=opentsdb-json", "--summary=json", "--auto-create-metrics"]
        paths = [f"--input={self._folder / files}", f"--dead-letters={self._folder / 'dead'}"]
        return run_child(["-m", "timebeam", "ingest", *self._WHERE, *options, *paths, *flags])


def _seconds(child: Child) -> float:
    """What a command timed itself, without imports."""
    return float(json.loads(child.output.splitlines()[-1])["seconds"])


def measure(
    folder: Path,
    *,
    points: int = 2_000_000,
    repeats: int = 2,
    workers: Sequence[int] = (1, 2),
    engines: Sequence[str] = ("multi_processing", "prism", "flink"),
    dry_points: int = 0,
) -> bench.Cases:
    """A case for each engine and number of workers; engines take turns; `dry_points` adds `DryRuns`."""
    dry_runs = DryRuns(dry_points, folder).cases(workers) if dry_points else {}
    if not repeats:
        return dry_runs
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
                case.setdefault(f"{name}, CPU s of main", []).append(turn.main_cpu)
                if engine != PLAIN:
                    case.setdefault(f"{name}, CPU s of workers", []).append(turn.worker_cpu)
                    plain_s = seconds[name, PLAIN, 1]
                    case.setdefault(f"times {PLAIN}, {name}", []).append(turn.seconds / plain_s)
                if processes == 2 and (name, engine, 1) in seconds:
                    faster = seconds[name, engine, 1] / turn.seconds
                    case.setdefault(f"times as fast as 1 worker, {name}", []).append(faster)
    return {**figures, **dry_runs}


if __name__ == "__main__":
    sys.exit(bench.main(measure))
