"""Streams into an emulator of Bigtable: messages of 1, 10 and 1,000 points, beside a pipeline by the book.

    python -m benchmarks.streaming --points 100000
    python -m benchmarks.streaming --pairs 5 --baseline ../older-checkout    # about three minutes

| case | what is timed |
|---|---|
| memory | parse → pack → write of messages that are in memory, in runs of 50,000, both packings |
| pubsub | `timebeam ingest` from the emulator of Pub/Sub, until all is acknowledged; needs the gcloud SDK |
| pull alone | the same messages pulled and acknowledged as `timebeam ingest` does, and thrown away |
| naive memory | json.loads, one DirectRow per point, WriteToBigTable: Beam's documentation put together |
| share of the files | processor time of `timebeam ingest` of a file over that of a stream; with `--pairs` |
| times the baseline | points per processor second, in pairs with the checkout that `--baseline` names |
| naive pubsub | the same behind ReadFromPubSub on the DirectRunner, until all is stored |

With `--pairs` the start is taken off: the time of a run with one point of each series, which builds the graph
and assigns the UIDs, of files and streams alike. No turn begins after 150 s.

Each case counts what is stored afterwards; a wrong count ends the program with exit code 1.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from benchmarks import bench, naive
from benchmarks.bench import TARGET
from benchmarks.checkouts import Commands, Streams
from timebeam.pipelines.ingest.ingest_jobs import IngestGraph
from timebeam.pipelines.jobs.job import write_dead_letters
from timebeam.pipelines.local import pubsub
from timebeam.pipelines.local.generate import Generator, Load, publish
from timebeam.pipelines.local.micro_batches import Repeated, TakeBatch
from timebeam.pipelines.local.pubsub import publisher, subscriber
from timebeam.pipelines.local.subscription import Subscription
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.selection import Selected, Selection
from timebeam.schema.formats import Message
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.flow.steps import register_coders
from timebeam.transforms.ingest.points_graph import Flow
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.input.parse import pubsub_message
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.read.table_reader import TableReader

PROJECT = "projects/local-bench"
SIZES = (1, 10, 1000)
_RUN_MESSAGES = 50_000
_NAIVE_PUBSUB_MESSAGES = 2_000
_FILE_POINTS = 1_000_000  # at least: the start of the command is subtracted
_PAIR_SECONDS = 150
_BACKLOG = 50_000
"""Messages that wait in the emulator of Pub/Sub: with 200,000 each of its pulls takes 30 ms, not 5."""


def lines_of(points: int) -> list[str]:
    """Lines of JSON, without their newlines."""
    return [line.rstrip("\n") for tick in Generator(Load(points)).ticks() for line in tick]


def messages_of(lines: Sequence[str], each: int, per_ms: int = 10) -> list[Message]:
    """Messages of so many lines, `per_ms` of them published in each ms."""
    payloads = ["\n".join(lines[first : first + each]).encode() for first in range(0, len(lines), each)]
    now_ms = int(time.time() * 1000)
    return [
        pubsub_message(payload, str(n), now_ms + n // per_ms, {}, "memory")
        for n, payload in enumerate(payloads)
    ]


def layout_of(name: str) -> OpenTsdb:
    """A layout with new tables."""
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"{name}-"))
    for _ in create_tables(TARGET, layout.tables(), dry_run=False):
        pass
    return layout


def check(name: str, layout: OpenTsdb, points: int) -> None:
    """Ends the program unless so many points are stored."""
    selected = layout.select(Selection(None, {}, 0, 1 << 41), TableReader(TARGET))
    count = sum(len(layout.decode_rows([pair]).batch) for pair in selected if isinstance(pair, Selected))
    if count != points:
        raise bench.BenchmarkError(f"{name}: {points} points were sent, and {count} are stored")


def in_memory(lines: Sequence[str], each: int, packing: Packing, per_ms: int = 10) -> tuple[float, float]:
    """(seconds, those of the processor) for messages that are in memory."""
    layout = layout_of(uuid.uuid4().hex[:8])
    uids = UidOptions(UidPolicy(auto_create_metrics=True))
    with tempfile.TemporaryDirectory() as folder:
        points = IngestGraph(
            layout, packing, TARGET, "direct", uids, format_name="opentsdb-json", format_options={}
        )
        memory = points.hold(portions=False)
        register_coders()

        def build(root: beam.Pipeline, read: TakeBatch) -> None:
            rejected = points.from_messages(root, read, Flow(endless=True, one_bundle=True))
            write_dead_letters(rejected, f"{folder}/dead", None)

        graph = Repeated(build)
        messages = messages_of(lines, each, per_ms)
        started, worked = time.perf_counter(), time.process_time()
        for first in range(0, len(messages), _RUN_MESSAGES):
            graph.run(messages[first : first + _RUN_MESSAGES])
        seconds, cpu = time.perf_counter() - started, time.process_time() - worked
        del memory
    check("memory", layout, len(lines))
    return seconds, cpu


def naive_in_memory(lines: Sequence[str], each: int) -> float:
    """Seconds of the pipeline by the book for the same messages."""
    table = f"naive-{uuid.uuid4().hex[:8]}"
    naive.create_table(table)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(lines))
        file.flush()
        uids = naive.assign_uids(Path(file.name), naive.from_json)
    arrival = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    payloads = [message.text for message in messages_of(lines, each)]
    started = time.perf_counter()
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
        _by_the_book(pipeline | beam.Create(payloads), table, uids, arrival)
    seconds = time.perf_counter() - started
    if naive.count_cells(table) != len(lines):
        raise bench.BenchmarkError("naive memory: not all points are stored")
    return seconds


def _by_the_book(
    payloads: beam.PCollection[bytes], table: str, uids: naive.Uids, arrival: datetime.datetime
) -> None:
    (
        payloads
        | "Lines" >> beam.FlatMap(lambda payload: payload.decode().splitlines())
        | "Parse" >> beam.Map(naive.from_json)
        | "ToRow" >> beam.Map(naive.to_row, uids, arrival)
        | "Write" >> WriteToBigTable(naive.PROJECT, naive.INSTANCE, table)
    )


def waiting(name: str, points: int, each: int) -> str:
    """A new subscription with messages of so many points each."""
    topic, subscription = f"{PROJECT}/topics/{name}", f"{PROJECT}/subscriptions/{name}"
    publisher().create_topic(name=topic)
    subscriber().create_subscription(name=subscription, topic=topic, ack_deadline_seconds=60)
    publish(Generator(Load(points, series=1000)).ticks(), topic, each, None)
    return subscription


def pull_alone(points: int, each: int) -> float:
    """Seconds of pulling and acknowledging such messages."""
    subscription = Subscription(waiting("p" + uuid.uuid4().hex[:8], points, each), 150_000, 256 << 20)
    remaining, started = -(-points // each), time.perf_counter()
    subscription.start()
    try:
        while remaining > 0:
            batch = subscription.take(_RUN_MESSAGES, 64 << 20, 1.0)
            subscription.acknowledge(batch)
            remaining -= sum(len(pulled.messages) for pulled in batch)
        return time.perf_counter() - started
    finally:
        subscription.close()


def from_pubsub(points: int, each: int) -> float:
    """Seconds of `timebeam ingest` for messages that wait in the emulator of Pub/Sub."""
    name = "b" + uuid.uuid4().hex[:8]
    layout = layout_of(name)
    subscription = waiting(name, points, each)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "timebeam",
            "ingest",
            "--layout=opentsdb",
            "--format=opentsdb-json",
        ]
        command += [f"--table-prefix={name}-", "--auto-create-metrics", "--bigtable-writer=direct"]
        command += [f"--input-subscription={subscription}", "--stop-when-idle=1", "--summary=json"]
        command += [f"--dead-letters={folder}/dead"]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    check("pubsub", layout, points)
    return float(json.loads(ran.stdout)["seconds"])


def naive_from_pubsub(points: int) -> float:
    """Seconds of the pipeline by the book on the DirectRunner, until all of its messages are stored."""
    name = "n" + uuid.uuid4().hex[:8]
    topic, subscription = f"{PROJECT}/topics/{name}", f"{PROJECT}/subscriptions/{name}"
    publisher().create_topic(name=topic)
    subscriber().create_subscription(name=subscription, topic=topic, ack_deadline_seconds=60)
    publish(Generator(Load(points)).ticks(), topic, 1, None)
    naive.create_table(name)
    program = [
        sys.executable,
        "-m",
        "benchmarks.streaming",
        "naive_pubsub",
        subscription,
        name,
        str(points),
    ]
    process = subprocess.Popen(program, stderr=subprocess.DEVNULL)
    started = time.perf_counter()
    try:
        while naive.count_cells(name) < points:
            if process.poll() is not None or time.perf_counter() - started > 600:
                raise bench.BenchmarkError("naive pubsub: ended before all was stored")
            time.sleep(0.2)
        return time.perf_counter() - started
    finally:
        process.kill()
        process.wait()


def run_naive_pubsub(subscription: str, table: str, points: int) -> None:
    """The pipeline of Beam's documentation, until stopped."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(lines_of(points)))
        file.flush()
        uids = naive.assign_uids(Path(file.name), naive.from_json)
    arrival = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    with beam.Pipeline(
        options=PipelineOptions(["--streaming", "--runner=BundleBasedDirectRunner"])
    ) as pipeline:
        _by_the_book(pipeline | beam.io.ReadFromPubSub(subscription=subscription), table, uids, arrival)


