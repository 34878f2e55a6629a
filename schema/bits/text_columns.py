"""Reads strings and numbers from text, many at a time: the columnar half of the line formats.

A line is cut into five strings: the text before the first number, the first number, the text between, the
second number, the rest. The texts are the key of the series (see `linewise`). Only a strict subset of JSON's
and Java's numbers is accepted; the slow path of a format decides on others. Timestamps of 10 or 13 digits,
and values that end within eight bytes, are calculated in words, the first byte lowest; pyarrow parses others.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind, byte_view, word, words
from timebeam.schema.bits.reasons import Reason, RejectedError, short

WINDOW = 24
"""Bytes read from the start of a number; longer numbers go to the slow path."""

_PLAIN = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_GUESSES = 12  # distances tried before the lines are searched one by one
_LONGEST_INTEGER = 18  # digits that fit 63 bits for sure
_MASKS = np.tril(np.full((WINDOW + 1, WINDOW), 255, np.uint8), -1)  # row k: the first k bytes

_IS_SOLID = np.array([bool(bytes([byte]).strip()) for byte in range(256)])


def padded(text: bytes) -> bytes:
    """The text with padding after it, so that every window and word lies inside."""
    return text + bytes(WINDOW + 8)


def windows(text: bytes, positions: Int64s) -> Bytes:
    """uint8[n, WINDOW]: the bytes from each position int64[n] on."""
    all_windows = np.ndarray((len(text) - WINDOW + 1,), f"V{WINDOW}", text, 0, (1,))
    return all_windows[positions].view(np.uint8).reshape(-1, WINDOW)


def number_lengths(window: Bytes) -> Int64s:
    """int64[n]: bytes up to the first of `,`, `}`, `"`, blank or control; 0 if not in the window."""
    stops = (window == 44) | (window == 125) | (window == 34) | (window <= 32)
    return stops.argmax(axis=1)


def decimals(window: Bytes, lengths: Int64s) -> tuple[Bools, Bools]:
    """(bool[n], bool[n]): which of n numbers have one of `.`, `e`, `E`; which have an exponent."""
    inside = window & _MASKS[lengths]
    exponent = _any_byte((inside | 32) == 101)
    return exponent | _any_byte(inside == 46), exponent


def regular(window: Bytes, lengths: Int64s, is_decimal: Bools, exponent: Bools) -> Bools:
    """bool[n]: whether a number may be parsed here: checks JSON's grammar where the parser does not.

    Rejected are a leading zero (also in 0x10, which the parser would accept), plus sign or point, a last byte
    that is not a digit, and integers of more than 18 digits. Numbers with an exponent are matched one by one.
    """
    row = np.arange(0, len(window) * WINDOW, WINDOW)
    flat = window.reshape(-1)
    negative = window[:, 0] == 45
    first = row + negative
    leading_zero = (flat[first] == 48) & (flat[first + 1] != 46) & (lengths - negative > 1)
    good = (lengths > 0) & _is_digit(flat[first]) & _is_digit(flat[row + np.maximum(lengths, 1) - 1])
    good &= ~leading_zero & (is_decimal | (lengths <= _LONGEST_INTEGER))
    for i in np.flatnonzero(exponent & good):
        good[i] = _PLAIN.fullmatch(window[i, : lengths[i]].tobytes()) is not None
    return good


def strings_between(text: bytes, *cuts: Int64s) -> pa.StringArray:
    """The text cut at each line's cuts, neither copied nor decoded.

    Args:
      cuts: k arrays int64[n]: the first cuts of n lines, the second cuts, ...; ascending within a line and
        from line to line. String i * k + j begins at cut j of line i and ends at the next cut.
    """
    offsets = np.empty(len(cuts[0]) * len(cuts) + 1, np.int32)
    lines = offsets[:-1].reshape(-1, len(cuts))
    for column, cut in enumerate(cuts):
        lines[:, column] = cut
    offsets[-1] = len(text)
    return pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def indices(numbers: Int64s) -> pa.Int64Array:
    """The same for pyarrow, whose own conversion imports pandas."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _as_numpy(numbers: pa.Array, dtype: np.dtype[Any]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """The values of an array without nulls, not copied; pyarrow's own conversion imports pandas."""
    values = numbers.buffers()[1]
    return np.frombuffer(values, dtype, len(numbers)) if len(numbers) else np.empty(0, dtype)


def integers(numbers: pa.StringArray) -> tuple[Int64s, Bools]:
    """(integers int64[n], bool[n] whether each could be parsed)."""
    return _cast(numbers, pa.int64(), np.dtype(np.int64))


