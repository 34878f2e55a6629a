"""Reads the annotations and the histograms of a query: cells beside the points of a row."""

from __future__ import annotations

from timebeam.schema.annotations import Annotation
from timebeam.schema.layouts import Annotations, Cell, Finding, Histograms, Row, Selection
from timebeam.schema.layouts.opentsdb import annotation_cells as cells
from timebeam.schema.layouts.opentsdb import select
from timebeam.schema.layouts.opentsdb.annotation_cells import offset_ms
from timebeam.schema.layouts.opentsdb.encode import FAMILY
from timebeam.schema.layouts.opentsdb.keys import parse_key
from timebeam.schema.layouts.opentsdb.rows import is_histogram
from timebeam.schema.layouts.reading import ColumnRange
from timebeam.schema.points import Series
from timebeam.schema.query.answer import QueryAnnotations
from timebeam.schema.query.histograms import Histogram, NotASimpleHistogramError, decode
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.readers.table_reader import TableReader


def find_annotations(
    target: Target,
    layout: Annotations,
    selection: Selection,
    *,
    of_series: bool = True,
    of_all: bool = False,
    meter: Meter | None = None,
) -> tuple[QueryAnnotations, list[str]]:
    """(annotations that overlap a time range, a line for each unreadable one).

    Like a TSD, it reads only the hours of the range: an annotation that starts in an earlier hour is missed,
    even if it ends within the range.

    Args:
      of_series, of_all: whether to read annotations of series, and global ones.
      meter: counts what is read; what it raises goes through.

    Raises:
      UnknownNameError: a name is in no table.
    """
    damage: list[str] = []
    by_series: dict[Series, list[Annotation]] = {}
    reader = metered(TableReader(target), meter)
    tables = (layout.data_table, layout.uid_table)
    rows = select.select(layout.options, *tables, selection, reader, cells.COLUMNS) if of_series else ()
    for selected in rows:
        if isinstance(selected, Finding):
            damage.append(f"row {selected.key.hex()}: {selected.text}")
        elif notes := _notes(layout, selected.row, selection, damage):
            by_series.setdefault(selected.series, []).extend(notes)
    everything: list[Annotation] = []
    if of_all:
        scan = cells.global_scan(layout.options, layout.data_table, selection.start_ms, selection.end_ms)
        for row in reader.scan(scan):
            if cells.is_global(layout.options, row.key):
                everything += _notes(layout, row, selection, damage)
    return QueryAnnotations(by_series, everything), damage


def _notes(layout: Annotations, row: Row, selection: Selection, damage: list[str]) -> list[Annotation]:
    """The annotations of a row that overlap the range."""
    notes = []
    for stored in cells.read_annotations(layout.options, row):
        if stored.note is None:
            damage.append(f"row {row.key.hex()}: {stored.damage}")
        elif stored.note.end_ms >= selection.start_ms and stored.note.start_ms <= selection.end_ms:
            notes.append(stored.note)
    return notes


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
