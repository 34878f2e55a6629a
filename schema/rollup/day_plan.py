"""What the rollups of a time range, usually a day, read and write.

Intervals, rows and their spans are always in UTC, whatever the time zone in which days are counted.

| range | its intervals |
|---|---|
| given by start and end | those that start in it |
| days | those that overlap it: each day in an interval computes the interval from all of its points |

An interval of up to a day is computed when it is over, since the run of the next day overlaps it again. A
longer interval is provisional until it is over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.bits.times import DAY_S, ceil_to, floor_to, hours_between
from timebeam.schema.rollup.config import RollupConfig, RollupInterval
from timebeam.schema.rollup.row_span import RowSpan

LAST_S = 1 << 32
LAST_MS = LAST_S * 1000
"""The end of the times that base times can express."""

_HOUR = RowSpan(1, "h")


@dataclasses.dataclass(frozen=True, slots=True)
class IntervalPlan:
    """The intervals of one length that are written.

    Attributes:
      interval: with its tables.
      start_s, end_s: intervals that start in [start_s, end_s) are written; both are starts of intervals.
    """

    interval: RollupInterval
    start_s: int
    end_s: int

    def within(self, start_s: int, end_s: int) -> IntervalPlan:
        """The plan with only the intervals that start in [start_s, end_s); it may be empty."""
        return dataclasses.replace(self, start_s=max(self.start_s, start_s), end_s=min(self.end_s, end_s))

    @property
    def is_empty(self) -> bool:
        """Whether it has no intervals."""
        return self.start_s >= self.end_s

    @property
    def bases_s(self) -> Sequence[int]:
        """The base times of the rows to write, ascending. For the default interval, of hours."""
        span = _HOUR if self.interval.is_default else self.interval.row_span
        return () if self.is_empty else span.bases_between(self.start_s, self.end_s - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class RollupPlan:
    """The rollups of a time range.

    Attributes:
      intervals: finest first; with the default interval if there are pre-aggregates.
      start_ms, end_ms: the points to read, in [start_ms, end_ms): those of all intervals to write, which may
        end after the range.
    """

    intervals: tuple[IntervalPlan, ...]
    start_ms: int
    end_ms: int

    def raw_bases(self) -> range:
        """The base times, in seconds, of the raw rows that hold the points."""
        return hours_between(self.start_ms, self.end_ms)


class RollupPart(NamedTuple):
    """One range of time of a job, and whose points are rolled up in it.

    Attributes:
      metrics: their UIDs, or names in UTF-8; None for all that the configuration names.
    """

    plan: RollupPlan
    metrics: frozenset[bytes] | None = None

    def only(self, uids: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The UIDs, by name, of these metrics."""
        if self.metrics is None:
            return uids
        return {name: uid for name, uid in uids.items() if uid in self.metrics}


def plan(
    config: RollupConfig, start_ms: int, end_ms: int, *, complete_ms: int = LAST_MS, of_days: bool = False
) -> RollupPlan:
    """What the rollups of [start_ms, end_ms) read and write.

    Args:
      complete_ms: points are complete up to this time: intervals of up to a day that end later are left out.
      of_days: the range is days: also write intervals that start before it and end in it.

    Raises:
      ValueError: the range is empty, or outside of the times from 1970 to 2106.
    """
    if not 0 <= start_ms < end_ms <= LAST_MS:
        raise ValueError(f"no range of time: {start_ms} to {end_ms} ms; give times from 1970 to 2106")
    interval_plans = []
    for interval in config.written:
        length = interval.seconds
        first, end = (ceil_to(time_ms, 1000 * length) // 1000 for time_ms in (start_ms, end_ms))
        if of_days:
            first = floor_to(start_ms // 1000, length)
        if length <= DAY_S:
            end = min(end, floor_to(complete_ms // 1000, length))
        if first < end:
            interval_plans.append(IntervalPlan(interval, first, end))
    starts = [interval_plan.start_s * 1000 for interval_plan in interval_plans]
    ends = [interval_plan.end_s * 1000 for interval_plan in interval_plans]
    return RollupPlan(tuple(interval_plans), min(starts, default=start_ms), max(ends, default=start_ms))
