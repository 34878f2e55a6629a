"""Partial results of intervals (rollups, points, a batch of points), merged into one value each.

Rollups and points cover different times: avg is the sum of the sums divided by the sum of the counts, and a
point is treated as a rollup of one point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Floats, Int64s, Kind, Values, to_floats
from timebeam.schema.core.batches import latest_points, run_starts
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.query.downsample import FUNCTIONS, Downsampling

NUMBERS = {
    "sum": ("sum",),
    "count": ("count",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
    "first": ("first",),
    "last": ("last",),
}
"""The downsampling functions that partial results can answer, and the numbers that each needs."""


class Partials(NamedTuple):
    """n rollups or points of one series or group.

    Attributes:
      times_ms: int64[n], the start of each rollup's interval, or the time of the point.
      numbers: float64[k, n], those in `NUMBERS`, in that order.
    """

    times_ms: Int64s
    numbers: Floats

    def take(self, indices: Bools) -> Partials:
        """A selection."""
        return Partials(self.times_ms[indices], self.numbers[:, indices])


def of_points(function: str, times_ms: Int64s, values: Values) -> Partials:
    """Points int64[n] or float64[n] as rollups of one point each; NaN is not counted."""
    floats = to_floats(values)
    is_number = (~np.isnan(floats)).astype(np.float64)
    return Partials(
        times_ms, np.stack([is_number if name == "count" else floats for name in NUMBERS[function]])
    )


def joined(function: str, interval_ms: int, partials: Sequence[Partials]) -> tuple[Int64s, Floats]:
    """One value for each interval that has rollups or points.

    >>> minutes = Partials(np.array([0, 60_000, 120_000]), np.array([[6.0, 2.0, 4.0], [3.0, 1.0, 1.0]]))
    >>> starts_ms, averages = joined("avg", 120_000, [minutes])  # (6 + 2) / (3 + 1), 4 / 1
    >>> starts_ms.tolist(), averages.tolist()
    ([0, 120000], [2.0, 4.0])

    Args:
      function: a key of `NUMBERS`.
      interval_ms: of the downsampling; a multiple of the rollups' interval.
      partials: at least one, of disjoint times.

    Returns:
      int64[m] starts of intervals in ms, strictly increasing, and float64[m] values.
    """
    times_ms = np.concatenate([partial.times_ms for partial in partials])
    order = np.argsort(times_ms, kind="stable")
    starts_ms = times_ms[order] // interval_ms * interval_ms
    numbers = np.concatenate([partial.numbers for partial in partials], axis=1)[:, order]
    if not len(starts_ms):
        return starts_ms, np.empty(0, np.float64)
    firsts = np.flatnonzero(np.diff(starts_ms, prepend=starts_ms[0] - 1))
    return starts_ms[firsts], _merged(function, numbers, firsts)


def _merged(function: str, numbers: Floats, firsts: Int64s) -> Floats:
    """float64[m]: the values of intervals from their partial results.

    Args:
      numbers: float64[k, n], as in `Partials`, in the order of intervals and of time.
      firsts: int64[m], the first partial result of each interval.
    """
    if function == "avg":
        sums, counts = (FUNCTIONS["sum"](numbers_of, firsts) for numbers_of in numbers)
        averages: Floats = sums / np.maximum(counts, 1)
        return averages
    return FUNCTIONS["sum" if function == "count" else function](numbers[0], firsts)


class IntervalSeries(NamedTuple):
    """The intervals of one series.

    Attributes:
      starts_ms: int64[n], strictly increasing; of the first interval only some points may have been read.
      values: float64[n].
      skipped: values that are not numbers.
    """

    series: Series
    starts_ms: Int64s
    values: Floats
    skipped: int


class Intervals:
    """Downsamples many series while their points are read: in memory are intervals, not points.

    Each batch gives a partial result for each of its intervals; those of one interval are merged in the end.

    Args:
      how: a downsampling that `takes` accepts.
    """

    def __init__(self, how: Downsampling) -> None:
        assert how.interval_ms is not None
        self._function, self._interval_ms = how.function, how.interval_ms
        self._series: dict[Series, int] = {}
        self._skipped: dict[int, int] = {}
        self._lasts_ms = np.zeros(0, np.int64)
        """The last time of each series."""
        self._partials: list[tuple[Int64s, Int64s, Floats]] = []
        """The number of the series, the first time, and the numbers of `NUMBERS`."""

    @staticmethod
    def takes(how: Downsampling | None) -> bool:
        """Whether a downsampling can be computed so: its intervals have one length, its function a merge."""
        return (
            how is not None
            and how.interval_ms is not None
            and how.calendar is None
            and how.function in NUMBERS
        )

    def add(self, batch: PointBatch) -> bool:
        """Adds points; within a batch the latest arrival wins a time.

        Returns:
          False if a series has points that are not later than those of the batches before: one time may
          be in two batches, so all points must be read together.
        """
        if not len(batch):
            return True
        starts = run_starts(batch.index)
        runs = _runs(batch, starts)
        later = batch.times_ms[1:] > batch.times_ms[:-1]
        later[starts[1:] - 1] = True
        # Without other values two runs of a series may become one, which is in order only if they were.
        if batch.kinds.max() > Kind.FLOAT or not later.all() or _overlap(*runs):
            batch = batch.take(latest_points(batch.index, batch.times_ms, batch.arrivals_ms))
            starts = run_starts(batch.index)
            runs = _runs(batch, starts)
        renumber = np.zeros(len(batch.series), np.int64)
        for number in np.flatnonzero(np.bincount(runs[0])).tolist():
            renumber[number] = self._series.setdefault(batch.series[number], len(self._series))
        if not self._continues(renumber[runs[0]], *runs[1:]):
            return False
        is_number = batch.kinds <= Kind.FLOAT
        if not is_number.all():
            skipped = np.bincount(renumber[batch.index[~is_number]])
            for number in np.flatnonzero(skipped).tolist():
                self._skipped[number] = self._skipped.get(number, 0) + int(skipped[number])
            batch = batch.take(np.flatnonzero(is_number))
            if not len(batch):
                return True
            starts = run_starts(batch.index)
        starts_ms = batch.times_ms // self._interval_ms
        is_first = np.ones(len(batch), np.bool_)
        np.not_equal(starts_ms[1:], starts_ms[:-1], out=is_first[1:])
        is_first[starts] = True
        firsts = np.flatnonzero(is_first)
        floats = batch.floats
        with np.errstate(invalid="ignore", over="ignore"):  # what overflows is an infinity
            numbers = np.stack([FUNCTIONS[name](floats, firsts) for name in NUMBERS[self._function]])
        self._partials.append((renumber[batch.index[firsts]], batch.times_ms[firsts], numbers))
        return True

    def _continues(self, series_numbers: Int64s, firsts_ms: Int64s, lasts_ms: Int64s) -> bool:
        """Whether runs of points are later than what their series have; notes their last times."""
        new = np.full(len(self._series) - len(self._lasts_ms), np.iinfo(np.int64).min)
        self._lasts_ms = np.append(self._lasts_ms, new)
        is_later = bool((firsts_ms > self._lasts_ms[series_numbers]).all())
        np.maximum.at(self._lasts_ms, series_numbers, lasts_ms)
        return is_later

    def result(self) -> Iterator[IntervalSeries]:
        """The series that have points, in the order in which they came first."""
        if not self._partials:
            for series, number in self._series.items():
                yield IntervalSeries(series, np.empty(0, np.int64), np.empty(0), self._skipped[number])
            return
        numbers_of, times_of, partials_of = zip(*self._partials, strict=True)
        series_numbers, times_ms = np.concatenate(numbers_of), np.concatenate(times_of)
        order = np.lexsort((times_ms, series_numbers))
        series_numbers, starts_ms = series_numbers[order], times_ms[order] // self._interval_ms
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (starts_ms[1:] != starts_ms[:-1]) | (series_numbers[1:] != series_numbers[:-1])
        firsts = np.flatnonzero(is_first)
        with np.errstate(invalid="ignore", over="ignore"):
            values = _merged(self._function, np.concatenate(partials_of, axis=1)[:, order], firsts)
        starts_ms = starts_ms[firsts] * self._interval_ms
        bounds = np.searchsorted(series_numbers[firsts], np.arange(len(self._series) + 1)).tolist()
        for (series, number), low, high in zip(self._series.items(), bounds[:-1], bounds[1:], strict=True):
            yield IntervalSeries(series, starts_ms[low:high], values[low:high], self._skipped.get(number, 0))


def _runs(batch: PointBatch, starts: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """(number of the series, first time, last time) int64[r] of each run."""
    lasts = np.append(starts[1:], len(batch)) - 1
    return batch.index[starts].astype(np.int64), batch.times_ms[starts], batch.times_ms[lasts]


def _overlap(series_numbers: Int64s, firsts_ms: Int64s, lasts_ms: Int64s) -> bool:
    """Whether two runs of one series may have the same time."""
    order = np.lexsort((firsts_ms, series_numbers))
    series_numbers, firsts_ms, lasts_ms = series_numbers[order], firsts_ms[order], lasts_ms[order]
    return bool(((series_numbers[1:] == series_numbers[:-1]) & (firsts_ms[1:] <= lasts_ms[:-1])).any())
