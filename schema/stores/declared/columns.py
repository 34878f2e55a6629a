"""The columns of declared tables: fixed ones, one per entry of a map, one per reading; and their qualifiers.

Format: docs/spec/bigtable-patterns.md §5.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.bits import json_text
from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.bits.times import DAY_MS, HOUR_S, Span, first_time, local_ms, span_of, whole_days
from timebeam.schema.stores.declared.parts.key_part import KeyFields
from timebeam.schema.stores.declared.parts.time_texts import fixed
from timebeam.schema.stores.declared.read_section import Location, Number, Options, read

_BINARY = {"be16": (">u2", 2), "be32": (">u4", 4)}
_CLOCK = {
    "HHMM": (60_000, re.compile(rb"([0-9]{2})([0-5][0-9])")),
    "HHMMSS": (1000, re.compile(rb"([0-9]{2})([0-5][0-9])([0-5][0-9])")),
}
_LEVEL = re.compile(r"\{[a-z_]+\}")


class Encoding(enum.StrEnum):
    """How the value of a column is stored."""

    TEXT = "text"
    """The text as it was received: 600.60 keeps its zero."""
    I64BE = "i64be"
    F64BE = "f64be"
    F32BE = "f32be"
    JSON = "json"
    """The JSON text of the value; the only one that takes arrays and objects."""


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column with a fixed qualifier."""

    field: str
    qualifier: bytes
    encoding: Encoding


@dataclasses.dataclass(frozen=True, slots=True)
class MapColumns:
    """A column for each entry of a field that is a JSON object.

    Attributes:
      field: of one or two levels, as many as there are names in the template.
      literals: the literal text before, between and after the names of the levels.
    """

    field: str
    literals: tuple[str, ...]
    encoding: Encoding

    def entries(self, text: str, fixed_qualifiers: Collection[bytes]) -> Iterator[tuple[bytes, str, bool]]:
        """(qualifier, text, is a text?) of each entry of a map field; null entries are absent.

        Args:
          text: of a JSON object.
          fixed_qualifiers: qualifiers of other columns.

        Raises:
          RejectedError: it is not an object of as many levels as the template has, or an entry's name would
            not be found again in its qualifier.
        """
        levels = len(self.literals) - 1
        try:
            levels_read = msgspec.json.decode(text, type=_LEVELS[levels])
            members = (
                len(levels_read) if levels == 1 else len(levels_read) + sum(map(len, levels_read.values()))
            )
            if json_text.members_written(text) != members:
                json_text.check_keys(text)
        except (msgspec.DecodeError, json_text.DuplicateKeyError) as error:
            problem = f"{self.field} must be an object of {levels} levels"
            raise RejectedError(Reason.BAD_SYNTAX, f"{problem}: {error}") from None
        for names, raw in _leaves(levels_read, levels):
            value, is_text = json_text.scalar(raw)
            if value is None:
                continue
            qualifier = "".join(a + b for a, b in zip(self.literals, [*names, ""], strict=True)).encode()
            if self.entry_names(qualifier) != tuple(names):
                raise RejectedError(
                    Reason.NAME_NOT_STORABLE,
                    f"{self.field}: the names {' and '.join(map(repr, names))} are not those that "
                    f"{qualifier.decode()!r} is split into at the first {self.literals[1]!r}",
                )
            if qualifier in fixed_qualifiers:
                raise RejectedError(
                    Reason.NAME_NOT_STORABLE,
                    f"{self.field}: {qualifier.decode()!r} is another column's qualifier",
                )
            yield qualifier, value, is_text

    def entry_names(self, qualifier: bytes) -> tuple[str, ...]:
        """The names, level by level, of the entry that has this qualifier.

        Raises:
          ValueError: it is not of the template.
        """
        text = qualifier.decode()
        first, *between, last = self.literals
        if not (text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)):
            raise ValueError(f"the qualifier {qualifier!r} is not of the map {self.field}")
        text = text[len(first) : len(text) - len(last)]
        names = []
        for literal in between:
            name, separator, text = text.partition(literal)
            if not separator:
                raise ValueError(f"the qualifier {qualifier!r} is not of the map {self.field}")
            names.append(name)
        return (*names, text)


