"""Accumulators: the state of the points of one series, or group of series, in one interval.

Integers and floats are kept apart until the end, so nothing is rounded in between. An accumulator is a
function of the set of its points: for any split of the points and any order of merging, the result is the
same, bit for bit.

Between the workers of a rollup they travel as fragments: the accumulators of one series or group, perhaps of
one row, from one part of the input. All columns are in one record array; a fragment is a slice of its bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Floats, Int32s, Int64s
from timebeam.schema.bits.times import HOUR_S
from timebeam.schema.core.points import Series
from timebeam.schema.rollup import exact_sum
from timebeam.schema.rollup.exact_sum import Sums, reduced
from timebeam.schema.rollup.rollup_config import RollupInterval

MOST_POINTS = 1 << 34
"""Points of one bucket; more would overflow the digits of sums."""

NO_MIN, NO_MAX = (1 << 63) - 1, -(1 << 63)
"""Minimum and maximum of no integers; for no floats they are inf and -inf."""

COLUMNS = ("starts_ms", "counts", "float_counts", "int_mins", "int_maxs", "float_mins", "float_maxs")
"""The columns of `Buckets` that are arrays of a number each, beside `index`."""


class Edges(NamedTuple):
    """The first or last point of each of m buckets: int64[m] time in ms, uint8[m] `Kind`, int64[m] bits.

    Points of one time (in different series of a group) are ordered by kind, then by bits.
    """

    times_ms: Int64s
    kinds: Bytes
    bits: Int64s

    def take(self, indices: Int64s | slice) -> Edges:
        """A selection."""
        return Edges(self.times_ms[indices], self.kinds[indices], self.bits[indices])

    @staticmethod
    def joined(edges: Sequence[Edges]) -> Edges:
        """Concatenates them."""
        times_ms, kinds, bits = zip(*edges, strict=True)
        return Edges(np.concatenate(times_ms), np.concatenate(kinds), np.concatenate(bits))

    def chosen(self, choose: np.ufunc, firsts: Int64s, sizes: Int64s) -> Edges:
        """The first (np.minimum) or last (np.maximum) point of each group of adjacent buckets."""
        worst = NO_MIN if choose is np.minimum else NO_MAX
        times = choose.reduceat(self.times_ms, firsts)
        is_chosen = self.times_ms == np.repeat(times, sizes)
        kind_numbers = np.where(is_chosen, self.kinds.astype(np.int64), worst)
        kinds = choose.reduceat(kind_numbers, firsts)
        is_chosen &= kind_numbers == np.repeat(kinds, sizes)
        bits = choose.reduceat(np.where(is_chosen, self.bits, worst), firsts)
        return Edges(times, kinds.astype(np.uint8), bits)


class Ends(NamedTuple):
    """The first and the last point of each bucket, by time."""

    first: Edges
    last: Edges

    def take(self, indices: Int64s | slice) -> Ends:
        """A selection."""
        return Ends(self.first.take(indices), self.last.take(indices))

    def merged(self, firsts: Int64s, sizes: Int64s) -> Ends:
        """The ends of groups of adjacent buckets; see `regrouped`."""
        return Ends(self.first.chosen(np.minimum, firsts, sizes), self.last.chosen(np.maximum, firsts, sizes))

    @staticmethod
    def joined(ends: Sequence[Ends]) -> Ends:
        """Concatenates them."""
        return Ends(Edges.joined([pair.first for pair in ends]), Edges.joined([pair.last for pair in ends]))


@dataclasses.dataclass(frozen=True, slots=True)
class Buckets:
    """m accumulators, sorted by series and start, one for each (series, start).

    Attributes:
      interval_s: the length of each interval; intervals are counted from 1970.
      series: distinct.
      index: int32[m], the number of the series.
      starts_ms: int64[m], the start of the interval.
      counts, float_counts: int64[m], the number of points, and of floats among them.
      sums: of all points.
      int_mins, int_maxs: int64[m], of the integers (`NO_MIN`, `NO_MAX` for none).
      float_mins, float_maxs: float64[m], of the floats (inf, -inf for none); never -0.0.
      ends: None if not needed, since they are a quarter of an accumulator.
    """

    interval_s: int
    series: Sequence[Series]
    index: Int32s
    starts_ms: Int64s
    counts: Int64s
    float_counts: Int64s
    sums: Sums
    int_mins: Int64s
    int_maxs: Int64s
    float_mins: Floats
    float_maxs: Floats
    ends: Ends | None

    def __len__(self) -> int:
        return len(self.index)

    def take(self, indices: Int64s | slice) -> Buckets:
        """A selection, whose indices ascend."""
        return dataclasses.replace(
            self,
            **{name: getattr(self, name)[indices] for name in ("index", *COLUMNS)},
            sums=self.sums.take(indices),
            ends=None if self.ends is None else self.ends.take(indices),
        )

    def within(self, start_ms: int, end_ms: int) -> Buckets:
        """The buckets that start in [start_ms, end_ms)."""
        inside: Bools = (self.starts_ms >= start_ms) & (self.starts_ms < end_ms)
        return self if inside.all() else self.take(np.flatnonzero(inside))

    def parted(self, start_ms: int, end_ms: int) -> tuple[Buckets, Buckets]:
        """(the buckets that start in [start_ms, end_ms), the others)."""
        inside: Bools = (self.starts_ms >= start_ms) & (self.starts_ms < end_ms)
        if inside.all():
            return self, self.take(np.zeros(0, np.int64))
        return self.take(np.flatnonzero(inside)), self.take(np.flatnonzero(~inside))

    def by_series(self, most: int) -> Iterator[Buckets]:
        """Splits sorted buckets into parts of at most `most`, or of a single series."""
        if len(self) <= most:
            yield self
            return
        changes = np.flatnonzero(self.index[1:] != self.index[:-1]) + 1
        bounds, position = np.concatenate([[0], changes, [len(self)]]), 0
        while position < len(bounds) - 1:
            start, position = (
                bounds[position],
                max(position + 1, int(np.searchsorted(bounds, bounds[position] + most, "right")) - 1),
            )
            yield self.take(slice(int(start), int(bounds[position])))

    def coarser(self, interval_s: int) -> Buckets:
        """The buckets of a longer interval.

        Raises:
          ValueError: the longer interval is not a multiple of this one.
        """
        if interval_s % self.interval_s:
            raise ValueError(f"{self.interval_s} s do not divide {interval_s} s: start from the points")
        length_ms = interval_s * 1000
        wider = self.starts_ms - self.starts_ms % length_ms
        return regrouped(dataclasses.replace(self, interval_s=interval_s, starts_ms=wider))

    def of_groups(self, grouping: Grouping) -> Buckets:
        """The buckets of groups of the series."""
        index = grouping.numbers[self.index] if len(self) else self.index
        member = np.flatnonzero(index >= 0)
        members = self if len(member) == len(index) else self.take(member)
        return regrouped(dataclasses.replace(members, series=grouping.groups, index=index[member]))


@dataclasses.dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of k series.

    Attributes:
      groups: distinct.
      numbers: int32[k], the number of each series' group; -1 for none.
    """

    groups: tuple[Series, ...]
    numbers: Int32s

    @classmethod
    def of(cls, groups: Sequence[Series | None]) -> Grouping:
        """From the group of each series; None for a series without a group."""
        number_of: dict[Series, int] = {}
        numbers = [-1 if group is None else number_of.setdefault(group, len(number_of)) for group in groups]
        return cls(tuple(number_of), np.array(numbers, np.int32))


