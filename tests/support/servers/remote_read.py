"""A client of Prometheus' remote read, with protobuf's own library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

EQ, NEQ, RE, NRE = range(4)

Field = descriptor_pb2.FieldDescriptorProto
_MESSAGES = {
    "Sample": [("value", 1, Field.TYPE_DOUBLE), ("timestamp", 2, Field.TYPE_INT64)],
    "Label": [("name", 1, Field.TYPE_STRING), ("value", 2, Field.TYPE_STRING)],
    "TimeSeries": [("labels", 1, "Label"), ("samples", 2, "Sample")],
    "QueryResult": [("timeseries", 1, "TimeSeries")],
    "ReadResponse": [("results", 1, "QueryResult")],
    "LabelMatcher": [
        ("type", 1, Field.TYPE_INT32),
        ("name", 2, Field.TYPE_STRING),
        ("value", 3, Field.TYPE_STRING),
    ],
    "Query": [
        ("start_timestamp_ms", 1, Field.TYPE_INT64),
        ("end_timestamp_ms", 2, Field.TYPE_INT64),
        ("matchers", 3, "LabelMatcher"),
        ("hints", 4, Field.TYPE_BYTES),
    ],
    "ReadRequest": [("queries", 1, "Query"), ("accepted_response_types", 2, Field.TYPE_INT32)],
}
_REPEATED = {"labels", "samples", "timeseries", "results", "matchers", "queries", "accepted_response_types"}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="remote.proto", package="p", syntax="proto3")
    for name, members in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for member, number, kind in members:
            field = message.field.add(name=member, number=number)
            field.label = Field.LABEL_REPEATED if member in _REPEATED else Field.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type, field.type_name = Field.TYPE_MESSAGE, f".p.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"p.{name}")) for name in _MESSAGES
    }


_CLASSES = _classes()


def request(
    start_ms: int, end_ms: int, *matchers: tuple[int, str, str], accepted: Sequence[int] = (0, 1)
) -> bytes:
    """The body of a request of one query, its matchers as (type, name, value)."""
    message = _CLASSES["ReadRequest"](accepted_response_types=accepted)
    query = message.queries.add(start_timestamp_ms=start_ms, end_timestamp_ms=end_ms, hints=b"\x08\x01")
    for kind, name, value in matchers:
        query.matchers.add(type=kind, name=name, value=value)
    body: bytes = pa.compress(message.SerializeToString(), codec="snappy", asbytes=True)
    return body


def answer(body: bytes) -> list[tuple[dict[str, str], list[tuple[int, float]]]]:
    """The (labels, samples) of the series of the first result, in their order."""
    size, shift = 0, 0
    for byte in body:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    message = _CLASSES["ReadResponse"].FromString(pa.decompress(body, size, codec="snappy", asbytes=True))
    return [
        (
            {label.name: label.value for label in series.labels},
            [(sample.timestamp, sample.value) for sample in series.samples],
        )
        for series in message.results[0].timeseries
    ]
