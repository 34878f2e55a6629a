"""`make demo-streaming`: a generator, Pub/Sub and Bigtable on this machine, and the stream between them.

Shows what is stored as it grows, with late points, duplicates, corrections and poison on the way, and
proves at the end that nothing is lost and nothing is there twice. Stops by itself; what it makes is in
.demo/streaming/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from google.pubsub_v1 import PublisherClient

from timebeam.pipelines.local.emulator import Emulator, EmulatorError
from timebeam.pipelines.local.pubsub import publisher, pubsub_emulator, subscriber
from timebeam.schema.core.selection import Selected, Selection
from timebeam.schema.stores import make_store
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import TableReader

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".demo" / "streaming"
TOPIC = "projects/local-demo/topics/points"
SUBSCRIPTION = "projects/local-demo/subscriptions/points"
LAYOUT = ["--layout", "opentsdb"]
_BAR = 40


def command(*arguments: str) -> list[str]:
    """A timebeam command, which is also shown."""
    print("\n$ timebeam " + " ".join(arguments), flush=True)
    return [sys.executable, "-m", "timebeam", *arguments]


def stored() -> dict[tuple[str, str, int], str]:
    """Every point in the tables: the value by (metric, tags, time in ms), as text."""
    points = {}
    layout = make_store("opentsdb", {})
    everything = Selection(None, {}, 0, 1 << 41)
    for selected in layout.select(everything, TableReader(Target("local", "local"))):
        if isinstance(selected, Selected):
            for series, time_ms, value in layout.decode_rows([selected]).batch.points():
                tags = " ".join(f"{key}={tag}" for key, tag in series.tags)
                points[series.metric, tags, time_ms] = str(value)
    return points


def expected() -> dict[tuple[str, str, int], str]:
    """What the generator says that a perfect pipeline stores."""
    lines = (FOLDER / "expected.csv").read_text().splitlines()[1:]
    cells = (line.split(",") for line in lines)
    return {(metric, tags, int(time_ms)): value for metric, tags, time_ms, value in cells}


def watch(sending: subprocess.Popen[bytes], points: int, seconds: float) -> None:
    """Shows how many points are stored, until all are or nothing comes any more."""
    began, last, since = time.monotonic(), -1, time.monotonic()
    while True:
        time.sleep(1.0)
        now = len(stored())
        filled = min(_BAR, now * _BAR // points)
        bar = "#" * filled + "." * (_BAR - filled)
        print(f"  {time.monotonic() - began:4.0f} s  [{bar}] {now:>9,} points stored", flush=True)
        if now != last:
            last, since = now, time.monotonic()
        if sending.poll() is not None and (now >= points or time.monotonic() - since > seconds):
            return


def run(points: int, rate: int) -> int:
    """The whole demonstration, with both emulators running."""
    topics: PublisherClient = publisher()
    topics.create_topic(name=TOPIC)
    subscriber().create_subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=10)
    subprocess.run(command("tables", "create", *LAYOUT), cwd=ROOT, check=True)
    ingest = [*LAYOUT, "--format", "opentsdb-json", "--input-subscription", SUBSCRIPTION]
    ingest += [
        "--auto-create-metrics",
        "--bigtable-writer",
        "direct",
        "--dead-letters",
        ".demo/streaming/dead",
    ]
    with subprocess.Popen(command("ingest", *ingest), cwd=ROOT) as streaming:
        load = ["--points", str(points), "--rate", str(rate), "--late", "0.01", "--duplicates", "0.01"]
        load += ["--corrections", "0.01", "--poison", "0.001", "--expect", ".demo/streaming/expected.csv"]
        with subprocess.Popen(command("generate", "--topic", TOPIC, *load), cwd=ROOT) as sending:
            try:
                watch(sending, points, 15)
            finally:
                sending.terminate()
                streaming.send_signal(signal.SIGTERM)
        streaming.wait()
    query = ["sys.cpu.user0", *LAYOUT, "--start", "2026-01-01", "--end", "2026-01-02"]
    query += ["--tag", "host=web000|web001|web003", "--group-by", "host"]
    picture = [*query, "--downsample", "1m-avg", "--output", ".demo/streaming/cpu.png"]
    subprocess.run(command("query", *picture), cwd=ROOT, check=True)
    missing = expected().items() - stored().items()
    surplus = stored().items() - expected().items()
    count = len(expected())
    print(f"\nOf {count:,} points expected, {len(missing):,} are missing and {len(surplus):,} are wrong.")
    print("Look at .demo/streaming/cpu.png and at the dead letters beside it.")
    return 1 if missing or surplus else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demonstration in fresh emulators; exit code 1 if a step fails or a point is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=60_000)
    parser.add_argument("--rate", type=int, default=5_000, help="points per second")
    options = parser.parse_args(argv)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        with pubsub_emulator() as host, Emulator() as bigtable, bigtable.environment():
            print(f"Pub/Sub at {host} and Bigtable at {bigtable.host}: they go when this program ends.")
            return run(options.points, options.rate)
    except KeyboardInterrupt:
        print("\nstopped; the emulators are gone", file=sys.stderr)
        return 130
    except EmulatorError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"demo: the command above ended with exit code {error.returncode}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    sys.exit(main())
