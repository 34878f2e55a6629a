"""Reads many data rows at once; numpy calls for each single row would cost a fifth of a millisecond.

| rows | are read |
|---|---|
| all points have one form and one length (decimals); one append column of such points | as a table |
| other plain and compacted columns (integers) | by where each value ends |
| times out of order or repeated, corruption, other columns | by `opentsdb.decode_row` |

That module is the reference for the content of a row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.columns.decode_row import APPEND

_FLOAT32 = el.FLOAT_FLAG | 3
_FLOAT64 = el.FLOAT_FLAG | 7
_NUMBERS = {0: ">i1", 1: ">i2", 3: ">i4", 7: ">i8", _FLOAT32: ">f4", _FLOAT64: ">i8"}
"""The numpy type of a value by its flags; 8-byte floats are read as their bits."""
_PAD = 8
_GOOD = np.uint16(sum(1 << flags for flags in _NUMBERS))


@dataclasses.dataclass(frozen=True, slots=True)
class ManyRows:
    """n points of m rows, row by row, ascending within a row; rows of integers come before rows of floats.

    Attributes:
      numbers: int64[m], the position of each row in the input, in any order.
      counts: int64[m], how many points each has.
      offsets_ms: int64[n], since the base time of the row.
      in_ms, kinds, bits, arrivals_ms: as in `PointBatch`.
      unread: positions of the rows that were not read here.
    """

    numbers: Int64s
    counts: Int64s
    offsets_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    arrivals_ms: Int64s
    unread: Sequence[int] = ()


_POINTS = ("numbers", "counts", "offsets_ms", "in_ms", "kinds", "bits", "arrivals_ms")


@dataclasses.dataclass(frozen=True, slots=True)
class _ManyColumns:
    """c columns of m rows, ordered by row and qualifier.

    Attributes:
      spans: int64[m], how many columns each row has.
    """

    numbers: list[int]
    cells: list[Cell]
    spans: Int64s

    @classmethod
    def of(cls, rows: Sequence[Row], numbers: list[int]) -> _ManyColumns:
        """The columns of some rows."""
        spans = np.fromiter((len(rows[number].cells) for number in numbers), np.int64, len(numbers))
        return cls(numbers, [cell for number in numbers for cell in rows[number].cells], spans)

    @property
    def firsts(self) -> Int64s:
        """int64[m]: the first column of each row."""
        return np.cumsum(self.spans) - self.spans

    def values(self, surplus: Int64s, pad: int = 0) -> bytes:
        """`pad` zeros and all values, joined, without the surplus bytes at the end of each."""
        values: list[bytes | memoryview] = [bytes(pad), *(cell.value for cell in self.cells)]
        if surplus.any():
            for number, extra in enumerate(surplus.tolist(), 1):
                values[number] = memoryview(values[number])[: len(values[number]) - extra]
        return b"".join(values)

    def arrivals_ms(self, counts: Int64s) -> Int64s:
        """int64[n]: the timestamp of each point's column; `counts` int64[c] points a column."""
        timestamps = np.fromiter((cell.timestamp_ms for cell in self.cells), np.int64, len(self.cells))
        return np.repeat(timestamps, counts)


def read_rows(rows: Sequence[Row]) -> ManyRows:
    """The points of the rows that can be read together."""
    uniform: dict[tuple[bool, bool, int], list[int]] = {}
    mixed: tuple[list[int], list[int]] = ([], [])  # by whether their last points are floats
    for number, row in enumerate(rows):
        forms = {_form(cell) for cell in row.cells}
        if len(forms) > 1:
            if all(form is not None and not form[0] for form in forms):
                mixed[row.cells[-1].qualifier[-1] & el.FLOAT_FLAG != 0].append(number)
            continue
        form = forms.pop() if forms else None
        if form is not None and (not form[0] or len(row.cells) == 1):
            uniform.setdefault(form, []).append(number)
    uniform_groups: tuple[list[ManyRows], list[ManyRows]] = ([], [])
    for form, numbers in uniform.items():
        is_float = form[2] & el.FLOAT_FLAG != 0
        read = _read_append if form[0] else _read_uniform
        read_form = functools.partial(read, is_ms=form[1], flags=form[2])
        group, other_numbers = _read_good(read_form, rows, numbers)
        uniform_groups[is_float].append(group)
        if not form[0]:
            mixed[is_float].extend(other_numbers)
    mixed_group, _ = _read_good(_read, rows, sorted(mixed[False]) + sorted(mixed[True]))
    groups = [*uniform_groups[False], mixed_group, *uniform_groups[True]]
    groups = [group for group in groups if len(group.numbers)] or groups[:1]
    joined = groups[0]
    if len(groups) > 1:
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(group, name) for group in groups]) for name in _POINTS
        }
        joined = ManyRows(**columns)
    is_read = np.zeros(len(rows), np.bool_)
    is_read[joined.numbers] = True
    return dataclasses.replace(joined, unread=np.flatnonzero(~is_read).tolist())


