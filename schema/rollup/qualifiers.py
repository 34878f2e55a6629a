"""Qualifiers of rollup and pre-aggregate tables, and which of them a rewrite deletes.

Format: docs/spec/opentsdb.md §7.3 and §7.4.

| qualifier | bytes |
|---|---|
| rollup | aggregation id; then 12 bits: interval of the row, 4 bits: flags as in the data table |
| rollup, old form, read only | the aggregator's name and a colon; then the same two bytes |
| point of a group, default interval | 12 bits: second of the hour, 4 bits: flags |

A number of another width, or an integer that became a float, has another qualifier. A rewritten interval
could then have two cells, and TSDs would fail the query. So a rewrite deletes the existing cells in the same
mutation: see `stale_qualifiers`.
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
    """How many bytes a number takes; the value is the possible flags of a qualifier."""

    FIXED = (0x7, 0xF)
    """8 bytes, so there are two possible qualifiers."""
    FEWEST = (0x0, 0x1, 0x3, 0x7, 0xB, 0xF)
    """Integers on 1, 2, 4 or 8 bytes, floats on 8, as with HTTP /api/rollup; telnet also writes 4."""


def qualifier_table(codes: npt.NDArray[np.uint32], qualifier_bytes: int = ROLLUP_BYTES) -> Bytes:
    """uint8[n, qualifier_bytes]: the last three bytes of codes, or the last two, without the ids."""
    return codes.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - qualifier_bytes :]


def columns_of(ids: Iterable[int]) -> ColumnRange:
    """The columns of aggregation ids and those between, as one range, since several are slow to read."""
    sorted_ids = sorted(ids)
    return ColumnRange(FAMILY, bytes([sorted_ids[0]]), bytes([sorted_ids[-1] + 1]))


def stale_qualifiers(existing: Sequence[bytes], written: Iterable[bytes]) -> list[bytes]:
    """The existing qualifiers of a row that a rewrite deletes, since it does not write them."""
    kept_qualifiers = set(written)
    return [qualifier for qualifier in existing if qualifier not in kept_qualifiers]
