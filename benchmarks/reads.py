"""Reading rows: scans with our reader and with Google's client, and what `query` and `check` take.

    python -m benchmarks.reads --points 3000000 --series 400 20000
    python -m benchmarks.reads --points 1000000 --series 20000 --turns 7 --baseline ../older-checkout

Loads an emulator with packed points of so many series, a second apart; the readers take turns.

| figure | is |
|---|---|
| `scan`, `client scan` | all rows of the data table, with our reader and with Google's client for Python |
| `CPU` | processor time of the process for that |
| `query` | the points of all series of all metrics, as `timebeam query` finds them, without output |
| `times the messages` | processor time of `query` beside that of gRPC for its messages alone, one for a row |
| `times the baseline` | how many times as fast as the checkout that `--baseline` names, in turn with it |
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
from benchmarks.checkouts import Queries
from benchmarks.rollup import START, client_scan, configure, load, scan
from timebeam.pipelines import cli
from timebeam.schema.core.selection import Selection
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.protobuf_classes import DATA_API
from timebeam.transforms.bigtable.read_ranges import row_filter
from timebeam.transforms.bigtable.read_stream import ON_ONE_THREAD
from timebeam.transforms.bigtable.target import method
from timebeam.transforms.query.read_points import find_series
from timebeam.transforms.read.table_reader import TableReader


def query(prefix: str, seconds: int) -> int:
    """How many points `timebeam query` finds in all."""
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=prefix))
    points = 0
    for metric in layout.metric_uids(TableReader(TARGET)):
        series, corruption, _ = find_series(
            TARGET, layout, Selection(metric, {}, START * 1000, (START + seconds) * 1000)
        )
        assert not corruption
        points += sum(len(found_series.times_ms) for found_series in series)
    return points


def messages_alone(prefix: str) -> float:
    """Processor seconds in which gRPC hands over a message for each row of the data table, twice.

    A query reads about as many names as rows, again for each metric.
    """
    name = TARGET.table_name(f"{prefix}tsdb")
    request = DATA_API["ReadRowsRequest"](table_name=name, filter=row_filter())
    call = method(TARGET, "ReadRows", ON_ONE_THREAD)
    worked = time.process_time()
    for _ in range(2):
        assert sum(1 for _ in call(request))
    return time.process_time() - worked


def check_tables(prefix: str) -> None:
    """Runs `timebeam check`."""
    with contextlib.redirect_stdout(io.StringIO()):
        place = [f"--project={TARGET.project}", f"--instance={TARGET.instance}", f"--table-prefix={prefix}"]
        assert cli.main(["check", "--layout=opentsdb", *place]) == 0


def measure(
    folder: Path,
    *,
    points: int = 3_000_000,
    series: Sequence[int] = (400,),
    turns: int = 3,
    baseline: str = "",
) -> bench.Cases:
    """A case for each number of series.

    Args:
      baseline: folder of another checkout.
    """
    cases: dict[str, dict[str, list[float]]] = {}
    configure(folder, "1h")
    with contextlib.ExitStack() as stack:
        queries = Queries(bench.ROOT, stack)
        older = Queries(Path(baseline).resolve(), stack) if baseline else None
        for of_series in series:
            prefix = f"r{of_series}-"
            load(points, of_series, prefix, folder)
            figures = cases[f"{of_series:,} series"] = {"rows": [scan(prefix)[1]]}
            for _ in range(turns):
                turn = _turn(prefix, (points // of_series + 1, points), queries, older)
                for name, value in turn.items():
                    figures.setdefault(name, []).append(value)
    return cases


def _turn(
    prefix: str, seconds_points: tuple[int, int], queries: Queries, older: Queries | None
) -> dict[str, float]:
    """The figures of one turn.

    Args:
      seconds_points: seconds of the points, and their number.
      older: of the baseline.
    """
    figures = {}
    scans: dict[str, Callable[[], object]] = {"scan": functools.partial(scan, prefix)}
    scans["client scan"] = functools.partial(client_scan, prefix)
    for name, run in scans.items():
        worked = time.process_time()
        figures[f"{name}, s"] = bench.timed(run)
        figures[f"{name}, CPU s"] = time.process_time() - worked
    seconds, cpu = queries.run(prefix, *seconds_points)
    figures |= {"query, s": seconds, "query, CPU s": cpu, "times a scan, query": seconds / figures["scan, s"]}
    figures["times the messages, query, CPU"] = cpu / messages_alone(prefix)
    if older is not None:
        older_seconds, older_cpu = older.run(prefix, *seconds_points)
        figures |= {"times the baseline, query": older_seconds / seconds}
        figures |= {"times the baseline, query, CPU": older_cpu / cpu}
    figures["check, s"] = bench.timed(functools.partial(check_tables, prefix))
    figures["times a scan, check"] = figures["check, s"] / figures["scan, s"]
    return figures


if __name__ == "__main__":
    sys.exit(bench.main(measure))
