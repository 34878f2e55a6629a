"""The points in rows of declared tables: cells to times and values in columns.

A *label* tells the values of a row apart: the field of a fixed column, the qualifier of an entry of a map,
the field that is the qualifier of a reading. It is in the metric or a tag, so that a series has a single one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Int32s, Int64s
from timebeam.schema.bits.times import bucket_starts
from timebeam.schema.core.batches import latest_points
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import DecodedRows, Selected
from timebeam.schema.stores.declared import encode_values, keys
from timebeam.schema.stores.declared.columns import Encoding, TimeQualifier
from timebeam.schema.stores.declared.declaration import COLUMN, PointFields, TableLayout
from timebeam.schema.stores.declared.parts.time_part import to_ms
from timebeam.schema.stores.declared.read_records import event_time


def fields_of_row(layout: TableLayout, row: Row) -> Mapping[str, str]:
    """The fields of a row that its series have in common: in the key, and in the columns that are tags.

    Raises:
      ValueError: the key, or such a column, is not of this layout.
    """
    texts, _ = keys.fields(layout, row.key)
    tags = points_of(layout).tags
    for column in layout.columns:
        if column.field in tags and column.field not in texts:
            for cell in row.cells:
                if cell.qualifier == column.qualifier and cell.family == layout.family:
                    texts[column.field] = str(encode_values.decode(cell.value, column.encoding))
    return texts


def points_of(layout: TableLayout) -> PointFields:
    """How the rows of a layout read as points; it must say so."""
    assert layout.points is not None
    return layout.points


def label_of_cell(layout: TableLayout, cell: Cell) -> str | None:
    """The label of a cell; None if it holds no value of a point."""
    if cell.family != layout.family:
        return None
    fields = points_of(layout).values
    for column in layout.columns:
        if column.qualifier == cell.qualifier:
            return column.field if column.field in fields else None
    try:
        if layout.series is not None and layout.series.field in fields:
            return "" if layout.time_qualifier else cell.qualifier.decode()
        if layout.map is not None and layout.map.field in fields:
            layout.map.entry_names(cell.qualifier)
            return cell.qualifier.decode()
    except ValueError:  # `audit` reports such a column
        return None
    return None


def label_of_series(layout: TableLayout, series: Series) -> str:
    """The label of the values of a series."""
    points = points_of(layout)
    if points.placeholder == COLUMN:
        return points.placeholder_of(series.metric) or ""
    if layout.series is None or layout.series.field not in points.values:
        return points.values[0]
    if isinstance(layout.series.qualifier, TimeQualifier):
        return ""
    if layout.series.qualifier == points.placeholder:
        return points.placeholder_of(series.metric) or ""
    return dict(series.tags)[layout.series.qualifier]


def series_of(layout: TableLayout, texts: Mapping[str, str], label: str) -> Series:
    """The series of the values of a row that have a label."""
    points = points_of(layout)
    if layout.series is not None and isinstance(layout.series.qualifier, str):
        texts = {**texts, layout.series.qualifier: label}
    name = points.placeholder
    metric = points.metric_of(label if name == COLUMN else texts[name] if name else "")
    return Series.of(metric, {key: texts[key] for key in points.tags if key in texts})


def qualifier_of(layout: TableLayout, label: str) -> bytes | None:
    """The qualifier of the values that have a label; None if it depends on the row."""
    for column in layout.columns:
        if column.field == label and column.field in points_of(layout).values:
            return column.qualifier
    return None if layout.time_qualifier else label.encode()


def versions(layout: TableLayout) -> int:
    """The versions of a cell that are points: all where their timestamps alone tell records apart."""
    return layout.max_versions if layout.time_source == "cell" and layout.shares_rows else 1


def is_unique(layout: TableLayout) -> bool:
    """Whether one time of a series is in one row only."""
    assert layout.event is not None
    series_fields = {*layout.fields} & {*points_of(layout).tags, layout.event[0]}
    ties = (key_part for key_part in layout.key if key_part.is_tie and not key_part.follows(series_fields))
    return layout.event[1] != "us" and not any(ties)


def decode_points(layout: TableLayout, rows: Sequence[Selected]) -> DecodedRows:
    """The points of rows of one table, each row with one of its series."""
    cells: list[Cell] = []
    owners: list[int] = []
    corruption: list[tuple[Row, str]] = []
    labels: dict[bytes, str | None] = {}
    key_times = np.zeros(len(rows), np.int64)
    for number, (row, series, _) in enumerate(rows):
        label = label_of_series(layout, series)
        try:
            key_times[number] = _time_of_row(layout, row)
        except ValueError as error:
            corruption.append((row, str(error)))
            continue
        for cell in row.cells:
            if cell.qualifier not in labels:
                labels[cell.qualifier] = label_of_cell(layout, cell)
            if labels[cell.qualifier] == label and cell.family == layout.family:
                cells.append(cell)
                owners.append(number)
    index = np.array(owners, np.int32)
    batch, corrupt_cells = _decode_cells(layout, cells, index, key_times, rows)
    corruption += [(rows[owners[i]].row, text) for i, text in corrupt_cells.items()]
    return DecodedRows(batch, corruption, 0)


def cell_times(layout: TableLayout, row: Row, series: Series) -> Int64s:
    """int64[n]: the time of each cell of a row in ms; -1 for a cell that holds no point of the series.

    Raises:
      ValueError: the row has no time.
    """
    label, key_time = label_of_series(layout, series), _time_of_row(layout, row)
    is_point = np.array([label_of_cell(layout, cell) == label for cell in row.cells], np.bool_)
    stamps_ms = np.array([cell.timestamp_ms for cell in row.cells], np.int64)
    numbers = np.flatnonzero(is_point)
    cells = [row.cells[number] for number in numbers.tolist()]
    point_times_ms, corruption = _times(
        layout, cells, stamps_ms[numbers], np.full(len(numbers), key_time, np.int64)
    )
    point_times_ms[list(corruption)] = -1
    times_ms = np.full(len(row.cells), -1, np.int64)
    times_ms[numbers] = point_times_ms
    return times_ms


def _time_of_row(layout: TableLayout, row: Row) -> int:
    """The time in the key or in the column of the event time, in its unit; 0 if the cells have it.

    Raises:
      ValueError: the row has none.
    """
    assert layout.event is not None
    source = layout.time_source
    if source == "cell":
        return 0
    if source != "column":
        key_time = keys.fields(layout, row.key)[1]
        if key_time is None:
            raise ValueError(f"row key {row.key!r} has no time")
        return key_time
    for column in layout.columns:
        for cell in row.cells:
            if column.field == layout.event[0] and cell.qualifier == column.qualifier:
                return event_time(layout, column, cell)
    raise ValueError(f"the row has no column {layout.event[0]}, which is its time")


def _decode_cells(
    layout: TableLayout, cells: Sequence[Cell], owners: Int32s, key_times: Int64s, rows: Sequence[Selected]
) -> tuple[PointBatch, dict[int, str]]:
    """(the points of n cells, those of a row ascending in time; why others cannot be read, by cell)."""
    stamps_ms = np.array([cell.timestamp_ms for cell in cells], np.int64)
    times_ms, corruption = _times(layout, cells, stamps_ms, key_times[owners])
    kinds, bits = np.zeros(len(cells), np.uint8), np.zeros(len(cells), np.int64)
    payloads: list[bytes] = []
    by_qualifier = {cell.qualifier: _encoding(layout, cell) for cell in cells}
    encodings = np.array([by_qualifier[cell.qualifier] for cell in cells])
    for encoding in sorted(set(encodings.tolist())):
        indices = np.flatnonzero(encodings == encoding)
        numbers = encode_values.numbers([cells[i].value for i in indices.tolist()], Encoding(encoding))
        shift = np.where(numbers.kinds > 1, len(payloads), 0)
        kinds[indices], bits[indices] = numbers.kinds, numbers.bits + shift
        payloads += numbers.payloads
        corruption |= {int(indices[i]): text for i, text in numbers.corruption.items()}
    good = np.ones(len(cells), np.bool_)
    good[list(corruption)] = False
    readable = np.flatnonzero(good)
    order = readable[latest_points(owners[readable], times_ms[readable], stamps_ms[readable])]
    numbers_of: dict[Series, int] = {}
    series_index = np.array(
        [numbers_of.setdefault(series, len(numbers_of)) for _, series, _ in rows], np.int32
    )
    times_ms = times_ms[order]
    batch = PointBatch(
        list(numbers_of),
        series_index[owners[order]],
        times_ms,
        times_ms % 1000 != 0,
        kinds[order],
        bits[order],
        stamps_ms[order],
        None,
        payloads,
    )
    return batch, corruption


def _times(
    layout: TableLayout, cells: Sequence[Cell], stamps_ms: Int64s, key_times: Int64s
) -> tuple[Int64s, dict[int, str]]:
    """(int64[n] times of cells in ms, why a cell has none by its index)."""
    assert layout.event is not None
    corruption: dict[int, str] = {}
    steps = np.zeros(len(cells), np.int64)
    form = layout.time_qualifier
    if form is not None:
        steps, corruption = _steps(layout, form, cells)
    source = layout.time_source
    if source == "cell":
        return stamps_ms, corruption
    times_ms = to_ms(key_times, layout.event[1])
    if source == "steps" and form and layout.time and layout.time.bucket:
        starts_ms = bucket_starts(times_ms, layout.time.bucket, layout.time.zone)
        times_ms = form.times_after(starts_ms, steps, layout.time.zone)
    return times_ms, corruption


def _steps(layout: TableLayout, form: TimeQualifier, cells: Sequence[Cell]) -> tuple[Int64s, dict[int, str]]:
    """(int64[n] steps after the start of the bucket, why a qualifier tells none by the index of its cell)."""
    assert layout.time is not None
    assert layout.time.bucket is not None
    steps, corruption = np.zeros(len(cells), np.int64), {}
    steps_by_qualifier: dict[bytes, int | ValueError] = {}
    for i, cell in enumerate(cells):
        if cell.qualifier not in steps_by_qualifier:
            try:
                steps_by_qualifier[cell.qualifier] = form.steps_within(layout.time.bucket, cell.qualifier)
            except ValueError as error:
                steps_by_qualifier[cell.qualifier] = error
        count = steps_by_qualifier[cell.qualifier]
        if isinstance(count, int):
            steps[i] = count
        else:
            corruption[i] = str(count)
    return steps, corruption


def _encoding(layout: TableLayout, cell: Cell) -> str:
    """How the value of a cell is stored."""
    for column in layout.columns:
        if column.qualifier == cell.qualifier:
            return column.encoding.value
    dynamic = layout.series or layout.map
    assert dynamic is not None
    return dynamic.encoding.value
