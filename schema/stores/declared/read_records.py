"""Rows of declared tables back to records, and which rows a selection of records reads.

Format: docs/spec/bigtable-patterns.md §6.1.

What comes back is what the table holds: a time that the key cuts to its bucket and no cell
remembers comes back as the start of the bucket; a hashed field does not come back.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import bucket_starts
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import UnknownNameError
from timebeam.schema.stores.declared import encode_values, keys
from timebeam.schema.stores.declared.columns import Column, Encoding, SeriesColumn, TimeQualifier
from timebeam.schema.stores.declared.declaration import CellTime, TableLayout
from timebeam.schema.stores.declared.encode_values import Value
from timebeam.schema.stores.declared.parts.key_part import KeyPart
from timebeam.schema.stores.declared.parts.time_part import (
    LAST_MS,
    UNIT_PER_MS,
    from_ms,
    last,
    one_from_ms,
    one_to_ms,
    to_ms,
)

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
                else encode_values.decode(cell.value, column.encoding)
            )
            base[column.field] = value
        elif layout.map is not None:
            layout.map.entry_names(cell.qualifier)
            entries[cell.qualifier.decode()] = encode_values.decode(cell.value, layout.map.encoding)
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
    time = encode_values.whole_number(encode_values.decode(cell.value, column.encoding))
    if not 0 <= time <= last(layout.event[1]):
        raise ValueError(f"{column.field} {time} is not a time from 1970 to the year 9999")
    return time


def _timed(layout: TableLayout, base: Record, key_time: int | None, timestamp_ms: int) -> Record:
    """A record with its event time, as exactly as the table has it."""
    if layout.event is None or layout.event[0] in base:
        return base
    exact = _exact(layout, key_time, timestamp_ms)
    time = key_time if exact is None else exact
    return base if time is None else {**base, layout.event[0]: time}


def _exact(layout: TableLayout, key_time: int | None, timestamp_ms: int) -> int | None:
    """The event time itself, from the key or the timestamp of a cell; None if neither has it."""
    assert layout.event is not None
    source = layout.time_source
    if source == "cell":
        return one_from_ms(timestamp_ms, layout.event[1])
    return key_time if source == "key" else None


def _reading(
    layout: TableLayout, series: SeriesColumn, base: Record, key_time: int | None, cell: Cell
) -> Record:
    value = encode_values.decode(cell.value, series.encoding)
    if not isinstance(series.qualifier, TimeQualifier):
        record = {**base, series.qualifier: cell.qualifier.decode(), series.field: value}
        return _timed(layout, record, key_time, cell.timestamp_ms)
    assert layout.event is not None
    assert key_time is not None
    assert layout.time is not None
    assert layout.time.bucket is not None
    steps = series.qualifier.steps_within(layout.time.bucket, cell.qualifier)
    exact_ms = _exact(layout, key_time, cell.timestamp_ms)
    if exact_ms is None:
        exact_ms = _after(layout, series.qualifier, key_time, steps)
    return {**base, layout.event[0]: exact_ms, series.field: value}


def _after(layout: TableLayout, form: TimeQualifier, key_time: int, steps: int) -> int:
    """The time a number of steps after the start of a bucket, in the unit of the time part."""
    time = layout.time
    assert time is not None
    assert time.bucket is not None
    start_ms = bucket_starts(to_ms(np.array([key_time], np.int64), time.unit), time.bucket, time.zone)
    times_ms = form.times_after(start_ms, np.array([steps], np.int64), time.zone)
    return int(from_ms(times_ms, time.unit)[0])


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
    if time.is_exact or form is None:
        return time.cut(times_ms)
    assert time.bucket is not None
    starts_ms = bucket_starts(times_ms, time.bucket, time.zone)
    steps = form.steps_between(times_ms, starts_ms, time.zone)
    return form.times_after(starts_ms, steps, time.zone)


MOST_COMBINATIONS = 1000
"""Combinations of values that become ranges; fields that would make more are compared row by row."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadPlan:
    """The rows that can hold the answer to a read.

    Attributes:
      ranges: of row keys, ascending and disjoint.
      key_pattern: RE2 that every such key matches; None if the ranges say it all.
      served: the fields and the time that the ranges select by; empty if they are the whole table.
      rejected: why values that are asked for can be in no row; such values are in no range.
    """

    ranges: Sequence[keys.Range]
    key_pattern: bytes | None
    served: frozenset[str]
    rejected: Sequence[str] = ()


