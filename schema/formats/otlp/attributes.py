"""Attributes of OTLP as tags.

    message KeyValue { string key = 1; AnyValue value = 2; }
    message AnyValue { oneof value { string string_value = 1; bool bool_value = 2; int64 int_value = 3;
                                     double double_value = 4; ArrayValue array_value = 5;
                                     KeyValueList kvlist_value = 6; bytes bytes_value = 7; } }

Source: opentelemetry/proto/common/v1/common.proto. A value that is not a string becomes text as the
specification's "attributes to strings" says: numbers and booleans in JSON's form, arrays and maps as JSON.
"""

from __future__ import annotations

import base64
import json
import math
import struct

from timebeam.schema.bits.meter import charge_fields
from timebeam.schema.bits.protobuf import BYTES, FIXED64, VARINT, ProtoError, field_contents, varint
from timebeam.schema.core.points import add_tag

_KEY, _VALUE = 1 << 3 | BYTES, 2 << 3 | BYTES
_STRING, _BOOL, _INT, _DOUBLE = 1 << 3 | BYTES, 2 << 3 | VARINT, 3 << 3 | VARINT, 4 << 3 | FIXED64
_ARRAY, _MAP, _BYTES = 5 << 3 | BYTES, 6 << 3 | BYTES, 7 << 3 | BYTES
_DEEPEST = 20

Plain = str | bool | int | float | list["Plain"] | dict[str, "Plain"] | None


def read_attributes(encoded: bytes) -> dict[str, str]:
    """The tags of fields that are attributes. One without a value, or with an empty one, is none.

    >>> read_attributes(bytes.fromhex("0a14 0a09686f73742e6e616d65 12070a057765623031"))
    {'host.name': 'web01'}

    Raises:
      ProtoError, UnicodeDecodeError: the bytes are damaged.
      RefusedError: DUPLICATE_TAG.
    """
    charge_fields(len(encoded))
    tags: dict[str, str] = {}
    for _, pair in field_contents(encoded):
        key, value = _pair(pair, 0)
        text = value if isinstance(value, str) else _text(value)
        if text:
            add_tag(tags, key, text)
    return tags


def _text(value: Plain) -> str:
    """A value that is not a string, as text."""
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pair(message: bytes, depth: int) -> tuple[str, Plain]:
    """The key and the value of an attribute."""
    key, value = b"", b""
    for tag, content in field_contents(message):
        if tag == _KEY:
            key = content
        elif tag == _VALUE:
            value = content
    return key.decode(), _value(value, depth)


def _value(message: bytes, depth: int) -> Plain:
    if depth > _DEEPEST:
        raise ProtoError(f"attributes of more than {_DEEPEST} levels")
    value: Plain = None
    for tag, content in field_contents(message):
        if tag == _STRING:
            value = content.decode()
        elif tag == _BOOL:
            value = varint(content, 0)[0] != 0
        elif tag == _INT:
            number = varint(content, 0)[0] & 0xFFFFFFFFFFFFFFFF
            value = number - (number >> 63 << 64)
        elif tag == _DOUBLE:
            (value,) = struct.unpack("<d", content)
        elif tag == _ARRAY:
            value = [_value(each, depth + 1) for tag, each in field_contents(content) if tag == _KEY]
        elif tag == _MAP:
            value = dict(_pair(each, depth + 1) for tag, each in field_contents(content) if tag == _KEY)
        elif tag == _BYTES:
            value = base64.b64encode(content).decode()
    return value
