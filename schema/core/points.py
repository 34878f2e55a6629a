"""The records that flow through every pipeline: series, batches of points, and rejected input.

Nothing here knows a wire format or a stored layout. Times are milliseconds since 1970-01-01 UTC
unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Floats, Int32s, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Origins, Rejected, Stage

FIRST_MILLISECOND = 1 << 32
"""Timestamps are milliseconds from this one on, else seconds (core/Const.SECOND_MASK)."""

LAST_MILLISECOND = (1 << 32) * 1000 - 1
"""The last millisecond whose base time fits 32 bits of seconds: 2106-02-07T06:28:15.999Z. OpenTSDB
takes up to 9999999999999 and wraps the base time; those are rejected here."""


def source_checksum(source: str) -> int:
    """The rank of a source among those whose input arrived at one time: the greatest one wins."""
    return zlib.crc32(source.encode())


class HistogramBytes(bytes):
    """A histogram as OpenTSDB stores it: the id of a codec, and what this codec defines."""


Value = int | float | str | bytes


class Series(NamedTuple):
    """A metric and its tags, the tags sorted by key so that equal series compare equal.

    A tuple, since it is the key of every cache and a tuple's hash costs half of a dataclass's.

    >>> series = Series.of("sys.load", {"host": "web01", "dc": "lga"})
    >>> series.tags, str(series)
    ((('dc', 'lga'), ('host', 'web01')), 'sys.load{dc=lga,host=web01}')
    """

    metric: str
    tags: tuple[tuple[str, str], ...]
    resources: tuple[tuple[str, str], ...] = ()
    """Heroic's second kind of tags, also sorted; most layouts cannot store them."""

    @classmethod
    def of(cls, metric: str, tags: dict[str, str], resources: dict[str, str] | None = None) -> Series:
        """The series of a metric and a mapping of tag keys to tag values."""
        return cls(metric, tuple(sorted(tags.items())), tuple(sorted(resources.items())) if resources else ())

    def __str__(self) -> str:
        pairs = [f"{key}={value}" for key, value in self.tags + self.resources]
        return self.metric + "{" + ",".join(pairs) + "}"


def add_tag(tags: dict[str, str], key: str, value: str) -> None:
    """Adds a tag; equal tags count once (core/Tags.parse).

    Raises:
      RejectedError: DUPLICATE_TAG; the key already has another value.
    """
    if tags.setdefault(key, value) != value:
        raise RejectedError(Reason.DUPLICATE_TAG, f"duplicate tag: {key}={tags[key]} and {key}={value}")


