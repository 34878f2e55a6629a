"""Time parts of row keys: times to the numbers and bytes in keys, and back.

Format: docs/spec/bigtable-patterns.md §5.

All forms sort by time (or the other way round, with `reverse`). Times from 1970 to the year 9999.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.common.spans import bucket_starts
from timebeam.schema.declared.codec import patterns
from timebeam.schema.declared.model import UNIT_PER_MS, Suffix, TableLayout, Time, TimeQualifier
from timebeam.schema.points import Bools, Int64s

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
    return ((patterns.LAST_MS + 1) * units - 1) // milliseconds


def largest(time: Time) -> int:
    """The largest number that fits the bytes of a time part."""
    if time.form == "decimal":
        return min(int("9" * time.size), (1 << 63) - 1)
    return (1 << 32) - 1 if time.form == "be32" else (1 << 63) - 1


def numbers(time: Time, values: Int64s) -> tuple[Int64s, Bools]:
    """(int64[n], bool[n]): the numbers in the key for times in the part's unit, and which can be stored.

    What cannot be stored is before 1970 or after the year 9999, does not fit the width or `reverse`,
    or begins a bucket at a time that `divide` does not divide.
    """
    good = (values >= 0) & (values <= last(time.unit))
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
    if time.form == "pattern":
        return patterns.render(_microseconds(time, numbers), time.pattern, time.zone)
    if time.form == "decimal":
        return pc.ascii_lpad(pa.array(numbers).cast(pa.string()), time.size, "0").cast(pa.binary())
    return patterns.fixed(numbers.astype(_BINARY[time.form]).view(np.uint8).reshape(len(numbers), time.size))


def parse(time: Time, piece: bytes) -> int:
    """The time, or the start of the bucket, in the part's unit.

    Raises:
      ValueError: the bytes are none of this part.
    """
    if time.form == "pattern":
        units, milliseconds = UNIT_PER_MS[time.unit]
        return patterns.parse(piece, time.pattern, time.zone) * units // (milliseconds * 1000)
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
        return bucket_starts(found_ms, patterns.length(time.pattern), time.zone)
    return found_ms


def is_exact(time: Time) -> bool:
    """Whether the key holds the time itself, not only what it was cut to."""
    if time.form == "pattern":
        letters = [letter for letter, _ in patterns.placeholders(time.pattern) if letter]
        finest = {"s": 6, "ms": 7, "us": 7}[time.unit]
        return time.bucket is None and len(letters) >= finest and (time.unit != "us" or letters[-1] == "f")
    return time.bucket is None and time.divide == 1


def shares_rows(layout: TableLayout) -> bool:
    """Whether the key cuts the time, and nothing else keeps records of one row apart."""
    has_readings = layout.series is not None and isinstance(layout.series.qualifier, TimeQualifier)
    has_suffix = any(isinstance(key_part, Suffix) for key_part in layout.key)
    return layout.time is not None and not (is_exact(layout.time) or has_readings or has_suffix)


def bounds(time: Time, start_ms: int, end_ms: int) -> tuple[bytes, bytes | None] | None:
    """(first, end) of the bytes in keys of times from `start_ms` on and before `end_ms`; None if none.

    The end is exclusive; None for an end that only the bytes before the part can tell.
    """
    units, milliseconds = UNIT_PER_MS[time.unit]
    first = max(-(-start_ms * units // milliseconds), 0)
    final = min(-(-end_ms * units // milliseconds) - 1, last(time.unit))
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


def _microseconds(time: Time, numbers: Int64s) -> Int64s:
    return numbers * {"s": 1_000_000, "ms": 1000, "us": 1}[time.unit]
