"""Joins rollups and points, which cover different times, into one downsampled series.

docs/spec/opentsdb.md §7.5: avg is the sum of the sums divided by the sum of the counts. A point is treated as
a rollup of one point.
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
"""The downsampling functions that rollups can answer, and the numbers of each rollup that they need."""


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
    if function == "avg":
        sums, counts = (FUNCTIONS["sum"](numbers_of, firsts) for numbers_of in numbers)
        values = sums / np.maximum(counts, 1)
    else:
        values = FUNCTIONS["sum" if function == "count" else function](numbers[0], firsts)
    return starts_ms[firsts], values


class SourceSpan(NamedTuple):
    """A range of time in ms, [start, end)."""

    start_ms: int
    end_ms: int


def gaps(covered: Int64s, interval_ms: int, start_ms: int, end_ms: int) -> list[SourceSpan]:
    """The parts of [start, end) outside of some intervals.

    Args:
      covered: int64[n] k, ascending and distinct: intervals [k * interval, (k + 1) * interval) of the range.
    """
    lefts = np.append(start_ms, (covered + 1) * interval_ms)
    rights = np.append(covered * interval_ms, end_ms)
    open_ = lefts < rights
    return [SourceSpan(*pair) for pair in zip(lefts[open_].tolist(), rights[open_].tolist(), strict=True)]


def is_covered(times_ms: Int64s, covered: Int64s, interval_ms: int) -> Bools:
    """bool[n]: whether each time is in one of the intervals; see `gaps`."""
    covered_mask: Bools = np.isin(times_ms // interval_ms, covered)
    return covered_mask


def merged_spans(spans: Sequence[SourceSpan], near_ms: int, most: int) -> list[SourceSpan]:
    """Ascending spans, merged across gaps of up to `near_ms`, and until there are at most `most` spans."""
    if not spans:
        return []
    between = np.array([right.start_ms - earlier.end_ms for earlier, right in itertools.pairwise(spans)])
    longest = np.argsort(-between, kind="stable")[: most - 1]
    cuts = sorted(index for index in longest.tolist() if between[index] > near_ms)
    firsts = [0, *(index + 1 for index in cuts)]
    lasts = [*cuts, len(spans) - 1]
    return [SourceSpan(spans[a].start_ms, spans[b].end_ms) for a, b in zip(firsts, lasts, strict=True)]
