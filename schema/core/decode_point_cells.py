"""Decodes rows with a cell for each point, many at once: those of Heroic and KairosDB.

A row is decoded with others if every cell is a good value at a later time than the one before; any other row
(distributions, strings, corruption, several retention classes) is decoded alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s
from timebeam.schema.bits.times import HOUR_MS, HOUR_S
from timebeam.schema.core.batches import distinct, join
from timebeam.schema.core.contract import Store
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import DecodedRows, Selected


class RowKind(NamedTuple):
    """Where a row begins, and the `Kind` of its values."""

    base_ms: int
    kind: int


class PointCells(NamedTuple):
    """The n cells of m rows, row by row.

    Attributes:
      base_ms, kinds: int64[n] and uint8[n], of the row of each cell.
    """

    cells: Sequence[Cell]
    qualifiers: Sequence[bytes]
    values: Sequence[bytes]
    base_ms: Int64s
    kinds: Bytes

    def in_families(self, takes: Callable[[str], object]) -> Bools:
        """bool[n]: which cells are in a family that `takes` accepts; it is asked once for each family."""
        others = {family for family in {cell.family for cell in self.cells} if not takes(family)}
        if not others:
            return np.ones(len(self.cells), np.bool_)
        return np.array([cell.family not in others for cell in self.cells], np.bool_)


class CellPoints(NamedTuple):
    """A point for each of n cells; what cells without a good one have does not matter.

    Attributes:
      times_ms: int64[n].
      bits: int64[n], as in `PointBatch`.
      is_good: bool[n].
    """

    times_ms: Int64s
    bits: Int64s
    is_good: Bools


def joined(columns: Sequence[bytes], size: int) -> tuple[bytes, Bools]:
    """(n columns of `size` bytes each, bool[n] which of them have that size); zeros for the others."""
    sizes = np.fromiter(map(len, columns), np.int64, len(columns))
    is_good = sizes == size
    if not is_good.all():
        columns = [
            column if good else bytes(size) for column, good in zip(columns, is_good.tolist(), strict=True)
        ]
    return b"".join(columns), is_good


_CELLS_AT_ONCE = 8192  # several passes are made over them: more would not fit the cache of a core


def decode_together(
    selected_rows: Sequence[Selected],
    kind_of: Callable[[Row], RowKind | None],
    read: Callable[[PointCells], CellPoints],
    decode_alone: Callable[[Row, Series], DecodedRows],
) -> DecodedRows:
    """See `Store.decode_rows`; the points come in the order of the rows.

    Args:
      kind_of: None for a row to be decoded alone.
      read: reads the cells of other rows.
      decode_alone: decodes another row; the reference for what a row holds.
    """
    cells = itertools.accumulate(len(selected.row.cells) for selected in selected_rows)
    lists = itertools.groupby(zip(selected_rows, cells, strict=True), lambda pair: pair[1] // _CELLS_AT_ONCE)
    decoded = [_decode([selected for selected, _ in rows], kind_of, read, decode_alone) for _, rows in lists]
    return DecodedRows.joined(decoded)


def _decode(
    selected_rows: Sequence[Selected],
    kind_of: Callable[[Row], RowKind | None],
    read: Callable[[PointCells], CellPoints],
    decode_alone: Callable[[Row, Series], DecodedRows],
) -> DecodedRows:
    """`decode_together`, for a list of rows that is worth one call of `read`."""
    kinds = {
        number: kind
        for number, selected in enumerate(selected_rows)
        if selected.row.cells and (kind := kind_of(selected.row)) is not None
    }
    if not kinds:
        return DecodedRows.joined([decode_alone(each.row, each.series) for each in selected_rows])
    batch, row_of, is_read = _read(selected_rows, kinds, read)
    alone = np.flatnonzero(~is_read).tolist()
    if not alone:
        return DecodedRows(batch, [], 0)
    rows_alone = [selected_rows[number] for number in alone]
    decoded = [decode_alone(each.row, each.series) for each in rows_alone]
    rest = DecodedRows.joined(decoded)
    if len(rest.batch):
        row_of = np.append(row_of, np.repeat(alone, [len(content.batch) for content in decoded]))
        batch = join([batch, rest.batch]).take(np.argsort(row_of, kind="stable"))
    return DecodedRows(batch, rest.corruption, rest.skipped)


def _read(
    selected_rows: Sequence[Selected],
    kinds: Mapping[int, RowKind],
    read: Callable[[PointCells], CellPoints],
) -> tuple[PointBatch, Int64s, Bools]:
    """(the points of the rows that are good, the row of each point, which rows those are).

    Args:
      kinds: of the rows to read, by their numbers.
    """
    numbers, rows = np.array([*kinds], np.int64), [selected_rows[number] for number in kinds]
    counts = np.fromiter((len(selected.row.cells) for selected in rows), np.int64, len(rows))
    starts = np.cumsum(counts) - counts
    cells = [cell for selected in rows for cell in selected.row.cells]
    arrivals_ms = np.fromiter((cell.timestamp_ms for cell in cells), np.int64, len(cells))
    bases, kinds_of = zip(*kinds.values(), strict=True)
    cell_kinds = np.repeat(np.array(kinds_of, np.uint8), counts)
    base_ms = np.repeat(np.array(bases, np.int64), counts)
    points = read(
        PointCells(
            cells,
            [cell.qualifier for cell in cells],
            [cell.value for cell in cells],
            base_ms,
            cell_kinds,
        )
    )
    is_good = points.is_good.copy()
    is_good[1:] &= points.times_ms[1:] > points.times_ms[:-1]
    is_good[starts] = points.is_good[starts]
    good_rows = np.logical_and.reduceat(is_good, starts)
    series: dict[Series, int] = {}
    index = np.array([series.setdefault(row.series, len(series)) for row in rows], np.int32)
    batch = PointBatch(
        tuple(series),
        np.repeat(index, counts),
        points.times_ms,
        points.times_ms % 1000 != 0,
        cell_kinds,
        points.bits,
        arrivals_ms,
    )
    row_of = np.repeat(numbers, counts)
    if not good_rows.all():
        chosen = np.flatnonzero(np.repeat(good_rows, counts))
        batch, row_of = batch.take(chosen), row_of[chosen]
    is_read = np.zeros(len(selected_rows), np.bool_)
    is_read[numbers[good_rows]] = True
    return batch, row_of, is_read


_HOURS = 1 << 42
"""More than the hours since 1970 of any int64 in ms."""


def hours_of(
    metrics: Sequence[str], bases_ms: Sequence[int], counts: Sequence[int], offsets_ms: Int64s
) -> set[tuple[bytes, int]]:
    """`Store.hours` for n points in m rows.

    Args:
      metrics, bases_ms, counts: metric, base time and number of points of each row.
      offsets_ms: int64[n], of each point since the base of its row.
    """
    numbers: dict[str, int] = {}
    indexes = np.array([numbers.setdefault(metric, len(numbers)) for metric in metrics], np.int64)
    times_ms = np.repeat(np.array(bases_ms, np.int64), counts) + offsets_ms
    pairs = distinct((np.repeat(indexes, counts) * _HOURS + times_ms // HOUR_MS)[times_ms >= 0])
    names = [metric.encode() for metric in numbers]
    return {(names[pair // _HOURS], pair % _HOURS * HOUR_S) for pair in pairs.tolist()}


def restored_points(store: Store, row: Row, decoded: DecodedRows, key: SeriesKey) -> PointBatch:
    """The points of a decoded row, after a check that this store writes them into this row.

    Raises:
      ValueError: it does not, or the row is corrupt.
    """
    if decoded.corruption:
        raise ValueError(decoded.corruption[0][1])
    batch = decoded.batch
    if not len(batch):
        return batch
    for series in batch.series:
        rejection = store.reject(series)
        if rejection is not None:
            raise rejection
    encoded = store.encode(batch, [key])
    if encoded.rejected:
        raise ValueError(encoded.rejected[0].message)
    if any((fragment.table, fragment.key) != (row.table, row.key) for fragment in encoded.fragments):
        raise ValueError("its points belong in another row")
    return batch
