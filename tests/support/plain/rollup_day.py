"""Rollups of a day in OpenTSDB's tables, and an independent computation of them."""

from __future__ import annotations

import collections
import fractions
import functools
import os
import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.cloud.bigtable.data import ReadRowsQuery

from tests.support.commands import Ran, ingest, timebeam
from tests.support.data_client import open_table
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.keys import parse_key

DAY = 1_772_236_800  # 2026-02-28, the last day of its month

HOUR, MINUTE = 3600, 60

CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {
            "table": "tsdb",
            "preAggregationTable": "preagg",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {"table": "rollup-5m", "preAggregationTable": "preagg-5m", "interval": "5m", "rowSpan": "1d"},
        {"table": "rollup-1h", "preAggregationTable": "preagg-1h", "interval": "1h", "rowSpan": "1n"},
        {"table": "rollup-1d", "preAggregationTable": "preagg-1d", "interval": "1d", "rowSpan": "1y"},
    ],
    "timebeam": {
        "preAggregates": [{"metrics": ["sys.*"], "keepTags": ["dc"], "aggregators": ["sum", "max"]}]
    },
}

SECONDS = {"rollup-5m": 300, "rollup-1h": HOUR, "rollup-1d": 24 * HOUR}

BASES = {"rollup-5m": DAY, "rollup-1h": 1_769_904_000, "rollup-1d": 1_767_225_600}

NAMES = {0: "sum", 1: "count", 2: "min", 3: "max"}

WRITES = 8
"""Requests that change a table, at least, of each rollup of a day."""

Points = dict[tuple[Series, int], int | float]
"""Value by series and time in ms."""

Numbers = dict[tuple[str, Series, str, int], int | float]
"""Number by table, series, aggregator and start of the bucket in s."""


def points_of(rng: random.Random, start_s: int, hours: int) -> Points:
    """Points with gaps, some in ms, integers beyond 2**53, negative ones, decimals, mixed."""
    found: Points = {}
    for number in range(12):
        series = Series.of(f"sys.m{number % 3}", {"host": f"h{number}", "dc": f"d{number % 2}"})
        for hour in range(hours):
            if rng.random() < 0.2:
                continue
            for second in rng.sample(range(HOUR), 12):
                ms = rng.randrange(1000) if number % 4 == 0 else 0
                kind = number % 3 if number < 9 else rng.randrange(3)
                value: int | float = (
                    rng.randrange(-(2**60), 2**60),
                    rng.uniform(-1e6, 1e6),
                    rng.randrange(-1000, 1000),
                )[kind]
                found[series, (start_s + hour * HOUR + second) * 1000 + ms] = value
    return found


def send(store: Store, folder: Path, points: Points, age: int) -> None:
    """Ingests points from a file of that age; a younger one corrects an older one."""
    lines = []
    for (series, time_ms), value in points.items():
        time_text = time_ms if time_ms % 1000 else time_ms // 1000
        tags = " ".join(f"{key}={tag}" for key, tag in series.tags)
        lines.append(f"put {series.metric} {time_text} {value!r} {tags}\n")
    path = folder / f"in-{age}.txt"
    path.write_text("".join(lines))
    os.utime(path, (1_700_000_000 + age,) * 2)
    flags = (
        "--format=opentsdb-text",
        "--auto-create-metrics",
        "--bigtable-writer=direct",
        "--decimals=double",
    )
    ingest(folder, *store.flags, *flags, "--input", path)


def rollup(store: Store, config: Path, *flags: str) -> Ran:
    letters = config.parent / "rollup-letters"
    return timebeam(
        *("rollup", *store.flags, "--rollup-config", config, "--summary=json"),
        *("--dead-letters", letters, *(flags or ("--day=2026-02-28",))),
    )


def total(values: Iterable[int | float]) -> int | float:
    """Exact for integers that fit, else rounded once."""
    values = list(values)
    if all(isinstance(value, int) for value in values):
        exact = sum(values)
        return exact if -(2**63) <= exact < 2**63 else float(exact)
    return float(sum(map(fractions.Fraction, values)))


def expected(points: Points, tables: dict[str, int] = SECONDS) -> Numbers:
    """The rollups of single series."""
    found: dict[tuple[str, Series, int], list[int | float]] = collections.defaultdict(list)
    for (series, time_ms), value in points.items():
        for table, seconds in tables.items():
            found[table, series, time_ms // 1000 // seconds * seconds].append(value)
    return numbers(found)


def numbers(found: dict[tuple[str, Series, int], list[int | float]]) -> Numbers:
    result: Numbers = {}
    for (table, series, at), values in found.items():
        result[table, series, "sum", at] = total(values)
        result[table, series, "count", at] = len(values)
        result[table, series, "min", at] = min(values)
        result[table, series, "max", at] = max(values)
    return result


def cells(store: Store, table: str) -> list[Any]:
    """(key, qualifier, timestamp, value) of every version of every cell."""
    full = store.layout.options.table_prefix + table
    return [
        (row.row_key, cell.qualifier, cell.timestamp_micros, cell.value)
        for row in open_table(store.target, full).read_rows(ReadRowsQuery())
        for cell in row.cells
    ]


def stored(store: Store, tables: Iterable[str]) -> Numbers:
    """What stands in tables; asserts that nothing is there twice."""
    names = store.names()
    result: Numbers = {}

    @functools.cache
    def parsed(key: bytes) -> tuple[Series, int]:
        metric, *tags = [names[pair] for pair in parse_key(store.layout.options, key).uids]
        series = Series.of(metric, dict(zip(tags[::2], tags[1::2], strict=True)))
        return series, keys.parse_key(store.layout.options, key).base_s

    for table in tables:
        for key, qualifier, _, raw in cells(store, table):
            series, base = parsed(key)
            code = int.from_bytes(qualifier[-2:], "big")
            if table == "preagg":
                at = base + (code >> 4)
                aggregator = dict(series.tags)["_aggregate"].lower()
            else:
                name = table.replace("preagg", "rollup")
                assert base == BASES[name] or (name == "rollup-5m" and base % (24 * HOUR) == 0)
                at = base + (code >> 4) * SECONDS[name]
                aggregator = NAMES[qualifier[0]]
            value = struct.unpack(">d" if code & 8 else ">q", raw)[0]
            assert (table, series, aggregator, at) not in result
            result[table, series, aggregator, at] = value
    return result


def same(found: Numbers, wanted: Numbers) -> None:
    assert found.keys() == wanted.keys()
    for key, number in wanted.items():
        assert found[key] == number, key
        assert isinstance(found[key], int) == isinstance(number, int), key
