"""Lengths of time as they are declared ("15m", "1d", "3w", "1mo"), and the buckets they cut time into.

Buckets up to a week's multiples are counted from 1970-01-01; days, weeks and months begin at local
midnight of their zone. Instants are int64 milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schema.points import Int64s

DAY_MS = 86_400_000
UTC = "UTC"

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}
_SPAN = re.compile(r"([1-9][0-9]*) ?(ms|s|m|h|d|w|mo)")


class Span(NamedTuple):
    """A length of time: milliseconds, or whole months (then `ms` is that of the longest ones)."""

    ms: int
    months: int = 0

    @property
    def is_local(self) -> bool:
        """Whether it begins at local midnight: whole days and months."""
        return self.months > 0 or self.ms % DAY_MS == 0

    def __str__(self) -> str:
        if self.months:
            return f"{self.months}mo"
        for unit in ("w", "d", "h", "m", "s", "ms"):
            if self.ms % _UNITS[unit] == 0:
                return f"{self.ms // _UNITS[unit]}{unit}"
        raise AssertionError


def span_of(text: str) -> Span:
    """A length of time from its text: a whole number and one of ms, s, m, h, d, w, mo.

    Raises:
      ValueError: it is none.
    """
    match = _SPAN.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no length of time: give a number and ms, s, m, h, d, w or mo, as 15m")
    count = int(match[1])
    if match[2] == "mo":
        return Span(count * 31 * DAY_MS, count)
    return Span(count * _UNITS[match[2]])


def zone_of(name: str) -> str:
    """The name of a time zone, if there is one of that name.

    Raises:
      ValueError: there is none.
    """
    try:
        pc.local_timestamp(pa.array([0]).cast(pa.timestamp("ms", name)))
    except pa.ArrowInvalid:
        raise ValueError(f"no time zone {name!r}: give a name as America/Los_Angeles") from None
    return name


def local_ms(times_ms: Int64s, zone: str) -> Int64s:
    """int64[n]: what the clocks of a zone show, as if they were UTC."""
    if zone == UTC:
        return times_ms
    instants = pa.array(times_ms).cast(pa.timestamp("ms", zone))
    return pc.local_timestamp(instants).cast(pa.int64()).to_numpy()


def first_instant(local: Int64s, zone: str) -> Int64s:
    """int64[n]: the first instant at which the clocks of a zone show this time or a later one."""
    if zone == UTC:
        return local
    clocks = pa.array(local).cast(pa.timestamp("ms"))
    # A midnight that clocks skip begins when they skip it; one that comes twice begins the first time.
    instants = pc.assume_timezone(clocks, zone, ambiguous="earliest", nonexistent="latest")
    return instants.cast(pa.int64()).to_numpy()


def bucket_starts(times_ms: Int64s, span: Span, zone: str) -> Int64s:
    """int64[n]: the first instant of the bucket that each time falls into."""
    if not span.is_local:
        return times_ms - times_ms % span.ms
    return first_instant(_local_starts(local_ms(times_ms, zone), span), zone)


def whole_days(times_ms: Int64s, starts_ms: Int64s, zone: str) -> Int64s:
    """int64[n]: local midnights between the start of a bucket and a time in it."""
    return local_ms(times_ms, zone) // DAY_MS - local_ms(starts_ms, zone) // DAY_MS


def _local_starts(local: Int64s, span: Span) -> Int64s:
    if span.months:
        months = local.astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64)
        months -= months % span.months
        return months.astype("datetime64[M]").astype("datetime64[ms]").astype(np.int64)
    return local - local % span.ms
