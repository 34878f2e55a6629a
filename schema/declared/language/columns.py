"""The columns of tables out of a declaration (docs/spec/bigtable-patterns.md §5)."""

from __future__ import annotations

import re
from typing import NamedTuple

from timebeam.schema.common.spans import span_of
from timebeam.schema.declared.language.key_parts import Times
from timebeam.schema.declared.language.sections import Section
from timebeam.schema.declared.model import Column, Encoding, MapColumns, SeriesColumn, TimeQualifier

_ENCODINGS = tuple(encoding.value for encoding in Encoding)
_LEVEL = re.compile(r"\{[a-z_]+\}")


class Columns(NamedTuple):
    """The columns of one table; `within` is the bucket that a reading's qualifier counts from."""

    fixed: tuple[Column, ...]
    map: MapColumns | None
    series: SeriesColumn | None


def columns_of(section: Section, times: Times) -> Columns:
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
    return Columns(fixed, map_columns, series)


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
    if form in ("HHMM", "HHMMSS") and within.ms > 4 * 86_400_000:
        raise section.problem("format", f"{form} has two digits for hours: use number for {within}")
    return TimeQualifier(step, form, section.integer("base", 0), section.integer("width", 0))
