"""Rollups of packed rows, beside a bare scan of the same rows and a pipeline with an element for each point.

    python -m benchmarks.rollup --points 3000000 30000000
    python -m benchmarks.rollup --points 3000000 --series 400 4000 20000
    python -m benchmarks.rollup --points 30000000 --row_span 1h
    python -m benchmarks.rollup --points 3000000 30000000 90000000 --memory
    python -m benchmarks.rollup --metrics 200 2000

Loads an emulator with points of so many series, a second apart, packed; then, for each number of both:

| figure | is |
|---|---|
| `scan` | reading the raw rows with the reader of the rollup, in one process, and nothing else |
| `client_scan` | the same with Google's client for Python |
| `rollup` | `timebeam rollup` of 1m, 1h, 1d and two pre-aggregates, from read to write; its own clock |
| `again` | a second time, when everything stands there already |
| `no_write` | the same without the write: what is left is ours, the rest is the emulator taking cells |
| `store` | sending requests, made before, of those cells that need no shuffle: what the emulator takes |
| `cells`, `store_cells` | that the rollup writes; that are in those requests |
| `peak_mib`, `no_write_peak_mib` | of the rollup's process |
| `no_groups`, `one_group` | as `no_write`, without pre-aggregates; with one, of a single group |
| `naive` | points/s of a pipeline with an element for each point, which makes 1h alone, of `--naive` points |

A row of 1m holds `--row_span`. `--metrics` loads so many metrics in place of that, each with two series and a
point every five minutes of a day, and gives the first three, and `no_write`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.cloud.bigtable.data import ReadRowsQuery
from google.cloud.bigtable.data.row_filters import CellsColumnLimitFilter

from benchmarks.generate import write
from timebeam.pipelines.commands.upkeep import ROLLUP_COMMAND
from timebeam.pipelines.jobs.job import write_dead_letters
from timebeam.pipelines.jobs.run import run_with_progress
from timebeam.pipelines.local.emulator import Emulator
from timebeam.pipelines.local.generator import Load
from timebeam.pipelines.options.period import period_of
from timebeam.pipelines.output.summary import PointsSummary
from timebeam.pipelines.rollup.jobs import add_rollup, opentsdb_rollup
from timebeam.schema.layouts import Row, Selected, Selection
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.io import BUFFER_BYTES
from timebeam.transforms.bigtable.rows import EncodedRow
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, Target, open_table
from timebeam.transforms.bigtable.wire import request_bytes
from timebeam.transforms.ingest import coders
from timebeam.transforms.readers.chunks import Chunk
from timebeam.transforms.readers.table_reader import TableReader, scan_table
from timebeam.transforms.rollup.accumulate import AccumulateFn, ChunksFn
from timebeam.transforms.rollup.job import RollupJob

TARGET = Target("local", "local")
START = 1_356_998_400
_CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {"table": "tsdb", "preAggregationTable": "preagg", "interval": "30s", "rowSpan": "1h"}
        | {"defaultInterval": True},
        {"table": "rollup-1m", "preAggregationTable": "preagg-1m", "interval": "1m", "rowSpan": "1d"},
        {"table": "rollup-1h", "preAggregationTable": "preagg-1h", "interval": "1h", "rowSpan": "1n"},
        {"table": "rollup-1d", "preAggregationTable": "preagg-1d", "interval": "1d", "rowSpan": "1y"},
    ],
}
_GROUPS = {
    "two": [
        {"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum"]},
        {"metrics": ["*"], "keepTags": ["cpu"], "aggregators": ["max"]},
    ],
    "no": [],
    "one": [{"metrics": ["*"], "keepTags": [], "aggregators": ["sum"]}],
}
"""The pre-aggregates of each configuration."""


def run(*command: str) -> None:
    """Runs a command of `timebeam`."""
    program = [sys.executable, "-m", "timebeam", *command]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def configure(folder: Path, row_span: str) -> None:
    """Writes the configurations, with so much in a row of 1m."""
    for name, groups in _GROUPS.items():
        config = _CONFIG | ({"timebeam": {"preAggregates": groups}} if groups else {})
        text = json.dumps(config).replace('"1m", "rowSpan": "1d"', f'"1m", "rowSpan": "{row_span}"')
        (folder / f"{name}.json").write_text(text)


def create(prefix: str, folder: Path) -> None:
    """Creates the tables."""
    place = ["--layout=opentsdb", f"--table_prefix={prefix}"]
    run("tables", "create", *place, f"--rollup_config={folder / 'two.json'}")


def load(points: int, series: int, prefix: str, folder: Path) -> None:
    """Ingests points, packed."""
    create(prefix, folder)
    for path in write(Load(points, series), folder / f"{prefix}.json", files=max(1, points // 5_000_000)):
        ingest(path, "opentsdb-json", prefix)


def load_metrics(metrics: int, prefix: str, folder: Path) -> None:
    """Ingests a day of so many metrics, packed."""
    create(prefix, folder)
    path = folder / f"{prefix}.txt"
    with path.open("w") as stream:
        for metric, host in itertools.product(range(metrics), "ab"):
            for time_s in range(START, START + 86_400, 300):
                stream.write(f"put app.m{metric:06} {time_s} {time_s % 977} cpu=0 dc=x host={host}\n")
    ingest(path, "opentsdb-text", prefix)


def ingest(path: Path, kind: str, prefix: str) -> None:
    """Stores the points of a file, and deletes it."""
    command = ["ingest", "--layout=opentsdb", f"--table_prefix={prefix}", f"--format={kind}"]
    command += [f"--input={path}", f"--dead_letters={path.parent / 'dead'}"]
    run(*command, "--auto_create_metrics", "--bigtable_writer=direct")
    path.unlink()


def scan(prefix: str) -> tuple[float, int]:
    """(seconds, rows) of a bare scan of the raw rows."""
    started = time.perf_counter()
    rows = sum(1 for _ in scan_table(TARGET, f"{prefix}tsdb"))
    return time.perf_counter() - started, rows


def client_scan(prefix: str) -> float:
    """Seconds of the same scan with Google's client."""
    started = time.perf_counter()
    query = ReadRowsQuery(row_filter=CellsColumnLimitFilter(1))
    for row in open_table(TARGET, f"{prefix}tsdb").read_rows_stream(query):
        assert row.row_key
    return time.perf_counter() - started


