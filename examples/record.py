"""Records metrics of the machine it runs on, as the files in examples/metrics were made.

    pip install psutil && python examples/record.py --minutes 30 --step 2 --output examples/metrics

Writes two files: `cpu-memory.json.gz` (format opentsdb-json, seconds) and
`disk-network-process.txt.gz` (format opentsdb-text, milliseconds for processes, else seconds).
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

Sample = tuple[str, int | float, dict[str, str]]


def cpu_and_memory(host: str) -> Iterator[Sample]:
    """Percentages per core and mode, load averages, and memory in bytes."""
    for core, times in enumerate(psutil.cpu_times_percent(percpu=True)):
        for mode in ("user", "system", "idle", "iowait", "steal"):
            yield "sys.cpu.percent", getattr(times, mode), {"host": host, "core": str(core), "mode": mode}
    for window, load in zip(("1m", "5m", "15m"), psutil.getloadavg(), strict=True):
        yield "sys.load", round(load, 2), {"host": host, "window": window}
    memory = psutil.virtual_memory()
    for kind in ("used", "free", "cached", "buffers", "available"):
        yield "sys.memory.bytes", getattr(memory, kind), {"host": host, "kind": kind}
    yield "sys.memory.percent", memory.percent, {"host": host, "kind": "used"}


def disk_and_network(host: str) -> Iterator[Sample]:
    """Counters of the busiest disk and of each interface, in bytes and operations."""
    disks = psutil.disk_io_counters(perdisk=True)
    name, disk = max(disks.items(), key=lambda item: item[1].write_bytes)
    for direction in ("read", "write"):
        tags = {"host": host, "disk": name, "direction": direction}
        yield "sys.disk.bytes", getattr(disk, f"{direction}_bytes"), tags
        yield "sys.disk.operations", getattr(disk, f"{direction}_count"), tags
        yield "sys.disk.milliseconds", getattr(disk, f"{direction}_time"), tags
    by_bytes = sorted(psutil.net_io_counters(pernic=True).items(), key=lambda item: -item[1].bytes_recv)
    for interface, counters in by_bytes[:1] + [item for item in by_bytes[1:] if item[0] == "lo"]:
        for direction, suffix in (("in", "recv"), ("out", "sent")):
            tags = {"host": host, "interface": interface, "direction": direction}
            yield "sys.net.bytes", getattr(counters, f"bytes_{suffix}"), tags
            yield "sys.net.packets", getattr(counters, f"packets_{suffix}"), tags


def processes(host: str, names: list[str]) -> Iterator[Sample]:
    """Resident bytes, threads and CPU seconds, summed per program, of the programs named."""
    totals: dict[str, list[float]] = {}
    for process in psutil.process_iter(["name", "memory_info", "num_threads", "cpu_times"]):
        info = process.info
        if info["name"] not in names or not info["memory_info"] or not info["cpu_times"]:
            continue
        total = totals.setdefault(info["name"], [0, 0, 0.0])
        total[0] += info["memory_info"].rss
        total[1] += info["num_threads"] or 0
        total[2] += info["cpu_times"].user + info["cpu_times"].system
    for name, (rss, threads, cpu) in sorted(totals.items()):
        tags = {"host": host, "process": name}
        yield "process.memory.bytes", int(rss), tags
        yield "process.threads", int(threads), tags
        yield "process.cpu.seconds", round(cpu, 3), tags


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--step", type=float, default=2, help="seconds between samples")
    parser.add_argument("--host", default="web01", help="value of the tag host")
    parser.add_argument("--processes", nargs="+", default=["bash", "git", "node", "python", "ruff"])
    parser.add_argument("--output", type=Path, default=Path("examples/metrics"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    steps = int(options.minutes * 60 / options.step)
    psutil.cpu_times_percent(percpu=True)
    start = time.time()
    with (
        gzip.open(options.output / "cpu-memory.json.gz", "wt") as as_json,
        gzip.open(options.output / "disk-network-process.txt.gz", "wt") as as_text,
    ):
        for step in range(steps):
            time.sleep(max(0.0, start + step * options.step - time.time()))
            now_ms = int(time.time() * 1000)
            for metric, value, tags in cpu_and_memory(options.host):
                point = {"metric": metric, "timestamp": now_ms // 1000, "value": value, "tags": tags}
                as_json.write(json.dumps(point) + "\n")
            sources = (
                (now_ms // 1000, disk_and_network(options.host)),
                (now_ms, processes(options.host, options.processes)),
            )
            for timestamp, samples in sources:
                for metric, value, tags in samples:
                    words = " ".join(f"{key}={text}" for key, text in tags.items())
                    as_text.write(f"put {metric} {timestamp} {value} {words}\n")


if __name__ == "__main__":
    main()