def distinct(cut: pa.StringArray, indexes: Int64s) -> tuple[Int64s, list[bytes]]:
    """(int64[n], k strings): the number of each string `indexes` int64[n], and the distinct strings."""
    dictionary = cut.take(indices(indexes)).dictionary_encode()
    numbers = _as_numpy(dictionary.indices, np.dtype(np.int32)).astype(np.int64)
    return numbers, dictionary.dictionary.to_pylist()


def first_if_same(text: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, list[bytes]] | None:
    """Like `distinct`, for strings of at most 16 bytes that are all equal; None if they are not."""
    size = int(ends[0] - starts[0])
    if size > 16 or not (ends - starts == size).all():
        return None
    mask = np.uint64((1 << 8 * min(size, 8)) - 1)
    head = words(text, starts) & mask
    same = bool((head == head[0]).all())
    if same and size > 8:
        tail = words(text, ends - 8)
        same = bool((tail == tail[0]).all())
    return (np.zeros(len(starts), np.int64), [text[starts[0] : ends[0]]]) if same else None


def values(cut: pa.StringArray, indexes: Int64s, is_decimal: Bools) -> tuple[Int64s, Bytes, Bools]:
    """(bits int64[n], kinds uint8[n], good bool[n]) of the strings `indexes`, integers and decimals mixed."""
    bits = np.empty(len(indexes), np.int64)
    good = np.empty(len(indexes), np.bool_)
    integer_rows, decimals = np.flatnonzero(~is_decimal), np.flatnonzero(is_decimal)
    bits[integer_rows], good[integer_rows] = integers(cut.take(indices(indexes[integer_rows])))
    floats, finite = _cast(cut.take(indices(indexes[decimals])), pa.float64(), np.dtype(np.float64))
    bits[decimals], good[decimals] = floats.view(np.int64), finite
    kinds = np.where(is_decimal, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))
    return bits, kinds, good


def _cast(
    numbers: pa.StringArray, to: pa.DataType, dtype: np.dtype[np.int64] | np.dtype[np.float64]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Bools]:
    """Numbers parsed by pyarrow; since it rejects all if one is bad, bad ones are then found one by one."""
    try:
        good = np.ones(len(numbers), np.bool_)
        result = _as_numpy(numbers.cast(to), dtype)
    except pa.ArrowInvalid:
        good = np.fromiter(
            (bool(_PLAIN.fullmatch(x.as_buffer().to_pybytes())) for x in numbers), np.bool_, len(numbers)
        )
        result = np.zeros(len(numbers), dtype)
        if good.any() and not good.all():
            result[good], good[good] = _cast(numbers.take(indices(np.flatnonzero(good))), to, dtype)
        elif good.all():  # well-formed, but rejected by pyarrow: left to the slow path
            good[:] = False
    if dtype == np.float64:
        good &= np.isfinite(result)
    return result, good


def find(text: bytes, marker: bytes, starts: Int64s, ends: Int64s, near: Int64s) -> Int64s:
    """int64[n]: where a marker of 8 to 16 bytes ends in each line; -1 for lines without it.

    Lines of one producer look alike, so the distance from `near` in one line is tried on all others at
    once, a few times; the remaining lines are searched one by one.
    """
    positions = np.full(len(starts), -1, np.int64)
    pending = np.arange(len(starts))
    head, tail, size = word(marker[:8]), word(marker[-8:]), len(marker)
    for _ in range(_GUESSES):
        if len(pending) == 0:
            return positions
        line = pending[0]
        position = text.find(marker, starts[line], ends[line])
        if position < 0:
            pending = pending[1:]
            continue
        guess = np.clip(near[pending] + (position - near[line]), 0, len(text) - WINDOW)
        hit = words(text, guess) == head
        if size > 8:
            hit &= words(text, guess + (size - 8)) == tail
        hit &= (guess >= starts[pending]) & (guess + size <= ends[pending])
        positions[pending[hit]] = guess[hit] + size
        pending = pending[~hit]
    for line in pending.tolist():
        position = text.find(marker, starts[line], ends[line])
        positions[line] = position + size if position >= 0 else -1
    return positions


