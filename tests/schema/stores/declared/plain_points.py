"""Patterns of docs/spec/bigtable-patterns.md as points, in plain Python: records, and their points.

Each model is written out here, from the records that were sent: it knows no keys, columns or bytes.
"""

from __future__ import annotations

import datetime
import json
import random
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memory_tables import MemoryTables

from timebeam.schema.bits.arrays import Kind
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.selection import Finding, Selected, Selection
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared.language.load_declaration import load
from timebeam.schema.stores.declared.layout import DeclaredTables
from timebeam.schema.stores.declared.records import read_json
from timebeam.schema.stores.declared.write_records import rows

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "tables"
START_MS = 1_426_535_000_000
EVER = Selection(None, {}, 0, 1 << 47)
LOS_ANGELES = zoneinfo.ZoneInfo("America/Los_Angeles")

Record = dict[str, Any]
Name = tuple[str, tuple[tuple[str, str], ...]]
Points = dict[tuple[Name, int], float | str]


class Pattern(NamedTuple):
    """A declaration, records for it, and its model: records to points, a later point of an instant wins."""

    file: str
    records: Callable[[random.Random], list[Record]]
    points: Callable[[list[Record]], Iterator[tuple[str, dict[str, str], int, float | str]]]


def market_records(rng: random.Random) -> list[Record]:
    records = []
    for number in range(120):
        record: Record = {
            "EXCHANGE": rng.choice(["NASDAQ", "NYSE"]),
            "SYMBOL": rng.choice(["ZXZZT", "F", "GE"]),
        }
        if rng.random() < 0.7:
            record |= {"QUOTETIME": START_MS + 7 * number, "BID": f"{rng.randrange(100, 999)}.{number % 10}0"}
            record["ASKSIZE"] = rng.randrange(10_000)
        if rng.random() < 0.5 or "QUOTETIME" not in record:
            record |= {"TRADETIME": START_MS + 7 * number, "LASTSALE": "16.05", "VOLUME": 1 << 40}
        records.append(record)
    return records


def market_points(records: list[Record]) -> Iterator[tuple[str, dict[str, str], int, float | str]]:
    for record in records:
        tags = {"EXCHANGE": record["EXCHANGE"], "SYMBOL": record["SYMBOL"]}
        for table, time, columns in (
            ("quote", "QUOTETIME", ("BID", "ASK", "BIDSIZE", "ASKSIZE")),
            ("trade", "TRADETIME", ("LASTSALE", "LASTSIZE", "VOLUME")),
        ):
            for column in columns:
                if time in record and column in record:
                    yield f"{table}.{column}", tags, record[time], float(record[column])


def metrics_records(rng: random.Random) -> list[Record]:
    records = [
        {
            "HOSTNAME": f"server{host}",
            "TS": START_MS + 5000 * step + host,
            "metrics": {
                group: {name: f"{rng.random():.3f}" for name in rng.sample(["x", "y", "up time", "é"], 2)}
                for group in rng.sample(["CPU", "IO"], 1 + step % 2)
            },
        }
        for step in range(15)
        for host in range(4)
    ]
    records[7]["metrics"]["IO"] = {"state": "on fire"}
    return rng.sample(records, len(records))


def metrics_points(records: list[Record]) -> Iterator[tuple[str, dict[str, str], int, float | str]]:
    latest: dict[tuple[str, str], tuple[int, str]] = {}
    for record in records:
        for group, entries in record["metrics"].items():
            for name, value in entries.items():
                number = value if value == "on fire" else float(value)
                yield f"server.{group}/{name}", {"HOSTNAME": record["HOSTNAME"]}, record["TS"], number
                key = (record["HOSTNAME"], f"{group}/{name}")
                latest[key] = max(latest.get(key, (0, "")), (record["TS"], value))
    for (host, name), (time_ms, value) in latest.items():
        yield f"current.{name}", {"HOSTNAME": host}, time_ms, value if value == "on fire" else float(value)


