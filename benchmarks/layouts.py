"""Every layout and packing with the same input, in turns, and what the writer alone does with its cells.

    python -m benchmarks.layouts --points 200000

| figure | is |
|---|---|
| `ingest` | `timebeam ingest --bigtable_writer direct`, JSON lines, into an emulator; its own seconds |
| `writer` | the same cells, read back, into new tables: the same requests, from memory, in this process |
| `share` | how much of the time of the ingest the writer alone takes |
| `to opentsdb` | how many times longer the ingest takes than that of `opentsdb`, `compacted` |
| `cells`, `bytes` | of all its tables, for each point; bytes as in `benchmarks.ingest` |

What is stored is read back through the layout and counted; a wrong count ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.cloud.bigtable.data.read_modify_write_rules import AppendValueRule, ReadModifyWriteRule

from benchmarks.ingest import TARGET, BenchmarkError, drop, input_file, log, run_child
from timebeam.pipelines.local.emulator import Emulator, EmulatorError
from timebeam.pipelines.options.parameters import LAYOUT
from timebeam.pipelines.options.values import layout_named
from timebeam.schema.layouts import Layout, Packing, Row
from timebeam.schema.points import PointBatch
from timebeam.transforms.bigtable.io import BUFFER_BYTES
from timebeam.transforms.bigtable.rows import MUTATIONS
from timebeam.transforms.bigtable.tables import create_tables
from timebeam.transforms.bigtable.target import open_table
from timebeam.transforms.copy.points import read_points
from timebeam.transforms.ingest.write import write_batch
from timebeam.transforms.readers.table_reader import TableReader, scan_table

_FORM = "opentsdb-json"
_EVER_MS = 1 << 41


@dataclasses.dataclass(frozen=True)
class Case:
    """A layout with options, and a packing."""

    layout: str
    packing: Packing
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Names its tables too."""
        options = [f"{name}-{value}" for name, value in self.options.items()]
        return "-".join([self.layout, *options, self.packing.value])

    def make(self) -> Layout:
        """The layout, with tables of this case's own."""
        defaults = {parameter.name: parameter.default for parameter in LAYOUT}
        return layout_named(self.layout, {**defaults, **self.options, "table_prefix": f"{self.name}-"})

    @property
    def flags(self) -> list[str]:
        """The options of every command."""
        place = ["--project", TARGET.project, "--instance", TARGET.instance]
        flags = [f"--{name}={value}" for name, value in self.options.items()]
        return ["--layout", self.layout, f"--table_prefix={self.name}-", *place, *flags]


CASES = (
    Case("opentsdb", Packing.COMPACTED),
    Case("opentsdb", Packing.COMPACTED, {"salt_width": 1}),
    Case("opentsdb", Packing.POINTS),
    Case("opentsdb", Packing.APPEND),
    Case("heroic", Packing.POINTS),
    Case("heroic-readable", Packing.POINTS),
    Case("kairosdb", Packing.POINTS, {"row_spec": "legacy"}),
    Case("kairosdb", Packing.POINTS, {"row_spec": "milliseconds"}),
)


@dataclasses.dataclass(frozen=True)
class Turn:
    """Seconds of one turn, and what it stored."""

    ingest: float
    writer: float
    cells: int
    size: int


def ingest(case: Case, path: Path, folder: Path, points: int) -> tuple[float, list[Row]]:
    """(seconds, all rows of all tables) of one ingest, whose tables are dropped afterwards.

    Raises:
      BenchmarkError: it failed, or the tables do not hold exactly the points of the input.
    """
    layout = case.make()
    run_child(["-m", "timebeam", "tables", "create", *case.flags])
    command = ["-m", "timebeam", "ingest", *case.flags, "--format", _FORM, "--input", str(path)]
    command += ["--auto_create_metrics", "--summary", "json", "--dead_letters", str(folder / "dead")]
    command += ["--packing", case.packing.value, "--bigtable_writer", "direct"]
    summary = json.loads(run_child(command)[0])
    batches = read_points(layout, TableReader(TARGET), 0, _EVER_MS)
    stored = sum(len(batch) for batch in batches if isinstance(batch, PointBatch))
    if not stored == summary["points_stored"] == points:
        raise BenchmarkError(f"{case.name}: {points} points given, {stored} stored; {summary}")
    rows = [row for spec in layout.tables() for row in scan_table(TARGET, spec.name)]
    drop(TARGET, [spec.name for spec in layout.tables()])
    return summary["seconds"], rows


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
            raise BenchmarkError(f"{case.name}: a row was refused")
    for row in rows if append else ():
        if row.table in data:
            rules: list[ReadModifyWriteRule] = [
                AppendValueRule(cell.family, cell.qualifier, cell.value) for cell in row.cells
            ]
            open_table(TARGET, row.table).read_modify_write_row(row.key, rules)
    seconds = time.perf_counter() - started
    drop(TARGET, [spec.name for spec in layout.tables()])
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


def turn(case: Case, path: Path, folder: Path, points: int) -> Turn:
    """One turn of one case."""
    seconds, rows = ingest(case, path, folder, points)
    figures = Turn(seconds, write_alone(case, rows), sum(len(row.cells) for row in rows), stored_bytes(rows))
    log(
        f"{case.name}: {seconds:.1f} s, {points / seconds:,.0f} points/s; writer alone {figures.writer:.1f} s"
    )
    return figures


def table(turns: Mapping[str, Sequence[Turn]], points: int) -> str:
    """The figures, of the best turn of each case."""
    first = min(turn.ingest for turn in turns[CASES[0].name])
    lines = [
        "| layout and packing | ingest, points/s | writer, points/s | share | to opentsdb | cells | bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case_turns in turns.items():
        ingest_s, writer_s = min(turn.ingest for turn in case_turns), min(turn.writer for turn in case_turns)
        stored = case_turns[0]
        lines.append(
            f"| `{name}` | {points / ingest_s:,.0f} | {points / writer_s:,.0f} | {writer_s / ingest_s:.0%} "
            f"| {ingest_s / first:.1f} | {stored.cells / points:.3f} | {stored.size / points:.1f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns the exit code: 1 if a run failed or stored something else than its input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=200_000, help="points of every case")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every case")
    options = parser.parse_args()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    turns: dict[str, list[Turn]] = {case.name: [] for case in CASES}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="timebeam-") as text,
            Emulator() as emulator,
            emulator.environment(),
        ):
            folder = Path(text)
            path = input_file(folder, _FORM, options.points)
            for _ in range(options.repeats):
                for case in CASES:
                    turns[case.name].append(turn(case, path, folder, options.points))
    except (BenchmarkError, EmulatorError) as error:
        log(str(error))
        return 1
    except KeyboardInterrupt:
        log("stopped")
        return 130
    print(table(turns, options.points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
