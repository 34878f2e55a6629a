"""The time in row keys: times to the numbers and bytes in keys, and back.

Format: docs/spec/bigtable-patterns.md §5.

All forms sort by time (or the other way round, with `reverse`). Times from 1970 to the year 9999.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.times import DAY_MS, UTC, Span, bucket_starts, first_time, span_of, zone_of
from timebeam.schema.core.selection import prefix_range
from timebeam.schema.stores.declared.parts import time_texts
from timebeam.schema.stores.declared.parts.key_part import KeyFields, KeyPart, Renderer, Told
from timebeam.schema.stores.declared.read_section import Count, Location, Options, read

UNIT_PER_MS = {"s": (1, 1000), "ms": (1, 1), "us": (1000, 1)}
"""How many of a unit are in how many milliseconds: (units, milliseconds)."""

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_BINARY = {"be32": (">u4", 4, (1 << 32) - 1), "be64": (">u8", 8, (1 << 63) - 1)}
"""(type, bytes, largest number) of each binary form."""


def to_ms(values: Int64s, unit: str) -> Int64s:
    """int64[n]: times in a unit as milliseconds, what is finer cut off."""
    units, milliseconds = UNIT_PER_MS[unit]
    return values * milliseconds // units


def from_ms(times_ms: Int64s, unit: str) -> Int64s:
    """int64[n]: milliseconds as times in a unit, what is finer cut off."""
    units, milliseconds = UNIT_PER_MS[unit]
    return times_ms * units // milliseconds


def one_to_ms(value: int, unit: str) -> int:
    """One time in a unit as milliseconds."""
    units, milliseconds = UNIT_PER_MS[unit]
    return value * milliseconds // units


def one_from_ms(time_ms: int, unit: str) -> int:
    """One time in milliseconds in a unit."""
    units, milliseconds = UNIT_PER_MS[unit]
    return time_ms * units // milliseconds


def last(unit: str) -> int:
    """The last time in a unit that can be stored, in the year 9999."""
    units, milliseconds = UNIT_PER_MS[unit]
    return ((LAST_MS + 1) * units - 1) // milliseconds


@dataclasses.dataclass(frozen=True, slots=True)
class Time(KeyPart):
    """The event time, or the start of the bucket it falls into.

    Attributes:
      name: of the field.
      unit: "s", "ms" or "us" since 1970-01-01 UTC, of the field and of the number in the key.
      bucket: None for the time itself.
      zone: where days and months of the bucket and the letters of `pattern` begin.
      divide: the number is divided by this before it is written.
      form: "decimal", "be32", "be64" or "pattern".
      pattern: with the form "pattern", the placeholders of `time_texts`.
      size: bytes in the key.
      reverse: the number is subtracted from this, so that the newest row comes first.
    """

    kind: ClassVar[str] = "time"
    name: str
    unit: str
    bucket: Span | None
    zone: str
    divide: int
    form: str
    pattern: str
    size: int
    reverse: int | None

    @classmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> Time:
        options = read(_TimeOptions, content, place)
        name, form, zone = options.time, options.format, options.tz
        unit = fields.add_time(place, name, options.unit)
        bucket = _bucket(options, unit, place)
        reverse: int | None = None if options.reverse is False else options.reverse
        if reverse is True or not isinstance(options.reverse, int):
            raise place.problem(
                "reverse", "reverse must be the number to subtract from, as 9223372036854775807"
            )
        if "%" in form:
            try:
                size = time_texts.check_pattern(form, zone)
            except ValueError as error:
                raise place.problem("format", str(error)) from None
            if reverse is not None or options.divide != 1 or options.width not in (None, size):
                raise place.problem(
                    "format", f"{form!r} has {size} bytes, and takes neither reverse nor divide"
                )
            return cls(name, unit, bucket, zone, 1, "pattern", form, size, None)
        if form not in ("decimal", *_BINARY):
            raise place.problem(
                "format", f"format = {form!r} is unknown: choose decimal, be32, be64, or text with %Y"
            )
        size = _width(options, reverse, place)
        return cls(name, unit, bucket, zone, options.divide, form, "", size, reverse)

    @property
    def stored_field(self) -> str:
        return self.name

    @property
    def is_exact(self) -> bool:
        """Whether the key holds the time itself, not only what it was cut to."""
        if self.form == "pattern":
            letters = time_texts.letters(self.pattern)
            finest = {"s": 6, "ms": 7, "us": 7}[self.unit]
            return (
                self.bucket is None and len(letters) >= finest and (self.unit != "us" or letters[-1] == "f")
            )
        return self.bucket is None and self.divide == 1

    @property
    def tells_buckets(self) -> bool:
        """Whether the bytes of a time with a bucket differ between any two buckets.

        Numbers do: `numbers` rejects a bucket whose start `divide` would cut. A text does if no two starts
        are as close as times with the same text.
        """
        if self.form != "pattern" or self.bucket is None:
            return True
        text = time_texts.precision(self.pattern)
        if text.months and self.bucket.months:
            return self.bucket.months >= text.months
        longest_ms = 366 * DAY_MS if text.months == 12 else text.ms
        return self.bucket.months > 0 or self.bucket.ms >= longest_ms

    @property
    def last(self) -> int:
        """The last time in the part's unit that it can write: of a text, in the year 9999 of its zone."""
        if self.form != "pattern" or self.zone == UTC:
            return last(self.unit)
        end_ms = int(first_time(np.array([LAST_MS], np.int64), self.zone)[0]) + 1
        units, milliseconds = UNIT_PER_MS[self.unit]
        return min(last(self.unit), (end_ms * units - 1) // milliseconds)

    @property
    def largest(self) -> int:
        """The largest number that fits the bytes."""
        if self.form == "decimal":
            return min(int("9" * self.size), (1 << 63) - 1)
        return _BINARY["be32" if self.form == "be32" else "be64"][2]

    def render(self, renderer: Renderer) -> pa.Array:
        numbers, good = self.numbers(renderer.times)
        for record in np.flatnonzero(~good).tolist():
            value = renderer.times[record]
            message = f"{self.name} {value} does not fit the key: is the unit {self.unit}?"
            if value > self.last:
                message = f"{self.name} {value} is after the year 9999 in {self.zone}"
            renderer.rejections.add(record, Reason.TIMESTAMP_OUT_OF_RANGE, message)
        return self.bytes_of(numbers)

    def explain(self) -> str:
        bucket = f", start of its {self.bucket} in {self.zone}" if self.bucket else ""
        divided = f", divided by {self.divide}" if self.divide > 1 else ""
        reverse = f", subtracted from {self.reverse}" if self.reverse is not None else ""
        form = self.pattern or f"{self.form}, {self.size} {'digits' if self.form == 'decimal' else 'bytes'}"
        return f"{self.name} in {self.unit}{bucket}{divided}{reverse}: {form}"

    def certainty(self, name: str, separator: bytes, key: Sequence[KeyPart]) -> Told:
        return Told.YES if self.name == name and self.is_exact else Told.NO

    def numbers(self, values: Int64s) -> tuple[Int64s, Bools]:
        """(int64[n], bool[n]): the numbers in the key for times in the part's unit, and which can be stored.

        What cannot be stored is before 1970 or after the year 9999 (of a text, of its zone), does not fit
        the width or `reverse`, or begins a bucket at a time that `divide` does not divide.
        """
        good = (values >= 0) & (values <= self.last)
        valid = np.where(good, values, 0)
        if self.bucket is not None:
            valid = self._starts(valid, self.bucket)
            good &= (valid >= 0) & (valid % self.divide == 0)
        valid = valid // self.divide
        if self.reverse is not None:
            valid = self.reverse - valid
            good &= valid >= 0
        good &= valid <= self.largest
        return np.where(good, valid, 0), good

    def bytes_of(self, numbers: Int64s) -> pa.Array:
        """binary[n]: the bytes in the key of numbers as `numbers` gives them."""
        if self.form == "pattern":
            units, milliseconds = UNIT_PER_MS[self.unit]
            times_us = numbers * (1000 * milliseconds // units)
            return time_texts.render_pattern(times_us, self.pattern, self.zone)
        if self.form == "decimal":
            return pc.ascii_lpad(pa.array(numbers).cast(pa.string()), self.size, "0").cast(pa.binary())
        raw = numbers.astype(_BINARY[self.form][0]).view(np.uint8)
        return time_texts.fixed(raw.reshape(len(numbers), self.size))

    def value(self, piece: bytes) -> int:
        if self.form == "pattern":
            time_us = time_texts.parse_pattern(piece, self.pattern, self.zone)
            if self.bucket is None:
                units, milliseconds = UNIT_PER_MS[self.unit]
                return time_us * units // (milliseconds * 1000)
            start_ms = self._first_starts(np.array([time_us // 1000], np.int64), self.bucket)
            return int(from_ms(start_ms, self.unit)[0])
        if self.form == "decimal":
            if len(piece) != self.size or not piece.isdigit():
                raise ValueError(f"{piece!r} is not a time of {self.size} digits")
            number = int(piece)
        else:
            number = int.from_bytes(piece, "big")
        if self.reverse is not None:
            number = self.reverse - number
        if not 0 <= number * self.divide <= last(self.unit):
            raise ValueError(f"{piece!r} is not a time from 1970 to the year 9999")
        return number * self.divide

    def cut(self, times_ms: Int64s) -> Int64s:
        """int64[n]: the times, in ms, that a key gives back in place of these."""
        numbers = from_ms(times_ms, self.unit)
        if self.bucket is not None:
            numbers = self._starts(numbers, self.bucket)
        found_ms = to_ms(numbers // self.divide * self.divide, self.unit)
        if self.form == "pattern":
            found_ms = bucket_starts(found_ms, time_texts.precision(self.pattern), self.zone)
            return found_ms if self.bucket is None else self._first_starts(found_ms, self.bucket)
        return found_ms

    def ranges(self, start_ms: int, end_ms: int) -> tuple[bytes, bytes | None] | None:
        """(first, end) of the bytes of times from `start_ms` on and before `end_ms`; None if none.

        The end is exclusive; None for an end that only the bytes before the part can tell.
        """
        units, milliseconds = UNIT_PER_MS[self.unit]
        first = max(-(-start_ms * units // milliseconds), 0)
        final = min(-(-end_ms * units // milliseconds) - 1, self.last)
        if first > final:
            return None
        low, high = (self._unchecked(value) for value in (first, final))
        if self.reverse is not None:
            low, high = high, low
        if low > self.largest or high < 0:
            return None
        low, high = max(low, 0), min(high, self.largest)
        begin, end = (bytes(x) for x in self.bytes_of(np.array([low, high], np.int64)).to_pylist())
        if self.form == "pattern":
            return begin, prefix_range(end)[1]
        if high == self.largest:
            return begin, None
        return begin, bytes(self.bytes_of(np.array([high + 1], np.int64))[0].as_py())

    def _starts(self, values: Int64s, bucket: Span) -> Int64s:
        """int64[n]: the starts of the buckets of times, all in the part's unit."""
        return from_ms(bucket_starts(to_ms(values, self.unit), bucket, self.zone), self.unit)

    def _first_starts(self, times_ms: Int64s, bucket: Span) -> Int64s:
        """int64[n]: the first start of a bucket at or after each time.

        For the first time of a text it is the bucket with this text: one of 90 minutes begins at 01:30.
        """
        starts_ms = bucket_starts(times_ms, bucket, self.zone)
        within_next_ms = starts_ms + bucket.ms * 3 // 2  # more than one bucket, less than two
        return np.where(starts_ms < times_ms, bucket_starts(within_next_ms, bucket, self.zone), starts_ms)

    def _unchecked(self, value: int) -> int:
        """The number for one time, without the check that it fits."""
        if self.bucket is not None:
            value = int(self._starts(np.array([value], np.int64), self.bucket)[0])
        number = value // self.divide
        return number if self.reverse is None else self.reverse - number


class _TimeOptions(Options, frozen=True):
    time: str
    unit: Literal["s", "ms", "us"] | None = None
    format: str = "decimal"
    tz: str = UTC
    bucket: str | None = None
    reverse: Any = False
    divide: Count = 1
    width: Count | None = None


def _bucket(options: _TimeOptions, unit: str, place: Location) -> Span | None:
    """The bucket of a time part, checked against its unit and its zone."""
    zone = options.tz
    try:
        zone_of(zone)
        bucket = span_of(options.bucket) if options.bucket is not None else None
    except ValueError as error:
        raise place.problem("tz" if "time zone" in str(error) else "bucket", str(error)) from None
    if bucket and unit == "s" and bucket.ms % 1000:
        raise place.problem("bucket", f'a bucket of {bucket} cuts seconds: give unit = "ms"')
    if zone != UTC and "%" not in options.format and not (bucket and bucket.is_local):
        raise place.problem("tz", "tz matters for buckets of whole days or months, and for text formats")
    if zone != UTC and bucket and not bucket.is_local:
        raise place.problem("bucket", f"a bucket of {bucket} cannot begin at local midnights: leave out tz")
    return bucket


def _width(options: _TimeOptions, reverse: int | None, place: Location) -> int:
    """Bytes of a decimal or binary time."""
    form, width = options.format, options.width
    if form in _BINARY:
        _, size, largest = _BINARY[form]
        if width not in (None, size):
            raise place.problem("width", f"{form} has {size} bytes: leave out width")
        if reverse is not None and not 0 < reverse <= largest:
            raise place.problem("reverse", f"reverse must be from 1 to {largest} with {form}")
        return size
    if width is None:
        raise place.problem(
            None, "a decimal time without width does not sort: add width (13 for ms, 10 for s)"
        )
    if width > 19:
        raise place.problem("width", "a time has at most 19 digits")
    if reverse is not None and not 0 < reverse < min(10**width, 1 << 63):
        raise place.problem("reverse", f"reverse = {reverse} does not fit {width} digits: raise width")
    return width
