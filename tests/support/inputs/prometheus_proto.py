"""Requests of remote write that google.protobuf encodes, by the field numbers of Prometheus' .proto files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "double": 1, "int64": 3, "uint64": 4, "string": 9, "uint32": 13, "enum": 5, "sint32": 17, "sint64": 18,
}  # fmt: skip

_HISTOGRAM = """
count_int=1 uint64, count_float=2 double, sum=3 double, schema=4 sint32, zero_threshold=5 double,
zero_count_int=6 uint64, zero_count_float=7 double, negative_spans=8 *BucketSpan, negative_deltas=9 *sint64,
negative_counts=10 *double, positive_spans=11 *BucketSpan, positive_deltas=12 *sint64,
positive_counts=13 *double, reset_hint=14 enum, timestamp=15 int64, custom_values=16 *double
"""

_FILES = {
    "prometheus": {
        "WriteRequest": "timeseries=1 *TimeSeries, metadata=3 *MetricMetadata",
        "TimeSeries": "labels=1 *Label, samples=2 *Sample, exemplars=3 *Exemplar, histograms=4 *Histogram",
        "Label": "name=1 string, value=2 string",
        "Sample": "value=1 double, timestamp=2 int64",
        "Exemplar": "labels=1 *Label, value=2 double, timestamp=3 int64",
        "MetricMetadata": "type=1 enum, metric_family_name=2 string, help=4 string, unit=5 string",
        "BucketSpan": "offset=1 sint32, length=2 uint32",
        "Histogram": _HISTOGRAM,
    },
    "io.prometheus.write.v2": {
        "Request": "symbols=4 *string, timeseries=5 *TimeSeries",
        "TimeSeries": "labels_refs=1 *uint32, samples=2 *Sample, histograms=3 *Histogram, "
        "exemplars=4 *Exemplar, metadata=5 Metadata, created_timestamp=6 int64",
        "Sample": "value=1 double, timestamp=2 int64, start_timestamp=3 int64",
        "Exemplar": "labels_refs=1 *uint32, value=2 double, timestamp=3 int64",
        "Metadata": "type=1 enum, help_ref=3 uint32, unit_ref=4 uint32",
        "BucketSpan": "offset=1 sint32, length=2 uint32",
        "Histogram": _HISTOGRAM,
    },
}


def _file(package: str, messages: dict[str, str]) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of one .proto file."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, text in messages.items():
        message = file.message_type.add(name=name)
        for field in text.split(","):
            key, kind = field.split()
            field_name, number = key.split("=")
            is_repeated, kind = kind.startswith("*"), kind.lstrip("*")
            added = message.field.add(name=field_name, number=int(number), label=3 if is_repeated else 1)
            added.type = _TYPES.get(kind, 11)
            if kind not in _TYPES:
                added.type_name = f".{package}.{kind}"
    return file


_POOL = descriptor_pool.DescriptorPool()
for _package, _messages in _FILES.items():
    _POOL.Add(_file(_package, _messages))


def message(name: str) -> Any:
    """The class of a message of version 1.0, as `WriteRequest`, or of 2.0, as `v2.Request`."""
    package = "io.prometheus.write.v2" if name.startswith("v2.") else "prometheus"
    descriptor = _POOL.FindMessageTypeByName(f"{package}.{name.removeprefix('v2.')}")
    return message_factory.GetMessageClass(descriptor)


Labels = dict[str, str]
Plain = list[tuple[Labels, list[tuple[float, int]]]]
"""What a request says: labels, and (value, time in ms) of samples."""


def request_1(series: Plain) -> bytes:
    request = message("WriteRequest")()
    for labels, samples in series:
        added = request.timeseries.add()
        for name, value in labels.items():
            added.labels.add(name=name, value=value)
        for number, time in samples:
            added.samples.add(value=number, timestamp=time)
    return bytes(request.SerializeToString())


def request_2(series: Plain) -> bytes:
    request = message("v2.Request")()
    symbols = {"": 0}
    for labels, samples in series:
        added = request.timeseries.add()
        for text in (text for pair in labels.items() for text in pair):
            added.labels_refs.append(symbols.setdefault(text, len(symbols)))
        for number, time in samples:
            added.samples.add(value=number, timestamp=time, start_timestamp=time - 5)
    request.symbols.extend(symbols)
    return bytes(request.SerializeToString())


ENCODERS = {1: request_1, 2: request_2}


def snappy(request: bytes) -> bytes:
    return bytes(pa.compress(request, codec="snappy", asbytes=True))
