"""`make demo`: real metrics into a local Bigtable in OpenTSDB's layout, read back, plotted.

Runs the commands that a user would type, and shows them. Everything it makes is in .demo/; it
leaves no process behind, also after Ctrl-C.

With `--serve` (`make demo-serve`) it stores the metrics and then serves them until Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from timebeam.pipelines.local.emulator import Emulator, EmulatorError

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".demo"
PERIOD = ["--start", "2026-11-21T08:30:00Z", "--end", "2026-11-21T09:10:00Z"]
LAYOUT = ["--layout", "opentsdb"]
ROLLUPS = ["--rollup-config", "examples/rollups.json"]
HOURS = ["--start", "2026-11-21T08:00:00Z", "--end", "2026-11-21T10:00:00Z"]
LETTERS = ["--dead-letters", ".demo/dead-letters"]
PAGE = (
    "http://127.0.0.1:4242/?metric=sys.cpu.percent&tags=mode%3D*&aggregator=avg&downsample=1m-avg"
    "&start=2026/11/21-08:30:00&end=2026/11/21-09:10:00"
)
"""A chart of the metrics, where `timebeam serve` runs."""


def timebeam(*arguments: str) -> None:
    """Shows and runs one command.

    Raises:
      subprocess.CalledProcessError: it failed.
    """
    shown = " ".join(f"'{word}'" if set(word) & set("*| ") else word for word in arguments)
    print(f"\n$ timebeam {shown}", flush=True)
    subprocess.run([sys.executable, "-m", "timebeam", *arguments], cwd=ROOT, check=True)


def show_dead_letters() -> None:
    """Each rejected record, with its reason."""
    print("\nDead letters: what was rejected, why, and the original bytes")
    for path in sorted(FOLDER.glob("dead-letters-*.jsonl")):
        for line in path.read_text().splitlines():
            letter = json.loads(line)
            print(f"  {letter['reason']:22} {letter['message'][:100]}")
            print(
                f"  {'':22} {Path(letter['source']).name} byte {letter['offset']}: {letter['payload'][:76]}"
            )


def store() -> None:
    """Stores the metrics, their annotations and rollups in the emulator of BIGTABLE_EMULATOR_HOST."""
    timebeam("tables", "create", *LAYOUT)
    for format_name, pattern in (("opentsdb-json", "*.json*"), ("opentsdb-text", "*.txt*")):
        files = ["--format", format_name, "--input", f"examples/metrics/{pattern}"]
        timebeam("ingest", *LAYOUT, *files, *LETTERS, "--auto-create-metrics")
    show_dead_letters()
    notes = ["--format", "opentsdb-annotations", "--input", "examples/annotations.jsonl"]
    timebeam("ingest", *LAYOUT, *notes, *LETTERS)
    timebeam("series", "sys.load", *LAYOUT, "--tag", "host=web*")
    timebeam("check", *LAYOUT)
    timebeam("tables", "create", *LAYOUT, *ROLLUPS)
    timebeam("rollup", *LAYOUT, *ROLLUPS, *HOURS, *LETTERS)


def query() -> None:
    """Reads and plots the metrics."""
    busy = ["sys.cpu.percent", *LAYOUT, *HOURS, "--tag", "mode=user|system", "--group-by", "mode"]
    for interval, more in (("10s", ["--no-rollup"]), ("1m", []), ("1h", [])):
        picture = ["--downsample", f"{interval}-avg", "--output", f".demo/cpu-{interval}.png"]
        timebeam("query", *busy, *ROLLUPS, *more, "--explain", *picture)
    load = ["sys.load", *LAYOUT, *PERIOD, "--tag", "host=web01"]
    timebeam("query", *load, "--downsample", "5m-avg", "--group-by", "window")
    cpu = ["sys.cpu.percent", *LAYOUT, *PERIOD, "--tag", "mode=user|system"]
    by_core = ["--group-by", "core", "--group-by", "mode", "--downsample", "10s-avg"]
    for name in ("cpu.png", "cpu.html"):
        timebeam("query", *cpu, *by_core, "--global-annotations", "--output", f".demo/{name}")
    print("\nLook at .demo/cpu.png; points and their rollups: .demo/cpu-10s.png, cpu-1m.png, cpu-1h.png;")
    print("open .demo/cpu.html in a browser (it needs no network).")
    print("\n`make demo-serve` stores the same again and serves it until Ctrl-C: for Grafana, Prometheus")
    print(f"and scripts at http://127.0.0.1:4242, for a browser as a chart at\n{PAGE}")


def serve() -> None:
    """Serves the metrics until Ctrl-C."""
    print(f"\nOpen {PAGE}", flush=True)
    timebeam("serve", *LAYOUT, *ROLLUPS)


def main() -> int:
    """Runs the demonstration in a fresh emulator; exit code 1 if a step fails."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    try:
        with Emulator() as emulator:
            print(f"A local Bigtable runs at {emulator.host}; it goes when this program ends.")
            os.environ["BIGTABLE_EMULATOR_HOST"] = emulator.host
            store()
            serve() if "--serve" in sys.argv[1:] else query()
    except KeyboardInterrupt:
        print("\nstopped; the local Bigtable is gone", file=sys.stderr)
        return 130
    except EmulatorError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"demo: the command above ended with exit code {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
