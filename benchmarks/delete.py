"""`timebeam delete` of all points of a metric, with a token: processor time, and memory by number of points.

    python -m benchmarks.delete
    python -m benchmarks.delete --points 10000000 --output delete.json

| figure | is |
|---|---|
| `M points/s` | million points per second of processor time, of the dry run and of the real one together |
| `peak, MiB` | memory (RSS) of the real run's process |
| `times the first peak` | the same by that of the first number of points: memory does not grow with it |

Rows are compacted hours of a point in ten seconds. At the end the data table must be empty.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from benchmarks import bench
from benchmarks.archive import START_S, Rows, generated
from benchmarks.bench import TARGET
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.read.table_reader import scan_table

_COMMAND = """\
import sys
from timebeam.pipelines import cli
code = cli.main(sys.argv[1:])
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
sys.exit(code)
"""
"""`timebeam`, and its peak in KiB as a last line: the kernel's other count begins with that of the parent."""


def layout_of(points: int) -> OpenTsdb:
    """The tables for so many points."""
    return OpenTsdb(OpenTsdbOptions(table_prefix=f"d{points}-"))


def store(points: int) -> int:
    """Makes tables with so many points of a metric, or some more; their number."""
    layout = layout_of(points)
    list(create_tables(TARGET, layout.tables(), dry_run=False))
    rows, count = Rows(layout), 0
    batch = generated("gauge", 40, 1)
    while count < points:
        write_all(TARGET, layout.data_table, list(rows.of(batch, Packing.COMPACTED)))
        batch = dataclasses.replace(batch, times_ms=batch.times_ms + 86_400_000)
        count += len(batch)
    write_all(TARGET, layout.options.uid_table, list(rows.names()))
    return count


def deletion(folder: Path, points: int) -> dict[str, list[float]]:
    """Deletes all points of tables; raises BenchmarkError if some remain."""
    layout = layout_of(points)
    count = store(points)
    command = [
        *("-c", _COMMAND, "delete", "m", "--layout=opentsdb", f"--start={START_S}", "--summary=json"),
        *(f"--project={TARGET.project}", f"--instance={TARGET.instance}", f"--log={folder / 'log'}"),
        f"--table-prefix={layout.options.table_prefix}",
    ]
    dry = bench.run_child(command)
    real = bench.run_child([*command, "--token", json.loads(dry.output.splitlines()[0])["token"]])
    summary, peak_kib = real.output.splitlines()
    deleted = json.loads(summary)["tables"][layout.data_table]["points"]
    if deleted != count or next(scan_table(TARGET, layout.data_table), None) is not None:
        raise bench.BenchmarkError(f"{deleted:,} of {count:,} points were deleted, or rows remain")
    return {"M points/s": [count / (dry.cpu + real.cpu) / 1e6], "peak, MiB": [int(peak_kib) / 1024]}


def measure(folder: Path, *, points: list[int] = [1_000_000, 10_000_000]) -> bench.Cases:  # noqa: B006
    """A case for each number of points."""
    cases = {f"{number:,} points": deletion(folder, number) for number in points}
    (first,) = next(iter(cases.values()))["peak, MiB"]
    for figures in cases.values():
        figures["times the first peak"] = [figures["peak, MiB"][0] / first]
    return cases


if __name__ == "__main__":
    sys.exit(bench.main(measure))