@dataclasses.dataclass(frozen=True, slots=True)
class TimeQualifier:
    """Steps since the start of the row's bucket.

    Attributes:
      step: whole days, or milliseconds.
      form: "HHMM", "HHMMSS" (elapsed, not wall time), "number", "be16" or "be32" (count of steps).
      base: the number of the first step.
      width: digits of a "number", zero-padded; 0 for as many as it takes.
    """

    step: Span
    form: str
    base: int
    width: int

    def qualifiers(self, times_ms: Int64s, starts_ms: Int64s, zone: str) -> tuple[list[bytes], Bools]:
        """(n qualifiers, bool[n] which of them fit) of times in the buckets that begin at `starts_ms`.

        >>> quarters = TimeQualifier(Span(15 * 60_000), "HHMM", base=0, width=0)
        >>> midnight = 1426489200000  # in Los Angeles
        >>> times_ms = midnight + np.array([7, 15 * 60_000, DAY_MS - 1])
        >>> quarters.qualifiers(times_ms, np.full(3, midnight), "America/Los_Angeles")[0]
        [b'0000', b'0015', b'2345']
        """
        steps = self.steps_between(times_ms, starts_ms, zone)
        if self.form in _CLOCK:
            unit, _ = _CLOCK[self.form]
            elapsed = steps * self.step.ms // unit
            minutes = elapsed // 60 % 60
            digits = elapsed // 60 * 100 + elapsed % 60
            if self.form == "HHMMSS":
                digits = elapsed // HOUR_S * 10_000 + minutes * 100 + elapsed % 60
            width = len(self.form)
            good = digits < 10**width
            texts = (
                pc.ascii_lpad(pa.array(digits).cast(pa.string()), width, "0").cast(pa.binary()).to_pylist()
            )
            return texts, good
        count = steps + self.base
        if self.form == "number":
            texts = pa.array(count).cast(pa.string())
            good = count < 10 ** (self.width or 18)
            return pc.ascii_lpad(texts, self.width, "0").cast(pa.binary()).to_pylist(), good
        dtype, size = _BINARY[self.form]
        good = count < 1 << (8 * size)
        return fixed(
            np.where(good, count, 0).astype(dtype).view(np.uint8).reshape(len(count), size)
        ).to_pylist(), good

    def steps_between(self, times_ms: Int64s, starts_ms: Int64s, zone: str) -> Int64s:
        """int64[n]: whole steps from the start of a bucket to a time in it."""
        if self.step.ms % DAY_MS == 0:
            return whole_days(times_ms, starts_ms, zone) // (self.step.ms // DAY_MS)
        return (times_ms - starts_ms) // self.step.ms

    def times_after(self, starts_ms: Int64s, steps: Int64s, zone: str) -> Int64s:
        """int64[n]: the times in ms that are so many steps after the start of a bucket."""
        if self.step.ms % DAY_MS == 0:
            midnights = local_ms(starts_ms, zone) // DAY_MS * DAY_MS
            return first_time(midnights + steps * self.step.ms, zone)
        return starts_ms + steps * self.step.ms

    def steps_of(self, qualifier: bytes) -> int:
        """How many steps after the start of its bucket a reading is.

        Raises:
          ValueError: it is not a qualifier of this form.
        """
        if self.form in _CLOCK:
            unit, pattern = _CLOCK[self.form]
            match = pattern.fullmatch(qualifier)
            if not match:
                raise ValueError(f"the qualifier {qualifier!r} is not {self.form}")
            elapsed = 0
            for digits in match.groups():
                elapsed = elapsed * 60 + int(digits)
            return elapsed * unit // self.step.ms
        if self.form == "number":
            if not qualifier.isdigit() or len(qualifier) > 18:
                raise ValueError(f"the qualifier {qualifier!r} is not a number")
            return int(qualifier) - self.base
        if len(qualifier) != _BINARY[self.form][1]:
            raise ValueError(f"the qualifier {qualifier!r} is not {self.form}")
        return int.from_bytes(qualifier, "big") - self.base

    def steps_within(self, bucket: Span, qualifier: bytes) -> int:
        """How many steps after the start of its bucket a reading is, checked to be in the bucket.

        Raises:
          ValueError: it is not a qualifier of this form, or beyond the bucket.
        """
        steps = self.steps_of(qualifier)
        if not 0 <= steps * self.step.ms <= bucket.ms + DAY_MS:  # a day of 25 hours is longer than its span
            raise ValueError(
                f"the qualifier {qualifier!r} is {steps} steps of {self.step} after its bucket's start"
            )
        return steps


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesColumn:
    """A column per reading: one field is the value, the qualifier is its time or another field."""

    field: str
    qualifier: TimeQualifier | str
    encoding: Encoding


_LEVELS: dict[int, Any] = {1: dict[str, msgspec.Raw], 2: dict[str, dict[str, msgspec.Raw]]}


def _leaves(mapping: Mapping[str, Any], levels: int) -> Iterator[tuple[Sequence[str], msgspec.Raw]]:
    for name, value in mapping.items():
        if levels == 1:
            yield (name,), value
        else:
            for inner, raw in value.items():
                yield (name, inner), raw