def rolled_up(
    seconds: int, prefix: str, config: Path, *flags: str, label: str = "measured"
) -> dict[str, float]:
    """The figures of one rollup, in a process of its own, of points of so many seconds."""
    end = START + seconds + 86_400
    command = [sys.executable, "-m", "benchmarks.rollup", label, *flags, "--layout=opentsdb"]
    command += [f"--table_prefix={prefix}", f"--rollup_config={config}", "--summary=json"]
    command += [
        f"--start={START}",
        f"--end={end - end % 86_400}",
        f"--dead_letters={config.parent / 'dead'}",
    ]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return dict(json.loads(ran.stdout))


def stored(arguments: list[str]) -> None:
    """Makes the requests with the cells of a rollup, then sends them, and prints how long that took.

    They go to tables of another prefix, `stored-` before that of the rollup.
    """
    options, job = _job(arguments)
    requests, rows, cells = [], list[EncodedRow](), 0
    prefix = f"stored-{options.table_prefix}"
    reads = AccumulateFn(job)
    reads.setup()
    reads.start_bundle()
    for chunk in ChunksFn(job).process(None):
        if isinstance(chunk, Chunk):
            rows += [row for row in reads.process(chunk) if isinstance(row, EncodedRow)]
    rows.sort(key=lambda row: row.table)
    for table, table_rows in itertools.groupby(rows, key=lambda row: row.table):
        name = TARGET.table_name(prefix + table.removeprefix(options.table_prefix))
        batch, size = list[EncodedRow](), 0
        for row in table_rows:
            batch.append(row)
            size += len(row.mutations)
            cells += row.mutation_count
            if size >= BUFFER_BYTES:
                requests.append(request_bytes(name, "", batch))
                batch, size = [], 0
        requests.append(request_bytes(name, "", batch))
    channel = grpc.insecure_channel(
        os.environ[EMULATOR_VARIABLE], options=[("grpc.max_send_message_length", -1)]
    )
    send = channel.unary_stream("/google.bigtable.v2.Bigtable/MutateRows")
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(lambda request: list(send(request)), requests):
            assert answer
    print(json.dumps({"seconds": time.perf_counter() - started, "cells": cells}))


