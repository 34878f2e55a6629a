"""Lengths of time as declared ("15m", "1d", "3w", "1mo"), and the buckets that they cut time into.

Buckets are counted from 1970-01-01, a Thursday, unless a span of weeks has another first weekday
(`beginning_on`). Days, weeks and months begin at local midnight of their zone. Instants are int64
milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.points import Int64s

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
UTC = "UTC"
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": WEEK_MS}
_SPAN = re.compile(r"([1-9][0-9]{0,17}) ?(ms|s|m|h|d|w|mo)")
_LONGEST_MS = 8000 * 366 * DAY_MS
_FIRST_WEEKDAY = WEEKDAYS.index("thursday")  # of 1970-01-01
_CHECKED_DAYS, _CHECKED_BUCKETS = 68 * 365, 1000


class Span(NamedTuple):
    """A length of time: milliseconds, or whole months (then `ms` is the longest that they can be).

    Attributes:
      first_ms: the start of a bucket, in ms after local midnight of 1970-01-01; 0 for months.
    """

    ms: int
    months: int = 0
    first_ms: int = 0

    @property
    def is_local(self) -> bool:
        """Whether its buckets begin at local midnight: whole days and months."""
        return self.months > 0 or self.ms % DAY_MS == 0

    @property
    def is_weeks(self) -> bool:
        """Whether it is whole weeks."""
        return self.months == 0 and self.ms % WEEK_MS == 0

    def beginning_on(self, weekday: str) -> Span:
        """The same weeks, beginning on one of `WEEKDAYS`."""
        return self._replace(first_ms=(WEEKDAYS.index(weekday) - _FIRST_WEEKDAY) % 7 * DAY_MS)

    def __str__(self) -> str:
        if self.months:
            return f"{self.months}mo"
        for unit in ("w", "d", "h", "m", "s", "ms"):
            if self.ms % _UNITS[unit] == 0:
                return f"{self.ms // _UNITS[unit]}{unit}"
        raise AssertionError


def span_of(text: str) -> Span:
    """Parses a length of time: a whole number and one of ms, s, m, h, d, w, mo.

    Raises:
      ValueError: it is not a length of time, or longer than 8000 years.
    """
    match = _SPAN.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is not a length of time: give a number and ms, s, m, h, d, w or mo, as 15m"
        )
    count = int(match[1])
    span = Span(count * 31 * DAY_MS, count) if match[2] == "mo" else Span(count * _UNITS[match[2]])
    if span.ms > _LONGEST_MS:
        raise ValueError(f"{text} is longer than 8000 years")
    return span


def zone_of(name: str) -> str:
    """The name of a time zone, after a check that it exists.

    Raises:
      ValueError: it does not.
    """
    try:
        pc.local_timestamp(pa.array([0]).cast(pa.timestamp("ms", name)))
    except pa.ArrowInvalid:
        raise ValueError(f"no time zone {name!r}: give a name as America/Los_Angeles") from None
    return name


def local_ms(times_ms: Int64s, zone: str) -> Int64s:
    """int64[n]: the local times of a zone, in ms as if they were UTC."""
    if zone == UTC:
        return times_ms
    instants = pa.array(times_ms).cast(pa.timestamp("ms", zone))
    return pc.local_timestamp(instants).cast(pa.int64()).to_numpy()


def first_instant(local: Int64s, zone: str) -> Int64s:
    """int64[n]: the first instant at which the local time of a zone is this one or later."""
    if zone == UTC:
        return local
    clocks = pa.array(local).cast(pa.timestamp("ms"))
    # A skipped midnight begins when clocks skip it; a repeated one begins the first time.
    instants = pc.assume_timezone(clocks, zone, ambiguous="earliest", nonexistent="latest")
    return instants.cast(pa.int64()).to_numpy()


def bucket_starts(times_ms: Int64s, span: Span, zone: str) -> Int64s:
    """int64[n]: the first instant of the bucket of each time."""
    if not span.is_local:
        return times_ms - times_ms % span.ms
    return first_instant(_local_starts(local_ms(times_ms, zone), span), zone)


def sample_starts(span: Span, zone: str) -> Int64s:
    """int64[n]: starts of buckets on which to check a rule that must hold for all buckets.

    For buckets that begin at local midnight, all starts from 1970 to 2037, which include every change of the
    zone's clocks; for others the first thousand.
    """
    if not span.is_local:
        return np.arange(_CHECKED_BUCKETS, dtype=np.int64) * span.ms
    starts = bucket_starts(np.arange(_CHECKED_DAYS, dtype=np.int64) * DAY_MS, span, zone)
    return np.unique(starts[starts >= 0])


def whole_days(times_ms: Int64s, starts_ms: Int64s, zone: str) -> Int64s:
    """int64[n]: the number of local midnights between the start of a bucket and a time in it."""
    return local_ms(times_ms, zone) // DAY_MS - local_ms(starts_ms, zone) // DAY_MS


def _local_starts(local: Int64s, span: Span) -> Int64s:
    if span.months:
        months = local.astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64)
        months -= months % span.months
        return months.astype("datetime64[M]").astype("datetime64[ms]").astype(np.int64)
    return local - (local - span.first_ms) % span.ms
