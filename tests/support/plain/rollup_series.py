"""Rollups of layouts without rollup tables, and an independent computation of them."""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path
from typing import Any

from tests.support.commands import Ran, ingest, timebeam
from tests.support.plain.rollup_day import Points, total
from timebeam.schema.core.contract import Store
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.stores import make_store
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.copy.copied_points import read_points
from timebeam.transforms.read.table_reader import TableReader, scan_table

HOUR = 3600

SECONDS = {"5m": 300, "1h": HOUR, "1d": 24 * HOUR}

DATA = {"heroic": "metrics", "heroic-readable": "metrics", "kairosdb": "data_points"}

Numbers = dict[tuple[Series, int], int | float]
"""By series and time in ms."""


class Place:
    """Tables of one layout, and those of its rollups."""

    def __init__(self, bigtable: tuple[str, str], prefix: str, name: str, folder: Path) -> None:
        self.target, self.prefix, self.name, self.folder = Target(*bigtable), prefix, name, folder
        self.config = folder / "rollups.json"
        intervals = [("1m", "1h", DATA[name]), ("5m", "1d", "5m-"), ("1h", "1n", "1h-"), ("1d", "1y", "1d-")]
        self.config.write_text(
            json.dumps(
                {
                    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
                    "intervals": [
                        {"interval": interval, "rowSpan": span, "table": table, "defaultInterval": at == 0}
                        | {"preAggregationTable": f"unused-{interval}"}
                        for at, (interval, span, table) in enumerate(intervals)
                    ],
                    "timebeam": {"metrics": ["sys.*"]},
                }
            )
        )
        project, instance = bigtable
        self.flags = [f"--layout={name}", f"--project={project}", f"--instance={instance}"]
        self.flags.append(f"--table-prefix={prefix}")
        assert timebeam("tables", "create", *self.flags, "--rollup-config", self.config).code == 0

    def send(self, points: Points, age: int, *more: str) -> None:
        path = self.folder / f"in-{age}.txt"
        lines = []
        for (series, time_ms), value in points.items():
            tags = " ".join(f"{key}={tag}" for key, tag in series.tags)
            lines.append(f"put {series.metric} {time_ms} {value!r} {tags}\n")
        path.write_text("".join(lines))
        os.utime(path, (1_700_000_000 + age,) * 2)
        flags = ("--format=opentsdb-text", "--bigtable-writer=direct", *more)
        ingest(self.folder, *self.flags, *flags, "--input", path)

    def rollup(self, *flags: str) -> Ran:
        letters = self.folder / "letters"
        return timebeam(
            *("rollup", *self.flags, "--rollup-config", self.config, "--summary=json"),
            *("--dead-letters", letters, *(flags or ("--day=2026-02-28",))),
        )

    def layout(self, table: str) -> Store:
        return make_store(self.name, {"table_prefix": self.prefix + table})

    def dump(self) -> list[Any]:
        return [
            [(row.key, row.cells) for row in scan_table(self.target, spec.name)]
            for interval in SECONDS
            for spec in self.layout(f"{interval}-").tables()
        ]

    def stored(self) -> Numbers:
        """What the tables of rollups hold; asserts that nothing is there twice."""
        found: Numbers = {}
        for interval in SECONDS:
            for batch in read_points(self.layout(f"{interval}-"), TableReader(self.target), 0, 1 << 42):
                assert isinstance(batch, PointBatch)
                for series, time_ms, value in batch.points():
                    assert (series, time_ms) not in found
                    assert isinstance(value, (int, float))
                    found[series, time_ms] = value
        return found

    def expected(self, points: Points) -> Numbers:
        values = collections.defaultdict(list)
        for (series, time_ms), value in points.items():
            for interval, seconds in SECONDS.items():
                values[series, interval, time_ms // 1000 // seconds * seconds * 1000].append(value)
        found: Numbers = {}
        for (series, interval, at), some in values.items():
            numbers = {"sum": total(some), "count": len(some), "min": min(some), "max": max(some)}
            for aggregator, number in numbers.items():
                tags = dict(series.tags)
                if self.name == "kairosdb":
                    tags["saved_from"] = series.metric
                    stored = Series.of(f"{series.metric}.{interval}.{aggregator}", tags)
                    found[stored, at] = number
                else:
                    stored = Series.of(series.metric, {**tags, "rollup": interval, "stat": aggregator})
                    found[stored, at] = float(number)
        return found

    def check(self, points: Points) -> None:
        found, wanted = self.stored(), self.expected(points)
        assert found.keys() == wanted.keys()
        for key, number in wanted.items():
            assert (found[key], type(found[key])) == (number, type(number)), key
