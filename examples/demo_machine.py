"""`make demo-machine`: what this machine does right now, through the front door into Bigtable.

Puts CPU, memory and load once a second to `timebeam serve --topic`, which publishes them to Pub/Sub, from
where `timebeam ingest` stores them; then asks for them. Everything runs on this machine at free ports and
ends with this program, also after Ctrl-C or a kill. Charts are in .demo/machine/.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from timebeam.pipelines.local.emulator import Emulator, EmulatorError, child
from timebeam.pipelines.local.pubsub import (
    SubscriptionError,
    call,
    publisher,
    pubsub_emulator,
    subscribe,
    unsubscribe,
)

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".demo" / "machine"
LAYOUT = ["--layout", "opentsdb"]
METRICS = ("sys.cpu.percent", "sys.load", "sys.memory.bytes")
READY_SECONDS = 120.0

Sample = tuple[str, float, dict[str, str]]


def cpu_ticks() -> dict[str, int]:
    """Ticks of all cores since the start of the machine, by mode; {} where there is no /proc."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return {}
    modes = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    return dict(zip(modes, map(int, words), strict=False))


def samples(before: dict[str, int], now: dict[str, int]) -> Iterator[Sample]:
    """Load averages; CPU in percent of the ticks since `before`, and memory in bytes, where Linux tells."""
    for window, load in zip(("1m", "5m", "15m"), os.getloadavg(), strict=True):
        yield "sys.load", round(load, 2), {"window": window}
    ticks = {mode: now[mode] - before[mode] for mode in now}
    total = max(1, sum(ticks.values()))
    for mode, count in ticks.items():
        yield "sys.cpu.percent", round(100 * count / total, 2), {"mode": mode}
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            kind, _, amount = line.partition(":")
            if kind in ("MemTotal", "MemAvailable", "MemFree", "Cached", "Buffers"):
                yield "sys.memory.bytes", int(amount.split()[0]) * 1024, {"kind": kind}


def command(*arguments: str) -> list[str]:
    """A timebeam command, which is also shown."""
    print(f"\n$ timebeam {shlex.join(arguments)}", flush=True)
    return [sys.executable, "-m", "timebeam", *arguments]


def must_run(process: subprocess.Popen[bytes]) -> None:
    """Raises CalledProcessError if a process has ended."""
    code = process.poll()
    if code is not None:
        raise subprocess.CalledProcessError(code, process.args)


def ask(port: int, method: str, path: str, body: object = None) -> Any:
    """The answer of the server, from JSON.

    Raises:
      OSError, http.client.HTTPException: it does not answer, or not with a 2xx.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
    if response.status // 100 != 2:
        raise http.client.HTTPException(f"{path}: {response.status} {text}")
    return json.loads(text)


def wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    """Until the server answers.

    Raises:
      subprocess.CalledProcessError: it has ended.
      OSError, http.client.HTTPException: it does not answer within READY_SECONDS.
    """
    deadline = time.monotonic() + READY_SECONDS
    while True:
        must_run(server)
        try:
            ask(port, "GET", "/api/version")
            return
        except (OSError, http.client.HTTPException):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def send(port: int, seconds: int, stream: subprocess.Popen[bytes]) -> int:
    """Puts the samples of so many seconds; how many points the front door has accepted."""
    host = socket.gethostname()
    accepted, before = 0, cpu_ticks()
    for second in range(1, seconds + 1):
        time.sleep(1)
        must_run(stream)
        now, time_ms = cpu_ticks(), int(time.time() * 1000)
        points = [
            {"metric": metric, "timestamp": time_ms, "value": value, "tags": {"host": host, **tags}}
            for metric, value, tags in samples(before, now)
        ]
        accepted += ask(port, "POST", "/api/put?details", points)["success"]
        before = now
        print(f"  {second:3} s  {accepted:5,} points accepted; load {points[0]['value']}", flush=True)
    return accepted


def show(port: int, accepted: int) -> int:
    """Asks the server how many points are stored, and plots them; 1 if some are missing."""
    queries = "&".join(f"m=none:{metric}" for metric in METRICS)
    results = ask(port, "GET", f"/api/query?start=1h-ago&ms=true&{queries}")
    stored = sum(len(result["dps"]) for result in results)
    since = [*LAYOUT, "--start", "1h-ago"]
    load = ["sys.load", *since, "--group-by", "window", "--downsample", "10s-avg"]
    subprocess.run(command("query", *load), cwd=ROOT, check=True)
    for metric, key in zip(METRICS, ("mode", "window", "kind"), strict=True):
        picture = ["--group-by", key, "--output", f".demo/machine/{metric}.html"]
        subprocess.run(command("query", metric, *since, *picture), cwd=ROOT, check=True)
    print(f"\nOf {accepted:,} points accepted, {stored:,} are stored. Open the charts in a browser.")
    return 0 if stored == accepted else 1


def run(seconds: int) -> int:
    """The whole demonstration, with both emulators running."""
    topic = f"projects/local/topics/machine-{uuid.uuid4().hex}"
    call(lambda: publisher().create_topic(name=topic, timeout=20, retry=None), topic)
    subscription = subscribe(topic)
    with contextlib.ExitStack() as processes:
        processes.callback(unsubscribe, subscription)
        subprocess.run(command("tables", "create", *LAYOUT), cwd=ROOT, check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        serve = command("serve", *LAYOUT, "--topic", topic, "--port", str(port))
        server = processes.enter_context(child(serve, sys.stdout.buffer))
        wait_until_ready(server, port)
        page = "metric=sys.cpu.percent&tags=mode%3D*&aggregator=avg&start=10m-ago"
        print(f"Meanwhile as a chart: http://127.0.0.1:{port}/?{page}")
        ingest = [*LAYOUT, "--format", "opentsdb-json", "--input-subscription", subscription]
        ingest += ["--auto-create-metrics", "--packing", "points", "--stop-when-idle", "10"]
        ingest += ["--dead-letters", ".demo/machine/dead"]
        stream = processes.enter_context(child(command("ingest", *ingest), sys.stdout.buffer))
        accepted = send(port, seconds, stream)
        print("The stream stores the rest, and stops after 10 seconds without work ...", flush=True)
        if stream.wait():
            must_run(stream)
        return show(port, accepted)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demonstration in fresh emulators; exit code 1 if a step fails or a point is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=30, help="how long to send metrics (default: 30)")
    options = parser.parse_args(argv)
    if options.seconds < 1:
        parser.error(f"--seconds {options.seconds} must be 1 or more")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        with pubsub_emulator() as host, Emulator() as bigtable, bigtable.environment():
            print(f"Pub/Sub at {host} and Bigtable at {bigtable.host}: they go when this program ends.")
            return run(options.seconds)
    except KeyboardInterrupt:
        print("\nstopped; the server, the stream and the emulators are gone", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as error:
        print(f"demo: a command above ended with exit code {error.returncode}", file=sys.stderr)
    except (EmulatorError, SubscriptionError, OSError, http.client.HTTPException) as error:
        print(f"demo: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    sys.exit(main())
