"""The columns of tables out of a declaration, and how their rows read as points (`[layout.NAME.points]`).

Format: docs/spec/bigtable-patterns.md §5.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.times import DAY_MS, span_of
from timebeam.schema.stores.declared.codec.decode import remembered_times
from timebeam.schema.stores.declared.language.key_parts import Times
from timebeam.schema.stores.declared.language.sections import ProblemError, Section
from timebeam.schema.stores.declared.model import (
    COLUMN,
    Column,
    Encoding,
    MapColumns,
    PointFields,
    SeriesColumn,
    TableLayout,
    TimeQualifier,
)
from timebeam.schema.stores.declared.parts import Field, Hash, Salt, inputs

_ENCODINGS = tuple(encoding.value for encoding in Encoding)
_LEVEL = re.compile(r"\{[a-z_]+\}")


class TableColumns(NamedTuple):
    """The columns of one table; `within` is the bucket that a reading's qualifier counts from."""

    fixed: tuple[Column, ...]
    map: MapColumns | None
    series: SeriesColumn | None


def columns_of(section: Section, times: Times) -> TableColumns:
    """The columns of a layout; notes the times among their fields."""
    encoding = section.choice("encoding", _ENCODINGS, "text")
    section.value("family")
    entries = section.value("fields", [])
    if not isinstance(entries, list):
        raise section.problem("fields", 'fields must be a list, as ["A", { name = "B", qualifier = "b" }]')
    fixed = tuple(_column(section, entry, number, encoding) for number, entry in enumerate(entries))
    map_columns = _map(section.section("map"), encoding) if "map" in section else None
    series = _series(section.section("series"), encoding, times) if "series" in section else None
    if not (fixed or map_columns or series):
        raise section.problem(None, "columns stores nothing: add fields, map or series")
    if map_columns and series:
        raise section.problem("map", "map and series in one family cannot be told apart: declare two tables")
    qualifiers: set[bytes] = set()
    for number, column in enumerate(fixed):
        if column.qualifier in qualifiers:
            raise section.problem(
                "fields", f"two columns have the qualifier {column.qualifier.decode()!r}", number
            )
        qualifiers.add(column.qualifier)
    return TableColumns(fixed, map_columns, series)


def _column(section: Section, entry: object, number: int, encoding: str) -> Column:
    if isinstance(entry, str):
        return Column(entry, entry.encode(), Encoding(encoding))
    if not isinstance(entry, dict):
        raise section.problem("fields", f"{entry!r} is neither a field's name nor {{ name = ... }}", number)
    inner = section.within(entry, "fields", number)
    name = inner.text("name")
    column = Column(
        name, inner.text("qualifier", name).encode(), Encoding(inner.choice("encoding", _ENCODINGS, encoding))
    )
    inner.must_be_read()
    return column


def _map(section: Section, encoding: str) -> MapColumns:
    template = section.text("qualifier", "{name}")
    literals = tuple(_LEVEL.split(template))
    if len(literals) not in (2, 3) or any("{" in piece or "}" in piece for piece in literals):
        raise section.problem(
            "qualifier", f"{template!r} must have one or two names, as {{category}}/{{name}}"
        )
    if len(literals) == 3 and not literals[1]:
        raise section.problem(
            "qualifier", f"{template!r} could not be split again: put a letter between the names"
        )
    columns = MapColumns(
        section.text("source"), literals, Encoding(section.choice("encoding", _ENCODINGS, encoding))
    )
    section.must_be_read()
    return columns


def _series(section: Section, encoding: str, times: Times) -> SeriesColumn:
    inner = section.section("qualifier")
    qualifier = inner.text("field") if "field" in inner else _time_qualifier(inner, times)
    inner.must_be_read()
    column = SeriesColumn(
        section.text("value"), qualifier, Encoding(section.choice("encoding", _ENCODINGS, encoding))
    )
    section.must_be_read()
    return column


def _time_qualifier(section: Section, times: Times) -> TimeQualifier:
    name = section.text("time")
    if name not in times.units:
        raise section.problem(
            "time", f"{name} is not a time of the key: the qualifier counts from its bucket"
        )
    form = section.choice("format", ("HHMM", "HHMMSS", "number", "be16", "be32"), "HHMM")
    try:
        step, within = span_of(section.text("step")), span_of(section.text("within"))
    except ValueError as error:
        raise section.problem("step", str(error)) from None
    times.within[name] = within
    smallest = {"HHMM": 60_000, "HHMMSS": 1000}.get(form, 1)
    if step.months or step.ms % smallest:
        raise section.problem("step", f"a step of {step} cannot be written as {form}")
    if form in ("HHMM", "HHMMSS") and within.ms > 4 * DAY_MS:
        raise section.problem("format", f"{form} has two digits for hours: use number for {within}")
    return TimeQualifier(step, form, section.integer("base", 0), section.integer("width", 0))


