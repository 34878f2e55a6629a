"""Rows of declared tables back to records.

What comes back is what the table holds: a time that the key cuts to its bucket and no cell
remembers comes back as the start of the bucket; a hashed field does not come back.
"""

from __future__ import annotations

import numpy as np

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import bucket_starts
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.declared.codec import cell_values, read_keys, record_qualifiers, time_parts
from timebeam.schema.stores.declared.codec.cell_values import Value
from timebeam.schema.stores.declared.model import CellTime, Column, SeriesColumn, TableLayout, TimeQualifier

Record = dict[str, "Value | dict[str, Value]"]
"""Field texts; times as int in the unit of their field; numbers of binary encodings; a map field as a
dict of its entries, by their names joined as in the qualifier."""


def decode(layout: TableLayout, row: Row) -> list[Record]:
    """The records of a row: one, or with a column per reading one for each reading, in their order.

    Raises:
      ValueError: the key or a cell is none of this layout.
    """
    texts, key_time = read_keys.fields(layout, row.key)
    base: Record = dict(texts)
    fixed = {column.qualifier: column for column in layout.columns}
    entries: dict[str, Value] = {}
    readings: list[Cell] = []
    newest = 0
    for cell in row.cells:
        if cell.family != layout.family:
            continue
        column = fixed.get(cell.qualifier)
        if column is None and layout.series is not None:
            readings.append(cell)
            continue
        newest = max(newest, cell.timestamp_ms)
        if column is not None:
            is_time = layout.event is not None and column.field == layout.event[0]
            value = (
                event_time(layout, column, cell)
                if is_time
                else cell_values.decode(cell.value, column.encoding)
            )
            base[column.field] = value
        elif layout.map is not None:
            record_qualifiers.entry_names(layout.map, cell.qualifier)
            entries[cell.qualifier.decode()] = cell_values.decode(cell.value, layout.map.encoding)
        else:
            raise ValueError(f"{layout.table} has no column {cell.qualifier!r}")
    if layout.map is not None and entries:
        base[layout.map.field] = entries
    if layout.series is None or not readings:
        return [_timed(layout, base, key_time, newest)]
    return [_reading(layout, layout.series, base, key_time, cell) for cell in readings]


def event_time(layout: TableLayout, column: Column, cell: Cell) -> int:
    """The event time in a cell of its column, in its unit.

    Raises:
      ValueError: it is not a time from 1970 to the year 9999.
    """
    assert layout.event is not None
    time = cell_values.whole_number(cell_values.decode(cell.value, column.encoding))
    if not 0 <= time <= time_parts.last(layout.event[1]):
        raise ValueError(f"{column.field} {time} is not a time from 1970 to the year 9999")
    return time


def _timed(layout: TableLayout, base: Record, key_time: int | None, timestamp_ms: int) -> Record:
    """A record with its event time, as exactly as the table has it."""
    if layout.event is None or layout.event[0] in base:
        return base
    exact = _exact(layout, key_time, timestamp_ms)
    time = key_time if exact is None else exact
    return base if time is None else {**base, layout.event[0]: time}


def has_exact_time(layout: TableLayout) -> bool:
    """Whether rows give back the event time itself, from the key, a column or the timestamps of cells.

    A row of several steps has one column for all of them.
    """
    if layout.event is None:
        return False
    in_key = layout.time is not None and time_parts.is_exact(layout.time)
    has_column = any(column.field == layout.event[0] for column in layout.columns)
    in_column = has_column and layout.time_qualifier is None
    return in_key or in_column or (layout.cell_time is CellTime.EVENT and layout.event[1] != "us")


def _exact(layout: TableLayout, key_time: int | None, timestamp_ms: int) -> int | None:
    """The event time itself, from the key or the timestamp of a cell; None if neither has it."""
    assert layout.event is not None
    if layout.time is not None and time_parts.is_exact(layout.time):
        return key_time
    unit = layout.event[1]
    if layout.cell_time is CellTime.EVENT and unit != "us":
        return int(time_parts.from_ms(np.array([timestamp_ms], np.int64), unit)[0])
    return None


def _reading(
    layout: TableLayout, series: SeriesColumn, base: Record, key_time: int | None, cell: Cell
) -> Record:
    value = cell_values.decode(cell.value, series.encoding)
    if not isinstance(series.qualifier, TimeQualifier):
        record = {**base, series.qualifier: cell.qualifier.decode(), series.field: value}
        return _timed(layout, record, key_time, cell.timestamp_ms)
    assert layout.event is not None
    assert key_time is not None
    assert layout.time is not None
    assert layout.time.bucket is not None
    steps = record_qualifiers.steps_within(series.qualifier, layout.time.bucket, cell.qualifier)
    exact_ms = _exact(layout, key_time, cell.timestamp_ms)
    if exact_ms is None:
        exact_ms = _after(layout, series.qualifier, key_time, steps)
    return {**base, layout.event[0]: exact_ms, series.field: value}


def _after(layout: TableLayout, form: TimeQualifier, key_time: int, steps: int) -> int:
    """The time a number of steps after the start of a bucket, in the unit of the time part."""
    time = layout.time
    assert time is not None
    assert time.bucket is not None
    start_ms = bucket_starts(
        time_parts.to_ms(np.array([key_time], np.int64), time.unit), time.bucket, time.zone
    )
    times_ms = record_qualifiers.times_after(form, start_ms, np.array([steps], np.int64), time.zone)
    return int(time_parts.from_ms(times_ms, time.unit)[0])


def remembered_times(layout: TableLayout, times_ms: Int64s) -> Int64s | None:
    """int64[n]: the event times, in ms, that rows give back for records of these times.

    None if rows give back no time.
    """
    assert layout.event is not None
    name, unit = layout.event
    time, form = layout.time, layout.time_qualifier
    if any(column.field == name for column in layout.columns) and form is None:
        return times_ms
    if layout.cell_time is CellTime.EVENT and unit != "us":
        return times_ms
    if time is None:
        return None
    if time_parts.is_exact(time) or form is None:
        return time_parts.cut(time, times_ms)
    assert time.bucket is not None
    starts_ms = bucket_starts(times_ms, time.bucket, time.zone)
    steps = record_qualifiers.steps_between(form, times_ms, starts_ms, time.zone)
    return record_qualifiers.times_after(form, starts_ms, steps, time.zone)
