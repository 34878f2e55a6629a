"""Rollups of a numeric column of declared tables, in tables that are declared too.

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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from schema.declared import times
from schema.declared.decode import decode
from schema.declared.model import DeclaredRollup, Field, Part, TableLayout, inputs
from schema.declared.records import RecordBatch
from schema.declared.rows import layout_rows
from schema.declared.spans import bucket_starts
from schema.layouts.base import Row
from schema.points import Kind, PointBatch, Reason, RefusedError, Rejected, Series, Stage
from schema.rollup.accumulate import numbers
from schema.rollup.buckets import Buckets

AGGREGATORS = ("sum", "count", "min", "max")
"""The fields that a rollup adds to those that it keeps."""


def problems(rollup: DeclaredRollup, sources: Mapping[str, TableLayout]) -> Iterator[str]:
    """What is wrong between a rollup and the layouts of its file, in words."""
    source, target = sources.get(rollup.source), rollup.target
    if source is None:
        yield f"source = {rollup.source!r} is no layout of this file"
        return
    if source.event is None:
        yield f"layout {source.name} has no event time: nothing says which interval a record is in"
        return
    values = {column.field for column in source.columns} | ({source.series.field} if source.series else set())
    if rollup.value not in values:
        yield f"value = {rollup.value!r} is no column of layout {source.name}: {', '.join(sorted(values))}"
    known = {part.name for part in source.key if isinstance(part, Field)}
    for name in rollup.by:
        if name not in known:
            yield f"by: {name} is no field in the key of layout {source.name}: {', '.join(sorted(known))}"
        if name in AGGREGATORS:
            yield f"by: {name} is the name of an aggregator"
    if target.event != source.event:
        yield f"its time must be that of layout {source.name}: {source.event[0]} in {source.event[1]}"
    elif target.time is None:
        yield f"the key must hold the time {source.event[0]}: it tells the intervals apart"
    if target.series is not None or target.map is not None:
        yield "columns: a rollup is a record in a row of its own: fields only"
    given = {*rollup.by, source.event[0], *AGGREGATORS}
    wanted = {name for part in target.key for name in inputs(part)} | {one.field for one in target.columns}
    for name in sorted(wanted - given):
        yield f"field {name} is in no rollup: there are {', '.join(sorted(given))}"
    for name in rollup.by:
        if name not in target.stored:
            yield f"by: {name} must stand in the key, or rollups overwrite each other"


def kept_fields(key: Sequence[Part]) -> tuple[str, ...]:
    """The fields that a rollup keeps if it names none: all that stand in the key."""
    return tuple(part.name for part in key if isinstance(part, Field))


def values_of(
    rollup: DeclaredRollup, source: TableLayout, row: Row
) -> tuple[PointBatch | None, list[Rejected]]:
    """The numbers of a row of the source, each at the start of its interval; its kept fields are tags.

    Returns:
      No batch if the row has none; refusals of values that are no numbers.
    """
    assert source.event is not None
    name, unit = source.event
    try:
        records = decode(source, row)
    except (ValueError, UnicodeDecodeError) as error:
        return None, [_refused(row, Reason.CORRUPT_FILE, str(error))]
    found: list[tuple[int, int | float, Series]] = []
    rejected = []
    for record in records:
        value, time = record.get(rollup.value), record.get(name)
        if value is None or time is None:
            continue
        try:
            number = _number(value)
        except RefusedError as error:
            rejected.append(_refused(row, error.reason, f"{rollup.value}: {error.message}"))
            continue
        tags = {field: str(record.get(field, "")) for field in rollup.by}
        found.append((int(time), number, Series.of(rollup.target.name, tags)))  # type: ignore[arg-type]
    if not found:
        return None, rejected
    times_ms = times.to_ms(np.array([time for time, _, _ in found], np.int64), unit)
    starts = bucket_starts(times_ms, rollup.interval, rollup.zone).tolist()
    points = [
        (series, start, False, number) for (_, number, series), start in zip(found, starts, strict=True)
    ]
    return PointBatch.of(points, 0), rejected


def _refused(row: Row, reason: Reason, message: str) -> Rejected:
    where = f"row of table {row.table}"
    return Rejected(row.key, reason, message, Stage.READ, where)


def _number(value: object) -> int | float:
    """The number that a column holds.

    Raises:
      RefusedError: it holds none, or none that can be added.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number: int | float = value
    else:
        try:
            text = str(value)
            number = float(text) if not text.lstrip("+-").isdigit() else int(text)
        except ValueError:
            raise RefusedError(Reason.BAD_NUMBER, f"{value!r} is no number") from None
    if isinstance(number, int):
        return number if -(1 << 63) <= number < 1 << 63 else float(number)
    if not np.isfinite(number):
        raise RefusedError(Reason.NUMBER_OUT_OF_RANGE, f"{value!r} is NaN or infinite")
    return number


def rollup_rows(rollup: DeclaredRollup, buckets: Buckets) -> tuple[list[Row], list[Rejected]]:
    """The rows of the rollups in buckets whose series have the kept fields as tags."""
    assert rollup.target.event is not None
    name, unit = rollup.target.event
    tags = [dict(series.tags) for series in buckets.series]
    index = buckets.index.tolist()
    fields: dict[str, pa.Array] = {
        field: pa.array([tags[number][field] for number in index], pa.string()) for field in rollup.by
    }
    fields[name] = pa.array(times.from_ms(buckets.starts_ms, unit), pa.int64())
    for aggregator in AGGREGATORS:
        found = numbers(buckets, aggregator)
        integers, floats = found.bits.tolist(), found.bits.view(np.float64).tolist()
        kinds = (found.kinds == Kind.INTEGER).tolist()
        texts = [str(i) if whole else repr(f) for i, f, whole in zip(integers, floats, kinds, strict=True)]
        fields[aggregator] = pa.array(texts, pa.string())
    batch = RecordBatch(
        fields, buckets.starts_ms, quoted={n: np.zeros(len(index), np.bool_) for n in AGGREGATORS}
    )
    rows, refusals = layout_rows(rollup.target, batch)
    rejected = [batch.refuse(i, *why) for i, why in sorted(refusals.found.items())]
    return rows, rejected


def start_of(rollup: DeclaredRollup, row: Row) -> int:
    """The start in ms of the interval that a row of the rollup's table is of.

    Raises:
      ValueError: it is no row of this table.
    """
    assert rollup.target.event is not None
    name, unit = rollup.target.event
    (record,) = decode(rollup.target, row)
    time = record.get(name)
    if not isinstance(time, int):
        raise ValueError(f"row {row.key!r} of {row.table} has no time")
    return int(times.to_ms(np.array([time], np.int64), unit)[0])
