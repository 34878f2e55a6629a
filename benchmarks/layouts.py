"""Every layout and packing with the same points, in turns, and what the writer alone does with its cells.

    python -m benchmarks.layouts --points 200000

| figure | is |
|---|---|
| `share of the writer` | how much of the time of the ingest the writer alone takes |
| `times the first case` | how many times longer the ingest takes than that of `opentsdb`, `compacted` |
| `ingest` | `timebeam ingest --bigtable-writer direct` into an emulator; its own seconds |
| `writer` | the same cells, read back, into new tables: the same requests, from memory, in this process |
| `CPU s/M points` | processor seconds of the ingest for a million further points, for `plan` |
| `cells`, `bytes` | of all its tables, for each point; bytes as in `benchmarks.ingest` |

What is stored is read back through the layout and counted; a wrong count ends the program with exit code 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.cloud.bigtable.data.read_modify_write_rules import AppendValueRule, ReadModifyWriteRule

from benchmarks import bench
from benchmarks.bench import TARGET, BenchmarkError, log, open_table
from benchmarks.generate import Load
from benchmarks.ingest import input_file
from timebeam.pipelines import cli
from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.place import layout_named
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rows import MUTATIONS, Row
from timebeam.transforms.bigtable.beam_steps import BUFFER_BYTES
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.copy.copied_points import read_points
from timebeam.transforms.ingest.row_mutations import write_batch
from timebeam.transforms.read.table_reader import TableReader, scan_table

_EVER_MS = 1 << 41


@dataclasses.dataclass(frozen=True)
class Case:
    """A layout with options, and a packing."""

    layout: str
    packing: Packing
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    form: str = "opentsdb-json"

    @property
    def name(self) -> str:
        """Names its tables too."""
        options = [f"{name}-{value}" for name, value in self.options.items()]
        return "-".join([self.layout, *options, self.packing.value, self.form.removeprefix("opentsdb-")])

    def make(self) -> Store:
        """The layout, with tables of this case's own."""
        defaults = {parameter.name: parameter.default for parameter in layout_parameters()}
        return layout_named(self.layout, {**defaults, **self.options, "table_prefix": f"{self.name}-"})

    @property
    def flags(self) -> list[str]:
        """The options of every command."""
        place = ["--project", TARGET.project, "--instance", TARGET.instance]
        flags = [f"--{name}={value}" for name, value in self.options.items()]
        return ["--layout", self.layout, f"--table-prefix={self.name}-", *place, *flags]


CASES = (
    Case("opentsdb", Packing.COMPACTED),
    *(Case("opentsdb", Packing.COMPACTED, form=form) for form in ("opentsdb-text", "influx")),
    Case("opentsdb", Packing.COMPACTED, {"salt_width": 1}),
    Case("opentsdb", Packing.POINTS),
    Case("opentsdb", Packing.APPEND),
    Case("heroic", Packing.POINTS),
    Case("heroic-readable", Packing.POINTS),
    Case("kairosdb", Packing.POINTS, {"row_spec": "legacy"}),
    Case("kairosdb", Packing.POINTS, {"row_spec": "milliseconds"}),
)


def run(*arguments: str) -> tuple[str, float]:
    """(standard output, processor seconds) of a command of timebeam in this process.

    Raises:
      BenchmarkError: its exit code is not 0.
    """
    output, started = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(output):
        code = cli.main(list(arguments))
    if code:
        raise BenchmarkError(f"timebeam {' '.join(arguments)}: exit code {code}")
    return output.getvalue(), time.process_time() - started