def in_pairs(folder: Path, points: int, pairs: int, baseline: str) -> bench.Cases:
    """Processor time from memory, beside files and another checkout; each without its start."""
    cases: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        commands, streams = Commands(bench.ROOT, stack), {"": Streams(bench.ROOT, stack)}
        if baseline:
            streams["baseline, "] = Streams(Path(baseline).resolve(), stack)
        many = max(points, _FILE_POINTS)
        small, path = (folder / f"lines-{count}" for count in (Load.series, many))
        small.write_text("\n".join(lines_of(Load.series)))
        path.write_text("\n".join(lines_of(many)))
        from_file(commands, small)
        for stream in streams.values():
            stream.run(Load.series, 1, Packing.COMPACTED.value)  # imports
        last_turn = time.perf_counter() + _PAIR_SECONDS
        for turn in range(pairs):
            if time.perf_counter() > last_turn:
                break
            file = _Cost.of(many, lambda count: from_file(commands, small if count < many else path))
            _add(cases, "files", file.figures())
            for each, packing in itertools.product(SIZES, (Packing.POINTS.value, Packing.COMPACTED.value)):
                # A message of one point takes ten times as long as one of ten for each point.
                count = points if each > 1 else min(points, _RUN_MESSAGES)
                costs = {name: _Cost.of(count, stream.run, each, packing) for name, stream in streams.items()}
                figures = {}
                if baseline:
                    figures["times the baseline, CPU"] = costs["baseline, "].point / costs[""].point
                for name, cost in costs.items():
                    figures |= cost.figures(name)
                _add(cases, f"{each:,} points a message, `{packing}`", figures)
            each = SIZES[-1]
            for case, per_ms in (("ten share", 10), ("all share", many)):
                cost = _Cost.of(many, streams[""].run, each, packing, per_ms)
                figures = {
                    "share of the files, CPU": file.point / cost.point,
                    "share of the files with starts, CPU": file.of_points(many) / cost.of_points(many),
                }
                name = f"{each:,} points a message, `{packing}`, {case} a publish time"
                _add(cases, name, figures | cost.figures())
            bench.log(f"turn {turn + 1} of {pairs}")
    return cases


