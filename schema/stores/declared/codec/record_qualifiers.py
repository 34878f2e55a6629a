"""Qualifiers that the record makes: of a reading's time, of the entries of a map.

Format: docs/spec/bigtable-patterns.md §5.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from timebeam.schema.bits import json_text
from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.reasons import Reason, RefusedError
from timebeam.schema.bits.times import DAY_MS, HOUR_S, Span, first_instant, local_ms, whole_days
from timebeam.schema.stores.declared.codec.time_parts import fixed
from timebeam.schema.stores.declared.model import MapColumns, TimeQualifier

_BINARY = {"be16": (">u2", 2), "be32": (">u4", 4)}
_CLOCK = {
    "HHMM": (60_000, re.compile(rb"([0-9]{2})([0-5][0-9])")),
    "HHMMSS": (1000, re.compile(rb"([0-9]{2})([0-5][0-9])([0-5][0-9])")),
}


def of_times(
    form: TimeQualifier, times_ms: Int64s, starts_ms: Int64s, zone: str
) -> tuple[list[bytes], Bools]:
    """(n qualifiers, bool[n] which of them fit) of times in the buckets that begin at `starts_ms`.

    >>> quarters = TimeQualifier(Span(15 * 60_000), "HHMM", base=0, width=0)
    >>> midnight = 1426489200000  # in Los Angeles
    >>> times_ms = midnight + np.array([7, 15 * 60_000, DAY_MS - 1])
    >>> of_times(quarters, times_ms, np.full(3, midnight), "America/Los_Angeles")[0]
    [b'0000', b'0015', b'2345']
    """

    import pyarrow.compute as pc

    steps = steps_between(form, times_ms, starts_ms, zone)
    if form.form in _CLOCK:
        unit, _ = _CLOCK[form.form]
        elapsed = steps * form.step.ms // unit
        minutes = elapsed // 60 % 60
        digits = elapsed // 60 * 100 + elapsed % 60
        if form.form == "HHMMSS":
            digits = elapsed // HOUR_S * 10_000 + minutes * 100 + elapsed % 60
        width = len(form.form)
        good = digits < 10**width
        texts = pc.ascii_lpad(pa.array(digits).cast(pa.string()), width, "0").cast(pa.binary()).to_pylist()
        return texts, good
    count = steps + form.base
    if form.form == "number":
        texts = pa.array(count).cast(pa.string())
        good = count < 10 ** (form.width or 18)
        return pc.ascii_lpad(texts, form.width, "0").cast(pa.binary()).to_pylist(), good
    dtype, size = _BINARY[form.form]
    good = count < 1 << (8 * size)
    return fixed(
        np.where(good, count, 0).astype(dtype).view(np.uint8).reshape(len(count), size)
    ).to_pylist(), good


def steps_between(form: TimeQualifier, times_ms: Int64s, starts_ms: Int64s, zone: str) -> Int64s:
    """int64[n]: whole steps from the start of a bucket to a time in it."""
    if form.step.ms % DAY_MS == 0:
        return whole_days(times_ms, starts_ms, zone) // (form.step.ms // DAY_MS)
    return (times_ms - starts_ms) // form.step.ms


def times_after(form: TimeQualifier, starts_ms: Int64s, steps: Int64s, zone: str) -> Int64s:
    """int64[n]: the times in ms that are so many steps after the start of a bucket."""
    if form.step.ms % DAY_MS == 0:
        midnights = local_ms(starts_ms, zone) // DAY_MS * DAY_MS
        return first_instant(midnights + steps * form.step.ms, zone)
    return starts_ms + steps * form.step.ms


def steps_of(form: TimeQualifier, qualifier: bytes) -> int:
    """How many steps after the start of its bucket a reading is.

    Raises:
      ValueError: it is not a qualifier of this form.
    """
    if form.form in _CLOCK:
        unit, pattern = _CLOCK[form.form]
        match = pattern.fullmatch(qualifier)
        if not match:
            raise ValueError(f"the qualifier {qualifier!r} is not {form.form}")
        elapsed = 0
        for digits in match.groups():
            elapsed = elapsed * 60 + int(digits)
        return elapsed * unit // form.step.ms
    if form.form == "number":
        if not qualifier.isdigit() or len(qualifier) > 18:
            raise ValueError(f"the qualifier {qualifier!r} is not a number")
        return int(qualifier) - form.base
    if len(qualifier) != _BINARY[form.form][1]:
        raise ValueError(f"the qualifier {qualifier!r} is not {form.form}")
    return int.from_bytes(qualifier, "big") - form.base


def steps_within(form: TimeQualifier, bucket: Span, qualifier: bytes) -> int:
    """How many steps after the start of its bucket a reading is, checked to be in the bucket.

    Raises:
      ValueError: it is not a qualifier of this form, or beyond the bucket.
    """
    steps = steps_of(form, qualifier)
    if not 0 <= steps * form.step.ms <= bucket.ms + DAY_MS:  # a day of 25 hours is longer than its span
        raise ValueError(
            f"the qualifier {qualifier!r} is {steps} steps of {form.step} after its bucket's start"
        )
    return steps


def entries(
    columns: MapColumns, text: str, fixed_qualifiers: Collection[bytes]
) -> Iterator[tuple[bytes, str, bool]]:
    """(qualifier, text, is a text?) of each entry of a map field; null entries are absent.

    Args:
      text: of a JSON object.
      fixed_qualifiers: qualifiers of other columns.

    Raises:
      RefusedError: it is not an object of as many levels as the template has, or an entry's name would not
        be found again in its qualifier.
    """
    levels = len(columns.literals) - 1
    try:
        levels_read = msgspec.json.decode(text, type=_LEVELS[levels])
        members = len(levels_read) if levels == 1 else len(levels_read) + sum(map(len, levels_read.values()))
        if json_text.members_written(text) != members:
            json_text.check_keys(text)
    except (msgspec.DecodeError, json_text.DuplicateKeyError) as error:
        problem = f"{columns.field} must be an object of {levels} levels"
        raise RefusedError(Reason.BAD_SYNTAX, f"{problem}: {error}") from None
    for names, raw in _leaves(levels_read, levels):
        value, is_text = json_text.scalar(raw)
        if value is None:
            continue
        qualifier = "".join(a + b for a, b in zip(columns.literals, [*names, ""], strict=True)).encode()
        if entry_names(columns, qualifier) != tuple(names):
            raise RefusedError(
                Reason.NAME_NOT_STORABLE,
                f"{columns.field}: the names {' and '.join(map(repr, names))} are not those that "
                f"{qualifier.decode()!r} is split into at the first {columns.literals[1]!r}",
            )
        if qualifier in fixed_qualifiers:
            raise RefusedError(
                Reason.NAME_NOT_STORABLE,
                f"{columns.field}: {qualifier.decode()!r} is another column's qualifier",
            )
        yield qualifier, value, is_text


def entry_names(columns: MapColumns, qualifier: bytes) -> tuple[str, ...]:
    """The names, level by level, of the entry that has this qualifier.

    Raises:
      ValueError: it is not of the template.
    """
    text = qualifier.decode()
    first, *between, last = columns.literals
    if not (text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)):
        raise ValueError(f"the qualifier {qualifier!r} is not of the map {columns.field}")
    text = text[len(first) : len(text) - len(last)]
    names = []
    for literal in between:
        name, separator, text = text.partition(literal)
        if not separator:
            raise ValueError(f"the qualifier {qualifier!r} is not of the map {columns.field}")
        names.append(name)
    return (*names, text)


_LEVELS: dict[int, Any] = {1: dict[str, msgspec.Raw], 2: dict[str, dict[str, msgspec.Raw]]}


def _leaves(mapping: Mapping[str, Any], levels: int) -> Iterator[tuple[Sequence[str], msgspec.Raw]]:
    for name, value in mapping.items():
        if levels == 1:
            yield (name,), value
        else:
            for inner, raw in value.items():
                yield (name, inner), raw