def _form(cell: Cell) -> tuple[bool, bool, int] | None:
    """(is an append column, first point is in ms, flags of the point that tells); None for other columns."""
    qualifier, value = cell.qualifier, cell.value
    if not qualifier:
        return None
    if len(qualifier) % 2 == 0:
        return False, qualifier[0] >= 0xF0, qualifier[-1] & 0xF
    if len(qualifier) == 3 and qualifier[0] == APPEND and len(value) >= 5:
        is_ms = value[0] >= 0xF0
        return True, is_ms, value[3 if is_ms else 1] & 0xF
    return None


def _nothing() -> ManyRows:
    none = np.zeros(0, np.int64)
    return ManyRows(none, none, none, none.astype(np.bool_), none.astype(np.uint8), none, none)


def _read_uniform(rows: Sequence[Row], numbers: list[int], is_ms: bool, flags: int) -> tuple[ManyRows, Bools]:
    """(points of the rows, bool[m] whose qualifiers all have this form and these flags); or no points.

    Args:
      numbers: rows with columns whose first qualifier has this form and whose last one has these flags.
    """
    if flags not in _NUMBERS:
        return _nothing(), np.zeros(len(numbers), np.bool_)
    width, length = (4 if is_ms else 2), (flags & 0x7) + 1
    columns = _ManyColumns.of(rows, numbers)
    sizes = np.fromiter((len(cell.qualifier) for cell in columns.cells), np.int64, len(columns.cells))
    counts = sizes // width
    surplus = _lengths(columns) - counts * length
    good = (sizes % width == 0) & _is_surplus(surplus, counts)
    row_counts = np.add.reduceat(counts, columns.firsts)
    good_rows = np.logical_and.reduceat(good, columns.firsts)
    if good_rows.all():
        qualifiers = np.frombuffer(b"".join([cell.qualifier for cell in columns.cells]), f">u{width}")
        offsets, good = _uniform_offsets(qualifiers, row_counts, is_ms, flags)
        good_rows = np.logical_and.reduceat(good, np.cumsum(row_counts) - row_counts)
    if not good_rows.all():
        return _nothing(), good_rows
    raw = np.frombuffer(columns.values(surplus), _NUMBERS[flags])
    arrivals_ms = columns.arrivals_ms(counts)
    return _uniform_rows(columns, row_counts, offsets, is_ms, flags, raw, arrivals_ms), good_rows


def _read_append(rows: Sequence[Row], numbers: list[int], is_ms: bool, flags: int) -> tuple[ManyRows, Bools]:
    """Like `_read_uniform`, for rows with one append column each."""
    if flags not in _NUMBERS:
        return _nothing(), np.zeros(len(numbers), np.bool_)
    width, length = (4 if is_ms else 2), (flags & 0x7) + 1
    columns = _ManyColumns.of(rows, numbers)
    sizes = _lengths(columns)
    counts = sizes // (width + length)
    good_rows = sizes % (width + length) == 0
    if good_rows.all():
        table = np.frombuffer(b"".join([cell.value for cell in columns.cells]), np.uint8)
        table = table.reshape(-1, width + length)
        qualifiers = np.ascontiguousarray(table[:, :width]).view(f">u{width}").reshape(-1)
        offsets, good = _uniform_offsets(qualifiers, counts, is_ms, flags)
        good_rows = np.logical_and.reduceat(good, np.cumsum(counts) - counts)
    if not good_rows.all():
        return _nothing(), good_rows
    raw = np.ascontiguousarray(table[:, width:]).view(_NUMBERS[flags]).reshape(-1)
    arrivals_ms = columns.arrivals_ms(counts)
    return _uniform_rows(columns, counts, offsets, is_ms, flags, raw, arrivals_ms), good_rows