def lines(text: bytes) -> tuple[Int64s, Int64s]:
    """(starts, ends) int64[n] of the lines that are not blank, without newlines."""
    view = byte_view(text)
    newline = view == 10
    if np.count_nonzero(newline) * 8 > len(text):  # short lines, many perhaps empty: only others get spans
        newline = np.concatenate(([True], newline, [True]))
        starts = np.flatnonzero(newline[:-1] > newline[1:])
        ends = np.flatnonzero(newline[1:] > newline[:-1])
    else:
        ends = np.flatnonzero(newline)
        if text and not text.endswith(b"\n"):
            ends = np.append(ends, len(text))
        starts = np.empty_like(ends)
        if len(starts):
            starts[0] = 0
            starts[1:] = ends[:-1] + 1
    doubtful = np.flatnonzero(view[starts] <= 32)
    if len(doubtful):
        blank = doubtful[_are_blank(view, starts[doubtful], ends[doubtful])]
        if len(blank):
            starts, ends = np.delete(starts, blank), np.delete(ends, blank)
    return starts, ends


def _are_blank(view: Bytes, starts: Int64s, ends: Int64s) -> Bools:
    """bool[n]: whether each line is blank; computed in arrays, since there may be millions."""
    blank = starts == ends
    if not blank.all():
        solid = np.zeros(len(view) + 1, np.int32)  # number of non-blank bytes before each byte
        np.cumsum(_IS_SOLID[view], out=solid[1:])
        blank |= solid[starts] == solid[ends]
    return blank


def _any_byte(marks: Bools) -> Bools:
    """bool[n]: whether any of the WINDOW marks of a row is set."""
    lanes = marks.view(np.uint64)
    return (lanes[:, 0] | lanes[:, 1] | lanes[:, 2]) != 0


def _is_digit(view: Bytes) -> Bools:
    return (view - np.uint8(48)) < 10


_HUGE = 1 << 1024


def integer(text: str) -> int:
    """An integer in digits; one of more than 400, beyond any double, is one that is beyond it too.

    Python itself reads at most 4,300 digits.
    """
    if len(text) <= 400:
        return int(text)
    return -_HUGE if text.startswith("-") else _HUGE


def finite(text: str) -> float:
    """The double in a string that is known to be a number.

    Raises:
      RejectedError: it is NaN, infinite, or beyond the greatest double.
    """
    number = float(text)
    if not math.isfinite(number):
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"value is NaN or Infinite: {short(text)}")
    return number


_Words = npt.NDArray[Any]  # uint64: mypy takes its sum with an int for int64

_ZEROS = word(b"0" * 8)
_ONES = word(b"\x01" * 8)
_HIGH_BITS = word(b"\x80" * 8)
_LOW_BITS = word(b"\x7f" * 8)
_TO_HIGH_BIT = word(b"\x76" * 8)  # added to a byte above 9, it sets the high bit
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

    >>> text = padded(b"1356998400 1356998400500 99 ")
    >>> lengths, times = timestamps(text, np.array([0, 11, 25]))
    >>> lengths.tolist(), times[:2].tolist()  # a number of other lengths is not read here
    ([10, 13, 0], [1356998400, 1356998400500])
    """
    head = words(text, starts) ^ _ZEROS
    tail = words(text, starts + 8) ^ _ZEROS
    size = _leading_digits(_non_digits(tail))
    good = (_non_digits(head) == 0) & ((size == 2) | (size == 5)) & ((head & 255) != 0)
    power = np.where(size == 2, np.uint64(10**2), np.uint64(10**5))
    times = _value(head, np.full_like(head, 8)) * power + _value(tail, size)
    return np.where(good, size + 8, 0).view(np.int64), times.view(np.int64)


def numbers(text: bytes, starts: Int64s, is_located: Bools) -> NumberColumns:
    """The numbers from each position int64[n] on, ascending where they are located.

    >>> text = padded(b"42.5 -7 1e3 ")
    >>> found = numbers(text, np.array([0, 5, 8]), np.array([True, True, True]))
    >>> found.lengths.tolist(), found.kinds.tolist()  # a float, an integer, a float
    ([4, 2, 3], [1, 0, 1])
    >>> found.bits.view(np.float64)[[0, 2]].tolist(), found.bits.tolist()[1]
    ([42.5, 1000.0], -7)

    Args:
      text: the bytes, with padding (`padded`).
    """
    negative = byte_view(text)[starts] == 45
    word = words(text, starts + negative)
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
    window = windows(text, starts[others])
    lengths = number_lengths(window)
    is_decimal, exponent = decimals(window, lengths)
    chosen = np.flatnonzero(regular(window, lengths, is_decimal, exponent))
    others, lengths, is_decimal = others[chosen], lengths[chosen], is_decimal[chosen]
    cut = strings_between(text, starts[others], starts[others] + lengths)
    into.lengths[others] = lengths
    into.bits[others], into.kinds[others], into.good[others] = values(
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