def ingest(case: Case, path: Path, points: int) -> tuple[float, float, list[Row]]:
    """(seconds, those of the processor, all rows of all tables) of one ingest, whose tables are dropped then.

    Raises:
      BenchmarkError: it failed, or the tables do not hold exactly the points of the input.
    """
    layout = case.make()
    run("tables", "create", *case.flags)
    command = ["ingest", *case.flags, "--format", case.form, "--input", str(path), "--quiet"]
    command += ["--auto-create-metrics", "--summary", "json", "--dead-letters", f"{path}-dead"]
    output, cpu = run(*command, "--packing", case.packing.value, "--bigtable-writer", "direct")
    summary = json.loads(output)
    batches = read_points(layout, TableReader(TARGET), 0, _EVER_MS)
    stored = sum(len(batch) for batch in batches if isinstance(batch, PointBatch))
    if not stored == summary["points_stored"] == points:
        raise BenchmarkError(f"{case.name}: {points} points given, {stored} stored; {summary}")
    rows = [row for spec in layout.tables() for row in scan_table(TARGET, spec.name)]
    bench.drop(TARGET, [spec.name for spec in layout.tables()])
    return summary["seconds"], cpu, rows


def write_alone(case: Case, rows: Sequence[Row]) -> float:
    """Seconds of writing these rows into new tables, which are dropped afterwards."""
    layout = case.make()
    for _ in create_tables(TARGET, layout.tables(), dry_run=False):
        pass
    append = case.packing is Packing.APPEND
    data = {spec.name for spec in layout.tables() if spec.holds_points}
    started = time.perf_counter()
    for request in _requests(row for row in rows if not append or row.table not in data):
        if write_batch(TARGET, request[0].table, request):
            raise BenchmarkError(f"{case.name}: a row was rejected")
    for row in rows if append else ():
        if row.table in data:
            rules: list[ReadModifyWriteRule] = [
                AppendValueRule(cell.family, cell.qualifier, cell.value) for cell in row.cells
            ]
            open_table(row.table).read_modify_write_row(row.key, rules)
    seconds = time.perf_counter() - started
    bench.drop(TARGET, [spec.name for spec in layout.tables()])
    return seconds


def _requests(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows of one table by request, of the sizes that the direct writer sends."""
    request: list[Row] = []
    cells = size = 0
    for row in rows:
        if request and (
            row.table != request[0].table or cells + len(row.cells) > MUTATIONS or size > BUFFER_BYTES
        ):
            yield request
            request, cells, size = [], 0, 0
        request.append(row)
        cells += len(row.cells)
        size += sum(len(cell.qualifier) + len(cell.value) + 64 for cell in row.cells)
    if request:
        yield request


def stored_bytes(rows: Sequence[Row]) -> int:
    """Key, family, qualifier, timestamp and value of every cell."""
    return sum(
        len(row.key) + len(cell.family) + len(cell.qualifier) + 8 + len(cell.value)
        for row in rows
        for cell in row.cells
    )


def measure(folder: Path, *, points: int = 200_000, repeats: int = 3) -> bench.Cases:
    """The figures of every case; packed files have five times as many points, since they cost less."""
    figures: dict[str, dict[str, list[float]]] = {case.name: {} for case in CASES}
    for _ in range(repeats):
        first = 0.0
        for case in CASES:
            count = points * 5 if case.packing is Packing.COMPACTED else points
            # The first run imports and compiles; the others have all but the further points.
            small = input_file(folder, case.form, Load.series)
            start_cpu = min(ingest(case, small, Load.series)[1] for _ in range(3))
            seconds, cpu, rows = ingest(case, input_file(folder, case.form, count), count)
            writer = write_alone(case, rows)
            first = first or seconds / count
            turn = {
                "share of the writer": writer / seconds,
                "times the first case": seconds / count / first,
                "ingest, points/s": count / seconds,
                "writer, points/s": count / writer,
                "CPU s/M points": (cpu - start_cpu) / (count - Load.series) * 1e6,
                "cells/point": sum(len(row.cells) for row in rows) / count,
                "bytes/point": stored_bytes(rows) / count,
                "points": count,
            }
            log(f"{case.name}: {seconds:.1f} s, {turn['CPU s/M points']:.2f} CPU s/M points")
            for name, value in turn.items():
                figures[case.name].setdefault(name, []).append(value)
    return figures


if __name__ == "__main__":
    sys.exit(bench.main(measure))
