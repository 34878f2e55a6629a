"""Qualifiers of rollup and pre-aggregate tables, and those to be deleted.

Format: docs/spec/opentsdb.md §7.3 and §7.4.

| qualifier | bytes |
|---|---|
| rollup | aggregation id; then 12 bits: interval of the row, 4 bits: flags as in the data table |
| rollup, old, only read | the aggregator's name and a colon; then the same two bytes |
| point of a group, default interval | 12 bits: second of the hour, 4 bits: flags |

A number on another width, or an integer that became a float, has another qualifier, so that a rewritten
interval could be there twice, and TSDs then fail the query: whoever writes rollups again has to delete,
in the same mutation, what stands there: `stale_qualifiers`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from timebeam.schema.layouts.reading import ColumnRange
from timebeam.schema.points import Bytes

FAMILY = "t"
ROLLUP_BYTES, POINT_BYTES = 3, 2


class Form(enum.Enum):
    """On how many bytes numbers are stored; the value is the flags that can then be in a qualifier."""

    FIXED = (0x7, 0xF)
    """8 bytes, so that a number has one of two qualifiers."""
    FEWEST = (0x0, 0x1, 0x3, 0x7, 0xB, 0xF)
    """Integers on 1, 2, 4 or 8 bytes, floats on 8, as HTTP /api/rollup; telnet also has floats on 4."""


def qualifier_table(codes: npt.NDArray[np.uint32], wide: int = ROLLUP_BYTES) -> Bytes:
    """uint8[n, wide]: qualifiers of three bytes, or of two without the ids, of codes with all of it."""
    return codes.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - wide :]


def columns_of(ids: Iterable[int]) -> ColumnRange:
    """The columns of some aggregation ids, and of those between: one range, as several are read slowly."""
    sorted_ids = sorted(ids)
    return ColumnRange(FAMILY, bytes([sorted_ids[0]]), bytes([sorted_ids[-1] + 1]))


def stale_qualifiers(standing: Sequence[bytes], written: Iterable[bytes]) -> list[bytes]:
    """Those of the qualifiers that stand in a row that are not written again: what a rewrite deletes."""
    rewritten = set(written)
    return [qualifier for qualifier in standing if qualifier not in rewritten]
