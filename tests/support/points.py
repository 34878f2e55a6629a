"""Random points as a test sends them, and what a store holds in the same terms as `model.content`."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.schema.stores.plain_opentsdb import number
from tests.support.model import Content, Point, SeriesName
from tests.support.stored import CellBytes, Store

BASE_S = 1_356_998_400
FIRST_MS, LATER_MS = 1_700_000_000_000, 1_700_000_600_000
"""Modification times of files, and so arrivals of their points, in ms."""

SERIES: Sequence[SeriesName] = [
    *[("sys.cpu", (("host", host), ("mode", mode))) for host in "abc" for mode in ("user", "sys")],
    ("sys.größe", (("host", "a"),)),
    ("sys.größe", (("host", "d"),)),
]
"""Some series of two metrics, with one or two tags."""


def random_points(count: int, seed: int = 0, hours: int = 3) -> list[Point]:
    """Points of all series at distinct instants, in seconds and in ms."""
    chance = random.Random(seed)
    points: dict[tuple[SeriesName, int], Point] = {}
    while len(points) < count:
        time = BASE_S + chance.randrange(hours * 3600)
        if chance.random() < 0.3:
            time = time * 1000 + chance.randrange(1, 1000)
        point = Point(chance.choice(SERIES), time, random_value(chance), FIRST_MS)
        points[point.series, point.time_ms] = point
    return list(points.values())


def random_value(chance: random.Random) -> int | float:
    """A number of any kind and width."""
    width = chance.choice((7, 15, 31, 63))
    integer = chance.randrange(-(1 << width), 1 << width)
    return chance.choice((integer, chance.randrange(-400, 400) / 8, chance.gauss(0, 1e6), 0, -0.0))


def corrections_of(points: Iterable[Point], seed: int = 1) -> list[Point]:
    """Other values of the same instants, that arrive later."""
    chance = random.Random(seed)
    return [point._replace(value=random_value(chance), arrival_ms=LATER_MS) for point in points]


def put(point: Point) -> bytes:
    """The line of telnet `put`."""
    metric, tags = point.series
    words = " ".join(f"{key}={value}" for key, value in tags)
    return f"put {metric} {point.time} {point.value!r} {words}\n".encode()


def json_line(point: Point) -> bytes:
    """The line of JSON."""
    metric, tags = point.series
    body = {"metric": metric, "timestamp": point.time, "value": point.value, "tags": dict(tags)}
    return json.dumps(body, ensure_ascii=False).encode() + b"\n"


def write_file(path: Path, lines: Iterable[bytes], modified_ms: int = FIRST_MS) -> Path:
    """A file of these lines, compressed as its name says, of that age."""
    compress = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(b"".join(lines)))
    os.utime(path, (modified_ms / 1000, modified_ms / 1000))
    return path


def put_file(path: Path, points: Iterable[Point], modified_ms: int = FIRST_MS) -> Path:
    """A file of `put` lines."""
    return write_file(path, map(put, points), modified_ms)


def stored(store: Store) -> Content:
    """What the tables hold, decoded."""
    return {
        ((series.metric, series.tags), time_ms): number(value)
        for series, points in store.points().items()
        for time_ms, value in points.items()
    }


def cells_of(cells: Iterable[tuple[bytes, str, bytes, int, bytes]]) -> set[CellBytes]:
    """The cells of the model as `Store.cells` gives them."""
    return {
        (key, qualifier, timestamp_ms, value)
        for key, family, qualifier, timestamp_ms, value in cells
        if family == "t"
    }
