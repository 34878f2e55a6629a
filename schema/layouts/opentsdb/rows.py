"""Reading a data row: every kind of column, in any mixture, into one sequence of points.

The order of the tests is that of core/CompactionQueue.buildHeapProcessAnnotations
(docs/spec/opentsdb.md §1.7): odd lengths first, since 0500 to 05FF is also a plain qualifier.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from timebeam.schema.layouts.opentsdb import elements as el
from timebeam.schema.layouts.opentsdb.merge import Winner, merge_elements, one_per_instant
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.points import Int64s

ANNOTATION, APPEND, HISTOGRAM = 0x01, 0x05, 0x06


@dataclasses.dataclass(frozen=True, slots=True)
class RowContent:
    """What the cells of a row hold.

    Attributes:
      elements: one per instant, ascending.
      timestamps_ms: int list, the cell timestamp of each element's column, by `column`.
      column: int64[n], which of the columns each element is from.
      damage: in words, what could not be read.
      skipped: cells that hold no points: annotations and histograms.
    """

    elements: el.Elements
    timestamps_ms: Sequence[int]
    column: Int64s
    damage: Sequence[str]
    skipped: int


@dataclasses.dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a row that hold points, and their elements.

    Attributes:
      cells: in the order of their age; of one instant the last one wins.
      elements: n elements, column after column; those of a column one per instant, ascending.
      column: int64[n], which of the cells each element is from.
      damage: in words, which cells could not be read.
      skipped: cells that hold no points: annotations and histograms.
    """

    cells: Sequence[Cell]
    elements: el.Elements
    column: Int64s
    damage: Sequence[str]
    skipped: int


def read_row(cells: Sequence[Cell], winner: Winner = Winner.NEWEST) -> RowContent:
    """Merges the cells of one row; the column with the newest cell timestamp wins an instant, or its value.

    At equal timestamps, where a TSD has no rule, the greater qualifier wins.
    """
    columns = read_columns(cells)
    timestamps_ms = [cell.timestamp_ms for cell in columns.cells]
    elements, column = merge_elements(columns.elements, columns.column, winner)
    damage = list(columns.damage)
    _, _, good = elements.values()
    if not good.all():
        bad_flags = sorted({int(code) & 0xF for code in elements.codes[~good]})
        damage += [f"values with flags {flags:x}: no number has this type and length" for flags in bad_flags]
        elements, column = elements.take(good.nonzero()[0]), column[good]
    return RowContent(elements, timestamps_ms, column, damage, columns.skipped)


def read_columns(cells: Sequence[Cell]) -> RowColumns:
    """The columns of one row before they are merged; never raises for damaged cells."""
    found_in: list[Cell] = []
    columns_of: list[Int64s] = []
    parts: list[el.Elements] = []
    damage: list[str] = []
    skipped = 0
    for is_plain, together in itertools.groupby(sorted(cells, key=_by_age), key=_is_plain_point):
        if is_plain:  # a cell for each point: all of them at once
            points = list(together)
            columns_of.append(np.arange(len(points)) + len(found_in))
            parts.append(
                el.split_columns(
                    b"".join([cell.qualifier for cell in points]), b"".join([cell.value for cell in points])
                )
            )
            found_in += points
            continue
        for cell in together:
            try:
                found = read_column(cell.qualifier, cell.value)
            except el.CorruptError as error:
                damage.append(f"column {cell.qualifier[:16].hex()}: {error}")
                continue
            if found is None:
                skipped += 1
                continue
            columns_of.append(np.full(len(found), len(found_in)))
            parts.append(found)
            found_in.append(cell)
    if not parts:
        return RowColumns((), el.NONE, np.zeros(0, np.int64), damage, skipped)
    return RowColumns(found_in, el.concatenate(parts), np.concatenate(columns_of), damage, skipped)


def _by_age(cell: Cell) -> tuple[int, bytes]:
    return cell.timestamp_ms, cell.qualifier


def _is_plain_point(cell: Cell) -> bool:
    """Whether a cell is one point, as it should be."""
    qualifier = cell.qualifier
    if not qualifier or len(qualifier) != (4 if qualifier[0] >= 0xF0 else 2):
        return False
    return len(cell.value) == (qualifier[-1] & 0x7) + 1


def is_histogram(qualifier: bytes) -> bool:
    """Whether a column of a data row holds a histogram (docs/spec/opentsdb.md §4.2)."""
    return len(qualifier) in (3, 5) and qualifier[0] == HISTOGRAM


def read_column(qualifier: bytes, value: bytes) -> el.Elements | None:
    """The elements of one column, one per instant, ascending; None if it holds no points.

    Raises:
      CorruptError: the column is none of those that OpenTSDB writes, or its lengths do not agree.
    """
    if len(qualifier) % 2:
        if qualifier[0] == APPEND and len(qualifier) == 3:
            return one_per_instant(el.split_append(value), last=True)
        if qualifier[0] in (ANNOTATION, HISTOGRAM) and len(qualifier) in (3, 5):
            return None
        raise el.CorruptError(f"no kind of column has a qualifier of {len(qualifier)} bytes that starts so")
    if not qualifier:
        raise el.CorruptError("empty qualifier")
    if len(qualifier) == 2:
        return el.split_columns(*repaired(qualifier, value))
    if len(qualifier) == 4 and qualifier[0] >= 0xF0 and len(value) != (qualifier[3] & 0x7) + 1:
        raise el.CorruptError(f"{len(value)} bytes where the qualifier says {(qualifier[3] & 0x7) + 1}")
    return one_per_instant(el.split_columns(qualifier, value), last=False)


def repaired(qualifier: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A plain point of seconds as it was meant: the mistakes of old TSDs put right.

    Format: docs/spec/opentsdb.md §1.6.

    They wrote float32 on eight bytes with flags of four, and wrong lengths in flags
    (core/Internal.fixFloatingPointValue and fixQualifierFlags).

    Raises:
      CorruptError: eight bytes that are no such float, or a length that no value has.
    """
    flags = qualifier[1] & 0xF
    if flags & 0x8 and flags & 0x7 == 3 and len(value) == 8:
        if any(value[:4]):
            raise el.CorruptError(f"Corrupted floating point value: {value.hex()}")
        value = value[4:]
    if not 1 <= len(value) <= 8:
        raise el.CorruptError(f"a value of {len(value)} bytes")
    return bytes((qualifier[0], (qualifier[1] & 0xF8) | (len(value) - 1))), value
