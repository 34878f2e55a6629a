"""A load of points in numbers, and a sample of it to encode.

Names and values of the sample follow a fixed rule without randomness, so the figures are always the same.
"""

from __future__ import annotations

import dataclasses
import enum
import math

import numpy as np

from timebeam.schema.layouts.base import Layout
from timebeam.schema.layouts.writing import Name
from timebeam.schema.points import Int64s, Kind, PointBatch, Series

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: rows of the sample begin there or later."""


class Values(enum.StrEnum):
    """The kind of values of a load."""

    INTEGERS = "integers"
    """Counters below 2^31."""
    DECIMALS = "decimals"
    """Gauges with two decimal places."""
    MIXED = "mixed"
    """Alternating series of both kinds."""


@dataclasses.dataclass(frozen=True, slots=True)
class SizingLoad:
    """The load to store.

    Attributes:
      series: their number.
      interval_ms: from one point of a series to its next.
      retention_s: how long points are kept.
      metrics: number of metrics; series are spread evenly over them.
      tags: number of tags of each series.
      tag_values: number of distinct values of all tag keys together.
      name_length: characters of metrics, tag keys and tag values.
      together: points of a series in one message.
      flush_s: how long a stream gathers points before it packs them.
    """

    series: int
    interval_ms: int
    retention_s: float
    metrics: int
    tags: int
    tag_values: int
    name_length: int
    values: Values
    together: int
    flush_s: float

    def __post_init__(self) -> None:
        if self.metrics > self.series:
            raise ValueError(f"{self.metrics:,} metrics are more than {self.series:,} series")
        if self.name_length < len(str(max(self.metrics, self.tag_values))) + 1:
            raise ValueError(
                f"names of {self.name_length} characters are too short for {self.tag_values:,} values"
            )

    @property
    def points_per_second(self) -> float:
        """Points per second of all series."""
        return self.series * 1000 / self.interval_ms

    @property
    def series_per_metric(self) -> int:
        """The number of series of the largest metric."""
        return math.ceil(self.series / self.metrics)

    @property
    def names(self) -> dict[str, int]:
        """The number of distinct names by kind, as counted by OpenTSDB's UID table."""
        return {"metrics": self.metrics, "tagk": self.tags, "tagv": self.tag_values}

    def sample_series(self, number: int) -> Series:
        """The series with a number; numbers within a metric are `metrics` apart."""
        shared_tags = self.tags - 1  # which have one value each; the first tag tells the series apart
        of_first = (number // self.metrics) % max(1, self.tag_values - shared_tags)
        values = [shared_tags + of_first, *range(shared_tags)]
        tags = {self._name("k", place): self._name("v", value) for place, value in enumerate(values)}
        return Series.of(self._name("m", number % self.metrics), tags)

    def points(self, numbers: range, count: int, start_ms: int, together: int) -> PointBatch:
        """`count` points of each series from `start_ms` on; a series' points arrive `together` at a time."""
        indexes = np.arange(count, dtype=np.int64)
        times_ms = start_ms + indexes * self.interval_ms
        n = len(numbers)
        kinds = np.empty((n, count), np.uint8)
        bits = np.empty((n, count), np.int64)
        for row, number in enumerate(numbers):
            kinds[row], bits[row] = self._values(number, indexes)
        arrivals_ms = start_ms + (indexes // together) * together * self.interval_ms
        return PointBatch(
            tuple(self.sample_series(number) for number in numbers),
            np.repeat(np.arange(n, dtype=np.int32), count),
            np.tile(times_ms, n),
            np.full(n * count, bool(self.interval_ms % 1000)),
            kinds.ravel(),
            bits.ravel(),
            np.tile(arrivals_ms, n),
        )

    def _name(self, first: str, number: int) -> str:
        return first + str(number).zfill(self.name_length - 1)

    def _values(self, number: int, indexes: Int64s) -> tuple[Kind, Int64s]:
        """The kind of a series' values, and their bits int64[n]."""
        walk = (indexes * 7919 + number * 104_729) % 9973
        if self.values is Values.INTEGERS or (self.values is Values.MIXED and number % 2 == 0):
            return Kind.INTEGER, walk + indexes * 1000
        return Kind.FLOAT, (walk / 100).view(np.int64)


class Uids:
    """Assigns consecutive UIDs to the names of a sample."""

    def __init__(self, layout: Layout) -> None:
        self._widths = layout.uids.widths if layout.uids else {}
        self._uids: dict[Name, bytes] = {}
        self._last = dict.fromkeys(self._widths, 0)

    def assign(self, layout: Layout, series: Series) -> dict[Name, bytes]:
        """The UID of each name of a series."""
        uids = {}
        for name in layout.names(series):
            if name not in self._uids:
                self._last[name.kind] += 1
                # Names beyond the last id do not change the size of keys; the plan warns about them.
                number = self._last[name.kind] % (1 << 8 * self._widths[name.kind])
                self._uids[name] = number.to_bytes(self._widths[name.kind], "big")
            uids[name] = self._uids[name]
        return uids