def merge(buckets: Sequence[Buckets]) -> Buckets:
    """Merges accumulators; associative and commutative except for the order of series.

    Args:
      buckets: at least one item; of the same interval, from disjoint sets of points.

    Raises:
      ValueError: different intervals, or some parts with `ends` and some without.
      OverflowError: more than `MOST_POINTS` points in one bucket.
    """
    if len({batch.interval_s for batch in buckets}) != 1:
        raise ValueError("only buckets of the same interval can be merged")
    buckets = [batch for batch in buckets if len(batch)] or buckets[:1]
    if len(buckets) == 1:
        return regrouped(buckets[0])
    series, indices = _renumbered(buckets)
    ends = [batch.ends for batch in buckets if batch.ends is not None]
    if 0 < len(ends) < len(buckets):
        raise ValueError("some parts have first and last, others do not")
    index = np.concatenate(indices)
    order = order_of(index, np.concatenate([batch.starts_ms for batch in buckets]))
    # Each column is sorted before the next one is joined, since two copies of all would take memory.
    joined = {name: np.concatenate([getattr(batch, name) for batch in buckets])[order] for name in COLUMNS}
    return regrouped(
        Buckets(
            buckets[0].interval_s,
            series,
            index[order],
            sums=exact_sum.concatenate([batch.sums for batch in buckets]).take(order),
            ends=Ends.joined(ends).take(order) if ends else None,
            **joined,
        )
    )


