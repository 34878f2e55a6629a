"""Tables that nightly jobs fill from other declared tables: a table per day, and rollups.

Format: docs/spec/bigtable-patterns.md §3.

A table per day has the day's rows of its source. A rollup is of a numeric column:


    [layout.meter_hour]
    table = "METER_1H"
    key = [{ field = "METER", type = "uint", width = 10 }, { time = "TS", unit = "ms", width = 13 }]
    [layout.meter_hour.columns]
    family = "R"
    fields = ["sum", "count", "min", "max"]
    [layout.meter_hour.rollup]
    source = "sensor"
    value = "READING"
    interval = "1h"

A rollup is a record like any other, and its table a layout like any other: it has the kept fields of
the source, the start of the interval as the source's time field, and `sum`, `count`, `min` and `max`.
Fields have the case in which the target's key holds them: hosts `a` and `A` of a key in lower case are
one group.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.bits.times import bucket_starts, day_range, first_time, sample_starts
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Row
from timebeam.schema.rollup.accumulate import numbers
from timebeam.schema.rollup.buckets import Buckets
from timebeam.schema.stores.declared import keys
from timebeam.schema.stores.declared.declaration import DayTables, DeclaredRollup, TableLayout
from timebeam.schema.stores.declared.encode_values import finite_number
from timebeam.schema.stores.declared.parts.time_part import from_ms, one_to_ms, to_ms
from timebeam.schema.stores.declared.read_records import Record, decode, remembered_times
from timebeam.schema.stores.declared.records import RecordBatch
from timebeam.schema.stores.declared.write_records import layout_rows

_DAY = re.compile(r"\{day:([^{}]*)\}")
_PLACEHOLDER = re.compile(r"%(.?)")
_WIDTHS = {"Y": 4, "m": 2, "d": 2, "j": 3}
_WHOLE_DATES = (["Y", "d", "m"], ["Y", "j"])
EXAMPLE = datetime.date(2026, 11, 22)
_DIGIT = "\0"


def check_name(table: str) -> None:
    """Checks that days and the names of their tables map one to one.

    Raises:
      ValueError: they do not.
    """
    forms = _DAY.findall(table)
    if len(forms) != 1:
        raise ValueError(f"{table!r} must contain the day once, as in SENSOR_{{day:%Y%m%d}}")
    letters = sorted(_PLACEHOLDER.findall(forms[0]))
    if letters not in _WHOLE_DATES:
        raise ValueError(
            f"{table!r} must contain the whole date: year, month and day once each, as in {{day:%Y%m%d}}, or "
            "year and day of the year, as in {day:%Y%j}"
        )


def may_meet(tables: DayTables, other_tables: DayTables) -> bool:
    """Whether two days may have one name; by their digits, so also of some that no calendar has."""
    shape, other_shape = _shape(tables), _shape(other_tables)
    return len(shape) == len(other_shape) and all(
        _alike(*pair) for pair in zip(shape, other_shape, strict=True)
    )


def _shape(tables: DayTables) -> str:
    """A name with `_DIGIT` for each digit of the day."""
    return _DAY.sub(
        lambda day: _PLACEHOLDER.sub(lambda mark: _DIGIT * _WIDTHS[mark[1]], day[1]),
        tables.table,
    )


def _alike(shape: str, other_shape: str) -> bool:
    digits = "0123456789" + _DIGIT
    return shape == other_shape or (
        _DIGIT in (shape, other_shape) and shape in digits and other_shape in digits
    )


def name_of(table: str, day: datetime.date) -> str:
    """The name of a day's table, from one with `{day:...}` in it.

    >>> name_of("SENSOR_{day:%Y%m%d}", datetime.date(2015, 3, 16))
    'SENSOR_20150316'
    """
    return _DAY.sub(lambda form: day.strftime(form[1]), table)


def is_expired(tables: DayTables, day: datetime.date, today: datetime.date) -> bool:
    """Whether the table of a day may be dropped as a whole."""
    return tables.expire_days is not None and (today - day).days > tables.expire_days


def day_piece(source: TableLayout, day: datetime.date) -> bytes:
    """The bytes of the time part in the keys of a day's rows; the day is that of the part's zone."""
    time = source.time
    assert time is not None
    midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)
    local = np.array([int(midnight.timestamp()) * 1000], np.int64)
    numbers, good = time.numbers(from_ms(first_time(local, time.zone), time.unit))
    if not good[0]:
        raise ValueError(f"the day {day} does not fit the key of {source.table}")
    piece: bytes = time.bytes_of(numbers)[0].as_py()
    return piece


def day_of(tables: DayTables, name: str) -> datetime.date | None:
    """The day of a table of this name; None if it is not one of these tables."""
    form = _DAY.search(tables.table)
    assert form is not None
    head, tail = tables.table[: form.start()], tables.table[form.end() :]
    if len(name) < len(head) + len(tail) or not (name.startswith(head) and name.endswith(tail)):
        return None
    try:
        day = datetime.datetime.strptime(name[len(head) : len(name) - len(tail)], form[1]).date()
    except ValueError:
        return None
    return day if day.year >= 1970 and name_of(tables.table, day) == name else None


def tables_within(
    tables: DayTables, source: TableLayout, names: Iterable[str], start_ms: int | None, end_ms: int | None
) -> list[str]:
    """Those of the names that are of days with a part in a range of time, ascending by day.

    Args:
      start_ms, end_ms: both inclusive; None for no limit.
    """
    assert source.time is not None
    by_day = {day: name for name in names if (day := day_of(tables, name)) is not None}
    within = []
    for day, name in sorted(by_day.items()):
        day_start_ms, day_end_ms = day_range(day, source.time.zone)
        if (end_ms is None or day_start_ms <= end_ms) and day_end_ms > (start_ms or 0):
            within.append(name)
    return within


def day_pattern(source: TableLayout, piece: bytes) -> bytes:
    """RE2 for the keys that may be of the day with this piece; `is_of_day` tells for certain."""
    assert source.time is not None
    return keys.pattern(source, {source.time: piece})


def is_of_day(source: TableLayout, key: bytes, piece: bytes) -> bool:
    """Whether a row is one of the day with this piece; the job copies it unchanged.

    Raises:
      ValueError: it is not a key of this layout.
    """
    assert source.time is not None
    return keys.split(source, key)[source.key.index(source.time)] == piece


AGGREGATORS = ("sum", "count", "min", "max")
"""The fields that a rollup adds to those that it keeps."""


def problems(rollup: DeclaredRollup, sources: Mapping[str, TableLayout]) -> Iterator[str]:
    """What is wrong between a rollup and the layouts of its file, in words."""
    source, target = sources.get(rollup.source), rollup.target
    if source is None:
        yield f"source = {rollup.source!r} is not a layout of this file"
        return
    if source.event is None:
        yield f"layout {source.name} has no event time: nothing says which interval a record is in"
        return
    values = {column.field for column in source.columns} | ({source.series.field} if source.series else set())
    if rollup.value not in values:
        yield f"value = {rollup.value!r} is not a column of layout {source.name}: {', '.join(sorted(values))}"
    key_fields = source.key_texts
    for name in rollup.by:
        if name not in key_fields:
            names = ", ".join(sorted(key_fields))
            yield f"by: {name} is not a field in the key of layout {source.name}: {names}"
        if name in AGGREGATORS:
            yield f"by: {name} is the name of an aggregator"
        if name not in target.key_texts:
            yield f"by: {name} must be in the key as a field, or rollups overwrite each other"
    if target.event != source.event:
        yield f"its time must be that of layout {source.name}: {source.event[0]} in {source.event[1]}"
    elif target.time is None:
        yield f"the key must hold the time {source.event[0]}: it tells the intervals apart"
    if target.series is not None or target.map is not None:
        yield "columns: a rollup is a record in a row of its own: fields only"
    fields = {*rollup.by, source.event[0], *AGGREGATORS}
    needed = {name for key_part in target.key for name in key_part.inputs} | {
        column.field for column in target.columns
    }
    if target.revision is not None:
        needed.add(target.revision)
    for name in sorted(needed - fields):
        yield f"field {name} is in no rollup: there are {', '.join(sorted(fields))}"
    yield from _time_problems(rollup, source)


def _time_problems(rollup: DeclaredRollup, source: TableLayout) -> Iterator[str]:
    """Intervals that the rows of the source or of the target could not tell apart."""
    target, interval = rollup.target, rollup.interval
    assert source.event is not None
    name = source.event[0]
    if interval.ms % 1000:
        yield f"interval = {interval} must be whole seconds"
        return
    starts_ms = sample_starts(interval, rollup.zone)
    if target.event == source.event and target.time is not None:
        stored_ms = target.time.cut(starts_ms)
        if (stored_ms != starts_ms).any():
            yield (
                f"the key cuts {name} so that it does not hold the starts of intervals of {interval} in "
                f"{rollup.zone}: leave out bucket and divide, or give the bucket and tz of the rollup"
            )
    remembered_ms = remembered_times(source, starts_ms)
    if remembered_ms is None:
        yield f"layout {source.name} does not hold {name}: nothing says which interval a record is in"
    elif (remembered_ms != starts_ms).any():
        yield (
            f"layout {source.name} holds {name} too coarsely for intervals of {interval} in {rollup.zone}: "
            "give a longer interval, or the tz of its key"
        )
    if source.shares_rows and source.max_versions > 1:
        yield (
            f"layout {source.name} holds several records in the versions of one cell, and a rollup reads the "
            "newest version: add a series with a time in its qualifier, or a suffix to the key"
        )


def values_of(
    rollup: DeclaredRollup, source: TableLayout, row: Row
) -> tuple[PointBatch | None, list[Rejected]]:
    """The numbers of a row of the source, each at the start of its interval; its kept fields are tags.

    Returns:
      No batch if the row has none; rejections of values that are not numbers.
    """
    assert source.event is not None
    name, unit = source.event
    try:
        records = decode(source, row)
    except ValueError as error:
        return None, [_rejected(row, Reason.CORRUPT_FILE, str(error))]
    series = _group(rollup, records[0])
    timed_values: list[tuple[int, int | float]] = []
    rejected = []
    for record in records:
        value, time = record.get(rollup.value), record.get(name)
        if value is None or time is None:
            continue
        try:
            number = finite_number(value)  # type: ignore[arg-type]  # no map: see `problems`
        except RejectedError as error:
            rejected.append(_rejected(row, error.reason, f"{rollup.value}: {error.message}"))
            continue
        timed_values.append((time, number))  # type: ignore[arg-type]  # times are int
    if not timed_values:
        return None, rejected
    times_ms = to_ms(np.array([time for time, _ in timed_values], np.int64), unit)
    starts = bucket_starts(times_ms, rollup.interval, rollup.zone).tolist()
    points = [(series, start, False, number) for (_, number), start in zip(timed_values, starts, strict=True)]
    return PointBatch.of(points, 0), rejected


def _group(rollup: DeclaredRollup, record: Record) -> Series:
    """The group that the records of one row belong to: its fields as the target's key holds them."""
    fields = rollup.target.key_texts
    tags = {name: fields[name].folded(pa.array([record[name]], pa.string()))[0].as_py() for name in rollup.by}
    return Series.of(rollup.target.name, tags)


