"""`timebeam ingest` from files into an emulator, beside the baseline of naive.py in the same run.

    python -m benchmarks.ingest

Starts an emulator of its own and runs every command as a process of its own, timed from outside.
Prints one JSON document, times in seconds; README.md explains it. Linux only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from google.cloud.bigtable import Client
from google.cloud.bigtable.data import ReadRowsQuery, Table

from benchmarks.generate import Load, write
from benchmarks.kernel import best_and_median, machine, speed
from timebeam.pipelines.local.emulator import Emulator, EmulatorError
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.schema.points import Series
from timebeam.transforms.bigtable.target import Target, open_table
from timebeam.transforms.readers.table_reader import scan_table

ROOT = Path(__file__).resolve().parents[1]
TARGET = Target("local", "local")
NAIVE_TARGET = Target("local", "benchmark")
_POLL_SECONDS = 0.05
FORMATS = _JSON, _TEXT = "opentsdb-json", "opentsdb-text"


class BenchmarkError(RuntimeError):
    """A process failed, or what it stored is not what it was given."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to call `timebeam ingest`."""

    name: str
    form: str
    points: int
    flags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Turn:
    """One run, in seconds.

    Attributes:
      process_seconds: `timebeam ingest` from the start of its process to its exit; naive.py without what our
        figures leave out too (creating the table, counting its cells): its imports and its pipeline.
      run: the part that the program times itself, without imports.
      first_row: from the start of the process until the table had a row; None if that was not seen.
      peak_mib: memory of its largest process; see `run_child`.
    """

    process_seconds: float
    run: float
    first_row: float | None = None
    peak_mib: float | None = None
    bytes_per_point: float = 0.0


def log(text: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def run_child(arguments: Sequence[str]) -> tuple[str, float, float | None]:
    """Runs this Python with some arguments to its end: (its output, seconds, peak memory in MiB).

    It leads a process group of its own, of which nothing is left when this returns or raises. Linux
    counts the peak of a child from that of its parent on: None if it did not get beyond ours.

    Raises:
      BenchmarkError: its exit code is not 0; the message ends with what it printed last.
    """
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        command, start = [sys.executable, *arguments], time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            # WNOWAIT: until it is waited for below, its id still names its group and nothing else.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - start
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            tail = "".join(errors.readlines()[-20:])
            raise BenchmarkError(f"{' '.join(arguments)}: exit code {process.returncode}\n{tail}")
        return output.read(), seconds, usage.ru_maxrss / 1024 if usage.ru_maxrss > own_peak else None


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
        decoded = layout.decode(row, any_series)
        if decoded.damage:
            raise BenchmarkError(f"row {row.key.hex()}: {decoded.damage[0]}")
        points += len(decoded.batch)
    return points


def drop(target: Target, tables: Iterable[str]) -> None:
    """Deletes tables, so that the emulator does not grow from run to run."""
    instance = Client(project=target.project, admin=True).instance(target.instance)
    for table in tables:
        instance.table(table).delete()


def input_file(folder: Path, form: str, points: int) -> Path:
    """The file of so many points; written if it is not there yet."""
    path = folder / f"{form}-{points}"
    if not path.exists():
        log(f"writing {points:,} points of {form}")
        write(Load(points, format=form), path)
    return path


def ingest(case: Case, folder: Path) -> Turn:
    """Runs a case once, into new tables that are dropped afterwards.

    Raises:
      BenchmarkError: it failed, or the table does not hold exactly the points of the input.
    """
    path = input_file(folder, case.form, case.points)
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"{case.name}-"))
    where = ["--layout", layout.name, "--table_prefix", layout.options.table_prefix]
    where += ["--project", TARGET.project, "--instance", TARGET.instance]
    run_child(["-m", "timebeam", "tables", "create", *where])
    command = ["-m", "timebeam", "ingest", *where, "--format", case.form, "--input", str(path)]
    command += ["--auto_create_metrics", "--summary", "json", "--dead_letters", str(folder / "dead")]
    done, table = threading.Event(), open_table(TARGET, layout.data_table)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        seen = pool.submit(first_row, table, time.perf_counter(), done)
        try:
            output, seconds, peak_mib = run_child([*command, *case.flags])
        finally:
            done.set()
    summary, stored = json.loads(output), count_points(layout)
    if not stored == summary["points_stored"] == case.points:
        raise BenchmarkError(f"{case.name}: {case.points} points given, {stored} stored; {summary}")
    drop(TARGET, [spec.name for spec in layout.tables()])
    log(f"{case.name}: {seconds:.1f} s, {case.points / seconds:,.0f} points/s")
    return Turn(seconds, summary["seconds"], seen.result(), peak_mib, summary["bytes_per_point"])


def naive(form: str, points: int, folder: Path) -> Turn:
    """Runs naive.py once; it counts what it stored itself."""
    path, table = input_file(folder, form, points), f"naive-{form}"
    command = ["benchmarks/naive.py", "--input", str(path), "--format", form, "--table", table]
    printed = json.loads(run_child(command)[0])
    drop(NAIVE_TARGET, [table])
    turn = Turn(printed["seconds_with_imports"], printed["seconds"])
    log(f"naive {form}: {turn.process_seconds:.1f} s, {points / turn.process_seconds:,.0f} points/s")
    return turn