def _renumbered(buckets: Sequence[Buckets]) -> tuple[Sequence[Series], list[Int32s]]:
    """(the series of all parts, the index of each part into them)."""
    if all(batch.series is buckets[0].series for batch in buckets):
        return buckets[0].series, [batch.index for batch in buckets]
    numbers: dict[Series, int] = {}
    indices = []
    for batch in buckets:
        renumber = np.array([numbers.setdefault(series, len(numbers)) for series in batch.series], np.int32)
        indices.append(renumber[batch.index] if len(batch) else batch.index)
    return tuple(numbers), indices


def regrouped(buckets: Buckets) -> Buckets:
    """Sorts accumulators and merges those of one series and start.

    Raises:
      OverflowError: more than `MOST_POINTS` points in one bucket.
    """
    if not len(buckets):
        return buckets
    index, starts = buckets.index, buckets.starts_ms
    if not ascending(index, starts):
        buckets = buckets.take(order_of(index, starts))
        index, starts = buckets.index, buckets.starts_ms
    firsts = first_of_each(index, starts)
    if len(firsts) == len(index):
        return buckets
    sizes = np.diff(firsts, append=len(index))
    counts = reduced(np.add, buckets.counts, firsts, sizes)
    if int(counts.max()) > MOST_POINTS:
        raise OverflowError(f"more than {MOST_POINTS} points in one bucket of {buckets.interval_s} s")
    return Buckets(
        buckets.interval_s,
        buckets.series,
        index[firsts],
        starts[firsts],
        counts,
        reduced(np.add, buckets.float_counts, firsts, sizes),
        buckets.sums.added(firsts),
        reduced(np.minimum, buckets.int_mins, firsts, sizes),
        reduced(np.maximum, buckets.int_maxs, firsts, sizes),
        reduced(np.minimum, buckets.float_mins, firsts, sizes),
        reduced(np.maximum, buckets.float_maxs, firsts, sizes),
        None if buckets.ends is None else buckets.ends.merged(firsts, sizes),
    )


def ascending(index: Int32s, times: Int64s) -> bool:
    """Whether (index, time) ascends; equal neighbours are allowed."""
    same = index[1:] == index[:-1]
    return bool(((index[1:] > index[:-1]) | (same & (times[1:] >= times[:-1]))).all())


def order_of(index: Int32s, times: Int64s) -> Int64s:
    """int64[n]: the order by (index, time); uses one number for both if it fits, which is faster."""
    low = int(times.min())
    span = int(times.max()) - low + 1
    if (int(index.max()) + 1) * span < 1 << 63:
        return np.argsort(index.astype(np.int64) * span + (times - low), kind="stable")
    return np.lexsort((times, index))


