"""Downsamples one series: one value per interval.

OpenTSDB 2.4 core/DownsamplingSpecification, core/Downsampler and core/FillingDownsampler
(docs/spec/opentsdb.md §8.1). Intervals are aligned to 1970, or to a calendar; results are always floats.

The functions are those of core/Aggregators.runDouble: a NaN counts as no value, save for first, last,
mult and the end of diff; an interval of only NaN gives NaN (count: 0).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import zoneinfo
from collections.abc import Callable

import numpy as np

from timebeam.schema.bits.arrays import Floats, Int64s
from timebeam.schema.bits.times import HOUR_S, ceil_to, floor_to, parse_duration
from timebeam.schema.query.aggregate import PERCENTS
from timebeam.schema.query.aggregate_columns import Estimation, between, neighbours
from timebeam.schema.query.calendar_intervals import CalendarInterval

# Each function: values float64[n] of one or more intervals and the index of each interval's first
# value -> one result per interval.


def _has_nan(values: Floats) -> bool:
    """Whether a value is NaN, which is rare; without one most functions take half of the time."""
    return bool(np.isnan(values.min(initial=0.0)))


def _number_counts(values: Floats, firsts: Int64s) -> Int64s:
    """How many values of each interval are not NaN."""
    if not _has_nan(values):
        return np.diff(firsts, append=len(values))
    return np.add.reduceat((~np.isnan(values)).astype(np.int64), firsts)


def _sum(values: Floats, firsts: Int64s) -> Floats:
    if not _has_nan(values):
        sums: Floats = np.add.reduceat(values, firsts)
        return sums
    totals = np.add.reduceat(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), firsts)
    return np.where(_number_counts(values, firsts) == 0, np.nan, totals)


def _avg(values: Floats, firsts: Int64s) -> Floats:
    return _sum(values, firsts) / np.maximum(_number_counts(values, firsts), 1)


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
    "min": np.fmin.reduceat,
    "max": np.fmax.reduceat,
    "avg": _avg,
    "count": lambda values, firsts: _number_counts(values, firsts).astype(np.float64),
    "first": lambda values, firsts: values[firsts],
    "last": lambda values, firsts: values[_lasts(values, firsts)],
    "median": _median,
    "dev": _dev,
    "diff": _diff,
    "mult": np.multiply.reduceat,
    "squareSum": lambda values, firsts: _sum(values * values, firsts),
    "zimsum": _sum,
    "pfsum": _sum,
    "mimmin": np.fmin.reduceat,
    "mimmax": np.fmax.reduceat,
    **{f"p{name}": functools.partial(_percentile, percent) for name, percent in PERCENTS.items()},
    **{
        f"ep{name}{kind}": functools.partial(_percentile, percent)
        for kind in ("r3", "r7")
        for name, percent in PERCENTS.items()
    },
}
"""Downsampling functions by the name that a query gives them: those of `AGGREGATORS`."""


MAX_FILLED = 10_000_000
"""The most values that filling may produce for one series."""

_CALENDAR = re.compile(r"0*([0-9]{1,9})(ms|[smhdwny])c", re.IGNORECASE)


class Fill(enum.StrEnum):
    """The result of an interval without points: nothing, NaN, NaN printed as null, or 0."""

    NONE = "none"
    NAN = "nan"
    NULL = "null"
    ZERO = "zero"


@dataclasses.dataclass(frozen=True, slots=True)
class Downsampling:
    """A downsampling, such as `1h-sum-zero`.

    Attributes:
      interval_ms: length of an interval, of one of the calendar its nominal length; None for `0all`, the
        whole range of the query.
      function: a key of `FUNCTIONS`.
      fill: the result of intervals without points.
      calendar: the interval, if it is one of the calendar.
    """

    interval_ms: int | None
    function: str
    fill: Fill = Fill.NONE
    calendar: CalendarInterval | None = None

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Downsampling:
        """The downsampling that `<interval>[c]-<function>[-<fill>]` describes; `c` is for the calendar.

        Args:
          zone: the time zone of calendar intervals.

        Raises:
          ValueError: another form, an unknown function, fill or zone, or a bad interval.
        """
        words = text.split("-")
        if len(words) not in (2, 3):
            raise ValueError(
                f"{text!r} is not a downsampling; give <interval>-<function>[-<fill>], "
                "as in 1m-avg, 1h-sum-zero, 1dc-max or 0all-max"
            )
        interval, function, fill = words[0], words[1], words[2] if len(words) == 3 else Fill.NONE.value
        if function == "none":
            raise ValueError(f"{text!r}: none does not downsample; leave the downsampling out instead")
        if function not in FUNCTIONS:
            raise ValueError(f"{text!r}: no function {function!r}; choose from {', '.join(FUNCTIONS)}")
        fills = [policy.value for policy in Fill]
        if fill.lower() not in fills:
            raise ValueError(f"{text!r}: no fill {fill!r}; choose from {', '.join(fills)}")
        policy = Fill(fill.lower())
        if interval in ("0all", "all"):
            return cls(None, function, policy)
        if match := _CALENDAR.fullmatch(interval):
            interval_ms = _interval_ms(text, interval[:-1])
            return cls(interval_ms, function, policy, calendar_interval(match[1], match[2], zone))
        return cls(_interval_ms(text, interval), function, policy)


def calendar_interval(count: str, unit: str, zone: str) -> CalendarInterval:
    """An interval of the calendar.

    Raises:
      ValueError: there is no such time zone.
    """
    try:
        zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise ValueError(f"no time zone {zone!r}; give one such as Europe/Berlin") from error
    return CalendarInterval(int(count), unit.lower(), zone)


@dataclasses.dataclass(frozen=True, slots=True)
class QueryRange:
    """The range of a query, and the points that its answer is made of.

    core/TsdbQuery.getScanStartTimeSeconds and getScanEndTimeSeconds of OpenTSDB 2.4.1: they are those of the
    intervals, and then hours, that the range touches, as a TSD reads rows: so that every layout gives the
    same answer, however long its rows are. A series is a member of its group if it has such points.

    Attributes:
      start_ms, end_ms: first and last time that is shown, both inclusive.
      first_ms, until_ms: the points are those in [first, until).
    """

    start_ms: int
    end_ms: int
    first_ms: int
    until_ms: int

    @classmethod
    def of(cls, how: Downsampling | None, start_ms: int, end_ms: int) -> QueryRange:
        """The range of a query from one time to another, both inclusive."""
        interval_ms = how.interval_ms if how is not None else None
        start_s, end_s = start_ms // 1000, end_ms // 1000 + 1
        if interval_ms is not None:
            start_s -= 1000 * start_s % interval_ms // 1000
            end_s += (interval_ms - 1000 * end_s % interval_ms) // 1000
        first_s = max(0, floor_to(start_s, HOUR_S))
        until_s = ceil_to(end_s, HOUR_S)
        if interval_ms is None and until_s == end_s:
            until_s += HOUR_S
        return cls(start_ms, end_ms, first_s * 1000, until_s * 1000)


def downsample(
    how: Downsampling, times_ms: Int64s, values: Int64s | Floats, within: QueryRange
) -> tuple[Int64s, Floats]:
    """One value per interval that holds a point; fill is not applied, see `fill_gaps`.

    An interval is [k * interval, (k + 1) * interval) and its result is stamped with its start, so
    an interval is whole only if the caller passes all of its points, also those outside of the
    query's range. The points before the first interval that starts at or after `within.first_ms` count for
    nothing. `0all` takes the points of [start_ms, end_ms) and stamps start_ms.

    A NaN counts as no value, save for first, last and mult; an interval of only NaN gives NaN (count: 0).

    >>> how = Downsampling.parse("1m-avg")
    >>> within = QueryRange.of(how, 1356998400000, 1356998519999)
    >>> times_ms = 1356998400000 + np.array([0, 30_000, 60_000])
    >>> starts_ms, values = downsample(how, times_ms, np.array([1, 2, 5]), within)
    >>> (starts_ms - 1356998400000).tolist(), values.tolist()
    ([0, 60000], [1.5, 5.0])

    Args:
      times_ms: int64[n], strictly increasing, in ms.
      values: int64[n] or float64[n].

    Returns:
      int64[m] starts of intervals in ms, strictly increasing, and float64[m] values.
    """
    span_ms = first_whole_ms(how, within), within.until_ms
    if how.interval_ms is None:
        span_ms = within.start_ms, within.end_ms
    inside = slice(*np.searchsorted(times_ms, span_ms))
    times_ms, values = times_ms[inside], values[inside]
    if not len(times_ms):
        return times_ms, np.empty(0, np.float64)
    starts_ms = interval_starts(how, times_ms, within)
    firsts = np.flatnonzero(np.diff(starts_ms, prepend=starts_ms[0] - 1))
    with np.errstate(invalid="ignore", over="ignore"):  # what overflows is an infinity
        return starts_ms[firsts], FUNCTIONS[how.function](values.astype(np.float64), firsts)


def interval_starts(how: Downsampling | None, times_ms: Int64s, within: QueryRange) -> Int64s:
    """int64[n], the start of the interval of each time in ms; without downsampling the times."""
    if how is None:
        return times_ms
    if how.interval_ms is None:
        return np.full(len(times_ms), within.start_ms, np.int64)
    if how.calendar is not None:
        return how.calendar.starts_of(times_ms)
    return times_ms // how.interval_ms * how.interval_ms


def first_whole_ms(how: Downsampling, within: QueryRange) -> int:
    """Where the first interval starts that the points of a range hold whole (Downsampler.seekInterval)."""
    if how.interval_ms is None:
        return within.first_ms
    if how.calendar is not None:
        return how.calendar.ceiling(within.first_ms)
    return -(-within.first_ms // how.interval_ms) * how.interval_ms


def fill_gaps(
    how: Downsampling, times_ms: Int64s, values: Floats, within: QueryRange
) -> tuple[Int64s, Floats]:
    """Applies the fill policy to the result of `downsample`.

    With a fill, the result has every interval of the points that the answer is made of, whether it has
    points or not. Fill none, and `0all`, change nothing.

    Raises:
      ValueError: more than `MAX_FILLED` intervals.
    """
    if how.fill is Fill.NONE or how.interval_ms is None:
        return times_ms, values
    if how.calendar is not None:
        first_ms = how.calendar.floor(within.first_ms)
        until_ms = how.calendar.floor(within.until_ms)
        grid = how.calendar.grid(first_ms, max(until_ms, first_ms + 1))
    else:
        first, end = within.first_ms // how.interval_ms, within.until_ms // how.interval_ms
        if end - first > MAX_FILLED:
            raise ValueError(
                f"filling {end - first} intervals of {how.interval_ms} ms is too much "
                f"(at most {MAX_FILLED}); choose a longer interval or no fill"
            )
        grid = np.arange(first, end, dtype=np.int64) * how.interval_ms
    filled = np.full(len(grid), 0.0 if how.fill is Fill.ZERO else np.nan)
    indexes = np.searchsorted(grid, times_ms)
    is_there = np.append(grid, -1)[indexes] == times_ms
    filled[indexes[is_there]] = values[is_there]
    return grid, filled


def _interval_ms(text: str, interval: str) -> int:
    try:
        return parse_duration(interval)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; or 0all for the whole range") from error
