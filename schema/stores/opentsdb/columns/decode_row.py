"""Reads a data row: every kind of column, in any mixture, merged into one sequence of points.

The order of the tests is that of core/CompactionQueue.buildHeapProcessAnnotations
(docs/spec/opentsdb.md §1.7): odd lengths first, since 0500 to 05FF is also a plain qualifier.

Columns merge as in docs/spec/opentsdb.md §2.2 (core/CompactionQueue.Compaction and
core/ColumnDatapointIterator.compareTo of OpenTSDB 2.4.1). The newest cell wins a time. If cell
timestamps are the times of points (tsd.storage.use_otsdb_timestamp, `dtcsMergeDataPoints`), the greatest or
smallest value wins instead; values are compared as doubles. Unlike there, a conflict never fails a query
(as with tsd.storage.fix_duplicates=true). A time in seconds and the same time in milliseconds are one
time.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import DecodedRows
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.columns.point_elements import NONE, Elements, concatenate
from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions


class Winner(enum.Enum):
    """Which of several values of one time is the point."""

    NEWEST = enum.auto()
    GREATEST = enum.auto()
    SMALLEST = enum.auto()


def winner_of(options: OpenTsdbOptions) -> Winner:
    """The rule that the options ask for."""
    if not options.is_event_time:
        return Winner.NEWEST
    return Winner.GREATEST if options.use_max_value else Winner.SMALLEST


def one_per_time(elements: Elements, *, last: bool) -> Elements:
    """One element per time, ascending.

    Args:
      last: keep the last element of a time, as in an append column; else the first one, as in a
        compacted column.
    """
    offsets = elements.offsets_ms
    if len(offsets) < 2 or (offsets[1:] > offsets[:-1]).all():
        return elements
    order = np.argsort(offsets, kind="stable")
    ascending = offsets[order]
    keep = np.insert(ascending[1:] != ascending[:-1], len(order) - 1 if last else 0, True)
    return elements.take(order[keep])


def merge(columns: Sequence[Elements]) -> tuple[Elements, Int64s]:
    """All columns of a row as one, ascending, one element per time.

    Args:
      columns: each with one element per time, ascending; in the order of their cell timestamps,
        since the last one wins.

    Returns:
      The elements, and int64[n], the column of each of them.
    """
    columns_of = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    return merge_elements(concatenate(columns) if columns else NONE, columns_of)


def merge_elements(
    everything: Elements, columns_of: Int64s, winner: Winner = Winner.NEWEST
) -> tuple[Elements, Int64s]:
    """Like `merge`, for concatenated columns in the order of their cell timestamps.

    Args:
      columns_of: int64[n], the column of each element.
      winner: of equal values the newest wins.
    """
    offsets = everything.offsets_ms
    order = _order(everything, offsets, winner)
    ascending = offsets[order]
    keep = order[np.append(ascending[1:] != ascending[:-1], True)] if len(order) else order
    return everything.take(keep), columns_of[keep]


def _order(everything: Elements, offsets: Int64s, winner: Winner) -> Int64s:
    """int64[n]: the order by time; within a time the winner comes last."""
    if winner is Winner.NEWEST:
        return np.argsort(offsets, kind="stable")
    bits, kinds, good = everything.values()
    values = np.where(kinds == Kind.FLOAT, bits.view(np.float64), bits.astype(np.float64))
    if winner is Winner.SMALLEST:
        values = -values
    return np.lexsort((values, good, offsets))


ANNOTATION, APPEND, HISTOGRAM = 0x01, 0x05, 0x06


@dataclasses.dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a row that hold points, and their elements.

    Attributes:
      cells: oldest first; the last one wins a time.
      elements: n elements, column by column; within a column one per time, ascending. Of `read_row`,
        merged: one per time of the row, ascending.
      column: int64[n], the cell that each element is from.
      corruption: in words, which cells could not be read.
      skipped: cells that hold no points: annotations and histograms.
    """

    cells: Sequence[Cell]
    elements: el.Elements
    column: Int64s
    corruption: Sequence[str]
    skipped: int


def read_row(cells: Sequence[Cell], winner: Winner = Winner.NEWEST) -> RowColumns:
    r"""Merges the cells of one row; `winner` tells which value of a time wins.

    Of equal cell timestamps, for which a TSD has no rule, the greater qualifier wins.

    >>> old, new = Cell("t", b"\x00\x00", 9000, b"\x01"), Cell("t", b"\x00\x01", 9001, b"\x01\x2c")
    >>> points = read_row([old, new]).elements  # two qualifiers of one time: the newer cell wins
    >>> points.offsets_ms.tolist(), points.values()[0].tolist()
    ([0], [300])
    """
    columns = read_columns(cells)
    elements, column = merge_elements(columns.elements, columns.column, winner)
    corruption = list(columns.corruption)
    _, _, good = elements.values()
    if not good.all():
        bad_flags = sorted({int(code) & 0xF for code in elements.codes[~good]})
        corruption += [
            f"values with flags {flags:x}: no number has this type and length" for flags in bad_flags
        ]
        elements, column = elements.take(good.nonzero()[0]), column[good]
    return RowColumns(columns.cells, elements, column, corruption, columns.skipped)


