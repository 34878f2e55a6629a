"""A local stream for a long time at a steady rate: memory, threads, files and delays, minute by minute.

    python -m benchmarks.soak --minutes 15 --rate 2000

Starts emulators of Pub/Sub and Bigtable, the generator and `timebeam ingest`, and looks at the ingest from
outside. Exit code 1 if its memory grows by more than a tenth after the third minute, if threads or files
grow, or if a point is missing at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from timebeam.pipelines.local.emulator import Emulator
from timebeam.pipelines.local.pubsub import publisher, pubsub_emulator, subscriber
from timebeam.schema.core.selection import Selected, Selection
from timebeam.schema.stores import make_store
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import TableReader

TOPIC = "projects/local-soak/topics/points"
SUBSCRIPTION = "projects/local-soak/subscriptions/points"
_WARM_MINUTES = 3
_GROWTH = 1.10


class Sample(NamedTuple):
    """The ingest's process at one moment."""

    rss_mb: float
    threads: int
    files: int


def sample(pid: int) -> Sample:
    """From /proc."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024
    threads = int(re.findall(r"Threads:\s+(\d+)", status)[0])
    return Sample(rss, threads, len(os.listdir(f"/proc/{pid}/fd")))


def stored_points() -> int:
    """How many points the tables hold."""
    layout = make_store("opentsdb", {})
    selected = layout.select(Selection(None, {}, 0, 1 << 41), TableReader(Target("local", "local")))
    return sum(len(layout.decode_rows([pair]).batch) for pair in selected if isinstance(pair, Selected))


def run(minutes: int, rate: int, packing: str, folder: Path) -> int:
    """The whole soak; the exit code."""
    publisher().create_topic(name=TOPIC)
    subscriber().create_subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=10)
    program = [sys.executable, "-m", "timebeam"]
    subprocess.run([*program, "tables", "create", "--layout=opentsdb"], check=True, stdout=subprocess.DEVNULL)
    log = folder / "stderr"
    with log.open("wb") as stderr:
        ingest = subprocess.Popen(
            [
                *(*program, "ingest", "--layout=opentsdb", "--format=opentsdb-json", "--auto-create-metrics"),
                *("--bigtable-writer=direct", f"--input-subscription={SUBSCRIPTION}", f"--packing={packing}"),
                *("--flush-seconds=5", f"--dead-letters={folder / 'dead'}"),
            ],
            stderr=stderr,
        )
    points = minutes * 60 * rate
    sending = subprocess.Popen(
        [
            *(*program, "generate", f"--topic={TOPIC}", f"--points={points}", f"--rate={rate}"),
            *("--series=1000", "--poison=0.0001"),
        ],
        stderr=subprocess.DEVNULL,
    )
    samples: list[Sample] = []
    print("minute   RSS MB  threads  files  messages/s  delay p50 ms  p99 ms", flush=True)
    try:
        for minute in range(1, minutes + 1):
            time.sleep(60)
            samples.append(sample(ingest.pid))
            reports = re.findall(r"([\d,]+) messages/s.*p50 ([\d,]+) ms p99 ([\d,]+) ms", log.read_text())
            latest = [[int(text.replace(",", "")) for text in report] for report in reports[-12:]]
            speed, p50, p99 = (sum(report[i] for report in latest) / max(1, len(latest)) for i in range(3))
            rss, threads, files = samples[-1]
            figures = f"{rss:8.0f} {threads:8} {files:6} {speed:11,.0f} {p50:13,.0f} {p99:7,.0f}"
            print(f"{minute:6} {figures}", flush=True)
        sending.wait(120)
        time.sleep(15)
    finally:
        sending.kill()
        ingest.send_signal(signal.SIGTERM)
        ingest.wait(120)
    warm = samples[min(_WARM_MINUTES, len(samples)) - 1]
    last = samples[-1]
    stored = stored_points()
    print(f"points sent {points:,}, stored {stored:,}; RSS {warm.rss_mb:.0f} -> {last.rss_mb:.0f} MB")
    leaks = last.rss_mb > warm.rss_mb * _GROWTH or last.threads > warm.threads or last.files > warm.files
    return 1 if leaks or stored != points else 0


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=int, default=15)
    parser.add_argument("--rate", type=int, default=2000, help="messages of one point per second")
    parser.add_argument("--packing", default="points")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory() as folder,
        pubsub_emulator(),
        Emulator() as emulator,
        emulator.environment(),
    ):
        return run(options.minutes, options.rate, options.packing, Path(folder))


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    sys.exit(main())
