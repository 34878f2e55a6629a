"""Gathers the points of a text record by record, and makes one batch of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.core.points import PointBatch, Series, Value, value_columns
from timebeam.schema.core.rejections import Origins


class PointBuilder:
    """Points whose times are in ms, in the order of their records.

    >>> builder = PointBuilder(b"first second", arrival_ms=9000)
    >>> series = builder.number_of(Series.of("sys.cpu", {"host": "a"}))
    >>> builder.add_many(series, [1356998400_000, 1356998401_500], [42, 0.5], 0, 5)
    >>> builder.add(series, 1356998402_000, "text", 6, 12)
    >>> batch = builder.batch()
    >>> batch.times_ms.tolist(), batch.kinds.tolist(), batch.origins.starts.tolist()
    ([1356998400000, 1356998401500, 1356998402000], [0, 1, 2], [0, 0, 6])
    """

    def __init__(self, text: bytes, arrival_ms: int, source: str = "", offset: int = 0) -> None:
        """Gathers points whose spans are in a text, which begins at `offset` of its source."""
        self._text, self._arrival_ms, self._source, self._offset = text, arrival_ms, source, offset
        self._numbers: dict[Series, int] = {}
        self._times: list[int] = []
        self._values: list[Value] = []
        self._records: list[tuple[int, int, int, int]] = []  # (series, start, end, points)

    def __len__(self) -> int:
        return len(self._times)

    def number_of(self, series: Series) -> int:
        """The number of a series in the batch."""
        return self._numbers.setdefault(series, len(self._numbers))

    def add(self, series: int, time_ms: int, value: Value, start: int, end: int) -> None:
        """Adds a point of the record from `start` to `end`."""
        self._times.append(time_ms)
        self._values.append(value)
        self._records.append((series, start, end, 1))

    def add_many(
        self, series: int, times_ms: Sequence[int], values: Sequence[Value], start: int, end: int
    ) -> None:
        """Adds points of one series and one record."""
        self._times += times_ms
        self._values += values
        self._records.append((series, start, end, len(times_ms)))

    def batch(self) -> PointBatch:
        """All points.

        Raises:
          OverflowError: an integer value needs more than 64 bits.
        """
        n = len(self._times)
        records = np.array(self._records, np.int64).reshape(-1, 4)
        series, starts, ends = np.repeat(records[:, :3], records[:, 3], axis=0).T
        kinds, bits, payloads = value_columns(self._values)
        return PointBatch(
            tuple(self._numbers),
            series.astype(np.int32),
            np.array(self._times, np.int64),
            np.ones(n, np.bool_),
            kinds,
            bits,
            np.full(n, self._arrival_ms, np.int64),
            Origins(self._text, starts, ends, self._source, self._offset),
            payloads,
        )
