"""Which ranges of keys a read needs, by the fields and the times that it asks for.

Format: docs/spec/bigtable-patterns.md §6.1.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from timebeam.schema.declared.codec import keys
from timebeam.schema.declared.codec.patterns import LAST_MS
from timebeam.schema.declared.model import UNIT_PER_MS, Const, Part, Salt, TableLayout, Time, follows, inputs

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

    ranges: Sequence[keys.Range]
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
    key_ranges: list[keys.Range] = []
    refused: dict[str, None] = {}
    for combination in itertools.product(*(values[name] for name in fields)):
        fixed = dict(zip(fields, combination, strict=True))
        try:
            key_ranges += keys.ranges(layout, fixed, *(interval if is_timed and interval else (None, None)))
        except ValueError as error:
            refused[str(error)] = None
    served = frozenset(fields)
    if is_timed and layout.time is not None:
        served |= {layout.time.name}
    pattern = _key_pattern(layout, values, served)
    return ReadPlan(keys.merged(key_ranges), pattern, served, tuple(refused))


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
        if (piece := keys.piece_of(layout, key_part, fixed)) is not None
    }
    return keys.pattern(layout, bytes_by_part) if bytes_by_part else None
