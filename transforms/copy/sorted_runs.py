"""Sorts the points of a day by series and time, in memory that does not grow with their number.

Points are gathered into runs of a bounded size; each run is sorted and put into a file. Then the series are
read in their order, range by range: the points of a range are a slice of each run.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Int32s, Int64s, Kind
from timebeam.schema.bits.times import DAY_MS
from timebeam.schema.core.batches import join, latest_points
from timebeam.schema.core.points import PointBatch, Series

RUN_POINTS = 1 << 20
"""Points of a run: about 100 MB of memory while it is sorted."""

POINT_BYTES = 25
"""Bytes of a point in the file of a run, without its payload."""

RANGE_POINTS = 1 << 19
"""Points of a range, or those of one series if it has more on its day."""

_LEAST_POINTS = 16
"""Pieces of fewer points on average are sorted point by point."""


_COLUMNS: Mapping[str, type[np.generic]] = {
    "times_ms": np.int64,
    "kinds": np.uint8,
    "bits": np.int64,
    "arrivals_ms": np.int64,
}


class _SortedRun(NamedTuple):
    """Sorted points in a file: `_COLUMNS` one after the other; then, if some are bytes, the payloads.

    Payloads are int64[n + 1], where each begins and the last one ends, and the bytes; those of numbers are
    empty. The file is read, not mapped into memory: the pages of a map count as memory of the process.

    Attributes:
      series: those that have points, ascending.
      bounds: int64[k + 1], the first point of each series, and the number of points n.
    """

    path: Path
    series: Sequence[Series]
    bounds: Int64s
    has_payloads: bool

    def column(self, name: str, start: int, end: int) -> npt.NDArray[Any]:
        """The points from start to end of a column."""
        offset = 0
        for each, dtype in _COLUMNS.items():
            width = np.dtype(dtype).itemsize
            if each == name:
                return np.fromfile(self.path, dtype, end - start, offset=offset + start * width)
            offset += width * int(self.bounds[-1])
        raise KeyError(name)

    def payloads(self, start: int, end: int) -> list[bytes]:
        """The payloads of the points from start to end that have one."""
        if not self.has_payloads:
            return []
        offset = POINT_BYTES * int(self.bounds[-1])
        starts = np.fromfile(self.path, np.int64, end - start + 1, offset=offset + 8 * start)
        with self.path.open("rb") as file:
            file.seek(offset + 8 * (int(self.bounds[-1]) + 1) + int(starts[0]))
            raw = file.read(int(starts[-1] - starts[0]))
        starts -= starts[0]
        is_bytes = self.column("kinds", start, end) >= Kind.TEXT
        pairs = zip(starts[:-1][is_bytes].tolist(), starts[1:][is_bytes].tolist(), strict=True)
        return [raw[first:last] for first, last in pairs]


class SortedRuns:
    """The points of one UTC day.

    Args:
      folder: for the files of the runs, `POINT_BYTES` a point; the caller removes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[PointBatch] = []
        self._runs: list[_SortedRun] = []

    def add(self, batch: PointBatch) -> None:
        """Adds points; where a time of a series comes repeatedly, see `latest_points`."""
        self._pending.append(dataclasses.replace(batch, origins=None))
        if sum(map(len, self._pending)) >= RUN_POINTS:
            self._end_run()

    def series(self) -> list[Series]:
        """All series, ascending."""
        self._end_run()
        return sorted(frozenset[Series]().union(*(run.series for run in self._runs)))

    def ranges(self, *, by_metric: bool = False) -> Iterator[PointBatch]:
        """All points, ascending by series and time, each time once: about `RANGE_POINTS` at a time.

        The points of a series are in one batch, and the series of a batch are sorted.

        Args:
          by_metric: whether the points of a batch are of one metric.
        """
        series: list[Series] = []
        size = 0
        all_series = self.series()
        counts: collections.Counter[Series] = collections.Counter()
        for run in self._runs:
            counts.update(dict(zip(run.series, np.diff(run.bounds).tolist(), strict=True)))
        for each in all_series:
            is_other = by_metric and bool(series) and each.metric != series[-1].metric
            if series and (is_other or size + counts[each] > RANGE_POINTS):
                yield self._range(series)
                series, size = [], 0
            series.append(each)
            size += counts[each]
        if series:
            yield self._range(series)

    def _end_run(self) -> None:
        """Sorts the pending points, and puts them into a file."""
        pending, self._pending = [batch for batch in self._pending if len(batch)], []
        if not pending:
            return
        batch = _sorted(pending)
        numbers = np.flatnonzero(np.bincount(batch.index, minlength=len(batch.series)))
        bounds = np.append(np.searchsorted(batch.index, numbers), len(batch))
        path = self._folder / f"run-{len(self._runs):05}"
        with path.open("wb") as file:
            for name, dtype in _COLUMNS.items():
                getattr(batch, name).astype(dtype, copy=False).tofile(file)
            if batch.payloads:
                texts = np.flatnonzero(batch.kinds >= Kind.TEXT)
                payloads = [batch.payloads[number] for number in batch.bits[texts].tolist()]
                sizes = np.zeros(len(batch) + 1, np.int64)
                sizes[texts + 1] = list(map(len, payloads))
                np.cumsum(sizes).tofile(file)
                file.writelines(payloads)
        series = [batch.series[number] for number in numbers.tolist()]
        self._runs.append(_SortedRun(path, series, bounds, bool(batch.payloads)))

    def _range(self, series: Sequence[Series]) -> PointBatch:
        """The points of adjacent series."""
        slices: list[PointBatch] = []
        for run in self._runs:
            low, high = bisect.bisect_left(run.series, series[0]), bisect.bisect_right(run.series, series[-1])
            if low < high:
                span = int(run.bounds[low]), int(run.bounds[high])
                times_ms, kinds, bits, arrivals_ms = (run.column(name, *span) for name in _COLUMNS)
                payloads = run.payloads(*span)
                if payloads:
                    bits[kinds >= Kind.TEXT] = np.arange(len(payloads))
                counts = np.diff(run.bounds[low : high + 1])
                index = np.repeat(np.arange(high - low, dtype=np.int32), counts)
                in_ms = np.ones(len(index), np.bool_)
                columns = index, times_ms, in_ms, kinds, bits, arrivals_ms
                slices.append(PointBatch(run.series[low:high], *columns, payloads=payloads))
        return _sorted(slices)


