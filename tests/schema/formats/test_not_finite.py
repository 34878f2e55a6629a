"""NaN and infinities in every format: skipped and counted, or rejected, as docs/reference/formats.md says."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.inputs.prometheus_proto import request_1, request_2, snappy
from timebeam.schema.bits.protobuf import encoded_varint
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import Message, message_format
from timebeam.schema.formats.base import NOT_FINITE, Parsed
from timebeam.schema.formats.options import FormatOptions
from timebeam.schema.formats.parquet.parquet_format import batch_bytes
from timebeam.schema.formats.prometheus.remote_write import STALE

TIME = 1_356_998_400_000
LABELS = {"__name__": "m", "a": "b"}
VALUES = [1.5, math.nan, 2.5, math.inf, -math.inf]
MARKER = struct.unpack("<d", struct.pack("<Q", STALE))[0]


def remote_write(values: Sequence[float]) -> bytes:
    return snappy(request_1([(LABELS, [(value, TIME + i) for i, value in enumerate(values)])]))


def remote_write_2(values: Sequence[float]) -> bytes:
    return snappy(request_2([(LABELS, [(value, TIME + i) for i, value in enumerate(values)])]))


def otlp(values: Sequence[float]) -> bytes:
    request = ExportMetricsServiceRequest()
    gauge = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge
    for i, value in enumerate(values):
        gauge.data_points.add(time_unix_nano=(TIME + i) * 1_000_000, as_double=value)
    return request.SerializeToString()


def otlp_summary(values: Sequence[float]) -> bytes:
    """As a Collector writes a summary of Prometheus whose window has no observations."""
    request = ExportMetricsServiceRequest()
    summary = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m").summary
    for i, value in enumerate(values):
        point = summary.data_points.add(time_unix_nano=(TIME + i) * 1_000_000, count=7, sum=1)
        point.quantile_values.add(quantile=0.5, value=value)
    return request.SerializeToString()


def otlp_json(values: Sequence[float]) -> bytes:
    texts = {math.inf: "Infinity", -math.inf: "-Infinity"}
    points = [
        {
            "timeUnixNano": str((TIME + i) * 1_000_000),
            "asDouble": value if math.isfinite(value) else texts.get(value, "NaN"),
        }
        for i, value in enumerate(values)
    ]
    metrics = [{"name": "m", "gauge": {"dataPoints": points}}]
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}).encode()


def heroic_proto(values: Sequence[float]) -> bytes:
    batch = b""
    for i, value in enumerate(values):
        metric = b"\x0a\x01m\x10" + encoded_varint(TIME + i) + b"\x19" + struct.pack("<d", value)
        batch += b"\x0a" + encoded_varint(len(metric)) + metric
    return snappy(batch)


def parquet(values: Sequence[float]) -> bytes:
    n = len(values)
    times = pa.array(range(TIME, TIME + n), pa.timestamp("ms", "UTC"))
    columns = {"metric": ["m"] * n, "tag_a": ["b"] * n, "time": times, "kind": ["double"] * n}
    numbers = {"int_value": pa.array([None] * n, pa.int64()), "double_value": list(values)}
    return batch_bytes(pa.record_batch(columns | numbers))


def avro(values: Sequence[float]) -> bytes:
    """Records in Avro's JSON, which has NaN as Python writes it."""
    return b"\n".join(
        json.dumps(
            {"metric": "m", "timestamp": TIME + i, "value": {"double": v}, "tags": {"a": "b"}}
        ).encode()
        for i, v in enumerate(values)
    )


WITH_DOUBLES: dict[str, tuple[str, Callable[[Sequence[float]], bytes], int]] = {
    "remote write 1.0": ("prometheus-remote-write", remote_write, 0),
    "remote write 2.0": ("prometheus-remote-write", remote_write_2, 0),
    "otlp": ("otlp", otlp, 0),
    "otlp summary": ("otlp", otlp_summary, 10),
    "otlp json": ("otlp", otlp_json, 0),
    "heroic-proto": ("heroic-proto", heroic_proto, 0),
    "parquet": ("parquet", parquet, 0),
    "avro": ("avro", avro, 0),
}
"""(format, what writes values as doubles, other points of the message)."""


def parse(name: str, text: bytes, nan: str | None) -> list[Parsed]:
    """By both doors: alone, and together with another message."""
    form = message_format(name, {"avro_encoding": "json", "nan": nan})
    message = Message(text, TIME, "topic", 0, Envelope("1", TIME, {}))
    alone, together = form.parse(message), list(form.parse_all([message, message]))
    assert sum(len(part.batch) for part in together) == 2 * len(alone.batch)
    assert sum(part.skipped.get(NOT_FINITE, 0) for part in together) == 2 * alone.skipped.get(NOT_FINITE, 0)
    return [alone, *together]


