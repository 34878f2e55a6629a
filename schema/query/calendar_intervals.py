"""Intervals aligned to the calendar of a time zone: hours of days, days of months, months of years.

utils/DateTime.previousInterval and core/Downsampler of OpenTSDB 2.4.1: intervals are counted from an anchor
before the first point, by wall-clock days, or by milliseconds for units below a day.

| unit | anchor if the count divides the larger unit | else |
|---|---|---|
| ms, s, m | start of the second, minute, hour | start of the minute, hour, day |
| h | start of the day | first of the month |
| d | first of the month, for a count of 1 | first of the year |
| w | Sunday | Sunday |
| n, y | first of the year | first of the year |
"""

from __future__ import annotations

import dataclasses
import datetime
import zoneinfo

import numpy as np

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import HOUR_MS

_FIXED_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": HOUR_MS}
_LARGER = {"ms": 1000, "s": 60, "m": 60, "h": 24}
_WEEK_DAYS = 7
_MONTHS = 12

MOST_INTERVALS = 10_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class CalendarInterval:
    """An interval of the calendar.

    Attributes:
      count: how many units.
      unit: ms, s, m, h, d, w, n (month) or y.
      zone: name of the time zone.
    """

    count: int
    unit: str
    zone: str = "UTC"

    def floor(self, time_ms: int) -> int:
        """The start in ms of the interval that holds a time, counted from the anchor before that time.

        >>> CalendarInterval(1, "n", "Europe/Berlin").floor(1364774400000)  # 2013-03-31T22:00:00Z
        1364767200000

        Raises:
          ValueError: the interval ends after the year 9999.
        """
        anchor = self._anchor(time_ms)
        if self.unit in _FIXED_MS:
            length_ms = self.count * _FIXED_MS[self.unit]
            anchor_ms = _local_ms(anchor, zoneinfo.ZoneInfo(self.zone))
            return anchor_ms + (time_ms - anchor_ms) // length_ms * length_ms
        return int(self._dates(anchor, time_ms + 1)[-1])

    def starts_of(self, times_ms: Int64s) -> Int64s:
        """For each of some ascending times the start of its interval, counted from that of the first."""
        if not len(times_ms):
            return times_ms
        first_ms = self.floor(int(times_ms[0]))
        if self.unit in _FIXED_MS:
            length_ms = self.count * _FIXED_MS[self.unit]
            fixed: Int64s = first_ms + (times_ms - first_ms) // length_ms * length_ms
            return fixed
        starts = self.grid(first_ms, int(times_ms[-1]) + 1)
        dated: Int64s = starts[np.searchsorted(starts, times_ms, side="right") - 1]
        return dated

    def grid(self, first_ms: int, end_ms: int) -> Int64s:
        """The starts of intervals from one start on and before an end.

        Raises:
          ValueError: more than `MOST_INTERVALS`.
        """
        if self.unit in _FIXED_MS:
            length_ms = self.count * _FIXED_MS[self.unit]
            if (end_ms - first_ms) // length_ms > MOST_INTERVALS:
                raise ValueError(f"more than {MOST_INTERVALS} intervals; choose a longer interval")
            return np.arange(first_ms, end_ms, length_ms, dtype=np.int64)
        local = datetime.datetime.fromtimestamp(first_ms / 1000, zoneinfo.ZoneInfo(self.zone))
        return self._dates(local.date(), end_ms)

    def ceiling(self, time_ms: int) -> int:
        """The time itself if an interval starts there, else the start of the next one."""
        floor_ms = self.floor(time_ms)
        if floor_ms == time_ms:
            return time_ms
        if self.unit in _FIXED_MS:
            return floor_ms + self.count * _FIXED_MS[self.unit]
        zone = zoneinfo.ZoneInfo(self.zone)
        local = datetime.datetime.fromtimestamp(floor_ms / 1000, zone)
        return _local_ms(self._next(local.date()), zone)

    def _anchor(self, time_ms: int) -> datetime.date | datetime.datetime:
        """What intervals are counted from: a local time, or a day for units from a day on."""
        zone = zoneinfo.ZoneInfo(self.zone)
        try:
            local = datetime.datetime.fromtimestamp(time_ms // 1000, zone)
        except (OverflowError, ValueError, OSError) as error:
            raise self._too_long() from error
        day = local.date()
        if self.unit in _FIXED_MS:
            is_divisor = _LARGER[self.unit] % self.count == 0
            match self.unit:
                case "ms":
                    return local if is_divisor else local.replace(second=0)
                case "s":
                    return local.replace(second=0) if is_divisor else local.replace(second=0, minute=0)
                case "m":
                    return local.replace(second=0, minute=0) if is_divisor else day
                case _:
                    return day if is_divisor else day.replace(day=1)
        if self.unit == "d" and self.count == 1:
            return day.replace(day=1)
        if self.unit == "w":
            return day - datetime.timedelta(days=day.isoweekday() % _WEEK_DAYS)
        return day.replace(day=1, month=1)

    def _dates(self, day: datetime.date, end_ms: int) -> Int64s:
        """The starts in ms of intervals from the start of a day on and before an end."""
        zone = zoneinfo.ZoneInfo(self.zone)
        starts: list[int] = []
        while (start_ms := _local_ms(day, zone)) < end_ms:
            starts.append(start_ms)
            day = self._next(day)
        return np.array(starts, np.int64)

    def _next(self, day: datetime.date) -> datetime.date:
        """The first day of the interval after the one that begins with a day.

        Raises:
          ValueError: it is after the year 9999.
        """
        try:
            match self.unit:
                case "d" | "w":
                    return day + datetime.timedelta(days=self.count * (_WEEK_DAYS if self.unit == "w" else 1))
                case "n":
                    months = day.year * _MONTHS + day.month - 1 + self.count
                    return datetime.date(months // _MONTHS, months % _MONTHS + 1, 1)
                case _:
                    return datetime.date(day.year + self.count, 1, 1)
        except (OverflowError, ValueError) as error:
            raise self._too_long() from error

    def _too_long(self) -> ValueError:
        """The error for an interval that does not end in the years that Python's dates have."""
        return ValueError(
            f"an interval of {self.count}{self.unit}c ends after the year 9999; choose a shorter interval or "
            "an earlier end"
        )


def _local_ms(local: datetime.date | datetime.datetime, zone: zoneinfo.ZoneInfo) -> int:
    """When a local time, or a day, begins, in ms: an hour that comes twice is the later one, as in Java."""
    if isinstance(local, datetime.datetime):
        return int(local.timestamp()) * 1000
    midnight = datetime.datetime(local.year, local.month, local.day, tzinfo=zone)
    return max(int(midnight.replace(fold=fold).timestamp()) for fold in (0, 1)) * 1000