def first_of_each(index: Int32s, starts: Int64s) -> Int64s:
    """int64[k]: the start of each run of equal (index, start)."""
    changes = (index[1:] != index[:-1]) | (starts[1:] != starts[:-1])
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


_FIELDS = [
    *((name, "<i8") for name in ("starts_ms", "counts", "float_counts", "int_mins", "int_maxs")),
    *((name, "<f8") for name in ("float_mins", "float_maxs")),
    *(("tops", "<i8"), ("digits", "<i8", (4,))),
]
_END_FIELDS = [
    (f"{edge}_{name}", "u1" if name == "kinds" else "<i8") for edge in Ends._fields for name in Edges._fields
]
_RECORDS = {False: np.dtype(_FIELDS), True: np.dtype([*_FIELDS, *_END_FIELDS])}
"""By whether accumulators have `ends`."""


def row_fragments(buckets: Buckets, interval: RollupInterval) -> Iterator[tuple[int, int, bytes]]:
    """(number of a series, base time of a row in s, its fragment) of buckets, by series and row.

    Rows of the default interval are hours, as in the data table.
    """
    if not len(buckets):
        return
    starts_s = buckets.starts_ms // 1000
    bases = starts_s - starts_s % HOUR_S if interval.is_default else interval.row_span.bases(starts_s)
    records, size = _records(buckets)
    change = (np.diff(buckets.index, prepend=-1) != 0) | (np.diff(bases, prepend=-1) != 0)
    firsts = np.flatnonzero(change)
    ends = (np.append(firsts[1:], len(buckets)) * size).tolist()
    rows = zip(buckets.index[firsts].tolist(), bases[firsts].tolist(), firsts.tolist(), ends, strict=True)
    for series, base, first, end in rows:
        yield series, base, records[first * size : end]


def packed_series(buckets: Buckets) -> Iterator[tuple[int, bytes]]:
    """(number of a series, its fragment) for each series of buckets."""
    records, size = _records(buckets)
    bounds = np.searchsorted(buckets.index, np.arange(len(buckets.series) + 1)) * size
    for number, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
        if end > start:
            yield number, records[start:end]


def unpacked(groups: Sequence[tuple[Series, Sequence[bytes]]], interval_s: int, *, ends: bool) -> Buckets:
    """Merges the accumulators in fragments of series or rows.

    Args:
      groups: distinct series, each with its fragments.
      ends: whether they were packed with `Buckets.ends`.

    Raises:
      OverflowError: more than `MOST_POINTS` points in one bucket.
    """
    record = _RECORDS[ends]
    records = np.frombuffer(b"".join([fragment for _, packed in groups for fragment in packed]), record)
    sizes = [sum(map(len, packed)) // record.itemsize for _, packed in groups]
    buckets = Buckets(
        interval_s,
        tuple(series for series, _ in groups),
        np.repeat(np.arange(len(groups), dtype=np.int32), sizes),
        sums=Sums(records["tops"], np.ascontiguousarray(records["digits"].T)),
        ends=Ends(_edges(records, "first"), _edges(records, "last")) if ends else None,
        **{name: records[name] for name in COLUMNS},
    )
    return regrouped(buckets)


def _records(buckets: Buckets) -> tuple[bytes, int]:
    """(the records of all buckets, the size of one)."""
    records = np.empty(len(buckets), _RECORDS[buckets.ends is not None])
    for name in COLUMNS:
        records[name] = getattr(buckets, name)
    records["tops"], records["digits"] = buckets.sums.tops, buckets.sums.digits.T
    if buckets.ends is not None:
        for edge, edge_values in zip(Ends._fields, buckets.ends, strict=True):
            for name, column in zip(Edges._fields, edge_values, strict=True):
                records[f"{edge}_{name}"] = column
    return records.tobytes(), records.itemsize


def _edges(records: np.ndarray[tuple[int], np.dtype[np.void]], edge: str) -> Edges:
    return Edges(*(records[f"{edge}_{name}"] for name in Edges._fields))