@pytest.mark.parametrize("nan", [None, "skip", "reject"])
@pytest.mark.parametrize("case", WITH_DOUBLES)
def test_formats_with_doubles_skip_and_count_or_reject(case: str, nan: str | None) -> None:
    name, write, others = WITH_DOUBLES[case]
    is_skipped = nan == "skip" or (nan is None and name == "prometheus-remote-write")
    parsed = parse(name, write(VALUES), nan)[0]
    assert [value for series, _, value in parsed.batch.points() if "_" not in series.metric] == [1.5, 2.5]
    assert len(parsed.batch) == 2 + others
    assert parsed.skipped.get(NOT_FINITE, 0) == (3 if is_skipped else 0)
    rejected = sum(rejected.points for rejected in parsed.rejected)
    assert {rejected.reason for rejected in parsed.rejected} <= {Reason.BAD_NUMBER}
    assert rejected == (0 if is_skipped else 3)


@pytest.mark.parametrize("case", WITH_DOUBLES)
def test_a_message_of_nothing_else(case: str) -> None:
    name, write, others = WITH_DOUBLES[case]
    parsed = parse(name, write([math.nan, math.inf]), "skip")[0]
    assert (len(parsed.batch), parsed.rejected, parsed.skipped[NOT_FINITE]) == (others * 2 // 5, [], 2)
    assert "m" not in {series.metric for series, *_ in parsed.batch.points()}


def test_what_else_is_wrong_with_a_point_that_is_skipped_does_not_count() -> None:
    """As for stale markers: the value is looked at first."""
    text = snappy(request_1([({"a": "b"}, [(math.nan, -5)])]))
    parsed = parse("prometheus-remote-write", text, None)[0]
    assert (len(parsed.batch), parsed.rejected, parsed.skipped[NOT_FINITE]) == (0, [], 1)


def test_stale_markers_are_counted_apart() -> None:
    for nan, rejected in (("skip", 0), ("reject", 1)):
        parsed = parse("prometheus-remote-write", remote_write([MARKER, math.nan, 1.0]), nan)[0]
        assert [value for _, _, value in parsed.batch.points()] == [1.0]
        assert parsed.skipped["stale_markers"] == 1
        assert parsed.skipped.get(NOT_FINITE, 0) == 1 - rejected
        assert len(parsed.rejected) == rejected


def test_a_series_in_columns_among_others() -> None:
    """Series that the cache knows are read without a look at their fields."""
    form = message_format("prometheus-remote-write")
    for value, points in ((1.0, 1), (math.nan, 0), (2.0, 1), (math.inf, 0)):
        parsed = form.parse(Message(remote_write([value]), TIME))
        assert (len(parsed.batch), len(parsed.batch.series)) == (points, points)
        assert parsed.skipped.get(NOT_FINITE, 0) == 1 - points
    assert form.good_points(remote_write([2.0])) == 1
    assert form.good_points(remote_write([math.nan])) is None


TEXTS = {
    "opentsdb-json": (
        b'{"metric":"m","timestamp":1356998400,"value":%s,"tags":{"a":"b"}}',
        Reason.BAD_NUMBER,
    ),
    "opentsdb-text": (b"put m 1356998400 %s a=b", Reason.BAD_NUMBER),
    "influx": (b"m,a=b v=%s 1356998400000000000", Reason.BAD_NUMBER),
    "telegraf-json": (
        b'{"fields":{"v":%s},"name":"m","tags":{"a":"b"},"timestamp":1356998400}',
        Reason.BAD_SYNTAX,
    ),
    "kairosdb-json": (
        b'{"name":"m","timestamp":1356998400000,"value":%s,"tags":{"a":"b"},"type":"double"}',
        Reason.BAD_NUMBER,
    ),
    "kairosdb-text": (b"put m 1356998400 %s a=b", Reason.BAD_NUMBER),
    "heroic-json": (
        b'{"series":{"key":"m","tags":{"a":"b"}},"data":{"type":"points","data":[[1356998400000,%s]]}}',
        Reason.BAD_NUMBER,
    ),
}
QUOTED = ("opentsdb-json", "kairosdb-json", "heroic-json", "telegraf-json")


@pytest.mark.parametrize("nan", ["skip", "reject"])
@pytest.mark.parametrize("name", TEXTS)
def test_in_text_they_are_no_numbers(name: str, nan: str) -> None:
    text, reason = TEXTS[name]
    assert len(parse(name, text % b"1.5", nan)[0].batch) == 1
    for value in (b"NaN", b"Infinity", b"-Infinity"):
        for written in (value, b'"%s"' % value) if name in QUOTED else (value,):
            parsed = parse(name, text % written, nan)[0]
            assert (len(parsed.batch), parsed.skipped.get(NOT_FINITE, 0)) == (0, 0)
            (rejected,) = parsed.rejected
            expected = Reason.BAD_NUMBER if written.startswith(b'"') else reason
            assert rejected.reason is expected, (written, rejected)


def test_the_option_of_formats_with_doubles() -> None:
    (nan,) = (option for option in FormatOptions.declared() if option.name == "nan")
    assert nan.shown_for is not None
    assert set(nan.shown_for[1]) == {name for name, *_ in WITH_DOUBLES.values()}
    with pytest.raises(ValueError, match="nan must be one of skip, reject, not 'drop'"):
        message_format("otlp", {"nan": "drop"})