def _rejected(row: Row, reason: Reason, message: str) -> Rejected:
    where = f"row of table {row.table}"
    return Rejected(row.key, reason, message, Stage.READ, where)


def rollup_rows(rollup: DeclaredRollup, buckets: Buckets) -> tuple[list[Row], list[Rejected]]:
    """The rows of the rollups in buckets whose series have the kept fields as tags."""
    assert rollup.target.event is not None
    name, unit = rollup.target.event
    tags = [dict(series.tags) for series in buckets.series]
    index = buckets.index.tolist()
    fields: dict[str, pa.Array] = {
        field: pa.array([tags[number][field] for number in index], pa.string()) for field in rollup.by
    }
    fields[name] = pa.array(from_ms(buckets.starts_ms, unit), pa.int64())
    for aggregator in AGGREGATORS:
        aggregates = numbers(buckets, aggregator)
        integers, floats = aggregates.bits.tolist(), aggregates.bits.view(np.float64).tolist()
        kinds = (aggregates.kinds == Kind.INTEGER).tolist()
        texts = [
            str(i)
            if integer
            else repr(f)
            if math.isfinite(f)
            else None  # a sum beyond the floats has no cell
            for i, f, integer in zip(integers, floats, kinds, strict=True)
        ]
        fields[aggregator] = pa.array(texts, pa.string())
    batch = RecordBatch(
        fields, buckets.starts_ms, quoted={n: np.zeros(len(index), np.bool_) for n in AGGREGATORS}
    )
    rows, rejections = layout_rows(rollup.target, batch)
    rejected = [batch.reject(i, *why) for i, why in sorted(rejections.by_record.items())]
    return rows, rejected


def start_of(rollup: DeclaredRollup, row: Row) -> int:
    """The start in ms of the interval that a row of the rollup's table is of.

    Raises:
      ValueError: it is not a row of this table.
    """
    assert rollup.target.event is not None
    name, unit = rollup.target.event
    (record,) = decode(rollup.target, row)
    time = record.get(name)
    if not isinstance(time, int):
        raise ValueError(f"row {row.key!r} of {row.table} has no time")
    return one_to_ms(time, unit)
