"""Aggregation across the series of a group, with interpolation where a series has no point.

OpenTSDB 2.4 core/Aggregators and core/AggregationIterator; docs/spec/opentsdb.md §8.4.
One pass of numpy per series over the union of the timestamps, memory for one series at a time.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from timebeam.schema.points import Floats, Int64s

Values = Int64s | Floats
Points = tuple[Int64s, Values]
"""Times in ms, int64[n] and strictly increasing, and int64[n] or float64[n] values."""


class Gap(enum.Enum):
    """The value of a series at a time at which others have a point and it has none."""

    LINEAR = enum.auto()  # on the line between its neighbours (LERP)
    ZERO = enum.auto()  # 0 (ZIM)
    PREVIOUS = enum.auto()  # that of its previous point (PREV)
    IGNORED = enum.auto()  # none at all: what MAX is to a minimum, and MIN to a maximum


class Fold(enum.Enum):
    """How the values of the series at one time become one."""

    SUM = enum.auto()
    MIN = enum.auto()
    MAX = enum.auto()
    AVG = enum.auto()
    COUNT = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregator:
    """A fold and what it does with gaps."""

    fold: Fold
    gap: Gap


AGGREGATORS = {
    "sum": Aggregator(Fold.SUM, Gap.LINEAR),
    "min": Aggregator(Fold.MIN, Gap.LINEAR),
    "max": Aggregator(Fold.MAX, Gap.LINEAR),
    "avg": Aggregator(Fold.AVG, Gap.LINEAR),
    "count": Aggregator(Fold.COUNT, Gap.ZERO),
    "zimsum": Aggregator(Fold.SUM, Gap.ZERO),
    "mimmin": Aggregator(Fold.MIN, Gap.IGNORED),
    "mimmax": Aggregator(Fold.MAX, Gap.IGNORED),
    "pfsum": Aggregator(Fold.SUM, Gap.PREVIOUS),
}
"""Aggregators by the name that a query gives them. `none`, which keeps series apart, is not one."""


def aggregate(aggregator: Aggregator, members: Sequence[Points]) -> Points:
    """One value for each time at which any of the members has a point.

    A member takes part from its first to its last point, at times between its points with what
    `aggregator.gap` says; so `count` counts the members under way, not the points. A NaN takes no
    part, and where nothing else does the result is NaN (count: 0).

    If all members are of integers, so is the result, in the arithmetic of Java's long: division
    truncates toward zero, overflow wraps. Else everything is computed in floats. (OpenTSDB decides
    that anew at each time, from the two points around it of every series.)

    Returns:
      int64[m] times in ms, strictly increasing, and int64[m] or float64[m] values.
    """
    members = [(times_ms, values) for times_ms, values in members if len(times_ms)]
    if not members:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    integers = all(values.dtype == np.int64 for _, values in members)
    union = np.unique(np.concatenate([times_ms for times_ms, _ in members]))
    totals = _identity(aggregator.fold, len(union), integers)
    counts = np.zeros(len(union), np.int64)
    for times_ms, values in members:
        indexes, samples = _taking_part(
            union, times_ms, values if integers else _floats(values), aggregator.gap
        )
        totals[indexes] = _UFUNCS[aggregator.fold](totals[indexes], samples)
        counts[indexes] += 1
    return union, _finish(aggregator.fold, totals, counts)


_UFUNCS: dict[Fold, np.ufunc] = {
    Fold.SUM: np.add,
    Fold.MIN: np.minimum,
    Fold.MAX: np.maximum,
    Fold.AVG: np.add,
    Fold.COUNT: np.add,
}


def _floats(values: Values) -> Floats:
    return values.astype(np.float64, copy=False)


def _identity(fold: Fold, size: int, integers: bool) -> Values:
    """n times the value that changes nothing when folded with another."""
    if fold not in (Fold.MIN, Fold.MAX):
        return np.zeros(size, np.int64) if integers else np.zeros(size, np.float64)
    if integers:
        limits = np.iinfo(np.int64)
        return np.full(size, limits.max if fold is Fold.MIN else limits.min, np.int64)
    return np.full(size, np.inf if fold is Fold.MIN else -np.inf, np.float64)


def _taking_part(
    union: Int64s, times_ms: Int64s, values: Values, gap: Gap
) -> tuple[npt.NDArray[np.intp], Values]:
    """Where in the union a series takes part, and the values it gives there."""
    first = np.searchsorted(union, times_ms[0])
    end = np.searchsorted(union, times_ms[-1], side="right")
    if gap is Gap.IGNORED or end - first == len(times_ms):
        indexes, samples = np.searchsorted(union, times_ms), values
    else:
        indexes, samples = np.arange(first, end), _interpolated(union[first:end], times_ms, values, gap)
    if samples.dtype == np.float64:
        is_number = ~np.isnan(samples)
        indexes, samples = indexes[is_number], samples[is_number]
    return indexes, samples


def _interpolated(at_ms: Int64s, times_ms: Int64s, values: Values, gap: Gap) -> Values:
    """The values of a series at times between its first and its last point."""
    before = np.searchsorted(times_ms, at_ms, side="right") - 1
    samples = values[before]
    missing = np.flatnonzero(times_ms[before] != at_ms)
    if gap is Gap.ZERO:
        samples[missing] = 0
    if gap is Gap.LINEAR:
        before = before[missing]
        elapsed = at_ms[missing] - times_ms[before]
        rise, run = values[before + 1] - values[before], times_ms[before + 1] - times_ms[before]
        samples[missing] += _divided(elapsed * rise, run)
    return samples


def _divided(numerators: Values, divisors: Int64s) -> Values:
    """Quotients; those of integers truncate toward zero, as in Java."""
    if numerators.dtype == np.float64:
        return numerators / divisors
    return (numerators - np.fmod(numerators, divisors)) // divisors


def _finish(fold: Fold, totals: Values, counts: Int64s) -> Values:
    if fold is Fold.COUNT:
        return counts if totals.dtype == np.int64 else _floats(counts)
    if fold is Fold.AVG:
        totals = _divided(totals, np.maximum(counts, 1))
    if totals.dtype == np.float64:
        totals[counts == 0] = np.nan
    return totals
