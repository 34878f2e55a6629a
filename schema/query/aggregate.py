"""Aggregates the series of a group, with interpolation at times without a point; their rates of change.

OpenTSDB 2.4 core/Aggregators and core/AggregationIterator; docs/spec/opentsdb.md §8.4.
One pass of numpy per series over the union of the timestamps, memory for one series at a time; medians and
percentiles take a block of times at once.

Rates are those of core/RateSpan and core/RateOptions, with counters that roll over.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bools, Floats, Int64s, Mixed, Values, numbers, to_floats
from timebeam.schema.core.batches import distinct
from timebeam.schema.query.aggregate_columns import (
    OF_ONE_ITSELF,
    RANKED,
    Estimation,
    Exact,
    Fold,
    Places,
    columns,
    divided,
    ranked_floats,
    ranked_integers,
)

_BLOCK_VALUES = 1 << 21
"""Of the matrix in which values are ranked."""


class Points(NamedTuple):
    """Points of one series.

    Attributes:
      times_ms: int64[n], strictly increasing, in ms.
      values: n numbers.
    """

    times_ms: Int64s
    values: Values


class Member(NamedTuple):
    """A series of a group.

    Attributes:
      times_ms: int64[n], strictly increasing, in ms.
      values: n numbers.
      before: what the series counts as before its first point: of rates, the one that a TSD computes from 0
        at 1970; None if it takes no part there.
    """

    times_ms: Int64s
    values: Values
    before: float | None = None


class Gap(enum.Enum):
    """The value of a series at a time at which only other series have a point."""

    LINEAR = enum.auto()  # interpolated between its neighbours (LERP)
    ZERO = enum.auto()  # 0 (ZIM)
    PREVIOUS = enum.auto()  # the value of its previous point (PREV)
    IGNORED = enum.auto()  # no value (MAX for a minimum, MIN for a maximum)


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregator:
    """A fold and what it does with gaps.

    Attributes:
      percent: of a percentile; None for other folds.
      estimation: of a percentile of integers.
    """

    fold: Fold
    gap: Gap
    percent: float | None = None
    estimation: Estimation = Estimation.LEGACY


PERCENTS = {"999": 99.9, "99": 99.0, "95": 95.0, "90": 90.0, "75": 75.0, "50": 50.0}
"""By what stands in the names of percentiles."""

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
    "squareSum": Aggregator(Fold.SQUARE_SUM, Gap.ZERO),
    "first": Aggregator(Fold.FIRST, Gap.ZERO),
    "last": Aggregator(Fold.LAST, Gap.ZERO),
    "median": Aggregator(Fold.MEDIAN, Gap.LINEAR),
    "dev": Aggregator(Fold.DEV, Gap.LINEAR),
    "diff": Aggregator(Fold.DIFF, Gap.LINEAR),
    "mult": Aggregator(Fold.MULTIPLY, Gap.LINEAR),
    **{f"p{name}": Aggregator(Fold.PERCENTILE, Gap.LINEAR, percent) for name, percent in PERCENTS.items()},
    **{
        f"ep{name}{kind.name.lower()}": Aggregator(Fold.PERCENTILE, Gap.LINEAR, percent, kind)
        for kind in (Estimation.R3, Estimation.R7)
        for name, percent in PERCENTS.items()
    },
}
"""Aggregators by their name in queries; `none`, which keeps series apart, is not one of them."""


def never_stops() -> None:
    """The `check` of an aggregation that has no limit."""


def aggregate(
    aggregator: Aggregator, members: Sequence[Member], check: Callable[[], object] = never_stops
) -> Points:
    """Aggregates series: one value for each time at which any member has a point.

    A member takes part from its first to its last point, at times between its points with what
    `aggregator.gap` says; so `count` counts the members under way, not the points.

    A time at which the points around it of all members under way, and the first point of those that begin
    later, are integers has an integer, in the arithmetic of Java's long: division truncates toward zero,
    overflow wraps. At others everything is computed in floats.

    >>> members = [
    ...     Member(np.array([0, 2000]), np.array([10, 30])),
    ...     Member(np.array([0, 1000, 2000]), np.array([1, 2, 3])),
    ... ]
    >>> aggregate(AGGREGATORS["sum"], members).values.tolist()  # 20 + 2 at 1000: interpolated
    [11, 22, 33]
    >>> aggregate(AGGREGATORS["zimsum"], members).values.tolist()
    [11, 2, 33]

    Args:
      members: in the order that `first`, `last` and `diff` go by.
      check: called before each series is added, since the work is series times points of the result; what it
        raises goes through.
    """
    members = [member for member in members if len(member.times_ms)]
    if not members:
        return Points(np.empty(0, np.int64), np.empty(0, np.int64))
    if (together := _aggregated_together(aggregator, members, check)) is not None:
        return together
    union = distinct(np.concatenate([member.times_ms for member in members]))
    is_integer = _is_integer(union, members, check)
    with np.errstate(invalid="ignore", over="ignore"):  # what overflows is an infinity, or wraps
        if is_integer.all():
            return Points(union, _folded(aggregator, union, members, np.int64, check))
        if not is_integer.any():
            return Points(union, _folded(aggregator, union, members, np.float64, check))
        bits = np.empty(len(union), np.int64)
        bits[is_integer] = _folded(aggregator, union[is_integer], members, np.int64, check)
        floats = _folded(aggregator, union[~is_integer], members, np.float64, check)
        bits[~is_integer] = floats.view(np.int64)
    return Points(union, numbers(bits, ~is_integer))


def _aggregated_together(
    aggregator: Aggregator, members: Sequence[Member], check: Callable[[], object]
) -> Points | None:
    """The same for members that have the same times, and are all of integers or all of floats; else None."""
    times_ms, values, _ = members[0]
    columns_of = [member.values for member in members if not isinstance(member.values, Mixed)]
    if (
        isinstance(values, Mixed)
        or len(columns_of) < len(members)
        or any(column.dtype != values.dtype or len(column) != len(values) for column in columns_of)
        or any(member.before is not None for member in members)
    ):
        return None
    if len(members) == 1 and aggregator.fold in OF_ONE_ITSELF:
        return Points(times_ms, values)
    if aggregator.fold in RANKED:
        return None
    dtype: type = values.dtype.type
    fold = columns(aggregator.fold, len(times_ms), dtype)
    step = max(1, _BLOCK_VALUES // len(times_ms))
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(members), step):
            check()
            block = slice(start, start + step)
            if not (np.stack([member.times_ms for member in members[block]]) == times_ms).all():
                return None
            fold.add_all(np.array(columns_of[block], dtype))
        return Points(times_ms, fold.result())


def _is_integer(union: Int64s, members: Sequence[Member], check: Callable[[], object]) -> Bools:
    """At which times the values are integers (AggregationIterator.isInteger)."""
    is_integer = np.ones(len(union), np.bool_)
    for times_ms, values, _ in members:
        check()
        if not isinstance(values, Mixed):
            if values.dtype == np.float64:
                is_integer[: np.searchsorted(union, times_ms[-1], side="right")] = False
            continue
        first = np.searchsorted(union, times_ms[0])
        end = np.searchsorted(union, times_ms[-1], side="right")
        is_near_float = values.is_float | np.append(values.is_float[1:], False)
        before = np.searchsorted(times_ms, union[first:end], side="right") - 1
        is_integer[first:end] &= ~is_near_float[before]
        is_integer[:first] &= not values.is_float[0]
    return is_integer


def _folded(
    aggregator: Aggregator,
    times_ms: Int64s,
    members: Sequence[Member],
    dtype: type,
    check: Callable[[], object],
) -> Exact:
    """The result at some times, in integers or floats."""
    if aggregator.fold not in RANKED:
        fold = columns(aggregator.fold, len(times_ms), dtype)
        for places, samples in _samples(aggregator.gap, times_ms, members, dtype, check):
            fold.add(places, samples)
        return fold.result()
    results: Exact = np.empty(len(times_ms), dtype)
    step = max(1, _BLOCK_VALUES // len(members))
    for start in range(0, len(times_ms), step):
        block = times_ms[start : start + step]
        matrix: Exact = np.full((len(members), len(block)), np.nan if dtype is np.float64 else 0, dtype)
        is_there = np.zeros(matrix.shape, np.bool_)
        rows = _samples(aggregator.gap, block, members, dtype, check)
        for number, (places, samples) in enumerate(rows):
            matrix[number, places] = samples
            is_there[number, places] = True
        if dtype is np.float64:
            ranked: Exact = ranked_floats(matrix.astype(np.float64, copy=False), aggregator.percent)
        else:
            integers = matrix.astype(np.int64, copy=False)
            ranked = ranked_integers(integers, is_there, aggregator.percent, aggregator.estimation)
        results[start : start + step] = ranked
    return results


def _samples(
    gap: Gap, times_ms: Int64s, members: Sequence[Member], dtype: type, check: Callable[[], object]
) -> Iterator[tuple[Places, Exact]]:
    """Of each member where among some times it takes part, and its values there."""
    for member in members:
        check()
        if dtype is np.float64:
            values: Exact = to_floats(member.values)
        else:
            values = member.values.bits if isinstance(member.values, Mixed) else member.values
        places, samples = _taking_part(times_ms, member, values, gap)
        if len(samples):
            yield places, samples


def _taking_part(union: Int64s, member: Member, values: Exact, gap: Gap) -> tuple[Places, Exact]:
    """Where among some times a series takes part, and the values it gives there."""
    times_ms = member.times_ms
    first = int(np.searchsorted(union, times_ms[0]))
    end = int(np.searchsorted(union, times_ms[-1], side="right"))
    within = union[first:end]
    if len(within) == len(times_ms) and np.array_equal(within, times_ms):
        samples = values
    elif gap is Gap.IGNORED:
        before = np.searchsorted(times_ms, within)
        is_own = times_ms[before] == within
        return first + np.flatnonzero(is_own), values[before[is_own]]
    else:
        samples = _interpolated(within, times_ms, values, gap)
    if member.before is None:
        return slice(first, end), samples
    return slice(0, end), np.concatenate([np.full(first, member.before), samples])


def _interpolated(at_ms: Int64s, times_ms: Int64s, values: Exact, gap: Gap) -> Exact:
    """The values of a series at times between its first and last point."""
    left_neighbours = np.searchsorted(times_ms, at_ms, side="right") - 1
    samples = values[left_neighbours]
    missing = np.flatnonzero(times_ms[left_neighbours] != at_ms)
    if gap is Gap.ZERO:
        samples[missing] = 0
    if gap is Gap.LINEAR:
        left_neighbours = left_neighbours[missing]
        elapsed = at_ms[missing] - times_ms[left_neighbours]
        rise, run = (
            values[left_neighbours + 1] - values[left_neighbours],
            times_ms[left_neighbours + 1] - times_ms[left_neighbours],
        )
        samples[missing] += divided(elapsed * rise, run)
    return samples


Number = TypeVar("Number", np.int64, np.float64)

MAX_COUNTER = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class RateOptions:
    """How to compute rates.

    Attributes:
      is_counter: whether a value below the one before it means that a counter rolled over.
      counter_max: the largest value of the counter, where it starts again at 0.
      reset_value: a rate after a roll-over that is above this becomes 0; 0 for never.
      drops_resets: leave the rate out where a counter rolled over.
    """

    is_counter: bool = False
    counter_max: int = MAX_COUNTER
    reset_value: int = 0
    drops_resets: bool = False


def rates(times_ms: Int64s, values: Values, options: RateOptions) -> tuple[Int64s, Floats]:
    """The rate per second at each point, since the point before it.

    The first rate is the one since 0 at 1970, as a TSD computes it: it is not shown, but a TSD counts it
    where other series of the group have earlier points (`Member.before`).

    >>> times_ms, counters = np.array([1000, 2000, 4000]), np.array([10, 15, 3])
    >>> rates(times_ms, counters, RateOptions())[1].tolist()
    [10.0, 5.0, -6.0]
    >>> with_max = RateOptions(is_counter=True, counter_max=20)
    >>> rates(times_ms, counters, with_max)[1].tolist()  # the last one: (20 - 15 + 3) / 2 s
    [10.0, 5.0, 4.0]

    Args:
      times_ms: int64[n], strictly increasing.

    Returns:
      int64[m] times in ms and float64[m] rates; with `drops_resets` m may be less than n.
    """
    if not len(times_ms):
        return times_ms, np.zeros(0)
    seconds = np.diff(times_ms, prepend=0) / 1000.0
    floats = to_floats(values)
    differences = np.diff(floats, prepend=0.0)
    exact, integers = _integers(values)
    differences[exact] = np.diff(integers, prepend=0)[exact].astype(np.float64)
    has_reset = differences < 0
    if not options.is_counter or not has_reset.any():
        return times_ms, differences / seconds
    if options.drops_resets:
        return times_ms[~has_reset], (differences / seconds)[~has_reset]
    rolled = float(options.counter_max) - _before(floats) + floats
    long_rolled = np.int64(options.counter_max) - _before(integers) + integers
    rolled[exact] = long_rolled[exact].astype(np.float64)
    rolled_rates = rolled / seconds
    if options.reset_value > 0:
        rolled_rates[rolled_rates > options.reset_value] = 0.0
    return times_ms, np.where(has_reset, rolled_rates, differences / seconds)


def _integers(values: Values) -> tuple[Bools, Int64s]:
    """(whether a value and the one before it are integers, the integers; 0 for floats)."""
    if isinstance(values, Mixed):
        is_integer = ~values.is_float
        return is_integer & np.append(True, is_integer[:-1]), np.where(is_integer, values.bits, 0)
    if values.dtype == np.int64:
        return np.ones(len(values), np.bool_), values.astype(np.int64, copy=False)
    return np.zeros(len(values), np.bool_), np.zeros(len(values), np.int64)


def _before(column: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The value before each, 0 before the first."""
    return np.concatenate([np.zeros(1, column.dtype), column[:-1]])
