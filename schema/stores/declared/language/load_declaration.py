"""Declarations of tables, from TOML to the records of `timebeam.schema.stores.declared.declaration`.

Format: docs/spec/bigtable-patterns.md §5.

Every section and option is known by name; what is not is an error. Messages name the file and the dotted
path of the option.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from timebeam.schema.bits.times import DAY_MS, UTC, WEEKDAYS, span_of, zone_of
from timebeam.schema.stores.declared import filled_tables
from timebeam.schema.stores.declared.columns import ColumnOptions, TableColumns, columns_of
from timebeam.schema.stores.declared.declaration import (
    COLUMN,
    CellTime,
    DayTables,
    Declaration,
    DeclaredRollup,
    Estimate,
    PointFields,
    Read,
    TableLayout,
)
from timebeam.schema.stores.declared.keys import parts_of
from timebeam.schema.stores.declared.language.ambiguities import Ambiguity, ambiguities
from timebeam.schema.stores.declared.language.check_declaration import (
    check_declaration,
    check_layout,
    overlaps,
)
from timebeam.schema.stores.declared.parts.key_part import KeyFields
from timebeam.schema.stores.declared.read_records import remembered_times
from timebeam.schema.stores.declared.read_section import Count, Location, Options, ProblemError, read

_USUAL_TIME = "TS"
"""The event time of a layout that has a column of this name, and no time in its key."""
_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,49}")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_FAMILY = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class _GcOptions(Options, frozen=True):
    max_versions: Count = 1


class _RollupOptions(Options, frozen=True):
    source: str
    value: str
    interval: str
    tz: str | None = None
    week_begins: str | None = None
    by: tuple[str, ...] | None = None


class _PointOptions(Options, frozen=True):
    metric: str
    value: Any = None
    time: str | None = None
    tags: tuple[str, ...] | None = None


class _LayoutOptions(Options, frozen=True):
    table: str
    columns: ColumnOptions
    key: tuple[dict[str, Any], ...] = ()
    separator: str = "#"
    when: str | None = None
    event_time: str | None = None
    cell_time: Literal["event", "arrival", "revision", "zero", "server"] | None = None
    revision: str | None = None
    gc: _GcOptions = _GcOptions()
    read: tuple[Read, ...] = ()
    identity: tuple[str, ...] = ()
    allow_overwrite: bool = False
    estimate: Estimate = Estimate()
    example: dict[str, Any] = msgspec.field(default_factory=dict)
    rollup: _RollupOptions | None = None
    points: _PointOptions | None = None


class _DayOptions(Options, frozen=True):
    table: str
    source: str
    job: Literal["copy_bucket"] = "copy_bucket"
    expire: str | None = None


class DeclarationError(ValueError):
    """A declaration cannot be taken; the text has a line for each thing that is wrong with it."""


def load(text: str, file_name: str, *, reading: bool = False) -> Declaration:
    """The tables that a TOML document declares; warnings are in the declaration.

    Args:
      reading: nothing is written, so that what a layout does not tell apart is a warning, not an error:
        tables that exist stay readable.

    Raises:
      DeclarationError: "FILE: PATH: what is wrong: what to do", for each layout that is wrong; "FILE line N"
        where the text is not TOML.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        where = f"line {line[1]}" if line else f"line {text.count(chr(10)) + 1}"
        raise DeclarationError(f"{file_name} {where}: not TOML: {error}") from None
    problems: list[ProblemError] = []
    warnings: list[ProblemError] = []
    ambiguous: list[Ambiguity] = []
    layouts: list[TableLayout] = []
    day_tables: list[DayTables] = []
    targets: list[tuple[TableLayout, _RollupOptions]] = []
    for name, content in _sections(document, problems):
        place = Location(("layout", name))
        try:
            if "source" in content:
                day_tables.append(_day_tables(name, read(_DayOptions, content, place), place))
            else:
                options = read(_LayoutOptions, content, place)
                layout = _layout(name, options, place)
                if options.rollup is not None:
                    targets.append((layout, options.rollup))
                else:
                    layouts.append(layout)
                warnings += check_layout(layout, place, options.rollup is not None)
                ambiguous += ambiguities(layout, options.rollup is not None)
        except ProblemError as problem:
            problems.append(problem)
    rolled: list[DeclaredRollup] = []
    for layout, rollup in targets:
        try:
            rolled.append(_rollup(layout, rollup, Location(("layout", layout.name, "rollup")), layouts))
        except ProblemError as problem:
            problems.append(problem)
    problems += check_declaration(layouts, day_tables, rolled)
    problems += overlaps([*layouts, *(layout for layout, _ in targets)])
    if reading:
        warnings += (
            ProblemError(each.path, f"{each.text}; rows are read as they are, and none are written")
            for each in ambiguous
        )
    else:
        problems += (ProblemError(each.path, each.text) for each in ambiguous)
    if problems:
        raise DeclarationError("\n".join(f"{file_name}: {problem}" for problem in problems))
    texts = [f"{file_name}: {warning}" for warning in warnings]
    return Declaration(file_name, tuple(layouts), tuple(day_tables), texts, tuple(rolled))