def sensor_records(rng: random.Random) -> list[Record]:
    """Around the days of 23 and 25 hours, and some days in a row."""
    days = [(2015, 3, 8), (2015, 3, 16), (2015, 3, 17), (2015, 11, 1)]
    records = []
    for day in days:
        midnight = int(datetime.datetime(*day, tzinfo=LOS_ANGELES).timestamp()) * 1000
        for step in rng.sample(range(100), 30):
            if midnight + 900_000 * step < midnight + 23 * 3_600_000:
                late_ms = rng.randrange(900_000)
                time_ms = midnight + 900_000 * step + late_ms
                records.append({"METER": rng.choice([7, 987654]), "TS": time_ms, "READING": f"{step}.50"})
    return rng.sample(records, len(records))


def sensor_points(records: list[Record]) -> Iterator[tuple[str, dict[str, str], int, float | str]]:
    """Of two readings of one quarter of an hour the later one stays."""
    stays: dict[tuple[int, int], Record] = {}
    for record in records:
        slot = (record["METER"], record["TS"] // 900_000)
        if slot not in stays or stays[slot]["TS"] <= record["TS"]:
            stays[slot] = record
    for record in stays.values():
        yield "meter.reading", {"METER": str(record["METER"])}, record["TS"], float(record["READING"])


def battery_records(rng: random.Random) -> list[Record]:
    times_ms = rng.sample(range(START_MS, START_MS + 10_000_000), 60)
    times_ms += rng.sample(range(1_767_200_000_000, 1_767_300_000_000), 40)  # around `since`
    return [
        {"USER": rng.choice(["Corrie", "Jo"]), "TS": time_ms, "PERCENTAGE": rng.randrange(100)}
        for time_ms in times_ms
    ]


def battery_points(records: list[Record]) -> Iterator[tuple[str, dict[str, str], int, float | str]]:
    for record in records:
        yield "battery.percentage", {"USER": record["USER"]}, record["TS"], float(record["PERCENTAGE"])


PATTERNS = {
    "market": Pattern("market.toml", market_records, market_points),
    "metrics": Pattern("metrics.toml", metrics_records, metrics_points),
    "sensor": Pattern("sensor.toml", sensor_records, sensor_points),
    **{
        variant: Pattern(f"battery_{variant}.toml", battery_records, battery_points)
        for variant in ("naive", "promoted", "salted", "random", "reverse")
    },
}


def stored(layout: DeclaredTables, records: list[Record]) -> MemoryTables:
    text = b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
    batch, rejected = read_json(Message(text, 5, "a"))
    written, unwritten = rows(layout.declaration, batch)
    assert not rejected
    assert not unwritten
    return MemoryTables(written)


def expected(pattern: Pattern, records: list[Record], selection: Selection) -> Points:
    points: Points = {}
    for metric, tags, time_ms, value in pattern.points(records):
        if selection.metric not in (None, metric) or not selection.start_ms <= time_ms <= selection.end_ms:
            continue
        if any(
            key not in tags or (texts and tags[key] not in texts) for key, texts in selection.tags.items()
        ):
            continue
        points[(metric, tuple(sorted(tags.items()))), time_ms] = value
    return points


def points_of(batch: PointBatch) -> Iterator[tuple[tuple[Name, int], float | str]]:
    for i, time_ms in enumerate(batch.times_ms.tolist()):
        series = batch.series[batch.index[i]]
        value: float | str = float(batch.floats[i])
        if batch.kinds[i] == Kind.TEXT:
            value = batch.payloads[batch.bits[i]].decode()
        yield (((series.metric, series.tags), time_ms), value)


def read(layout: DeclaredTables, tables: MemoryTables, selection: Selection) -> Points:
    selected = list(layout.select(selection, tables))
    assert not [each for each in selected if isinstance(each, Finding)]
    decoded = layout.decode_rows([each for each in selected if isinstance(each, Selected)])
    assert not decoded.corruption
    found = list(points_of(decoded.within(selection.start_ms, selection.end_ms + 1).batch))
    assert len(found) == len(dict(found)), "an instant comes twice"
    return dict(found)


def declared(name: str) -> DeclaredTables:
    return DeclaredTables(load((EXAMPLES / PATTERNS[name].file).read_text(), PATTERNS[name].file))
