"""The annotations that a query asks for, out of Bigtable."""

from __future__ import annotations

from schema.annotations.record import Annotation
from schema.layouts import Finding, Row, Selection
from schema.layouts.opentsdb import annotation_cells as cells
from schema.layouts.opentsdb import select
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.points import Series
from schema.query.annotated import FoundAnnotations
from transforms.bigtable.reader import TableReader
from transforms.bigtable.target import Target


def find_annotations(
    target: Target, layout: OpenTsdb, wanted: Selection, *, of_series: bool = True, of_all: bool = False
) -> tuple[FoundAnnotations, list[str]]:
    """(annotations that meet a time range, what could not be read of them, in words).

    They are looked for in the hours of the range, as a TSD does: one that began in an earlier hour is not
    found, though it may end within the range.

    Args:
      of_series, of_all: whether those of series, and global ones, are wanted.

    Raises:
      UnknownNameError: a name is in no table.
    """
    damage: list[str] = []
    found: dict[Series, list[Annotation]] = {}
    reader = TableReader(target)
    tables = (layout.data_table, layout.uid_table)
    rows = select.select(layout.options, *tables, wanted, reader, cells.COLUMNS) if of_series else ()
    for one in rows:
        if isinstance(one, Finding):
            damage.append(f"row {one.key.hex()}: {one.text}")
        elif notes := _notes(layout, one.row, wanted, damage):
            found.setdefault(one.series, []).extend(notes)
    everything: list[Annotation] = []
    if of_all:
        scan = cells.global_scan(layout.options, layout.data_table, wanted.start_ms, wanted.end_ms)
        for row in reader.scan(scan):
            if cells.is_global(layout.options, row.key):
                everything += _notes(layout, row, wanted, damage)
    return FoundAnnotations(found, everything), damage


def _notes(layout: OpenTsdb, row: Row, wanted: Selection, damage: list[str]) -> list[Annotation]:
    """Those of a row that meet the range."""
    notes = []
    for found in cells.read_annotations(layout.options, row):
        if found.note is None:
            damage.append(f"row {row.key.hex()}: {found.damage}")
        elif found.note.end_ms >= wanted.start_ms and found.note.start_ms <= wanted.end_ms:
            notes.append(found.note)
    return notes
