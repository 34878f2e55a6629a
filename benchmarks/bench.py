"""Runs benchmarks: one, from its own module, or all, and writes their figures as JSON.

    python -m benchmarks.ingest --points 400000 --output ingest.json
    python -m benchmarks.bench --output build/bench.json       # all: `make bench`

A benchmark is a module with a function `measure`, whose keyword arguments are its options. It returns its
figures by case and name, each with the value of every turn; what is given once has one value. The names of
ratios begin with "times" or "share": they come first, since they say the same on another machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import inspect
import json
import os
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from google.cloud.bigtable import Client
from google.cloud.bigtable.data import BigtableDataClient, Table

from timebeam.pipelines.local import pubsub
from timebeam.pipelines.local.emulator import HOST_VARIABLE, Emulator, EmulatorError
from timebeam.transforms.bigtable.target import Target

Figures: TypeAlias = "Mapping[str, Sequence[float]]"
"""The values of each figure, one for each turn; its name ends with its unit."""

Cases: TypeAlias = "Mapping[str, Figures]"

ROOT = Path(__file__).resolve().parents[1]
TARGET = Target("local", "local")
RATIOS = ("times", "share")

SUITE: dict[str, dict[str, Any]] = {
    "kernel": {"points": 400_000},
    "ingest": {"points": 2_000_000, "small": 400_000, "naive_points": 100_000, "repeats": 2},
    "layouts": {"points": 200_000, "repeats": 2},
    "streaming": {"points": 100_000, "naive_points": 20_000},
    "rollup": {"points": 3_000_000, "series": [400, 20_000], "row_span": "1h", "naive_points": 100_000},
    "reads": {"points": 1_000_000, "series": [400, 20_000]},
    "trees": {"series": 20_000},
    "meta": {"points": 400_000, "repeats": 2},
    "archive": {"days": 2, "series": 90},
    "engines": {"points": 400_000, "repeats": 1, "dry_points": 24_000_000},
    "serving": {"scale": 0.2},
    "front": {"requests": 3000},
}
"""The benchmarks of `make bench`, with sizes at which all of them take less than half an hour."""

_PACKAGES = ("apache-beam", "google-cloud-bigtable", "grpcio", "numpy", "pyarrow")


def open_table(table: str) -> Table:
    """A table of the emulator, over Google's data client."""
    return _open_table(table, os.environ[HOST_VARIABLE])


@functools.cache
def _open_table(table: str, emulator: str) -> Table:
    """A client reads the emulator's address once, so each address has a client of its own."""
    return BigtableDataClient(project=TARGET.project).get_table(TARGET.instance, table)


class BenchmarkError(RuntimeError):
    """A process failed, or what it stored is not what it was given."""


class Child(NamedTuple):
    """What a process printed, and what it took.

    Attributes:
      seconds: wall time.
      cpu: processor seconds, with those of its own children.
      peak_mib: peak memory in MiB, if known.
      own_cpu: processor seconds without those of its children.
    """

    output: str
    seconds: float
    cpu: float
    peak_mib: float | None
    own_cpu: float