def _sorted(batches: Sequence[PointBatch]) -> PointBatch:
    """The points of a day by series and time, each time once; the series sorted."""
    series = sorted(frozenset[Series]().union(*(batch.series for batch in batches)))
    ranks = {each: rank for rank, each in enumerate(series)}
    ranks_of = [np.array([ranks[each] for each in batch.series], np.int32) for batch in batches]
    pieces = _Pieces.of(batches, ranks_of)
    if pieces is not None:
        return pieces.joined(series, batches)
    batch = join(batches)
    index = np.array([ranks[each] for each in batch.series], np.int32)[batch.index]
    batch = dataclasses.replace(batch, series=series, index=index)
    place = index * np.int64(DAY_MS)
    place += batch.times_ms  # of one day, so of one series before the next one
    order = np.argsort(place, kind="stable")
    place = place[order]
    if (place[1:] == place[:-1]).any():
        order = latest_points(index, batch.times_ms, batch.arrivals_ms)
    return batch.take(order)


class _Pieces(NamedTuple):
    """Pieces of batches, each the points [start, end) of one series, in the order of series and time.

    Attributes:
      numbers: of the batches.
      ranks: of the series.
    """

    numbers: Int64s
    ranks: Int32s
    starts: Int64s
    ends: Int64s

    @classmethod
    def of(cls, batches: Sequence[PointBatch], ranks_of: Sequence[Int32s]) -> _Pieces | None:
        """The pieces of batches of numbers; None if they are short, or several may have one time.

        Args:
          ranks_of: for each batch, the rank of each of its series.
        """
        if any(batch.payloads for batch in batches):
            return None
        pieces, extents = [], []
        for number, (batch, ranks) in enumerate(zip(batches, ranks_of, strict=True)):
            index, times_ms = batch.index, batch.times_ms
            is_first = (index[1:] != index[:-1]) | (times_ms[1:] <= times_ms[:-1])
            starts = np.append(0, np.flatnonzero(is_first) + 1)
            ends = np.append(starts[1:], len(index))
            pieces.append((np.full(len(starts), number), ranks[index[starts]], starts, ends))
            extents.append((times_ms[starts], times_ms[ends - 1]))
        numbers, ranks, starts, ends = map(np.concatenate, zip(*pieces, strict=True))
        firsts_ms, lasts_ms = map(np.concatenate, zip(*extents, strict=True))
        if len(ranks) * _LEAST_POINTS > sum(map(len, batches)):
            return None
        order = np.lexsort((firsts_ms, ranks))
        is_same = ranks[order[1:]] == ranks[order[:-1]]
        if (is_same & (firsts_ms[order[1:]] <= lasts_ms[order[:-1]])).any():
            return None
        return cls(numbers[order], ranks[order], starts[order], ends[order])

    def joined(self, series: Sequence[Series], batches: Sequence[PointBatch]) -> PointBatch:
        """The points of the pieces."""
        spans = list(zip(self.numbers.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True))

        def column(name: str) -> npt.NDArray[Any]:
            columns = [getattr(batch, name) for batch in batches]
            return np.concatenate([columns[number][start:end] for number, start, end in spans])

        index = np.repeat(self.ranks, self.ends - self.starts)
        return PointBatch(
            series,
            index,
            column("times_ms"),
            np.ones(len(index), np.bool_),
            column("kinds"),
            column("bits"),
            column("arrivals_ms"),
        )
