"""Declarations of tables out of TOML (section 5): the file to the records of `schema.declared.model`.

Every section and option is known by name; what is not is an error. Messages name the file and line.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from schema.declared import days
from schema.declared.checks import check_declaration, check_layout
from schema.declared.columns import Columns, columns_of
from schema.declared.model import (
    CellTime,
    DayTables,
    Declaration,
    DeclaredRollup,
    Estimate,
    Part,
    Read,
    TableLayout,
    Time,
)
from schema.declared.parts import Times, parts_of
from schema.declared.rollups import kept_fields
from schema.declared.sections import ProblemError, Section
from schema.declared.spans import DAY_MS, UTC, span_of, zone_of
from schema.declared.toml_lines import TomlLines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_USUAL_TIME = "TS"
"""The event time of a layout that has a column of this name, and no time in its key."""
_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,49}")
_FAMILY = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class DeclarationError(ValueError):
    """A declaration cannot be taken; the text has a line for each thing that is wrong with it."""


def load(text: str, file_name: str) -> Declaration:
    """The tables that a TOML document declares; warnings are in the declaration.

    Raises:
      DeclarationError: "FILE line N: what is wrong: what to do", for each layout that is wrong.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        where = f"line {line[1]}" if line else f"line {text.count(chr(10)) + 1}"
        raise DeclarationError(f"{file_name} {where}: not TOML: {error}") from None
    lines = TomlLines(text)
    problems: list[ProblemError] = []
    warnings: list[ProblemError] = []
    layouts: list[TableLayout] = []
    day_tables: list[DayTables] = []
    targets: list[tuple[TableLayout, Section]] = []
    for section in _sections(document, lines, problems):
        try:
            if "source" in section:
                day_tables.append(_day_tables(section))
            else:
                layout = _layout(section)
                if "rollup" in section:  # of which a second run overwrites the first
                    layout = dataclasses.replace(layout, allow_overwrite=True)
                    targets.append((layout, section.section("rollup")))
                else:
                    layouts.append(layout)
                warnings += check_layout(layout, section)
        except ProblemError as problem:
            problems.append(problem)
    rolled: list[DeclaredRollup] = []
    for layout, section in targets:
        try:
            rolled.append(_rollup(layout, section, layouts))
        except ProblemError as problem:
            problems.append(problem)
    problems += check_declaration(layouts, day_tables, rolled)
    if problems:
        told = [f"{file_name} line {problem.line}: {problem.text}" for problem in _by_line(problems)]
        raise DeclarationError("\n".join(told))
    told = [f"{file_name} line {warning.line}: {warning.text}" for warning in _by_line(warnings)]
    return Declaration(file_name, tuple(layouts), tuple(day_tables), told, tuple(rolled))


def _by_line(problems: Sequence[ProblemError]) -> list[ProblemError]:
    return sorted(problems, key=lambda problem: problem.line)


def _sections(document: dict[str, Any], lines: TomlLines, problems: list[ProblemError]) -> Iterator[Section]:
    """The sections [layout.NAME]."""
    for name in document:
        if name != "layout":
            text = f"unknown section {name!r}: tables are declared in sections [layout.NAME]"
            problems.append(ProblemError(lines.line((name,)), text))
    found = document.get("layout")
    if not isinstance(found, dict) or not found:
        problems.append(
            ProblemError(lines.line(("layout",)), "declares no tables: add a section [layout.NAME]")
        )
        return
    for name, content in found.items():
        if isinstance(content, dict):
            yield Section(content, ("layout", name), lines)
        else:
            problems.append(ProblemError(lines.line(("layout", name)), f"layout.{name} must be a section"))


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
            'cell_time = "server" makes a write that is tried again a second version, and the client does '
            'not try such writes again: use "event" or "arrival"',
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
        line=section.line(),
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
    section.must_be_read()
    return layout


def _rollup(target: TableLayout, section: Section, layouts: Sequence[TableLayout]) -> DeclaredRollup:
    source = section.text("source")
    found = next((layout for layout in layouts if layout.name == source), None)
    time = found.time if found else None
    try:
        interval = span_of(section.text("interval"))
        zone = zone_of(section.text("tz", time.zone if time else UTC))
    except ValueError as error:
        raise section.problem("interval", str(error)) from None
    by = tuple(section.texts("by")) or (kept_fields(found.key) if found else ())
    rollup = DeclaredRollup(target, section.line(), source, section.text("value"), interval, zone, by)
    section.must_be_read()
    return rollup


def _event(section: Section, times: Times, columns: Columns) -> tuple[str, str] | None:
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
    part = next((part for part in key if isinstance(part, Time)), None)
    for within in times.within.values():
        if part is None or part.bucket != within:
            bucket = part.bucket if part else None
            raise section.section("columns").problem(
                "series", f'within = "{within}" must be the bucket of the key\'s time, which is {bucket}'
            )


def _named(section: Section, option: str, allowed: re.Pattern[str]) -> str:
    """A name that Bigtable takes."""
    name = section.text(option)
    if not allowed.fullmatch(name):
        raise section.problem(option, f"{name!r} is no name that Bigtable takes ({allowed.pattern})")
    return name


def _reads(section: Section) -> Iterator[Read]:
    for read in section.sections("read"):
        found = Read(
            read.text("name"),
            tuple(read.texts("equals")),
            read.optional_text("range"),
            read.boolean("scan", False),
            read.line(),
        )
        if found.scan == bool(found.equals or found.range):
            raise read.problem(
                None, f"read {found.name}: give equals and range, or scan = true for the whole table"
            )
        read.must_be_read()
        yield found


def _estimate(section: Section) -> Estimate:
    interval = section.optional_text("interval")
    try:
        interval_ms = span_of(interval).ms if interval is not None else None
    except ValueError as error:
        raise section.problem("interval", str(error)) from None
    usual = Estimate()
    found = Estimate(
        interval_ms,
        section.integer("field_bytes", usual.field_bytes, low=1),
        section.integer("value_bytes", usual.value_bytes, low=1),
        section.integer("entries", usual.entries, low=1),
    )
    section.must_be_read()
    return found


def _day_tables(section: Section) -> DayTables:
    table = section.text("table")
    if len(days.DAY.findall(table)) != 1:
        raise section.problem("table", f"{table!r} must hold the day once, as in SENSOR_{{day:%Y%m%d}}")
    section.choice("job", ("copy_bucket",), "copy_bucket")
    expire = section.optional_text("expire")
    try:
        expire_days = span_of(expire).ms // DAY_MS if expire is not None else None
    except ValueError as error:
        raise section.problem("expire", str(error)) from None
    found = DayTables(str(section.path[-1]), section.line(), table, section.text("source"), expire_days)
    section.must_be_read()
    return found
