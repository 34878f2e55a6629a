"""Decimal numbers read from text as machine words of eight bytes, many at a time.

The first byte of a word is its lowest one. Timestamps of 10 or 13 digits, and values that end within eight
bytes, are calculated here; other values are parsed as in `columns`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind

_Words = npt.NDArray[Any]  # uint64: mypy takes its sum with an int for int64

_ZEROS = text_columns.word(b"0" * 8)
_ONES = text_columns.word(b"\x01" * 8)
_HIGH_BITS = text_columns.word(b"\x80" * 8)
_LOW_BITS = text_columns.word(b"\x7f" * 8)
_TO_HIGH_BIT = text_columns.word(b"\x76" * 8)  # added to a byte above 9, it sets the high bit
_POWERS = 10.0 ** np.arange(8)
_IS_STOP = np.array([byte <= 32 or byte in b',}"' for byte in range(256)])


@dataclasses.dataclass(frozen=True, slots=True)
class NumberColumns:
    """n numbers; the fields are arbitrary where `good` is False.

    Attributes:
      good: bool[n], whether the number could be read.
      lengths: int64[n], its bytes in the text.
      bits, kinds: int64[n] and uint8[n], as in `PointBatch`.
    """

    good: Bools
    lengths: Int64s
    bits: Int64s
    kinds: Bytes


def timestamps(text: bytes, starts: Int64s) -> tuple[Int64s, Int64s]:
    """(lengths, timestamps), int64[n] each; the length is 10 or 13, or 0 for a number of another form.

    The first digit is not 0: such numbers are not JSON.

    >>> text = text_columns.padded(b"1356998400 1356998400500 99 ")
    >>> lengths, times = timestamps(text, np.array([0, 11, 25]))
    >>> lengths.tolist(), times[:2].tolist()  # a number of other lengths is not read here
    ([10, 13, 0], [1356998400, 1356998400500])
    """
    head = text_columns.words(text, starts) ^ _ZEROS
    tail = text_columns.words(text, starts + 8) ^ _ZEROS
    size = _leading_digits(_non_digits(tail))
    good = (_non_digits(head) == 0) & ((size == 2) | (size == 5)) & ((head & 255) != 0)
    power = np.where(size == 2, np.uint64(10**2), np.uint64(10**5))
    times = _value(head, np.full_like(head, 8)) * power + _value(tail, size)
    return np.where(good, size + 8, 0).view(np.int64), times.view(np.int64)


def numbers(text: bytes, starts: Int64s, is_located: Bools) -> NumberColumns:
    """The numbers from each position int64[n] on, ascending where they are located.

    >>> text = text_columns.padded(b"42.5 -7 1e3 ")
    >>> found = numbers(text, np.array([0, 5, 8]), np.array([True, True, True]))
    >>> found.lengths.tolist(), found.kinds.tolist()  # a float, an integer, a float
    ([4, 2, 3], [1, 0, 1])
    >>> found.bits.view(np.float64)[[0, 2]].tolist(), found.bits.tolist()[1]
    ([42.5, 1000.0], -7)

    Args:
      text: the bytes, with padding (`columns.padded`).
    """
    negative = text_columns.byte_view(text)[starts] == 45
    word = text_columns.words(text, starts + negative)
    digits = word ^ _ZEROS
    marks = _non_digits(digits)
    integer = _leading_digits(marks)
    is_decimal = _byte(word, integer) == 46
    end = np.where(is_decimal, _leading_digits(marks & (marks - 1)), integer)
    good = is_located & (end < 8) & _IS_STOP[_byte(word, end).view(np.int64)] & (integer > 0)
    good &= ((digits & 255) != 0) | (integer == 1)  # JSON has no leading zeros
    good &= ~is_decimal | (end > integer + 1)
    below_point = (np.uint64(1) << (integer << 3)) - 1
    digits = np.where(is_decimal, (digits & below_point) | ((digits >> 8) & ~below_point), digits)
    #                              (1)                      (2)
    # (1) The digits before the point stay.
    # (2) Those behind it move one byte down, over the point.
    value = _value(digits, end - is_decimal).view(np.int64)
    # Of two numbers that a double holds exactly, the quotient is the double next to the decimal number.
    doubles = value / _POWERS[np.where(is_decimal, end - integer - 1, 0).view(np.int64) & 7]
    if negative.any():
        value, doubles = np.where(negative, -value, value), np.where(negative, -doubles, doubles)
    bits = np.where(is_decimal, doubles.view(np.int64), value)
    kinds = np.where(is_decimal, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))
    short = NumberColumns(good, end.view(np.int64) + negative, bits, kinds)
    others = np.flatnonzero(is_located & ~good)
    if len(others):
        _parse_others(text, starts, others, short)
    return short


def _parse_others(text: bytes, starts: Int64s, others: Int64s, into: NumberColumns) -> None:
    """Parses the numbers of the lines int64[k], of any length up to `columns.WINDOW`."""
    window = text_columns.windows(text, starts[others])
    lengths = text_columns.number_lengths(window)
    is_decimal, exponent = text_columns.decimals(window, lengths)
    regular = np.flatnonzero(text_columns.regular(window, lengths, is_decimal, exponent))
    others, lengths, is_decimal = others[regular], lengths[regular], is_decimal[regular]
    cut = text_columns.strings_between(text, starts[others], starts[others] + lengths)
    into.lengths[others] = lengths
    into.bits[others], into.kinds[others], into.good[others] = text_columns.values(
        cut, np.arange(0, len(cut), 2), is_decimal
    )


def _non_digits(digits: _Words) -> _Words:
    """uint64[n]: the high bit of each byte that is above 9."""
    return (((digits & _LOW_BITS) + _TO_HIGH_BIT) | digits) & _HIGH_BITS
    #         (1)                 (2)              (3)
    # (1) The seven low bits of each byte: 0 to 127.
    # (2) Plus 118: from 10 on this is 128 or more, so the high bit is set; at most 245, so no byte overflows.
    # (3) A byte from 128 on has the high bit already.


def _leading_digits(marks: _Words) -> _Words:
    """uint64[n]: the number of bytes before the first high bit; 8 without one."""
    below = ((marks & (~marks + 1)) >> 7) - 1
    #         (1)                  (2)    (3)
    return ((below & _ONES) * _ONES) >> 56
    #        (4)            (5)
    # (1) The lowest mark alone, or 0 without one.
    # (2) The last bit of its byte.
    # (3) All bits of the bytes before it; without a mark, 0 - 1, all bits of all eight.
    # (4) A one in each of these bytes.
    # (5) The product has the sum of these ones in its highest byte.


def _value(digits: _Words, count: _Words) -> _Words:
    """uint64[n]: the number that the first `count` bytes, up to 8, are the decimal digits of."""
    digits = digits << (64 - (count << 3))  # (1)
    digits = ((digits * 2561) >> 8) & 0x00FF00FF00FF00FF  # (2)
    digits = ((digits * 6553601) >> 16) & 0x0000FFFF0000FFFF  # (3)
    return (digits * 42949672960001) >> 32  # (4)
    # (1) Bytes behind the digits fall out, and bytes of 0 come before them: leading zeros.
    # (2) 2561 = (10 << 8) + 1: the second byte of each pair becomes 10 * first + second, which is kept.
    # (3) 6553601 = (100 << 16) + 1: two such pairs become 100 * first + second.
    # (4) 42949672960001 = (10_000 << 32) + 1: the same of both halves; the upper one is the number.


def _byte(word: _Words, position: _Words) -> _Words:
    """uint64[n]: a byte of each word; 0 behind its end."""
    return (word >> (position << 3)) & 255
