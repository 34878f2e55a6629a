"""Checks a refused row mutation and splits it into points, with their series by name, and other cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timebeam.schema.layouts.capabilities import Restored, restored_points
from timebeam.schema.layouts.opentsdb import keys, select
from timebeam.schema.layouts.opentsdb.annotation_cells import is_annotation, is_global, read_annotations
from timebeam.schema.layouts.opentsdb.fragments import FAMILY
from timebeam.schema.layouts.opentsdb.rows import is_histogram
from timebeam.schema.layouts.reading import Reader
from timebeam.schema.layouts.tables import Cell, Row
from timebeam.schema.points import PointBatch

if TYPE_CHECKING:
    from timebeam.schema.layouts.opentsdb.layout import OpenTsdb


def restore(layout: OpenTsdb, row: Row, reader: Reader) -> Restored:
    """See `Layout.restore`.

    The points belong to the series that the UIDs in the key name, whatever UIDs these names have now.

    Raises:
      ValueError: this layout, with these options, writes no such row.
    """
    options = layout.options
    if row.table != layout.data_table:
        raise ValueError(f"table {row.table!r} is not the data table of layout {layout.name}")
    if not row.cells or any(cell.family != FAMILY for cell in row.cells):
        raise ValueError(f"a data row has cells, and all in family {FAMILY}")
    other_cells = [cell for cell in row.cells if _holds_no_points(cell)]
    other_row = row._replace(cells=other_cells)
    _check_others(layout, other_row)
    if is_global(options, row.key):
        if len(other_cells) < len(row.cells) or any(is_histogram(cell.qualifier) for cell in other_cells):
            raise ValueError("a row of global annotations holds nothing else")
        return Restored(PointBatch.of([], 0), other_row)
    key_fields = keys.parse_key(options, row.key)
    series_key = keys.series_key(options, key_fields.metric, key_fields.tags)
    if key_fields.base_s % keys.SPAN_S or keys.row_key(series_key, key_fields.base_s) != row.key:
        raise ValueError(f"row key {row.key.hex()} is not that of its UIDs in a whole hour, with its salt")
    series = select.series_of(options, layout.uid_table, row, reader)
    if len(series.tags) < len(key_fields.tags):
        raise ValueError(f"row key {row.key.hex()} has a tag key twice")
    points = row._replace(cells=[cell for cell in row.cells if not _holds_no_points(cell)])
    decoded = layout.decode(points, series)
    return Restored(restored_points(layout, row, decoded, series_key), other_row)


def _holds_no_points(cell: Cell) -> bool:
    return is_annotation(cell.qualifier) or is_histogram(cell.qualifier)


def _check_others(layout: OpenTsdb, row: Row) -> None:
    """Checks annotations and histograms.

    Raises:
      ValueError: one is damaged, or is not in the cell that it belongs into.
    """
    for annotation in read_annotations(layout.options, row):
        if annotation.note is None:
            raise ValueError(annotation.damage)
    for cell in row.cells:
        if is_histogram(cell.qualifier) and not cell.value:
            raise ValueError(f"histogram {cell.qualifier.hex()}: empty, so without the id of a codec")