class _Cost(NamedTuple):
    """Processor time in s: of the start, with one point of each series, and of each point after it."""

    start: float
    point: float

    @classmethod
    def of(cls, points: int, run: Callable[..., float], *arguments: object) -> _Cost:
        """The cost of so many points; `run` takes their number and the arguments, and returns s."""
        start = run(Load.series, *arguments)
        return cls(start, (run(points, *arguments) - start) / (points - Load.series))

    def of_points(self, points: int) -> float:
        """Processor time of a run."""
        return self.start + self.point * (points - Load.series)

    def figures(self, name: str = "") -> dict[str, float]:
        """As figures of a case."""
        return {f"{name}CPU s/M points": self.point * 1e6, f"{name}CPU s, start": self.start}


def _add(cases: dict[str, dict[str, list[float]]], case: str, figures: Mapping[str, float]) -> None:
    """Adds the figures of a turn."""
    for name, value in figures.items():
        cases.setdefault(case, {}).setdefault(name, []).append(value)


def from_file(commands: Commands, path: Path) -> float:
    """Processor seconds of `timebeam ingest` of a file of JSON with the direct writer."""
    layout = layout_of(uuid.uuid4().hex[:8])
    where = [f"--project={TARGET.project}", f"--instance={TARGET.instance}", f"--layout={layout.name}"]
    where += [f"--table-prefix={layout.options.table_prefix}", "--auto-create-metrics", "--quiet"]
    where += ["--format=opentsdb-json", f"--input={path}", "--bigtable-writer=direct"]
    cpu = commands.run(["ingest", *where]).cpu
    check("file", layout, path.read_bytes().count(b"\n") + 1)
    return cpu


