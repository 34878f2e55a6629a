"""Tables with points and rollups for tests of queries, and the same query with and without rollups."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.commands import Ran, ingest, timebeam
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.schema.core.points import Series
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.rollup.rollup_job import rollup_tables

DAY = 1_709_078_400  # 2024-02-28, the day before a leap day
HOUR = 3600
Points = dict[tuple[Series, int], int | float]
"""Value by series and time in s."""


def interval(text: str, span: str, **more: Any) -> dict[str, Any]:
    """One rollup interval of a configuration, with its tables."""
    tables = {"table": f"rollup-{text}", "preAggregationTable": f"preagg-{text}"}
    return {**tables, "interval": text, "rowSpan": span, **more}


def config_file(
    folder: Path, intervals: Iterable[dict[str, Any]], pre_aggregates: Iterable[Any] = (), **ours: Any
) -> Path:
    """A configuration with sum, count, min, max, first and last."""
    default = interval("1m", "1h", table="tsdb", defaultInterval=True)
    names = ("sum", "count", "min", "max", "first", "last")
    content = {
        "aggregationIds": dict(zip(names, (0, 1, 2, 3, 4, 6), strict=True)),
        "intervals": [default, *intervals],
        "timebeam": {"preAggregates": list(pre_aggregates), **ours},
    }
    path = folder / f"rollups-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(content))
    return path


def with_tables(store: Store, config: Path) -> Store:
    """The store, with the tables of a configuration."""
    for _ in create_tables(
        store.target, rollup_tables(read_config(str(config)), store.layout), dry_run=False
    ):
        pass
    return store


def send(store: Store, folder: Path, points: Points) -> None:
    """Ingests points."""
    lines = (
        f"put {series.metric} {time_s} {value!r} {' '.join(f'{key}={tag}' for key, tag in series.tags)}\n"
        for (series, time_s), value in points.items()
    )
    path = folder / f"points-{len(list(folder.iterdir()))}.txt"
    path.write_text("".join(lines))
    ingest(
        folder,
        *store.flags,
        "--format=opentsdb-text",
        "--auto-create-metrics",
        f"--input={path}",
        "--decimals=double",
    )


def roll_up(store: Store, config: Path, start_s: int, end_s: int) -> None:
    """Rolls up a range of time."""
    ran = timebeam(
        *("rollup", *store.flags, "--rollup-config", config, f"--start={start_s}", f"--end={end_s}"),
        *("--dead-letters", config.parent / "letters"),
    )
    assert ran.code == 0, ran.err


def follow(store: Store, config: Path, *flags: str, rounds: int = 1) -> Ran:
    """Rounds of `timebeam rollup --follow`, without waiting for quiet hours."""
    ran = timebeam(
        *("rollup", *store.flags, "--rollup-config", config, "--follow", f"--rounds={rounds}"),
        "--quiet-seconds=0",
        *("--dead-letters", config.parent / "letters", "--summary=json", *flags),
    )
    assert ran.code == 0, ran.err
    return ran


def ask(store: Store, metric: str, start_s: int, end_s: int, *flags: str | Path) -> Ran:
    """A query, its answer in JSON."""
    place = [*store.flags, f"--start={start_s}", f"--end={end_s}", "--output=json"]
    ran = timebeam("query", metric, *place, *flags)
    assert ran.code == 0, ran.err
    return ran


def both(
    store: Store, config: Path, metric: str, start_s: int, end_s: int, *flags: str
) -> tuple[Any, Any, str]:
    """(answer through rollups, answer from points, what was explained)."""
    through = ask(store, metric, start_s, end_s, *flags, "--explain", "--rollup-config", config)
    raw = ask(store, metric, start_s, end_s, *flags, "--no-rollup", "--rollup-config", config)
    assert raw.err == ""
    return json.loads(through.out), json.loads(raw.out), through.err


def same(found: Any, wanted: Any, *, exact: bool, tags: bool = True) -> None:
    """Asserts that two answers are equal; sums of floats to 1e-12."""
    assert wanted
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if tags:
            assert (one["tags"], one["aggregateTags"]) == (other["tags"], other["aggregateTags"])
        assert one["dps"].keys() == other["dps"].keys()
        for time, number in other["dps"].items():
            got = one["dps"][time]
            close = not exact and isinstance(number, float) and math.isclose(got, number, rel_tol=1e-12)
            assert got == number or close, (one["tags"], time, got, number)


def rollup_at(now_s: float, *arguments: str | Path) -> Ran:
    """`timebeam rollup`, as if it were run at that time."""
    with mock.patch("timebeam.pipelines.jobs.run.clock_ms", return_value=int(now_s * 1000)):
        return timebeam("rollup", *arguments)
