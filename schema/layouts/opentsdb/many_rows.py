"""Many data rows read at once, without a call of numpy for each row, which costs a fifth of a millisecond.

| rows | are read |
|---|---|
| whose points have one form and one length, as decimals do; or of one such append column | as a table |
| other rows of plain and compacted columns, as those of integers are | by where each value ends |
| with instants out of order or twice, damage, other columns | by `timebeam.schema.layouts.opentsdb.rows` |

That module is the reference of what a row holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timebeam.schema.layouts.opentsdb import elements as el
from timebeam.schema.layouts.opentsdb.rows import APPEND
from timebeam.schema.layouts.tables import Cell, Row
from timebeam.schema.points import Bools, Bytes, Int64s, Kind

_FLOAT32 = el.FLOAT_FLAG | 3
_FLOAT64 = el.FLOAT_FLAG | 7
_NUMBERS = {0: ">i1", 1: ">i2", 3: ">i4", 7: ">i8", _FLOAT32: ">f4", _FLOAT64: ">i8"}
"""By flags how values lie there; of 8 bytes the bits are wanted, also of floats."""
_GOOD = np.uint16(sum(1 << flags for flags in _NUMBERS))


@dataclasses.dataclass(frozen=True, slots=True)
class ManyRows:
    """n points of m rows, row after row, ascending within each; rows of integers before those of floats.

    Attributes:
      numbers: int64[m], the numbers of the rows as they were given, in any order.
      counts: int64[m], how many points each has.
      offsets_ms: int64[n], since the base time of its row.
      in_ms, kinds, bits, arrivals_ms: as in `PointBatch`.
      left: numbers of the rows that are not among them.
    """

    numbers: Int64s
    counts: Int64s
    offsets_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    arrivals_ms: Int64s
    left: Sequence[int] = ()


_POINTS = ("numbers", "counts", "offsets_ms", "in_ms", "kinds", "bits", "arrivals_ms")


@dataclasses.dataclass(frozen=True, slots=True)
class _Columns:
    """c columns of m rows, in the order of the rows and of their qualifiers.

    Attributes:
      spans: int64[m], how many columns each row has.
    """

    numbers: list[int]
    cells: list[Cell]
    spans: Int64s

    @classmethod
    def of(cls, rows: Sequence[Row], numbers: list[int]) -> _Columns:
        """The columns of some rows."""
        spans = np.fromiter((len(rows[number].cells) for number in numbers), np.int64, len(numbers))
        return cls(numbers, [cell for number in numbers for cell in rows[number].cells], spans)

    @property
    def firsts(self) -> Int64s:
        """int64[m]: the first column of each row."""
        return np.cumsum(self.spans) - self.spans

    def values(self, surplus: Int64s) -> bytes:
        """All values without what is surplus at the end of each."""
        values = [cell.value for cell in self.cells]
        if surplus.any():
            values = [
                value[: len(value) - more] for value, more in zip(values, surplus.tolist(), strict=True)
            ]
        return b"".join(values)

    def arrivals_ms(self, counts: Int64s) -> Int64s:
        """int64[n]: the timestamp of the column of each point, of columns with so many points."""
        timestamps = np.fromiter((cell.timestamp_ms for cell in self.cells), np.int64, len(self.cells))
        return np.repeat(timestamps, counts)


def read_rows(rows: Sequence[Row]) -> ManyRows:
    """The points of the rows that can be read together."""
    alike: dict[tuple[bool, bool, int], list[int]] = {}
    mixed: tuple[list[int], list[int]] = ([], [])  # by whether their last points are floats
    for number, row in enumerate(rows):
        forms = {_form(cell) for cell in row.cells}
        if len(forms) > 1:
            if all(form is not None and not form[0] for form in forms):
                mixed[row.cells[-1].qualifier[-1] & el.FLOAT_FLAG != 0].append(number)
            continue
        form = forms.pop() if forms else None
        if form is not None and (not form[0] or len(row.cells) == 1):
            alike.setdefault(form, []).append(number)
    parts: list[ManyRows] = []
    for is_float in (False, True):
        for form, numbers in alike.items():
            if (form[2] & el.FLOAT_FLAG != 0) == is_float:
                read = _read_append if form[0] else _read_alike
                part, others = read(rows, numbers, *form[1:])
                parts.append(part)
                if not form[0]:
                    mixed[is_float].extend(others)
        parts.append(_read_mixed(rows, sorted(mixed[is_float])))
    parts = [part for part in parts if len(part.numbers)] or parts[:1]
    found = parts[0] if len(parts) == 1 else _joined(parts)
    is_read = np.zeros(len(rows), np.bool_)
    is_read[found.numbers] = True
    return dataclasses.replace(found, left=np.flatnonzero(~is_read).tolist())


def _form(cell: Cell) -> tuple[bool, bool, int] | None:
    """(is it an append column, is its first point in ms, flags of all if they are alike); or None."""
    name, value = cell.qualifier, cell.value
    if not name:
        return None
    if len(name) % 2 == 0:
        return False, name[0] >= 0xF0, name[-1] & 0xF
    if len(name) == 3 and name[0] == APPEND and len(value) >= 5:
        is_ms = value[0] >= 0xF0
        return True, is_ms, value[3 if is_ms else 1] & 0xF
    return None


def _joined(parts: Sequence[ManyRows]) -> ManyRows:
    columns: list[npt.NDArray[Any]] = [
        np.concatenate([getattr(part, name) for part in parts]) for name in _POINTS
    ]
    numbers, counts, offsets_ms, in_ms, kinds, bits, arrivals_ms = columns
    return ManyRows(numbers, counts, offsets_ms, in_ms, kinds, bits, arrivals_ms)


def _nothing() -> ManyRows:
    none = np.zeros(0, np.int64)
    return ManyRows(none, none, none, none.astype(np.bool_), none.astype(np.uint8), none, none)


def _read_alike(
    rows: Sequence[Row], numbers: list[int], is_ms: bool, flags: int
) -> tuple[ManyRows, list[int]]:
    """(the points of those rows all of whose qualifiers have this form and these flags, the other rows).

    Args:
      numbers: of rows with columns whose first qualifier has this form, and whose last one has these flags.
    """
    if flags not in _NUMBERS:
        return _nothing(), numbers
    wide, length = (4 if is_ms else 2), (flags & 0x7) + 1
    columns = _Columns.of(rows, numbers)
    sizes = np.fromiter((len(cell.qualifier) for cell in columns.cells), np.int64, len(columns.cells))
    counts = sizes // wide
    surplus = _lengths(columns) - counts * length
    good = (sizes % wide == 0) & _is_surplus(surplus, counts)
    of_rows = np.add.reduceat(counts, columns.firsts)
    good_rows = np.logical_and.reduceat(good, columns.firsts)
    if good_rows.all():
        names = np.frombuffer(b"".join([cell.qualifier for cell in columns.cells]), f">u{wide}")
        offsets, good = _alike_offsets(names, of_rows, is_ms, flags)
        good_rows = np.logical_and.reduceat(good, np.cumsum(of_rows) - of_rows)
    if not good_rows.all():
        kept, others = _parted(numbers, good_rows)
        part, more = _read_alike(rows, kept, is_ms, flags) if kept else (_nothing(), [])
        return part, others + more
    raw = np.frombuffer(columns.values(surplus), _NUMBERS[flags])
    return _alike(columns, of_rows, offsets, is_ms, flags, raw, columns.arrivals_ms(counts)), []


def _read_append(
    rows: Sequence[Row], numbers: list[int], is_ms: bool, flags: int
) -> tuple[ManyRows, list[int]]:
    """As `_read_alike`, of rows with one append column each."""
    if flags not in _NUMBERS:
        return _nothing(), numbers
    wide, length = (4 if is_ms else 2), (flags & 0x7) + 1
    columns = _Columns.of(rows, numbers)
    sizes = _lengths(columns)
    counts = sizes // (wide + length)
    good_rows = sizes % (wide + length) == 0
    if good_rows.all():
        table = np.frombuffer(b"".join([cell.value for cell in columns.cells]), np.uint8)
        table = table.reshape(-1, wide + length)
        names = np.ascontiguousarray(table[:, :wide]).view(f">u{wide}").reshape(-1)
        offsets, good = _alike_offsets(names, counts, is_ms, flags)
        good_rows = np.logical_and.reduceat(good, np.cumsum(counts) - counts)
    if not good_rows.all():
        kept, others = _parted(numbers, good_rows)
        part, more = _read_append(rows, kept, is_ms, flags) if kept else (_nothing(), [])
        return part, others + more
    raw = np.ascontiguousarray(table[:, wide:]).view(_NUMBERS[flags]).reshape(-1)
    return _alike(columns, counts, offsets, is_ms, flags, raw, columns.arrivals_ms(counts)), []


def _lengths(columns: _Columns) -> Int64s:
    """int64[c]: bytes of each value."""
    return np.fromiter((len(cell.value) for cell in columns.cells), np.int64, len(columns.cells))


def _is_surplus(surplus: Int64s, counts: Int64s) -> Bools:
    """bool[c]: whether so many bytes may stand behind the values: of compacted columns one does."""
    return (surplus == 0) | ((surplus == 1) & (counts != 1))


def _parted(numbers: list[int], good: Bools) -> tuple[list[int], list[int]]:
    """(the numbers that are good, the others)."""
    found: tuple[list[int], list[int]] = ([], [])
    for number, is_good in zip(numbers, good.tolist(), strict=True):
        found[not is_good].append(number)
    return found


def _alike(
    columns: _Columns,
    counts: Int64s,
    offsets: Int64s,
    is_ms: bool,
    flags: int,
    raw: npt.NDArray[Any],
    arrivals_ms: Int64s,
) -> ManyRows:
    """Points whose values lie as `_NUMBERS` says."""
    n = len(offsets)
    if flags == _FLOAT32:
        with np.errstate(invalid="ignore"):  # a stored signalling NaN
            bits = raw.astype(np.float64).view(np.int64)
    else:
        bits = raw.astype(np.int64)
    kinds = np.full(n, Kind.FLOAT if flags & el.FLOAT_FLAG else Kind.INTEGER, np.uint8)
    numbers = np.array(columns.numbers, np.int64)
    return ManyRows(numbers, counts, offsets, np.full(n, is_ms), kinds, bits, arrivals_ms)


def _alike_offsets(names: npt.NDArray[Any], counts: Int64s, is_ms: bool, flags: int) -> tuple[Int64s, Bools]:
    """(offsets in ms int64[n], bool[n]: which qualifiers have the form, the flags, and a later time).

    Args:
      names: big-endian numbers of four bytes, or of two.
      counts: int64[m], how many each row has; the first of each row may have any time.
    """
    if is_ms:
        codes = names.astype(np.uint32)
        good = (codes >= el.MS_FLAG) & ((codes & 0xF) == flags)
        offsets = ((codes & 0x0FFFFFC0) >> 6).astype(np.int64)
    else:
        halves = names.astype(np.uint16)
        good = (halves < 0xF000) & ((halves & 0xF) == flags)
        offsets = np.multiply(halves >> 4, 1000, dtype=np.int64)
    return offsets, good & _is_later(offsets, counts)


def _is_later(offsets: Int64s, counts: Int64s) -> Bools:
    """bool[n]: which times are later than the one before them in their row."""
    later = np.ones(len(offsets), np.bool_)
    np.greater(offsets[1:], offsets[:-1], out=later[1:])
    later[np.cumsum(counts) - counts] = True
    return later


def _read_mixed(rows: Sequence[Row], numbers: list[int]) -> ManyRows:
    """The points of those rows that are in good order, whatever forms and lengths they mix."""
    while numbers:
        found, good_rows = _read(rows, numbers)
        if good_rows.all():
            return found
        numbers, _ = _parted(numbers, good_rows)
    return _nothing()


def _read(rows: Sequence[Row], numbers: list[int]) -> tuple[ManyRows, Bools]:
    """(the points of rows of plain and compacted columns, bool[m]: which rows can be read so)."""
    columns = _Columns.of(rows, numbers)
    sizes = np.fromiter((len(cell.qualifier) for cell in columns.cells), np.int64, len(columns.cells))
    codes, counts, halved = _codes(b"".join([cell.qualifier for cell in columns.cells]), sizes // 2)
    if halved.any():
        return _nothing(), ~np.logical_or.reduceat(halved, columns.firsts)
    of_rows = np.add.reduceat(counts, columns.firsts)
    flags = (codes & 0xF).astype(np.uint16)
    in_ms, offsets = _offsets(codes)
    good = (_GOOD >> flags & 1).astype(np.bool_) & _is_later(offsets, of_rows)
    good_rows = np.logical_and.reduceat(good, np.cumsum(of_rows) - of_rows)
    ends = np.cumsum((flags & 0x7) + 1, dtype=np.int64)
    surplus = _lengths(columns) - np.diff(ends[np.cumsum(counts) - 1], prepend=0)
    good_rows &= np.logical_and.reduceat(_is_surplus(surplus, counts), columns.firsts)
    if not good_rows.all():
        return _nothing(), good_rows
    bits = _numbers(columns.values(surplus), ends, flags)
    kinds = (flags >> 3).astype(np.uint8)  # the flag of floats is Kind.FLOAT, no flag Kind.INTEGER
    given = np.array(numbers, np.int64)
    return ManyRows(given, of_rows, offsets, in_ms, kinds, bits, columns.arrivals_ms(counts)), good_rows


def _offsets(codes: el.Codes) -> tuple[Bools, Int64s]:
    """(bool[n]: which qualifiers are in ms, int64[n]: their times in ms since the base time)."""
    in_ms = codes >= el.MS_FLAG
    if in_ms.any():
        return in_ms, el.offsets_ms(codes)
    return in_ms, np.multiply(codes >> 4, 1000, dtype=np.int64)


def _numbers(values: bytes, ends: Int64s, flags: npt.NDArray[np.uint16]) -> Int64s:
    """int64[n]: the numbers whose bytes end before `ends`, floats as the bits of float64."""
    room = bytes(8) + values
    every = np.ndarray((len(room) - 7,), ">i8", room, 0, (1,))
    bits = every.take(ends).astype(np.int64)
    shifts = np.subtract(56, (flags & 0x7) << 3, dtype=np.int64)
    bits <<= shifts
    bits >>= shifts
    short = np.flatnonzero(flags == _FLOAT32)
    if len(short):
        with np.errstate(invalid="ignore"):  # a stored signalling NaN
            floats = bits[short].astype(np.uint32).view(np.float32).astype(np.float64)
        bits[short] = floats.view(np.int64)
    return bits


def _codes(qualifiers: bytes, words: Int64s) -> tuple[el.Codes, Int64s, Bools]:
    """(uint32[n] qualifiers, int64[c] how many each column has, bool[c] columns that end in half of one).

    As `elements.split_qualifiers`, but each column begins anew.

    Args:
      words: int64[c], how many words of two bytes each column has.
    """
    halves: el.Codes = np.frombuffer(qualifiers, ">u2").astype(np.uint32)
    halved = np.zeros(len(words), np.bool_)
    marked = halves >= 0xF000
    if not marked.any():
        return halves, words, halved
    column_of = np.repeat(np.arange(len(words)), words)
    position = np.arange(len(halves))
    ends = np.cumsum(words)
    run_start = np.maximum.accumulate(np.where(marked, 0, position + 1))
    run_start = np.maximum(run_start, (ends - words)[column_of])
    starts_ms = marked & ((position - run_start) % 2 == 0)
    halved |= starts_ms[ends - 1]
    second_half = np.zeros(len(halves), np.bool_)
    second_half[1:] = starts_ms[:-1]
    second_half[ends - words] = False
    codes = halves.copy()
    first = np.flatnonzero(starts_ms[:-1])
    codes[first] = (halves[first] << 16) | halves[first + 1]
    counts = np.bincount(column_of[~second_half], minlength=len(words))
    return codes[~second_half], counts, halved