def _lengths(columns: _ManyColumns) -> Int64s:
    """int64[c]: bytes of each value."""
    return np.fromiter((len(cell.value) for cell in columns.cells), np.int64, len(columns.cells))


def _is_surplus(surplus: Int64s, counts: Int64s) -> Bools:
    """bool[c]: whether a column may have these surplus bytes: compacted columns end in one."""
    return (surplus == 0) | ((surplus == 1) & (counts != 1))


def _partition(numbers: list[int], good: Bools) -> tuple[list[int], list[int]]:
    """(the numbers that are good, the others)."""
    numbers_of = np.array(numbers)
    return numbers_of[good].tolist(), numbers_of[~good].tolist()


def _uniform_rows(
    columns: _ManyColumns,
    counts: Int64s,
    offsets: Int64s,
    is_ms: bool,
    flags: int,
    raw: npt.NDArray[Any],
    arrivals_ms: Int64s,
) -> ManyRows:
    """Points from `raw`, their values in the type that `_NUMBERS` gives."""
    n = len(offsets)
    if flags == _FLOAT32:
        with np.errstate(invalid="ignore"):  # a stored signalling NaN
            bits = raw.astype(np.float64).view(np.int64)
    else:
        bits = raw.astype(np.int64)
    kinds = np.full(n, Kind.FLOAT if flags & el.FLOAT_FLAG else Kind.INTEGER, np.uint8)
    numbers = np.array(columns.numbers, np.int64)
    return ManyRows(numbers, counts, offsets, np.full(n, is_ms), kinds, bits, arrivals_ms)


def _uniform_offsets(
    qualifiers: npt.NDArray[Any], counts: Int64s, is_ms: bool, flags: int
) -> tuple[Int64s, Bools]:
    """(offsets in ms int64[n], bool[n] qualifiers with this form, these flags and an ascending time).

    Args:
      qualifiers: big-endian numbers, of four bytes if `is_ms`, else of two.
      counts: int64[m], points of each row; the first point of a row may have any time.
    """
    if is_ms:
        codes = qualifiers.astype(np.uint32)
        good = (codes >= el.MS_FLAG) & ((codes & 0xF) == flags)
        offsets = ((codes & 0x0FFFFFC0) >> 6).astype(np.int64)
        #           (1)                   (2)
        # (1) The 22 bits of the time, without 1111 in front and 00 and the flags at the end,
        # (2) moved to the end: ms since the base time.
    else:
        halves = qualifiers.astype(np.uint16)
        good = (halves < 0xF000) & ((halves & 0xF) == flags)
        offsets = np.multiply(halves >> 4, 1000, dtype=np.int64)
    return offsets, good & _is_later(offsets, counts)


def _is_later(offsets: Int64s, counts: Int64s) -> Bools:
    """bool[n]: whether each time is later than the one before it in its row."""
    later = np.ones(len(offsets), np.bool_)
    np.greater(offsets[1:], offsets[:-1], out=later[1:])
    later[np.cumsum(counts) - counts] = True
    return later


def _read_good(
    read: Callable[[Sequence[Row], list[int]], tuple[ManyRows, Bools]],
    rows: Sequence[Row],
    numbers: list[int],
) -> tuple[ManyRows, list[int]]:
    """(the points of the rows that can be read so, the numbers of the others, which are left out in turn)."""
    left_out: list[int] = []
    while numbers:
        content, good_rows = read(rows, numbers)
        if good_rows.all():
            return content, left_out
        numbers, others = _partition(numbers, good_rows)
        left_out += others
    return _nothing(), left_out


