"""`timebeam export`, and its files ingested again, beside reading the same points and nothing else.

    python -m benchmarks.export --points 10000000

Loads an emulator with packed points, a second apart. A tenth of them is exported first, then all; each
command is a process of its own. The files are ingested again with another table prefix, and exported from
there: both exports have the same manifests, which have a checksum of each column.

| figure | is |
|---|---|
| `share of the scan` | processor time of reading the rows, by that of an export without its start |
| `share of the read` | processor time of reading the rows and decoding their points, by the same |
| `share of the scan, files alone` | the same, by what pyarrow takes to write these files from memory |
| `CPU s/M points` | processor seconds of an export for a million points, without its start |
| `times the peak of a tenth` | the peak memory by that of a tenth of the points |
| `bytes/point` | of the files |
"""

from __future__ import annotations

import functools
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import bench
from benchmarks.bench import TARGET, BenchmarkError, Child, run_child
from benchmarks.rollup import START, configure, create, load, scan
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.selection import Selection
from timebeam.schema.formats.parquet.parquet_columns import written
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.copy.copied_points import read_batches
from timebeam.transforms.read.table_reader import ParallelReader

_DAY_S = 86_400


def worked(run: Callable[[], object]) -> float:
    """Processor seconds of this process for a call."""
    start_s = time.process_time()
    run()
    return time.process_time() - start_s


def read(prefix: str) -> int:
    """How many points all rows have, decoded as an export decodes them."""
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=prefix))
    whole = Selection(None, {}, START * 1000, 2 * START * 1000)
    batches = read_batches(layout, whole, ParallelReader(TARGET))
    return sum(len(batch) for batch in batches if isinstance(batch, PointBatch))


def write_again(folder: Path) -> Callable[[], None]:
    """Reads the files of an export into memory; what it returns writes them, with the same row groups."""
    written_files = [pq.ParquetFile(path) for path in folder.glob("*/*.parquet")]
    parts = [[file.read_row_group(group) for group in range(file.num_row_groups)] for file in written_files]

    def write() -> None:
        for groups in parts:
            with pq.ParquetWriter(io.BytesIO(), groups[0].schema, **written(groups[0].schema)) as writer:
                for group in groups:
                    writer.write_table(group, row_group_size=len(group))

    return write


def export(prefix: str, folder: Path, start: int, end: int) -> Child:
    """Exports the days of a range, in seconds."""
    command = [
        "-m",
        "timebeam",
        "export",
        "--layout=opentsdb",
        f"--table-prefix={prefix}",
        f"--output={folder}",
    ]
    command += [f"--start={start}", f"--end={end}", f"--dead-letters={folder.parent / 'dead'}"]
    return run_child(command)


def ingest(folder: Path, prefix: str) -> Child:
    """Ingests the files of an export, packed."""
    command = [
        "-m",
        "timebeam",
        "ingest",
        "--layout=opentsdb",
        f"--table-prefix={prefix}",
        "--format=parquet",
    ]
    command += [f"--input={folder}/*/*.parquet", f"--dead-letters={folder.parent / 'dead'}"]
    return run_child([*command, "--auto-create-metrics", "--bigtable-writer=direct"])


def files(folder: Path) -> tuple[int, int, list[str]]:
    """(points, bytes, what each manifest says of the points)."""
    manifests = [json.loads(path.read_text()) for path in sorted(folder.glob("*/_manifest.json"))]
    entries = [entry for manifest in manifests for entry in manifest["files"]]
    return sum(entry["points"] for entry in entries), sum(entry["bytes"] for entry in entries), manifests


def known(peak_mib: float | None) -> list[float]:
    """A peak that is known: one beyond that of this process."""
    return [] if peak_mib is None else [peak_mib]


def measure(
    folder: Path, *, points: int = 10_000_000, series: int = 400, turns: int = 3
) -> dict[str, dict[str, list[float]]]:
    """A case for a tenth of the points, and for all."""
    cases: dict[str, dict[str, list[float]]] = {}
    configure(folder, "1h")
    tenth: dict[str, list[float]] = {}
    for case_points in (points // 10, points):
        prefix, seconds = f"x{case_points}-", case_points // series
        load(case_points, series, prefix, folder)
        output = folder / prefix
        start = export(prefix, folder / "empty", START - _DAY_S, START)  # a day without points
        figures = cases[f"{case_points:,} points"] = {}
        for _ in range(turns):
            scan_s, read_s = (worked(functools.partial(run, prefix)) for run in (scan, read))
            child = export(prefix, output, START, START + seconds)
            write_s = worked(write_again(output))
            export_s = child.cpu - start.cpu
            for name, figure in {
                "share of the scan": scan_s / export_s,
                "share of the read": read_s / export_s,
                "share of the scan, files alone": scan_s / write_s,
                "CPU s/M points": export_s / case_points * 1e6,
            }.items():
                figures.setdefault(name, []).append(figure)
            figures.setdefault("peak, MiB", []).extend(known(child.peak_mib))
        create(f"again-{prefix}", folder)
        child = ingest(output, f"again-{prefix}")
        export(f"again-{prefix}", folder / f"again-{prefix}", START, START + seconds)
        exported, size, manifests = files(output)
        if exported != case_points or files(folder / f"again-{prefix}")[2] != manifests:
            raise BenchmarkError(
                "the points exported are not those that were stored, or not those ingested again"
            )
        figures["bytes/point"] = [size / case_points]
        figures["ingest, CPU s/M points"] = [child.cpu / case_points * 1e6]
        figures["ingest, peak, MiB"] = known(child.peak_mib)
        for name in ("peak, MiB", "ingest, peak, MiB"):
            if figures[name] and tenth.get(name):
                ratio = max(figures[name]) / max(tenth[name])
                figures[f"times the {name.removesuffix(', MiB')} of a tenth"] = [ratio]
        tenth = figures
    return cases


if __name__ == "__main__":
    sys.exit(bench.main(measure))
