"""`timebeam rollup --follow` beside a stream with late points and corrections, and killed now and then.

    python -m benchmarks.follow --minutes 60 --rate 2000

Starts emulators of Pub/Sub and Bigtable, `timebeam ingest` and `timebeam rollup --follow`, which is killed
and started again at random. Asks queries meanwhile, with rollups and without: in each interval that does not
change between two queries of points, the answer through rollups is the same. At the end the rollups are those
that a run of the whole range makes, byte by byte. Exit code 1 if an answer or a byte differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.pubsub_v1.types import PubsubMessage

from timebeam.pipelines.local.emulator import Emulator
from timebeam.pipelines.local.pubsub import publisher, pubsub_emulator, subscriber
from timebeam.pipelines.options.place import read_config
from timebeam.schema.core.rows import Row
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.question import NONE, Question
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.answer_question import evaluate
from timebeam.transforms.read.table_reader import TableReader, scan_table
from timebeam.transforms.rollup.changed_hours import read_days
from timebeam.transforms.rollup.rollup_job import rollup_tables

TOPIC = "projects/local-follow/topics/points"
SUBSCRIPTION = "projects/local-follow/subscriptions/points"
TARGET = Target("local", "local")
HOUR_S, DAY_S = 3600, 86_400
_PAST_S = 30 * HOUR_S
_METRICS, _HOSTS = 5, 20
_POINTS_A_MESSAGE = 50
_DOWNSAMPLINGS = ("5m-max", "1h-sum", "1h-avg", "1d-count")
_CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {"table": "tsdb", "preAggregationTable": "preagg", "interval": "30s", "rowSpan": "1h"}
        | {"defaultInterval": True},
        *(
            {"table": f"rollup-{text}", "preAggregationTable": f"preagg-{text}"}
            | {"interval": text, "rowSpan": span}
            for text, span in (("5m", "1d"), ("1h", "1n"), ("1d", "1y"))
        ),
    ],
}

Answer = dict[tuple[str, int], float]
"""The value by series and start of an interval in ms."""


class Process:
    """A command that runs until it is ended, and may be started again.

    Attributes:
      cpu: processor seconds of all its runs that have ended.
    """

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self._words, self._folder = [sys.executable, "-m", "timebeam", *words], folder
        self.cpu = 0.0
        self.output = folder / f"{words[0]}.out"
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it."""
        with self.output.open("ab") as output, (self._folder / "errors").open("ab") as errors:
            self._running = subprocess.Popen(self._words, stdout=output, stderr=errors)

    def end(self, signal_number: int) -> None:
        """Ends it by a signal."""
        assert self._running is not None
        self._running.send_signal(signal_number)
        _, _, usage = os.wait4(self._running.pid, 0)
        self.cpu += usage.ru_utime + usage.ru_stime


def send(rng: random.Random, count: int) -> None:
    """Publishes points: most of now, a tenth of the last day, of which many correct others."""
    topic, now_s = publisher(), int(time.time())
    points = []
    for _ in range(count):
        age_s = rng.randrange(_PAST_S) if rng.random() < 0.1 else rng.randrange(5)
        time_s = (now_s - age_s) // 10 * 10  # so that late points meet others
        tags = {"host": f"h{rng.randrange(_HOSTS)}"}
        metric, value = f"app.m{rng.randrange(_METRICS)}", rng.randrange(10**6)
        points.append({"metric": metric, "timestamp": time_s, "value": value, "tags": tags})
    for first in range(0, count, _POINTS_A_MESSAGE):
        body = json.dumps(points[first : first + _POINTS_A_MESSAGE]).encode()
        topic.publish(topic=TOPIC, messages=[PubsubMessage(data=body)])


def ask(layout: OpenTsdb, rollups: RollupConfig | None, metric: str, downsampling: str, now_s: int) -> Answer:
    """The answer to a question of all series of a metric."""
    start_ms, end_ms = (now_s - _PAST_S) // DAY_S * DAY_S * 1000, now_s * 1000
    how = Downsampling.parse(downsampling)
    question = Question(metric, {}, (), NONE, how, start_ms, end_ms, None, (), False)
    with_rollups = None if rollups is None else (layout, rollups)
    evaluated = evaluate(TARGET, layout, question, with_rollups, now_s * 1000)
    return {
        (result.tags["host"], time_ms): value
        for result in evaluated.results
        for time_ms, value in zip(result.times_ms.tolist(), result.values.tolist(), strict=True)
    }


def compare(layout: OpenTsdb, rollups: RollupConfig, rng: random.Random) -> tuple[int, int]:
    """(intervals that did not change between two queries of points, how many differ through rollups)."""
    metric, text, now_s = f"app.m{rng.randrange(_METRICS)}", rng.choice(_DOWNSAMPLINGS), int(time.time())
    before = ask(layout, None, metric, text, now_s)
    through = ask(layout, rollups, metric, text, now_s)
    after = ask(layout, None, metric, text, now_s)
    still = [key for key, value in before.items() if after.get(key) == value]
    return len(still), sum(through.get(key) != before[key] for key in still)