def log(text: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def timed(run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def with_underscores(arguments: Sequence[str]) -> list[str]:
    """Arguments with the names of options as checkouts from before 0.1.0 take them too.

    >>> with_underscores(["ingest", "--dry-run", "--table-prefix=new-"])
    ['ingest', '--dry_run', '--table_prefix=new-']
    """
    return [
        re.sub(r"^--[-a-z]+", lambda name: f"--{name[0][2:].replace('-', '_')}", each) for each in arguments
    ]


def run_child(arguments: Sequence[str], folder: Path = ROOT) -> Child:
    """Runs this Python with some arguments, in a folder, to its end.

    It leads a process group of its own, of which nothing is left when this returns or raises. Linux
    counts the peak of a child from that of its parent on: None if it did not get beyond ours.

    Raises:
      BenchmarkError: its exit code is not 0; the message ends with what it printed last.
    """
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        command, start = [sys.executable, *with_underscores(arguments)], time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            # WNOWAIT: until it is waited for below, its id still names its group and nothing else.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - start
            own_cpu = cpu_seconds(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            tail = "".join(errors.readlines()[-20:])
            raise BenchmarkError(f"{' '.join(arguments)}: exit code {process.returncode}\n{tail}")
        peak = usage.ru_maxrss / 1024 if usage.ru_maxrss > own_peak else None
        return Child(output.read(), seconds, usage.ru_utime + usage.ru_stime, peak, own_cpu)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children.

    Raises:
      FileNotFoundError, ProcessLookupError: it has ended, and has been waited for.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drop(target: Target, tables: Iterable[str]) -> None:
    """Deletes tables, so that the emulator does not grow from run to run."""
    instance = Client(project=target.project, admin=True).instance(target.instance)
    for table in tables:
        instance.table(table).delete()


def machine() -> dict[str, object]:
    """What the figures depend on: cores, CPU model, load, versions."""
    model = re.search(
        r"^model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[1] if model else "unknown",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def is_ratio(name: str) -> bool:
    """Whether a figure is a ratio."""
    return name.startswith(RATIOS)


def number(value: float) -> str:
    """Three digits of a figure, or all of a whole number's thousands."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) < 10 else 1}f}" if value < 0.995 or value % 1 else f"{value:.0f}"


def table(cases: Cases) -> str:
    """Medians as a table of Markdown: a row for each case, ratios first."""
    names = list(dict.fromkeys(name for figures in cases.values() for name in figures))
    names.sort(key=lambda name: not is_ratio(name))
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for case, figures in cases.items():
        cells = [number(statistics.median(figures[name])) if figures.get(name) else "" for name in names]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(measure: Callable[..., Cases], *, emulator: bool = True) -> int:
    """Runs a benchmark with the options of the command line; returns the exit code.

    Args:
      measure: takes a folder, and its options as keywords, each with a default.
      emulator: whether it needs that of Bigtable, and that of Pub/Sub if there is one.
    """
    document = sys.modules[measure.__module__].__doc__
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, parameter in inspect.signature(measure).parameters.items():
        default = parameter.default
        if isinstance(default, (list, tuple)):
            parser.add_argument(f"--{name}", type=type(default[0]), nargs="*", default=default)
        elif default is not parameter.empty:
            parser.add_argument(
                f"--{name}", type=type(default), default=default, help="(default: %(default)s)"
            )
    parser.add_argument("--output", type=Path, help="file for the figures, as JSON")
    options = vars(parser.parse_args())
    output = options.pop("output")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("PYTHONWARNINGS", "ignore:Connecting to Bigtable emulator:RuntimeWarning")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timebeam-")))
            if emulator:
                stack.enter_context(stack.enter_context(Emulator()).environment())
                if pubsub.find():
                    stack.enter_context(pubsub.pubsub_emulator())
            started = time.perf_counter()
            cases = measure(folder, **options)
        except (BenchmarkError, EmulatorError) as error:
            log(str(error))
            return 1
        except KeyboardInterrupt:
            log("stopped")
            return 130
    seconds = round(time.perf_counter() - started, 1)
    print(table(cases))
    if output:
        rounded = {
            case: {
                name: [float(f"{value:.5g}") for value in figures[name]]
                for name in sorted(figures, key=lambda name: not is_ratio(name))
            }
            for case, figures in cases.items()
        }
        output.write_text(json.dumps({"options": options, "seconds": seconds, "cases": rounded}))
    return 0


def run_suite(output: Path, names: Sequence[str], scale: float) -> int:
    """Runs benchmarks, each in a process of its own, and writes all figures; returns the exit code.

    Args:
      scale: how many of the points of `SUITE`.
    """
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "commit": commit.stdout.strip()}
    report |= {"machine": machine(), "benchmarks": {}}
    failed = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="timebeam-") as folder:
        for name in names:
            log(name)
            figures = Path(folder, name)
            command = [sys.executable, "-m", f"benchmarks.{name}", f"--output={figures}"]
            for option, value in SUITE[name].items():
                if option.endswith(("points", "small")):
                    value = round(value * scale)
                elif option == "scale":
                    value *= scale
                command += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
            if subprocess.run(command, cwd=ROOT).returncode:
                failed.append(name)
                continue
            report["benchmarks"][name] = json.loads(figures.read_text())
            output.write_text(json.dumps(report, indent=1) + "\n")
    log(f"{output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    suite_parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    suite_parser.add_argument("names", nargs="*", default=list(SUITE), help="(default: all)")
    suite_parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench.json")
    suite_parser.add_argument("--scale", type=float, default=1.0, help="share of the points (default: 1)")
    suite = suite_parser.parse_args()
    sys.exit(run_suite(suite.output, suite.names, suite.scale))
