"""Declared tables as a layout that points are read from; the layout `table`.

It stores records (`write_records`), so that points are not written into it as such.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from timebeam.schema.bits.lru_cache import LruCache, batched
from timebeam.schema.core.contract import ReadableStore, Restored
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, remove_cells
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.core.selection import (
    ColumnRange,
    DecodedRows,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    Severity,
    UnknownNameError,
)
from timebeam.schema.stores.declared import keys, points_of_rows
from timebeam.schema.stores.declared.audit_records import audit_rows
from timebeam.schema.stores.declared.declaration import COLUMN, DayTables, Declaration, TableLayout
from timebeam.schema.stores.declared.filled_tables import day_of, day_piece, is_of_day, tables_within
from timebeam.schema.stores.declared.read_records import ReadPlan, folded_text, plan

NAME = "table"

_SERIES = 100_000
"""Series of a scan that are remembered."""

_AUDITED_ROWS = 1000
"""Rows that are audited together."""


@dataclasses.dataclass(frozen=True, slots=True)
class _TableSelection:
    """What a selection reads of one table.

    Attributes:
      selection: in the case of the keys.
      labels: of the values that can be selected; None for all.
    """

    layout: TableLayout
    plan: ReadPlan
    selection: Selection
    labels: frozenset[str] | None


@dataclasses.dataclass(frozen=True)
class DeclaredTables(ReadableStore):
    """The tables of a declaration; those with `[layout.NAME.points]` hold points.

    Attributes:
      existing: gives the names of Bigtable tables, those of tables per day among them.
      apart: whether `select` gives the rows of tables per day as they are, each copy of a point by itself.
    """

    declaration: Declaration
    existing: Callable[[], Sequence[str]] = tuple
    apart: bool = False
    name = NAME

    def tables(self) -> Sequence[TableSpec]:
        """See `ReadableStore.tables`; those with points first."""
        readable = {layout.table for layout in self._readable()}
        specs = [
            dataclasses.replace(spec, holds_points=spec.name in readable) for spec in self.declaration.specs
        ]
        return sorted(specs, key=lambda spec: not spec.holds_points)

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """See `ReadableStore.select`; a row comes once for each of its series, with their cells.

        Raises:
          UnknownNameError: no table has points of this metric, or with one of the tag keys.
        """
        for table in self._tables_of(selection):
            series_by_name: LruCache[tuple[str, ...], Series] = LruCache(_SERIES)
            for row in self._rows(table, reader) if table.plan.ranges else ():
                yield from _selected(table, row, series_by_name)

    def full_scan(self, selection: Selection) -> str:
        for table in self._tables_of(selection):
            if not table.plan.served and table.plan.ranges:
                return scan_reason(table.layout, [*selection.tags])
        return ""

    def decode_rows(self, rows: Sequence[Selected]) -> DecodedRows:
        layouts = {layout.table: layout for layout in self._readable()}
        by_table = itertools.groupby(rows, key=lambda selected: selected.row.table)
        decoded = [points_of_rows.decode_points(layouts[table], [*same]) for table, same in by_table]
        return DecodedRows.joined(decoded)

    def remove(self, selected: Selected, deleted: DeleteRange) -> RowDeletion | None:
        """See `ReadableStore.remove`: cells with the values of points; other fields of a record stay.

        Versions of a cell that are points of other times are written again.
        """
        row, series, _ = selected
        layout = self._layout_of(row.table)
        removal = remove_cells(row, points_of_rows.cell_times(layout, row, series), deleted)
        if removal is None or points_of_rows.versions(layout) == 1:
            return removal
        newest_ms = {(cell.family, cell.qualifier): cell.timestamp_ms for cell in reversed(removal.old)}
        older = [
            cell
            for cell in row.cells
            if cell.timestamp_ms < newest_ms.get((cell.family, cell.qualifier), 0) and cell not in removal.old
        ]
        return removal._replace(mutation=removal.mutation._replace(cells=older), old=[*removal.old, *older])

    def several_rows(self, selection: Selection, reader: Reader) -> frozenset[Series]:
        """See `ReadableStore.several_rows`: all series of tables whose keys keep equal times apart."""
        if all(map(points_of_rows.is_unique, self._readable())):
            return frozenset()
        selected = self.select(selection, reader)
        tied = {layout.table for layout in self._readable() if not points_of_rows.is_unique(layout)}
        return frozenset(
            each.series for each in selected if not isinstance(each, Finding) and each.row.table in tied
        )

    def cut_at(self, key: bytes) -> bytes:
        """See `ReadableStore.cut_at`: before the first part that keeps records of one time apart."""
        return min((_before_ties(layout, key) for layout in self._readable()), default=key)

    def key_error(self, key: bytes) -> str:
        """See `ReadableStore.key_error`: why it is a key of none of the tables."""
        errors = []
        for layout in self._readable():
            try:
                keys.fields(layout, key)
            except ValueError as error:
                errors.append(str(error))
            else:
                return ""
        return errors[0] if errors else ""

    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        """See `ReadableStore.audit`: rows that the declaration would not write."""
        for layout in self.declaration.all_layouts:
            for rows in batched(read(layout.table), _AUDITED_ROWS):
                yield from audit_rows(layout, rows)
        for layout in self.declaration.all_layouts:
            for day_tables, name in self._day_tables(layout, None, None):
                day = day_of(day_tables, name)
                assert day is not None
                yield from _audit_day(dataclasses.replace(layout, table=name), day, read(name))

    def restore(self, row: Row, reader: Reader) -> Restored:
        """See `ReadableStore.restore`: the row itself, if the declaration would write it."""
        for layout in self.declaration.all_layouts:
            if layout.table == row.table:
                corruption = [finding.text for finding in audit_rows(layout, [row])]
                if corruption:
                    raise ValueError(corruption[0])
                return Restored(PointBatch.of([], 0), row)
        raise ValueError(f"{self.declaration.file_name} declares no table {row.table}")

    def _rows(self, table: _TableSelection, reader: Reader) -> Iterator[Row]:
        """The rows of a table, in the order of their keys; with what its tables per day hold of them."""
        scan, period = _scan(table), table.selection
        names = [name for _, name in self._day_tables(table.layout, period.start_ms, period.end_ms)]
        if self.apart or not names:
            for name in (scan.table, *names):
                yield from reader.scan(dataclasses.replace(scan, table=name))
            return
        scan = dataclasses.replace(scan, ranges=sorted(scan.ranges))
        scans = [reader.scan(dataclasses.replace(scan, table=name)) for name in (scan.table, *names)]
        in_order = heapq.merge(*scans, key=lambda row: row.key)
        for key, copies in itertools.groupby(in_order, key=lambda row: row.key):
            yield Row(scan.table, key, _newest([cell for row in copies for cell in row.cells], scan.versions))

    def _day_tables(
        self, layout: TableLayout, start_ms: int | None, end_ms: int | None
    ) -> Iterator[tuple[DayTables, str]]:
        """The existing tables per day of a layout with a part in a range of time, and their names."""
        for day_tables in self.declaration.day_tables:
            if day_tables.source == layout.name:
                for name in tables_within(day_tables, layout, self.existing(), start_ms, end_ms):
                    yield day_tables, name

    def _layout_of(self, name: str) -> TableLayout:
        """The layout of a table with points, or of the source of a table per day."""
        sources = {
            tables.source for tables in self.declaration.day_tables if day_of(tables, name) is not None
        }
        return next(layout for layout in self._readable() if layout.table == name or layout.name in sources)

    def _readable(self) -> list[TableLayout]:
        return [layout for layout in self.declaration.all_layouts if layout.points is not None]

    def _tables_of(self, selection: Selection) -> list[_TableSelection]:
        """What a selection reads of each table.

        Raises:
          UnknownNameError: no table has points of this metric, or with one of the tag keys.
        """
        metric, layouts = selection.metric, self._readable()
        if metric is not None:
            layouts = [layout for layout in layouts if layout.may_have(metric)]
            if not layouts:
                message = f"no declared table is called {metric!r}, or has points of this metric"
                raise UnknownNameError(message, metric, functools.partial(_beginning, self._names()))
        for tag in selection.tags:
            tagged = [layout for layout in layouts if tag in points_of_rows.points_of(layout).tags]
            if not tagged:
                tags = sorted({name for layout in layouts for name in points_of_rows.points_of(layout).tags})
                message = f"no table of these points has tag key {tag!r}"
                raise UnknownNameError(message, tag, functools.partial(_beginning, tags))
            layouts = tagged
        return [_table_selection(layout, selection) for layout in layouts]

    def _names(self) -> list[str]:
        """The metrics that the declaration names, how the others begin, and the tables."""
        metrics = [
            metric
            for layout in self._readable()
            for metric in layout.metrics or (points_of_rows.points_of(layout).metric,)
        ]
        return [*metrics, *(layout.table for layout in self.declaration.all_layouts)]


def _beginning(names: Sequence[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _audit_day(layout: TableLayout, day: datetime.date, rows: Iterable[Row]) -> Iterator[Finding]:
    """What is wrong with the rows of a table per day: each must be a row of its source, and of this day."""
    time_bytes = day_piece(layout, day)
    for batch in batched(rows, _AUDITED_ROWS):
        findings = list(audit_rows(layout, batch))
        yield from findings
        corrupt = {finding.key for finding in findings if finding.severity is Severity.CORRUPT}
        for row in batch:
            if row.key not in corrupt and not is_of_day(layout, row.key, time_bytes):
                yield Finding(Severity.CORRUPT, row.table, row.key, f"it is not a row of {day}")


def _newest(cells: Sequence[Cell], versions: int) -> list[Cell]:
    """The newest versions of the cells of one row, of several tables; of equal times the first one."""
    distinct: dict[tuple[str, bytes, int], Cell] = {}
    for cell in cells:
        distinct.setdefault((cell.family, cell.qualifier, -cell.timestamp_ms), cell)
    ordered = [distinct[place] for place in sorted(distinct)]
    columns = itertools.groupby(ordered, key=lambda cell: (cell.family, cell.qualifier))
    return [cell for _, column in columns for cell in itertools.islice(column, versions)]


def scan_reason(layout: TableLayout, fields: Sequence[str]) -> str:
    """Why a read of a table by these fields is not served by its key."""
    first = next(
        (key_part for key_part in layout.key if key_part.stored_field is not None or key_part.hashed), None
    )
    needed = " and ".join(sorted(first.inputs)) if first else "nothing"
    by = f"by {', '.join(fields)} " if fields else ""
    return f"a read of table {layout.table} {by}scans all of it, since its keys begin with {needed}"


def _table_selection(layout: TableLayout, selection: Selection) -> _TableSelection:
    """What a selection reads of a table that has its metric and tag keys."""
    fields = points_of_rows.points_of(layout)
    selection = _folded(layout, selection)
    values: dict[str, Sequence[str]] = {key: sorted(texts) for key, texts in selection.tags.items() if texts}
    if selection.metric is not None and fields.placeholder is not None:
        values[fields.placeholder] = (fields.placeholder_of(selection.metric) or "",)
    labels: Sequence[str] | None = values.pop(COLUMN, None) if fields.placeholder == COLUMN else None
    if layout.series is not None and isinstance(layout.series.qualifier, str):
        labels = values.get(layout.series.qualifier, labels)
    in_key = {name: texts for name, texts in values.items() if name in keys.names(layout)}
    table_plan = plan(layout, in_key, selection.start_ms, selection.end_ms + 1)
    return _TableSelection(layout, table_plan, selection, None if labels is None else frozenset(labels))


def _folded(layout: TableLayout, selection: Selection) -> Selection:
    """A selection in the case in which the keys hold its values."""
    tags = {
        name: frozenset(folded_text(layout, name, text) for text in texts)
        for name, texts in selection.tags.items()
    }
    fields, metric = points_of_rows.points_of(layout), selection.metric
    if metric is not None and fields.placeholder is not None:
        text = fields.placeholder_of(metric) or ""
        metric = fields.metric_of(folded_text(layout, fields.placeholder, text))
    return dataclasses.replace(selection, metric=metric, tags=tags)


def _scan(table: _TableSelection) -> Scan:
    """The rows that can hold what is selected, with the columns that are needed."""
    layout = table.layout
    columns = None
    needs_columns = layout.time_source == "column" or any(
        column.field in points_of_rows.points_of(layout).tags and column.field not in keys.names(layout)
        for column in layout.columns
    )
    if table.labels is not None and len(table.labels) == 1 and not needs_columns:
        (label,) = table.labels
        qualifier = points_of_rows.qualifier_of(layout, label)
        columns = None if qualifier is None else ColumnRange(layout.family, qualifier, qualifier + b"\0")
    table_plan = table.plan
    return Scan(
        layout.table,
        table_plan.ranges,
        table_plan.key_pattern,
        columns,
        versions=points_of_rows.versions(layout),
    )


def _selected(
    table: _TableSelection, row: Row, series_by_name: LruCache[tuple[str, ...], Series]
) -> Iterator[Selected | Finding]:
    """The selected series of a row, each with its cells."""
    layout = table.layout
    try:
        texts = points_of_rows.fields_of_row(layout, row)
    except ValueError as error:
        yield Finding(Severity.CORRUPT, row.table, row.key, str(error))
        return
    cells_by_label: dict[str, list[Cell]] = {}
    for cell in row.cells:
        label = points_of_rows.label_of_cell(layout, cell)
        if label is not None and (table.labels is None or label in table.labels):
            cells_by_label.setdefault(label, []).append(cell)
    needs_row = layout.time_source == "column"
    for label, cells in cells_by_label.items():
        name = (label, *itertools.chain(*texts.items()))
        series = series_by_name.get(name)
        if series is None:
            series = series_by_name[name] = points_of_rows.series_of(layout, texts, label)
        if table.selection.takes(series):
            yield Selected(row if needs_row else row._replace(cells=cells), series)


def _before_ties(layout: TableLayout, key: bytes) -> bytes:
    """The bytes of a key before the part that keeps records of one time apart; the key without one."""
    if points_of_rows.is_unique(layout):
        return key
    try:
        parts_bytes = keys.split(layout, key)
    except ValueError:
        return b""
    is_us = layout.event is not None and layout.event[1] == "us"
    size = 0
    for key_part, piece in zip(layout.key, parts_bytes, strict=True):
        if key_part.is_tie or (is_us and key_part is layout.time):
            break
        size += len(piece) + len(layout.separator)
    return key[:size]
