"""Elements: the points of one or more columns as numpy arrays of qualifiers and values.

docs/spec/opentsdb.md §1.5, §1.6, §2.1 and §3; core/Internal, core/CompactionQueue and
core/AppendDataPoints of OpenTSDB 2.4.1.

| qualifier | bits |
|---|---|
| 2 bytes | 12 bits of seconds since the base time, 4 bits of flags |
| 4 bytes | 1111, 22 bits of milliseconds since the base time, 00, 4 bits of flags |

Flags: bit 3 is set for floating point, bits 0 to 2 are the length of the value minus one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind
from timebeam.schema.core.point_fragments import Strings, starts_of

Codes = npt.NDArray[np.uint32]
MixedCodes = npt.NDArray[np.unsignedinteger[Any]]
"""uint16 if all are in seconds, which takes half the time; else uint32."""

Raws = npt.NDArray[np.uint64]

MS_FLAG = 0xF0000000
FLOAT_FLAG = 0x8
_LENGTH_MASK = 0x7
_MASKS = np.array([(1 << (8 * width)) - 1 for width in range(9)], np.uint64)  # by width in bytes
_INTEGER_WIDTHS = (1, 2, 4, 8)


class CorruptError(ValueError):
    """The bytes of a column do not follow the format."""


@dataclasses.dataclass(frozen=True, slots=True)
class Elements:
    """n elements.

    Attributes:
      codes: uint32[n], the qualifiers; those of two bytes are below MS_FLAG.
      raws: uint64[n], the bytes of each value as a big-endian number.
    """

    codes: Codes
    raws: Raws

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def in_ms(self) -> Bools:
        """bool[n]: whether the qualifier has four bytes."""
        return self.codes >= MS_FLAG

    @property
    def offsets_ms(self) -> Int64s:
        """int64[n]: milliseconds since the base time of the row."""
        return offsets_ms(self.codes)

    @property
    def widths(self) -> Int64s:
        """int64[n]: bytes of each value."""
        return widths_of(self.codes)

    def take(self, indices: Int64s | slice) -> Elements:
        """A selection."""
        return Elements(self.codes[indices], self.raws[indices])

    def values(self) -> tuple[Int64s, Bytes, Bools]:
        """(bits int64[n], kinds uint8[n], good bool[n]); good is False for a length that no value has."""
        widths = self.widths
        is_float = (self.codes & FLOAT_FLAG) != 0
        shift = (64 - 8 * widths).astype(np.int64)
        bits = (self.raws.view(np.int64) << shift) >> shift
        #       (1)                                (2)
        # (1) The sign of a value of fewer bytes, its highest bit, becomes that of the int64.
        # (2) Shifting back copies the sign into the bits above the value: 0xff is -1.
        short = is_float & (widths == 4)
        if short.any():
            with np.errstate(invalid="ignore"):  # a stored signalling NaN
                floats = self.raws[short].astype(np.uint32).view(np.float32).astype(np.float64)
            bits[short] = floats.view(np.int64)
        kinds = np.where(is_float, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))
        good = np.where(is_float, (widths == 4) | (widths == 8), np.isin(widths, _INTEGER_WIDTHS))
        return bits, kinds, good


NONE = Elements(np.empty(0, np.uint32), np.empty(0, np.uint64))


def offsets_ms(codes: Codes) -> Int64s:
    """int64[n]: milliseconds since the base time of the row, of qualifiers.

    >>> offsets_ms(np.array([0x03C0, 0xF03B1500], np.uint32)).tolist()  # 60 s, 60,500 ms
    [60000, 60500]
    """
    if not (codes >= MS_FLAG).any():
        return (codes >> 4).astype(np.int64) * 1000
    numbers = codes.astype(np.int64)
    return np.where(codes >= MS_FLAG, (numbers & 0x0FFFFFC0) >> 6, (numbers >> 4) * 1000)
    #                                  (1)                          (2)
    # (1) Four bytes: without 1111 in front, and 00 and the flags at the end, ms.
    # (2) Two bytes: without the flags, s.


def widths_of(codes: Codes) -> Int64s:
    """int64[n]: number of bytes of each value, which its qualifier says."""
    return (codes & _LENGTH_MASK).astype(np.int64) + 1


def concatenate(arrays: Sequence[Elements]) -> Elements:
    """All elements, in order."""
    if len(arrays) == 1:
        return arrays[0]
    return Elements(
        np.concatenate([elements.codes for elements in arrays]),
        np.concatenate([elements.raws for elements in arrays]),
    )


def qualifier_codes(offsets_ms: Int64s, in_ms: Bools, flags: npt.NDArray[np.uint32]) -> Codes:
    """uint32[n]: the qualifiers of points at these offsets from the base time.

    >>> flags = np.uint32(0)  # an integer of one byte
    >>> [hex(code) for code in qualifier_codes(np.array([60_000]), np.array([False]), flags)]
    ['0x3c0']
    >>> [hex(code) for code in qualifier_codes(np.array([60_500]), np.array([True]), flags)]
    ['0xf03b1500']
    """
    seconds = (offsets_ms // 1000) << 4
    if in_ms.any():
        seconds = np.where(in_ms, (offsets_ms << 6) | MS_FLAG, seconds)
    return seconds.astype(np.uint32) | flags


def integer_elements(bits: Int64s) -> tuple[npt.NDArray[np.uint32], Raws]:
    """(flags, raws) of integers, each on the fewest of 1, 2, 4, 8 bytes (core/Internal.vleEncodeLong).

    >>> flags, raws = integer_elements(np.array([1, -1, 300, 70_000]))
    >>> flags.tolist(), [hex(raw) for raw in raws.tolist()]  # 1, 1, 2 and 4 bytes
    ([0, 0, 1, 3], ['0x1', '0xff', '0x12c', '0x11170'])
    """
    sign_free = bits ^ (bits >> 63)  # (1)
    step = (sign_free > 0x7F).astype(np.uint32)
    step += sign_free > 0x7FFF
    step += sign_free > 0x7FFFFFFF
    flags = (np.uint32(1) << step) - np.uint32(1)  # (2)
    return flags, bits.view(np.uint64) & _MASKS[flags + 1]
    # (1) A negative number has all its bits turned, and needs as many bytes as the result: -128 as 127.
    # (2) 0, 1, 3, 7 for the steps 0, 1, 2, 3: one less than 1, 2, 4, 8 bytes.


def float_elements(bits: Int64s, *, exact: bool, short: bool) -> tuple[npt.NDArray[np.uint32], Raws]:
    """(flags, raws) of doubles given by their bits.

    >>> flags, raws = float_elements(np.array([1.5, 0.1]).view(np.int64), exact=True, short=False)
    >>> [hex(flag) for flag in flags.tolist()], [hex(raw) for raw in raws.tolist()]
    (['0xb', '0xf'], ['0x3fc00000', '0x3fb999999999999a'])

    Args:
      exact: use 4 bytes where they hold the same number.
      short: use 4 bytes where float32 is finite, whatever precision is lost.
    """
    raws = bits.view(np.uint64).copy()
    flags = np.full(len(bits), FLOAT_FLAG | 7, np.uint32)
    if exact or short:
        doubles = bits.view(np.float64)
        with np.errstate(over="ignore"):
            narrow = doubles.astype(np.float32)
        fits = np.isfinite(narrow) if short else narrow.astype(np.float64) == doubles
        flags[fits] = FLOAT_FLAG | 3
        raws[fits] = narrow.view(np.uint32)[fits]
    return flags, raws


def qualifier_bytes(codes: Codes) -> tuple[bytes, Int64s]:
    """(all qualifiers concatenated, int64[n + 1] the start of each and the end)."""
    in_ms = codes >= MS_FLAG
    n = len(codes)
    if not in_ms.any():
        return codes.astype(">u2").tobytes(), np.arange(0, 2 * n + 1, 2)
    if in_ms.all():
        return codes.astype(">u4").tobytes(), np.arange(0, 4 * n + 1, 4)
    starts = starts_of(np.where(in_ms, 4, 2))
    out = np.empty(int(starts[-1]), np.uint8)
    _scatter(out, starts[:-1][~in_ms], codes[~in_ms].astype(">u2").view(np.uint8).reshape(-1, 2))
    _scatter(out, starts[:-1][in_ms], codes[in_ms].astype(">u4").view(np.uint8).reshape(-1, 4))
    return out.tobytes(), starts


def value_bytes(elements: Elements) -> tuple[bytes, Int64s]:
    """(all values concatenated, int64[n + 1] the start of each and the end)."""
    widths = elements.widths
    starts = starts_of(widths)
    if len(widths) and (widths == widths[0]).all():
        return _big_endian(elements)[:, 8 - int(widths[0]) :].tobytes(), starts
    left = elements.raws << (8 * (8 - widths)).astype(np.uint64)  # (1)
    out = np.empty(int(starts[-1]) + 8, np.uint8)
    _scatter(out, starts[:-1], left.astype(">u8").view(np.uint8).reshape(-1, 8))  # (2)
    return out[: int(starts[-1])].tobytes(), starts
    # (1) The bytes of the value are the first of eight,
    # (2) whose others the next value replaces: numpy assigns in order.


def append_bytes(elements: Elements) -> bytes:
    """The value of an append column: qualifier and value of each element in turn.

    Format: docs/spec/opentsdb.md §3.

    >>> points = split_columns(bytes.fromhex("0000 0010 03c1"), bytes.fromhex("01 02 012c 00"))
    >>> append_bytes(points).hex()  # 0000: 01, 0010: 02, 03c1: 012c
    '00000100100203c1012c'
    """
    in_ms = elements.in_ms
    starts = starts_of(elements.widths + np.where(in_ms, 4, 2))
    out = np.empty(int(starts[-1]), np.uint8)
    positions = starts[:-1]
    _scatter(out, positions[~in_ms], elements.codes[~in_ms].astype(">u2").view(np.uint8).reshape(-1, 2))
    _scatter(out, positions[in_ms], elements.codes[in_ms].astype(">u4").view(np.uint8).reshape(-1, 4))
    value_positions, big_endian = positions + np.where(in_ms, 4, 2), _big_endian(elements)
    for width in np.flatnonzero(np.bincount(elements.widths, minlength=9)).tolist():
        indices = np.flatnonzero(elements.widths == width)
        _scatter(out, value_positions[indices], big_endian[indices, 8 - width :])
    return out.tobytes()


def split_columns(qualifiers: bytes, values: bytes) -> Elements:
    """The elements of a plain or compacted column, whose value may end in one extra byte.

    Format: docs/spec/opentsdb.md §2.1.

    >>> values = bytes.fromhex("01 02 012c 3ff8000000000000 00")
    >>> points = split_columns(bytes.fromhex("0000 0010 0021 003f"), values)
    >>> points.offsets_ms.tolist(), points.widths.tolist()
    ([0, 1000, 2000, 3000], [1, 1, 2, 8])

    Raises:
      CorruptError: the lengths do not agree.
    """
    codes = split_qualifiers(qualifiers)
    starts = starts_of(widths_of(codes))
    if len(values) - int(starts[-1]) not in (0, 1):
        raise CorruptError(
            f"Corrupted value: {len(values)} bytes where the qualifiers say {int(starts[-1])} or one more"
        )
    return of_strings(codes, (values, starts))


def of_strings(codes: Codes, values: Strings) -> Elements:
    """The elements with these qualifiers and values."""
    content, starts = values
    padded = bytes(8) + content
    windows = np.ndarray((len(padded) - 7,), ">u8", padded, 0, (1,))
    return Elements(codes, windows[starts[1:]].astype(np.uint64) & _MASKS[widths_of(codes)])
    #                      (1)                                     (2)
    # (1) The eight bytes that end where each value does, since eight bytes stand before the first one.
    # (2) Without those before the value.


def split_qualifiers(qualifiers: bytes) -> Codes:
    """uint32[n]: splits concatenated qualifiers of two and four bytes.

    A two-byte word whose first nibble is F starts a four-byte qualifier, unless it is the second half of
    one. In a run of such words first and second halves alternate, and the run begins with a first half.

    >>> [hex(code) for code in split_qualifiers(bytes.fromhex("0007 f0000107 f00a4107")).tolist()]
    ['0x7', '0xf0000107', '0xf00a4107']

    Raises:
      CorruptError: odd length, or a last qualifier cut in half.
    """
    if len(qualifiers) % 2 or not qualifiers:
        raise CorruptError(f"qualifier of {len(qualifiers)} bytes")
    halves = np.frombuffer(qualifiers, ">u2").astype(np.uint32)
    marked = halves >= 0xF000
    if not marked.any():
        return halves
    position = np.arange(len(halves))
    run_start = np.maximum.accumulate(np.where(marked, 0, position + 1))  # (1)
    starts_ms = marked & ((position - run_start) % 2 == 0)  # (2)
    # (1) Each word's position behind the last unmarked word, where its run of marked words begins.
    # (2) In a run every other word, the first one included, begins a qualifier of four bytes.
    if starts_ms[-1]:
        raise CorruptError("the last qualifier is cut in half")
    second_half = np.zeros(len(halves), np.bool_)
    second_half[1:] = starts_ms[:-1]
    codes = halves.copy()
    first = np.flatnonzero(starts_ms)
    codes[first] = (halves[first] << 16) | halves[first + 1]  # the upper and the lower two bytes
    return codes[~second_half]


def split_each(qualifiers: bytes, words: Int64s) -> tuple[MixedCodes, Int64s, Bools]:
    """(qualifiers of n points, their count in each column int64[c], columns that end inside one bool[c]).

    Like `split_qualifiers`, for each column separately.

    Args:
      words: int64[c], two-byte words of each column.
    """
    seconds = np.frombuffer(qualifiers, ">u2").astype(np.uint16)
    halved = np.zeros(len(words), np.bool_)
    marked = seconds >= 0xF000
    if not marked.any():
        return seconds, words, halved
    halves: Codes = seconds.astype(np.uint32)
    column_of = np.repeat(np.arange(len(words)), words)
    position = np.arange(len(halves))
    ends = np.cumsum(words)
    run_start = np.maximum.accumulate(np.where(marked, 0, position + 1))  # (1)
    run_start = np.maximum(run_start, (ends - words)[column_of])  # (2)
    starts_ms = marked & ((position - run_start) % 2 == 0)  # (3)
    # (1) Each word's position behind the last unmarked word, where its run of marked words begins,
    # (2) but not before its column.
    # (3) In a run every other word, the first one included, begins a qualifier of four bytes.
    halved |= starts_ms[ends - 1]
    second_half = np.zeros(len(halves), np.bool_)
    second_half[1:] = starts_ms[:-1]
    second_half[ends - words] = False
    codes = halves.copy()
    first = np.flatnonzero(starts_ms[:-1])
    codes[first] = (halves[first] << 16) | halves[first + 1]  # the upper and the lower two bytes
    counts = np.bincount(column_of[~second_half], minlength=len(words))
    return codes[~second_half], counts, halved


def split_append(value: bytes) -> Elements:
    """The elements of an append column in the order they were appended (docs/spec/opentsdb.md §3).

    >>> points = split_append(bytes.fromhex("00000100100203c1012ce0f300011170"))
    >>> points.offsets_ms.tolist(), points.values()[0].tolist()
    ([0, 1000, 60000, 3599000], [1, 2, 300, 70000])

    Raises:
      CorruptError: truncated or surplus bytes.
    """
    uniform = _split_uniform(value)
    if uniform is not None:
        return uniform
    codes, raws = [], []
    start, size = 0, len(value)
    while start < size:
        width = 4 if value[start] >= 0xF0 else 2
        code = int.from_bytes(value[start : start + width], "big")
        end = start + width + (code & _LENGTH_MASK) + 1
        if end > size:
            raise CorruptError(f"Corrupted value: append column of {size} bytes ends inside an element")
        codes.append(code)
        raws.append(int.from_bytes(value[start + width : end], "big"))
        start = end
    return Elements(np.array(codes, np.uint32), np.array(raws, np.uint64))


def _split_uniform(value: bytes) -> Elements | None:
    """The elements of an append column if all have the same form and width, else None."""
    if len(value) < 5:  # too short for an element of milliseconds: not worth telling apart
        return None
    qualifier_width = 4 if value[0] >= 0xF0 else 2
    value_width = (value[qualifier_width - 1] & _LENGTH_MASK) + 1
    if len(value) % (qualifier_width + value_width):
        return None
    table = np.frombuffer(value, np.uint8).reshape(-1, qualifier_width + value_width)
    same = (table[:, qualifier_width - 1] & _LENGTH_MASK) == value_width - 1
    if not (same & ((table[:, 0] >= 0xF0) == (qualifier_width == 4))).all():
        return None
    codes = (
        np.ascontiguousarray(table[:, :qualifier_width])
        .view(f">u{qualifier_width}")
        .reshape(-1)
        .astype(np.uint32)
    )
    raws = np.zeros((len(table), 8), np.uint8)
    raws[:, 8 - value_width :] = table[:, qualifier_width:]
    return Elements(codes, raws.view(">u8").reshape(-1).astype(np.uint64))


def _scatter(out: Bytes, positions: Int64s, rows: Bytes) -> None:
    """Writes `rows` uint8[n, width] into `out` at the positions int64[n]."""
    width = rows.shape[1]
    if len(positions):
        windows = np.ndarray((len(out) - width + 1,), f"V{width}", out.data, 0, (1,))
        windows[positions] = np.ascontiguousarray(rows).view(f"V{width}").reshape(-1)


def _big_endian(elements: Elements) -> Bytes:
    """uint8[n, 8]: each value on eight bytes, right-aligned."""
    return elements.raws.astype(">u8").view(np.uint8).reshape(-1, 8)