def _sections(document: dict[str, Any], problems: list[ProblemError]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, content) of the sections [layout.NAME]."""
    for name in document:
        if name != "layout":
            text = f"unknown section {name!r}: tables are declared in sections [layout.NAME]"
            problems.append(ProblemError((name,), text))
    sections = document.get("layout")
    if not isinstance(sections, dict) or not sections:
        problems.append(ProblemError(("layout",), "declares no tables: add a section [layout.NAME]"))
        return
    for name, content in sections.items():
        if isinstance(content, dict):
            yield name, content
        else:
            problems.append(ProblemError(("layout", name), "must be a section"))


def _layout(name: str, options: _LayoutOptions, place: Location) -> TableLayout:
    separator = options.separator
    if len(separator.encode()) > 1:
        raise place.problem(
            "separator", f"{separator!r} is longer than one byte: give one ASCII letter, or none"
        )
    key, fields = parts_of(options.key, place)
    columns = columns_of(options.columns, place.within("columns"), fields)
    event = _event(options, place, fields, columns)
    layout = TableLayout(
        name=name,
        table=_named(place, "table", options.table, _TABLE),
        separator=separator.encode(),
        key=key,
        when=options.when,
        event=event,
        cell_time=_cell_time(options, place, event is not None),
        revision=options.revision,
        max_versions=options.gc.max_versions,
        family=_named(place.within("columns"), "family", options.columns.family, _FAMILY),
        columns=columns.fixed,
        map=columns.map,
        series=columns.series,
        reads=options.read,
        identity=tuple(options.identity),
        allow_overwrite=options.allow_overwrite,
        estimate=options.estimate,
        example=tuple((name, str(value)) for name, value in options.example.items()),
    )
    _check_within(layout, place, fields)
    for number, each in enumerate(options.read):
        if each.scan == bool(each.equals or each.range):
            raise place.problem(
                "read", f"read {each.name}: give equals and range, or scan = true for the whole table", number
            )
    try:
        layout.estimate.interval_ms  # noqa: B018  # its text is read here
    except ValueError as error:
        raise place.within("estimate").problem("interval", str(error)) from None
    if options.points is not None:
        points = _point_fields(options.points, place.within("points"), layout)
        layout = dataclasses.replace(layout, points=points)
    return layout


def _cell_time(options: _LayoutOptions, place: Location, has_event: bool) -> CellTime:
    """Where timestamps come from, checked against the time and the revision of the layout."""
    cell_time = options.cell_time or ("event" if has_event else "arrival")
    if cell_time == "server":
        raise place.problem(
            "cell_time",
            'cell_time = "server" makes a write that is retried a second version, and the client does '
            'not retry such writes: use "event" or "arrival"',
        )
    if cell_time in ("event", "revision") and not has_event:
        raise place.problem("cell_time", f'cell_time = "{cell_time}" needs a time: add event_time = "FIELD"')
    if (options.revision is not None) != (cell_time == "revision"):
        raise place.problem("revision", 'cell_time = "revision" and revision = "FIELD" go together')
    return CellTime(cell_time)


def _rollup(
    target: TableLayout, options: _RollupOptions, place: Location, layouts: Sequence[TableLayout]
) -> DeclaredRollup:
    source = next((layout for layout in layouts if layout.name == options.source), None)
    time = source.time if source else None
    try:
        interval = span_of(options.interval)
        zone = zone_of(options.tz if options.tz is not None else time.zone if time else UTC)
    except ValueError as error:
        raise place.problem("interval", str(error)) from None
    week_begins = options.week_begins
    if interval.is_weeks:
        week_begins = WEEKDAYS[0] if week_begins is None else week_begins
        if week_begins not in WEEKDAYS:
            raise place.problem(
                "week_begins",
                f"week_begins = {week_begins!r} is unknown: choose one of {', '.join(WEEKDAYS)}",
            )
        interval = interval.beginning_on(week_begins)
    elif week_begins is not None:
        raise place.problem("week_begins", f"week_begins is for weeks, not for an interval of {interval}")
    by = options.by if options.by is not None else source.key_texts if source else ()
    return DeclaredRollup(target, options.source, options.value, interval, zone, tuple(by))


def _event(
    options: _LayoutOptions, place: Location, fields: KeyFields, columns: TableColumns
) -> tuple[str, str] | None:
    """(field, unit) of the event time: of the key's time, of event_time, or of the column TS."""
    if len(fields.units) > 1:
        raise place.problem("key", f"one layout has one time, not {' and '.join(sorted(fields.units))}")
    named = options.event_time
    for name, unit in fields.units.items():
        if named not in (None, name):
            raise place.problem("event_time", f"the time of the key is {name}: leave out event_time")
        return name, unit
    if named is None and any(column.field == _USUAL_TIME for column in columns.fixed):
        named = _USUAL_TIME
    return (named, "ms") if named else None


def _check_within(layout: TableLayout, place: Location, fields: KeyFields) -> None:
    """A reading's qualifier counts from the start of the bucket in the key."""
    for within in fields.within.values():
        bucket = layout.time.bucket if layout.time else None
        if bucket != within:
            raise place.within("columns").problem(
                "series", f'within = "{within}" must be the bucket of the key\'s time, which is {bucket}'
            )


