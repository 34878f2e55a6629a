"""Reading rows: scans with our reader and with Google's client, and what `query` and `check` take.

    python -m benchmarks.reads --points 3000000 --series 400 20000

Loads an emulator with packed points of so many series, a second apart; the readers take turns.

| figure | is |
|---|---|
| `scan`, `client scan` | all rows of the data table, with our reader and with Google's client for Python |
| `CPU` | processor time of this process for that |
| `query` | the points of all series of all metrics, as `timebeam query` finds them, without output |
| `check` | `timebeam check` |
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import bench
from benchmarks.bench import TARGET
from benchmarks.rollup import START, client_scan, configure, load, scan
from timebeam.pipelines import cli
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
        series, damage, _ = find_series(
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


def measure(
    folder: Path, *, points: int = 3_000_000, series: Sequence[int] = (400,), turns: int = 3
) -> bench.Cases:
    """A case for each number of series."""
    cases: dict[str, dict[str, list[float]]] = {}
    configure(folder, "1h")
    for of_series in series:
        prefix = f"r{of_series}-"
        load(points, of_series, prefix, folder)
        seconds = points // of_series + 1
        assert query(prefix, seconds) == points
        runs: dict[str, Callable[[], object]] = {
            "scan": functools.partial(scan, prefix),
            "client scan": functools.partial(client_scan, prefix),
            "query": functools.partial(query, prefix, seconds),
            "check": functools.partial(check_tables, prefix),
        }
        figures = cases[f"{of_series:,} series"] = {"rows": [scan(prefix)[1]]}
        for _ in range(turns):
            for name, run in runs.items():
                worked = time.process_time()
                took = bench.timed(run)
                figures.setdefault(f"{name}, s", []).append(took)
                if "scan" in name:
                    figures.setdefault(f"{name}, CPU s", []).append(time.process_time() - worked)
                else:
                    figures.setdefault(f"times a scan, {name}", []).append(took / figures["scan, s"][-1])
    return cases


if __name__ == "__main__":
    sys.exit(bench.main(measure))
