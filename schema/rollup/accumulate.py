"""Accumulates points, and turns accumulators into the numbers that rollups store.

In numpy over whole batches: points are cut into buckets, and each column of `Buckets` is one `reduceat` over
the cuts. Points that come row by row, as in tables, are not sorted first: the points of a bucket are
adjacent, and only the buckets, which are fewer, are sorted.

Several interval lengths are accumulated at once: some from points, the others from shorter intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Floats, Int32s, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.rollup.buckets import (
    NO_MAX,
    NO_MIN,
    Buckets,
    Edges,
    Ends,
    Grouping,
    ascending,
    first_of_each,
    merge,
    order_of,
    unpacked,
)
from timebeam.schema.rollup.exact_sum import sums_of_floats, sums_of_integers

_TWO_63 = 2.0**63


class BucketNumbers(NamedTuple):
    """One number for each of m buckets.

    Attributes:
      kinds: uint8[m], INTEGER or FLOAT.
      bits: int64[m], as in `PointBatch`.
      rounded: bool[m], sums of only integers that do not fit 64 bits and so are floats.
    """

    kinds: Bytes
    bits: Int64s
    rounded: Bools


def aggregatable(batch: PointBatch) -> tuple[PointBatch, list[Rejected]]:
    """(the points that are finite numbers, the rejections of the others)."""
    no_number = batch.kinds > Kind.FLOAT
    if not no_number.any() and np.isfinite(batch.bits.view(np.float64)).all():
        return batch, []  # the bits of most integers are finite floats too
    bad = no_number | ((batch.kinds == Kind.FLOAT) & ~np.isfinite(batch.bits.view(np.float64)))
    if not bad.any():
        return batch, []

    def why(point: int) -> RejectedError:
        if no_number[point]:
            return RejectedError(Reason.VALUE_NOT_STORABLE, "only numbers can be rolled up")
        return RejectedError(Reason.NUMBER_OUT_OF_RANGE, "value is NaN or Infinite")

    return batch.take(np.flatnonzero(~bad)), batch.reject(np.flatnonzero(bad), why, Stage.ENCODE)


def accumulate(batch: PointBatch, interval_s: int, *, ties: bool = False, ends: bool = True) -> Buckets:
    """The buckets of the points of a batch; see `runs`."""
    return merge(runs(batch, interval_s, ties=ties, ends=ends))


def runs(batch: PointBatch, interval_s: int, *, ties: bool = False, ends: bool = True) -> list[Buckets]:
    """The buckets of the points of a batch, in any order, as parts that must be merged.

    Args:
      batch: finite numbers in any order, one per series and time.
      interval_s: length of a bucket; buckets are counted from 1970.
      ties: count all points of one series and time; first and last are then any of them.
      ends: compute first and last.

    Raises:
      ValueError: values that are not finite numbers, or duplicate points without `ties`.
    """
    if (batch.kinds > Kind.FLOAT).any():
        raise ValueError("only numbers can be accumulated")
    if not len(batch):
        return [unpacked([(series, ()) for series in batch.series], interval_s, ends=True)]
    starts = batch.times_ms // (interval_s * 1000)
    batches_of_kind = _by_kind(batch, starts)
    if batches_of_kind is None:
        batch = _in_order(batch, ties=ties)
        batches_of_kind = _by_kind(batch, batch.times_ms // (interval_s * 1000), is_repeated=True)
    assert batches_of_kind is not None
    return [_accumulated(single_kind, cuts, interval_s, ends=ends) for single_kind, cuts in batches_of_kind]


def _by_kind(
    batch: PointBatch, starts: Int64s, *, is_repeated: bool = False
) -> list[tuple[PointBatch, Int64s]] | None:
    """Parts of a batch with only integers or only floats, each with the starts of its buckets.

    None if the points of a bucket are not adjacent and ascending, and so may be duplicates.

    Args:
      starts: int64[n], the number of each point's bucket, counted from 1970.
      is_repeated: the points are sorted, and equal times have been handled.
    """
    cuts = first_of_each(batch.index, starts)
    if not is_repeated:
        is_late = batch.times_ms[1:] <= batch.times_ms[:-1]
        is_late[cuts[1:] - 1] = False
        if is_late.any() or not _are_distinct(batch.index[cuts], starts[cuts]):
            return None
    is_float = batch.kinds == Kind.FLOAT
    if is_float.all() or not is_float.any():
        return [(batch, cuts)]
    changes = np.flatnonzero(is_float[1:] != is_float[:-1]) + 1
    if len(changes) == 1:  # as rows read together are: first those of one kind
        position = int(changes[0])
        first_cuts, rest = cuts[cuts < position], cuts[cuts > position] - position
        return [
            (batch.take(slice(0, position)), first_cuts),
            (batch.take(slice(position, None)), np.concatenate([[0], rest])),
        ]
    batches = [(batch.take(points), starts[points]) for points in map(np.flatnonzero, (is_float, ~is_float))]
    return [(single, first_of_each(single.index, bucket_numbers)) for single, bucket_numbers in batches]


def _are_distinct(index: Int32s, starts: Int64s) -> bool:
    """Whether all buckets are distinct."""
    if ascending(index, starts):
        return True
    order = order_of(index, starts)
    index, starts = index[order], starts[order]
    return bool(((index[1:] != index[:-1]) | (starts[1:] != starts[:-1])).all())


def numbers(buckets: Buckets, aggregator: str) -> BucketNumbers:
    """The number of each bucket for an aggregator: sum, count, min, max, first or last.

    A sum is an integer if all points are and it fits 64 bits; else a float, rounded once, infinite if out of
    range. If an integer and a float are equal, the integer is min and max.

    >>> series = Series.of("m", {"host": "a"})
    >>> points = [(series, time_ms, False, value) for time_ms, value in ((0, 3), (30_000, 4), (60_000, 1.5))]
    >>> buckets = accumulate(PointBatch.of(points, arrival_ms=9000), interval_s=60)
    >>> buckets.starts_ms.tolist(), buckets.counts.tolist(), numbers(buckets, "sum").bits.tolist()[0]
    ([0, 60000], [2, 1], 7)

    Raises:
      ValueError: another aggregator.
    """
    never = np.zeros(len(buckets), np.bool_)
    integers, floats = np.full(len(buckets), Kind.INTEGER, np.uint8), np.uint8(Kind.FLOAT)
    if aggregator == "count":
        return BucketNumbers(integers, buckets.counts, never)
    if aggregator in ("first", "last"):
        assert buckets.ends is not None
        edges = buckets.ends.first if aggregator == "first" else buckets.ends.last
        return BucketNumbers(edges.kinds, edges.bits, never)
    if aggregator == "sum":
        is_integral = buckets.float_counts == 0
        bits, exact = np.zeros(len(buckets), np.int64), never
        chosen_buckets = np.flatnonzero(is_integral)
        if len(chosen_buckets):
            bits[chosen_buckets], exact[chosen_buckets] = buckets.sums.take(chosen_buckets).integers()
        chosen_buckets = np.flatnonzero(~exact)
        bits[chosen_buckets] = buckets.sums.take(chosen_buckets).floats().view(np.int64)
        return BucketNumbers(np.where(exact, integers, floats), bits, is_integral & ~exact)
    if aggregator not in ("min", "max"):
        raise ValueError(f"no aggregator {aggregator!r} of points: sum, count, min, max, first or last")
    if aggregator == "min":
        integer_extremes, float_numbers = buckets.int_mins, buckets.float_mins
        beats = _order(float_numbers, integer_extremes) < 0
    else:
        integer_extremes, float_numbers = buckets.int_maxs, buckets.float_maxs
        beats = _order(float_numbers, integer_extremes) > 0
    chosen = (buckets.float_counts > 0) & ((buckets.float_counts == buckets.counts) | beats)
    return BucketNumbers(
        np.where(chosen, floats, integers),
        np.where(chosen, float_numbers.view(np.int64), integer_extremes),
        never,
    )


def _order(floats: Floats, integers: Int64s) -> Int64s:
    """int64[m]: -1, 0 or 1 where a float is less than, equal to or greater than the integer, exactly.

    Also above 2**53, where an integer may be rounded to the float.
    """
    rounded = integers.astype(np.float64)
    order = np.where(floats < rounded, -1, 1)
    tie = (floats == rounded) & (floats < _TWO_63)
    order[tie] = np.sign(floats[tie].astype(np.int64) - integers[tie])
    return order


def _in_order(batch: PointBatch, *, ties: bool) -> PointBatch:
    """The points sorted by series and time.

    Raises:
      ValueError: two points of one series and time, without `ties`.
    """
    if not ascending(batch.index, batch.times_ms):
        batch = batch.take(order_of(batch.index, batch.times_ms))
    is_repeated = (batch.index[1:] == batch.index[:-1]) & (batch.times_ms[1:] == batch.times_ms[:-1])
    if is_repeated.any() and not ties:
        first = int(np.argmax(is_repeated))
        where = f"{batch.series[batch.index[first]]} at {batch.times_ms[first]} ms"
        raise ValueError(f"two points at one time, which would be counted twice: {where}")
    return batch


def _accumulated(batch: PointBatch, firsts: Int64s, interval_s: int, *, ends: bool) -> Buckets:
    """The buckets of points that are all integers or all floats, in the order of the points.

    Args:
      firsts: int64[m], the first point of each bucket; points of a bucket are adjacent and ascending.
    """
    length_ms = interval_s * 1000
    m, counts = len(firsts), np.diff(firsts, append=len(batch))
    int_mins, int_maxs = np.full(m, NO_MIN, np.int64), np.full(m, NO_MAX, np.int64)
    float_mins, float_maxs = np.full(m, np.inf), np.full(m, -np.inf)
    float_counts = np.zeros(m, np.int64)
    if batch.kinds[0] == Kind.INTEGER:
        int_mins = np.minimum.reduceat(batch.bits, firsts)
        int_maxs = np.maximum.reduceat(batch.bits, firsts)
        sums = sums_of_integers(batch.bits, firsts)
    else:
        values = batch.bits.view(np.float64)
        # Plus zero, since -0.0 and 0.0 are equal and the result must not depend on their order.
        float_mins = np.minimum.reduceat(values, firsts) + 0.0
        float_maxs = np.maximum.reduceat(values, firsts) + 0.0
        largest = np.maximum(np.abs(float_mins), np.abs(float_maxs))
        if not np.isfinite(largest).all():
            raise ValueError("only finite numbers can be accumulated")
        sums, float_counts = sums_of_floats(values, largest, firsts), counts
    return Buckets(
        interval_s,
        batch.series,
        batch.index[firsts],
        batch.times_ms[firsts] // length_ms * length_ms,
        counts,
        float_counts,
        sums,
        int_mins,
        int_maxs,
        float_mins,
        float_maxs,
        Ends(_edges(batch, firsts), _edges(batch, firsts + counts - 1)) if ends else None,
    )


def _edges(batch: PointBatch, points: Int64s) -> Edges:
    return Edges(batch.times_ms[points], batch.kinds[points], batch.bits[points])


MOST_BUCKETS = 200_000
"""Accumulators in memory, of a hundred bytes each; merging takes three times as much memory."""

_WORTH = 4
"""Adding an accumulator takes as long as adding about this many points."""


@dataclasses.dataclass(frozen=True, slots=True)
class Accumulated:
    """The accumulators of a set of points.

    Attributes:
      from_points: by length in seconds, merged; all with the same series or groups.
      sources: for each length, ascending, the length that it is computed from; None for the points.
    """

    from_points: Mapping[int, Buckets]
    sources: Mapping[int, int | None]

    @property
    def series(self) -> Sequence[Series]:
        """The series or groups of all accumulators."""
        return next(iter(self.from_points.values())).series

    def of_groups(self, grouping: Grouping) -> Accumulated:
        """The accumulators of groups of the series."""
        groups = {length: buckets.of_groups(grouping) for length, buckets in self.from_points.items()}
        return dataclasses.replace(self, from_points=groups)

    def by_length(self) -> dict[int, Buckets]:
        """The accumulators of each length in seconds."""
        by_length: dict[int, Buckets] = {}
        for length, source in self.sources.items():
            by_length[length] = (
                self.from_points[length] if source is None else by_length[source].coarser(length)
            )
        return by_length


class Accumulator:
    """Adds points to accumulators of several lengths in seconds.

    Args:
      ties: count all points of one series and time.
      ends: compute first and last.

    Attributes:
      is_full: `take` must be called, which bounds memory for any number of series.
    """

    def __init__(self, lengths: Iterable[int], *, ties: bool = False, ends: bool) -> None:
        self._lengths, self._ties, self._ends = sorted(set(lengths)), ties, ends
        self._sources: dict[int, int | None] = {}
        self._unmerged: dict[int, list[Buckets]] = {}
        self._points_held = 0
        self.is_full = False

    def add(self, batch: PointBatch) -> None:
        """Adds points, all finite numbers."""
        if not self._sources:
            self._sources = self._chosen(batch)
            self._unmerged = {length: [] for length, source in self._sources.items() if source is None}
        for length, unmerged in self._unmerged.items():
            new_buckets = runs(batch, length, ties=self._ties, ends=self._ends)
            unmerged += new_buckets
            self._points_held += sum(map(len, new_buckets))
        if self._points_held >= MOST_BUCKETS:
            self._merge()
            self.is_full = 2 * self._points_held >= MOST_BUCKETS

    def take(self) -> Accumulated | None:
        """The accumulators of the points since the last call; None if there are none."""
        if not self._points_held:
            return None
        self._merge()
        merged = {length: unmerged.pop() for length, unmerged in self._unmerged.items()}
        self._points_held, self.is_full = 0, False
        return Accumulated(merged, self._sources)

    def _merge(self) -> None:
        self._points_held = 0
        for unmerged in self._unmerged.values():
            unmerged[:] = [merge(unmerged)]
            self._points_held += len(unmerged[0])

    def _chosen(self, batch: PointBatch) -> dict[int, int | None]:
        """For each length the source that takes the least work for the first batch."""
        sizes: dict[int, int] = {}
        chosen: dict[int, int | None] = {}
        for length in self._lengths:
            finer = [
                shorter
                for shorter, size in sizes.items()
                if length % shorter == 0 and size * _WORTH < len(batch)
            ]
            chosen[length] = finer[-1] if finer else None
            sizes[length] = len(first_of_each(batch.index, batch.times_ms // (length * 1000)))
        return chosen
