"""How the values of several series at one time become one, column by column.

core/Aggregators of OpenTSDB 2.4.1: integers in the arithmetic of Java's long (wrapping, truncated toward
zero), floats with NaN as no value where the table in docs/spec/opentsdb.md §8.4 says so.

A fold is fed one series at a time, in the order of the group, and holds a few columns of the result only.
Medians and percentiles need all values of a time at once: they are fed into a matrix (`ranked`).

Percentiles of sorted columns are estimated as by Apache Commons Math for OpenTSDB:
stat/descriptive/rank/Percentile of commons-math 3.4, estimation types LEGACY, R_3 and R_7. An estimate lies
between two neighbours of the sorted values, counted from 1: at `position`, which may be a fraction.
"""

from __future__ import annotations

import abc
import enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Floats, Int64s


class Estimation(enum.Enum):
    """How the position follows from the percentile and the number of values."""

    LEGACY = enum.auto()
    R3 = enum.auto()
    R7 = enum.auto()


class Neighbours(NamedTuple):
    """Where the estimates lie.

    Attributes:
      lower, upper: int64[n], indexes into the sorted values, from 0.
      fraction: float64[n], how far from the lower to the upper.
    """

    lower: Int64s
    upper: Int64s
    fraction: Floats


def neighbours(percent: float, counts: Int64s, estimation: Estimation) -> Neighbours:
    """The neighbours of a percentile among `counts` sorted values each; of none they are those of one."""
    share = percent / 100
    sizes = np.maximum(counts, 1).astype(np.float64)
    match estimation:
        case Estimation.LEGACY:
            positions = sizes if share == 1 else share * (sizes + 1)
        case Estimation.R3:
            positions = np.where(share <= 0.5 / sizes, 0.0, np.rint(sizes * share))
        case Estimation.R7:
            positions = sizes if share == 1 else 1 + (sizes - 1) * share
    floors = np.floor(positions)
    is_inside = (positions >= 1) & (positions < sizes)
    lower = np.clip(floors - 1, 0, sizes - 1).astype(np.int64)
    lower = np.where(positions >= sizes, sizes.astype(np.int64) - 1, lower)
    return Neighbours(lower, lower + is_inside, np.where(is_inside, positions - floors, 0.0))


def between(lower: Floats, upper: Floats, fraction: Floats) -> Floats:
    """The estimates, from the values of the neighbours."""
    rise = np.where(fraction > 0, upper - lower, 0.0)
    estimates: Floats = lower + fraction * rise
    return estimates


Exact = Int64s | Floats
Places = slice | npt.NDArray[np.intp]
"""Where in the columns of the result the values of a series belong."""


class Fold(enum.Enum):
    """The kinds of folds."""

    SUM = enum.auto()
    SQUARE_SUM = enum.auto()
    MIN = enum.auto()
    MAX = enum.auto()
    AVG = enum.auto()
    COUNT = enum.auto()
    MULTIPLY = enum.auto()
    FIRST = enum.auto()
    LAST = enum.auto()
    DIFF = enum.auto()
    DEV = enum.auto()
    MEDIAN = enum.auto()
    PERCENTILE = enum.auto()


RANKED = (Fold.MEDIAN, Fold.PERCENTILE)
"""The folds that need all values of a time at once."""

OF_ONE_ITSELF = (*RANKED, Fold.SUM, Fold.MIN, Fold.MAX, Fold.AVG, Fold.MULTIPLY, Fold.FIRST, Fold.LAST)
"""The folds that make of a single value that value."""


class FoldColumns(abc.ABC):
    """A fold of n times: a series is added at a time, then the result is taken."""

    @abc.abstractmethod
    def add(self, places: Places, samples: Exact) -> None:
        """Adds the values that a series has at some of the times."""

    def add_all(self, samples: Exact) -> None:
        """Adds the values of k series that each have one at every time: int64[k, n] or float64[k, n]."""
        for values in samples:
            self.add(slice(None), values)

    @abc.abstractmethod
    def result(self) -> Exact:
        """int64[n] or float64[n]."""


