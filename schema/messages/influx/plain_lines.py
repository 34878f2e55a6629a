"""Plain lines of InfluxDB's line protocol taken apart, many at a time: the columnar half of `influx`.

Marks are the bytes that separate (blank, `,`, `=`, newline) and those that make a line odd (controls,
`"`, backslash). A plain line is `head blank key=value[,key=value...] blank timestamp`, with nothing
odd in it and no blank more. Whatever is not plain, or not surely a number, is left to `influx_line`.
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
    """The plain ones of some lines.

    Attributes:
      room: the bytes, with padding behind the last line (see `columns.padded`).
      marks, kinds: int64[], uint8[]: where the marks stand, and which bytes they are.
      plain: bool[], which lines are plain; the arrays below are of these lines only, int64[n].
      starts, ends: the lines, their ends without newline and carriage return.
      heads, times: the marks (by number) behind the head and before the timestamp.
    """

    room: bytes
    marks: Int64s
    kinds: Bytes
    plain: Bools
    starts: Int64s
    ends: Int64s
    heads: Int64s
    times: Int64s

    @classmethod
    def of(cls, text: bytes, starts: Int64s, ends: Int64s) -> PlainLines:
        """The plain ones of the lines from `starts` to `ends`."""
        room = columns.padded(text)
        view = columns.byte_view(room)
        marks = np.flatnonzero(columns.byte_view(room.translate(_MARKED)).view(np.bool_))
        kinds = view[marks]
        first, last = np.searchsorted(marks, starts), np.searchsorted(marks, ends)
        last -= view[ends - 1] == _RETURN
        blanks = np.append(np.flatnonzero(kinds == _BLANK), [len(marks) - 1] * 2)
        nth = np.searchsorted(blanks, first)
        heads, times = blanks[nth], blanks[nth + 1]
        odd = np.flatnonzero((kinds != _BLANK) & (kinds != _COMMA) & (kinds != _EQUALS))
        plain = (times + 1 == last) & ((times - heads) % 2 == 0) & (marks[heads] > starts)
        plain &= (np.searchsorted(odd, first) == np.searchsorted(odd, heads)) & (view[starts] != _HASH)
        return cls(room, marks, kinds, plain, starts[plain], marks[last[plain]], heads[plain], times[plain])

    def timestamps(self) -> tuple[Int64s, Bools]:
        """(int64[n], bool[n]): the timestamps, and which of them are integers that fit."""
        starts = self.marks[self.times] + 1
        lengths = self.ends - starts
        window = columns.windows(self.room, starts)
        good = (((window - np.uint8(48)) < 10) | (lengths[:, None] <= _PLACES)).all(axis=1)
        # Any 18 digits fit 63 bits; 19 do behind a first one below 9.
        good &= (lengths > 0) & ((lengths < 19) | ((lengths == 19) & (window[:, 0] < _NINE)))
        times = np.zeros(len(starts), np.int64)
        times[good], good[good] = columns.integers(_cut(self.room, starts, self.ends, np.flatnonzero(good)))
        return times, good

    def distinct_heads(self) -> tuple[Int64s, list[bytes]]:
        """(int64[n], k texts): which of the distinct heads (measurement and tags) each line has."""
        return _distinct(self.room, self.starts, self.marks[self.heads])


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """The fields of plain lines, m in all.

    Attributes:
      room: as of the lines.
      line: int64[m], which plain line each belongs to.
      good: bool[m], whether it is a key, an equals sign, and something that ends where it should.
      keys, keys_end, ends: int64[m], byte positions; the value begins behind the equals sign.
    """

    room: bytes
    line: Int64s
    good: Bools
    keys: Int64s
    keys_end: Int64s
    ends: Int64s

    @classmethod
    def of(cls, lines: PlainLines) -> Fields:
        """The fields of some lines: every second mark between head and timestamp is an equals sign."""
        marks, kinds = lines.marks, lines.kinds
        counts = (lines.times - lines.heads) // 2
        line = np.repeat(np.arange(len(counts)), counts)
        nth = np.arange(len(line)) - (np.cumsum(counts) - counts)[line]
        equals = lines.heads[line] + 1 + 2 * nth
        behind = kinds[equals + 1]
        keys, keys_end = marks[equals - 1] + 1, marks[equals]
        good = (kinds[equals] == _EQUALS) & ((behind == _COMMA) | (behind == _BLANK)) & (keys_end > keys)
        return cls(lines.room, line, good, keys, keys_end, marks[equals + 1])

    def values(self) -> tuple[Int64s, Bytes, Bools]:
        """(bits int64[m], kinds uint8[m], good bool[m]): the values, and which of them are numbers."""
        starts = self.keys_end + 1
        last = columns.byte_view(self.room)[self.ends - 1]
        is_float = (last != _I) & (last != _U)
        ends = self.ends - ~is_float
        lengths = ends - starts
        lengths[lengths > columns.WINDOW] = 0
        window = columns.windows(self.room, starts)
        is_decimal, exponent = columns.decimals(window, lengths)
        good = self.good & columns.regular(window, lengths, is_float, exponent)
        good &= (is_float | ~is_decimal) & ((last != _U) | (window[:, 0] != _MINUS))
        bits, kinds = np.zeros(len(good), np.int64), np.zeros(len(good), np.uint8)
        which = np.flatnonzero(good)
        numbers = columns.values(columns.strings_between(self.room, starts, ends), which * 2, is_float[which])
        bits[which], kinds[which], good[which] = numbers
        return bits, kinds, good

    def distinct_keys(self) -> tuple[Int64s, list[bytes]]:
        """(int64[m], k texts): which of the distinct keys each field has."""
        return _distinct(self.room, self.keys, self.keys_end)


def _cut(text: bytes, starts: Int64s, ends: Int64s, which: Int64s) -> pa.StringArray:
    """Some of the texts from `starts` to `ends`, which follow each other in the text."""
    return columns.strings_between(text, starts, ends).take(pa.array(which * 2))


def _distinct(text: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, list[bytes]]:
    """(int64[n], k texts): which of the distinct texts each from `starts` to `ends` is."""
    cut = columns.strings_between(text, starts, ends).view(pa.binary())
    return columns.distinct(cut, np.arange(0, len(cut), 2))
