"""Qualifiers of rollup and pre-aggregate tables, and those to be deleted (sections 7.3 and 7.4).

| qualifier | bytes |
|---|---|
| rollup | aggregation id; then 12 bits: interval of the row, 4 bits: flags as in the data table |
| rollup, old, only read | the aggregator's name and a colon; then the same two bytes |
| point of a group, default interval | 12 bits: second of the hour, 4 bits: flags |

A number on another width, or an integer that became a float, has another qualifier, so that a rewritten
interval could be there twice, and TSDs then fail the query: whoever writes rollups again has to delete,
in the same mutation, what may stand there: `possible_qualifiers`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from schema.layouts.base import Cell, ColumnRange
from schema.points import Int64s

FAMILY = "t"
ROLLUP_BYTES, POINT_BYTES = 3, 2


class Form(enum.Enum):
    """On how many bytes numbers are stored; the value is the flags that can then be in a qualifier."""

    FIXED = (0x7, 0xF)
    """8 bytes, so that a number has one of two qualifiers."""
    FEWEST = (0x0, 0x1, 0x3, 0x7, 0xB, 0xF)
    """Integers on 1, 2, 4 or 8 bytes, floats on 8, as HTTP /api/rollup; telnet also has floats on 4."""


def qualifiers(
    ids: Int64s, offsets: Int64s, flags: npt.NDArray[np.uint32], wide: int = ROLLUP_BYTES
) -> list[bytes]:
    """n qualifiers of three bytes, or of two without the ids."""
    codes = (ids << 16) | (offsets << 4) | flags
    raw = codes.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - wide :].tobytes()
    return [raw[at : at + wide] for at in range(0, len(raw), wide)]


def possible_qualifiers(ids: Iterable[int], first: int, end: int, form: Form) -> list[bytes]:
    """Every qualifier that the rollups of some intervals of a row can have: what a rewrite deletes.

    Bigtable deletes exact columns, a family of a row or a row, and no range of columns. Old names (`sum:`)
    are not among them: `stale_qualifiers` finds those in a row that was read.

    Args:
      ids: aggregation ids.
      first, end: intervals of the row, [first, end).
      form: FIXED if only this form was ever written there; FEWEST has every qualifier of a number.
    """
    which, offsets, flags = np.meshgrid(
        np.array(sorted(ids), np.int64),
        np.arange(first, end),
        np.array(form.value, np.uint32),
        indexing="ij",
    )
    return qualifiers(which.ravel(), offsets.ravel(), flags.ravel())


def possible_point_qualifiers(start_s: int, end_s: int, step_s: int, form: Form) -> list[bytes]:
    """The same for plain points of groups, at seconds [start_s, end_s) of the hour."""
    offsets, flags = np.meshgrid(
        np.arange(start_s, end_s, step_s), np.array(form.value, np.uint32), indexing="ij"
    )
    return qualifiers(np.zeros(offsets.size, np.int64), offsets.ravel(), flags.ravel(), POINT_BYTES)


def column_ranges(ids: Iterable[int], first: int, end: int) -> list[ColumnRange]:
    """The columns of the intervals [first, end) of a row, to be read: a range for each aggregation id."""
    return [
        ColumnRange(FAMILY, *(bytes([number]) + (at << 4).to_bytes(2, "big") for at in (first, end)))
        for number in sorted(ids)
    ]


def columns_of(ids: Iterable[int]) -> ColumnRange:
    """The columns of some aggregation ids, and of those between: one range, as several are read slowly."""
    some = sorted(ids)
    return ColumnRange(FAMILY, bytes([some[0]]), bytes([some[-1] + 1]))


def stale_qualifiers(cells: Iterable[Cell], kept: Iterable[Cell]) -> list[bytes]:
    """The qualifiers of cells that were read and are not to be written: what else a rewrite can delete."""
    written = {cell.qualifier for cell in kept}
    return [cell.qualifier for cell in cells if cell.qualifier not in written]
