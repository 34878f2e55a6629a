"""Reads the histograms of a query."""

from __future__ import annotations

from timebeam.schema.layouts import Cell, Finding, Histograms, Selection
from timebeam.schema.layouts.opentsdb import select
from timebeam.schema.layouts.opentsdb.annotation_cells import offset_ms
from timebeam.schema.layouts.opentsdb.encode import FAMILY
from timebeam.schema.layouts.opentsdb.keys import parse_key
from timebeam.schema.layouts.opentsdb.rows import is_histogram
from timebeam.schema.layouts.reading import ColumnRange
from timebeam.schema.points import Series
from timebeam.schema.query.histograms import Histogram, NotASimpleHistogramError, decode
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.table_reader import TableReader

COLUMNS = ColumnRange(FAMILY, b"\x06", b"\x07")
"""A range of columns with all histograms, and the points of seconds 96 to 111."""


def find_histograms(
    target: Target, layout: Histograms, selection: Selection
) -> tuple[dict[Series, dict[int, Histogram]], list[str]]:
    """(histograms of a time range by series and time in ms, a line for each unreadable one).

    Raises:
      UnknownNameError: a name is in no table.
    """
    damage: list[str] = []
    by_series: dict[Series, dict[int, Histogram]] = {}
    tables = (layout.data_table, layout.uid_table)
    for selected in select.select(layout.options, *tables, selection, TableReader(target), COLUMNS):
        if isinstance(selected, Finding):
            damage.append(f"row {selected.key.hex()}: {selected.text}")
            continue
        base_ms = parse_key(layout.options, selected.row.key).base_s * 1000
        for cell in sorted(selected.row.cells, key=_by_age):
            if not is_histogram(cell.qualifier):
                continue
            time_ms = base_ms + offset_ms(cell.qualifier)
            if not selection.start_ms <= time_ms <= selection.end_ms:
                continue
            try:
                by_series.setdefault(selected.series, {})[time_ms] = decode(cell.value)
            except NotASimpleHistogramError as error:
                codec = cell.value[:1].hex() or "none"
                text = f"histogram {cell.qualifier.hex()} of codec {codec} is not a SimpleHistogram: {error}"
                damage.append(f"row {selected.row.key.hex()}: {text}")
    return {series: times for series, times in by_series.items() if times}, damage


def _by_age(cell: Cell) -> tuple[int, bytes]:
    return cell.timestamp_ms, cell.qualifier
