"""OTLP/JSON as protobuf: the same messages with names in lowerCamelCase for the numbers of fields.

Source: opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding": integers of 64 bits may be strings, enums
are numbers, unknown members are ignored. Exemplars and metadata are left out, since nothing reads them.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from timebeam.schema.bits.memory_limit import charge_json
from timebeam.schema.bits.protobuf import FIXED64, VARINT, encoded_bytes, encoded_varint
from timebeam.schema.bits.reasons import Reason, RejectedError, shown

_64_BITS = (1 << 64) - 1

Writer = Callable[[int, Any], bytes]
"""Encodes a value as the field of a number; raises ValueError or TypeError."""


def encoded_request(text: bytes) -> bytes:
    """An `ExportMetricsServiceRequest` in JSON, as protobuf.

    Raises:
      RejectedError: CORRUPT_MESSAGE.
    """
    charge_json(text)
    try:
        request = msgspec.json.decode(text)
        if not isinstance(request, dict) or "resourceMetrics" not in request:
            raise ValueError("no object with resourceMetrics")
        return _content("Request", request)
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise RejectedError(Reason.CORRUPT_MESSAGE, f"no request of OTLP in JSON: {error}") from error


def _content(name: str, members: object) -> bytes:
    """The fields of a message of `_MESSAGES`."""
    if not isinstance(members, dict):
        raise TypeError(f"a {name} must be an object, not {shown(members)!r}")
    known = _MESSAGES[name]
    fields = []
    for key, value in members.items():
        field = known.get(key)
        if field is None or value is None:
            continue
        number, write, is_list = field
        if is_list and not isinstance(value, list):
            raise TypeError(f"{key} must be an array, not {shown(value)!r}")
        fields += [write(number, each) for each in (value if is_list else [value])]
    return b"".join(fields)


def _message(name: str) -> Writer:
    return lambda number, value: encoded_bytes(number, _content(name, value))


def _text(number: int, value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)!r} must be a string")
    return encoded_bytes(number, value.encode())


def _whole(value: Any) -> int:
    """A whole number, perhaps in a string."""
    if isinstance(value, bool) or not isinstance(value, int | str) or len(str(value)) > 40:
        raise TypeError(f"{shown(value)!r} must be a whole number")
    return int(value)


def _double(value: Any) -> float:
    """A number, or the name of one that JSON has not."""
    special = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if isinstance(value, str):
        return special[value] if value in special else float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{shown(value)!r} must be a number")
    return float(value)


def _head(number: int, kind: int) -> bytes:
    return encoded_varint(number << 3 | kind)


def _number(number: int, value: Any) -> bytes:
    return _head(number, VARINT) + encoded_varint(_whole(value) & _64_BITS)


def _signed(number: int, value: Any) -> bytes:
    whole = _whole(value)
    return _head(number, VARINT) + encoded_varint((whole << 1 ^ whole >> 63) & _64_BITS)


def _flag(number: int, value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError(f"{shown(value)!r} must be true or false")
    return _head(number, VARINT) + bytes([value])


def _fixed(number: int, value: Any) -> bytes:
    whole = _whole(value)
    if not -(1 << 63) <= whole <= _64_BITS:
        raise ValueError(f"{shown(value)} needs more than 64 bits")
    return _head(number, FIXED64) + (whole & _64_BITS).to_bytes(8, "little")


def _float(number: int, value: Any) -> bytes:
    return _head(number, FIXED64) + struct.pack("<d", _double(value))


def _temporality(number: int, value: Any) -> bytes:
    names = {"AGGREGATION_TEMPORALITY_DELTA": 1, "AGGREGATION_TEMPORALITY_CUMULATIVE": 2}
    return _number(number, names.get(value, value))


def _bytes(number: int, value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)!r} must be base64")
    return encoded_bytes(number, base64.b64decode(value))


Field = tuple[int, Writer, bool]
"""The number of a field, what writes it, and whether it is an array."""

_POINT: Mapping[str, Field] = {
    "startTimeUnixNano": (2, _fixed, False),
    "timeUnixNano": (3, _fixed, False),
}
_DATA: Mapping[str, Field] = {
    "aggregationTemporality": (2, _temporality, False),
    "isMonotonic": (3, _flag, False),
}

_MESSAGES: Mapping[str, Mapping[str, Field]] = {
    "Request": {"resourceMetrics": (1, _message("ResourceMetrics"), True)},
    "ResourceMetrics": {
        "resource": (1, _message("Resource"), False),
        "scopeMetrics": (2, _message("ScopeMetrics"), True),
    },
    "Resource": {"attributes": (1, _message("KeyValue"), True)},
    "ScopeMetrics": {"scope": (1, _message("Scope"), False), "metrics": (2, _message("Metric"), True)},
    "Scope": {"name": (1, _text, False), "version": (2, _text, False)},
    "Metric": {
        "name": (1, _text, False),
        "gauge": (5, _message("Numbers"), False),
        "sum": (7, _message("Numbers"), False),
        "histogram": (9, _message("Histogram"), False),
        "exponentialHistogram": (10, _message("ExponentialHistogram"), False),
        "summary": (11, _message("Summary"), False),
    },
    "Numbers": {"dataPoints": (1, _message("NumberDataPoint"), True), **_DATA},
    "Histogram": {"dataPoints": (1, _message("HistogramDataPoint"), True), **_DATA},
    "ExponentialHistogram": {"dataPoints": (1, _message("ExponentialHistogramDataPoint"), True), **_DATA},
    "Summary": {"dataPoints": (1, _message("SummaryDataPoint"), True)},
    "NumberDataPoint": {
        **_POINT,
        "attributes": (7, _message("KeyValue"), True),
        "asDouble": (4, _float, False),
        "asInt": (6, _fixed, False),
        "flags": (8, _number, False),
    },
    "HistogramDataPoint": {
        **_POINT,
        "attributes": (9, _message("KeyValue"), True),
        "count": (4, _fixed, False),
        "sum": (5, _float, False),
        "bucketCounts": (6, _fixed, True),
        "explicitBounds": (7, _float, True),
        "flags": (10, _number, False),
        "min": (11, _float, False),
        "max": (12, _float, False),
    },
    "ExponentialHistogramDataPoint": {
        **_POINT,
        "attributes": (1, _message("KeyValue"), True),
        "count": (4, _fixed, False),
        "sum": (5, _float, False),
        "scale": (6, _signed, False),
        "zeroCount": (7, _fixed, False),
        "positive": (8, _message("Buckets"), False),
        "negative": (9, _message("Buckets"), False),
        "flags": (10, _number, False),
        "min": (12, _float, False),
        "max": (13, _float, False),
        "zeroThreshold": (14, _float, False),
    },
    "Buckets": {"offset": (1, _signed, False), "bucketCounts": (2, _number, True)},
    "SummaryDataPoint": {
        **_POINT,
        "attributes": (7, _message("KeyValue"), True),
        "count": (4, _fixed, False),
        "sum": (5, _float, False),
        "quantileValues": (6, _message("Quantile"), True),
        "flags": (8, _number, False),
    },
    "Quantile": {"quantile": (1, _float, False), "value": (2, _float, False)},
    "KeyValue": {"key": (1, _text, False), "value": (2, _message("AnyValue"), False)},
    "AnyValue": {
        "stringValue": (1, _text, False),
        "boolValue": (2, _flag, False),
        "intValue": (3, _number, False),
        "doubleValue": (4, _float, False),
        "arrayValue": (5, _message("Array"), False),
        "kvlistValue": (6, _message("Map"), False),
        "bytesValue": (7, _bytes, False),
    },
    "Array": {"values": (1, _message("AnyValue"), True)},
    "Map": {"values": (1, _message("KeyValue"), True)},
}
"""The members that are read of each message."""
