"""Records to rows and cells: fixed columns, a column per entry of a map, a column per reading.

Format: docs/spec/bigtable-patterns.md §5.

A cell's timestamp is a function of the record alone, by `cell_time`: so writing a record again
writes the same cells, and which of two values of a cell is read does not depend on their order.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.bits.times import bucket_starts
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.declared import encode_values
from timebeam.schema.stores.declared.columns import Column, Encoding, MapColumns, SeriesColumn, TimeQualifier
from timebeam.schema.stores.declared.declaration import CellTime, Declaration, TableLayout
from timebeam.schema.stores.declared.keys import keys_of
from timebeam.schema.stores.declared.parts.key_part import RecordRejections
from timebeam.schema.stores.declared.parts.time_part import last, to_ms
from timebeam.schema.stores.declared.records import RecordBatch

Cells = list[tuple[Cell, ...]]
"""The cells of each of n records."""

_LAST_REVISION = (1 << 40) - 1


def events(layout: TableLayout, batch: RecordBatch, rejections: RecordRejections) -> Int64s:
    """int64[n]: event times in the unit of the layout's event; 0 where there is none."""
    if layout.event is None:
        return np.zeros(len(batch), np.int64)
    name, unit = layout.event
    numbers, good = batch.integers(name)
    for i in np.flatnonzero(~good).tolist():
        text = batch.texts(name)[i].as_py()
        problem = (
            "is missing" if text is None else f"{text[:80]!r} is not a whole number of {unit} since 1970"
        )
        rejections.add(i, Reason.BAD_TIMESTAMP, f"{name} {problem}")
    outside = (numbers < 0) | (numbers > last(unit))
    for i in np.flatnonzero(outside).tolist():
        message = f"{name} {numbers[i]} is before 1970 or after the year 9999: is the unit {unit}?"
        rejections.add(i, Reason.TIMESTAMP_OUT_OF_RANGE, message)
    return np.where(outside, 0, numbers)


def cells(layout: TableLayout, batch: RecordBatch, event: Int64s, rejections: RecordRejections) -> Cells:
    """The cells of each record; none where it has no value for any column."""
    stamps = _timestamps(layout, batch, event, rejections).tolist()
    columns = [_column(layout, column, batch, stamps, rejections) for column in layout.columns]
    if layout.map is not None:
        columns.append(_map(layout, layout.map, batch, stamps, rejections))
    if layout.series is not None:
        columns.append(_series(layout, layout.series, batch, event, stamps, rejections))
    if len(columns) == 1:
        return columns[0]
    return [sum(column_cells, ()) for column_cells in zip(*columns, strict=True)]


def _timestamps(
    layout: TableLayout, batch: RecordBatch, event: Int64s, rejections: RecordRejections
) -> Int64s:
    """int64[n]: the timestamps of cells in ms."""
    if layout.cell_time is CellTime.ARRIVAL:
        return batch.arrivals_ms
    if layout.cell_time is CellTime.ZERO or layout.event is None:
        return np.zeros(len(batch), np.int64)
    event_ms = to_ms(event, layout.event[1])
    if layout.revision is not None:
        numbers, good = batch.integers(layout.revision)
        good &= (numbers >= 0) & (numbers <= _LAST_REVISION)
        for i in np.flatnonzero(~good).tolist():
            rejections.add(
                i, Reason.BAD_NUMBER, f"{layout.revision} is not a revision number: give 0, 1, 2 ..."
            )
        event_ms = event_ms + np.where(good, numbers, 0)
    return event_ms


def _stored(
    batch: RecordBatch, field: str, encoding: Encoding, rejections: RecordRejections
) -> list[bytes | None]:
    """The stored values of a field, None where absent or rejected."""
    stored, rejected = encode_values.encode(batch.texts(field), batch.are_texts(field), encoding)
    for i, error in rejected:
        rejections.add(i, error.reason, f"{field}: {error.message}")
    return stored


def _column(
    layout: TableLayout, column: Column, batch: RecordBatch, stamps: list[int], rejections: RecordRejections
) -> Cells:
    if column.field not in batch.fields:
        return [()] * len(batch)
    stored = _stored(batch, column.field, column.encoding, rejections)
    return _cells_of(layout.family, repeat(column.qualifier), stamps, stored)


def _cells_of(
    family: str, names: repeat[bytes] | list[bytes], stamps: list[int], stored: list[bytes | None]
) -> Cells:
    """One cell for each record that has a value."""
    cells: Cells = list(zip(map(Cell, repeat(family), names, stamps, stored)))  # type: ignore[arg-type]  # see below
    if None in stored:
        return [() if value is None else cell for cell, value in zip(cells, stored, strict=True)]
    return cells


