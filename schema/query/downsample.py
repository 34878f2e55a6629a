"""Downsampling of one series: one value per interval.

OpenTSDB 2.4 core/DownsamplingSpecification, core/Downsampler and core/FillingDownsampler
(docs/spec/opentsdb.md §8.1). Intervals are aligned to 1970, results are always floats.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import numpy as np

from timebeam.schema.common.times import parse_duration
from timebeam.schema.points import Floats, Int64s

MAX_FILLED = 10_000_000
"""The most values that filling may produce for one series."""


class Fill(enum.StrEnum):
    """What an interval without points becomes: nothing, NaN, NaN that is printed as null, or 0."""

    NONE = "none"
    NAN = "nan"
    NULL = "null"
    ZERO = "zero"


@dataclasses.dataclass(frozen=True, slots=True)
class Downsampling:
    """What `1h-sum-zero` says.

    Attributes:
      interval_ms: length of an interval; None for `0all`, the whole range of the query.
      function: a key of `FUNCTIONS`.
      fill: what becomes of intervals without points.
    """

    interval_ms: int | None
    function: str
    fill: Fill = Fill.NONE

    @classmethod
    def parse(cls, text: str) -> Downsampling:
        """The downsampling that `<interval>-<function>[-<fill>]` describes.

        Raises:
          ValueError: another form, an unknown function or fill, or a bad interval.
        """
        words = text.split("-")
        if len(words) not in (2, 3):
            raise ValueError(
                f"{text!r} is not a downsampling; give <interval>-<function>[-<fill>], "
                "as in 1m-avg, 1h-sum-zero or 0all-max"
            )
        interval, function, fill = words[0], words[1], words[2] if len(words) == 3 else Fill.NONE.value
        if function == "none":
            raise ValueError(f"{text!r}: none does not downsample; leave the downsampling out instead")
        if function not in FUNCTIONS:
            raise ValueError(f"{text!r}: no function {function!r}; choose from {', '.join(FUNCTIONS)}")
        fills = [policy.value for policy in Fill]
        if fill.lower() not in fills:
            raise ValueError(f"{text!r}: no fill {fill!r}; choose from {', '.join(fills)}")
        interval_ms = None if interval in ("0all", "all") else _interval_ms(text, interval)
        return cls(interval_ms, function, Fill(fill.lower()))


def downsample(
    how: Downsampling, times_ms: Int64s, values: Int64s | Floats, start_ms: int, end_ms: int
) -> tuple[Int64s, Floats]:
    """One value per interval that holds a point; fill is not applied, see `fill_gaps`.

    An interval is [k * interval, (k + 1) * interval) and its result is stamped with its start, so
    an interval is whole only if the caller passes all of its points, also those outside of the
    query's range. `0all` takes the points of [start_ms, end_ms) and stamps start_ms.

    A NaN counts as no value, save for first and last; an interval of only NaN gives NaN (count: 0).

    Args:
      times_ms: int64[n], strictly increasing, in ms.
      values: int64[n] or float64[n].
      start_ms, end_ms: range of the query.

    Returns:
      int64[m] starts of intervals in ms, strictly increasing, and float64[m] values.
    """
    if how.interval_ms is None:
        inside = slice(*np.searchsorted(times_ms, (start_ms, end_ms)))
        times_ms, values = times_ms[inside], values[inside]
        buckets = np.full(len(times_ms), start_ms, np.int64)
    else:
        buckets = times_ms - times_ms % how.interval_ms
    if not len(buckets):
        return buckets, np.empty(0, np.float64)
    firsts = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
    return buckets[firsts], FUNCTIONS[how.function](values.astype(np.float64), firsts)


def fill_gaps(
    how: Downsampling, times_ms: Int64s, values: Floats, start_ms: int, end_ms: int
) -> tuple[Int64s, Floats]:
    """The result of `downsample` as the fill policy wants it.

    With a fill, the result has every interval that starts in [start_ms, end_ms], and no other.
    Fill none, and `0all`, change nothing.

    Raises:
      ValueError: more than `MAX_FILLED` intervals.
    """
    if how.fill is Fill.NONE or how.interval_ms is None:
        return times_ms, values
    first = -(-start_ms // how.interval_ms)
    count = max(0, end_ms // how.interval_ms + 1 - first)
    if count > MAX_FILLED:
        raise ValueError(
            f"filling {count} intervals of {how.interval_ms} ms is too much (at most {MAX_FILLED}); "
            "choose a longer interval or no fill"
        )
    grid = (first + np.arange(count, dtype=np.int64)) * how.interval_ms
    filled = np.full(count, 0.0 if how.fill is Fill.ZERO else np.nan)
    inside = slice(*np.searchsorted(times_ms, (start_ms, end_ms + 1)))
    filled[times_ms[inside] // how.interval_ms - first] = values[inside]
    return grid, filled


def _interval_ms(text: str, interval: str) -> int:
    try:
        return parse_duration(interval)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; or 0all for the whole range") from error


# Each function: values float64[n] of one or more intervals and the index of each interval's first
# value -> one result per interval.


def _constant_runs(values: Floats, firsts: Int64s) -> Int64s:
    """How many values of each interval are not NaN."""
    return np.add.reduceat((~np.isnan(values)).astype(np.int64), firsts)


def _sum(values: Floats, firsts: Int64s) -> Floats:
    totals = np.add.reduceat(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), firsts)
    return np.where(_constant_runs(values, firsts) == 0, np.nan, totals)


def _min(values: Floats, firsts: Int64s) -> Floats:
    return np.fmin.reduceat(values, firsts)


def _max(values: Floats, firsts: Int64s) -> Floats:
    return np.fmax.reduceat(values, firsts)


def _avg(values: Floats, firsts: Int64s) -> Floats:
    return _sum(values, firsts) / np.maximum(_constant_runs(values, firsts), 1)


def _count(values: Floats, firsts: Int64s) -> Floats:
    return _constant_runs(values, firsts).astype(np.float64)


def _first(values: Floats, firsts: Int64s) -> Floats:
    return values[firsts]


def _last(values: Floats, firsts: Int64s) -> Floats:
    return values[np.append(firsts[1:], len(values)) - 1]


def _median(values: Floats, firsts: Int64s) -> Floats:
    """The upper median: element n // 2 of the sorted values."""
    intervals = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(values)))
    ordered = values[np.lexsort((values, intervals))]  # NaN sorts last, so it is never in the middle
    return ordered[firsts + _constant_runs(values, firsts) // 2]


def _dev(values: Floats, firsts: Int64s) -> Floats:
    """The population standard deviation."""
    sizes = np.diff(firsts, append=len(values))
    deviations = values - np.repeat(_avg(values, firsts), sizes)
    return np.sqrt(_avg(deviations * deviations, firsts))


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
}
"""Downsampling functions by the name that a query gives them."""