def rollup_rows(layout: OpenTsdb, rollups: RollupConfig) -> list[Row]:
    """All rows of all rollup tables."""
    specs = [spec for spec in rollup_tables(rollups, layout) if spec.holds_points]
    return [row for spec in specs for row in scan_table(TARGET, spec.name)]


class StreamFigures(NamedTuple):
    """What was done while points were sent.

    Attributes:
      points: sent.
      compared: intervals, of which `wrong` differ through rollups.
      kills: of the process that rolls up.
    """

    points: int
    compared: int
    wrong: int
    kills: int


def stream_and_kill(
    minutes: float, rate: int, follow: Process, layout: OpenTsdb, rollups: RollupConfig
) -> StreamFigures:
    """Sends points at a rate, asks queries, and kills the process that rolls up now and then."""
    rng = random.Random(1)
    started_s = time.time()
    end_s, next_kill_s = started_s + minutes * 60, started_s + 60
    points = compared = wrong = kills = 0
    while time.time() < end_s:
        while points < (time.time() - started_s) * rate:
            send(rng, _POINTS_A_MESSAGE)
            points += _POINTS_A_MESSAGE
        if points > 20 * rate:
            still, differing = compare(layout, rollups, rng)
            compared, wrong = compared + still, wrong + differing
        if time.time() > next_kill_s:
            follow.end(signal.SIGKILL)
            follow.start()
            next_kill_s, kills = time.time() + rng.uniform(20, 60), kills + 1
        time.sleep(0.2)
    return StreamFigures(points, compared, wrong, kills)


def run(minutes: float, rate: int, folder: Path) -> int:
    """Everything; the exit code."""
    publisher().create_topic(name=TOPIC)
    subscriber().create_subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=10)
    config = folder / "rollups.json"
    config.write_text(json.dumps(_CONFIG))
    layout, rollups = OpenTsdb(OpenTsdbOptions(marked_since="1970-01-01")), read_config(str(config))
    place, letters = ("--layout=opentsdb", f"--rollup-config={config}"), f"--dead-letters={folder / 'dead'}"
    program, marked = [sys.executable, "-m", "timebeam"], "--set=marked_since=1970-01-01"
    # Without the day, so that the run at the end may write a range: each command below has it as an option.
    subprocess.run([*program, "tables", "create", *place], check=True, stdout=subprocess.DEVNULL)
    ingest = Process(
        [
            *("ingest", "--layout=opentsdb", marked, "--format=opentsdb-json", letters),
            *(f"--input-subscription={SUBSCRIPTION}", "--flush-seconds=2", "--packing=points"),
            "--auto-create-metrics",
        ],
        folder,
    )
    follow = Process(
        [
            *("rollup", *place, marked, "--follow", "--summary=json", letters),
            *("--every-seconds=5", "--quiet-seconds=5", "--lease-seconds=20"),
        ],
        folder,
    )
    ingest.start()
    follow.start()
    started_s = time.time()
    stream = stream_and_kill(minutes, rate, follow, layout, rollups)
    time.sleep(15)
    ingest.end(signal.SIGTERM)
    whole_s = int(time.time()) // HOUR_S * HOUR_S
    while any(mark.start_s < whole_s for day in read_days(TableReader(TARGET), layout) for mark in day.hours):
        time.sleep(5)
    follow.end(signal.SIGTERM)
    followed = rollup_rows(layout, rollups)
    start_s = (int(started_s) - _PAST_S) // DAY_S * DAY_S
    scratch = [*program, "rollup", *place, letters, f"--start={start_s}", f"--end={whole_s}"]
    subprocess.run(scratch, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    is_same = rollup_rows(layout, rollups) == followed
    lines = [json.loads(line) for line in follow.output.read_text().splitlines() if line.endswith("}")]
    lags = np.array([line["lag_seconds"] for line in lines])
    print(f"points sent {stream.points:,}; rounds {len(lines):,}, killed {stream.kills:,} times")
    print(f"intervals compared {stream.compared:,}, wrong {stream.wrong:,}")
    print(f"rollup cells {sum(len(row.cells) for row in followed):,}, as from scratch: {is_same}")
    print(f"lag p50 {np.percentile(lags, 50):.1f} s, p99 {np.percentile(lags, 99):.1f} s")
    print(
        f"processor seconds: follow {follow.cpu:.0f}, ingest {ingest.cpu:.0f}: {follow.cpu / ingest.cpu:.2f}"
    )
    return 0 if is_same and stream.compared and followed and not stream.wrong else 1


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=2000, help="points per second")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory() as folder,
        pubsub_emulator(),
        Emulator() as emulator,
        emulator.environment(),
    ):
        return run(options.minutes, options.rate, Path(folder))


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    sys.exit(main())
