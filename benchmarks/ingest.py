"""`timebeam ingest` from files into an emulator, beside the baseline of naive.py in the same run.

    python -m benchmarks.ingest
    python -m benchmarks.ingest --memory 20000000 200000000 --kills 3   # these sizes, without the baseline
    python -m benchmarks.ingest --marks 1 1000   # --mark-changed, with so many metrics in each request
    python -m benchmarks.ingest --baseline ../older-checkout         # the packed cases, in pairs with it

Runs every command as a process of its own, in turns with the baseline. What is stored is read back, decoded
and counted outside of the times: a wrong count ends the program with exit code 1.

| figure | is |
|---|---|
| `process` | from the start of the process to its exit, imports included |
| `run` | the seconds that the program times itself, imports left out |
| `times as fast as naive` | its pipeline in proportion to the points of the case, its imports once |
| `first row, s` | from the start of the process until the table has a row, looked for every 50 ms |
| `bytes/point` | stored before compression: key, family, qualifier, timestamp, value of each cell |
| `kills` | kill -9 at so many random times, then a run to the end: equal cells, or exit code 1 |
| `times the baseline` | points per processor second, in pairs with the checkout that `--baseline` names |
| `share of marks` | processor time that --mark-changed adds, as a share of that without it, in pairs |
| `peak, MiB` | memory (RSS) of the largest process; none if it is not above that of the benchmark |
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from google.cloud.bigtable.data import ReadRowsQuery, Table

from benchmarks import bench
from benchmarks.bench import ROOT, TARGET, BenchmarkError, log, open_table, run_child
from benchmarks.checkouts import Commands
from benchmarks.generate import Load, write
from benchmarks.table_content import named_cells
from timebeam.schema.core.points import Series
from timebeam.schema.core.selection import Selected
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table
from timebeam.transforms.rollup.changed_hours import changed_hours_table

NAIVE_TARGET = Target("local", "benchmark")
_POLL_SECONDS = 0.05
START_S = 1_356_998_400
FORMATS = _JSON, _TEXT = "opentsdb-json", "opentsdb-text"


class Case(NamedTuple):
    """One way to call `timebeam ingest`."""

    name: str
    form: str
    points: int
    flags: tuple[str, ...] = ()


class Baseline(NamedTuple):
    """One run of naive.py: seconds of its pipeline for each point, and of its imports."""

    point_s: float
    imports_s: float


def first_row(table: Table, start: float, done: threading.Event) -> float | None:
    """Seconds from `start` until the table has a row; None if it has none until `done`."""
    while not table.read_rows(ReadRowsQuery(limit=1)):
        if done.wait(_POLL_SECONDS):
            return None
    return round(time.perf_counter() - start, 2)


def count_points(layout: OpenTsdb) -> int:
    """Points in the data table, each instant of a series once.

    Raises:
      BenchmarkError: a row does not decode.
    """
    points, any_series = 0, Series.of("any", {})
    for row in scan_table(TARGET, layout.data_table):
        decoded = layout.decode_rows([Selected(row, any_series)])
        if decoded.corruption:
            raise BenchmarkError(f"row {row.key.hex()}: {decoded.corruption[0][1]}")
        points += len(decoded.batch)
    return points


def input_file(folder: Path, form: str, points: int) -> Path:
    """The file of so many points; written if it is not there yet."""
    path = folder / f"{form}-{points}"
    if not path.exists():
        log(f"writing {points:,} points of {form}")
        write(Load(points, format=form), path)
    return path


def digest(layout: OpenTsdb) -> str:
    """The SHA-256s of all cells of the data table, with names in place of UIDs, added up in any order."""
    hashes = (
        int.from_bytes(hashlib.sha256(repr(cell).encode()).digest())
        for cell in named_cells(TARGET, layout, [layout.data_table])
    )
    return f"{sum(hashes) % (1 << 256):064x}"


def ingest(
    case: Case, folder: Path, baseline: Baseline | None = None, *, kills: int = 0
) -> dict[str, float | None]:
    """The figures of one run of a case, into new tables that are dropped afterwards.

    Args:
      kills: run it once more, into new tables, after so many runs that are killed.

    Raises:
      BenchmarkError: it failed, or the table does not hold exactly the points of the input.
    """
    path = input_file(folder, case.form, case.points)
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"{case.name}-"))
    where = ["--layout", layout.name, "--table-prefix", layout.options.table_prefix]
    where += ["--project", TARGET.project, "--instance", TARGET.instance]
    run_child(["-m", "timebeam", "tables", "create", *where])
    command = ["-m", "timebeam", "ingest", *where, "--format", case.form, "--input", str(path)]
    command += ["--auto-create-metrics", "--summary", "json", "--dead-letters", str(folder / "dead")]
    done, table = threading.Event(), open_table(layout.data_table)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        seen = pool.submit(first_row, table, time.perf_counter(), done)
        try:
            child = run_child([*command, *case.flags])
        finally:
            done.set()
    summary, stored = json.loads(child.output), count_points(layout)
    if not stored == summary["points_stored"] == case.points:
        raise BenchmarkError(f"{case.name}: {case.points} points given, {stored} stored; {summary}")
    cells = digest(layout) if kills else ""
    bench.drop(TARGET, [spec.name for spec in layout.tables()])
    log(f"{case.name}: {child.seconds:.1f} s, {case.points / child.seconds:,.0f} points/s")
    if kills:
        run_child(["-m", "timebeam", "tables", "create", *where])
        for _ in range(kills):
            kill([*command, *case.flags], random.uniform(0.1, 0.9) * child.seconds)
        run_child([*command, *case.flags])
        if digest(layout) != cells:
            raise BenchmarkError(f"{case.name}: other cells after {kills} kills")
        bench.drop(TARGET, [spec.name for spec in layout.tables()])
    ratios: dict[str, float | None] = {}
    if baseline:
        naive_s = baseline.point_s * case.points
        ratios["times as fast as naive, process"] = (naive_s + baseline.imports_s) / child.seconds
        ratios["times as fast as naive, run"] = naive_s / summary["seconds"]
    return ratios | {
        "process, points/s": case.points / child.seconds,
        "run, points/s": case.points / summary["seconds"],
        "points": case.points,
        "first row, s": seen.result(),
        "bytes/point": summary["bytes_per_point"],
        "peak, MiB": child.peak_mib,
        "kills": kills or None,
    }


def kill(command: Sequence[str], seconds: float) -> None:
    """Runs this Python with some arguments, and kills it (-9) after so many seconds, or sooner if it ends."""
    while True:
        try:
            subprocess.run([sys.executable, *command], cwd=ROOT, timeout=seconds, capture_output=True)
        except subprocess.TimeoutExpired:
            log(f"killed after {seconds:.1f} s")
            return
        seconds /= 2


def naive(form: str, points: int, folder: Path) -> Baseline:
    """Runs naive.py once; it counts what it stored itself."""
    path, table = input_file(folder, form, points), f"naive-{form}"
    command = ["benchmarks/naive.py", "--input", str(path), "--format", form, "--table", table]
    printed = json.loads(run_child(command).output)
    bench.drop(NAIVE_TARGET, [table])
    seconds = printed["seconds"]
    log(f"naive {form}: {seconds:.1f} s, {points / seconds:,.0f} points/s")
    return Baseline(seconds / points, printed["seconds_with_imports"] - seconds)


def of_memory(folder: Path, sizes: Sequence[int], kills: int) -> bench.Cases:
    """The figures of one ingest of JSON of each size; `kills` as for `ingest`."""
    cases = {}
    for points in sizes:
        turn = ingest(Case(f"memory-{points}", _JSON, points), folder, kills=kills)
        input_file(folder, _JSON, points).unlink()
        cases[f"{points:,} points"] = {name: [value] for name, value in turn.items() if value is not None}
    first = next(iter(cases.values()))
    for figures in cases.values():
        for ratio, name in (("times the first peak", "peak, MiB"), ("times the first bytes", "bytes/point")):
            if name in figures and name in first:
                figures[ratio] = [figures[name][0] / first[name][0]]
    return cases


def of_marks(folder: Path, metrics: int, points: int, repeats: int) -> bench.Figures:
    """The cost of marks, if the rows of a request (4 MiB) are of so many metrics.

    A row holds 360 points, so a request has about 1,000 rows.
    """
    path = folder / f"marks-{metrics}"
    hours = points // 360_000
    with path.open("w") as file:
        for time_s in range(START_S, START_S + 3600 * hours, 10):
            file.writelines(
                f"put app.m{number % metrics} {time_s} {number + time_s % 997 / 100} host=h{number}\n"
                for number in range(1000)
            )
    shares = []
    for turn in range(repeats):
        layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"marks{metrics}-{turn}-"))
        tables = [*layout.tables(), changed_hours_table(layout)]
        where = [
            *("--layout", layout.name, "--project", TARGET.project, "--instance", TARGET.instance),
            *("--table-prefix", layout.options.table_prefix, "--format", _TEXT, "--input", str(path)),
        ]
        seconds = []
        for flags in ((), ("--mark-changed",)):
            for _ in create_tables(TARGET, tables, dry_run=False):
                pass
            child = run_child(["-m", "timebeam", "ingest", *where, "--auto-create-metrics", *flags])
            seconds.append(child.cpu)
            bench.drop(TARGET, [spec.name for spec in tables])
        shares.append(seconds[1] / seconds[0] - 1)
        log(f"{metrics} metrics: {seconds[0]:.2f} s of processor time, with marks {seconds[1]:.2f} s")
    return {"share of marks": shares}


def stored(run: Callable[[list[str]], float], form: str, path: Path, points: int) -> tuple[float, str]:
    """(what `run` returns for the command of an ingest, `digest` of the cells).

    Raises:
      BenchmarkError: it failed, or the table does not hold exactly the points of the input.
    """
    layout = OpenTsdb(OpenTsdbOptions(table_prefix="checkout-"))
    for _ in create_tables(TARGET, layout.tables(), dry_run=False):
        pass
    command = ["ingest", "--layout", layout.name, "--table-prefix", layout.options.table_prefix]
    command += ["--project", TARGET.project, "--instance", TARGET.instance, "--summary", "json"]
    command += ["--format", form, "--input", str(path), "--auto-create-metrics"]
    seconds, count = run(command), count_points(layout)
    if count != points:
        raise BenchmarkError(f"{points} points given, {count} stored")
    cells = digest(layout)
    bench.drop(TARGET, [spec.name for spec in layout.tables()])
    return seconds, cells


def of_baseline(folder: Path, baseline: Path, points: int, repeats: int) -> bench.Cases:
    """Processor time of this checkout and of another one, in pairs."""
    cases: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        runs: dict[str, Callable[[list[str]], float]] = {}
        for name, root in (("", bench.ROOT), ("baseline, ", baseline)):
            program = "timebeam" if (root / "timebeam").is_dir() else "pipelines.cli"
            runs[f"{name}process"] = functools.partial(_process_cpu, root, program)
            runs[f"{name}run"] = functools.partial(_run_cpu, Commands(root, stack))
        for form in FORMATS:
            for run in runs.values():  # imports, and compiles
                stored(run, form, input_file(folder, form, Load.series), Load.series)
            figures = cases[form] = {}
            for _ in range(repeats):
                turn, digests = {}, {}
                for name, run in runs.items():
                    cpu, digests[name] = stored(run, form, input_file(folder, form, points), points)
                    turn[f"{name}, CPU s/M points"] = cpu / points * 1e6
                for name in ("process", "run"):
                    ratio = turn[f"baseline, {name}, CPU s/M points"] / turn[f"{name}, CPU s/M points"]
                    figures.setdefault(f"times the baseline, {name}, CPU", []).append(ratio)
                for name, value in turn.items():
                    figures.setdefault(name, []).append(value)
                same = len(set(digests.values())) == 1
                log(f"{form}: {'equal cells' if same else f'other cells: {digests}'}; {turn}")
    return cases


def _process_cpu(root: Path, program: str, command: list[str]) -> float:
    return run_child(["-m", program, *command], root).cpu


def _run_cpu(commands: Commands, command: list[str]) -> float:
    return commands.run(command).cpu


def measure(
    folder: Path,
    *,
    points: int = 4_000_000,
    small: int = 400_000,
    naive_points: int = 200_000,
    repeats: int = 3,
    memory: Sequence[int] = (0,),
    kills: int = 0,
    marks: Sequence[int] = (0,),
    workers: int = 0,
    baseline: str = "",
) -> bench.Cases:
    """All figures. Ours and the baseline take turns, so that other load on the machine affects both.

    Args:
      small: points of the other packings and of the direct writer.
      memory: points of ingests of JSON, with the ratios of their peaks to the first; nothing else then runs.
      kills: of each ingest of `memory`, run once more.
      marks: metrics in each request of ingests with marks; nothing else then runs.
      workers: worker processes of a case that runs once; 0 leaves it out.
      baseline: folder of another checkout; nothing but the pairs with it then runs.
    """
    if baseline:
        return of_baseline(folder, Path(baseline).resolve(), points, repeats)
    if any(memory):
        return of_memory(folder, memory, kills)
    if any(marks):
        return {
            f"marks of {metrics} metrics": of_marks(folder, metrics, points, repeats) for metrics in marks
        }
    repeated = [
        Case("json-compacted", _JSON, points),
        Case("text-compacted", _TEXT, points),
        Case("json-points", _JSON, small, ("--packing", "points")),
        Case("json-append", _JSON, small, ("--packing", "append")),
        Case("json-direct", _JSON, small, ("--bigtable-writer", "direct")),
    ]
    cases = list(repeated)
    if workers:
        mode = ("--direct_running_mode", "multi_processing", "--direct_num_workers", str(workers))
        cases.append(Case("workers", _JSON, points, mode))
    figures: dict[str, dict[str, list[float]]] = {case.name: {} for case in cases}
    for turn in range(repeats):
        log(f"turn {turn + 1} of {repeats}")
        baselines = {form: naive(form, naive_points, folder) for form in FORMATS}
        for case in cases[: len(repeated) if turn else None]:
            for name, value in ingest(case, folder, baselines[case.form]).items():
                if value is not None:
                    figures[case.name].setdefault(name, []).append(value)
    return figures


if __name__ == "__main__":
    sys.exit(bench.main(measure))
