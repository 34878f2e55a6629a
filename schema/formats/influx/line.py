"""InfluxDB's line protocol: any line alone (the slow path, and the reference), plain lines in columns.

`measurement[,tagk=tagv...] field=value[,field=value...] timestamp`. Sources: line-protocol.ebnf and
lineprotocol/decoder.go of github.com/influxdata/line-protocol, InfluxData's line protocol reference.

For the columnar path, marks are the bytes that separate (blank, `,`, `=`, newline) and those that no plain
line has (controls, `"`, backslash). A plain line is `head blank key=value[,key=value...] blank timestamp`,
without further blanks. All other lines, and those with doubtful numbers, are read alone.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import re

import numpy as np
import pyarrow as pa

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, byte_view
from timebeam.schema.bits.reasons import Reason, RejectedError, short
from timebeam.schema.bits.text_columns import integer
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, add_tag
from timebeam.schema.formats.options import Booleans, Precision

PER_SECOND = {
    Precision.NANOSECONDS: 1_000_000_000,
    Precision.MICROSECONDS: 1_000_000,
    Precision.MILLISECONDS: 1_000,
    Precision.SECONDS: 1,
}

_BY_MAGNITUDE = (Precision.SECONDS, Precision.MILLISECONDS, Precision.MICROSECONDS, Precision.NANOSECONDS)
_FIRST_BEYOND = [FIRST_MILLISECOND * 1000**n for n in range(len(_BY_MAGNITUDE))]
"""The first timestamp that is none of a unit, and the first of the next one: their times do not overlap."""


def auto_times_ms(times: Int64s) -> tuple[Int64s, Bools, Bools]:
    """(times in ms int64[n], bool[n] in ms and not whole seconds, bool[n] valid), by `Precision.AUTO`.

    A time in whole seconds is stored in seconds, whatever its unit, so that it has one cell in OpenTSDB's
    layout.
    """
    unit = np.searchsorted(_FIRST_BEYOND, times, "right")
    times_ms = np.where(unit == 0, times * 1000, times // 1000 ** np.maximum(unit - 1, 0))
    return times_ms, times_ms % 1000 != 0, (times > 0) & (unit < len(_BY_MAGNITUDE))


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """The parts of a line: names unescaped, values and timestamp as written."""

    measurement: str
    tags: dict[str, str]
    fields: list[tuple[str, str]]
    time: str


# In a name, a backslash escapes the characters that end it, and is itself before all others.
_BEHIND_MEASUREMENT = re.compile(r"(?<!\\)[, ]|[\x00-\x1f\x7f]")
_BEHIND_NAME = re.compile(r"(?<!\\)[,= ]|[\x00-\x1f\x7f]")
_BEHIND_VALUE = re.compile(r"[\x00-\x20\x7f,]")
_ESCAPED_IN_MEASUREMENT = re.compile(r"\\([, ])")
_ESCAPED_IN_NAME = re.compile(r"\\([,= ])")

_IN_STRING = re.compile(r'\\.|"', re.DOTALL)
_INTEGER = re.compile(r"(-?[0-9]+)i|([0-9]+)u")
_FLOAT = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRUE = frozenset(("t", "T", "true", "True", "TRUE"))
_FALSE = frozenset(("f", "F", "false", "False", "FALSE"))
_TIMESTAMP = re.compile(r"-?[0-9]+")


def parse_line(line: str) -> Line | None:
    r"""Splits a line into its parts; None for a comment or a line of blanks.

    >>> line = parse_line(r"cpu\ load,host=a,dc=b\,c user=1.5,n=2i 1356998400000000000")
    >>> line.measurement, line.tags, line.fields, line.time
    ('cpu load', {'host': 'a', 'dc': 'b,c'}, [('user', '1.5'), ('n', '2i')], '1356998400000000000')

    Raises:
      RejectedError: BAD_METRIC, BAD_TAG, DUPLICATE_TAG, BAD_SYNTAX.
    """
    line = line.removesuffix("\r")
    position = _skip_blanks(line, 0)
    if position == len(line) or line[position] == "#":
        return None
    end = _end(_BEHIND_MEASUREMENT, line, position)
    if end == position:
        raise RejectedError(Reason.BAD_METRIC, f"no measurement at {short(line[position:])!r}")
    measurement = _ESCAPED_IN_MEASUREMENT.sub(r"\1", line[position:end])
    tags: dict[str, str] = {}
    while line[end : end + 1] == ",":
        end = _tag(line, end + 1, tags)
    position = _skip_blanks(line, end)
    if position == end or position == len(line):
        problem = f"unexpected {short(line[end:])!r}" if position < len(line) else "no fields"
        raise RejectedError(
            Reason.BAD_SYNTAX, f"{problem}: expected measurement[,tagk=tagv] field=value timestamp"
        )
    fields: list[tuple[str, str]] = []
    while True:
        position = _field(line, position, fields)
        if line[position : position + 1] != ",":
            break
        position += 1
    if position < len(line) and line[position] != " ":
        raise RejectedError(Reason.BAD_SYNTAX, f"unexpected {short(line[position:])!r} after a field")
    return Line(measurement, tags, fields, line[position:].strip(" "))


def parse_value(text: str, booleans: Booleans) -> int | float:
    """The number in the value of a field: an integer with suffix `i` or `u`, else a float.

    >>> [parse_value(text, Booleans.NUMBER) for text in ("42i", "42", "t")]
    [42, 42.0, 1]

    Raises:
      RejectedError: EMPTY_VALUE, BAD_NUMBER (also strings, NaN and, unless they become numbers, booleans),
        NUMBER_OUT_OF_RANGE (beyond a signed 64-bit integer or a double).
    """
    match = _INTEGER.fullmatch(text)
    if match:
        digits = match[1] or match[2]
        value = integer(digits)
        if not -(1 << 63) <= value < 1 << 63:
            raise RejectedError(
                Reason.NUMBER_OUT_OF_RANGE, f"{short(text)} needs more than 63 bits and a sign"
            )
        return value
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"{short(text)} is beyond a 64-bit float")
        return number
    if not text:
        raise RejectedError(Reason.EMPTY_VALUE, "no value")
    if text in _TRUE or text in _FALSE:
        if booleans is Booleans.NUMBER:
            return int(text in _TRUE)
        raise RejectedError(
            Reason.BAD_NUMBER, f"{text} is a boolean: --influx-booleans number makes it 1 or 0"
        )
    problem = "is a string" if text.startswith('"') else "is not a number"
    raise RejectedError(Reason.BAD_NUMBER, f"{short(text)} {problem}")


def parse_time(text: str, precision: Precision) -> tuple[int, bool]:
    """(time in ms, whether it is stored in ms) of a timestamp; digits below 1 ms are cut off.

    Times finer than seconds must not be before `FIRST_MILLISECOND`, 1970-02-19. So a timestamp of this
    century in another unit than `precision` is rejected. See `auto_times_ms` for `Precision.AUTO`.

    Raises:
      RejectedError: BAD_TIMESTAMP (missing, no integer, zero or negative), TIMESTAMP_OUT_OF_RANGE.
    """
    if not text:
        raise RejectedError(
            Reason.BAD_TIMESTAMP,
            "no timestamp: the time of arrival would differ at the next delivery; "
            "let the sender add the time",
        )
    if not _TIMESTAMP.fullmatch(text):
        raise RejectedError(
            Reason.BAD_TIMESTAMP, f"Invalid timestamp {short(text)!r}: give an integer ({precision.value})"
        )
    number = integer(text)
    if number <= 0 or text.startswith("-"):
        raise RejectedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {short(text)}: it must be above 0")
    unit = precision
    if precision is Precision.AUTO:
        unit = _BY_MAGNITUDE[min(bisect.bisect_right(_FIRST_BEYOND, number), len(_BY_MAGNITUDE) - 1)]
    time_ms = number * 1000 // PER_SECOND[unit]
    in_ms = time_ms % 1000 != 0 if precision is Precision.AUTO else unit is not Precision.SECONDS
    if time_ms > LAST_MILLISECOND or (in_ms and time_ms < FIRST_MILLISECOND):
        bounds = "from 1970-02-19 to 2106-02-07" if in_ms else "to 2106-02-07"
        raise RejectedError(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"bad timestamp {short(text)}: not {bounds} in {unit.value}; is --influx-precision right?",
        )
    return time_ms, in_ms


def _tag(line: str, position: int, tags: dict[str, str]) -> int:
    """Adds the tag that begins at `position`; returns where it ends."""
    equals = _end(_BEHIND_NAME, line, position)
    end = _end(_BEHIND_NAME, line, equals + 1)
    key, value = line[position:equals], line[equals + 1 : end]
    if not key or not value or line[equals] != "=" or line[end : end + 1] == "=":
        raise RejectedError(Reason.BAD_TAG, f"invalid tag at {short(line[position:])!r}: expected tagk=tagv")
    add_tag(tags, _name(key), _name(value))
    return end


def _field(line: str, position: int, fields: list[tuple[str, str]]) -> int:
    """Adds the field that begins at `position`; returns where it ends."""
    equals = _end(_BEHIND_NAME, line, position)
    if equals == position or line[equals : equals + 1] != "=":
        raise RejectedError(
            Reason.BAD_SYNTAX, f"invalid field at {short(line[position:])!r}: expected field=value"
        )
    start = equals + 1
    if line[start : start + 1] == '"':
        end = _string_end(line, start)
        if end < 0:
            raise RejectedError(Reason.BAD_SYNTAX, f"string without end at {short(line[start:])!r}")
    else:
        end = _end(_BEHIND_VALUE, line, start)
    fields.append((_name(line[position:equals]), line[start:end]))
    return end


def _name(text: str) -> str:
    """A tag key, tag value or field key without its escapes."""
    return _ESCAPED_IN_NAME.sub(r"\1", text)


def _end(end_pattern: re.Pattern[str], line: str, position: int) -> int:
    """The start of the first match of `end_pattern` from `position` on, or the end of the line.

    A pattern for the text before it would take memory for each repetition of a group.
    """
    match = end_pattern.search(line, position)
    return match.start() if match else len(line)


def _string_end(line: str, position: int) -> int:
    """Where the quoted string that begins at `position` ends; -1 if it has no end."""
    marks = _IN_STRING.finditer(line, position + 1)
    return next((mark.end() for mark in marks if mark[0] == '"'), -1)


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position] == " ":
        position += 1
    return position


_RETURN, _BLANK, _HASH, _COMMA, _MINUS, _NINE, _EQUALS, _I, _U = b"\r #,-9=iu"
_MARKED = bytes(byte < 32 or byte in b' ,="\\\x7f' for byte in range(256))
_PLACES = np.arange(text_columns.WINDOW)


@dataclasses.dataclass(frozen=True, slots=True)
class PlainLines:
    """The plain lines among some lines.

    Attributes:
      padded: the bytes, with padding after the last line (see `text_columns.padded`).
      marks, kinds: int64[k], uint8[k], positions and bytes of the marks.
      plain: bool[l], which lines are plain; the arrays below are int64[n], for plain lines only.
      starts, ends: spans of the lines, without newline and carriage return.
      heads, times: the numbers of the marks after the head and before the timestamp.
    """

    padded: bytes
    marks: Int64s
    kinds: Bytes
    plain: Bools
    starts: Int64s
    ends: Int64s
    heads: Int64s
    times: Int64s

    @classmethod
    def of(cls, text: bytes, starts: Int64s, ends: Int64s) -> PlainLines:
        """The plain lines among the lines from `starts` to `ends`, int64[l]."""
        padded = text_columns.padded(text)
        view = byte_view(padded)
        marks = np.flatnonzero(byte_view(padded.translate(_MARKED)).view(np.bool_))
        kinds = view[marks]
        first, last = np.searchsorted(marks, starts), np.searchsorted(marks, ends)
        last -= view[ends - 1] == _RETURN
        blanks = np.append(np.flatnonzero(kinds == _BLANK), [len(marks) - 1] * 2)
        nth = np.searchsorted(blanks, first)
        heads, times = blanks[nth], blanks[nth + 1]
        foreign = np.flatnonzero((kinds != _BLANK) & (kinds != _COMMA) & (kinds != _EQUALS))
        plain = (times + 1 == last) & ((times - heads) % 2 == 0) & (marks[heads] > starts)
        plain &= (np.searchsorted(foreign, first) == np.searchsorted(foreign, heads)) & (
            view[starts] != _HASH
        )
        return cls(padded, marks, kinds, plain, starts[plain], marks[last[plain]], heads[plain], times[plain])

    def timestamps(self) -> tuple[Int64s, Bools]:
        """(timestamps int64[n], bool[n] whether each is an integer of 64 bits)."""
        starts = self.marks[self.times] + 1
        lengths = self.ends - starts
        window = text_columns.windows(self.padded, starts)
        good = (((window - np.uint8(48)) < 10) | (lengths[:, None] <= _PLACES)).all(axis=1)
        # Any 18 digits fit 63 bits; 19 digits do if the first one is below 9.
        good &= (lengths > 0) & ((lengths < 19) | ((lengths == 19) & (window[:, 0] < _NINE)))
        times = np.zeros(len(starts), np.int64)
        times[good], good[good] = text_columns.integers(
            _cut(self.padded, starts, self.ends, np.flatnonzero(good))
        )
        return times, good

    def distinct_heads(self) -> tuple[Int64s, list[bytes]]:
        """(int64[n], k strings): the number of each line's head (measurement and tags), distinct heads."""
        return _distinct(self.padded, self.starts, self.marks[self.heads])


