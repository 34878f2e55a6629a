"""`timebeam ingest` with and without metadata, in turns, and what new series cost.

    python -m benchmarks.meta
    python -m benchmarks.meta --points 1000000 --series 50000 --repeats 1

Each turn has new tables; the input is the same.

| case | is |
|---|---|
| `off` | no metadata |
| `track` | `--meta track`: a counter for each new series |
| `full` | `--meta full`: metadata of each new series and of its names |
| `again` | `full`, into tables that have all of it already: a new worker |

The seconds are those that the program times itself; those of the CPU are of its process, start included, and
say more on a machine that others use. What is stored is read back and counted; a wrong count ends the program
with exit code 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import bench
from benchmarks.bench import TARGET, BenchmarkError, log, run_child
from benchmarks.generate import Load, write
from benchmarks.ingest import count_points
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.read_ranges import scan_keys

_FORM = "opentsdb-json"
CASES = {"off": "off", "track": "track", "full": "full", "again": "full"}
"""The value of --meta, by case."""


def ingest(case: str, path: Path, folder: Path, load: Load) -> tuple[float, float]:
    """(seconds, those of the processor) of one ingest.

    The tables of `again` are those that `full` has left, without their points.

    Raises:
      BenchmarkError: it failed, or the tables do not hold all points, or all series.
    """
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"{CASES[case]}-"))
    meta = meta_table(layout.options.table_prefix).name
    where = ["--layout", layout.name, "--table-prefix", layout.options.table_prefix]
    where += ["--project", TARGET.project, "--instance", TARGET.instance]
    run_child(["-m", "timebeam", "tables", "create", "--meta", *where])
    command = ["-m", "timebeam", "ingest", *where, "--format", _FORM, "--input", str(path)]
    command += ["--auto-create-metrics", "--summary", "json", "--dead-letters", str(folder / "dead")]
    child = run_child([*command, "--meta", CASES[case]])
    summary = json.loads(child.output)
    stored, series = count_points(layout), sum(1 for _ in scan_keys(TARGET, meta))
    expected = 0 if case == "off" else load.series
    if (stored, series) != (load.points, expected):
        raise BenchmarkError(f"{case}: {stored} points and {series} series stored; {summary}")
    tables = [spec.name for spec in layout.tables()]
    bench.drop(TARGET, [layout.data_table] if case == "full" else [*tables, meta])
    log(f"{case}: {summary['seconds']:.2f} s, {child.cpu:.2f} s of CPU")
    return summary["seconds"], child.cpu


def measure(
    folder: Path, *, points: int = 4_000_000, series: int = Load.series, repeats: int = 5
) -> bench.Cases:
    """The figures of every case."""
    load = Load(points, series=series, format=_FORM)
    (path,) = write(load, folder / "points.json")
    cases: dict[str, dict[str, list[float]]] = {case: {} for case in CASES}
    for _ in range(repeats):
        turn = {case: ingest(case, path, folder, load) for case in CASES}
        for case, (seconds, cpu) in turn.items():
            off_s, off_cpu = turn["off"]
            for name, value in (
                ("times off", seconds / off_s),
                ("times off, CPU", cpu / off_cpu),
                ("seconds", seconds),
                ("CPU s", cpu),
                ("CPU ms a series", 1000 * (cpu - off_cpu) / series),
            ):
                cases[case].setdefault(name, []).append(value)
    return cases


if __name__ == "__main__":
    sys.exit(bench.main(measure))
