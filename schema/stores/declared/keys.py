"""Row keys of declared tables: their parts, as declared; rendered, taken apart, and the key ranges of a read.

Format: docs/spec/bigtable-patterns.md §1 to §6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.regex import of_bytes
from timebeam.schema.core.selection import prefix_range
from timebeam.schema.stores.declared.declaration import TableLayout
from timebeam.schema.stores.declared.parts.digest_parts import Hash, Salt, Suffix
from timebeam.schema.stores.declared.parts.key_part import (
    Const,
    Field,
    KeyFields,
    KeyPart,
    RecordRejections,
    Renderer,
)
from timebeam.schema.stores.declared.parts.time_part import Time, one_from_ms
from timebeam.schema.stores.declared.read_section import Location
from timebeam.schema.stores.declared.records import RecordBatch

Range = tuple[bytes, bytes]
"""Half-open [start, end) of row keys; an empty end is that of the table."""


KINDS: Sequence[type[KeyPart]] = (Const, Field, Time, Salt, Suffix, Hash)
"""All kinds; a section is of the first whose `kind` is one of its options."""


def parts_of(sections: Sequence[dict[str, Any]], place: Location) -> tuple[tuple[KeyPart, ...], KeyFields]:
    """The parts of the key of a layout, and the fields in them.

    Raises:
      ProblemError: one is wrong.
    """
    if not sections:
        raise place.problem("key", 'key lacks parts: list at least one, as key = [{ field = "NAME" }]')
    kinds = [_kind(section, place.within("key", number)) for number, section in enumerate(sections)]
    fields, key_parts = KeyFields(), dict[int, KeyPart]()
    for number in sorted(range(len(sections)), key=lambda number: kinds[number].refers):
        key_part = kinds[number].read(sections[number], place.within("key", number), fields)
        key_parts[number] = key_part
        if key_part.stored_field is not None:
            fields.named[key_part.stored_field] = key_part
    return tuple(key_parts[number] for number in range(len(sections))), fields


def _kind(section: dict[str, Any], place: Location) -> type[KeyPart]:
    for kind in KINDS:
        if kind.kind in section:
            return kind
    names = ", ".join(kind.kind for kind in KINDS)
    raise place.problem(None, f"a part of the key must have one of {names}")


def keys_of(
    layout: TableLayout, batch: RecordBatch, times: Int64s, rejections: RecordRejections
) -> list[bytes]:
    """The row key of each record; anything where it is rejected.

    Args:
      times: int64[n], the event time in the unit of the layout's event; 0 where it has none.
    """
    if not layout.allow_overwrite:
        _reject_joined(layout, batch, rejections)
    joined = _renderer(layout, batch, times, rejections).joined(layout.key)
    if isinstance(joined, pa.Scalar):  # of constants alone
        return [joined.as_py()] * len(batch)
    keys: list[bytes] = joined.to_pylist()
    return keys


def _renderer(
    layout: TableLayout, batch: RecordBatch, times: Int64s, rejections: RecordRejections
) -> Renderer:
    unit = layout.event[1] if layout.event else "ms"
    return Renderer(layout.key, layout.separator, batch, times, unit, rejections)


def _reject_joined(layout: TableLayout, batch: RecordBatch, rejections: RecordRejections) -> None:
    """Rejects texts with a separator where it is all that separates fields of any length in a hash."""
    separator = layout.separator.decode()
    for key_part in layout.key:
        joined = key_part.open_texts(layout.separator, layout.key)
        for field in joined if len(joined) > 1 and separator else ():
            matches = pc.fill_null(pc.match_substring(batch.texts(field.label), separator), False)
            for record in np.flatnonzero(matches.to_numpy(zero_copy_only=False)).tolist():
                message = f"{field.label} contains the separator {separator!r}, which ends it in the hash"
                rejections.add(record, Reason.SERIES_NOT_STORABLE, message)


def names(layout: TableLayout) -> frozenset[str]:
    """The fields whose values are in the key as they are, or hashed."""
    return frozenset(name for key_part in layout.key for name in key_part.inputs)


def split(layout: TableLayout, key: bytes) -> list[bytes]:
    """The bytes of each part of a key.

    Raises:
      ValueError: it is not a key of this layout.
    """
    fragments = []
    offset = 0
    for number, key_part in enumerate(layout.key):
        last = number == len(layout.key) - 1
        if key_part.size is not None:
            end = offset + key_part.size
        elif last:
            end = len(key)
        else:
            end = key.find(layout.separator, offset)
        if end < offset or end > len(key):
            raise ValueError(f"row key {key!r} ends before its part {number + 1} of {len(layout.key)}")
        piece = key[offset:end]
        fault = key_part.split(piece)
        if fault:
            raise ValueError(f"row key {key!r} has {fault}")
        fragments.append(piece)
        offset = end
        if not last:
            if key[offset : offset + len(layout.separator)] != layout.separator:
                raise ValueError(f"row key {key!r} has no separator after byte {offset}")
            offset += len(layout.separator)
    if offset != len(key):
        raise ValueError(f"row key {key!r} has {len(key) - offset} bytes more than its parts")
    return fragments


def fields(layout: TableLayout, key: bytes) -> tuple[dict[str, str], int | None]:
    """(field texts, time): what a key says. The time is that of the time part, in its unit.

    Raises:
      ValueError: it is not a key of this layout.
    """
    texts: dict[str, str] = {}
    time = None
    for key_part, piece in zip(layout.key, split(layout, key), strict=True):
        value = key_part.value(piece)
        if isinstance(value, int):
            time = value
        elif value is not None and key_part.stored_field is not None:
            texts[key_part.stored_field] = value
    return texts, time


def ranges(
    layout: TableLayout, fixed: Mapping[str, str | int], interval: tuple[int, int] | None = None
) -> list[Range]:
    """The key ranges that hold the records with these fields, within an interval.

    Ascending and apart; one for each salt bucket, if the salt is not known from the fields. Rows of
    buckets of time are in if their bucket meets the interval.

    >>> from timebeam.schema.stores.declared.language.load_declaration import load
    >>> declaration = load(
    ...     '''[layout.sensor]
    ...     table = "SENSOR"
    ...     separator = "#"
    ...     key = [{ field = "METER", type = "uint", width = 10, pad = "0", align = "right" },
    ...       { time = "TS", unit = "ms", width = 13 }]
    ...     columns = { family = "R", fields = ["READING"] }''',
    ...     "sensor.toml",
    ... )
    >>> ranges(declaration.layouts[0], {"METER": "987654"}, (1426489200000, 1426489200010))
    [(b'0000987654#1426489200000', b'0000987654#1426489200010')]

    Args:
      fixed: fields and their values; of the time field a time in its unit.
      interval: its start and its end in ms, which is not in it; None for all times.

    Raises:
      ValueError: the key does not serve this read: the message says what prevents it.
    """
    key_ranges: list[Range] = []
    for since_ms, before_ms, buckets in _epochs(layout):
        if interval is None:
            key_ranges += _epoch_ranges(layout, fixed, None, buckets, since_ms)
        else:
            start_ms = max(interval[0], since_ms or 0)
            end_ms = interval[1] if before_ms is None else min(interval[1], before_ms)
            if start_ms < end_ms or since_ms is None:
                key_ranges += _epoch_ranges(layout, fixed, (start_ms, end_ms), buckets, since_ms)
    return merged(key_ranges)


def _epochs(layout: TableLayout) -> Iterator[tuple[int | None, int | None, int]]:
    """(from, before, salt buckets) of each time with one number of buckets."""
    salt = layout.salt
    if salt is None or not salt.since:
        yield None, None, salt.buckets if salt else 1
        return
    times = [None, *(time for time, _ in salt.since)]
    counts = [salt.buckets, *(count for _, count in salt.since)]
    for i, (time, count) in enumerate(zip(times, counts, strict=True)):
        yield time, times[i + 1] if i + 1 < len(times) else None, count


def _epoch_ranges(
    layout: TableLayout,
    fixed: Mapping[str, str | int],
    interval: tuple[int, int] | None,
    buckets: int,
    since_ms: int | None,
) -> list[Range]:
    """The ranges within one epoch of salts; an interval of None is all of time."""
    renderer = _renderer_of(layout, fixed, since_ms)
    prefixes = [b""]
    used: set[str] = set()
    time = layout.time
    for number, key_part in enumerate(layout.key):
        tail = layout.separator if number < len(layout.key) - 1 else b""
        if key_part is time and time.stored_field not in fixed and interval is not None:
            _must_be_used(layout, fixed, used)
            bounds = time.ranges(*interval)
            if bounds is None:
                return []
            return [
                (p + bounds[0], prefix_range(p)[1] if bounds[1] is None else p + bounds[1]) for p in prefixes
            ]
        if key_part.follows(fixed):
            used |= key_part.inputs
            piece = renderer.rendered(key_part)
            value = piece.as_py() if isinstance(piece, pa.Scalar) else piece[0].as_py()
            prefixes = [p + value + tail for p in prefixes]
        elif key_part.choices:
            prefixes = [p + choice + tail for p in prefixes for choice in key_part.every(buckets)]
        else:
            _must_be_used(layout, fixed, used, key_part)
            break
    else:
        _must_be_used(layout, fixed, used)
        if interval is not None:
            raise ValueError(
                f"table {layout.table}: the key has no time part that an interval could select by"
            )
        return [(key, key + b"\0") for key in prefixes]
    if interval is not None:
        raise ValueError(
            f"table {layout.table}: {key_part.label} comes before the time in the key: give its fields too"
        )
    return [(p, prefix_range(p)[1]) for p in prefixes]


def piece_of(layout: TableLayout, key_part: KeyPart, fixed: Mapping[str, str | int]) -> bytes | None:
    """The bytes of a part that follows from these fields; None if a value cannot be in the key."""
    try:
        piece: bytes = _renderer_of(layout, fixed, None).rendered(key_part)[0].as_py()
    except ValueError:
        return None
    return piece


def pattern(layout: TableLayout, bytes_by_part: Mapping[KeyPart, bytes]) -> bytes:
    """RE2 for the keys that may have these bytes as parts; `split` tells for certain."""
    return of_bytes(layout.separator).join(
        of_bytes(bytes_by_part[key_part])
        if key_part in bytes_by_part
        else b"\\C*"
        if key_part.size is None
        else b"\\C{%d}" % key_part.size
        for key_part in layout.key
    )


def _renderer_of(layout: TableLayout, fixed: Mapping[str, str | int], since_ms: int | None) -> Renderer:
    """Renders the parts of one record that has the fixed fields only.

    Raises:
      ValueError: a value cannot stand in the key.
    """
    columns = {name: pa.array([str(value)], pa.string()) for name, value in fixed.items()}
    batch = RecordBatch(columns, np.zeros(1, np.int64))
    event = np.zeros(1, np.int64)
    if layout.event is not None:
        if layout.event[0] in fixed:
            event, good = batch.integers(layout.event[0])
            if not good[0]:
                raise ValueError(f"{layout.event[0]} {fixed[layout.event[0]]!r} is not a whole number")
        elif since_ms is not None:
            event = np.array([one_from_ms(since_ms, layout.event[1])], np.int64)
    return _renderer(layout, batch, event, _Strict(layout.table))


class _Strict(RecordRejections):
    """Rejections that are errors at once."""

    def add(self, record: int, reason: object, message: str) -> None:
        """Raises ValueError."""
        raise ValueError(message)


def _must_be_used(
    layout: TableLayout, fixed: Mapping[str, str | int], used: set[str], stop: KeyPart | None = None
) -> None:
    """Rejects fixed fields that are not at the front of the key."""
    unused = sorted(fixed.keys() - used)
    if unused:
        why = (
            f"{stop.label} comes before it"
            if stop and unused[0] in layout.stored
            else "it is not in the front of the key"
        )
        raise ValueError(f"table {layout.table}: cannot select by {unused[0]}: {why}")


def merged(key_ranges: list[Range]) -> list[Range]:
    """Ranges ascending, with those that touch or overlap made one."""
    merged: list[Range] = []
    for start, end in sorted(key_ranges):
        if merged and (not merged[-1][1] or start <= merged[-1][1]):
            last = merged[-1]
            merged[-1] = (last[0], max(last[1], end) if last[1] and end else b"")
        else:
            merged.append((start, end))
    return merged
