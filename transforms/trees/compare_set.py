"""Cells set only if what stands there is what we think: CheckAndMutateRow; reading clears up lost answers.

Cell timestamps are functions of what stands there, so that no clock comes in: 0 for a cell that
was not there, a millisecond after the cell that is replaced else.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.cloud.bigtable.data import DeleteRangeFromColumn, SetCell
from google.cloud.bigtable.data import row_filters as filters

from schema.layouts import Cell
from transforms.bigtable.mutate import RETRYABLE
from transforms.bigtable.target import BigtableError, Target, open_table

CELLS_AT_ONCE = 200
"""Cells of one request: the filter that asks for all of them may have 20 KB."""

_ATTEMPTS = 10


class Column(NamedTuple):
    """A column of a row, and the value that it is to have."""

    qualifier: bytes
    value: bytes


def set_absent(
    target: Target,
    table: str,
    key: bytes,
    family: str,
    columns: Sequence[Column],
    standing: Mapping[bytes, bytes],
) -> tuple[dict[bytes, bytes], set[bytes]]:
    """Sets those of a row's columns that are not there, many in one request, none if one of them has come.

    Args:
      standing: values by qualifier, as read before.

    Returns:
      (the value of each of the columns as it stands afterwards, the qualifiers of those that were set).
    """
    found = dict(standing)
    written: set[bytes] = set()
    missing = sorted(column for column in columns if column.qualifier not in found)
    for at in range(0, len(missing), CELLS_AT_ONCE):
        written |= _set_some(target, table, key, family, missing[at : at + CELLS_AT_ONCE], found)
    return found, written


def _set_some(
    target: Target, table: str, key: bytes, family: str, columns: Sequence[Column], found: dict[bytes, bytes]
) -> set[bytes]:
    """Sets columns that are not in `found`, adds what stands there to it; which were set."""
    opened = open_table(target, table)
    unsure = False
    for attempt in range(_ATTEMPTS):
        left = [column for column in columns if column.qualifier not in found]
        if not left:
            break
        sets = [SetCell(family, column.qualifier, column.value, 0) for column in left]
        asked = _any_of(family, [column.qualifier for column in left])
        try:
            if not opened.check_and_mutate_row(key, asked, false_case_mutations=list(sets)):
                found.update(left)
                return {column.qualifier for column in left}
        except RETRYABLE as error:
            _back_off(attempt, error)
            unsure = True  # it may have been carried out
        found.update(read_columns(target, table, key, family, [column.qualifier for column in left]))
    else:
        raise BigtableError(f"cells of row {key.hex()} of table {table} come and go; run it again")
    return {one.qualifier for one in columns if unsure and found[one.qualifier] == one.value}


def replace(
    target: Target, table: str, key: bytes, family: str, qualifier: bytes, old: Cell | None, new: bytes | None
) -> bool:
    """Puts a value in the place of the one that was read; whether that was still there.

    Args:
      old: None where there was no cell.
      new: None to delete the cell.
    """
    opened = open_table(target, table)
    change = (
        DeleteRangeFromColumn(family, qualifier)
        if new is None
        else SetCell(family, qualifier, new, 0 if old is None else (old.timestamp_ms + 1) * 1000)
    )
    asked = _any_of(family, [qualifier])
    if old is not None:
        asked = filters.RowFilterChain([asked, filters.ValueRangeFilter(old.value, old.value)])
    for attempt in range(_ATTEMPTS):
        try:
            if old is None:
                return not opened.check_and_mutate_row(key, asked, false_case_mutations=change)
            return opened.check_and_mutate_row(key, asked, true_case_mutations=change)
        except RETRYABLE as error:
            _back_off(attempt, error)
            if read_columns(target, table, key, family, [qualifier]).get(qualifier) == new:
                return True
    raise AssertionError("unreachable")


def read_columns(
    target: Target, table: str, key: bytes, family: str, qualifiers: Iterable[bytes]
) -> dict[bytes, bytes]:
    """Those of some columns of a row that are there."""
    row = open_table(target, table).read_row(key, row_filter=_any_of(family, list(qualifiers)))
    return {cell.qualifier: cell.value for cell in row.cells} if row else {}


def _any_of(family: str, qualifiers: Sequence[bytes]) -> filters.RowFilter:
    """The newest cell of each of these columns; the range spares the pattern all other columns."""
    pattern = b"|".join(b"".join(b"\\x%02x" % byte for byte in one) for one in qualifiers)
    return filters.RowFilterChain(
        [
            filters.ColumnRangeFilter(family, min(qualifiers), max(qualifiers)),
            filters.ColumnQualifierRegexFilter(b"(?:" + pattern + b")"),
            filters.CellsColumnLimitFilter(1),
        ]
    )


def _back_off(attempt: int, error: Exception) -> None:
    """Waits a little longer after each failed attempt; raises the error after the last one."""
    if attempt == _ATTEMPTS - 1:
        raise error
    time.sleep(min(2.0, 0.02 * 2**attempt) * random.uniform(0.5, 1.5))
