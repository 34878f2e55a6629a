"""Reading rows: scans with our reader and with Google's client, and what `query` and `check` take.

    python -m benchmarks.reads --points 3000000 --series 400 20000

Loads an emulator with packed points of so many series, a second apart. Each figure is the least of `--turns`,
which run in turn.

| figure | is |
|---|---|
| `scan`, `client_scan` | all rows of the data table, with our reader and with Google's client for Python |
| `scan_cpu`, `client_scan_cpu` | processor time of this process for that |
| `query` | the points of all series of all metrics, as `timebeam query` finds them, without output |
| `check` | `timebeam check` |
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.rollup import START, TARGET, client_scan, configure, load, scan
from timebeam.pipelines import cli
from timebeam.pipelines.local.emulator import Emulator
from timebeam.schema.layouts import Selection
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.transforms.query.points import find_series
from timebeam.transforms.readers.table_reader import TableReader


def query(prefix: str, seconds: int) -> int:
    """How many points `timebeam query` finds in all."""
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=prefix))
    points = 0
    for metric in layout.metric_uids(TableReader(TARGET)):
        series, damage = find_series(
            TARGET, layout, Selection(metric, {}, START * 1000, (START + seconds) * 1000)
        )
        assert not damage
        points += sum(len(found_series.times_ms) for found_series in series)
    return points


def check_tables(prefix: str) -> None:
    """Runs `timebeam check`."""
    with contextlib.redirect_stdout(io.StringIO()):
        place = [f"--project={TARGET.project}", f"--instance={TARGET.instance}", f"--table_prefix={prefix}"]
        assert cli.main(["check", "--layout=opentsdb", *place]) == 0


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """(seconds, those of the processor) that a call takes."""
    started, worked = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - started, time.process_time() - worked


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=3_000_000)
    parser.add_argument("--series", type=int, nargs="+", default=[400])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    report = []
    with tempfile.TemporaryDirectory() as name, Emulator() as emulator, emulator.environment():
        for series in options.series:
            prefix = f"r{series}-"
            configure(Path(name), "1h")
            load(options.points, series, prefix, Path(name))
            _, rows = scan(prefix)
            seconds = options.points // series + 1
            assert query(prefix, seconds) == options.points
            runs: dict[str, Callable[[], object]] = {
                "scan": functools.partial(scan, prefix),
                "client_scan": functools.partial(client_scan, prefix),
                "query": functools.partial(query, prefix, seconds),
                "check": functools.partial(check_tables, prefix),
            }
            turns = [{path: timed(run) for path, run in runs.items()} for _ in range(options.turns)]
            result: dict[str, float] = {"points": options.points, "series": series, "rows": rows}
            for path in runs:
                result[path] = round(min(turn[path][0] for turn in turns), 2)
            for path in ("scan", "client_scan"):
                result[f"{path}_cpu"] = round(min(turn[path][1] for turn in turns), 2)
            report.append(result)
            print(json.dumps(result), file=sys.stderr, flush=True)
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.filterwarnings("ignore", "Connecting to Bigtable emulator", RuntimeWarning)
    sys.exit(main())