class SeriesKey(NamedTuple):
    """What the row keys of one series share: the bytes before and after the time."""

    head: bytes
    tail: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class PointBatch:
    """n points in columns.

    Attributes:
      series: the k distinct series of the batch.
      index: int32[n], the number of each point's series.
      times_ms: int64[n], the time of each point in ms.
      in_ms: bool[n], whether the time was given in milliseconds, not seconds; OpenTSDB's layout stores both
        differently.
      kinds: uint8[n], a `Kind` each.
      bits: int64[n], the value, by its kind: a signed 64-bit integer, the bits of a float64, or an index into
        `payloads`.
      arrivals_ms: int64[n], the publish time of the point's message or the modification time of its file.
        Becomes the cell timestamp, so that a later correction of a point wins.
      origins: the input of the points, while it is available.
      payloads: the values that are bytes (kinds from TEXT on).
      keys: the key of each series, once they are assigned; None for a series without points in the batch.
    """

    series: Sequence[Series]
    index: Int32s
    times_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    arrivals_ms: Int64s
    origins: Origins | None = None
    payloads: Sequence[bytes] = ()
    keys: Sequence[SeriesKey | None] = ()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def floats(self) -> Floats:
        """float64[n]: the values as floats, integers above 2**53 rounded. Only for numbers."""
        is_float = self.kinds == Kind.FLOAT
        floats = self.bits.view(np.float64)
        if is_float.all():
            return floats
        integers = self.bits.astype(np.float64)
        return np.where(is_float, floats, integers) if is_float.any() else integers

    def take(self, indices: Int64s | slice) -> PointBatch:
        """The points at `indices`, with the same list of series; a slice gives views."""
        return PointBatch(
            self.series,
            self.index[indices],
            self.times_ms[indices],
            self.in_ms[indices],
            self.kinds[indices],
            self.bits[indices],
            self.arrivals_ms[indices],
            self.origins.take(indices) if self.origins else None,
            self.payloads,
            self.keys,
        )

    def reject(self, points: Int64s, why: Callable[[int], RejectedError], stage: Stage) -> list[Rejected]:
        """The rejections of points: one for all that a payload holds and one reason rejects
        (`Origins.reject`).

        Args:
          why: says why a point is rejected, by its number.

        Returns:
          Without origins: one for each point, with a line of JSON.
        """
        if self.origins is not None:
            return self.origins.reject(points, why, stage, self.arrivals_ms)
        reasons = [(point, why(point)) for point in points.tolist()]
        return [
            Rejected(
                self.as_json(point),
                error.reason,
                error.message,
                stage,
                arrival_ms=int(self.arrivals_ms[point]),
            )
            for point, error in reasons
        ]

    def points(self) -> Iterator[tuple[Series, int, int | float | str | bytes]]:
        """Each point as (series, time in ms, value): for tests and small outputs, not hot paths."""
        for i in range(len(self)):
            yield self.series[self.index[i]], int(self.times_ms[i]), self.value(i)

    def value(self, point: int) -> int | float | str | bytes:
        """The value of one point: for tests, small outputs and rejections."""
        kind, bits = self.kinds[point], self.bits[point]
        if kind == Kind.FLOAT:
            return float(bits.view(np.float64))
        if kind == Kind.INTEGER:
            return int(bits)
        payload = self.payloads[bits]
        return payload.decode() if kind == Kind.TEXT else payload

    def as_json(self, point: int) -> bytes:
        """One point as JSON: metric, timestamp (in the given unit, ms or s), value and tags.

        A value that is not a number becomes an object, and tags with resources become an object of both. A
        reader that expects only tags and numbers rejects such a point instead of reading another one.
        """
        series, value = self.series[self.index[point]], self.value(point)
        time_ms, tags = int(self.times_ms[point]), dict(series.tags)
        members: dict[str, object] = {
            "metric": series.metric,
            "timestamp": time_ms if self.in_ms[point] else time_ms // 1000,
            "value": value,
            "tags": {"tags": tags, "resources": dict(series.resources)} if series.resources else tags,
        }
        if isinstance(value, str):
            members["value"] = {"text": value}
        elif isinstance(value, bytes):
            members["value"] = {"hex": value.hex()}
        elif not math.isfinite(value):
            members["value"] = {"text": repr(value)}
        return json.dumps(members).encode()

    @classmethod
    def of(
        cls,
        points: Sequence[tuple[Series, int, bool, Value]],
        arrival_ms: int,
        origins: Origins | None = None,
    ) -> PointBatch:
        """A batch from (series, time in ms, given in ms?, value) records; for small inputs.

        >>> series = Series.of("sys.cpu", {"host": "a"})
        >>> points = [(series, 1356998400_000, False, 42), (series, 1356998401_500, True, 0.5)]
        >>> batch = PointBatch.of(points, arrival_ms=9000)
        >>> batch.index.tolist(), batch.times_ms.tolist(), batch.in_ms.tolist(), batch.kinds.tolist()
        ([0, 0], [1356998400000, 1356998401500], [False, True], [0, 1])
        >>> [hex(bits) for bits in batch.bits.tolist()]
        ['0x2a', '0x3fe0000000000000']

        Raises:
          OverflowError: an integer value needs more than 64 bits.
        """
        numbers: dict[Series, int] = {}
        index = [numbers.setdefault(point[0], len(numbers)) for point in points]
        n = len(points)
        kinds, bits, payloads = value_columns([point[3] for point in points])
        return cls(
            tuple(numbers),
            np.array(index, np.int32),
            np.fromiter((point[1] for point in points), np.int64, n),
            np.fromiter((point[2] for point in points), np.bool_, n),
            kinds,
            bits,
            np.full(n, arrival_ms, np.int64),
            origins,
            payloads,
        )


_KIND_OF = {
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    str: Kind.TEXT,
    bytes: Kind.OPAQUE,
    HistogramBytes: Kind.HISTOGRAM,
}


def value_columns(values: Sequence[Value]) -> tuple[Bytes, Int64s, list[bytes]]:
    """(kinds uint8[n], bits int64[n], payloads) of n values, as in `PointBatch`.

    Raises:
      OverflowError: an integer needs more than 64 bits.
    """
    n = len(values)
    kinds = np.fromiter(map(_KIND_OF.__getitem__, map(type, values)), np.uint8, n)
    floats = kinds == Kind.FLOAT
    if floats.all():
        return kinds, np.array(values, np.float64).view(np.int64), []
    bits = np.empty(n, np.int64)
    bits.view(np.float64)[floats] = [value for value in values if type(value) is float]
    bits[kinds == Kind.INTEGER] = [value for value in values if type(value) is int]
    others = [value for value in values if isinstance(value, (str, bytes))]
    bits[kinds >= Kind.TEXT] = np.arange(len(others))
    return kinds, bits, [value.encode() if isinstance(value, str) else value for value in others]
