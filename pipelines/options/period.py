"""The time range of a command: `--day`, or `--start` and `--end`, and whether that time is over."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from typing import NamedTuple

from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.schema.bits.times import (
    HOUR_MS,
    ceil_to,
    day_range,
    ends_before,
    floor_to,
    last_complete_day,
    parse_time,
    utc_text,
)
from timebeam.schema.rollup.day_plan import LAST_MS, RollupPlan, plan
from timebeam.schema.rollup.rollup_config import RollupConfig

SETTLED_MS = 60_000
"""More than the clocks of Bigtable and this machine differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class RangeOptions:
    """A time range: a day, or a start and an end."""

    day: str | None
    start: str | None
    end: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class RollupRangeOptions(RangeOptions):
    """The time range of a rollup."""

    zone: str
    delay_hours: float
    lookback_days: int
    allow_incomplete: bool

    @property
    def delay_ms(self) -> int:
        """How long after its end a day is complete."""
        return int(self.delay_hours * HOUR_MS)


def time_of(text: str, now_ms: int, zone: str = "UTC") -> int:
    """A time in ms since 1970.

    Args:
      zone: of days and clocks without an offset.

    Raises:
      UsageError: it is no time.
    """
    with usage_errors():
        return parse_time(text, now_ms, zone)


def named_range(options: RangeOptions, now_ms: int) -> tuple[int, int] | None:
    """(`--start`, `--end`) in ms; None if neither is given.

    Raises:
      UsageError: only one is given, or `--day` too, or one is no time.
    """
    if not (options.start or options.end):
        return None
    if options.day or not (options.start and options.end):
        raise UsageError("give --start and --end, or --day")
    return time_of(options.start, now_ms), time_of(options.end, now_ms)


def named_day(options: RangeOptions, now_ms: int, zone: str = "UTC") -> datetime.date:
    """`--day`, or the last day of a time zone that is over at `now_ms`.

    Raises:
      UsageError: there is no such day, or no such time zone.
    """
    try:
        return datetime.date.fromisoformat(options.day) if options.day else last_complete_day(now_ms, zone)
    except (ValueError, KeyError, OverflowError) as error:
        raise UsageError(f"--day {options.day}: {error}" if options.day else str(error)) from error


def range_of_day(day: datetime.date, zone: str = "UTC") -> tuple[int, int]:
    """[start, end) of a day in ms.

    Raises:
      UsageError: there is no such time zone, or the day is out of range.
    """
    with usage_errors((ValueError, KeyError, OverflowError)):
        return day_range(day, zone)


def whole_hours(start_ms: int, end_ms: int) -> tuple[int, int]:
    """[start, end) in s of the hours that lie in [start_ms, end_ms); of those that row keys can hold."""
    return ceil_to(max(0, start_ms), HOUR_MS) // 1000, floor_to(min(end_ms, LAST_MS), HOUR_MS) // 1000


class Period(NamedTuple):
    """What a run of `timebeam rollup` covers, in ms since 1970.

    Attributes:
      start_ms, end_ms: [start, end).
      complete_ms: the points before it are there.
      of_days: whether it is days, and not a range that was named.
    """

    start_ms: int
    end_ms: int
    complete_ms: int
    of_days: bool

    def plan(self, config: RollupConfig) -> RollupPlan:
        """What its rollups read and write.

        Raises:
          UsageError: it is no range of time.
        """
        with usage_errors():
            return plan(
                config, self.start_ms, self.end_ms, complete_ms=self.complete_ms, of_days=self.of_days
            )


def period_of(options: RollupRangeOptions, now_ms: int) -> Period:
    """What is to be rolled up.

    Raises:
      UsageError: the options name no range of time, or two, or one that is not over.
    """
    named = named_range(options, now_ms)
    if named:
        return Period(*named, complete_until(options, "the range", named[1], now_ms), of_days=False)
    day = named_day(options, now_ms - options.delay_ms, options.zone)
    start_ms, _ = range_of_day(days_before(day, options.lookback_days), options.zone)
    _, end_ms = range_of_day(day, options.zone)
    complete_ms = complete_until(options, f"day {day} of {options.zone}", end_ms, now_ms, options.delay_ms)
    return Period(start_ms, end_ms, complete_ms, of_days=True)


def days_of(options: RollupRangeOptions, zone: str, now_ms: int) -> list[datetime.date]:
    """The days of a time zone that the options ask for: those that overlap the range of time.

    Raises:
      UsageError: they name no days, or a range and a day, or days that are not over.
    """
    named = named_range(options, now_ms)
    if named:
        start_ms, end_ms = named
        if start_ms >= end_ms:
            raise UsageError(ends_before(start_ms, end_ms))
        days, after_ms = list(_overlapping(start_ms, end_ms, zone)), 0
    else:
        after_ms = options.delay_ms
        last = named_day(options, now_ms - after_ms, zone)
        days = [days_before(last, back) for back in range(options.lookback_days, -1, -1)]
    _, end_ms = range_of_day(days[-1], zone)
    complete_until(options, f"day {days[-1]} of {zone}", end_ms, now_ms, after_ms)
    return days


def _overlapping(start_ms: int, end_ms: int, zone: str) -> Iterator[datetime.date]:
    """The days of a time zone that overlap [start_ms, end_ms)."""
    with usage_errors((ValueError, OverflowError, OSError)):
        day = datetime.datetime.fromtimestamp(start_ms / 1000, datetime.UTC).date()
    day = days_before(day, 1)  # the zone may be behind UTC
    while range_of_day(day, zone)[0] < end_ms:
        if range_of_day(day, zone)[1] > start_ms:
            yield day
        day = days_before(day, -1)


def days_before(day: datetime.date, count: int) -> datetime.date:
    """The day `count` days earlier.

    Raises:
      UsageError: it is before the year 1, or after the year 9999.
    """
    with usage_errors(OverflowError):
        return day - datetime.timedelta(days=count)


def complete_until(
    options: RollupRangeOptions, period: str, end_ms: int, now_ms: int, after_ms: int = 0
) -> int:
    """The time in ms up to which points are taken to be there.

    Args:
      period: the day or range that ends at `end_ms`, in words.
      after_ms: how long after its end it is complete.

    Raises:
      UsageError: it is not complete, and `--allow-incomplete` was not given.
    """
    if options.allow_incomplete:
        return LAST_MS
    if end_ms + after_ms > now_ms:
        raise UsageError(
            f"{period} is not complete before {utc_text(-(-(end_ms + after_ms) // 1000))}: choose an earlier "
            "one, or give --allow-incomplete and run it again when it is over"
        )
    return now_ms - after_ms
