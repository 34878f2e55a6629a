"""Points as a test sends them, and what OpenTSDB makes of them: written down as plain Python.

Nothing here calls the code under test: values and qualifiers follow sections 1.5 and 1.6 of the
format notes.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from schema.layouts import Name
from schema.points import Series

BASE_S = 1_356_998_400
SPAN_S = 3600


class Sent(NamedTuple):
    """One point; its time in ms, given in ms or (a whole second) in seconds."""

    series: Series
    time_ms: int
    in_ms: bool
    value: int | float

    @property
    def time(self) -> int:
        """The timestamp as it is sent."""
        return self.time_ms if self.in_ms else self.time_ms // 1000

    def put(self) -> bytes:
        """The line of telnet `put`."""
        tags = " ".join(f"{key}={value}" for key, value in self.series.tags)
        return f"put {self.series.metric} {self.time} {self.value!r} {tags}\n".encode()

    def json(self) -> bytes:
        """The line of JSON."""
        point = {"metric": self.series.metric, "timestamp": self.time, "value": self.value}
        return json.dumps(point | {"tags": dict(self.series.tags)}).encode() + b"\n"


def series_list() -> list[Series]:
    """Some series of two metrics, with one or two tags."""
    found = [Series.of("sys.cpu", {"host": host, "mode": mode}) for host in "abc" for mode in ("user", "sys")]
    return [*found, Series.of("sys.größe", {"host": "a"}), Series.of("sys.größe", {"host": "d"})]


def random_value(chance: random.Random) -> int | float:
    """A number of any kind and width."""
    width = chance.choice((7, 15, 31, 63))
    integer = chance.randrange(-(1 << width), 1 << width)
    return chance.choice((integer, chance.randrange(-400, 400) / 8, chance.gauss(0, 1e6), 0, -0.0))


def random_points(count: int, seed: int = 0, hours: int = 3) -> list[Sent]:
    """Points of all series at distinct instants, in seconds and in ms."""
    chance = random.Random(seed)
    all_series = series_list()
    instants: set[tuple[Series, int]] = set()
    points = []
    while len(points) < count:
        series, in_ms = chance.choice(all_series), chance.random() < 0.3
        time_ms = BASE_S * 1000 + chance.randrange(hours * SPAN_S * (1000 if in_ms else 1)) * (
            1 if in_ms else 1000
        )
        if (series, time_ms) not in instants:
            instants.add((series, time_ms))
            points.append(Sent(series, time_ms, in_ms, random_value(chance)))
    return points


def number(value: int | float) -> tuple[str, int | bytes]:
    """A number in a form that tells 1 from 1.0 and 0.0 from -0.0."""
    return ("float", struct.pack(">d", value)) if isinstance(value, float) else ("int", value)


Numbers = dict[Series, dict[int, tuple[str, int | bytes]]]
"""By series, by time in ms: what `number` makes of the value."""


def numbers(points: Iterable[tuple[Series, int, int | float]]) -> Numbers:
    """The value of each instant: that of the last point given for it."""
    found: Numbers = {}
    for series, time_ms, value in points:
        found.setdefault(series, {})[time_ms] = number(value)
    return found


def sent_numbers(points: Iterable[Sent]) -> Numbers:
    """`numbers` of points as they are sent, the later ones winning."""
    return numbers((point.series, point.time_ms, point.value) for point in points)


def plain_value(value: int | float) -> tuple[int, bytes]:
    """(flags, bytes) of a value: the fewest bytes that hold it; decimals on 4 or 8."""
    if isinstance(value, float):
        try:
            short = struct.pack(">f", value)
        except OverflowError:
            return 0xF, struct.pack(">d", value)
        exact = struct.unpack(">f", short)[0] == value
        return (0xB, short) if exact else (0xF, struct.pack(">d", value))
    width = next(width for width in (1, 2, 4, 8) if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1)
    return width - 1, value.to_bytes(width, "big", signed=True)


def plain_cell(point: Sent) -> tuple[bytes, bytes]:
    """(qualifier, value) of a point in a cell of its own."""
    flags, value = plain_value(point.value)
    offset_ms = point.time_ms % (SPAN_S * 1000)
    if point.in_ms:
        return (0xF0000000 | offset_ms << 6 | flags).to_bytes(4, "big"), value
    return (offset_ms // 1000 << 4 | flags).to_bytes(2, "big"), value


def plain_key(point: Sent, uids: Mapping[Name, bytes]) -> bytes:
    """The row key of a point, without salt."""
    tags = sorted(uids[Name("tagk", key)] + uids[Name("tagv", value)] for key, value in point.series.tags)
    base_s = point.time_ms // 1000 // SPAN_S * SPAN_S
    return uids[Name("metrics", point.series.metric)] + base_s.to_bytes(4, "big") + b"".join(tags)


def plain_cells(
    arrived: Iterable[tuple[int, Sent]], uids: Mapping[Name, bytes]
) -> set[tuple[bytes, bytes, int, bytes]]:
    """(key, qualifier, timestamp in ms, value) of points in cells of their own.

    Args:
      arrived: points with their arrival in ms; of two for one cell the later one stays.
    """
    cells = {}
    for arrival_ms, point in sorted(arrived, key=lambda pair: pair[0]):
        qualifier, value = plain_cell(point)
        cells[plain_key(point, uids), qualifier] = arrival_ms, value
    return {(key, qualifier, arrival_ms, value) for (key, qualifier), (arrival_ms, value) in cells.items()}
