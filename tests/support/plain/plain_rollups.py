"""Declared rollups in plain Python, with random declarations: the model that the code is held against.

One record at a time, zoneinfo for zones, fractions for sums; keys by `plain_tables`.
"""

from __future__ import annotations

import dataclasses
import datetime
import random
import zoneinfo
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tests.schema.stores.declared import plain_tables

MINUTE_MS = 60_000
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
ZONES = ("UTC", "America/New_York", "Europe/Paris", "Asia/Kolkata", "America/Sao_Paulo")

Table = dict[bytes, dict[str, Fraction]]
"""The numbers of a rollup table, by row key and aggregator."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A record of the source."""

    site: str
    host: str
    time_ms: int
    value: int | float


def midnight_ms(day: datetime.date, zone: str) -> int:
    """The first instant of a local day."""
    local = datetime.datetime(day.year, day.month, day.day, tzinfo=zoneinfo.ZoneInfo(zone))
    return int(local.timestamp()) * 1000


def interval_start(time_ms: int, interval: str, zone: str, week_begins: str = "monday") -> int:
    """The start of the interval that holds an instant: "15m", "6h", "2d", "1w", "3mo" and the like."""
    if interval != "1w":
        return plain_tables.bucket_start_ms(time_ms, interval, zone)
    day = datetime.datetime.fromtimestamp(time_ms / 1000, zoneinfo.ZoneInfo(zone)).date()
    return midnight_ms(day - datetime.timedelta((day.weekday() - WEEKDAYS.index(week_begins)) % 7), zone)


@dataclasses.dataclass(frozen=True)
class Declared:
    """A source and a rollup of it.

    Attributes:
      source, target: the options of the layouts, as in TOML.
      rollup: those of the rollup.
    """

    source: dict[str, Any]
    target: dict[str, Any]
    rollup: dict[str, Any]

    @property
    def unit_ms(self) -> int:
        """Milliseconds of the unit of TS."""
        return 1000 if self.source["key"][2]["unit"] == "s" else 1

    @property
    def zone(self) -> str:
        """Where days of the rollup begin."""
        zone: str = self.rollup.get("tz", self.source["key"][2].get("tz", "UTC"))
        return zone

    def toml(self) -> str:
        """The declaration."""
        target = {**self.target, "rollup": self.rollup}
        return "[layout]\n" + "".join(
            f"{name} = {_toml(layout)}\n" for name, layout in (("source", self.source), ("target", target))
        )

    def start(self, time_ms: int) -> int:
        """The start of the interval of an instant."""
        week_begins = self.rollup.get("week_begins", "monday")
        return interval_start(time_ms, self.rollup["interval"], self.zone, week_begins)

    def record(self, point: Point) -> dict[str, Any]:
        """A point as a record of the source."""
        return {"SITE": point.site, "HOST": point.host, "TS": point.time_ms // self.unit_ms, "V": point.value}

    def table(self, points: Iterable[Point]) -> Table:
        """The rollups of all these points."""
        values: dict[bytes, list[Fraction]] = {}
        for point in points:
            fields = {"SITE": point.site, "HOST": point.host}
            for part in (*self.source["key"], *self.target["key"]):
                if part.get("case") in ("lower", "upper"):
                    fields[part["field"]] = getattr(fields[part["field"]], part["case"])()
            fields["TS"] = str(self.start(point.time_ms) // self.unit_ms)
            values.setdefault(plain_tables.key(self.target, fields), []).append(Fraction(point.value))
        return {key: _numbers(some) for key, some in values.items()}


def _numbers(values: list[Fraction]) -> dict[str, Fraction]:
    return {
        "sum": sum(values, Fraction()),
        "count": Fraction(len(values)),
        "min": min(values),
        "max": max(values),
    }


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )


def random_declared(rng: random.Random, intervals: Iterable[str]) -> Declared:
    """A sound declaration, with one of these intervals."""
    unit = rng.choice(["s", "ms"])
    in_columns = rng.random() < 0.4
    time: dict[str, Any] = {"time": "TS", "unit": unit, "width": 10 if unit == "s" else 13}
    if in_columns:
        time |= {"bucket": "1d", "tz": rng.choice(ZONES)}
    site: dict[str, Any] = {"field": "SITE"}
    if rng.random() < 0.3:
        site["case"] = "upper"
    source: dict[str, Any] = {"table": "SOURCE", "key": [site, {"field": "HOST"}, time]}
    if in_columns:
        qualifier = {"time": "TS", "within": "1d", "step": "1m", "format": rng.choice(["HHMM", "be16"])}
        source["columns"] = {"family": "f", "series": {"value": "V", "qualifier": qualifier}}
    else:
        source["columns"] = {"family": "f", "fields": ["V"]}
        source["key"].append({"suffix": "payload"})
    interval = rng.choice(list(intervals))
    rollup: dict[str, Any] = {"source": "source", "value": "V", "interval": interval}
    if rng.random() < 0.6:
        rollup["tz"] = rng.choice(ZONES)
    if interval == "1w" and rng.random() < 0.5:
        rollup["week_begins"] = rng.choice(WEEKDAYS)
    by = rng.choice([["SITE"], ["HOST"], ["SITE", "HOST"], []])
    if len(by) < 2 or rng.random() < 0.5:
        rollup["by"] = by
    declared = Declared(source, {}, rollup)
    aggregators = rng.sample(["sum", "count", "min", "max"], rng.randint(1, 4))
    fields = [{"name": one, "encoding": rng.choice(["text", "f64be"])} for one in aggregators]
    target = {
        "table": "TARGET",
        "key": _random_key(rng, by, unit, declared),
        "columns": {"family": "r", "fields": fields},
    }
    return Declared(source, target, rollup)


def _random_key(rng: random.Random, by: list[str], unit: str, declared: Declared) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for name in by:
        part: dict[str, Any] = {"field": name}
        if rng.random() < 0.5:
            part["case"] = rng.choice(["lower", "upper"])
        if rng.random() < 0.5:
            part |= {"width": 8, "pad": "_"}
        parts.append(part)
    width = 10 if unit == "s" else 13
    time: dict[str, Any] = {"time": "TS", "unit": unit}
    form = rng.choice(["plain", "reverse", "be64", "divide", "bucket"])
    interval = declared.rollup["interval"]
    if form == "be64":
        time["format"] = "be64"
    else:
        time["width"] = width
    if form == "reverse":
        time["reverse"] = 10**width - 1
    if form == "divide":
        time["divide"] = 60 * (1000 // declared.unit_ms)
    if form == "bucket" and interval != "1w":
        time["bucket"] = interval
        if interval.endswith(("d", "mo")):
            time["tz"] = declared.zone
    parts.append(time)
    rng.shuffle(parts)
    if by and rng.random() < 0.3:
        parts.insert(0, {"salt": by, "buckets": 3})
    return parts


def random_points(rng: random.Random, count: int, start_ms: int, end_ms: int) -> list[Point]:
    """Points of a few series, no two of one series within one minute."""
    minutes: dict[tuple[str, str, int], Point] = {}
    for _ in range(count):
        site, host = rng.choice(["x", "X", "y"]), rng.choice(["a", "A", "b"])
        time_ms = rng.randrange(start_ms // MINUTE_MS, end_ms // MINUTE_MS) * MINUTE_MS
        value = rng.choice([rng.randrange(-99, 99), rng.randrange(-99, 99) / 4])
        minutes[site.lower(), host, time_ms] = Point(site, host, time_ms, value)
    return list(minutes.values())
