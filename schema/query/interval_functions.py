"""Downsampling functions: the values of one series in each interval become one.

core/Aggregators of OpenTSDB 2.4.1, `runDouble`: always floats. A NaN counts as no value, save for first,
last, mult and the end of diff; an interval of only NaN gives NaN (count: 0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from timebeam.schema.points import Floats, Int64s
from timebeam.schema.query.aggregate import PERCENTS
from timebeam.schema.query.percentiles import Estimation, between, neighbours

# Each function: values float64[n] of one or more intervals and the index of each interval's first
# value -> one result per interval.


def _number_counts(values: Floats, firsts: Int64s) -> Int64s:
    """How many values of each interval are not NaN."""
    return np.add.reduceat((~np.isnan(values)).astype(np.int64), firsts)


def _sum(values: Floats, firsts: Int64s) -> Floats:
    totals = np.add.reduceat(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), firsts)
    return np.where(_number_counts(values, firsts) == 0, np.nan, totals)


def _square_sum(values: Floats, firsts: Int64s) -> Floats:
    return _sum(values * values, firsts)


def _min(values: Floats, firsts: Int64s) -> Floats:
    return np.fmin.reduceat(values, firsts)


def _max(values: Floats, firsts: Int64s) -> Floats:
    return np.fmax.reduceat(values, firsts)


def _avg(values: Floats, firsts: Int64s) -> Floats:
    return _sum(values, firsts) / np.maximum(_number_counts(values, firsts), 1)


def _count(values: Floats, firsts: Int64s) -> Floats:
    return _number_counts(values, firsts).astype(np.float64)


def _mult(values: Floats, firsts: Int64s) -> Floats:
    return np.multiply.reduceat(values, firsts)


def _first(values: Floats, firsts: Int64s) -> Floats:
    return values[firsts]


def _last(values: Floats, firsts: Int64s) -> Floats:
    return values[_lasts(values, firsts)]


def _diff(values: Floats, firsts: Int64s) -> Floats:
    """The last value, be it NaN, less the first that is none; 0 if they are the same."""
    first_numbers = _first_numbers(values, firsts)
    lasts = _lasts(values, firsts)
    has_number = _number_counts(values, firsts) > 0
    differences = values[lasts] - values[first_numbers]
    return np.where(has_number, np.where(lasts == first_numbers, 0.0, differences), np.nan)


def _dev(values: Floats, firsts: Int64s) -> Floats:
    """The population standard deviation; computed from the first number on, so that equal values give 0."""
    sizes = np.diff(firsts, append=len(values))
    shifted = values - np.repeat(values[_first_numbers(values, firsts)], sizes)
    deviations = shifted - np.repeat(_avg(shifted, firsts), sizes)
    return np.sqrt(_avg(deviations * deviations, firsts))


def _median(values: Floats, firsts: Int64s) -> Floats:
    """The upper median: element n // 2 of the sorted values."""
    return _ordered(values, firsts)[firsts + _number_counts(values, firsts) // 2]


def _percentile(percent: float, values: Floats, firsts: Int64s) -> Floats:
    ordered = _ordered(values, firsts)
    near = neighbours(percent, _number_counts(values, firsts), Estimation.LEGACY)
    return between(ordered[firsts + near.lower], ordered[firsts + near.upper], near.fraction)


def _lasts(values: Floats, firsts: Int64s) -> Int64s:
    """The index of the last value of each interval."""
    return np.append(firsts[1:], len(values)) - 1


def _first_numbers(values: Floats, firsts: Int64s) -> Int64s:
    """The index of the first value of each interval that is not NaN; of its last one if there is none."""
    indexes = np.where(np.isnan(values), len(values), np.arange(len(values)))
    return np.minimum(np.minimum.reduceat(indexes, firsts), _lasts(values, firsts))


def _ordered(values: Floats, firsts: Int64s) -> Floats:
    """The values sorted within their intervals, NaN last."""
    intervals = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(values)))
    return values[np.lexsort((values, intervals))]


FUNCTIONS: dict[str, Callable[[Floats, Int64s], Floats]] = {
    "sum": _sum,
    "min": _min,
    "max": _max,
    "avg": _avg,
    "count": _count,
    "first": _first,
    "last": _last,
    "median": _median,
    "dev": _dev,
    "diff": _diff,
    "mult": _mult,
    "squareSum": _square_sum,
    "zimsum": _sum,
    "pfsum": _sum,
    "mimmin": _min,
    "mimmax": _max,
    **{f"p{name}": functools.partial(_percentile, percent) for name, percent in PERCENTS.items()},
    **{
        f"ep{name}{kind}": functools.partial(_percentile, percent)
        for kind in ("r3", "r7")
        for name, percent in PERCENTS.items()
    },
}
"""Downsampling functions by the name that a query gives them: those of `AGGREGATORS`."""
