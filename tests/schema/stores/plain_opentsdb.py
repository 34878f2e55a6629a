"""OpenTSDB's data row written down a second time, as plain loops over bytes: what the tests compare with.

From docs/spec/opentsdb.md §1.2, §1.5, §1.6, §2 and §3; slow, and without numpy on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

Number = tuple[str, int | bytes]
"""("int", value) or ("float", the eight bytes of the double): equal only if every bit is."""


class Element(NamedTuple):
    """One point of a column: offset from the base time, flags, the value's bytes."""

    offset_ms: int
    in_ms: bool
    flags: int
    value: bytes


class CorruptBytesError(Exception):
    """The bytes are no column."""


def number(value: float) -> Number:
    """A number in a form that tells 1 from 1.0 and 0.0 from -0.0."""
    return ("float", struct.pack(">d", value)) if isinstance(value, float) else ("int", value)


def read_value(flags: int, value: bytes) -> Number | None:
    """The number of an element; None for lengths that no number has."""
    if flags & 8:
        form = {4: ">f", 8: ">d"}.get(len(value))
        return ("float", struct.pack(">d", struct.unpack(form, value)[0])) if form else None
    return ("int", int.from_bytes(value, "big", signed=True)) if len(value) in (1, 2, 4, 8) else None


def read_qualifier(data: bytes, at: int) -> tuple[Element, int]:
    """The element (without its value) whose qualifier stands at `at`, and where the qualifier ends."""
    wide = 4 if at < len(data) and data[at] & 0xF0 == 0xF0 else 2
    word = data[at : at + wide]
    if len(word) < wide:
        raise CorruptBytesError("cut in half")
    bits = int.from_bytes(word, "big")
    offset = (bits >> 6) & 0x3FFFFF if wide == 4 else (bits >> 4) * 1000
    return Element(offset, wide == 4, bits & 15, b""), at + wide


def split_qualifiers(qualifiers: bytes) -> list[Element]:
    """The elements of a column, without their values."""
    if not qualifiers:
        raise CorruptBytesError("empty")
    found, at = [], 0
    while at < len(qualifiers):
        element, at = read_qualifier(qualifiers, at)
        found.append(element)
    return found


def split_column(qualifiers: bytes, value: bytes) -> list[Element]:
    """The elements of a compacted column; the trailing byte may be missing."""
    found, at = [], 0
    for element in split_qualifiers(qualifiers):
        end = at + (element.flags & 7) + 1
        found.append(element._replace(value=value[at:end]))
        at = end
    if len(value) - at not in (0, 1):
        raise CorruptBytesError("lengths")
    return found


def split_append(value: bytes) -> list[Element]:
    """The elements of an append column in the order they were appended."""
    found, at = [], 0
    while at < len(value):
        element, at = read_qualifier(value, at)
        end = at + (element.flags & 7) + 1
        if end > len(value):
            raise CorruptBytesError("ends inside an element")
        found.append(element._replace(value=value[at:end]))
        at = end
    return found


def read_row(cells: Iterable[tuple[int, bytes, bytes]]) -> dict[int, tuple[int, Element]]:
    """By offset, cell timestamp and winner of sound columns given as (timestamp, qualifier, value).

    The newest column wins, of equal age the one with the greater qualifier; inside an append column
    the last element, inside a compacted one the first.
    """
    row: dict[int, tuple[int, Element]] = {}
    for timestamp, qualifier, value in sorted(cells):
        column: dict[int, tuple[int, Element]] = {}
        if len(qualifier) == 3:
            for element in split_append(value):
                column[element.offset_ms] = timestamp, element
        else:
            for element in split_column(qualifier, value):
                column.setdefault(element.offset_ms, (timestamp, element))
        row.update(column)
    return row


def java_hash(data: bytes) -> int:
    """java.util.Arrays.hashCode(byte[])."""
    h = 1
    for byte in struct.unpack(f"{len(data)}b", data):
        h = 31 * h + byte
        h = (h + 2**31) % 2**32 - 2**31  # wrap to 32 bits, signed
    return h


def java_bucket(data: bytes, buckets: int) -> int:
    """Math.abs(hash % buckets), with Java's remainder that takes the dividend's sign."""
    h = java_hash(data)
    quotient = int(h / buckets)  # towards zero; exact, since 32 bits fit a double
    return abs(h - quotient * buckets)
