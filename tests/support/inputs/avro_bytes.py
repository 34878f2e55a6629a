"""Avro's binary encoding and object containers, byte by byte."""

from __future__ import annotations

from timebeam.schema.formats.avro.schema import own_schema

SYNC = b"0123456789abcdef"


def long(number: int) -> bytes:
    """A number as Avro's binary encoding writes it."""
    number = (number << 1) ^ (number >> 63)
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return long(len(raw)) + raw


def tag_map(**tags: str) -> bytes:
    pairs = b"".join(text(key) + text(value) for key, value in tags.items())
    return (long(len(tags)) + pairs if tags else b"") + b"\0"


def point(
    time: int, value: bytes, metric: str | bytes = "sys.cpu", tags: bytes = tag_map(host="web01")
) -> bytes:
    """A record of point.avsc; the value with the number of its branch: 0 long, 2 double."""
    return text(metric) + long(time) + value + tags


def integer(value: int) -> bytes:
    return b"\0" + long(value)


def container(*blocks: list[bytes], schema: str | None = None, codec: bytes | None = None) -> bytes:
    """An object container of blocks of records."""
    pairs = [(b"avro.schema", (schema or own_schema("point")).encode())]
    if codec is not None:
        pairs.append((b"avro.codec", codec))
    header = (
        b"Obj\x01"
        + long(len(pairs))
        + b"".join(text(key) + text(value) for key, value in pairs)
        + b"\0"
        + SYNC
    )
    return header + b"".join(block(records) for records in blocks)


def block(records: list[bytes]) -> bytes:
    data = b"".join(records)
    return long(len(records)) + long(len(data)) + data + SYNC
