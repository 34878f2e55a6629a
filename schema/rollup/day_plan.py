"""Row spans, and what the rollups of a time range, usually a day, read and write.

A row span is the time that a row of a rollup table holds (docs/spec/opentsdb.md §7.2):
rollup/RollupInterval.validateAndCompile and rollup/RollupUtils.getRollupBasetime of OpenTSDB 2.4.1.

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
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import DAY_S, HOUR_S, ceil_to, floor_to, hours_between

if TYPE_CHECKING:
    from timebeam.schema.rollup.rollup_config import RollupConfig, RollupInterval

LAST_S = 1 << 32
LAST_MS = LAST_S * 1000
"""The end of the times that base times can express."""

_SPAN = re.compile(r"([0-9]{1,9})([a-z]+)")
_NOMINAL_S = {"h": HOUR_S, "d": DAY_S, "n": 32 * DAY_S, "y": 366 * DAY_S}
_CALENDAR = {"d": "datetime64[D]", "n": "datetime64[M]", "y": "datetime64[Y]"}


@dataclasses.dataclass(frozen=True, slots=True)
class RowSpan:
    """`count` hours (h), or one day (d), month (n) or year (y).

    Attributes:
      count: 1 or, for `h`, an even number.
      unit: h, d, n or y.
    """

    count: int
    unit: str

    @classmethod
    def parse(cls, text: str) -> RowSpan:
        """Parses a row span such as 1h, 6h, 1d, 1n or 1y.

        Raises:
          ValueError: OpenTSDB does not accept it.
        """
        match = _SPAN.fullmatch(text)
        if match is None or match[2] not in _NOMINAL_S:
            hint = " (m is minutes; a month is n)" if match is not None and match[2] == "m" else ""
            raise ValueError(f"{text!r} is not a row span{hint}: give 1h, an even number of h, 1d, 1n or 1y")
        count, unit = int(match[1]), match[2]
        if count < 1 or (count > 1 and (unit != "h" or count % 2)):
            raise ValueError(f"{text!r}: only h may have a number above 1, which must be even")
        return cls(count, unit)

    def __str__(self) -> str:
        return f"{self.count}{self.unit}"

    @property
    def nominal_s(self) -> int:
        """The seconds by OpenTSDB's rule: a month has 32 days, a year 366."""
        return self.count * _NOMINAL_S[self.unit]

    @property
    def step_s(self) -> int:
        """Rows begin at multiples of these seconds since 1970: their length in h, else whole days."""
        return self.count * HOUR_S if self.unit == "h" else DAY_S

    def bases(self, times_s: Int64s) -> Int64s:
        """int64[n]: the base time of the row of each time.

        >>> RowSpan.parse("1h").bases(np.array([1370532925])).tolist()  # 2013-06-06 15:35:25
        [1370530800]
        >>> RowSpan.parse("1n").bases(np.array([1370532925])).tolist()  # the first of June
        [1370044800]
        """
        if self.unit == "h":
            return times_s - times_s % (self.count * HOUR_S)
        return _seconds(times_s.astype("datetime64[s]").astype(_CALENDAR[self.unit]))

    def bases_between(self, first_s: int, last_s: int) -> Sequence[int]:
        """The base times of the rows from that of one time to that of another, ascending."""
        first, last = self.bases(np.array([first_s, last_s], np.int64)).tolist()
        if self.unit == "h":
            return range(first, last + 1, self.step_s)
        dates = np.array([first, last]).astype("datetime64[s]").astype(_CALENDAR[self.unit])
        bases: list[int] = _seconds(np.arange(dates[0], dates[1] + 1)).tolist()
        return bases


def _seconds(calendar: npt.NDArray[np.datetime64]) -> Int64s:
    return calendar.astype("datetime64[s]").astype(np.int64)


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
