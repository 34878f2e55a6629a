"""`timebeam ingest` with and without metadata, in turns, and what new series cost.

    python -m benchmarks.meta
    python -m benchmarks.meta --points 1000000 --series 50000 --repeats 1

Starts an emulator of its own. Each turn has new tables; the input is the same.

| case | is |
|---|---|
| `off` | no metadata |
| `track` | `--meta track`: a counter for each new series |
| `full` | `--meta full`: metadata of each new series and of its names |
| `again` | `full`, into tables that have all of it already: a new worker |

Printed for each case: the best and the median of the seconds that the program times itself, and of the CPU
seconds of its process, start included, which say more on a machine that others use; how many times those of
`off` the medians are; and how many CPU ms a series costs more. What is stored is read back and counted; a
wrong count ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.generate import Load, write
from benchmarks.ingest import TARGET, BenchmarkError, count_points, drop, log, run_child
from timebeam.pipelines.local.emulator import Emulator, EmulatorError
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.schema.meta.documents import meta_table
from timebeam.transforms.bigtable.reader import scan_keys

_FORM = "opentsdb-json"
CASES = {"off": "off", "track": "track", "full": "full", "again": "full"}
"""The value of --meta, by case."""


class Turn(NamedTuple):
    """One run: the seconds that the program times itself, and the CPU seconds of its process."""

    seconds: float
    cpu: float


def ingest(case: str, path: Path, folder: Path, load: Load) -> Turn:
    """One ingest. The tables of `again` are those that `full` has left, without their points.

    Raises:
      BenchmarkError: it failed, or the tables do not hold all points, or all series.
    """
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"{CASES[case]}-"))
    meta = meta_table(layout.options.table_prefix).name
    where = ["--layout", layout.name, "--table_prefix", layout.options.table_prefix]
    where += ["--project", TARGET.project, "--instance", TARGET.instance]
    run_child(["-m", "timebeam", "tables", "create", "--meta", *where])
    command = ["-m", "timebeam", "ingest", *where, "--format", _FORM, "--input", str(path)]
    command += ["--auto_create_metrics", "--summary", "json", "--dead_letters", str(folder / "dead")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = json.loads(run_child([*command, "--meta", CASES[case]])[0])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    stored, series = count_points(layout), sum(1 for _ in scan_keys(TARGET, meta))
    expected = 0 if case == "off" else load.series
    if (stored, series) != (load.points, expected):
        raise BenchmarkError(f"{case}: {stored} points and {series} series stored; {summary}")
    tables = [spec.name for spec in layout.tables()]
    drop(TARGET, [layout.data_table] if case == "full" else [*tables, meta])
    log(f"{case}: {summary['seconds']:.2f} s, {cpu:.2f} s of CPU")
    return Turn(summary["seconds"], cpu)


def table(turns: Mapping[str, Sequence[Turn]], load: Load) -> str:
    """The figures, for people."""
    names = ("best s", "median s", "x off", "best CPU s", "median CPU s", "x off", "CPU ms a series")
    lines = [
        f"{load.points:,} points of {load.series:,} series, {len(turns['off'])} turns",
        f"{'case':6}" + "".join(f"{name:>16}" for name in names),
    ]
    medians = {
        case: [statistics.median(column) for column in zip(*case_turns, strict=True)]
        for case, case_turns in turns.items()
    }
    wall, cpu = medians["off"]
    for case, case_turns in turns.items():
        best = [min(column) for column in zip(*case_turns, strict=True)]
        seconds, program_seconds = medians[case]
        more = 1000 * (program_seconds - cpu) / load.series
        figures = (best[0], seconds, seconds / wall, best[1], program_seconds, program_seconds / cpu, more)
        lines.append(f"{case:6}" + "".join(f"{figure:16.3f}" for figure in figures))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a run failed or stored something else than its input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=4_000_000, help="default: %(default)s")
    parser.add_argument("--series", type=int, default=Load.series, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="turns; default: %(default)s")
    options = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    load = Load(options.points, series=options.series, format=_FORM)
    turns: dict[str, list[Turn]] = {case: [] for case in CASES}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="timebeam-") as name,
            Emulator() as emulator,
            emulator.environment(),
        ):
            folder = Path(name)
            (path,) = write(load, folder / "points.json")
            for _ in range(options.repeats):
                for case, case_turns in turns.items():
                    case_turns.append(ingest(case, path, folder, load))
    except (BenchmarkError, EmulatorError) as error:
        log(str(error))
        return 1
    print(table(turns, load))
    return 0


if __name__ == "__main__":
    sys.exit(main())
