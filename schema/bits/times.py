"""Times and durations as a person writes them in a query, and lengths of time as declared ("15m", "1mo").

Queries: OpenTSDB 2.4 utils/DateTime.parseDateTimeString and parseDuration (docs/spec/opentsdb.md §8.1),
and ISO 8601. A time without an offset is that of a time zone, by default UTC.

Declared lengths cut time into buckets: buckets are counted from 1970-01-01, a Thursday, unless a span of
weeks has another first weekday (`beginning_on`). Days, weeks and months begin at local midnight of their
zone. Times are int64 milliseconds since 1970-01-01 UTC. Only functions that need numpy or pyarrow import
them: commands read durations without.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from timebeam.schema.bits.arrays import Int64s

TIME_FORMS = (
    "seconds (1356998400) or milliseconds (1356998400000, 1356998400.123, 1356998400000ms) since 1970, "
    "2013-01-01, 2013-01-01T00:00:00Z, 2013-01-01 02:00:00+02:00, 2013/01/01, 2013/01/01-00:00:00, "
    "1h-ago or now"
)
DURATION_FORMS = (
    "a positive whole number and one of the units ms s m h d w n (30 days) y (365 days), as in 15m"
)

_MAX_TIME_MS = 9_999_999_999_999  # the largest timestamp OpenTSDB stores (docs/spec/opentsdb.md §1.4)
_MAX_DURATION_MS = 2**63 - 1
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""
HOUR_S, DAY_S = 3600, 86_400
HOUR_MS, DAY_MS = 1000 * HOUR_S, 1000 * DAY_S
WEEK_MS = 7 * DAY_MS
_UNIT_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": WEEK_MS,
    "n": 30 * DAY_MS,
    "y": 365 * DAY_MS,
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

_DURATION = re.compile(r"([0-9]+)(ms|[smhdwny])", re.IGNORECASE)
_NUMBER = re.compile(r"([0-9]{1,13})")
_DOTTED = re.compile(r"([0-9]{10})\.([0-9]{1,3})")
_MILLISECONDS = re.compile(r"([0-9]{1,13})ms", re.IGNORECASE)
_CLOCK = r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})"
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    rf"(?:[Tt ]{_CLOCK}(?:[.,]([0-9]{{1,9}}))?)?(?: ?([Zz]|[+-][0-9]{{2}}(?::?[0-9]{{2}})?))?)?"
)
_SLASHED = re.compile(rf"([0-9]{{4}})/([0-9]{{2}})/([0-9]{{2}})(?:[- ]{_CLOCK})?)?")


def parse_duration(text: str) -> int:
    """The milliseconds of a duration such as `500ms`, `15m` or `1d`; units in either case.

    >>> parse_duration("60ms"), parse_duration("15m"), parse_duration("1n")  # a month is 30 days
    (60, 900000, 2592000000)

    Raises:
      ValueError: not a duration, zero, or more than 2**63 - 1 ms.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; give {DURATION_FORMS}")
    duration_ms = int(match[1]) * _UNIT_MS[match[2].lower()]
    if duration_ms == 0:
        raise ValueError(f"{text!r} is a duration of zero; give {DURATION_FORMS}")
    if duration_ms > _MAX_DURATION_MS:
        raise ValueError(f"{text!r} is too long a duration: it exceeds 2**63 - 1 ms")
    return duration_ms


def parse_time(text: str, now_ms: int, zone: str = "UTC") -> int:
    """The milliseconds since 1970 of a time in one of `TIME_FORMS`.

    A number of up to 10 digits is in seconds, one of 11 to 13 digits in milliseconds. Digits below a
    millisecond are cut off.

    >>> parse_time("1356998400", now_ms=0), parse_time("2013/01/01-01:00:00", 0, "Europe/Berlin")
    (1356998400000, 1356998400000)
    >>> parse_time("1h-ago", now_ms=1356998400000)
    1356994800000

    Args:
      now_ms: what `now` means, and what `1h-ago` counts back from.
      zone: name of the time zone of days and clocks without an offset. A midnight that clocks skip is the
        time at which they skip it; of a repeated hour the first counts.

    Raises:
      ValueError: not a time, not a day of the calendar, or not a time that OpenTSDB can store.
    """
    stripped = text.strip()
    try:
        time_ms = _parse(stripped, now_ms, zone)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time: {error}; give {TIME_FORMS}") from error
    if time_ms is None:
        raise ValueError(f"{text!r} is not a time; give {TIME_FORMS}")
    if not 0 <= time_ms <= _MAX_TIME_MS:
        raise ValueError(f"{text!r} is not between 1970 and 2286, the times that OpenTSDB can hold")
    return time_ms