@dataclasses.dataclass(frozen=True, slots=True)
class PlainFields:
    """The m fields of plain lines.

    Attributes:
      padded: as in `PlainLines`.
      line: int64[m], the number of the plain line.
      good: bool[m], whether it is a key, an equals sign and a value with the right end.
      keys, keys_end, ends: int64[m], byte positions; the value begins after the equals sign.
    """

    padded: bytes
    line: Int64s
    good: Bools
    keys: Int64s
    keys_end: Int64s
    ends: Int64s

    @classmethod
    def of(cls, lines: PlainLines) -> PlainFields:
        """The fields of some lines: every second mark between head and timestamp is an equals sign."""
        marks, kinds = lines.marks, lines.kinds
        counts = (lines.times - lines.heads) // 2
        line = np.repeat(np.arange(len(counts)), counts)
        nth = np.arange(len(line)) - (np.cumsum(counts) - counts)[line]
        equals = lines.heads[line] + 1 + 2 * nth
        next_mark = kinds[equals + 1]
        keys, keys_end = marks[equals - 1] + 1, marks[equals]
        good = (
            (kinds[equals] == _EQUALS) & ((next_mark == _COMMA) | (next_mark == _BLANK)) & (keys_end > keys)
        )
        return cls(lines.padded, line, good, keys, keys_end, marks[equals + 1])

    def values(self) -> tuple[Int64s, Bytes, Bools]:
        """(bits int64[m], kinds uint8[m], good bool[m]) of the values; good for numbers."""
        starts = self.keys_end + 1
        last = byte_view(self.padded)[self.ends - 1]
        is_float = (last != _I) & (last != _U)
        ends = self.ends - ~is_float
        lengths = ends - starts
        lengths[lengths > text_columns.WINDOW] = 0
        window = text_columns.windows(self.padded, starts)
        is_decimal, exponent = text_columns.decimals(window, lengths)
        good = self.good & text_columns.regular(window, lengths, is_float, exponent)
        good &= (is_float | ~is_decimal) & ((last != _U) | (window[:, 0] != _MINUS))
        bits, kinds = np.zeros(len(good), np.int64), np.zeros(len(good), np.uint8)
        numeric = np.flatnonzero(good)
        read_numbers = text_columns.values(
            text_columns.strings_between(self.padded, starts, ends), numeric * 2, is_float[numeric]
        )
        bits[numeric], kinds[numeric], good[numeric] = read_numbers
        return bits, kinds, good

    def distinct_keys(self) -> tuple[Int64s, list[bytes]]:
        """(int64[m], k strings): the number of each field's key, and the distinct keys."""
        return _distinct(self.padded, self.keys, self.keys_end)


def _cut(text: bytes, starts: Int64s, ends: Int64s, which: Int64s) -> pa.StringArray:
    """The strings number `which` of those from `starts` to `ends`, which ascend in the text."""
    return text_columns.strings_between(text, starts, ends).take(text_columns.indices(which * 2))


def _distinct(text: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, list[bytes]]:
    """(int64[n], k strings): the number of each string from `starts` to `ends`, distinct strings."""
    cut = text_columns.strings_between(text, starts, ends).view(pa.binary())
    return text_columns.distinct(cut, np.arange(0, len(cut), 2))
