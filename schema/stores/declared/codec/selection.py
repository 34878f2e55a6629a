"""Selections of records by the values of fields and by time, and the ranges of keys that they read.

Format: docs/spec/bigtable-patterns.md §6.1.
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

from timebeam.schema.core.reading import UnknownNameError
from timebeam.schema.core.rows import Row
from timebeam.schema.stores.declared.codec import read_keys, time_parts
from timebeam.schema.stores.declared.codec.decode import Record, decode
from timebeam.schema.stores.declared.codec.time_parts import LAST_MS
from timebeam.schema.stores.declared.codec.write_keys import in_case
from timebeam.schema.stores.declared.model import UNIT_PER_MS, Encoding, TableLayout
from timebeam.schema.stores.declared.parts import Const, Field, Hash, Part, Salt, Time, follows, inputs

MOST_COMBINATIONS = 1000
"""Combinations of values that become ranges; fields that would make more are compared row by row."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadPlan:
    """The rows that can hold the answer to a read.

    Attributes:
      ranges: of row keys, ascending and disjoint.
      key_pattern: RE2 that every such key matches; None if the ranges say it all.
      served: the fields and the time that the ranges select by; empty if they are the whole table.
      refused: why values that are asked for can be in no row; such values are in no range.
    """

    ranges: Sequence[read_keys.Range]
    key_pattern: bytes | None
    served: frozenset[str]
    refused: Sequence[str] = ()


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
        values = {**values, **_instant(layout, interval)}
    fields, is_timed = _prefix(layout, values, interval is not None)
    key_ranges: list[read_keys.Range] = []
    refused: dict[str, None] = {}
    for combination in itertools.product(*(values[name] for name in fields)):
        fixed = dict(zip(fields, combination, strict=True))
        try:
            key_ranges += read_keys.ranges(layout, fixed, interval if is_timed else None)
        except ValueError as error:
            refused[str(error)] = None
    served = frozenset(fields)
    if is_timed and layout.time is not None:
        served |= {layout.time.name}
    pattern = _key_pattern(layout, values, served)
    return ReadPlan(read_keys.merged(key_ranges), pattern, served, tuple(refused))


def _instant(layout: TableLayout, interval: tuple[int, int]) -> dict[str, Sequence[str]]:
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
        if isinstance(key_part, Time) and key_part.name not in values:
            return fields, has_interval
        if isinstance(key_part, Const) or (isinstance(key_part, Salt) and not follows(key_part, values)):
            continue
        if not follows(key_part, values):
            break
        new_fields = sorted(inputs(key_part) - set(fields))
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
    bytes_by_part: dict[Part, bytes] = {
        key_part: piece
        for key_part in layout.key
        if not isinstance(key_part, (Const, Salt)) and follows(key_part, fixed)
        if (piece := read_keys.piece_of(layout, key_part, fixed)) is not None
    }
    return read_keys.pattern(layout, bytes_by_part) if bytes_by_part else None


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
        in_key = {name: texts for name, texts in self.where.items() if name in read_keys.names(layout)}
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
            if name not in layout.fields:  # hashed: the range of keys has selected it
                continue
            value = record.get(name)
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
        time_ms = int(time_parts.to_ms(np.array([time], np.int64), unit)[0])
        return (self.start_ms or 0) <= time_ms and (self.end_ms is None or time_ms <= self.end_ms)


def _hashed(layout: TableLayout) -> frozenset[str]:
    """The fields that are in the key as a hash alone."""
    names = {name for key_part in layout.key if isinstance(key_part, Hash) for name in inputs(key_part)}
    return frozenset(names.difference(layout.fields))


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
        if isinstance(key_part, Field) and key_part.name == name and key_part.case is not None:
            return _folded(key_part, text)
    return text


@functools.lru_cache(10_000)
def _folded(field: Field, text: str) -> str:
    folded: str = in_case(field, pa.array([text], pa.string()))[0].as_py()
    return folded
