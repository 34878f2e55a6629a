"""What the tables must hold after an ingest, worked out a second time from the input, in plain Python.

From docs/spec/opentsdb.md §1 (keys 1.1 and 1.2, qualifiers 1.5, values 1.6), by struct and a hash
by hand: none of the code under test makes these bytes. Reading goes by `plain_opentsdb`.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from tests.schema.stores.plain_opentsdb import Number, java_bucket, number, read_row, read_value
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

SeriesName: TypeAlias = "tuple[str, tuple[tuple[str, str], ...]]"
"""(metric, tags sorted by key)."""

Content: TypeAlias = "dict[tuple[SeriesName, int], Number]"
"""The value of each series at each time in ms; integers and decimals told apart."""


class Point(NamedTuple):
    """One line of input.

    Attributes:
      time: as it is written: in ms if it needs more than 32 bits, else in s.
      arrival_ms: modification time of its file.
    """

    series: SeriesName
    time: int
    value: int | float
    arrival_ms: int

    @property
    def in_ms(self) -> bool:
        """Whether the time is given in ms."""
        return self.time >= 2**32

    @property
    def time_ms(self) -> int:
        """The time in ms."""
        return self.time if self.in_ms else self.time * 1000


class StoredCell(NamedTuple):
    """One version of one cell."""

    key: bytes
    family: str
    qualifier: bytes
    timestamp_ms: int
    value: bytes


def content(points: Iterable[Point]) -> Content:
    """What a reader must find: of one instant the point of the newest file, in one file the last."""
    by_age = sorted(points, key=lambda point: point.arrival_ms)
    return {(point.series, point.time_ms): number(point.value) for point in by_age}


def point_cells(
    points: Iterable[Point], uids: Mapping[Name, bytes], options: OpenTsdbOptions
) -> set[StoredCell]:
    """The exact cells of `--packing points`: a column for each qualifier, with its newest arrival."""
    kept: dict[tuple[int, SeriesName, int], Point] = {}
    for point in points:
        kept[point.arrival_ms, point.series, point.time_ms] = point
    newest: dict[tuple[bytes, bytes], StoredCell] = {}
    for point in sorted(kept.values(), key=lambda point: point.arrival_ms):
        flags, value = _value_bytes(point.value)
        offset_ms = point.time_ms % 3_600_000
        if point.in_ms:
            qualifier = struct.pack(">I", 0xF << 28 | offset_ms << 6 | flags)
        else:
            qualifier = struct.pack(">H", offset_ms // 1000 << 4 | flags)
        key = row_key(point, uids, options)
        newest[key, qualifier] = StoredCell(key, "t", qualifier, point.arrival_ms, value)
    return set(newest.values())


def read_content(
    cells: Iterable[StoredCell], names: Mapping[tuple[str, bytes], str], options: OpenTsdbOptions
) -> Content:
    """What stands in the cells of the data table, given the names of UIDs by (kind, UID)."""
    rows: dict[bytes, list[tuple[int, bytes, bytes]]] = collections.defaultdict(list)
    for cell in cells:
        rows[cell.key].append((cell.timestamp_ms, cell.qualifier, cell.value))
    found: Content = {}
    for key, columns in rows.items():
        series, base = _read_key(key, names, options)
        for offset_ms, (_, element) in read_row(columns).items():
            value = read_value(element.flags, element.value)
            assert value is not None, f"flags {element.flags} in row {key.hex()}"
            found[series, base * 1000 + offset_ms] = value
    return found


def row_key(point: Point, uids: Mapping[Name, bytes], options: OpenTsdbOptions) -> bytes:
    """The key of the row that holds a point."""
    metric, tags = point.series
    head = uids[Name("metrics", metric)]
    tail = b"".join(sorted(uids[Name("tagk", key)] + uids[Name("tagv", value)] for key, value in tags))
    salt = b""
    if options.salt_width:
        salt = java_bucket(head + tail, options.salt_buckets).to_bytes(options.salt_width, "big")
    return salt + head + struct.pack(">I", point.time_ms // 3_600_000 * 3600) + tail


def _value_bytes(value: float) -> tuple[int, bytes]:
    """(flags, bytes) of a value, the shortest that hold it, as telnet `put` stores it."""
    if isinstance(value, float):
        short = struct.pack(">f", value) if abs(value) < 3e38 else b""
        exact = bool(short) and struct.unpack(">f", short)[0] == value
        return (0xB, short) if exact else (0xF, struct.pack(">d", value))
    for width, form in ((1, ">b"), (2, ">h"), (4, ">i"), (8, ">q")):
        if -(1 << (8 * width - 1)) <= value < 1 << (8 * width - 1):
            return width - 1, struct.pack(form, value)
    raise ValueError(f"{value} does not fit 64 bits")


def _read_key(
    key: bytes, names: Mapping[tuple[str, bytes], str], options: OpenTsdbOptions
) -> tuple[SeriesName, int]:
    """(series, base time in s) of a row key with UIDs of three bytes."""
    salt, key = key[: options.salt_width], key[options.salt_width :]
    metric, (base,), tail = key[:3], struct.unpack(">I", key[3:7]), key[7:]
    expected = java_bucket(metric + tail, options.salt_buckets) if salt else 0
    assert int.from_bytes(salt, "big") == expected, f"salt of {key.hex()}"
    tags = [
        (names["tagk", tail[at : at + 3]], names["tagv", tail[at + 3 : at + 6]])
        for at in range(0, len(tail), 6)
    ]
    return (names["metrics", metric], tuple(sorted(tags))), base