def _named(place: Location, option: str, name: str, allowed: re.Pattern[str]) -> str:
    """A name that Bigtable takes."""
    if not allowed.fullmatch(name):
        raise place.problem(option, f"{name!r} is not a name that Bigtable accepts ({allowed.pattern})")
    return name


def _day_tables(name: str, options: _DayOptions, place: Location) -> DayTables:
    try:
        filled_tables.check_name(options.table)
    except ValueError as error:
        raise place.problem("table", str(error)) from None
    _named(place, "table", filled_tables.name_of(options.table, filled_tables.EXAMPLE), _TABLE)
    expire = options.expire
    try:
        lifetime = span_of(expire) if expire is not None else None
    except ValueError as error:
        raise place.problem("expire", str(error)) from None
    if lifetime is not None and not lifetime.is_local:
        raise place.problem("expire", f"expire = {expire!r} must be whole days, as 400d")
    expire_days = lifetime.ms // DAY_MS if lifetime is not None else None
    return DayTables(name, options.table, options.source, expire_days)


def _point_fields(options: _PointOptions, place: Location, layout: TableLayout) -> PointFields:
    """The metric, the values and the tags of a layout.

    Raises:
      ProblemError: its rows cannot be read as points like this.
    """
    if layout.event is None or remembered_times(layout, np.zeros(1, np.int64)) is None:
        raise place.problem(None, 'points need a time: add a time to the key, or event_time = "FIELD"')
    if options.time not in (None, layout.event[0]):
        raise place.problem("time", f"the time of this layout is {layout.event[0]}: leave out time")
    values = _values(options, place, layout)
    metric = options.metric
    literals = _PLACEHOLDER.split(metric)
    if len(literals) > 3 or any("{" in text or "}" in text for text in literals[::2]):
        raise place.problem(
            "metric", f"metric = {metric!r}: give one placeholder at most, as prefix.{{NAME}}"
        )
    placeholder = literals[1] if len(literals) == 3 else None
    naming = [*layout.key_texts]
    if layout.series is not None and isinstance(layout.series.qualifier, str):
        naming.append(layout.series.qualifier)
    if placeholder not in (None, COLUMN, *naming):
        raise place.problem(
            "metric",
            f"{{{placeholder}}} is not a field of the key or the qualifier: {', '.join([COLUMN, *naming])}",
        )
    several = len(values) > 1 or (layout.map is not None and values == (layout.map.field,))
    if several and placeholder != COLUMN:
        raise place.problem(
            "metric",
            f"several columns of a row would be one metric: add {{{COLUMN}}}, as {metric}.{{{COLUMN}}}",
        )
    untold = [name for name in naming if name != placeholder]
    tags = tuple(untold if options.tags is None else options.tags)
    _check_tags(place, layout, tags, placeholder, naming)
    return PointFields(literals[0], placeholder, literals[2] if placeholder else "", values, tags)


def _values(options: _PointOptions, place: Location, layout: TableLayout) -> tuple[str, ...]:
    """The fields of the values: of fixed columns, or of the map, or of the series of columns."""
    if options.value is None:
        raise place.problem(None, 'lacks value: add value = "FIELD", or a list of columns')
    values = options.value if isinstance(options.value, list) else [options.value]
    if not values or not all(isinstance(name, str) for name in values) or len(set(values)) < len(values):
        raise place.problem("value", 'value must be a field, or a list of different ones, as ["BID", "ASK"]')
    dynamic = [columns.field for columns in (layout.map, layout.series) if columns is not None]
    if len(values) == 1 and values[0] in dynamic:
        return tuple(values)
    fixed = [column.field for column in layout.columns]
    for name in values:
        if name not in fixed:
            raise place.problem(
                "value", f"{name} is not a column of this layout: {', '.join(fixed + dynamic)}"
            )
    return tuple(values)


def _check_tags(
    place: Location, layout: TableLayout, tags: Sequence[str], placeholder: str | None, naming: Sequence[str]
) -> None:
    """Tags that rows do not hold, and fields without which points of two series would be one series.

    Raises:
      ProblemError: there is such a field.
    """
    fixed = [column.field for column in layout.columns if layout.event and column.field != layout.event[0]]
    for name in tags:
        if name not in naming and name not in fixed:
            fields = ", ".join(dict.fromkeys([*naming, *fixed]))
            raise place.problem("tags", f"{name} is not a field that a row contains: {fields}")
    if len(set(tags)) < len(tags):
        raise place.problem("tags", "a field is given twice: tags are fields, each once")
    for name in naming:
        if name not in tags and name != placeholder:
            raise place.problem(
                "tags", f"{name} tells series apart: add it to tags, or to metric as {{{name}}}"
            )
    assert layout.event is not None
    identity = {*tags, *naming, layout.event[0]}
    for key_part in layout.key:
        if key_part.sources and not key_part.inputs <= identity:
            unknown = ", ".join(sorted(key_part.inputs - identity))
            raise place.problem("tags", f"the {key_part.kind} in the key is of {unknown}: add it to tags")