class _ColumnOfField(Options, frozen=True):
    name: str
    qualifier: str | None = None
    encoding: Encoding | None = None


class _MapOptions(Options, frozen=True):
    source: str
    qualifier: str = "{name}"
    encoding: Encoding | None = None


class _SeriesOptions(Options, frozen=True):
    value: str
    qualifier: dict[str, Any]
    encoding: Encoding | None = None


class _FieldQualifier(Options, frozen=True):
    field: str


class _StepOptions(Options, frozen=True):
    time: str
    step: str
    within: str
    format: Literal["HHMM", "HHMMSS", "number", "be16", "be32"] = "HHMM"
    base: Number = 0
    width: Number = 0


class ColumnOptions(Options, frozen=True, forbid_unknown_fields=False):
    """The section `columns` of a layout.

    Other options were never rejected, and may be in stored declarations.
    """

    family: str
    encoding: Encoding = Encoding.TEXT
    fields: tuple[str | _ColumnOfField, ...] = ()
    map: _MapOptions | None = None
    series: _SeriesOptions | None = None


class TableColumns(NamedTuple):
    """The columns of one table."""

    fixed: tuple[Column, ...]
    map: MapColumns | None
    series: SeriesColumn | None


def columns_of(options: ColumnOptions, place: Location, fields: KeyFields) -> TableColumns:
    """The columns of a layout; notes the buckets of the times in qualifiers."""
    fixed = tuple(_column(entry, options.encoding) for entry in options.fields)
    map_columns = series = None
    if options.map is not None:
        map_columns = _map(options.map, options.encoding, place.within("map"))
    if options.series is not None:
        series = _series(options.series, options.encoding, place.within("series"), fields)
    if not (fixed or map_columns or series):
        raise place.problem(None, "columns stores nothing: add fields, map or series")
    if map_columns and series:
        raise place.problem("map", "map and series in one family cannot be told apart: declare two tables")
    qualifiers: set[bytes] = set()
    for number, column in enumerate(fixed):
        if column.qualifier in qualifiers:
            raise place.problem(
                "fields", f"two columns have the qualifier {column.qualifier.decode()!r}", number
            )
        qualifiers.add(column.qualifier)
    return TableColumns(fixed, map_columns, series)


def _column(entry: str | _ColumnOfField, encoding: Encoding) -> Column:
    if isinstance(entry, str):
        return Column(entry, entry.encode(), encoding)
    qualifier = entry.name if entry.qualifier is None else entry.qualifier
    return Column(entry.name, qualifier.encode(), entry.encoding or encoding)


def _map(options: _MapOptions, encoding: Encoding, place: Location) -> MapColumns:
    template = options.qualifier
    literals = tuple(_LEVEL.split(template))
    if len(literals) not in (2, 3) or any("{" in piece or "}" in piece for piece in literals):
        raise place.problem("qualifier", f"{template!r} must have one or two names, as {{category}}/{{name}}")
    if len(literals) == 3 and not literals[1]:
        raise place.problem(
            "qualifier", f"{template!r} could not be split again: put a letter between the names"
        )
    return MapColumns(options.source, literals, options.encoding or encoding)


def _series(options: _SeriesOptions, encoding: Encoding, place: Location, fields: KeyFields) -> SeriesColumn:
    content, inner = options.qualifier, place.within("qualifier")
    qualifier: TimeQualifier | str
    if "field" in content:
        qualifier = read(_FieldQualifier, content, inner).field
    else:
        qualifier = _time_qualifier(read(_StepOptions, content, inner), inner, fields)
    return SeriesColumn(options.value, qualifier, options.encoding or encoding)


def _time_qualifier(options: _StepOptions, place: Location, fields: KeyFields) -> TimeQualifier:
    name, form = options.time, options.format
    if name not in fields.units:
        raise place.problem("time", f"{name} is not a time of the key: the qualifier counts from its bucket")
    try:
        step, within = span_of(options.step), span_of(options.within)
    except ValueError as error:
        raise place.problem("step", str(error)) from None
    fields.within[name] = within
    smallest = {"HHMM": 60_000, "HHMMSS": 1000}.get(form, 1)
    if step.months or step.ms % smallest:
        raise place.problem("step", f"a step of {step} cannot be written as {form}")
    if form in ("HHMM", "HHMMSS") and within.ms > 4 * DAY_MS:
        raise place.problem("format", f"{form} has two digits for hours: use number for {within}")
    return TimeQualifier(step, form, options.base, options.width)
