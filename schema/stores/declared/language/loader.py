"""Declarations of tables, from TOML to the records of `timebeam.schema.stores.declared.model`.

Format: docs/spec/bigtable-patterns.md §5.

Every section and option is known by name; what is not is an error. Messages name the file and the dotted
path of the option.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from timebeam.schema.bits.times import DAY_MS, UTC, WEEKDAYS, span_of, zone_of
from timebeam.schema.stores.declared.codec import days
from timebeam.schema.stores.declared.codec.declared_rollups import kept_fields
from timebeam.schema.stores.declared.language.apart import Ambiguity, ambiguities
from timebeam.schema.stores.declared.language.checks import check_declaration, check_layout
from timebeam.schema.stores.declared.language.column_sections import (
    TableColumns,
    columns_of,
    overlaps,
    point_fields,
)
from timebeam.schema.stores.declared.language.key_parts import Times, parts_of
from timebeam.schema.stores.declared.language.sections import ProblemError, Section
from timebeam.schema.stores.declared.model import (
    CellTime,
    DayTables,
    Declaration,
    DeclaredRollup,
    Estimate,
    Read,
    TableLayout,
)
from timebeam.schema.stores.declared.parts import Part, Time

_USUAL_TIME = "TS"
"""The event time of a layout that has a column of this name, and no time in its key."""
_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,49}")
_FAMILY = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


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
    targets: list[tuple[TableLayout, Section]] = []
    for section in _sections(document, problems):
        try:
            if "source" in section:
                day_tables.append(_day_tables(section))
            else:
                layout = _layout(section)
                is_rollup = "rollup" in section
                if is_rollup:
                    targets.append((layout, section.section("rollup")))
                else:
                    layouts.append(layout)
                warnings += check_layout(layout, section, is_rollup)
                ambiguous += ambiguities(layout, is_rollup)
        except ProblemError as problem:
            problems.append(problem)
    rolled: list[DeclaredRollup] = []
    for layout, section in targets:
        try:
            rolled.append(_rollup(layout, section, layouts))
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


def _sections(document: dict[str, Any], problems: list[ProblemError]) -> Iterator[Section]:
    """The sections [layout.NAME]."""
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
            yield Section(content, ("layout", name))
        else:
            problems.append(ProblemError(("layout", name), "must be a section"))


def _layout(section: Section) -> TableLayout:
    separator = section.text("separator", "#")
    if len(separator.encode()) > 1:
        raise section.problem(
            "separator", f"{separator!r} is longer than one byte: give one ASCII letter, or none"
        )
    key, times = parts_of(section)
    columns = columns_of(section.section("columns"), times)
    event = _event(section, times, columns)
    _check_within(section, key, times)
    cell_time = section.choice(
        "cell_time", ("event", "arrival", "revision", "zero", "server"), "event" if event else "arrival"
    )
    if cell_time == "server":
        raise section.problem(
            "cell_time",
            'cell_time = "server" makes a write that is retried a second version, and the client does '
            'not retry such writes: use "event" or "arrival"',
        )
    if cell_time in ("event", "revision") and event is None:
        raise section.problem(
            "cell_time", f'cell_time = "{cell_time}" needs a time: add event_time = "FIELD"'
        )
    revision = section.optional_text("revision")
    if (revision is not None) != (cell_time == "revision"):
        raise section.problem("revision", 'cell_time = "revision" and revision = "FIELD" go together')
    gc = section.section("gc")
    table = _named(section, "table", _TABLE)
    layout = TableLayout(
        name=str(section.path[-1]),
        table=table,
        separator=separator.encode(),
        key=key,
        when=section.optional_text("when"),
        event=event,
        cell_time=CellTime(cell_time),
        revision=revision,
        max_versions=gc.integer("max_versions", 1, low=1),
        family=_named(section.section("columns"), "family", _FAMILY),
        columns=columns.fixed,
        map=columns.map,
        series=columns.series,
        reads=tuple(_reads(section)),
        identity=tuple(section.texts("identity")),
        allow_overwrite=section.boolean("allow_overwrite", False),
        estimate=_estimate(section.section("estimate")),
        example=tuple((name, str(value)) for name, value in section.table("example").items()),
    )
    gc.must_be_read()
    section.value("rollup")
    if "points" in section:
        layout = dataclasses.replace(layout, points=point_fields(section.section("points"), layout))
    section.must_be_read()
    return layout


def _rollup(target: TableLayout, section: Section, layouts: Sequence[TableLayout]) -> DeclaredRollup:
    source = section.text("source")
    source_layout = next((layout for layout in layouts if layout.name == source), None)
    time = source_layout.time if source_layout else None
    try:
        interval = span_of(section.text("interval"))
        zone = zone_of(section.text("tz", time.zone if time else UTC))
    except ValueError as error:
        raise section.problem("interval", str(error)) from None
    if interval.is_weeks:
        interval = interval.beginning_on(section.choice("week_begins", WEEKDAYS, WEEKDAYS[0]))
    elif "week_begins" in section:
        raise section.problem("week_begins", f"week_begins is for weeks, not for an interval of {interval}")
    by = (
        tuple(section.texts("by")) if "by" in section or not source_layout else kept_fields(source_layout.key)
    )
    rollup = DeclaredRollup(target, source, section.text("value"), interval, zone, by)
    section.must_be_read()
    return rollup


def _event(section: Section, times: Times, columns: TableColumns) -> tuple[str, str] | None:
    """(field, unit) of the event time: of the key's time, of event_time, or of the column TS."""
    if len(times.units) > 1:
        raise section.problem("key", f"one layout has one time, not {' and '.join(sorted(times.units))}")
    named = section.optional_text("event_time")
    for name, unit in times.units.items():
        if named not in (None, name):
            raise section.problem("event_time", f"the time of the key is {name}: leave out event_time")
        return name, unit
    if named is None and any(column.field == _USUAL_TIME for column in columns.fixed):
        named = _USUAL_TIME
    return (named, "ms") if named else None


