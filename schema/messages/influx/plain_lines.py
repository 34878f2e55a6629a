"""Splits plain lines of InfluxDB's line protocol, many at a time: the columnar half of `influx`.

Marks are the bytes that separate (blank, `,`, `=`, newline) and those that no plain line has (controls, `"`,
backslash). A plain line is `head blank key=value[,key=value...] blank timestamp`, without further blanks.
All other lines, and those with doubtful numbers, are left to module `line`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from timebeam.schema.messages import columns
from timebeam.schema.points import Bools, Bytes, Int64s

_RETURN, _BLANK, _HASH, _COMMA, _MINUS, _NINE, _EQUALS, _I, _U = b"\r #,-9=iu"
_MARKED = bytes(byte < 32 or byte in b' ,="\\\x7f' for byte in range(256))
_PLACES = np.arange(columns.WINDOW)


@dataclasses.dataclass(frozen=True, slots=True)
class PlainLines:
    """The plain lines among some lines.

    Attributes:
      padded: the bytes, with padding after the last line (see `columns.padded`).
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
        padded = columns.padded(text)
        view = columns.byte_view(padded)
        marks = np.flatnonzero(columns.byte_view(padded.translate(_MARKED)).view(np.bool_))
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
        window = columns.windows(self.padded, starts)
        good = (((window - np.uint8(48)) < 10) | (lengths[:, None] <= _PLACES)).all(axis=1)
        # Any 18 digits fit 63 bits; 19 digits do if the first one is below 9.
        good &= (lengths > 0) & ((lengths < 19) | ((lengths == 19) & (window[:, 0] < _NINE)))
        times = np.zeros(len(starts), np.int64)
        times[good], good[good] = columns.integers(_cut(self.padded, starts, self.ends, np.flatnonzero(good)))
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
        last = columns.byte_view(self.padded)[self.ends - 1]
        is_float = (last != _I) & (last != _U)
        ends = self.ends - ~is_float
        lengths = ends - starts
        lengths[lengths > columns.WINDOW] = 0
        window = columns.windows(self.padded, starts)
        is_decimal, exponent = columns.decimals(window, lengths)
        good = self.good & columns.regular(window, lengths, is_float, exponent)
        good &= (is_float | ~is_decimal) & ((last != _U) | (window[:, 0] != _MINUS))
        bits, kinds = np.zeros(len(good), np.int64), np.zeros(len(good), np.uint8)
        numeric = np.flatnonzero(good)
        read_numbers = columns.values(
            columns.strings_between(self.padded, starts, ends), numeric * 2, is_float[numeric]
        )
        bits[numeric], kinds[numeric], good[numeric] = read_numbers
        return bits, kinds, good

    def distinct_keys(self) -> tuple[Int64s, list[bytes]]:
        """(int64[m], k strings): the number of each field's key, and the distinct keys."""
        return _distinct(self.padded, self.keys, self.keys_end)


def _cut(text: bytes, starts: Int64s, ends: Int64s, which: Int64s) -> pa.StringArray:
    """The strings number `which` of those from `starts` to `ends`, which ascend in the text."""
    return columns.strings_between(text, starts, ends).take(pa.array(which * 2))


def _distinct(text: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, list[bytes]]:
    """(int64[n], k strings): the number of each string from `starts` to `ends`, distinct strings."""
    cut = columns.strings_between(text, starts, ends).view(pa.binary())
    return columns.distinct(cut, np.arange(0, len(cut), 2))