class _SumFold(FoldColumns):
    """SUM, SQUARE_SUM, AVG and COUNT."""

    def __init__(self, fold: Fold, size: int, dtype: type) -> None:
        self._fold = fold
        self._totals: Exact = np.zeros(size, dtype)
        self._counts = np.zeros(size, np.int64)

    def add(self, places: Places, samples: Exact) -> None:
        """See `FoldColumns.add`. A NaN counts as no value."""
        is_number: npt.NDArray[np.bool_] | int = 1
        if samples.dtype == np.float64:
            is_number = ~np.isnan(samples)
            if not is_number.all():
                samples = np.where(is_number, samples, 0.0)
        if self._fold is Fold.SQUARE_SUM:
            samples = samples * samples
        self._totals[places] += samples
        self._counts[places] += is_number

    def add_all(self, samples: Exact) -> None:
        if samples.dtype == np.float64 and np.isnan(samples.min(initial=0.0)):
            super().add_all(samples)
            return
        if self._fold is Fold.SQUARE_SUM:
            samples = samples * samples
        self._totals += samples.sum(axis=0)
        self._counts += len(samples)

    def result(self) -> Exact:
        """See `FoldColumns.result`: NaN where there is no value, but for COUNT."""
        is_float = self._totals.dtype == np.float64
        if self._fold is Fold.COUNT:
            return self._counts.astype(np.float64) if is_float else self._counts
        totals: Exact = self._totals
        if self._fold is Fold.AVG:
            totals = divided(totals, np.maximum(self._counts, 1))
        return np.where(self._counts == 0, np.nan, totals) if is_float else totals


class _Extremes(FoldColumns):
    """MIN and MAX."""

    def __init__(self, fold: Fold, size: int, dtype: type) -> None:
        if dtype is np.float64:
            self._extremes: Exact = np.full(size, np.nan)
            self._choose: np.ufunc = np.fmin if fold is Fold.MIN else np.fmax
        else:
            limits = np.iinfo(np.int64)
            self._extremes = np.full(size, limits.max if fold is Fold.MIN else limits.min, np.int64)
            self._choose = np.minimum if fold is Fold.MIN else np.maximum

    def add(self, places: Places, samples: Exact) -> None:
        """See `FoldColumns.add`. A NaN counts as no value."""
        self._extremes[places] = self._choose(self._extremes[places], samples)

    def add_all(self, samples: Exact) -> None:
        self.add(slice(None), self._choose.reduce(samples, axis=0))

    def result(self) -> Exact:
        """See `FoldColumns.result`: NaN where there is no value."""
        return self._extremes


class _Products(FoldColumns):
    """MULTIPLY."""

    def __init__(self, size: int, dtype: type) -> None:
        self._products: Exact = np.ones(size, dtype)

    def add(self, places: Places, samples: Exact) -> None:
        """See `FoldColumns.add`. A NaN makes the product NaN."""
        self._products[places] *= samples

    def result(self) -> Exact:
        return self._products


class _EndFold(FoldColumns):
    """FIRST, LAST and DIFF: the first value, which may be NaN for FIRST alone, and the last one."""

    def __init__(self, fold: Fold, size: int, dtype: type) -> None:
        self._fold = fold
        self._firsts: Exact = np.zeros(size, dtype)
        self._lasts: Exact = np.zeros(size, dtype)
        self._has_first, self._has_second = np.zeros(size, np.bool_), np.zeros(size, np.bool_)

    def add(self, places: Places, samples: Exact) -> None:
        had_first = self._has_first[places]
        self._firsts[places] = np.where(had_first, self._firsts[places], samples)
        self._lasts[places] = samples
        self._has_second[places] |= had_first
        if self._fold is Fold.DIFF and samples.dtype == np.float64:
            self._has_first[places] |= ~np.isnan(samples)
        else:
            self._has_first[places] = True

    def result(self) -> Exact:
        """See `FoldColumns.result`: the difference of a single value is 0."""
        if self._fold is Fold.FIRST:
            return self._firsts
        if self._fold is Fold.LAST:
            return self._lasts
        differences = np.where(self._has_second, self._lasts - self._firsts, 0)
        if differences.dtype == np.float64:
            differences[~self._has_first] = np.nan
        return differences


