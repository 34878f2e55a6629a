"""Numbers out of text, many at a time: the vectorised half of the line formats.

A record (one line) is cut into five pieces: the text before the first number, the first number, the
text between, the second number, the rest. The numbers become arrays here; the three texts are the
key of the series (see `lines`). Accepted is a strict subset of JSON's and Java's numbers, so that
whatever is odd goes to the formats' slow path and is judged there.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from timebeam.schema.points import Bools, Bytes, Int64s, Kind

WINDOW = 24
"""Bytes looked at from the start of a number; a longer one goes to the slow path."""

_PLAIN = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_GUESSES = 12  # distances tried before the lines are searched one by one
_LONGEST_INTEGER = 18  # digits that fit 63 bits for sure
_MASKS = np.tril(np.full((WINDOW + 1, WINDOW), 255, np.uint8), -1)  # row k: the first k bytes


def padded(text: bytes) -> bytes:
    """The text with room behind it, so that every window and word lies inside."""
    return text + bytes(WINDOW + 8)


def byte_view(text: bytes) -> Bytes:
    """uint8[n], the bytes of a text, not copied."""
    return np.frombuffer(text, np.uint8)


def words(text: bytes, positions: Int64s) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """uint64[n]: the eight bytes from each position on, the first one lowest."""
    every = np.ndarray((len(text) - 7,), "<u8", text, 0, (1,))
    return every[positions]


def word(eight: bytes) -> int:
    """Eight bytes as `words` gives them."""
    return int.from_bytes(eight, "little")


def windows(text: bytes, positions: Int64s) -> Bytes:
    """uint8[n, WINDOW]: the bytes from each position on."""
    every = np.ndarray((len(text) - WINDOW + 1,), f"V{WINDOW}", text, 0, (1,))
    return every[positions].view(np.uint8).reshape(-1, WINDOW)


def time_lengths(view: Bytes, starts: Int64s) -> Int64s:
    """int64[n]: 10 or 13, the digits of a timestamp; 0 where it has another form.

    The first one is not 0, which would be no JSON number, or hexadecimal to the parser. That the
    others are digits shows when they are parsed.
    """
    lengths = np.where(_is_digit(view[starts + 9]) & ~_is_digit(view[starts + 10]), 10, 0)
    long = lengths == 0
    if long.any():
        start = starts[long]
        lengths[long] = np.where(_is_digit(view[start + 12]) & ~_is_digit(view[start + 13]), 13, 0)
    lengths[(view[starts] - np.uint8(49)) >= 9] = 0
    return lengths


def number_lengths(window: Bytes) -> Int64s:
    """int64[n]: bytes up to the first of `,`, `}`, `"`, blank or control; 0 if not in the window."""
    stops = (window == 44) | (window == 125) | (window == 34) | (window <= 32)
    return stops.argmax(axis=1)


def decimals(window: Bytes, lengths: Int64s) -> tuple[Bools, Bools]:
    """(bool[n], bool[n]): which of n numbers hold one of `.`, `e`, `E`, and which an exponent."""
    inside = window & _MASKS[lengths]
    exponent = _any_byte((inside | 32) == 101)
    return exponent | _any_byte(inside == 46), exponent


def regular(window: Bytes, lengths: Int64s, is_decimal: Bools, exponent: Bools) -> Bools:
    """bool[n]: whether a number may be parsed here: JSON's grammar, in so far as the parser is laxer.

    Refuses a leading zero (also that of 0x10, which the parser would take), plus sign or point, a
    last byte that is no digit, integers of more than 18 digits. Numbers with an exponent are matched
    one by one.
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
    """The text cut at each line's cuts, not copied and not decoded.

    Args:
      cuts: k arrays int64[n]; all first ones, second ones ... of n lines, ascending within a line and
        from line to line. Piece i * k + j begins at cut j of line i and ends at the next cut.
    """
    offsets = np.empty(len(cuts[0]) * len(cuts) + 1, np.int32)
    lines = offsets[:-1].reshape(-1, len(cuts))
    for column, cut in enumerate(cuts):
        lines[:, column] = cut
    offsets[-1] = len(text)
    return pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def integers(numbers: pa.StringArray) -> tuple[Int64s, Bools]:
    """(int64[n], bool[n]): the integers and which of them could be parsed."""
    return _cast(numbers, pa.int64(), np.dtype(np.int64))


def distinct(cut: pa.StringArray, indexes: Int64s) -> tuple[Int64s, list[bytes]]:
    """(int64[n], k texts): which of the distinct texts each of the pieces `indexes` is."""
    dictionary = cut.take(pa.array(indexes)).dictionary_encode()
    return dictionary.indices.to_numpy().astype(np.int64), dictionary.dictionary.to_pylist()


def first_if_same(text: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, list[bytes]] | None:
    """As `distinct` for texts of at most 16 bytes that are all the same; None if they are not."""
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
    """(bits int64[n], kinds uint8[n], good bool[n]) of the pieces `indexes`: integers and decimals mixed."""
    bits = np.empty(len(indexes), np.int64)
    good = np.empty(len(indexes), np.bool_)
    integer_rows, decimals = np.flatnonzero(~is_decimal), np.flatnonzero(is_decimal)
    bits[integer_rows], good[integer_rows] = integers(cut.take(pa.array(indexes[integer_rows])))
    floats, finite = _cast(cut.take(pa.array(indexes[decimals])), pa.float64(), np.dtype(np.float64))
    bits[decimals], good[decimals] = floats.view(np.int64), finite
    kinds = np.where(is_decimal, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))
    return bits, kinds, good


def _cast(
    numbers: pa.StringArray, to: pa.DataType, dtype: np.dtype[np.int64] | np.dtype[np.float64]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Bools]:
    """Numbers parsed by pyarrow, which refuses all if one is bad: then one by one which it is."""
    try:
        good = np.ones(len(numbers), np.bool_)
        result = numbers.cast(to).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        good = np.fromiter(
            (bool(_PLAIN.fullmatch(x.as_buffer().to_pybytes())) for x in numbers), np.bool_, len(numbers)
        )
        result = np.zeros(len(numbers), dtype)
        if good.any() and not good.all():
            result[good], good[good] = _cast(numbers.filter(pa.array(good)), to, dtype)
        elif good.all():  # well-formed, yet refused by pyarrow: leave them to the slow path
            good[:] = False
    if dtype == np.float64:
        good &= np.isfinite(result)
    return result, good


def find(text: bytes, marker: bytes, starts: Int64s, ends: Int64s, near: Int64s) -> Int64s:
    """int64[n]: where a marker of 8 to 16 bytes ends in each line, -1 where it is not found.

    Lines of one producer look alike: the distance from `near` seen in one line is tried on all
    others at once, a few times; the rest is searched line by line.
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


def _any_byte(marks: Bools) -> Bools:
    """bool[n]: whether any of the WINDOW marks of a row is set."""
    lanes = marks.view(np.uint64)
    return (lanes[:, 0] | lanes[:, 1] | lanes[:, 2]) != 0


def _is_digit(view: Bytes) -> Bools:
    return (view - np.uint8(48)) < 10
