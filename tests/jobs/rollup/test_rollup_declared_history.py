"""Declared rollups run night after night over a growing table, against a model in plain Python.

`SEEDS=20 pytest tests/jobs/rollup/test_rollup_declared_history.py` runs more histories than by default.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import pytest

from tests.support.commands import ingest, timebeam
from tests.support.plain.plain_rollups import (
    Declared,
    Point,
    Table,
    midnight_ms,
    random_declared,
    random_points,
)
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table

DAY = datetime.timedelta(1)
MONTHLY = Declared(
    {
        "table": "SOURCE",
        "key": [
            {"field": "SITE"},
            {"field": "HOST"},
            {"time": "TS", "unit": "ms", "width": 13},
            {"suffix": "payload"},
        ],
        "columns": {"family": "f", "fields": ["V"]},
    },
    {
        "table": "TARGET",
        "key": [{"field": "SITE"}, {"time": "TS", "unit": "ms", "width": 13}],
        "columns": {
            "family": "r",
            "fields": [{"name": name, "encoding": "text"} for name in ("sum", "count")],
        },
    },
    {"source": "source", "value": "V", "interval": "1mo", "by": ["SITE"]},
)


class Nights:
    """A declaration's tables, its points so far, and what the rollups should be."""

    def __init__(self, bigtable: tuple[str, str], prefix: str, folder: Path, declared: Declared) -> None:
        self.target, self.prefix, self.folder, self.declared = Target(*bigtable), prefix, folder, declared
        file = folder / "tables.toml"
        file.write_text(declared.toml())
        place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
        self.flags = ["--layout=table", f"--tables={file}", *place]
        self.points: list[Point] = []
        self.wanted: Table = {}
        ran = timebeam("tables", "create", *self.flags)
        assert ran.code == 0, (ran.err, declared.toml())

    def send(self, points: Iterable[Point]) -> None:
        new = list(points)
        path = self.folder / f"in-{len(self.points)}.jsonl"
        path.write_text("".join(json.dumps(self.declared.record(point)) + "\n" for point in new))
        sent = ingest(
            self.folder, *self.flags, "--format=records", "--bigtable-writer=direct", "--input", path
        )
        assert sent.letters == []
        self.points += new

    def roll_up(self, first: datetime.date, last: datetime.date) -> None:
        """Runs the job of a night: remakes all intervals that have a part of these days."""
        back = f"--lookback-days={(last - first).days}"
        ran = timebeam(
            "rollup", *self.flags, f"--day={last}", back, "--dead-letters", self.folder / "letters"
        )
        assert ran.code == 0, ran.err
        end_ms = midnight_ms(last + DAY, self.declared.zone)
        start_ms = self.declared.start(midnight_ms(first, self.declared.zone))
        remade = [p for p in self.points if start_ms <= self.declared.start(p.time_ms) < end_ms]
        self.wanted |= self.declared.table(remade)
        assert self.stored() == self.projected(), self.declared.toml()

    def projected(self) -> Table:
        """What should be stored: the model's numbers that have a column."""
        names = self.encodings()
        return {k: {n: x for n, x in numbers.items() if n in names} for k, numbers in self.wanted.items()}

    def encodings(self) -> dict[str, str]:
        return {column["name"]: column["encoding"] for column in self.declared.target["columns"]["fields"]}

    def stored(self) -> Table:
        encodings = self.encodings()

        def number(name: str, value: bytes) -> Fraction:
            return Fraction(value.decode() if encodings[name] == "text" else struct.unpack(">d", value)[0])

        found = scan_table(self.target, self.prefix + "TARGET")
        return {
            row.key: {
                cell.qualifier.decode(): number(cell.qualifier.decode(), cell.value) for cell in row.cells
            }
            for row in found
        }


def test_a_month_that_is_made_night_by_night(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    nights = Nights(bigtable, prefix, tmp_path, MONTHLY)
    for number in range(1, 4):
        day = datetime.date(2026, 10, number)
        start_ms = midnight_ms(day, "UTC")
        nights.send(Point("x", "a", start_ms + hour * 3_600_000, 1) for hour in range(24))
        nights.roll_up(day, day)
        (numbers,) = nights.stored().values()
        assert numbers["count"] == 24 * number
    # A point of another month's last day changes that month alone.
    nights.send([Point("x", "a", midnight_ms(datetime.date(2026, 9, 30), "UTC"), 7)])
    nights.roll_up(datetime.date(2026, 9, 30), datetime.date(2026, 9, 30))
    assert sorted(int(numbers["count"]) for numbers in nights.stored().values()) == [1, 72]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.long if seed else [])
        for seed in range(int(os.environ.get("SEEDS", "3")))
    ],
)
def test_random_histories(bigtable: tuple[str, str], prefix: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    intervals = (("1w",), ("1mo",), ("1h", "6h", "1d", "2d", "1w", "1mo", "3mo"))[min(seed, 2)]
    nights = Nights(bigtable, prefix, tmp_path, random_declared(rng, intervals))
    day = datetime.date(2025, rng.randint(1, 12), rng.randint(1, 28))
    zone = nights.declared.zone
    taken: set[tuple[str, str, int]] = set()
    for _ in range(4):
        lookback = rng.choice([0, 0, 1, 9])
        since = midnight_ms(day - rng.choice([0, 3, 20]) * DAY, zone)  # late points among them
        new = random_points(rng, 40, since, midnight_ms(day + DAY, zone))
        new = [p for p in new if (p.site.lower(), p.host, p.time_ms) not in taken]
        taken |= {(p.site.lower(), p.host, p.time_ms) for p in new}
        nights.send(new)
        nights.roll_up(day - lookback * DAY, day)
        day += rng.choice([1, 1, 2, 12]) * DAY