def _job(arguments: list[str]) -> tuple[argparse.Namespace, RollupJob]:
    options = ROLLUP_COMMAND.parse(arguments)[0]
    return options, opentsdb_rollup(options, period_of(options, int(time.time() * 1000))).work


def measured(arguments: list[str], write_cells: bool) -> None:
    """Runs a rollup in this process and prints its figures."""
    options, job = _job(arguments)
    started = time.perf_counter()
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    coders.register()
    write_dead_letters(add_rollup(pipeline, job, write=write_cells), options.dead_letters, 0)
    result = run_with_progress(pipeline)
    summary = PointsSummary.of(result, time.perf_counter() - started, False, options.dead_letters)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {
        "seconds": summary.seconds,
        "points": summary.points_read,
        "cells": summary.cells,
        "peak_mib": peak,
    }
    print(json.dumps(figures))


def naive(points: int, prefix: str) -> float:
    """Points/s of a pipeline with an element for each point, which makes 1h rollups of some of them."""
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=prefix))
    rows: list[Row] = []
    series = []
    count = 0
    selection = Selection(None, {}, START * 1000, (START + 3600) * 1000 - 1)
    for selected in layout.select(selection, TableReader(TARGET)):
        if isinstance(selected, Selected) and count < points:
            rows.append(selected.row)
            series.append(selected.series)
            count += len(layout.decode(*selected).batch)

    def points_of(number: int) -> Iterator[tuple[tuple[str, int], float]]:
        for point_series, time_ms, value in layout.decode(rows[number], series[number]).batch.points():
            assert not isinstance(value, (str, bytes))
            yield (str(point_series), time_ms // 3_600_000), float(value)

    started = time.perf_counter()
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
        (
            pipeline
            | beam.Create(range(len(rows)))
            | beam.FlatMap(points_of)
            | beam.CombinePerKey(_Aggregates())
            | beam.Map(lambda _: None)
        )
    return count / (time.perf_counter() - started)


def figures(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, float]]:
    """The figures of each table that is asked for."""
    configure(folder, options.row_span)
    for metrics in options.metrics:
        yield of_metrics(metrics, folder)
    shapes = [] if options.metrics else itertools.product(options.points, options.series)
    for points, series in shapes:
        prefix = f"b{points}-{series}-"
        load(points, series, prefix, folder)
        shape = {"points": points, "series": series, "row_span": options.row_span}
        if options.memory:
            yield shape | peaks(points // series, prefix, folder)
        else:
            yield shape | of_series(points, points // series, prefix, folder, options.naive)


def peaks(seconds: int, prefix: str, folder: Path) -> dict[str, float]:
    """The memory of a rollup of points of so many seconds, without the write and with it."""
    bare = rolled_up(seconds, prefix, folder / "two.json", "--no_write")
    result = rolled_up(seconds, prefix, folder / "two.json")
    return {"peak_mib": round(result["peak_mib"]), "no_write_peak_mib": round(bare["peak_mib"])}


def of_series(points: int, long: int, prefix: str, folder: Path, naive_points: int) -> dict[str, float]:
    """The figures of a table with so many points, of so many seconds."""
    seconds, rows = min(scan(prefix) for _ in range(3))
    by_client = min(client_scan(prefix) for _ in range(2))
    two = folder / "two.json"
    bare, none, one_group = (
        rolled_up(long, prefix, folder / f"{name}.json", "--no_write") for name in _GROUPS
    )
    first, second = rolled_up(long, prefix, two), rolled_up(long, prefix, two)
    create(f"stored-{prefix}", folder)
    store = rolled_up(long, prefix, two, label="stored")
    simple = naive(naive_points, prefix)
    return {
        "rows": rows,
        "scan_seconds": round(seconds, 2),
        "client_scan_seconds": round(by_client, 2),
        "rollup_seconds": round(first["seconds"], 2),
        "again_seconds": round(second["seconds"], 2),
        "no_write_seconds": round(bare["seconds"], 2),
        "store_seconds": round(store["seconds"], 2),
        "store_cells": store["cells"],
        "no_groups_seconds": round(none["seconds"], 2),
        "one_group_seconds": round(one_group["seconds"], 2),
        "points_per_second": round(points / first["seconds"]),
        "cells": first["cells"],
        "peak_mib": round(first["peak_mib"]),
        "no_write_peak_mib": round(bare["peak_mib"]),
        "times_scan": round(first["seconds"] / seconds, 2),
        "times_scan_no_write": round(bare["seconds"] / seconds, 2),
        "times_client_scan": round(first["seconds"] / by_client, 2),
        "times_client_scan_no_write": round(bare["seconds"] / by_client, 2),
        "naive_points_per_second": round(simple),
        "ratio_to_naive": round(points / first["seconds"] / simple, 1),
        "ratio_to_naive_no_write": round(points / bare["seconds"] / simple, 1),
    }


def of_metrics(metrics: int, folder: Path) -> dict[str, float]:
    """The figures of a table of so many metrics."""
    prefix = f"m{metrics}-"
    load_metrics(metrics, prefix, folder)
    seconds, rows = min(scan(prefix) for _ in range(3))
    by_client = client_scan(prefix)
    bare = rolled_up(86_000, prefix, folder / "two.json", "--no_write")
    result = rolled_up(86_000, prefix, folder / "two.json")
    return {
        "metrics": metrics,
        "points": result["points"],
        "rows": rows,
        "scan_seconds": round(seconds, 2),
        "client_scan_seconds": round(by_client, 2),
        "rollup_seconds": round(result["seconds"], 2),
        "no_write_seconds": round(bare["seconds"], 2),
        "cells": result["cells"],
    }


class _Aggregates(beam.CombineFn):
    """Sum, count, min and max, as a user would write it."""

    def create_accumulator(self) -> tuple[float, int, float, float]:
        return 0.0, 0, float("inf"), float("-inf")

    def add_input(
        self, accumulator: tuple[float, int, float, float], value: float
    ) -> tuple[float, int, float, float]:
        return (
            accumulator[0] + value,
            accumulator[1] + 1,
            min(accumulator[2], value),
            max(accumulator[3], value),
        )

    def merge_accumulators(
        self, accumulators: Iterable[tuple[float, int, float, float]]
    ) -> tuple[float, int, float, float]:
        sums, counts, mins, maxs = zip(*accumulators, strict=True)
        return sum(sums), sum(counts), min(mins), max(maxs)

    def extract_output(self, accumulator: tuple[float, int, float, float]) -> tuple[float, int, float, float]:
        return accumulator


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, nargs="+", default=[3_000_000])
    parser.add_argument("--series", type=int, nargs="+", default=[400])
    parser.add_argument("--naive", type=int, default=200_000)
    parser.add_argument("--row_span", choices=["1h", "1d"], default="1d")
    parser.add_argument("--metrics", type=int, nargs="+", default=[])
    parser.add_argument("--memory", action="store_true", help="only the peaks")
    if sys.argv[1:2] == ["stored"]:
        stored(sys.argv[2:])
        return 0
    if sys.argv[1:2] == ["measured"]:  # one rollup, in a process of its own
        arguments = [argument for argument in sys.argv[2:] if argument != "--no_write"]
        measured(arguments, "--no_write" not in sys.argv)
        return 0
    options = parser.parse_args()
    report = []
    with tempfile.TemporaryDirectory() as name, Emulator() as emulator, emulator.environment():
        for figure in figures(options, Path(name)):
            report.append(figure)
            print(json.dumps(figure), file=sys.stderr, flush=True)
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    sys.exit(main())