def ends_before(start_ms: int, end_ms: int) -> str:
    """What is wrong with a range of time, [start_ms, end_ms), that has nothing in it."""
    import numpy as np

    start, end = (
        np.datetime_as_string(np.datetime64(time_ms, "ms"), "ms" if time_ms % 1000 else "s")
        for time_ms in (start_ms, end_ms)
    )
    if start_ms == end_ms:
        return f"the range is empty: it starts and ends at {start}Z"
    return f"the range ends, at {end}Z, before it starts, at {start}Z"


def utc_text(time_s: int) -> str:
    """A time in seconds since 1970 as text: `2026-11-20T08:00:00Z`."""
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat().replace("+00:00", "Z")


def _parse(text: str, now_ms: int, zone: str) -> int | None:
    """The time in ms; None for an unknown form."""
    if text.lower() == "now":
        return now_ms
    if text.lower().endswith("-ago"):
        return now_ms - parse_duration(text[: -len("-ago")])
    if match := _NUMBER.fullmatch(text):
        return int(text) * (1000 if len(text) <= 10 else 1)
    if match := _DOTTED.fullmatch(text):
        return int(match[1]) * 1000 + _fraction_ms(match[2])
    if match := _MILLISECONDS.fullmatch(text):
        return int(match[1])
    if match := _ISO.fullmatch(text):
        year, month, day, hour, minute, second, fraction, offset = match.groups()
        calendar_ms = _calendar_ms("UTC" if offset else zone, year, month, day, hour, minute, second)
        return calendar_ms + _fraction_ms(fraction) - _offset_ms(offset)
    if match := _SLASHED.fullmatch(text):
        return _calendar_ms(zone, *match.groups())
    return None


def _calendar_ms(zone: str, *fields: str | None) -> int:
    """Milliseconds since 1970 of year, month, day, hour, minute, second (the last three may be None)."""
    year, month, day, hour, minute, second = (int(field or 0) for field in fields)
    moment = datetime.datetime(year, month, day, hour, minute, second, tzinfo=zoneinfo.ZoneInfo(zone))
    return (moment - _EPOCH) // _MILLISECOND


def _fraction_ms(digits: str | None) -> int:
    """The milliseconds of the digits after the point of a second."""
    return int((digits or "").ljust(3, "0")[:3])


