"""How evenly the writes of a sample would spread over a table's keys, minute by minute.

Format: docs/spec/bigtable-patterns.md §6.7.

What Key Visualizer shows after the fact, here before: the keys of the sample are cut into ranges that
hold as many writes each; a hot spot is a minute that writes into one of them only.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from timebeam.schema.points import Int64s

MOST_RANGES = 32
MOST_MINUTES = 31 * 1440
LEAST_MINUTES = 4
"""A shorter sample cannot tell a hot spot from a small table."""

_HOT = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Heat:
    """Writes by key range and minute.

    Attributes:
      starts: the first key of each of k ranges, ascending.
      first_minute: minutes since 1970 of the first column.
      counts: int64[k, m] writes.
    """

    starts: Sequence[bytes]
    first_minute: int
    counts: np.ndarray[tuple[int, int], np.dtype[np.int64]]

    @property
    def share(self) -> float:
        """The part of a minute's writes that goes to its busiest range; the mean over all writes."""
        return float(self.counts.max(axis=0).sum() / self.counts.sum())

    @property
    def is_hot(self) -> bool:
        """Whether one range takes most of a minute's writes."""
        return self.counts.shape[1] >= LEAST_MINUTES and self.share > _HOT

    def verdict(self) -> str:
        """The result in words."""
        minutes = self.counts.shape[1]
        ranges = f"{len(self.starts)} key range{'s' if len(self.starts) > 1 else ''}"
        verdict = (
            f"{self.counts.sum():,} writes in {minutes:,} minute{'s' if minutes > 1 else ''}, {ranges}: "
            f"the busiest takes {self.share:.0%} of a minute's writes"
        )
        if minutes < LEAST_MINUTES:
            return f"{verdict}; a sample of at least {LEAST_MINUTES} minutes tells more"
        return verdict + (": a hot spot" if self.is_hot else "")


def heat(keys: Sequence[bytes], times_ms: Int64s) -> Heat:
    """The heat of writes of these keys at these times; half as many ranges as minutes, 2 to 32.

    Raises:
      ValueError: there are none, or they are spread over more than a month.
    """
    if not keys:
        raise ValueError("no writes to count")
    minutes = times_ms // 60_000
    first = int(minutes.min())
    width = int(minutes.max()) - first + 1
    if width > MOST_MINUTES:
        raise ValueError(
            f"the sample spans {width // 1440} days: give one of {MOST_MINUTES // 1440} days at most"
        )
    ranges = max(2, min(MOST_RANGES, width // 2))
    ordered = sorted(keys)
    starts = sorted({ordered[i * len(ordered) // ranges] for i in range(ranges)})
    rows = np.fromiter((bisect_right(starts, key) - 1 for key in keys), np.int64, len(keys))
    counts = np.bincount(rows * width + (minutes - first), minlength=len(starts) * width)
    return Heat(starts, first, counts.reshape(len(starts), width).astype(np.int64))
