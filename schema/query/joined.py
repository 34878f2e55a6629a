"""One downsampled series out of rollups and of points, where each has its part of the time.

docs/spec/opentsdb.md §7.5: avg is the sum of the sums over the sum of the counts. A point is taken for
what it is: a rollup of itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.points import Bools, Floats, Int64s
from timebeam.schema.query.interval_functions import FUNCTIONS
from timebeam.schema.query.numbers import Values, to_floats

NUMBERS = {
    "sum": ("sum",),
    "count": ("count",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
    "first": ("first",),
    "last": ("last",),
}
"""The downsampling functions that rollups can serve, and the numbers of each rollup that they need."""


class Partials(NamedTuple):
    """Rollups, or points, of one series or group.

    Attributes:
      times_ms: int64[n], where the interval of each rollup starts, or the time of the point.
      numbers: float64[k, n], those of `NUMBERS`, in that order.
    """

    times_ms: Int64s
    numbers: Floats

    def take(self, which: Bools) -> Partials:
        """A selection."""
        return Partials(self.times_ms[which], self.numbers[:, which])


def of_points(function: str, times_ms: Int64s, values: Values) -> Partials:
    """Points as rollups of one point each. A NaN counts as no value."""
    floats = to_floats(values)
    is_number = (~np.isnan(floats)).astype(np.float64)
    return Partials(
        times_ms, np.stack([is_number if name == "count" else floats for name in NUMBERS[function]])
    )


def joined(function: str, interval_ms: int, partials: Sequence[Partials]) -> tuple[Int64s, Floats]:
    """One value for each interval in which there is something.

    Args:
      function: a key of `NUMBERS`.
      interval_ms: of the downsampling: a multiple of that of the rollups.
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
    if function == "avg":
        sums, counts = (FUNCTIONS["sum"](numbers_of, firsts) for numbers_of in numbers)
        values = sums / np.maximum(counts, 1)
    else:
        values = FUNCTIONS["sum" if function == "count" else function](numbers[0], firsts)
    return starts_ms[firsts], values


class SourceSpan(NamedTuple):
    """A part of the time in ms, [start, end)."""

    start_ms: int
    end_ms: int


def gaps(covered: Int64s, interval_ms: int, start_ms: int, end_ms: int) -> list[SourceSpan]:
    """The parts of [start, end) that lie in none of some intervals.

    Args:
      covered: int64[n], ascending and distinct: intervals [k * interval, (k + 1) * interval) of the range.
    """
    lefts = np.append(start_ms, (covered + 1) * interval_ms)
    rights = np.append(covered * interval_ms, end_ms)
    open_ = lefts < rights
    return [SourceSpan(*pair) for pair in zip(lefts[open_].tolist(), rights[open_].tolist(), strict=True)]


def is_covered(times_ms: Int64s, covered: Int64s, interval_ms: int) -> Bools:
    """bool[n]: which times lie in one of the intervals; see `gaps`."""
    covered_mask: Bools = np.isin(times_ms // interval_ms, covered)
    return covered_mask


def together(spans: Sequence[SourceSpan], near_ms: int, most: int) -> list[SourceSpan]:
    """Ascending parts, joined across what lies between them: where it is short, and down to `most` parts."""
    if not spans:
        return []
    between = np.array([right.start_ms - earlier.end_ms for earlier, right in itertools.pairwise(spans)])
    longest = np.argsort(-between, kind="stable")[: most - 1]
    cuts = sorted(index for index in longest.tolist() if between[index] > near_ms)
    firsts = [0, *(index + 1 for index in cuts)]
    lasts = [*cuts, len(spans) - 1]
    return [SourceSpan(spans[a].start_ms, spans[b].end_ms) for a, b in zip(firsts, lasts, strict=True)]