def _map(
    layout: TableLayout,
    columns: MapColumns,
    batch: RecordBatch,
    stamps: list[int],
    rejections: RecordRejections,
) -> Cells:
    fixed_qualifiers = {column.qualifier for column in layout.columns}
    family, rows = layout.family, []
    for i, (text, stamp) in enumerate(zip(batch.texts(columns.field).to_pylist(), stamps, strict=True)):
        qualifiers_of_record = []
        if text is not None:
            try:
                for qualifier, value, is_text in columns.entries(text, fixed_qualifiers):
                    stored = encode_values.encode_one(value, is_text, columns.encoding)
                    qualifiers_of_record.append(Cell(family, qualifier, stamp, stored))
            except RejectedError as error:
                rejections.add(i, error.reason, error.message)
        rows.append(tuple(qualifiers_of_record))
    return rows


def _series(
    layout: TableLayout,
    column: SeriesColumn,
    batch: RecordBatch,
    event: Int64s,
    stamps: list[int],
    rejections: RecordRejections,
) -> Cells:
    stored = _stored(batch, column.field, column.encoding, rejections)
    if isinstance(column.qualifier, TimeQualifier):
        names = _time_names(layout, column.qualifier, event, stored, rejections)
    else:
        names = _field_names(layout, column.qualifier, batch, stored, rejections)
    return _cells_of(layout.family, names, stamps, stored)


def _time_names(
    layout: TableLayout,
    form: TimeQualifier,
    event: Int64s,
    stored: list[bytes | None],
    rejections: RecordRejections,
) -> list[bytes]:
    """The qualifiers of readings; of a record without a reading any."""
    time = layout.time
    assert time is not None
    assert time.bucket is not None
    times_ms = to_ms(event, time.unit)
    names, good = form.qualifiers(times_ms, bucket_starts(times_ms, time.bucket, time.zone), time.zone)
    has_reading = np.array([value is not None for value in stored], np.bool_)
    for i in np.flatnonzero(~good & has_reading).tolist():
        message = f"{time.name} {event[i]} is too late in its bucket for a qualifier {form.form}"
        rejections.add(i, Reason.TIMESTAMP_OUT_OF_RANGE, message)
    return names


def _field_names(
    layout: TableLayout,
    field: str,
    batch: RecordBatch,
    stored: list[bytes | None],
    rejections: RecordRejections,
) -> list[bytes]:
    """The qualifiers of readings; of a record without a reading any."""
    fixed_qualifiers = {column.qualifier for column in layout.columns}
    names = []
    for i, (text, value) in enumerate(zip(batch.texts(field).to_pylist(), stored, strict=True)):
        name = (text or "").encode()
        if value is not None and (not name or name in fixed_qualifiers):
            problem = (
                "is another column's qualifier" if name else "is missing or empty, and it is the qualifier"
            )
            rejections.add(i, Reason.SERIES_NOT_STORABLE, f"{field} {(text or '')[:80]!r} {problem}")
        names.append(name)
    return names


def rows(declaration: Declaration, batch: RecordBatch) -> tuple[list[Row], list[Rejected]]:
    """The row mutations of a batch, table by table, and the records that a table rejected.

    A record makes at most one mutation in each table. One that a table rejects is written to the
    others, and rejected once, with the first reason.

    >>> from timebeam.schema.stores.declared.records import read_json
    >>> from timebeam.schema.stores.declared.language.load_declaration import load
    >>> from timebeam.schema.formats.base import Message
    >>> declaration = load(
    ...     '''[layout.quote]
    ...     table = "QUOTE"
    ...     key = [{ field = "EXCHANGE", width = 6 }, { time = "QUOTETIME", unit = "ms", width = 13 }]
    ...     separator = "#"
    ...     [layout.quote.columns]
    ...     family = "MD"
    ...     fields = ["BID"]''',
    ...     "quote.toml",
    ... )
    >>> line = b'{"EXCHANGE":"NYSE","BID":600.60,"QUOTETIME":1426535612156}'
    >>> (row,), rejected = rows(declaration, read_json(Message(line, arrival_ms=0))[0])
    >>> row.key, [(cell.family, cell.qualifier, cell.timestamp_ms, cell.value) for cell in row.cells]
    (b'NYSE  #1426535612156', [('MD', b'BID', 1426535612156, b'600.60')])
    """
    written: list[Row] = []
    rejected: dict[int, tuple[Reason, str]] = {}
    is_stored = np.zeros(len(batch), np.bool_)
    for layout in declaration.layouts:
        is_present = batch.present(layout.when) if layout.when else np.ones(len(batch), np.bool_)
        is_stored |= is_present
        chosen = np.flatnonzero(is_present)
        if len(chosen) == 0:
            continue
        matching = batch if len(chosen) == len(batch) else batch.take(chosen)
        layout_rows_found, rejections = layout_rows(layout, matching)
        written += layout_rows_found
        for i, why in rejections.by_record.items():
            rejected.setdefault(int(chosen[i]), why)
    for i in np.flatnonzero(~is_stored).tolist():
        names = ", ".join(sorted({layout.when for layout in declaration.layouts if layout.when}))
        rejected[i] = (Reason.EMPTY_VALUE, f"no table takes the record: it has none of the fields {names}")
    return written, [batch.reject(i, *rejected[i]) for i in sorted(rejected)]


