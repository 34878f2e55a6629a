"""Small messages that would become gigabytes: each is rejected, or read, in a child with little memory.

What multiplies: names that many series share, fields of two bytes, numbers of JSON. All formats charge it
to one meter (`timebeam.schema.bits.memory_limit`): the 256 MiB of docs/use/ingest.md for a message.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.support.inputs.confined import Outcome, parsed
from timebeam.schema.bits.protobuf import encoded_bytes, encoded_varint
from timebeam.schema.formats.parquet.parquet_columns import TIME, batch_bytes

MEMORY = 640 << 20
"""Beside the imports: what a message may become, itself twice (64 MiB), and as much to work with."""

NS = 1_356_998_400_000_000_000
TIME_FIELD = encoded_varint(3 << 3 | 1) + struct.pack("<Q", NS)
POINT = TIME_FIELD + encoded_varint(4 << 3 | 1) + struct.pack("<d", 1.0)
SAMPLE = encoded_bytes(2, encoded_varint(2 << 3) + encoded_varint(NS // 10**6))


def attribute(key: bytes, value: bytes) -> bytes:
    return encoded_bytes(1, key) + encoded_bytes(2, encoded_bytes(1, value))


def otlp(*metrics: bytes, resource: bytes = b"", scope: bytes = b"") -> bytes:
    """A request of encoded metrics."""
    of_scope = encoded_bytes(1, encoded_bytes(1, scope)) + b"".join(
        encoded_bytes(2, each) for each in metrics
    )
    head = encoded_bytes(1, encoded_bytes(1, resource)) if resource else b""
    return encoded_bytes(1, head + encoded_bytes(2, of_scope))


def gauge(name: bytes, *points: bytes) -> bytes:
    return encoded_bytes(1, name) + encoded_bytes(5, b"".join(encoded_bytes(1, each) for each in points))


def histograms(name: bytes, *points: bytes) -> bytes:
    data = b"\x10\x02" + b"".join(encoded_bytes(1, each) for each in points)
    return encoded_bytes(1, name) + encoded_bytes(9, data)


def snappy(request: bytes) -> bytes:
    return bytes(pa.compress(request, "snappy", asbytes=True))


def label(name: bytes, value: bytes) -> bytes:
    return encoded_bytes(1, encoded_bytes(1, name) + encoded_bytes(2, value))


NAMED = label(b"__name__", b"m")


def series_1(*contents: bytes) -> bytes:
    return b"".join(encoded_bytes(1, content) for content in contents)


def symbols(*texts: bytes) -> bytes:
    return b"".join(encoded_bytes(4, text) for text in (b"", b"__name__", b"m", *texts))


def series_2(refs: bytes) -> bytes:
    return encoded_bytes(5, encoded_bytes(1, refs) + SAMPLE)


def native_histogram(buckets: int) -> bytes:
    span = encoded_bytes(11, b"\x08\x00\x10" + encoded_varint(buckets))
    times = encoded_varint(15 << 3) + encoded_varint(NS // 10**6)
    return encoded_bytes(4, span + encoded_bytes(12, b"\x02" * buckets) + times)


def influx(head: bytes, fields: int) -> bytes:
    return head + b" " + b",".join(b"f%d=1" % n for n in range(fields)) + b" %d\n" % NS


def avro(schema: dict[str, Any], count: int, data: bytes) -> bytes:
    """A container of one block."""
    file = io.BytesIO()
    fastavro.writer(file, schema, [], codec="deflate", sync_marker=b"sixteen letters.")
    packed = zlib.compress(data, 9)[2:-4]
    zigzag = encoded_varint(2 * count) + encoded_varint(2 * len(packed))
    return file.getvalue() + zigzag + packed + b"sixteen letters."


def record(**fields: Any) -> dict[str, Any]:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "R", "fields": named}


def rows_of_one_metric(size: int, rows: int) -> bytes:
    """Rows of Parquet with one metric, once in the message, and a tag each."""
    metric = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["m" * size])
    columns = {
        "metric": metric,
        "tag_h": [str(n) for n in range(rows)],
        "time": pa.array([NS // 10**6] * rows, TIME),
        "kind": ["double"] * rows,
        "int_value": pa.array([None] * rows, pa.int64()),
        "double_value": [1.0] * rows,
    }
    return batch_bytes(pa.record_batch(columns))


MIB = 1 << 20
LONG = b"x" * 1_000_000

Make = Callable[[], bytes]
BOMBS: dict[str, tuple[str, dict[str, Any], Make]] = {
    "otlp: an attribute of a resource, and metrics": (
        "otlp",
        {},
        lambda: otlp(
            *[gauge(b"m%d" % n, POINT) for n in range(100_000)], resource=attribute(b"service.name", LONG)
        ),
    ),
    "otlp: a metric, and attributes": (
        "otlp",
        {},
        lambda: otlp(
            gauge(LONG, *[POINT + encoded_bytes(7, attribute(b"h", b"%d" % n)) for n in range(100_000)])
        ),
    ),
    "otlp: a scope, and metrics": (
        "otlp",
        {"otlp_scope": True},
        lambda: otlp(*[gauge(b"m%d" % n, POINT) for n in range(100_000)], scope=LONG),
    ),
    "otlp: a corrupt resource, and metrics": (
        "otlp",
        {},
        lambda: otlp(
            *[gauge(b"m%d" % n, POINT) for n in range(100_000)], resource=b"\x0a\x02\xff\xff" * 250_000
        ),
    ),
    "otlp: a metric of histograms": (
        "otlp",
        {},
        lambda: otlp(
            histograms(
                LONG,
                TIME_FIELD
                + encoded_bytes(6, struct.pack("<Q", 1) * 5001)
                + encoded_bytes(7, b"".join(struct.pack("<d", n) for n in range(5000))),
            )
        ),
    ),
    "otlp: a histogram of millions of buckets": (
        "otlp",
        {},
        lambda: otlp(
            histograms(
                b"m",
                TIME_FIELD
                + encoded_bytes(6, struct.pack("<Q", 1) * 3_000_001)
                + encoded_bytes(7, b"".join(struct.pack("<d", n) for n in range(3_000_000))),
            )
        ),
    ),
    "otlp: histograms of unknown fields": (
        "otlp",
        {},
        lambda: otlp(histograms(b"m", *[TIME_FIELD + b"\x78\x01\x70\x01" * MIB] * 7)),
    ),
    "otlp: empty histograms": ("otlp", {}, lambda: otlp(histograms(b"m", *[b""] * 4_100_000))),
    "otlp: empty points of many metrics": (
        "otlp",
        {},
        lambda: otlp(*[gauge(b"m%d" % n) + encoded_bytes(5, b"\x0a\0" * 4_000_000) for n in range(7)]),
    ),
    "otlp: unknown fields of many metrics": (
        "otlp",
        {},
        lambda: otlp(*[gauge(b"m%d" % n, POINT + b"\x78\x01\x70\x01" * 250_000) for n in range(60)]),
    ),
    "otlp: attributes of a point": (
        "otlp",
        {},
        lambda: otlp(
            gauge(
                b"m", POINT + b"".join(encoded_bytes(7, attribute(b"%d" % n, b"v")) for n in range(3_000_000))
            )
        ),
    ),
    "otlp in json: empty arrays": (
        "otlp",
        {},
        lambda: b'{"resourceMetrics":[],"x":[' + b"[]," * (20 * MIB) + b"[]]}",
    ),
    "remote write 1: fields of many series": (
        "prometheus-remote-write",
        {},
        lambda: snappy(series_1(*[NAMED + b"\x78\x01\x70\x01" * 500_000 + SAMPLE] * 30)),
    ),
    "remote write 1: empty samples": (
        "prometheus-remote-write",
        {},
        lambda: snappy(series_1(*[NAMED + b"\x12\x00" * 4_194_299] * 7)),
    ),
    "remote write 1: a histogram of varints": (
        "prometheus-remote-write",
        {},
        lambda: snappy(series_1(NAMED + encoded_bytes(4, encoded_bytes(12, b"\0" * (60 << 20))))),
    ),
    "remote write 1: a metric of histograms": (
        "prometheus-remote-write",
        {},
        lambda: snappy(series_1(label(b"__name__", LONG) + native_histogram(9_000))),
    ),
    "remote write 1: empty labels": (
        "prometheus-remote-write",
        {},
        lambda: snappy(series_1(NAMED + b"\x0a\x00" * (30 * MIB) + SAMPLE)),
    ),
    "remote write 2: a symbol, and series": (
        "prometheus-remote-write",
        {},
        lambda: snappy(
            symbols(LONG, *[b"k%d" % n for n in range(10_000)])
            + b"".join(series_2(b"\1\2" + encoded_varint(4 + n) + b"\3") for n in range(10_000))
        ),
    ),
    "remote write 2: references of a series": (
        "prometheus-remote-write",
        {},
        lambda: snappy(symbols() + series_2(b"\1\2" * (30 * MIB))),
    ),
    "influx: a tag, and fields": ("influx", {}, lambda: influx(b"m,h=" + b"a" * 500_000, 50_000)),
    "influx: a measurement, and fields": ("influx", {}, lambda: influx(b"m" * 500_000 + b",h=a", 50_000)),
    "influx: tags, and fields": (
        "influx",
        {},
        lambda: influx(b"m" + b"".join(b",t%d=a" % n for n in range(50_000)), 50_000),
    ),
    "influx: many such lines": (
        "influx",
        {},
        lambda: b"".join(influx(b"m%d,h=" % n + b"a" * 16_000, 4_000) for n in range(80)),
    ),
    "influx: escaped, so read alone": ("influx", {}, lambda: influx(b"m\\ " + b"a" * 500_000, 50_000)),
    "telegraf-json: a name, and fields": (
        "telegraf-json",
        {},
        lambda: (
            b'{"name":"'
            + b"m" * 500_000
            + b'","tags":{"h":"a"},"timestamp":1356998400,"fields":{'
            + b",".join(b'"f%d":1' % n for n in range(50_000))
            + b"}}\n"
        ),
    ),
    "telegraf-json: a tag, and fields": (
        "telegraf-json",
        {},
        lambda: (
            b'{"name":"m","tags":{"h":"'
            + b"a" * 500_000
            + b'"},"timestamp":1356998400,"fields":{'
            + b",".join(b'"f%d":1' % n for n in range(50_000))
            + b"}}\n"
        ),
    ),
    "heroic-json: points of a document": (
        "heroic-json",
        {},
        lambda: (
            b'{"series":{"key":"k"},"data":{"type":"points","data":['
            + b"[1,2]," * (5 * MIB // 2)
            + b"[1,2]]}}"
        ),
    ),
    "heroic-proto: metrics of a time": ("heroic-proto", {}, lambda: snappy(b"\x0a\x02\x10\x01" * (15 * MIB))),
    "heroic-proto: tags of a metric": (
        "heroic-proto",
        {},
        lambda: snappy(encoded_bytes(1, b"\x10\x01" + b"\x22\x00" * (30 * MIB))),
    ),
    "kairosdb-json: points of a metric": (
        "kairosdb-json",
        {},
        lambda: b'{"name":"m","tags":{"h":"a"},"datapoints":[' + b"[1,2]," * (5 * MIB // 2) + b"[1,2]]}",
    ),
    "kairosdb-json: points of a metric, read one by one": (
        "kairosdb-json",
        {},
        lambda: b'{"name":"m","tags":{"h":"a"},"datapoints":[' + b'[1,"2"],' * (5 * MIB // 4) + b"[1,1e1]]}",
    ),
    "opentsdb-json: members of an object": (
        "opentsdb-json",
        {},
        lambda: b'{"metric":"m","tags":{' + b'"":1,' * (3 * MIB) + b'"a":1}}',
    ),
    "opentsdb-histogram: members of an object": (
        "opentsdb-histogram",
        {},
        lambda: b'{"metric":"m","buckets":{' + b'"":1,' * (3 * MIB) + b'"a":1}}',
    ),
    "opentsdb-annotations: members of an object": (
        "opentsdb-annotations",
        {},
        lambda: b'{"custom":{' + b'"":1,' * (3 * MIB) + b'"a":1}}',
    ),
    "avro: points of two bytes": (
        "avro",
        {"avro_fields": "metric:=m,timestamp=timestamp,value=value"},
        lambda: avro(record(timestamp="int", value="int"), 2_097_152, b"\x02\x02" * 2_097_152),
    ),
    "avro: a series each": (
        "avro",
        {"avro_fields": "metric:=m,timestamp=timestamp,value=value,tag:a=a"},
        lambda: avro(
            record(timestamp="int", value="int", a="int"),
            2_000_000,
            b"".join(b"\x02\x02" + encoded_varint(2 * n) for n in range(2_000_000)),
        ),
    ),
    "parquet: a metric, and tags": ("parquet", {}, lambda: rows_of_one_metric(1_000_000, 100_000)),
    "records in avro": (
        "records",
        {"encoding": "avro"},
        lambda: avro(record(a="int", b="int"), 2_097_152, b"\x02\x02" * 2_097_152),
    ),
}
"""A format, its options, and a message that would take a gigabyte or more."""

QUICK = ["otlp: an attribute of a resource, and metrics", "influx: a tag, and fields"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in BOMBS]
)
def test_a_small_message_takes_little_memory(name: str) -> None:
    form, options, make = BOMBS[name]
    outcome: Outcome = parsed(form, options, make(), MEMORY)
    assert outcome.code == 0
    assert "internal-error" not in {reason for reason, _ in outcome.rejected}
    assert outcome.rejected or outcome.points
