"""The messages of OTLP: levels above the metrics, attributes as tags, histograms and summaries as series.

Source: opentelemetry/proto/metrics/v1/metrics.proto.

| | count | sum | buckets | min, max |
|---|---|---|---|---|
| HistogramDataPoint | 4 fixed64 | 5 | counts 6 fixed64, explicit_bounds 7 | 11, 12 |
| ExponentialHistogramDataPoint | 4 | 5 | scale 6, zeros 7, positive 8, negative 9, threshold 14 | 12, 13 |
| SummaryDataPoint | 4 | 5 | quantile_values 6 | |

    message KeyValue { string key = 1; AnyValue value = 2; }
    message AnyValue { oneof value { string string_value = 1; bool bool_value = 2; int64 int_value = 3;
                                     double double_value = 4; ArrayValue array_value = 5;
                                     KeyValueList kvlist_value = 6; bytes bytes_value = 7; } }

Source: opentelemetry/proto/common/v1/common.proto. A value that is not a string becomes text as the
specification's "attributes to strings" says: numbers and booleans in JSON's form, arrays and maps as JSON.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.memory_limit import charge_fields
from timebeam.schema.bits.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    ProtoError,
    field_contents,
    signed,
    unpacked_varints,
    varint,
)
from timebeam.schema.bits.protobuf_columns import CorruptMessagesError, Fields, scan
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.histograms import (
    SPARSE_BUCKETS,
    SeriesPoint,
    bound_text,
    cumulated,
    explicit,
    explicit_histogram,
    sparse,
)
from timebeam.schema.core.points import add_tag
from timebeam.schema.core.rejections import Spans
from timebeam.schema.formats.options import OPENTSDB

FIRST, _SECOND = 1 << 3 | BYTES, 2 << 3 | BYTES
"""Number and type of the fields that hold a resource, a scope, the name of a metric, or data points."""


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """The messages above the metrics: the bytes of each resource and scope, and where the metrics are.

    Attributes:
      resources: of each `ResourceMetrics`.
      scopes: (number of the resource, bytes of the scope) of each `ScopeMetrics`.
      metrics: the fields of metrics, whose messages are `ScopeMetrics`.
      wholes: the span of each `ResourceMetrics`.
      kept: the attributes of the resources that were read, by their number, or why they are rejected.
    """

    resources: Sequence[bytes]
    scopes: Sequence[tuple[int, bytes]]
    metrics: Fields
    wholes: Spans
    kept: dict[int, dict[str, str] | RejectedError] = dataclasses.field(default_factory=dict)


def levels_of(padded: bytes, starts: Int64s, ends: Int64s) -> Levels:
    """The messages above the metrics of requests, from `starts` to `ends` of a text.

    Raises:
      CorruptMessagesError: some are corrupt, or no requests.
    """
    top = scan(padded, starts, ends)
    resource_metrics = top.of(FIRST)
    is_request = np.zeros(len(starts), np.bool_)
    is_request[resource_metrics.message] = True
    foreign = ~is_request & (ends > starts)
    if foreign.any():
        raise CorruptMessagesError(starts[foreign], "no request of OTLP for metrics")
    inside = scan(padded, resource_metrics.firsts, resource_metrics.ends)
    resources = [b""] * len(resource_metrics)
    for number, first, end in spans_of(inside.of(FIRST)):
        resources[number] = padded[first:end]
    scope_metrics = inside.of(_SECOND)
    within = scan(padded, scope_metrics.firsts, scope_metrics.ends)
    scopes = [(number, b"") for number in scope_metrics.message.tolist()]
    for number, first, end in spans_of(within.of(FIRST)):
        scopes[number] = scopes[number][0], padded[first:end]
    metrics = within.of(_SECOND)
    return Levels(resources, scopes, metrics, (resource_metrics.starts, resource_metrics.ends))


def spans_of(fields: Fields) -> Iterator[tuple[int, int, int]]:
    """(number of the message, start, end of the content) of each field."""
    return zip(fields.message.tolist(), fields.firsts.tolist(), fields.ends.tolist(), strict=True)


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
      ProtoError, UnicodeDecodeError: the bytes are corrupt.
      RejectedError: DUPLICATE_TAG.
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


Contents = Mapping[int, Sequence[bytes]]
"""The contents of fields, by number."""


def histogram(message: bytes, parts: Sequence[str]) -> Iterator[SeriesPoint]:
    """The values of a `HistogramDataPoint`.

    Raises:
      ProtoError: it is corrupt.
      RejectedError: its buckets make no sense.
    """
    contents = _contents(message)
    yield from _figures(contents, parts, 11, 12)
    counts, bounds = _packed(contents, 6, "<Q"), _packed(contents, 7, "<d")
    if OPENTSDB in parts and counts:
        yield SeriesPoint("", None, explicit_histogram(bounds, list(map(int, counts))))
    if "buckets" in parts:
        yield from cumulated(explicit(bounds, counts), _count(contents))


def exponential(message: bytes, parts: Sequence[str]) -> Iterator[SeriesPoint]:
    """The values of an `ExponentialHistogramDataPoint`.

    Raises:
      ProtoError: it is corrupt.
      RejectedError: its buckets make no sense.
    """
    contents = _contents(message)
    yield from _figures(contents, parts, 12, 13)
    if "buckets" in parts:
        scale = _zigzag(contents.get(6, ())) if contents.get(6) else 0
        zeros, thresholds = _packed(contents, 7, "<Q"), _packed(contents, 14, "<d")
        buckets = sparse(
            scale,
            _buckets(contents.get(8, ())),
            _buckets(contents.get(9, ())),
            zeros[-1] if zeros else 0,
            thresholds[-1] if thresholds else 0.0,
        )
        yield from cumulated(buckets, _count(contents))


def summary(message: bytes, parts: Sequence[str]) -> Iterator[SeriesPoint]:
    """The values of a `SummaryDataPoint`; raises ProtoError."""
    contents = _contents(message)
    yield SeriesPoint("_count", None, _count(contents))
    yield SeriesPoint("_sum", None, (_packed(contents, 5, "<d") or [0.0])[-1])
    for each in contents.get(6, ()):
        quantile = _contents(each)
        fraction, value = ((_packed(quantile, number, "<d") or [0.0])[-1] for number in (1, 2))
        yield SeriesPoint("", ("quantile", bound_text(fraction)), value)


def _figures(contents: Contents, parts: Sequence[str], low: int, high: int) -> Iterator[SeriesPoint]:
    """Count, sum, minimum and maximum, the last two from fields of these numbers."""
    if "count" in parts:
        yield SeriesPoint("_count", None, _count(contents))
    for part, number in (("sum", 5), ("min", low), ("max", high)):
        values = _packed(contents, number, "<d")
        if part in parts and values:
            yield SeriesPoint(f"_{part}", None, values[-1])


def _contents(message: bytes) -> dict[int, list[bytes]]:
    """The contents of the fields of a message, by number."""
    charge_fields(len(message))
    contents: dict[int, list[bytes]] = {}
    for tag, content in field_contents(message):
        contents.setdefault(tag >> 3, []).append(content)
    return contents


def _count(contents: Contents) -> int:
    """The count of a histogram or summary."""
    count = (_packed(contents, 4, "<Q") or [0])[-1]
    if count >= 1 << 63:
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"count {count} needs more than 63 bits")
    return int(count)


def _packed(contents: Contents, number: int, form: str) -> list[float]:
    """The numbers of eight bytes in the fields of a number, packed or not."""
    try:
        return [value for each in contents.get(number, ()) for (value,) in struct.iter_unpack(form, each)]
    except struct.error as error:
        raise ProtoError("a number of eight bytes that has others") from error


def _zigzag(contents: Sequence[bytes]) -> int:
    """The last of numbers that protobuf has written as sint32."""
    return signed(next(unpacked_varints(contents[-1]), 0))


def _buckets(messages: Sequence[bytes]) -> dict[int, int]:
    """The counts above 0 of `Buckets { sint32 offset = 1; repeated uint64 bucket_counts = 2; }`, by index."""
    if not messages:
        return {}
    contents = _contents(messages[-1])
    counts: list[int] = []
    for packed in contents.get(2, ()):
        counts += unpacked_varints(packed)
        if len(counts) > SPARSE_BUCKETS:
            raise RejectedError(Reason.VALUE_NOT_STORABLE, f"more than {SPARSE_BUCKETS} buckets")
    offset = _zigzag(contents[1]) if 1 in contents else 0
    return {offset + number: count for number, count in enumerate(counts) if count}


Reader = Callable[[bytes, Sequence[str]], Iterator[SeriesPoint]]


class MetricKind(NamedTuple):
    """How metrics of one kind are read: the numbers of fields; what reads a point, None for numbers."""

    tag: int
    attributes: int
    flags: int
    has_temporality: bool
    read: Reader | None


KINDS = (
    MetricKind(5 << 3 | BYTES, 7, 8, False, None),
    MetricKind(7 << 3 | BYTES, 7, 8, True, None),
    MetricKind(9 << 3 | BYTES, 9, 10, True, histogram),
    MetricKind(10 << 3 | BYTES, 1, 10, True, exponential),
    MetricKind(11 << 3 | BYTES, 7, 8, False, summary),
)