def speeds(turns: Sequence[Turn], points: int) -> dict[str, object]:
    """Whole and run of some turns."""
    return {
        "points": points,
        "whole": speed([turn.process_seconds for turn in turns], points),
        "run": speed([turn.run for turn in turns], points),
    }


def ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """How many times shorter `fast` is: best turn to best turn, median turn to median turn."""
    times = best_and_median(fast)
    return {name: round(long / times[name], 1) for name, long in best_and_median(slow).items()}


def figures(case: Case, turns: Sequence[Turn], baseline: Sequence[Turn], points: int) -> dict[str, object]:
    """The figures of a case beside those of the baseline with so many points.

    The baseline is put to the points of the case: its imports once, its pipeline in proportion.
    """
    runs = [turn.run * case.points / points for turn in baseline]
    wholes = [turn.process_seconds - turn.run + run for turn, run in zip(baseline, runs, strict=True)]
    first = [turn.first_row for turn in turns if turn.first_row is not None]
    peaks = [turn.peak_mib for turn in turns if turn.peak_mib is not None]
    return {
        "flags": " ".join(case.flags),
        **speeds(turns, case.points),
        "ratio_to_naive": {
            "whole": ratio(wholes, [turn.process_seconds for turn in turns]),
            "run": ratio(runs, [turn.run for turn in turns]),
        },
        "first_row_seconds": best_and_median(first) if first else None,
        "bytes_per_point": turns[0].bytes_per_point,
        "peak_mib": round(max(peaks)) if peaks else None,
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """All figures. Ours and the baseline take turns, so that both meet the same moods of the machine."""
    points, small = options.points, options.small
    repeated = [
        Case("compacted-json", _JSON, points),
        Case("compacted-text", _TEXT, points),
        Case("points", _JSON, small, ("--packing", "points")),
        Case("append", _JSON, small, ("--packing", "append")),
        Case("direct", _JSON, small, ("--bigtable_writer", "direct")),
    ]
    once = []
    if options.workers:
        mode = ("--direct_running_mode", "multi_processing", "--direct_num_workers", str(options.workers))
        once.append(Case("workers", _JSON, points, mode))
    turns: dict[str, list[Turn]] = {case.name: [] for case in repeated}
    baselines: dict[str, list[Turn]] = {form: [] for form in FORMATS}
    for number in range(options.repeats):
        log(f"turn {number + 1} of {options.repeats}")
        for form, baseline in baselines.items():
            baseline.append(naive(form, options.naive, folder))
        for case in repeated:
            turns[case.name].append(ingest(case, folder))
    for case in once:
        turns[case.name] = [ingest(case, folder)]
    return {
        "machine": machine(),
        "series": Load.series,
        "naive": {form: speeds(baseline, options.naive) for form, baseline in baselines.items()},
        "ingest": {
            case.name: figures(case, turns[case.name], baselines[case.form], options.naive)
            for case in repeated + once
        },
    }


def memory(sizes: Sequence[int], folder: Path) -> dict[str, object]:
    """Peak memory, bytes and first row of ingests of so many points, and the ratios to the first of them."""
    turns = []
    for points in sizes:
        turns.append(ingest(Case(f"memory-{points}", _JSON, points), folder))
        input_file(folder, _JSON, points).unlink()
    first = turns[0]
    return {
        "machine": machine(),
        "series": Load.series,
        "ingest": [
            {
                "points": points,
                "process_seconds": round(turn.process_seconds, 1),
                "first_row_seconds": turn.first_row,
                "peak_mib": round(turn.peak_mib) if turn.peak_mib else None,
                "ratio_of_peaks": (
                    round(turn.peak_mib / first.peak_mib, 2) if turn.peak_mib and first.peak_mib else None
                ),
                "ratio_of_bytes_per_point": round(turn.bytes_per_point / first.bytes_per_point, 3),
            }
            for points, turn in zip(sizes, turns, strict=True)
        ],
    }


def main() -> int:
    """Returns the exit code: 1 if a run failed or stored something else than its input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, text in (
        ("points", 4_000_000, "points of the main cases"),
        ("small", 400_000, "points of the other packings and of the direct writer"),
        ("naive", 200_000, "points of the baseline"),
        ("repeats", 3, "turns of the baseline and of every case up to here"),
        ("workers", 0, "worker processes of a case as large as --points; 0 leaves it out"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument(
        "--memory", type=int, nargs="+", help="measure only the peak memory of ingests of so many points each"
    )
    options = parser.parse_args()
    if min(options.points, options.small, options.naive, options.repeats) < 1:
        parser.error("only --workers can be 0")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="timebeam-") as folder,
            Emulator() as emulator,
            emulator.environment(),
        ):
            measured = (
                memory(options.memory, Path(folder)) if options.memory else measure(options, Path(folder))
            )
            print(json.dumps(measured, indent=2))
    except (BenchmarkError, EmulatorError) as error:
        log(str(error))
        return 1
    except KeyboardInterrupt:
        log("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
