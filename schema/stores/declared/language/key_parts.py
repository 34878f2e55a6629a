"""The parts of keys out of a declaration.

Format: docs/spec/bigtable-patterns.md §5; order and widths by docs/spec/bigtable-patterns.md §6.2 and 6.3.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from typing import Any

from timebeam.schema.bits.times import UTC, Span, span_of, zone_of
from timebeam.schema.stores.declared.codec.time_parts import check_pattern
from timebeam.schema.stores.declared.language.sections import Section
from timebeam.schema.stores.declared.model import UNIT_PER_MS
from timebeam.schema.stores.declared.parts import Const, Field, Hash, Part, Salt, Suffix, Time

_KINDS = ("const", "field", "time", "salt", "suffix", "hash")
_LARGEST = {"be32": (1 << 32) - 1, "be64": (1 << 63) - 1}


@dataclasses.dataclass
class Times:
    """The fields that parts take for times: their units, and the buckets that qualifiers count from."""

    units: dict[str, str] = dataclasses.field(default_factory=dict)
    within: dict[str, Span] = dataclasses.field(default_factory=dict)

    def add(self, section: Section, name: str, unit: str | None) -> str:
        """Notes a field that is a time; gives its unit."""
        unit_before = self.units.setdefault(name, unit or "ms")
        if unit is not None and unit != unit_before:
            raise section.problem(
                "unit", f"the time {name} is in {unit_before} elsewhere: one field has one unit"
            )
        return unit_before


def parts_of(section: Section) -> tuple[tuple[Part, ...], Times]:
    """The parts of the key of a layout, and the times in them."""
    times = Times()
    sections = list(section.sections("key"))
    if not sections:
        raise section.problem("key", 'key lacks parts: list at least one, as key = [{ field = "NAME" }]')
    # Salts and hashes refer to other parts by name: those come first.
    plain = {}
    for number, key_section in enumerate(sections):
        kind = _kind(key_section)
        if kind in ("const", "field", "time"):
            plain[number] = _plain(key_section, kind, times)
    named = {key_part.name: key_part for key_part in plain.values() if not isinstance(key_part, Const)}
    key_parts: list[Part] = []
    for number, key_section in enumerate(sections):
        key_part: Part = (
            plain[number] if number in plain else _derived(key_section, _kind(key_section), named, times)
        )
        key_section.must_be_read()
        key_parts.append(key_part)
    return tuple(key_parts), times


def _kind(section: Section) -> str:
    for kind in _KINDS:
        if kind in section:
            return kind
    raise section.problem(None, f"a part of the key must have one of {', '.join(_KINDS)}")


def _plain(section: Section, kind: str, times: Times) -> Const | Field | Time:
    if kind == "const":
        return Const(section.text("const").encode())
    return _field(section) if kind == "field" else _time(section, times)


def _field(section: Section) -> Field:
    is_uint = section.choice("type", ("text", "uint"), "text") == "uint"
    size = section.optional_integer("width", low=1)
    pad = section.text("pad", "0" if is_uint else " ")
    align_left = section.choice("align", ("left", "right"), "right" if is_uint else "left") == "left"
    if len(pad.encode()) != 1:
        raise section.problem("pad", f"pad = {pad!r} must be one ASCII character")
    if is_uint and (align_left or pad != "0"):
        raise section.problem("align", 'a uint is aligned right and padded with "0": else it would not sort')
    section.choice("on_overflow", ("reject",), "reject")
    case = section.choice("case", ("keep", "lower", "upper"), "keep")
    return Field(section.text("field"), is_uint, size, pad, align_left, None if case == "keep" else case)


def _time(section: Section, times: Times) -> Time:
    name = section.text("time")
    unit = section.choice("unit", tuple(UNIT_PER_MS), "ms") if "unit" in section else None
    unit = times.add(section, name, unit)
    form = section.text("format", "decimal")
    zone = section.text("tz", UTC)
    try:
        zone_of(zone)
        bucket_text = section.optional_text("bucket")
        bucket = span_of(bucket_text) if bucket_text is not None else None
    except ValueError as error:
        raise section.problem("tz" if "time zone" in str(error) else "bucket", str(error)) from None
    if bucket and unit == "s" and bucket.ms % 1000:
        raise section.problem("bucket", f'a bucket of {bucket} cuts seconds: give unit = "ms"')
    is_pattern = "%" in form
    if zone != UTC and not is_pattern and not (bucket and bucket.is_local):
        raise section.problem("tz", "tz matters for buckets of whole days or months, and for text formats")
    if zone != UTC and bucket and not bucket.is_local:
        raise section.problem("bucket", f"a bucket of {bucket} cannot begin at local midnights: leave out tz")
    reverse = section.value("reverse", False)
    if not isinstance(reverse, int) or reverse is True:
        raise section.problem(
            "reverse", "reverse must be the number to subtract from, as 9223372036854775807"
        )
    subtract = None if reverse is False else reverse
    divide = section.integer("divide", 1, low=1)
    width = section.optional_integer("width", low=1)
    if is_pattern:
        try:
            size = check_pattern(form, zone)
        except ValueError as error:
            raise section.problem("format", str(error)) from None
        if subtract is not None or divide != 1 or width not in (None, size):
            raise section.problem(
                "format", f"{form!r} has {size} bytes, and takes neither reverse nor divide"
            )
        return Time(name, unit, bucket, zone, 1, "pattern", form, size, None)
    if form not in ("decimal", *_LARGEST):
        raise section.problem(
            "format", f"format = {form!r} is unknown: choose decimal, be32, be64, or text with %Y"
        )
    size = _width(section, form, width, subtract)
    return Time(name, unit, bucket, zone, divide, form, "", size, subtract)


def _width(section: Section, form: str, width: int | None, reverse: int | None) -> int:
    """Bytes of a decimal or binary time."""
    if form in _LARGEST:
        size = 4 if form == "be32" else 8
        if width not in (None, size):
            raise section.problem("width", f"{form} has {size} bytes: leave out width")
        if reverse is not None and not 0 < reverse <= _LARGEST[form]:
            raise section.problem("reverse", f"reverse must be from 1 to {_LARGEST[form]} with {form}")
        return size
    if width is None:
        raise section.problem(
            None, "a decimal time without width does not sort: add width (13 for ms, 10 for s)"
        )
    if width > 19:
        raise section.problem("width", "a time has at most 19 digits")
    if reverse is not None and not 0 < reverse < min(10**width, 1 << 63):
        raise section.problem("reverse", f"reverse = {reverse} does not fit {width} digits: raise width")
    return width


def _derived(
    section: Section, kind: str, named: dict[str, Field | Time], times: Times
) -> Salt | Hash | Suffix:
    if kind == "suffix":
        return _suffix(section)
    sources = _sources(section, "salt" if kind == "salt" else "of", named, times)
    if kind == "salt":
        return _salt(section, sources)
    function = section.choice("hash", ("md5", "sha1"), "md5")
    is_hex = section.choice("encoding", ("hex", "raw"), "hex") == "hex"
    full = hashlib.new(function, usedforsecurity=False).digest_size * (2 if is_hex else 1)
    length = section.integer("length", full, low=1)
    if length > full:
        raise section.problem(
            "length", f"{function} has {full} {'digits' if is_hex else 'bytes'}, not {length}"
        )
    return Hash(sources, function, is_hex, length)


def _salt(section: Section, sources: tuple[Field | Time, ...]) -> Salt:
    function = section.choice("hash", ("crc32", "md5", "fnv1a64"), "crc32")
    if "buckets" not in section:
        raise section.problem(None, "a salt needs buckets: how many ranges of keys writes are spread over")
    buckets = section.integer("buckets", 1, low=1)
    base = section.integer("base", 0)
    size = section.integer("width", 1, low=1)
    since = tuple(_since(section, entry) for entry in section.value("since", []))
    if [instant for instant, _ in since] != sorted({instant for instant, _ in since}):
        raise section.problem("since", "the instants of since must ascend")
    for count in (buckets, *(count for _, count in since)):
        if base + count - 1 >= 10**size:
            raise section.problem(
                "width", f"salts up to {base + count - 1} do not fit {size} digits: raise width"
            )
    return Salt(sources, function, buckets, base, size, since)


def _since(section: Section, entry: Any) -> tuple[int, int]:
    """(instant in ms, buckets) of one entry."""
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], int) and entry[1] > 0:
        instant = entry[0]
        if isinstance(instant, datetime.datetime) and instant.tzinfo is not None:
            return int(instant.timestamp() * 1000), entry[1]
        if isinstance(instant, int) and not isinstance(instant, bool):
            return instant, entry[1]
    raise section.problem("since", "since must be a list of [instant, buckets], as [2026-01-01T00:00:00Z, 8]")


def _suffix(section: Section) -> Suffix:
    names = section.value("suffix")
    section.choice("hash", ("crc32",), "crc32")
    size = section.integer("width", 8, low=1)
    if size > 8:
        raise section.problem("width", "a CRC-32 has 8 digits at most")
    if names == "payload":
        return Suffix(None, size)
    return Suffix(tuple(_names(section, "suffix")), size)


def _names(section: Section, option: str) -> list[str]:
    names = section.texts(option)
    if not names:
        raise section.problem(option, f"{option} names no fields")
    return names


def _sources(
    section: Section, option: str, named: dict[str, Field | Time], times: Times
) -> tuple[Field | Time, ...]:
    """What a salt or hash is of: parts of the key by name, other fields, or parts written in place."""
    entries = section.value(option)
    if not isinstance(entries, list) or not entries:
        raise section.problem(option, f'{option} must be a list of fields, as ["TS"]')
    sources: list[Field | Time] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, str):
            if entry in times.units and entry not in named:
                raise section.problem(option, f'write the time out: {{ time = "{entry}", format = ... }}')
            sources.append(named.get(entry) or Field(entry))
        elif isinstance(entry, dict) and ("field" in entry or "time" in entry):
            inner = section.within(entry, option, number)
            source = _field(inner) if "field" in entry else _time(inner, times)
            inner.must_be_read()
            sources.append(source)
        else:
            raise section.problem(option, f"{option}: {entry!r} is neither a field's name nor a part")
    return tuple(sources)