def _offset_ms(offset: str | None) -> int:
    """The offset of local time from UTC in ms: `Z`, `+02`, `+0200` or `+02:00`."""
    if offset is None or offset in "Zz":
        return 0
    digits = offset[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(f"the offset {offset} is not between -23:59 and +23:59")
    size_ms = hours * _UNIT_MS["h"] + minutes * _UNIT_MS["m"]
    return size_ms if offset[0] == "+" else -size_ms


UTC = "UTC"


def floor_to(time: int, length: int) -> int:
    """The last start of an interval at or before a time; intervals are counted from 1970.

    >>> floor_to(1356999000, HOUR_S), ceil_to(1356999000, HOUR_S)
    (1356998400, 1357002000)
    """
    return time // length * length


def ceil_to(time: int, length: int) -> int:
    """The first start of an interval at or after a time."""
    return -(-time // length) * length


def hours_between(start_ms: int, end_ms: int) -> range:
    """The starts, in s, of the UTC hours that overlap [start_ms, end_ms).

    >>> list(hours_between(1356999000_000, 1357002000_001))
    [1356998400, 1357002000]
    """
    if start_ms >= end_ms:
        return range(0)
    return range(floor_to(start_ms // 1000, HOUR_S), -(-end_ms // 1000), HOUR_S)


def day_range(day: datetime.date, zone: str = UTC) -> tuple[int, int]:
    """[start, end) in ms of a day of the calendar in a time zone; 23 to 25 hours where clocks change.

    >>> start_ms, end_ms = day_range(datetime.date(2013, 3, 31), "Europe/Berlin")
    >>> (end_ms - start_ms) // HOUR_MS
    23
    """
    import numpy as np

    midnight = (day - _EPOCH.date()).days * DAY_MS
    start, end = first_time(np.array([midnight, midnight + DAY_MS], np.int64), zone).tolist()
    return start, end


def last_complete_day(now_ms: int, zone: str = UTC) -> datetime.date:
    """Yesterday in a time zone."""
    import numpy as np

    days = int(local_ms(np.array([now_ms], np.int64), zone)[0]) // DAY_MS
    return _EPOCH.date() + datetime.timedelta(days=days - 1)


WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

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
            if self.ms % _UNIT_MS[unit] == 0:
                return f"{self.ms // _UNIT_MS[unit]}{unit}"
        raise AssertionError


def span_of(text: str) -> Span:
    """Parses a length of time: a whole number and one of ms, s, m, h, d, w, mo.

    Raises:
      ValueError: it is not a length of time, or longer than 8000 years.
    """
    match = _SPAN.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is not a length of time: give a number and ms, s, m, h, d, w or mo, such as 15m"
        )
    count = int(match[1])
    span = Span(count * 31 * DAY_MS, count) if match[2] == "mo" else Span(count * _UNIT_MS[match[2]])
    if span.ms > _LONGEST_MS:
        raise ValueError(f"{text} is longer than 8000 years")
    return span


def zone_of(name: str) -> str:
    """The name of a time zone, after a check that it exists.

    Raises:
      ValueError: it does not.
    """
    if name == UTC:
        return name
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.local_timestamp(pa.array([0]).cast(pa.timestamp("ms", name)))
    except pa.ArrowInvalid:
        raise ValueError(f"no time zone {name!r}: give a name such as America/Los_Angeles") from None
    return name


def local_ms(times_ms: Int64s, zone: str) -> Int64s:
    """int64[n]: the local times of a zone, in ms as if they were UTC."""
    if zone == UTC:
        return times_ms
    import pyarrow as pa
    import pyarrow.compute as pc

    times = pa.array(times_ms).cast(pa.timestamp("ms", zone))
    return pc.local_timestamp(times).cast(pa.int64()).to_numpy()


def first_time(local: Int64s, zone: str) -> Int64s:
    """int64[n]: the first time at which the local time of a zone is this one or later."""
    if zone == UTC:
        return local
    import pyarrow as pa
    import pyarrow.compute as pc

    clocks = pa.array(local).cast(pa.timestamp("ms"))
    # A skipped midnight begins when clocks skip it; a repeated one begins the first time.
    times = pc.assume_timezone(clocks, zone, ambiguous="earliest", nonexistent="latest")
    return times.cast(pa.int64()).to_numpy()


def bucket_starts(times_ms: Int64s, span: Span, zone: str) -> Int64s:
    """int64[n]: the first time of the bucket of each time.

    >>> import numpy as np
    >>> april = bucket_starts(np.array([1364774400000]), span_of("1mo"), "Europe/Berlin")
    >>> [utc_text(start // 1000) for start in april.tolist()]  # midnight in Berlin, by summer time
    ['2013-03-31T22:00:00Z']
    """
    if not span.is_local:
        return times_ms - times_ms % span.ms
    return first_time(_local_starts(local_ms(times_ms, zone), span), zone)


def sample_starts(span: Span, zone: str) -> Int64s:
    """int64[n]: starts of buckets on which to check a rule that must hold for all buckets.

    For buckets that begin at local midnight, all starts from 1970 to 2037, which include every change of the
    zone's clocks; for others the first thousand.
    """
    import numpy as np

    if not span.is_local:
        return np.arange(_CHECKED_BUCKETS, dtype=np.int64) * span.ms
    starts = bucket_starts(np.arange(_CHECKED_DAYS, dtype=np.int64) * DAY_MS, span, zone)
    return np.unique(starts[starts >= 0])


def whole_days(times_ms: Int64s, starts_ms: Int64s, zone: str) -> Int64s:
    """int64[n]: the number of local midnights between the start of a bucket and a time in it."""
    return local_ms(times_ms, zone) // DAY_MS - local_ms(starts_ms, zone) // DAY_MS


def _local_starts(local: Int64s, span: Span) -> Int64s:
    if span.months:
        months = local.astype("datetime64[ms]").astype("datetime64[M]").astype("int64")
        months -= months % span.months
        return months.astype("datetime64[M]").astype("datetime64[ms]").astype("int64")
    return local - (local - span.first_ms) % span.ms