def read_columns(cells: Sequence[Cell]) -> RowColumns:
    """The columns of one row before they are merged; never raises for corrupt cells."""
    point_cells: list[Cell] = []
    columns_of: list[Int64s] = []
    elements: list[el.Elements] = []
    corruption: list[str] = []
    skipped = 0
    for is_plain, group in itertools.groupby(sorted(cells, key=_by_age), key=_is_plain_point):
        if is_plain:  # one cell for each point: read together
            points = list(group)
            columns_of.append(np.arange(len(points)) + len(point_cells))
            elements.append(
                el.split_columns(
                    b"".join([cell.qualifier for cell in points]), b"".join([cell.value for cell in points])
                )
            )
            point_cells += points
            continue
        for cell in group:
            try:
                column_elements = read_column(cell.qualifier, cell.value)
            except el.CorruptError as error:
                corruption.append(f"column {cell.qualifier[:16].hex()}: {error}")
                continue
            if column_elements is None:
                skipped += 1
                continue
            columns_of.append(np.full(len(column_elements), len(point_cells)))
            elements.append(column_elements)
            point_cells.append(cell)
    if not elements:
        return RowColumns((), el.NONE, np.zeros(0, np.int64), corruption, skipped)
    return RowColumns(point_cells, el.concatenate(elements), np.concatenate(columns_of), corruption, skipped)


def _by_age(cell: Cell) -> tuple[int, bytes]:
    return cell.timestamp_ms, cell.qualifier


def _is_plain_point(cell: Cell) -> bool:
    """Whether a cell is one sound point."""
    qualifier = cell.qualifier
    if not qualifier or len(qualifier) != (4 if qualifier[0] >= 0xF0 else 2):
        return False
    return len(cell.value) == (qualifier[-1] & 0x7) + 1


def is_append(qualifier: bytes) -> bool:
    """Whether a column of a data row is an append column (docs/spec/opentsdb.md §3)."""
    return len(qualifier) == 3 and qualifier[0] == APPEND


def is_histogram(qualifier: bytes) -> bool:
    """Whether a column of a data row holds a histogram (docs/spec/opentsdb.md §4.2)."""
    return len(qualifier) in (3, 5) and qualifier[0] == HISTOGRAM


def read_column(qualifier: bytes, value: bytes) -> el.Elements | None:
    """The elements of one column, one per time, ascending; None if it holds no points.

    Raises:
      CorruptError: OpenTSDB writes no such column, or its lengths do not agree.
    """
    if len(qualifier) % 2:
        if is_append(qualifier):
            return one_per_time(el.split_append(value), last=True)
        if qualifier[0] in (ANNOTATION, HISTOGRAM) and len(qualifier) in (3, 5):
            return None
        raise el.CorruptError(f"no column has {len(qualifier)} bytes of qualifier that start so")
    if not qualifier:
        raise el.CorruptError("empty qualifier")
    if len(qualifier) == 2:
        return el.split_columns(*repaired(qualifier, value))
    if len(qualifier) == 4 and qualifier[0] >= 0xF0 and len(value) != (qualifier[3] & 0x7) + 1:
        raise el.CorruptError(f"{len(value)} bytes where the qualifier says {(qualifier[3] & 0x7) + 1}")
    return one_per_time(el.split_columns(qualifier, value), last=False)


def repaired(qualifier: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A plain point in seconds with the errors of old TSDs corrected (docs/spec/opentsdb.md §1.6).

    They wrote float32 on eight bytes with the flags of four, and wrong lengths in flags
    (core/Internal.fixFloatingPointValue and fixQualifierFlags).

    Raises:
      CorruptError: the value is not such a float, or has a length that no value has.
    """
    flags = qualifier[1] & 0xF
    if flags & 0x8 and flags & 0x7 == 3 and len(value) == 8:
        if any(value[:4]):
            raise el.CorruptError(f"Corrupted floating point value: {value.hex()}")
        value = value[4:]
    if not 1 <= len(value) <= 8:
        raise el.CorruptError(f"a value of {len(value)} bytes")
    return bytes((qualifier[0], (qualifier[1] & 0xF8) | (len(value) - 1))), value


def decode_row(options: OpenTsdbOptions, row: Row, series: Series) -> DecodedRows:
    """The points of a row, whatever its columns: the reference for rows that are decoded together.

    Raises:
      ValueError: the key is not one of a data row.
    """
    content = read_row(row.cells, winner_of(options))
    base_ms = parse_key(options, row.key).base_s * 1000
    bits, kinds, _ = content.elements.values()
    n = len(bits)
    timestamps = np.array([cell.timestamp_ms for cell in content.cells], np.int64)
    batch = PointBatch(
        (series,),
        np.zeros(n, np.int32),
        base_ms + content.elements.offsets_ms,
        content.elements.in_ms,
        kinds,
        bits,
        timestamps[content.column] if n else np.zeros(0, np.int64),
    )
    return DecodedRows(batch, [(row, text) for text in content.corruption], content.skipped)
