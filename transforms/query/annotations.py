"""Reads the annotations of a query."""

from __future__ import annotations

from timebeam.schema.annotations.record import Annotation
from timebeam.schema.layouts import Annotations, Finding, Row, Selection
from timebeam.schema.layouts.opentsdb import annotation_cells as cells
from timebeam.schema.layouts.opentsdb import select
from timebeam.schema.points import Series
from timebeam.schema.query.answer import QueryAnnotations
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