def measure(
    folder: Path, *, points: int = 200_000, naive_points: int = 20_000, pairs: int = 0, baseline: str = ""
) -> bench.Cases:
    """A case for each number of points a message; without Pub/Sub's emulator, only from memory.

    Args:
      pairs: turns of the streams from memory beside files and the baseline; nothing else then runs.
      baseline: folder of another checkout.
    """
    if pairs:
        return in_pairs(folder, points, pairs, baseline)
    lines, few = lines_of(points), lines_of(naive_points)
    cases: dict[str, bench.Figures] = {}
    for each in SIZES:
        figures = {"naive, memory": naive_points / naive_in_memory(few, each)}
        cpu = {}
        for packing in (Packing.POINTS, Packing.COMPACTED):
            seconds, worked = in_memory(lines, each, packing)
            figures[f"`{packing.value}`, memory"] = points / seconds
            cpu[f"CPU s/M points, `{packing.value}`"] = worked / points * 1e6
        if pubsub.find():
            backlog = min(points, _BACKLOG * each)
            figures["pull alone"] = backlog / pull_alone(backlog, each)
            figures["Pub/Sub"] = backlog / from_pubsub(backlog, each)
            if each == 1:
                figures["naive, Pub/Sub"] = _NAIVE_PUBSUB_MESSAGES / naive_from_pubsub(_NAIVE_PUBSUB_MESSAGES)
        ratios = {
            f"times as fast as naive, {name}": figures[name] / figures[baseline]
            for name, baseline in (
                ("`points`, memory", "naive, memory"),
                ("`compacted`, memory", "naive, memory"),
                ("Pub/Sub", "naive, Pub/Sub"),
            )
            if baseline in figures
        }
        if "Pub/Sub" in figures:
            ratios["share of the pull alone, Pub/Sub"] = figures["Pub/Sub"] / figures["pull alone"]
        speeds = {f"{name}, points/s": value for name, value in figures.items()}
        cases[f"{each:,} points a message"] = {
            name: [value] for name, value in (ratios | speeds | cpu).items()
        }
        bench.log(f"{each} points a message")
    return cases


if __name__ == "__main__":
    if sys.argv[1:2] == ["naive_pubsub"]:
        run_naive_pubsub(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(bench.main(measure))
