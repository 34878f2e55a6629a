"""Rows of declared tables back to records.

What comes back is what the table holds: a time that the key cuts to its bucket and no cell
remembers comes back as the start of the bucket; a hashed field does not come back.
"""

from __future__ import annotations

import numpy as np

from schema.declared import keys, qualifiers, times, values
from schema.declared.model import CellTime, Column, SeriesColumn, TableLayout, TimeQualifier
from schema.declared.spans import DAY_MS, bucket_starts, first_instant, local_ms
from schema.declared.values import Value
from schema.layouts.base import Cell, Row

Record = dict[str, "Value | dict[str, Value]"]
"""Field texts; times as int in the unit of their field; numbers of binary encodings; a map field as a
dict of its entries, by their names joined as in the qualifier."""


def decode(layout: TableLayout, row: Row) -> list[Record]:
    """The records of a row: one, or with a column per reading one for each reading, in their order.

    Raises:
      ValueError: the key or a cell is none of this layout.
    """
    texts, key_time = keys.fields(layout, row.key)
    base: Record = dict(texts)
    fixed = {column.qualifier: column for column in layout.columns}
    entries: dict[str, Value] = {}
    readings: list[Cell] = []
    newest = 0
    for cell in row.cells:
        column = fixed.get(cell.qualifier)
        if column is None and layout.series is not None:
            readings.append(cell)
            continue
        newest = max(newest, cell.timestamp_ms)
        if column is not None:
            base[column.field] = _fixed(layout, column, cell)
        elif layout.map is not None:
            qualifiers.entry_names(layout.map, cell.qualifier)
            entries[cell.qualifier.decode()] = values.decode(cell.value, layout.map.encoding)
        else:
            raise ValueError(f"{layout.table} has no column {cell.qualifier!r}")
    if layout.map is not None and entries:
        base[layout.map.field] = entries
    if layout.series is None:
        return [_timed(layout, base, key_time, newest)]
    if not readings:
        return [base]
    return [_reading(layout, layout.series, base, key_time, cell) for cell in readings]


def _fixed(layout: TableLayout, column: Column, cell: Cell) -> Value:
    value = values.decode(cell.value, column.encoding)
    is_time = layout.event is not None and column.field == layout.event[0]
    return int(value) if is_time else value


def _timed(layout: TableLayout, base: Record, key_time: int | None, timestamp_ms: int) -> Record:
    """A record with its event time, as exactly as the table has it."""
    if layout.event is None or layout.event[0] in base:
        return base
    found = _exact(layout, key_time, timestamp_ms)
    if found is None:
        found = key_time
    return base if found is None else {**base, layout.event[0]: found}


def _exact(layout: TableLayout, key_time: int | None, timestamp_ms: int) -> int | None:
    """The event time itself, from the key or the timestamp of a cell; None if neither has it."""
    assert layout.event is not None
    if layout.time is not None and times.is_exact(layout.time):
        return key_time
    unit = layout.event[1]
    if layout.cell_time is CellTime.EVENT and unit != "us":
        return int(times.from_ms(np.array([timestamp_ms], np.int64), unit)[0])
    return None


def _reading(
    layout: TableLayout, series: SeriesColumn, base: Record, key_time: int | None, cell: Cell
) -> Record:
    value = values.decode(cell.value, series.encoding)
    if not isinstance(series.qualifier, TimeQualifier):
        record = {**base, series.qualifier: cell.qualifier.decode(), series.field: value}
        return _timed(layout, record, key_time, cell.timestamp_ms)
    assert layout.event is not None
    assert key_time is not None
    steps = qualifiers.steps_of(series.qualifier, cell.qualifier)
    found = _exact(layout, key_time, cell.timestamp_ms)
    if found is None:
        found = _after(layout, series.qualifier, key_time, steps)
    return {**base, layout.event[0]: found, series.field: value}


def _after(layout: TableLayout, form: TimeQualifier, key_time: int, steps: int) -> int:
    """The time a number of steps behind the start of a bucket, in the unit of the time part."""
    time = layout.time
    assert time is not None
    assert time.bucket is not None
    start_ms = bucket_starts(times.to_ms(np.array([key_time], np.int64), time.unit), time.bucket, time.zone)
    if form.step.ms % DAY_MS == 0:
        midnight = local_ms(start_ms, time.zone) // DAY_MS * DAY_MS
        found = first_instant(midnight + steps * form.step.ms, time.zone)
    else:
        found = start_ms + steps * form.step.ms
    return int(times.from_ms(found, time.unit)[0])
