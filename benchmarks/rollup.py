"""Rollups of packed rows, beside a bare scan of the same rows and a pipeline with an element for each point.

    python -m benchmarks.rollup --points 30000000 --row_span 1h
    python -m benchmarks.rollup --points 3000000 --series 400 4000 20000 --metrics 200 2000

Loads an emulator with points of so many series, a second apart, packed; or with so many metrics, each with
two series and a point every five minutes of a day. Rows of 1m hold `--row_span`.

| figure | is |
|---|---|
| `scan` | reading the raw rows with the reader of the rollup, in one process, and nothing else |
| `rollup` | `timebeam rollup` of 1m, 1h, 1d and two pre-aggregates, from read to write; its own clock |
| `again` | a second time, when everything stands there already |
| `no write` | the same without the write: what is left is ours, the rest is the emulator taking cells |
| `empty` | the same of a day without points: what Beam and the graph take to start and end |
| `kernel` | processor seconds of decoding and accumulating the rows from memory, without Beam and cells |
| `writes alone` | sending requests, made before, of those cells that need no shuffle: the emulator's share |
| `peak` | memory of the rollup's process |
| `naive` | a pipeline with an element for each point, which makes 1h alone, of `--naive_points` points |
| `CPU s/M points` | processor seconds of the rollup for a million points, without its imports |
| `changed` | processor seconds of `timebeam rollup --changed`, with imports, of a late point in each day |
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.utils.windowed_value import WindowedValue
from google.cloud.bigtable.data import ReadRowsQuery
from google.cloud.bigtable.data.row_filters import CellsColumnLimitFilter

from benchmarks import bench
from benchmarks.bench import TARGET, open_table, run_child
from benchmarks.generate import write
from timebeam.pipelines.beam_patches import cached
from timebeam.pipelines.beam_patches.cached import CachedOptions
from timebeam.pipelines.commands import call, find_command, named, places
from timebeam.pipelines.jobs.job import write_dead_letters
from timebeam.pipelines.jobs.run import run_with_progress
from timebeam.pipelines.local.generate import Load
from timebeam.pipelines.output.progress_and_summary import PointsSummary
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rows import EncodedRow, Row
from timebeam.schema.core.selection import Selected, Selection
from timebeam.schema.rollup.accumulate import Accumulator
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.select import select_metrics
from timebeam.transforms.bigtable.beam_steps import BUFFER_BYTES
from timebeam.transforms.bigtable.mutation_bytes import request_bytes
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE
from timebeam.transforms.flow.steps import give_back_memory, register_coders
from timebeam.transforms.read.table_reader import TableReader, scan_table
from timebeam.transforms.rollup.read_chunk import NumberedChunk, NumberReader
from timebeam.transforms.rollup.rollup_graph import add_rollup
from timebeam.transforms.rollup.rollup_job import RollupJob
from timebeam.transforms.rollup.rollups_in_tables import TablesEncoder

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
    "timebeam": {
        "preAggregates": [
            {"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum"]},
            {"metrics": ["*"], "keepTags": ["cpu"], "aggregators": ["max"]},
        ]
    },
}


def configure(folder: Path, row_span: str) -> None:
    """Writes the configuration, with so much in a row of 1m."""
    text = json.dumps(_CONFIG).replace('"1m", "rowSpan": "1d"', f'"1m", "rowSpan": "{row_span}"')
    (folder / "rollups.json").write_text(text)


def create(prefix: str, folder: Path) -> None:
    """Creates the tables."""
    place = ["--layout=opentsdb", f"--table-prefix={prefix}"]
    run_child(["-m", "timebeam", "tables", "create", *place, f"--rollup-config={folder / 'rollups.json'}"])


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


def ingest(path: Path, kind: str, prefix: str, *flags: str) -> None:
    """Stores the points of a file, and deletes it."""
    command = ["ingest", "--layout=opentsdb", f"--table-prefix={prefix}", f"--format={kind}"]
    command += [f"--input={path}", f"--dead-letters={path.parent / 'dead'}"]
    run_child(["-m", "timebeam", *command, "--auto-create-metrics", "--bigtable-writer=direct", *flags])
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
    for row in open_table(f"{prefix}tsdb").read_rows_stream(query):
        assert row.row_key
    return time.perf_counter() - started


def rolled_up(
    seconds: int, prefix: str, folder: Path, label: str = "measured", start: int = START
) -> dict[str, float]:
    """The figures of one rollup, in a process of its own, of points of so many seconds."""
    end = start + seconds + 86_400
    command = ["-m", "benchmarks.rollup", label, "--layout=opentsdb", f"--table-prefix={prefix}"]
    command += [f"--rollup-config={folder / 'rollups.json'}", "--summary=json", f"--start={start}"]
    child = run_child([*command, f"--end={end - end % 86_400}", f"--dead-letters={folder / 'dead'}"])
    return dict(json.loads(child.output))


def stored(arguments: list[str]) -> None:
    """Makes the requests with the cells of a rollup, then sends them, and prints how long that took.

    They go to tables of another prefix, `stored-` before that of the rollup.
    """
    options, job = _job(arguments)
    requests, rows, cells = [], list[EncodedRow](), 0
    prefix = f"stored-{options.table_prefix}"
    encoder = TablesEncoder(job)
    reads = encoder.accumulate()
    reads.setup()
    reads.start_bundle()
    for chunk in encoder.chunks():
        if isinstance(chunk, NumberedChunk):
            rows += [row for row in reads.process(chunk) if isinstance(row, EncodedRow)]
    last = [row for row in reads.finish_bundle() if isinstance(row, WindowedValue)]
    rows += [row.value for row in last]
    reads.teardown()
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
    command = find_command("rollup")
    options = command.parse(arguments)[0]
    return options, call(named(command.job), options, **places(command, options)).work


def measured(arguments: list[str], write_cells: bool) -> None:
    """Runs a rollup in this process and prints its figures."""
    options, job = _job(arguments)
    gc.freeze()  # as `timebeam` does after its imports, and:
    cached.remember_signatures()
    started, worked = time.perf_counter(), time.process_time()
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=CachedOptions())
    register_coders()
    once = pipeline | "Once" >> beam.Create([None], reshuffle=False)
    rejected = add_rollup(once, TablesEncoder(job), write=write_cells)
    write_dead_letters(rejected, options.dead_letters, 0)
    result = run_with_progress(pipeline)
    summary = PointsSummary.of(result, time.perf_counter() - started, False, options.dead_letters)
    printed = {
        "seconds": summary.seconds,
        "cpu": time.process_time() - worked,
        "points": summary.points_read,
        "cells": summary.cells,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(printed))


def kernel(arguments: list[str]) -> None:
    """Decodes and accumulates the rows of a rollup, read before, and prints how long that took."""
    job = _job(arguments)[1]
    reader = TableReader(job.target)
    (plan,) = (part.plan for part in job.parts)
    metrics = sorted(job.layout.metric_uids(reader).values())
    rows = [
        list(select_metrics(job.layout, [metric], (plan.start_ms, plan.end_ms - 1), reader))
        for metric in metrics
    ]
    lengths = {interval.interval.seconds for interval in plan.intervals}
    gc.freeze()
    give_back_memory()
    started = time.process_time()
    for metric_rows in rows:
        accumulator = Accumulator(lengths, ends=job.config.has_ends)
        read = functools.partial(iter, metric_rows)
        for batch in NumberReader(job.layout, read, (plan.start_ms, plan.end_ms)):
            assert isinstance(batch, PointBatch)
            accumulator.add(batch)
            if accumulator.is_full:
                accumulator.take()
        accumulated = accumulator.take()
        if accumulated is not None:
            accumulated.by_length()
    print(json.dumps({"seconds": time.process_time() - started}))


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
            count += len(layout.decode_rows([selected]).batch)

    def points_of(number: int) -> Iterator[tuple[tuple[str, int], float]]:
        decoded = layout.decode_rows([Selected(rows[number], series[number])])
        for point_series, time_ms, value in decoded.batch.points():
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


def figures(seconds: int, prefix: str, folder: Path, naive_points: int) -> dict[str, float]:
    """The figures of a table with points of so many seconds. `naive_points` is 0 for none of `naive`."""
    scan_s, rows = min(scan(prefix) for _ in range(3))
    client_s = min(client_scan(prefix) for _ in range(2))
    bare = rolled_up(seconds, prefix, folder, "no_write")
    empty = rolled_up(0, prefix, folder, "no_write", START - 40 * 86_400)
    in_memory = rolled_up(seconds, prefix, folder, "kernel")
    create(f"stored-{prefix}", folder)
    store = rolled_up(seconds, prefix, folder, "stored")  # before the cells are there and none is written
    first, second = rolled_up(seconds, prefix, folder), rolled_up(seconds, prefix, folder)
    points = first["points"]
    turn = {
        "times a bare scan": first["seconds"] / scan_s,
        "times a bare scan, no write": bare["seconds"] / scan_s,
        "times the writes alone": first["seconds"] / store["seconds"],
        "times the first run, again": second["seconds"] / first["seconds"],
        "points": points,
        "rows": rows,
        "cells": first["cells"],
        "scan, s": scan_s,
        "scan by Google's client, s": client_s,
        "rollup, s": first["seconds"],
        "no write, s": bare["seconds"],
        "empty, s": empty["seconds"],
        "kernel, CPU s": in_memory["seconds"],
        "writes alone, s": store["seconds"],
        "again, s": second["seconds"],
        "CPU s/M points": first["cpu"] / points * 1e6,
        "peak, MiB": first["peak_mib"],
    }
    if naive_points:
        turn["times as fast as naive"] = points / first["seconds"] / naive(naive_points, prefix)
    return turn


def changed(days: int, prefix: str, folder: Path) -> float:
    """Processor seconds of `timebeam rollup --changed` after a late point in each of some days."""
    path = folder / f"{prefix}.txt"
    times = range(START, START + days * 86_400, 86_400)
    path.write_text("".join(f"put app.late {time_s} 1 cpu=0 dc=x host=a\n" for time_s in times))
    ingest(path, "opentsdb-text", prefix, "--mark-changed")
    command = ["-m", "timebeam", "rollup", "--layout=opentsdb", f"--table-prefix={prefix}", "--changed"]
    command += [f"--rollup-config={folder / 'rollups.json'}", f"--dead-letters={folder / 'dead'}"]
    return run_child(command).cpu


def measure(
    folder: Path,
    *,
    points: Sequence[int] = (3_000_000,),
    series: Sequence[int] = (400,),
    metrics: Sequence[int] = (0,),
    row_span: str = "1d",
    naive_points: int = 200_000,
    changed_days: int = 20,
) -> bench.Cases:
    """A case for each number of points and of series, for each number of metrics, and for changed days."""
    configure(folder, row_span)
    cases = {}
    for of_points, of_series in itertools.product(points, series):
        prefix = f"b{of_points}-{of_series}-"
        load(of_points, of_series, prefix, folder)
        name = f"{of_points:,} points, {of_series:,} series"
        cases[name] = figures(of_points // of_series, prefix, folder, naive_points)
    for of_metrics in filter(None, metrics):
        load_metrics(of_metrics, f"m{of_metrics}-", folder)
        cases[f"{of_metrics:,} metrics"] = figures(86_000, f"m{of_metrics}-", folder, 0)
    if changed_days:
        create("late-", folder)
        day_s, days_s = (changed(days, "late-", folder) for days in (1, changed_days))
        ratios = {"times one changed day": days_s / day_s, "changed, CPU s": days_s}
        cases[f"{changed_days} changed days"] = ratios
    return {case: {name: [value] for name, value in turn.items()} for case, turn in cases.items()}


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


if __name__ == "__main__":
    if sys.argv[1:2] == ["stored"]:
        stored(sys.argv[2:])
    elif sys.argv[1:2] == ["kernel"]:
        kernel(sys.argv[2:])
    elif sys.argv[1:2] in (["measured"], ["no_write"]):  # one rollup, in a process of its own
        measured(sys.argv[2:], sys.argv[1] == "measured")
    else:
        sys.exit(bench.main(measure))