def plan(
    layout: TableLayout,
    values: Mapping[str, Sequence[str]],
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> ReadPlan:
    """The rows that can hold records with these values, from `start_ms` on and before `end_ms`.

    Args:
      values: for each field at least one value as text.
      start_ms, end_ms: in ms since 1970; None for no limit.
    """
    interval = None
    if start_ms is not None or end_ms is not None:
        interval = (max(start_ms or 0, 0), LAST_MS + 1 if end_ms is None else end_ms)
        if interval[0] >= interval[1]:
            return ReadPlan((), None, frozenset())
        values = {**values, **_time(layout, interval)}
    fields, is_timed = _prefix(layout, values, interval is not None)
    key_ranges: list[keys.Range] = []
    rejected: dict[str, None] = {}
    for combination in itertools.product(*(values[name] for name in fields)):
        fixed = dict(zip(fields, combination, strict=True))
        try:
            key_ranges += keys.ranges(layout, fixed, interval if is_timed else None)
        except ValueError as error:
            rejected[str(error)] = None
    served = frozenset(fields)
    if is_timed and layout.time is not None:
        served |= {layout.time.name}
    pattern = _key_pattern(layout, values, served)
    return ReadPlan(keys.merged(key_ranges), pattern, served, tuple(rejected))


def _time(layout: TableLayout, interval: tuple[int, int]) -> dict[str, Sequence[str]]:
    """The event time, if the interval holds a single one: then it is a value like any other."""
    if layout.event is None:
        return {}
    name, unit = layout.event
    units, milliseconds = UNIT_PER_MS[unit]
    first, last = (-(-edge_ms * units // milliseconds) for edge_ms in interval)
    return {name: (str(first),)} if last - first == 1 else {}


def _prefix(
    layout: TableLayout, values: Mapping[str, Sequence[str]], has_interval: bool
) -> tuple[list[str], bool]:
    """(the fields that the front of the key is made of, whether an interval of time ends it)."""
    fields: list[str] = []
    combinations = 1
    for key_part in layout.key:
        if key_part is layout.time and key_part.stored_field not in values:
            return fields, has_interval
        if not key_part.follows(values):
            if key_part.choices:
                continue
            break
        new_fields = sorted(key_part.inputs - set(fields))
        for name in new_fields:
            combinations *= len(values[name])
        if combinations > MOST_COMBINATIONS:
            break
        fields += new_fields
    return fields, False


def _key_pattern(
    layout: TableLayout, values: Mapping[str, Sequence[str]], served: frozenset[str]
) -> bytes | None:
    """A pattern for the parts behind the front of the key that follow from single values."""
    fixed = {name: texts[0] for name, texts in values.items() if len(texts) == 1}
    if fixed.keys() <= served:
        return None
    bytes_by_part: dict[KeyPart, bytes] = {
        key_part: piece
        for key_part in layout.key
        if key_part.tells and key_part.follows(fixed)
        if (piece := keys.piece_of(layout, key_part, fixed)) is not None
    }
    return keys.pattern(layout, bytes_by_part) if bytes_by_part else None


@dataclasses.dataclass(frozen=True, slots=True)
class RecordSelection:
    """The records that a query reads.

    Attributes:
      where: for each field the values it may have, as text.
      start_ms, end_ms: first and last time, in ms, both inclusive; None for no limit.
    """

    where: Mapping[str, Sequence[str]]
    start_ms: int | None = None
    end_ms: int | None = None

    def plan(self, layout: TableLayout) -> ReadPlan:
        """The rows that can hold selected records.

        Raises:
          UnknownNameError: a record of this table has no such field.
          ValueError: a field, or the time, cannot be selected by.
        """
        hashed = _hashed(layout)
        for name in self.where:
            self._check_field(layout, name, sorted(hashed.union(layout.fields)))
        if layout.event is None and (self.start_ms, self.end_ms) != (None, None):
            raise ValueError(f"table {layout.table} has no time: leave out --start and --end")
        in_key = {name: texts for name, texts in self.where.items() if name in keys.names(layout)}
        end_ms = None if self.end_ms is None else self.end_ms + 1
        table_plan = plan(layout, in_key, self.start_ms, end_ms)
        for name in self.where:
            if name in hashed and name not in table_plan.served:
                raise ValueError(
                    f"{name} is only hashed in the keys of table {layout.table}: add what precedes it"
                )
        return table_plan

    def _check_field(self, layout: TableLayout, name: str, names: Sequence[str]) -> None:
        """Raises an error if records cannot be selected by a field; see `plan`."""
        if name not in names:
            message = f"records of table {layout.table} have no field {name!r}: {', '.join(names)}"
            raise UnknownNameError(message, name, lambda _: names)
        if layout.event is not None and name == layout.event[0]:
            raise ValueError(f"{name} is the time of table {layout.table}: give --start and --end")
        if layout.map is not None and name == layout.map.field:
            raise ValueError(f"{name} of table {layout.table} is a map, with many values")

    def records(self, layout: TableLayout, row: Row) -> Iterator[Record]:
        """The selected records of a row.

        Raises:
          ValueError: the key or a cell is none of this layout.
        """
        for record in decode(layout, row):
            if self._takes(layout, record):
                yield record

    def _takes(self, layout: TableLayout, record: Record) -> bool:
        for name, texts in self.where.items():
            value = record.get(name)
            if value is None and name not in layout.fields:  # hashed: the range of keys has selected it
                continue
            if value is None or folded_text(layout, name, str(value)) not in (
                folded_text(layout, name, text) for text in texts
            ):
                return False
        if self.start_ms is None and self.end_ms is None:
            return True
        assert layout.event is not None
        name, unit = layout.event
        time = record.get(name)
        if not isinstance(time, int):
            return False
        time_ms = one_to_ms(time, unit)
        return (self.start_ms or 0) <= time_ms and (self.end_ms is None or time_ms <= self.end_ms)


def _hashed(layout: TableLayout) -> frozenset[str]:
    """The fields that are in the key as a hash alone."""
    return frozenset(name for key_part in layout.key for name in key_part.hashed).difference(layout.fields)


def json_text(layout: TableLayout, record: Record) -> str:
    """A record as a JSON object; text stays text, so that 600.60 keeps its zero."""
    json_fields = {column.field for column in layout.columns if column.encoding is Encoding.JSON}
    if layout.series is not None and layout.series.encoding is Encoding.JSON:
        json_fields.add(layout.series.field)
    members: dict[str, Any] = {}
    for name in layout.fields:
        value: Any = record.get(name)
        if isinstance(value, dict) and layout.map is not None and layout.map.encoding is Encoding.JSON:
            value = {entry: _raw(text) for entry, text in value.items()}
        elif name in json_fields and value is not None:
            value = _raw(value)
        if value is not None:
            members[name] = value
    return msgspec.json.encode(members).decode()


def _raw(text: Any) -> Any:
    """A JSON text as it is; as a string if it is not one."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return msgspec.Raw(str(text).encode())


def folded_text(layout: TableLayout, name: str, text: str) -> str:
    """A value in the case in which the key holds it."""
    for key_part in layout.key:
        if key_part.stored_field == name and not key_part.is_exact:
            return _folded(key_part, text)
    return text


@functools.lru_cache(10_000)
def _folded(key_part: KeyPart, text: str) -> str:
    folded: str = key_part.folded(pa.array([text], pa.string()))[0].as_py()
    return folded
