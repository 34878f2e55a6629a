"""Reads data rows (docs/spec/heroic.md §4), and audits the stored tables.

Rows must decode, and the series table must lead to each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Set

import numpy as np

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.core.decode_point_cells import CellPoints, PointCells, joined
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import DecodedRows, Finding, Severity
from timebeam.schema.stores.heroic import series_table
from timebeam.schema.stores.heroic.encode import DISTRIBUTIONS, POINTS
from timebeam.schema.stores.heroic.keys import HeroicRowKey, KeyForm
from timebeam.schema.stores.heroic.select import ResourceNames
from timebeam.schema.stores.heroic.series_table import SeriesEntry

_SHOWN = 16  # bytes of a bad qualifier in a message


def decode_row(row: Row, series: Series, form: KeyForm) -> DecodedRows:
    """The points of a row; a double and a distribution of one time are two points.

    Cells of other families (Heroic's `events`) are counted in `skipped`.

    Raises:
      ValueError: its key does not parse.
    """
    base_ms = form.parse(row.key).base_ms
    doubles, distributions, skipped = [], [], 0
    corruption = []
    for cell in row.cells:
        if cell.family == POINTS:
            if len(cell.qualifier) != form.qualifier_bytes:
                corruption.append(_bad_qualifier(cell))
            elif len(cell.value) != 8:
                corruption.append(f"column {cell.qualifier.hex()}: a double of {len(cell.value)} bytes")
            else:
                doubles.append(cell)
        elif cell.family != DISTRIBUTIONS:
            skipped += 1
        elif len(cell.qualifier) != form.qualifier_bytes:
            corruption.append(_bad_qualifier(cell))
        else:
            distributions.append(cell)
    point_cells = doubles + distributions
    offsets = form.offsets(b"".join([cell.qualifier for cell in point_cells]))
    corruption += [_bad_qualifier(point_cells[i]) for i in np.flatnonzero(offsets < 0).tolist()]
    n = len(doubles)
    bits = np.arange(-n, len(distributions), dtype=np.int64)
    bits[:n] = np.frombuffer(b"".join([cell.value for cell in doubles]), ">i8")
    kinds = np.full(len(point_cells), Kind.FLOAT, np.uint8)
    kinds[n:] = Kind.OPAQUE
    batch = PointBatch(
        (series,),
        np.zeros(len(point_cells), np.int32),
        base_ms + offsets,
        (base_ms + offsets) % 1000 != 0,
        kinds,
        bits,
        np.fromiter((cell.timestamp_ms for cell in point_cells), np.int64, len(point_cells)),
        payloads=[cell.value for cell in distributions],
    )
    order = np.argsort(offsets, kind="stable")
    batch = batch.take(order[offsets[order] >= 0])
    return DecodedRows(batch, [(row, text) for text in corruption], skipped)


def cell_times(cells: Sequence[Cell], base_ms: int, form: KeyForm) -> Int64s:
    """int64[n]: the time of each cell in ms; -1 for a cell whose family or qualifier is not of a point."""
    is_point = [cell.family in (POINTS, DISTRIBUTIONS) for cell in cells]
    qualifiers, fits = joined([cell.qualifier for cell in cells], form.qualifier_bytes)
    offsets = form.offsets(qualifiers)
    return np.where(fits & np.array(is_point, np.bool_) & (offsets >= 0), base_ms + offsets, -1)


def read_cells(cells: PointCells, form: KeyForm) -> CellPoints:
    """Like `decode_row`, for the cells of many rows."""
    qualifiers, fits = joined(cells.qualifiers, form.qualifier_bytes)
    content, is_double = joined(cells.values, 8)
    offsets = form.offsets(qualifiers)
    is_good = fits & is_double & (offsets >= 0) & cells.in_families(POINTS.__eq__)
    return CellPoints(cells.base_ms + offsets, np.frombuffer(content, ">i8").astype(np.int64), is_good)


def _bad_qualifier(cell: Cell) -> str:
    return f"column {cell.qualifier[:_SHOWN].hex()} of {cell.family}: not an offset from the base"


_UNFINISHED = " (left by an interrupted write)"


@dataclasses.dataclass(slots=True)
class SeriesTable:
    """The content of the series table.

    Attributes:
      series: the entries of the rows of series, by key.
      index_keys: the keys of metric and tag rows.
      corrupt: (row key, why it cannot be read).
    """

    series: dict[bytes, SeriesEntry]
    index_keys: set[bytes]
    corrupt: list[tuple[bytes, str]]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> SeriesTable:
        """Reads the rows of the table."""
        table = cls({}, set(), [])
        for row in rows:
            if row.key.startswith(series_table.SERIES + b"\x00"):
                try:
                    table.series[row.key] = series_table.read_series(row)
                except ValueError as error:
                    table.corrupt.append((row.key, str(error)))
            elif row.key[:2] in (series_table.METRIC + b"\x00", series_table.TAG + b"\x00"):
                table.index_keys.add(row.key)
            else:
                table.corrupt.append((row.key, "no row of the series table has such a key"))
        return table

    def names(self, form: KeyForm) -> ResourceNames:
        """The names of the resources of all series."""
        names = ResourceNames(form)
        for entry in self.series.values():
            names.add(entry.series)
        return names

    def findings(self, name: str) -> Iterator[Finding]:
        """Rows that cannot be read, that are missing, or that lead to no series."""
        for key, message in self.corrupt:
            yield Finding(Severity.CORRUPT, name, key, message)
        needed: set[bytes] = set()
        for key, entry in self.series.items():
            for row in series_table.index_rows(name, entry.series, entry.first_ms):
                needed.add(row.key)
                if row.key not in self.index_keys and row.key != key:
                    message = f"missing: queries may not find {entry.series}"
                    yield Finding(Severity.CORRUPT, name, row.key, message)
        for key in sorted(self.index_keys - needed):
            yield Finding(Severity.NOTE, name, key, "no series row belongs to it" + _UNFINISHED)


def data_findings(
    rows: Iterable[Row], table: SeriesTable, name: str, form: KeyForm, archived: Set[Series]
) -> Iterator[Finding]:
    """Data rows that do not decode or that no query finds, and series without points.

    Args:
      name: of the series table.
      archived: the series that have rows in the archive.
    """
    names = table.names(form)
    keys = {entry.series: key for key, entry in table.series.items()}
    unseen = set(keys) - archived
    for row in rows:
        try:
            row_key = form.parse(row.key)
            series = names.series_of(row_key)
        except ValueError as error:
            yield Finding(Severity.CORRUPT, row.table, row.key, str(error))
            continue
        unseen.discard(series)
        entry = table.series[keys[series]] if series in keys else None
        for message in _row_corruption(row, row_key, series, entry, form):
            yield Finding(Severity.CORRUPT, row.table, row.key, message)
    for series in unseen:
        message = f"{series} has no row of points" + _UNFINISHED
        yield Finding(Severity.NOTE, name, keys[series], message)


def _row_corruption(
    row: Row, row_key: HeroicRowKey, series: Series, entry: SeriesEntry | None, form: KeyForm
) -> Iterator[str]:
    """What is wrong with a row of this series."""
    if row_key.base_ms < 0:
        yield f"base {row_key.base_ms}: Heroic reads times before 1970 back as other times"
    if entry is None:
        yield f"{series} is not in the series table: queries do not find it"
    elif not entry.first_ms <= row_key.base_ms <= entry.last_ms:
        bases = f"{entry.first_ms} to {entry.last_ms}"
        yield f"base {row_key.base_ms} is not within the bases of the series table, {bases}"
    yield from (text for _, text in decode_row(row, series, form).corruption)
