"""Many data rows read at once: those of one plain or compacted column each, as compacted tables have them.

Row by row, numpy costs a fifth of a millisecond however short a row is. What does not fit here (several
columns, damage, instants out of order) is left to `schema.layouts.opentsdb.rows`, which is the reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from schema.layouts.base import Row
from schema.layouts.opentsdb import elements as el
from schema.points import Bools, Bytes, Int64s


@dataclasses.dataclass(frozen=True, slots=True)
class ManyRows:
    """n points of some rows, row after row, ascending within each.

    Attributes:
      row: int64[n], the number of the row of each, as they were given.
      offsets_ms: int64[n], since the base time of its row.
      in_ms, kinds, bits: as in `PointBatch`.
      left: numbers of the rows that are not among them.
    """

    row: Int64s
    offsets_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    left: Sequence[int]


def read_rows(rows: Sequence[Row]) -> ManyRows:
    """The points of the rows that have one plain or compacted column each, in good order."""
    taken = [number for number, row in enumerate(rows) if len(row.cells) == 1 and _has_points(row)]
    while True:
        found, bad = _read([rows[number] for number in taken])
        if not bad.any():
            break
        taken = [number for number, is_bad in zip(taken, bad.tolist(), strict=True) if not is_bad]
    inside = set(taken)
    left = [number for number in range(len(rows)) if number not in inside]
    numbers = np.array(taken, np.int64)
    return dataclasses.replace(found, row=numbers[found.row] if taken else found.row, left=left)


def _has_points(row: Row) -> bool:
    """Whether the only cell is a compacted column, or a point that needs no repair."""
    qualifier, value = row.cells[0].qualifier, row.cells[0].value
    if len(qualifier) % 2 or not qualifier:
        return False
    if len(qualifier) == (4 if qualifier[0] >= 0xF0 else 2):
        return len(value) == (qualifier[-1] & 0x7) + 1
    return True


def _read(rows: Sequence[Row]) -> tuple[ManyRows, Bools]:
    """(the points of rows of one column each, bool[m]: which rows are none of those)."""
    m = len(rows)
    bad = np.zeros(m, np.bool_)
    none = np.zeros(0, np.int64)
    if not m:
        return ManyRows(none, none, np.zeros(0, np.bool_), np.zeros(0, np.uint8), none, ()), bad
    qualifiers = [row.cells[0].qualifier for row in rows]
    values = [row.cells[0].value for row in rows]
    words = np.fromiter(map(len, qualifiers), np.int64, m) // 2
    codes, row_of, bad = _codes(b"".join(qualifiers), words)
    elements = el.Elements(codes, np.zeros(len(codes), np.uint64))
    widths = elements.widths
    needed = np.bincount(row_of, widths, m).astype(np.int64)
    surplus = np.fromiter(map(len, values), np.int64, m) - needed
    bad |= (surplus != 0) & (surplus != 1)
    if bad.any():
        return ManyRows(none, none, none.astype(np.bool_), none.astype(np.uint8), none, ()), bad
    before = np.concatenate([[0], np.cumsum(surplus)[:-1]])
    ends = np.cumsum(widths) + before[row_of]
    elements = el.Elements(codes, el.gather_values(b"".join(values), ends, widths))
    offsets = elements.offsets_ms
    backwards = (offsets[1:] <= offsets[:-1]) & (row_of[1:] == row_of[:-1])
    bad[row_of[1:][backwards]] = True
    bits, kinds, good = elements.values()
    bad[row_of[~good]] = True
    return ManyRows(row_of, offsets, elements.in_ms, kinds, bits, ()), bad


def _codes(qualifiers: bytes, words: Int64s) -> tuple[el.Codes, Int64s, Bools]:
    """(uint32[n] qualifiers, int64[n] the row of each, bool[m] rows that end in half of one).

    As `elements.split_qualifiers`, but each row begins anew.

    Args:
      words: int64[m], how many words of two bytes each row has.
    """
    halves = np.frombuffer(qualifiers, ">u2").astype(np.uint32)
    row_of = np.repeat(np.arange(len(words)), words)
    bad = np.zeros(len(words), np.bool_)
    marked = halves >= 0xF000
    if not marked.any():
        return halves, row_of, bad
    position = np.arange(len(halves))
    ends = np.cumsum(words)
    run_start = np.maximum.accumulate(np.where(marked, 0, position + 1))
    run_start = np.maximum(run_start, (ends - words)[row_of])
    starts_ms = marked & ((position - run_start) % 2 == 0)
    bad |= starts_ms[ends - 1]
    second_half = np.zeros(len(halves), np.bool_)
    second_half[1:] = starts_ms[:-1]
    second_half[ends - words] = False
    codes = halves.copy()
    first = np.flatnonzero(starts_ms[:-1])
    codes[first] = (halves[first] << 16) | halves[first + 1]
    return codes[~second_half], row_of[~second_half], bad
