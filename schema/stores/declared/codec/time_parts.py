"""Time parts of row keys: times to the numbers and bytes in keys, and back.

Format: docs/spec/bigtable-patterns.md §5.

All forms sort by time (or the other way round, with `reverse`). Times from 1970 to the year 9999.

A time as text has the placeholders `%Y %m %d %H %M %S` as in strftime, `%L` for milliseconds (3 digits) and
`%f` for microseconds (6). Their order must be from large to small, from the year on, so that strings sort
by time.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.times import DAY_MS, HOUR_MS, UTC, Span, bucket_starts, first_instant, local_ms
from timebeam.schema.stores.declared.model import UNIT_PER_MS, TableLayout
from timebeam.schema.stores.declared.parts import Suffix, Time

# Where the digits are in YYYY-MM-DDThh:mm:ss.ffffff; the length of what a placeholder leaves open.
_DIGITS = {
    "Y": (0, 4),
    "m": (5, 7),
    "d": (8, 10),
    "H": (11, 13),
    "M": (14, 16),
    "S": (17, 19),
    "L": (20, 23),
    "f": (20, 26),
}
_LENGTHS = {
    "Y": Span(12 * 31 * DAY_MS, 12),
    "m": Span(31 * DAY_MS, 1),
    "d": Span(DAY_MS),
    "H": Span(HOUR_MS),
    "M": Span(60_000),
    "S": Span(1000),
    "L": Span(1),
    "f": Span(1),
}
"""How long the times are that a pattern whose last placeholder this is gives one text."""
_ORDER = ("Y", "m", "d", "H", "M", "S")
_PIECE = re.compile(r"%(.)|([^%]+)")

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def placeholders(pattern: str) -> Iterator[tuple[str, str]]:
    """(placeholder letter, "") or ("", literal text), in order.

    Raises:
      ValueError: a placeholder is unknown.
    """
    for match in _PIECE.finditer(pattern):
        if match[1] is not None and match[1] not in _DIGITS:
            raise ValueError(f"unknown placeholder %{match[1]}: known are %Y %m %d %H %M %S %L %f")
        yield match[1] or "", match[2] or ""
    if pattern.endswith("%") and not pattern.endswith("%%"):
        raise ValueError("a lone % at the end")


def check_pattern(pattern: str, zone: str) -> int:
    """The width of the texts of a pattern, in bytes.

    Raises:
      ValueError: a placeholder is unknown, or the strings would not sort by time.
    """
    letters = [letter for letter, _ in placeholders(pattern) if letter]
    expected = list(_ORDER[: len(letters)])
    if len(letters) == len(_ORDER) + 1 and letters[-1] in ("L", "f"):
        expected.append(letters[-1])
    if not letters or letters != expected:
        raise ValueError(
            f"{pattern!r} does not sort by time: its placeholders must be %Y%m%d%H%M%S%L, or a start of it"
        )
    if len(letters) > 3 and zone != UTC:
        raise ValueError(
            f'{pattern!r} in {zone} does not sort by time where clocks go back an hour: use tz = "UTC"'
        )
    return sum(
        _DIGITS[letter][1] - _DIGITS[letter][0] if letter else len(text.encode())
        for letter, text in placeholders(pattern)
    )


def render_pattern(times_us: Int64s, pattern: str, zone: str) -> pa.Array:
    """binary[n]: the texts of times in microseconds since 1970, up to the year 9999.

    >>> render_pattern(np.array([1425213901001_000]), "%Y%m%d%H%M%S%L", "UTC").to_pylist()  # in us
    [b'20150301124501001']
    """
    if zone != UTC:
        times_us = local_ms(times_us // 1000, zone) * 1000 + times_us % 1000
    digits = np.datetime_as_string(times_us.astype("datetime64[us]"), unit="us").astype("S26")
    table = digits.view(np.uint8).reshape(len(times_us), 26)
    texts = []
    for letter, text in placeholders(pattern):
        if letter:
            start, end = _DIGITS[letter]
            texts.append(table[:, start:end])
        else:
            literal = np.frombuffer(text.encode(), np.uint8)
            texts.append(np.broadcast_to(literal, (len(times_us), len(literal))))
    return fixed(np.concatenate(texts, axis=1))


def fixed(table: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    """binary[n] from the bytes uint8[n, width]."""
    n, width = table.shape
    offsets = pa.py_buffer(np.arange(0, (n + 1) * width, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), n, [None, offsets, pa.py_buffer(np.ascontiguousarray(table))])


def parse_pattern(text: bytes, pattern: str, zone: str) -> int:
    """The first microsecond since 1970 that has this text.

    Raises:
      ValueError: it is not a text of the pattern.
    """
    numbers = {"Y": 1970, "m": 1, "d": 1, "H": 0, "M": 0, "S": 0, "L": 0, "f": 0}
    offset = 0
    for letter, literal in placeholders(pattern):
        width = _DIGITS[letter][1] - _DIGITS[letter][0] if letter else len(literal.encode())
        piece = text[offset : offset + width]
        offset += width
        if not (piece.isdigit() and len(piece) == width if letter else piece == literal.encode()):
            raise ValueError(f"{text!r} is not a time of the form {pattern}")
        if letter:
            numbers[letter] = int(piece)
    if offset != len(text):
        raise ValueError(f"{text!r} is not a time of the form {pattern}")
    year, month, day, hour, minute, second = (numbers[letter] for letter in _ORDER)
    moment = datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC)
    local = int(moment.timestamp()) * 1000 + numbers["L"]
    return int(first_instant(np.array([local], np.int64), zone)[0]) * 1000 + numbers["f"]


_BINARY = {"be32": ">u4", "be64": ">u8"}


def to_ms(values: Int64s, unit: str) -> Int64s:
    """int64[n]: times in a unit as milliseconds, what is finer cut off."""
    units, milliseconds = UNIT_PER_MS[unit]
    return values * milliseconds // units


def from_ms(times_ms: Int64s, unit: str) -> Int64s:
    """int64[n]: milliseconds as times in a unit, what is finer cut off."""
    units, milliseconds = UNIT_PER_MS[unit]
    return times_ms * units // milliseconds


def last(unit: str) -> int:
    """The last time in a unit that can be stored, in the year 9999."""
    units, milliseconds = UNIT_PER_MS[unit]
    return ((LAST_MS + 1) * units - 1) // milliseconds


def last_in_key(time: Time) -> int:
    """The last time in a part's unit that it can write: of a text, in the year 9999 of its zone."""
    if time.form != "pattern" or time.zone == UTC:
        return last(time.unit)
    units, milliseconds = UNIT_PER_MS[time.unit]
    end_ms = int(first_instant(np.array([LAST_MS], np.int64), time.zone)[0]) + 1
    return min(last(time.unit), (end_ms * units - 1) // milliseconds)


def largest(time: Time) -> int:
    """The largest number that fits the bytes of a time part."""
    if time.form == "decimal":
        return min(int("9" * time.size), (1 << 63) - 1)
    return (1 << 32) - 1 if time.form == "be32" else (1 << 63) - 1


def numbers(time: Time, values: Int64s) -> tuple[Int64s, Bools]:
    """(int64[n], bool[n]): the numbers in the key for times in the part's unit, and which can be stored.

    What cannot be stored is before 1970 or after the year 9999 (of a text, of its zone), does not fit the
    width or `reverse`, or begins a bucket at a time that `divide` does not divide.
    """
    good = (values >= 0) & (values <= last_in_key(time))
    valid = np.where(good, values, 0)
    if time.bucket is not None:
        valid = from_ms(bucket_starts(to_ms(valid, time.unit), time.bucket, time.zone), time.unit)
        good &= (valid >= 0) & (valid % time.divide == 0)
    valid = valid // time.divide
    if time.reverse is not None:
        valid = time.reverse - valid
        good &= valid >= 0
    good &= valid <= largest(time)
    return np.where(good, valid, 0), good


def render(time: Time, numbers: Int64s) -> pa.Array:
    """binary[n]: the bytes in the key of numbers as `numbers` gives them."""

    import pyarrow.compute as pc

    if time.form == "pattern":
        units, milliseconds = UNIT_PER_MS[time.unit]
        return render_pattern(numbers * (1000 * milliseconds // units), time.pattern, time.zone)
    if time.form == "decimal":
        return pc.ascii_lpad(pa.array(numbers).cast(pa.string()), time.size, "0").cast(pa.binary())
    return fixed(numbers.astype(_BINARY[time.form]).view(np.uint8).reshape(len(numbers), time.size))


def parse(time: Time, piece: bytes) -> int:
    """The time, or the start of the bucket, in the part's unit.

    Raises:
      ValueError: the bytes are none of this part.
    """
    if time.form == "pattern":
        time_us = parse_pattern(piece, time.pattern, time.zone)
        if time.bucket is None:
            units, milliseconds = UNIT_PER_MS[time.unit]
            return time_us * units // (milliseconds * 1000)
        start_ms = _first_starts(time.bucket, time.zone, np.array([time_us // 1000], np.int64))
        return int(from_ms(start_ms, time.unit)[0])
    if time.form == "decimal":
        if len(piece) != time.size or not piece.isdigit():
            raise ValueError(f"{piece!r} is not a time of {time.size} digits")
        number = int(piece)
    else:
        number = int.from_bytes(piece, "big")
    if time.reverse is not None:
        number = time.reverse - number
    if not 0 <= number * time.divide <= last(time.unit):
        raise ValueError(f"{piece!r} is not a time from 1970 to the year 9999")
    return number * time.divide


def cut(time: Time, times_ms: Int64s) -> Int64s:
    """int64[n]: the times, in ms, that a key gives back in place of these."""
    numbers = from_ms(times_ms, time.unit)
    if time.bucket is not None:
        numbers = from_ms(bucket_starts(to_ms(numbers, time.unit), time.bucket, time.zone), time.unit)
    found_ms = to_ms(numbers // time.divide * time.divide, time.unit)
    if time.form == "pattern":
        letters = [letter for letter, _ in placeholders(time.pattern) if letter]
        found_ms = bucket_starts(found_ms, _LENGTHS[letters[-1]], time.zone)
        return found_ms if time.bucket is None else _first_starts(time.bucket, time.zone, found_ms)
    return found_ms


def _first_starts(bucket: Span, zone: str, times_ms: Int64s) -> Int64s:
    """int64[n]: the first start of a bucket at or after each time.

    For the first instant of a text it is the bucket with this text: one of 90 minutes begins at 01:30.
    """
    starts_ms = bucket_starts(times_ms, bucket, zone)
    within_next_ms = starts_ms + bucket.ms * 3 // 2  # more than one bucket, less than two
    return np.where(starts_ms < times_ms, bucket_starts(within_next_ms, bucket, zone), starts_ms)


def is_exact(time: Time) -> bool:
    """Whether the key holds the time itself, not only what it was cut to."""
    if time.form == "pattern":
        letters = [letter for letter, _ in placeholders(time.pattern) if letter]
        finest = {"s": 6, "ms": 7, "us": 7}[time.unit]
        return time.bucket is None and len(letters) >= finest and (time.unit != "us" or letters[-1] == "f")
    return time.bucket is None and time.divide == 1


def tells_buckets(time: Time) -> bool:
    """Whether the bytes of a time with a bucket differ between any two buckets.

    Numbers do: `numbers` refuses a bucket whose start `divide` would cut. A text does if no two starts are as
    close as times with the same text.
    """
    if time.form != "pattern" or time.bucket is None:
        return True
    text = _LENGTHS[[letter for letter, _ in placeholders(time.pattern) if letter][-1]]
    if text.months and time.bucket.months:
        return time.bucket.months >= text.months
    longest_ms = 366 * DAY_MS if text.months == 12 else text.ms
    return time.bucket.months > 0 or time.bucket.ms >= longest_ms


def shares_rows(layout: TableLayout) -> bool:
    """Whether the key cuts the time, and nothing else keeps records of one row apart."""
    has_suffix = any(isinstance(key_part, Suffix) for key_part in layout.key)
    return layout.time is not None and not (is_exact(layout.time) or layout.time_qualifier or has_suffix)


def bounds(time: Time, start_ms: int, end_ms: int) -> tuple[bytes, bytes | None] | None:
    """(first, end) of the bytes in keys of times from `start_ms` on and before `end_ms`; None if none.

    The end is exclusive; None for an end that only the bytes before the part can tell.
    """
    units, milliseconds = UNIT_PER_MS[time.unit]
    first = max(-(-start_ms * units // milliseconds), 0)
    final = min(-(-end_ms * units // milliseconds) - 1, last_in_key(time))
    if first > final:
        return None
    low, high = (_clipped(time, value) for value in (first, final))
    if time.reverse is not None:
        low, high = high, low
    if low > largest(time) or high < 0:
        return None
    low, high = max(low, 0), min(high, largest(time))
    begin, end = (bytes(x) for x in render(time, np.array([low, high], np.int64)).to_pylist())
    if time.form == "pattern":
        return begin, after(end)
    if high == largest(time):
        return begin, None
    return begin, bytes(render(time, np.array([high + 1], np.int64))[0].as_py())


def after(prefix: bytes) -> bytes:
    """The first key after all keys that begin with a prefix; empty for the end of the table."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b""


def _clipped(time: Time, value: int) -> int:
    """The number for one time, without the check that it fits."""
    number = value
    if time.bucket is not None:
        ms = to_ms(np.array([value], np.int64), time.unit)
        number = int(from_ms(bucket_starts(ms, time.bucket, time.zone), time.unit)[0])
    number //= time.divide
    return number if time.reverse is None else time.reverse - number