def layout_rows(layout: TableLayout, batch: RecordBatch) -> tuple[list[Row], RecordRejections]:
    """The rows of one table, one for each record that it does not reject."""
    rejections = RecordRejections(layout.table)
    event = events(layout, batch, rejections)
    keys = keys_of(layout, batch, event, rejections)
    cells_by_record = cells(layout, batch, event, rejections)
    if () in cells_by_record:
        for i, record_cells in enumerate(cells_by_record):
            if not record_cells:
                rejections.add(i, Reason.EMPTY_VALUE, "the record has none of the fields of its columns")
    if rejections.by_record:
        good_records = [i for i in range(len(batch)) if i not in rejections.by_record]
        keys, cells_by_record = [keys[i] for i in good_records], [cells_by_record[i] for i in good_records]
    return list(map(Row, repeat(layout.table), keys, cells_by_record)), rejections


METRIC, TIMESTAMP, VALUE = "metric", "timestamp", "value"
"""The fields of a point beside its tags."""


def of_points(declaration: Declaration, batch: PointBatch) -> tuple[RecordBatch, list[Rejected]]:
    """The records of points: fields `metric`, `timestamp` (ms), `value`, and each tag key by its name.

    Rejected are points of series that a table cannot tell from others, since the metric or a tag
    stands neither in its key nor in a qualifier (unless it says allow_overwrite), and opaque values.
    """
    reasons = [_reject_series(declaration, series) for series in batch.series]
    bad_series = np.array([reason is not None for reason in reasons], np.bool_)
    bad = batch.kinds >= Kind.OPAQUE
    if bad_series.any():
        bad |= bad_series[batch.index]

    def why(point: int) -> RejectedError:
        message = reasons[batch.index[point]]
        if message:
            return RejectedError(Reason.SERIES_NOT_STORABLE, message)
        return RejectedError(Reason.VALUE_NOT_STORABLE, "bytes and histograms have no text to store")

    rejected = batch.reject(np.flatnonzero(bad), why, Stage.ENCODE)
    if rejected:
        batch = batch.take(np.flatnonzero(~bad))
    index = pa.array(batch.index)
    series = list(batch.series)
    fields: dict[str, pa.Array] = {
        METRIC: pa.array([each.metric for each in series], pa.string()).take(index),
        TIMESTAMP: pa.array(batch.times_ms),
        VALUE: _values(batch),
    }
    tags = [dict(each.tags) for each in series]
    for key in sorted({key for each in tags for key in each} - fields.keys()):
        fields[key] = pa.array([each.get(key) for each in tags], pa.string()).take(index)
    quoted = {VALUE: batch.kinds == Kind.TEXT}
    return RecordBatch(fields, batch.arrivals_ms, batch.origins, quoted), rejected


def _values(batch: PointBatch) -> pa.Array:
    """string[n]: integers in digits, decimals in the fewest digits that tell them, texts as they are."""
    if (batch.kinds == Kind.INTEGER).all():
        return pa.array(batch.bits)
    floats = batch.bits.view(np.float64).tolist()
    texts = [
        repr(number)
        if kind == Kind.FLOAT
        else str(integer)
        if kind == Kind.INTEGER
        else batch.payloads[integer].decode()
        for kind, number, integer in zip(batch.kinds.tolist(), floats, batch.bits.tolist(), strict=True)
    ]
    return pa.array(texts, pa.string())


def _reject_series(declaration: Declaration, series: Series) -> str | None:
    """Why the points of a series cannot be records, or None."""
    keys = {key for key, _ in series.tags}
    if series.resources:
        return "resources have no place in declared tables"
    if keys & {METRIC, TIMESTAMP, VALUE}:
        return f"a tag must not be called {METRIC}, {TIMESTAMP} or {VALUE}: these are fields of every point"
    for layout in declaration.layouts:
        if layout.allow_overwrite or (layout.when and layout.when not in keys | {METRIC, TIMESTAMP, VALUE}):
            continue
        lost = sorted((keys | {METRIC}) - layout.stored)
        if lost:
            return (
                f"{lost[0]} is neither in the key nor in a qualifier of {layout.table}, so that points "
                "of two series would overwrite each other: add it, or declare allow_overwrite = true"
            )
    return None