def _check_within(section: Section, key: Sequence[Part], times: Times) -> None:
    """A reading's qualifier counts from the start of the bucket in the key."""
    time_part = next((time_part for time_part in key if isinstance(time_part, Time)), None)
    for within in times.within.values():
        if time_part is None or time_part.bucket != within:
            bucket = time_part.bucket if time_part else None
            raise section.section("columns").problem(
                "series", f'within = "{within}" must be the bucket of the key\'s time, which is {bucket}'
            )


def _named(section: Section, option: str, allowed: re.Pattern[str]) -> str:
    """A name that Bigtable takes."""
    name = section.text(option)
    if not allowed.fullmatch(name):
        raise section.problem(option, f"{name!r} is not a name that Bigtable accepts ({allowed.pattern})")
    return name


def _reads(section: Section) -> Iterator[Read]:
    for read in section.sections("read"):
        declared_read = Read(
            read.text("name"),
            tuple(read.texts("equals")),
            read.optional_text("range"),
            read.boolean("scan", False),
        )
        if declared_read.scan == bool(declared_read.equals or declared_read.range):
            raise read.problem(
                None, f"read {declared_read.name}: give equals and range, or scan = true for the whole table"
            )
        read.must_be_read()
        yield declared_read


def _estimate(section: Section) -> Estimate:
    interval = section.optional_text("interval")
    try:
        interval_ms = span_of(interval).ms if interval is not None else None
    except ValueError as error:
        raise section.problem("interval", str(error)) from None
    usual = Estimate()
    estimate = Estimate(
        interval_ms,
        section.integer("field_bytes", usual.field_bytes, low=1),
        section.integer("value_bytes", usual.value_bytes, low=1),
        section.integer("entries", usual.entries, low=1),
    )
    section.must_be_read()
    return estimate


def _day_tables(section: Section) -> DayTables:
    table = section.text("table")
    try:
        days.check_name(table)
    except ValueError as error:
        raise section.problem("table", str(error)) from None
    name = days.name_of(table, days.EXAMPLE)
    if not _TABLE.fullmatch(name):
        raise section.problem("table", f"{name!r} is not a name that Bigtable accepts ({_TABLE.pattern})")
    section.choice("job", ("copy_bucket",), "copy_bucket")
    expire = section.optional_text("expire")
    try:
        lifetime = span_of(expire) if expire is not None else None
    except ValueError as error:
        raise section.problem("expire", str(error)) from None
    if lifetime is not None and not lifetime.is_local:
        raise section.problem("expire", f"expire = {expire!r} must be whole days, as 400d")
    expire_days = lifetime.ms // DAY_MS if lifetime is not None else None
    tables = DayTables(str(section.path[-1]), table, section.text("source"), expire_days)
    section.must_be_read()
    return tables