_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def point_fields(section: Section, layout: TableLayout) -> PointFields:
    """The metric, the values and the tags of a layout.

    Raises:
      ProblemError: its rows cannot be read as points like this.
    """
    if layout.event is None or remembered_times(layout, np.zeros(1, np.int64)) is None:
        raise section.problem(None, 'points need a time: add a time to the key, or event_time = "FIELD"')
    if section.text("time", layout.event[0]) != layout.event[0]:
        raise section.problem("time", f"the time of this layout is {layout.event[0]}: leave out time")
    values = _values(section, layout)
    metric = section.text("metric")
    literals = _PLACEHOLDER.split(metric)
    if len(literals) > 3 or any("{" in text or "}" in text for text in literals[::2]):
        raise section.problem(
            "metric", f"metric = {metric!r}: give one placeholder at most, as prefix.{{NAME}}"
        )
    placeholder = literals[1] if len(literals) == 3 else None
    naming = [key_part.name for key_part in layout.key if isinstance(key_part, Field)]
    if layout.series is not None and isinstance(layout.series.qualifier, str):
        naming.append(layout.series.qualifier)
    if placeholder not in (None, COLUMN, *naming):
        raise section.problem(
            "metric",
            f"{{{placeholder}}} is not a field of the key or the qualifier: {', '.join([COLUMN, *naming])}",
        )
    several = len(values) > 1 or (layout.map is not None and values == (layout.map.field,))
    if several and placeholder != COLUMN:
        raise section.problem(
            "metric",
            f"several columns of a row would be one metric: add {{{COLUMN}}}, as {metric}.{{{COLUMN}}}",
        )
    untold = [name for name in naming if name != placeholder]
    tags = tuple(section.texts("tags") if "tags" in section else untold)
    _check_tags(section, layout, tags, placeholder, naming)
    section.must_be_read()
    return PointFields(literals[0], placeholder, literals[2] if placeholder else "", values, tags)


def _values(section: Section, layout: TableLayout) -> tuple[str, ...]:
    """The fields of the values: of fixed columns, or of the map, or of the series of columns."""
    value = section.value("value")
    if value is None:
        raise section.problem(None, 'lacks value: add value = "FIELD", or a list of columns')
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(name, str) for name in values) or len(set(values)) < len(values):
        raise section.problem(
            "value", 'value must be a field, or a list of different ones, as ["BID", "ASK"]'
        )
    dynamic = [columns.field for columns in (layout.map, layout.series) if columns is not None]
    if len(values) == 1 and values[0] in dynamic:
        return tuple(values)
    fixed = [column.field for column in layout.columns]
    for name in values:
        if name not in fixed:
            raise section.problem(
                "value", f"{name} is not a column of this layout: {', '.join(fixed + dynamic)}"
            )
    return tuple(values)


def _check_tags(
    section: Section, layout: TableLayout, tags: Sequence[str], placeholder: str | None, naming: Sequence[str]
) -> None:
    """Tags that rows do not hold, and fields without which points of two series would be one series.

    Raises:
      ProblemError: there is such a field.
    """
    fixed = [column.field for column in layout.columns if layout.event and column.field != layout.event[0]]
    for name in tags:
        if name not in naming and name not in fixed:
            fields = ", ".join(dict.fromkeys([*naming, *fixed]))
            raise section.problem("tags", f"{name} is not a field that a row contains: {fields}")
    if len(set(tags)) < len(tags):
        raise section.problem("tags", "a field is given twice: tags are fields, each once")
    for name in naming:
        if name not in tags and name != placeholder:
            raise section.problem(
                "tags", f"{name} tells series apart: add it to tags, or to metric as {{{name}}}"
            )
    assert layout.event is not None
    identity = {*tags, *naming, layout.event[0]}
    for key_part in layout.key:
        if isinstance(key_part, (Salt, Hash)) and not inputs(key_part) <= identity:
            kind = "salt" if isinstance(key_part, Salt) else "hash"
            unknown = ", ".join(sorted(inputs(key_part) - identity))
            raise section.problem("tags", f"the {kind} in the key is of {unknown}: add it to tags")


def overlaps(layouts: Sequence[TableLayout]) -> Iterator[ProblemError]:
    """Pairs of layouts that may hold points of the same metric: a query reads a metric from one table."""
    readable = [layout for layout in layouts if layout.points is not None]
    for earlier, later in itertools.combinations(readable, 2):
        if _may_meet(earlier, later):
            yield ProblemError(
                ("layout", later.name, "points", "metric"),
                f"layout {earlier.name} may have points of the same metric: begin one of them with another "
                f'name, as metric = "{later.name}.{{{COLUMN}}}"',
            )


def _may_meet(first: TableLayout, second: TableLayout) -> bool:
    """Whether two layouts may have the same metric."""
    for layout, other in ((first, second), (second, first)):
        metrics = layout.metrics
        if metrics is not None:
            return any(other.may_have(metric) for metric in metrics)
    assert first.points is not None
    assert second.points is not None
    shorter, longer = sorted((first.points.metric, second.points.metric), key=len)
    short_end, long_end = sorted((first.points.suffix, second.points.suffix), key=len)
    return longer.startswith(shorter) and long_end.endswith(short_end)
