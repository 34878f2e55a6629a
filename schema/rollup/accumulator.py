"""Accumulates several interval lengths at once: some from points, the others from shorter intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from timebeam.schema.points import PointBatch, Series
from timebeam.schema.rollup.accumulate import runs
from timebeam.schema.rollup.buckets import Buckets, Grouping, first_of_each, merge

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
      ends: compute first and last.

    Attributes:
      is_full: `take` must be called, which bounds memory for any number of series.
    """

    def __init__(self, lengths: Iterable[int], *, ends: bool) -> None:
        self._lengths, self._ends = sorted(set(lengths)), ends
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
            new_buckets = runs(batch, length, ends=self._ends)
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