def _read(rows: Sequence[Row], numbers: list[int]) -> tuple[ManyRows, Bools]:
    """(points of rows of plain and compacted columns, bool[m] rows that can be read this way)."""
    columns = _ManyColumns.of(rows, numbers)
    sizes = np.fromiter((len(cell.qualifier) for cell in columns.cells), np.int64, len(columns.cells))
    codes, counts, halved = el.split_each(b"".join([cell.qualifier for cell in columns.cells]), sizes // 2)
    if halved.any():
        return _nothing(), ~np.logical_or.reduceat(halved, columns.firsts)
    row_counts = np.add.reduceat(counts, columns.firsts)
    flags = (codes & 0xF).astype(np.uint16, copy=False)
    in_ms, offsets = _offsets(codes)
    good = (_GOOD >> flags & 1).astype(np.bool_) & _is_later(offsets, row_counts)
    #       (1)                                    (2)
    # (1) Bit f of `_GOOD` tells whether flags f are those of a number; it is moved to the last place.
    # (2) The times of a row ascend.
    good_rows = np.logical_and.reduceat(good, np.cumsum(row_counts) - row_counts)
    ends = ((flags & 0x7) + 1).astype(np.int64)
    np.cumsum(ends, out=ends)
    surplus = _lengths(columns) - np.diff(ends[np.cumsum(counts) - 1], prepend=0)
    good_rows &= np.logical_and.reduceat(_is_surplus(surplus, counts), columns.firsts)
    if not good_rows.all():
        return _nothing(), good_rows
    bits = _numbers(columns.values(surplus, _PAD), ends, flags)
    kinds = (flags >> 3).astype(np.uint8)  # the flag of floats is Kind.FLOAT, no flag Kind.INTEGER
    row_numbers = np.array(numbers, np.int64)
    return ManyRows(
        row_numbers, row_counts, offsets, in_ms, kinds, bits, columns.arrivals_ms(counts)
    ), good_rows


def _offsets(codes: el.MixedCodes) -> tuple[Bools, Int64s]:
    """(bool[n] whether a qualifier is in ms, int64[n] its time in ms since the base time)."""
    in_ms = codes >= el.MS_FLAG
    if in_ms.any():
        return in_ms, el.offsets_ms(codes)
    return in_ms, np.multiply(codes >> 4, 1000, dtype=np.int64)


def _numbers(values: bytes, ends: Int64s, flags: npt.NDArray[np.uint16]) -> Int64s:
    """int64[n]: the numbers whose bytes end before `ends` int64[n]; floats as the bits of float64.

    Args:
      values: behind `_PAD` bytes, which `ends` do not count.
    """
    numbers = np.empty(len(ends), np.int64)
    first_float = int(np.argmax(flags >= el.FLOAT_FLAG))  # most rows before it have none
    start = int(ends[first_float - 1]) if first_float else 0
    if first_float:
        numbers[:first_float] = _of_lengths(values, 0, ends[:first_float], flags[:first_float])
    numbers[first_float:] = _of_lengths(values, start, ends[first_float:], flags[first_float:])
    return numbers


def _of_lengths(
    values: bytes, start: int, ends: Int64s, flags: npt.NDArray[np.uint16]
) -> npt.NDArray[np.signedinteger[Any]]:
    """Adjacent numbers of 1, 2, 4 or 8 bytes; see `_numbers`.

    They end at multiples of the least length, so all windows there are copied to aligned numbers: reading
    numbers that are not aligned takes three times as long.

    Args:
      start: where the first one begins.
    """
    lengths = (flags & 0x7) + 1
    step, size = int(lengths.min()), int(lengths.max())
    size = max(size, 4)  # most integers are short: half the memory
    count = (int(ends[-1]) - start) // step + 1
    windows = np.ndarray((count,), f">i{size}", values, _PAD - size + start, (step,))
    numbers = windows.astype(f"i{size}").take(ends - start >> step.bit_length() - 1, mode="clip")
    #         (1)                             (2)
    # (1) Window i has the `size` bytes that end i steps after `start`.
    # (2) Which window ends with each number: its distance from `start` divided by the step, a power of two.
    shorter = np.flatnonzero(lengths < size)
    if len(shorter):
        shifts = (size - lengths[shorter]).astype(numbers.dtype) << 3
        numbers[shorter] = numbers[shorter] << shifts >> shifts
        #                                   (1)       (2)
        # (1) The bytes of the numbers before it fall out,
        # (2) and copies of its own highest bit come in: its sign.
    floats = shorter if size == 8 else np.arange(len(flags))
    floats = floats[flags[floats] == _FLOAT32]
    if len(floats):
        numbers = numbers.astype(np.int64, copy=False)
        with np.errstate(invalid="ignore"):  # a stored signalling NaN
            doubles = numbers[floats].astype(np.uint32).view(np.float32).astype(np.float64)
        numbers[floats] = doubles.view(np.int64)
    return numbers