class _Deviations(FoldColumns):
    """DEV: the population standard deviation by Welford's method, step for step as a TSD computes it."""

    def __init__(self, size: int, dtype: type) -> None:
        self._dtype = dtype
        self._counts, self._means, self._squares = np.zeros(size, np.int64), np.zeros(size), np.zeros(size)

    def add(self, places: Places, samples: Exact) -> None:
        """See `FoldColumns.add`. A NaN counts as no value."""
        values = samples.astype(np.float64, copy=False)
        counts = self._counts[places] + ~np.isnan(values)
        old = self._means[places]
        new = np.where(counts == 1, values, old + (values - old) / np.maximum(counts, 1))
        is_number = ~np.isnan(values)
        grown = np.where(counts == 1, 0.0, (values - old) * (values - new))
        self._squares[places] += np.where(is_number, grown, 0.0)
        self._means[places] = np.where(is_number, new, old)
        self._counts[places] = counts

    def result(self) -> Exact:
        """See `FoldColumns.result`: 0 for a single value, NaN for none."""
        deviations = np.sqrt(self._squares / np.maximum(self._counts, 1))
        if self._dtype is not np.float64:
            return deviations.astype(np.int64)
        return np.where(self._counts == 0, np.nan, deviations)


def columns(fold: Fold, size: int, dtype: type) -> FoldColumns:
    """A fold of `size` times, none of `RANKED`, of np.int64 or np.float64."""
    match fold:
        case Fold.MIN | Fold.MAX:
            return _Extremes(fold, size, dtype)
        case Fold.MULTIPLY:
            return _Products(size, dtype)
        case Fold.FIRST | Fold.LAST | Fold.DIFF:
            return _EndFold(fold, size, dtype)
        case Fold.DEV:
            return _Deviations(size, dtype)
        case _:
            return _SumFold(fold, size, dtype)


def ranked_floats(matrix: Floats, percent: float | None) -> Floats:
    """The upper median, or a percentile, of each column of float64[k, n]; NaN counts as no value.

    Of floats a TSD estimates every percentile in the way called LEGACY, whatever its name says.
    """
    counts = np.count_nonzero(~np.isnan(matrix), axis=0)
    ordered = np.sort(matrix, axis=0)  # NaN comes last
    indexes = np.arange(matrix.shape[1])
    if percent is None:
        medians: Floats = ordered[np.minimum(counts // 2, len(ordered) - 1), indexes]
        return medians
    near = neighbours(percent, counts, Estimation.LEGACY)
    return between(ordered[near.lower, indexes], ordered[near.upper, indexes], near.fraction)


def ranked_integers(
    matrix: Int64s, is_there: npt.NDArray[np.bool_], percent: float | None, estimation: Estimation
) -> Int64s:
    """The same of int64[k, n], of those values that are there; percentiles are truncated."""
    counts = np.count_nonzero(is_there, axis=0)
    ordered = np.sort(np.where(is_there, matrix, np.iinfo(np.int64).max), axis=0)
    indexes = np.arange(matrix.shape[1])
    if percent is None:
        medians: Int64s = ordered[counts // 2, indexes]
        return medians
    near = neighbours(percent, counts, estimation)
    floats = ordered.astype(np.float64)
    estimates = between(floats[near.lower, indexes], floats[near.upper, indexes], near.fraction)
    return estimates.astype(np.int64)


def divided(numerators: Exact, divisors: Int64s) -> Exact:
    """Quotients; those of integers truncate toward zero, as in Java."""
    if numerators.dtype == np.float64:
        return numerators / divisors
    return (numerators - np.fmod(numerators, divisors)) // divisors
