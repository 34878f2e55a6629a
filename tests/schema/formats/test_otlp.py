"""Format `otlp`: requests of the SDK's own encoder, and of its messages, against a plain reading of them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from timebeam.schema.bits import memory_limit, protobuf_columns
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.histograms import Histogram, decode
from timebeam.schema.core.points import Series
from timebeam.schema.formats import Message, message_format
from timebeam.schema.formats.base import Parsed

NS = 1_700_000_000_123_456_789
MS = NS // 1_000_000

Expected = dict[tuple[str, tuple[tuple[str, str], ...]], tuple[int, float | int]]
"""(time in ms, value) by metric and tags; each series has one point here."""

DEFAULT = {"service.name", "service.namespace", "service.instance.id", "host.name", "k8s.pod.name"}


@pytest.fixture(scope="module", params=[2, 128], autouse=True)
def together(request: pytest.FixtureRequest) -> Iterator[None]:
    """Messages of one level are read together from the second on, and one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf_columns, "_TOGETHER", request.param)
        yield


def parse(request: bytes | Any, **options: Any) -> Parsed:
    text = request if isinstance(request, bytes) else request.SerializeToString()
    return message_format("otlp", options).parse(Message(text, 5, "topic"))


def content(parsed: Parsed) -> Expected:
    points = list(parsed.batch.points())
    assert len({series for series, _, _ in points}) == len(points) == len(parsed.batch.series)
    return {(series.metric, series.tags): (time, value) for series, time, value in points}


def text_of(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    return "" if kind is None else json.dumps(plain_of(value), ensure_ascii=False, separators=(",", ":"))


def plain_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain_of(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return {each.key: plain_of(each.value) for each in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return None if kind is None else getattr(value, kind)


def tags_of(pairs: Any) -> dict[str, str]:
    texts = {pair.key: text_of(pair.value) for pair in pairs}
    return {key: text.strip('"') if text.startswith('"') else text for key, text in texts.items() if text}


def bound(number: float) -> str:
    if number == math.inf:
        return "+Inf"
    return str(int(number)) if number == int(number) else repr(number)


def values_of(metric: pb.Metric, point: Any) -> Iterator[tuple[str, dict[str, str], float | int]]:
    """(suffix, tags in addition, value) of a data point, read field by field."""
    kind = metric.WhichOneof("data")
    if kind in ("gauge", "sum"):
        yield "", {}, getattr(point, point.WhichOneof("value"))
        return
    yield "_count", {}, point.count
    if kind == "summary":
        yield "_sum", {}, point.sum
        for each in point.quantile_values:
            yield "", {"quantile": bound(each.quantile)}, each.value
        return
    for part in ("sum", "min", "max"):
        if point.HasField(part):
            yield f"_{part}", {}, getattr(point, part)
    if kind == "histogram":
        total = 0
        for number, count in zip(point.explicit_bounds, point.bucket_counts, strict=False):
            total += count
            yield "_bucket", {"le": bound(number)}, total
    else:
        buckets = [
            (-(2.0 ** ((point.negative.offset + n) * 2.0**-point.scale)), count)
            for n, count in enumerate(point.negative.bucket_counts)
            if count
        ][::-1]
        if point.zero_count:
            buckets.append((point.zero_threshold, point.zero_count))
        buckets += [
            (2.0 ** ((point.positive.offset + n + 1) * 2.0**-point.scale), count)
            for n, count in enumerate(point.positive.bucket_counts)
            if count
        ]
        total = 0
        for number, count in buckets:
            total += count
            yield "_bucket", {"le": bound(number)}, total
    yield "_bucket", {"le": "+Inf"}, point.count


def expected(request: ExportMetricsServiceRequest) -> Expected:
    """What is stored of a request by default."""
    points: Expected = {}
    for resource in request.resource_metrics:
        kept = {key: text for key, text in tags_of(resource.resource.attributes).items() if key in DEFAULT}
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            data = getattr(metric, metric.WhichOneof("data"))
            delta = getattr(data, "aggregation_temporality", 0) == pb.AGGREGATION_TEMPORALITY_DELTA
            for point in data.data_points:
                if point.flags & 1:
                    continue
                tags = kept | tags_of(point.attributes) | ({"otel.temporality": "delta"} if delta else {})
                for suffix, more, value in values_of(metric, point):
                    key = metric.name + suffix, tuple(sorted((tags | more).items()))
                    points[key] = point.time_unix_nano // 1_000_000, value
    return points


def sdk_request() -> ExportMetricsServiceRequest:
    """What the SDK exports after some measurements."""
    reader = InMemoryMetricReader()
    view = View(instrument_name="sizes", aggregation=ExponentialBucketHistogramAggregation(max_size=20))
    resource = Resource({"service.name": "shop", "host.name": "web01", "os.type": "linux"})
    provider = MeterProvider([reader], resource=resource, views=[view])
    meter = provider.get_meter("test", "1.0")
    requests = meter.create_counter("http.requests", unit="1")
    latency = meter.create_histogram("latency")
    sizes = meter.create_histogram("sizes")
    gauge = meter.create_gauge("temperature")
    for number in range(60):
        labels = {"route": f"/r{number % 7}", "ok": number % 2 == 0, "code": 200 + number % 3}
        requests.add(number, labels)
        latency.record(number * 7.5, labels)
        sizes.record((number - 30) * 1.37 if number % 5 else 0.0, {"a": "é"})
        gauge.set(number / 3, labels)
    data = reader.get_metrics_data()
    assert data is not None
    return encode_metrics(data)


def number_points(metric: Any, n: int, start: int = 0) -> None:
    for number in range(start, start + n):
        point = metric.data_points.add(time_unix_nano=NS + number * 1_000_000, start_time_unix_nano=5)
        point.attributes.add(key="n", value=AnyValue(int_value=number))
        if number % 2:
            point.as_int = -number << 40
        else:
            point.as_double = number / 7


def every_kind() -> ExportMetricsServiceRequest:
    """Every kind of metric, temporality and value of an attribute."""
    request = ExportMetricsServiceRequest()
    values = {
        "s": AnyValue(string_value="x y"),
        "b": AnyValue(bool_value=False),
        "i": AnyValue(int_value=-5),
        "d": AnyValue(double_value=1.5),
        "l": AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="é"), AnyValue(int_value=1)])),
        "m": AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="k", value=AnyValue(bool_value=True))])),
        "y": AnyValue(bytes_value=b"\x00\xff"),
        "none": AnyValue(),
        "empty": AnyValue(string_value=""),
    }
    for host in ("a", "b"):
        resource = request.resource_metrics.add()
        resource.resource.attributes.add(key="host.name", value=AnyValue(string_value=host))
        resource.resource.attributes.add(key="other", value=AnyValue(string_value="o"))
        scope = resource.scope_metrics.add()
        scope.scope.name = "lib"
        number_points(scope.metrics.add(name="gauge", unit="s", description="d").gauge, 50)
        cumulative = scope.metrics.add(name="sum").sum
        cumulative.aggregation_temporality, cumulative.is_monotonic = 2, True
        number_points(cumulative, 30)
        delta = scope.metrics.add(name="sum").sum
        delta.aggregation_temporality = 1
        number_points(delta, 3)
        with_all = scope.metrics.add(name="all").gauge.data_points.add(time_unix_nano=NS, as_double=0.0)
        for key, value in values.items():
            with_all.attributes.add(key=key, value=value)
        scope.metrics.add(name="absent").gauge.data_points.add(time_unix_nano=NS, as_int=1, flags=1)
        histogram = scope.metrics.add(name="h").histogram
        histogram.aggregation_temporality = 2
        histogram.data_points.add(
            time_unix_nano=NS,
            count=6,
            sum=9.5,
            bucket_counts=[1, 2, 3],
            explicit_bounds=[0.5, 10],
            min=0.1,
            max=99,
        )
        histogram.data_points.add(
            time_unix_nano=NS, count=6, attributes=[KeyValue(key="a", value=AnyValue(string_value="b"))]
        )
        exponential = scope.metrics.add(name="e").exponential_histogram
        exponential.aggregation_temporality = 1
        point = exponential.data_points.add(time_unix_nano=NS, count=15, sum=1.0, scale=0, zero_count=2)
        point.zero_threshold = 0.25
        point.positive.offset, point.negative.offset = -1, 1
        point.positive.bucket_counts.extend([1, 0, 300])
        point.negative.bucket_counts.extend([4, 5])
        summary = scope.metrics.add(name="q").summary.data_points.add(time_unix_nano=NS, count=3, sum=6)
        for fraction in (0.5, 0.99):
            summary.quantile_values.add(quantile=fraction, value=fraction * 10)
    return request


REQUESTS = {"of the SDK": sdk_request(), "every kind": every_kind()}
requests = pytest.mark.parametrize("name", REQUESTS)


def same(found: Expected, wanted: Expected) -> None:
    assert found == wanted
    assert {key: type(value) for key, (_, value) in found.items()} == {
        key: type(value) for key, (_, value) in wanted.items()
    }


def test_the_example() -> None:
    (point,) = parse(message_format("otlp").example).batch.points()
    assert point == (Series.of("memory", {"host.name": "web01"}), 1_356_998_400_000, 42.5)


@requests
def test_requests_of_another_encoder(name: str) -> None:
    request = REQUESTS[name]
    parsed = parse(request)
    assert not parsed.rejected
    assert len(parsed.batch) > 50
    same(content(parsed), expected(request))
    assert parsed.batch.in_ms.all()


@requests
def test_json_as_protobuf(name: str) -> None:
    request = REQUESTS[name]
    text = json_format.MessageToJson(request, indent=None).encode()
    same(content(parse(text)), expected(request))
    same(content(parse(json_format.MessageToJson(request).encode())), expected(request))
    lines = text + b"\n" + text.replace(b'"name":', b'"unknown": [{}], "name":') + b"\n"
    assert len(parse(lines).batch) == 2 * len(expected(request))
    enums = json_format.MessageToJson(request, use_integers_for_enums=True, indent=None)
    same(content(parse(enums.encode())), expected(request))


def test_absent_values_are_skipped_and_counted() -> None:
    assert parse(every_kind()).skipped["no_recorded_values"] == 2


def test_deltas_are_rejected_by_option() -> None:
    parsed = parse(every_kind(), otlp_delta="reject")
    assert content(parsed) == {
        key: value for key, value in expected(every_kind()).items() if "otel.temporality" not in dict(key[1])
    }
    assert {(rejected.reason, rejected.points) for rejected in parsed.rejected} == {
        (
            Reason.VALUE_NOT_STORABLE,
            3 + len([1 for key in content(parse(every_kind())) if key[0].startswith("e_")]) // 2,
        )
    }


def test_attributes_of_resources() -> None:
    def tags(**options: Any) -> set[str]:
        return {key for series in parse(every_kind(), **options).batch.series for key, _ in series.tags}

    assert tags() & {"host.name", "other"} == {"host.name"}
    assert tags(otlp_resource="all") >= {"host.name", "other"}
    assert tags(otlp_resource="other") & {"host.name", "other"} == {"other"}
    assert not tags(otlp_resource="none") & {"host.name", "other"}
    assert "otel.scope.name" in tags(otlp_scope=True) - tags()
    series = parse(every_kind(), resources=True).batch.series
    assert {each.resources for each in series} == {(("host.name", "a"),), (("host.name", "b"),)}
    assert all("host.name" not in dict(each.tags) for each in series)


def test_counts_beyond_63_bits_are_rejected() -> None:
    many = (1 << 63) - 1
    points = (
        pb.HistogramDataPoint(count=1 << 63),
        pb.HistogramDataPoint(count=5, bucket_counts=[many, 1, 4], explicit_bounds=[1, 2]),
        pb.HistogramDataPoint(count=6, bucket_counts=[1 << 63, 1], explicit_bounds=[1]),
        pb.HistogramDataPoint(count=7, bucket_counts=[1, 6], explicit_bounds=[1]),
    )
    request = ExportMetricsServiceRequest()
    for point in points:
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="h")
        metric.histogram.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
        point.time_unix_nano = NS
        metric.histogram.data_points.append(point)
    parsed = parse(request)
    assert [rejected.reason for rejected in parsed.rejected] == [Reason.NUMBER_OUT_OF_RANGE] * 3
    assert sorted(value for _, _, value in parsed.batch.points()) == [1, 7, 7]


def test_parts_of_histograms() -> None:
    with pytest.raises(ValueError, match="otlp_histogram: 'counts' is none of count, sum, min, max, buckets"):
        parse(every_kind(), otlp_histogram="counts,max")
    metrics = {series.metric for series in parse(every_kind(), otlp_histogram="count,max").batch.series}
    assert {metric for metric in metrics if metric[:2] in ("h_", "e_")} == {"h_count", "h_max", "e_count"}


def test_explicit_histograms_as_columns_of_opentsdb() -> None:
    """The first and last bucket have one bound, so they are underflow and overflow."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="latency")
    metric.histogram.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
    points = metric.histogram.data_points
    points.add(time_unix_nano=NS, count=10, bucket_counts=[1, 2, 3, 4], explicit_bounds=[0, 1.5, 7])
    points.add(time_unix_nano=NS + 10**9, count=5, bucket_counts=[5])
    points.add(time_unix_nano=NS + 2 * 10**9, count=5)
    points.add(time_unix_nano=NS, count=3, bucket_counts=[1, 1, 1], explicit_bounds=[1, 1 + 2**-40])
    points.add(time_unix_nano=NS, count=1, bucket_counts=[1 << 63, 1], explicit_bounds=[1])
    parsed = parse(request, otlp_histogram="count,opentsdb", histogram_id=7)
    messages = [rejected.message for rejected in parsed.rejected]
    assert "bounds that are the same as 32-bit floats" in messages[0]
    assert "a count of a histogram needs more than 64 bits" in messages[1]
    stored = {
        (series.metric, time_ms - MS): decode(value) if isinstance(value, bytes) else value
        for series, time_ms, value in parsed.batch.points()
    }
    assert stored == {
        ("latency_count", 0): 10,
        ("latency_count", 1000): 5,
        ("latency_count", 2000): 5,
        ("latency", 0): Histogram({(0.0, 1.5): 2, (1.5, 7.0): 3}, 1, 4),
        ("latency", 1000): Histogram({}, 0, 5),
    }
    assert {payload[0] for payload in parsed.batch.payloads} == {7}
    together = list(
        message_format("otlp", {"otlp_histogram": "opentsdb"}).parse_all([message_of(request)] * 3)
    )
    assert [len(parsed.batch.payloads) for parsed in together] == [6]
    values = [decode(value) for _, _, value in together[0].batch.points() if isinstance(value, bytes)]
    assert values == [stored["latency", 0], stored["latency", 1000]] * 3


def message_of(request: ExportMetricsServiceRequest) -> Message:
    return Message(request.SerializeToString(), 5, "topic")


def bad_requests() -> dict[str, tuple[Any, Reason, int]]:
    requests = {}
    for name, reason, points in (
        ("no time", Reason.BAD_TIMESTAMP, 1),
        ("no value", Reason.EMPTY_VALUE, 1),
        ("NaN", Reason.BAD_NUMBER, 1),
        ("no name", Reason.BAD_METRIC, 1),
        ("attribute twice", Reason.DUPLICATE_TAG, 1),
        ("no temporality", Reason.VALUE_NOT_STORABLE, 1),
        ("bounds and counts", Reason.VALUE_NOT_STORABLE, 1),
        ("scale", Reason.VALUE_NOT_STORABLE, 1),
    ):
        request = ExportMetricsServiceRequest()
        metric = (
            request.resource_metrics.add()
            .scope_metrics.add()
            .metrics.add(name="" if name == "no name" else "m")
        )
        if name == "no temporality":
            metric.sum.data_points.add(time_unix_nano=NS, as_int=1)
        elif name == "bounds and counts":
            metric.histogram.aggregation_temporality = 2
            metric.histogram.data_points.add(time_unix_nano=NS, bucket_counts=[1, 2], explicit_bounds=[1, 2])
        elif name == "scale":
            metric.exponential_histogram.aggregation_temporality = 2
            point = metric.exponential_histogram.data_points.add(time_unix_nano=NS, scale=99)
            point.positive.bucket_counts.append(1)
        else:
            point = metric.gauge.data_points.add(time_unix_nano=0 if name == "no time" else NS)
            if name != "no value":
                point.as_double = math.nan if name == "NaN" else 1
            if name == "attribute twice":
                for value in ("a", "b"):
                    point.attributes.add(key="k", value=AnyValue(string_value=value))
        requests[name] = request, reason, points
    return requests


BAD = bad_requests()


@pytest.mark.parametrize("case", BAD)
def test_rejected_points(case: str) -> None:
    bad, reason, points = BAD[case]
    both = ExportMetricsServiceRequest()
    both.MergeFrom(every_kind())
    both.MergeFrom(bad)
    parsed = parse(both)
    same(content(parsed), expected(every_kind()))
    assert [(each.reason, each.points, each.payload) for each in parsed.rejected] == [
        (reason, points, bad.SerializeToString())
    ]


def test_what_is_no_request_is_rejected_as_a_whole() -> None:
    good = every_kind().SerializeToString()
    for text in (
        good[:-1],
        b"x",
        b"\x12\x00",
        good[:200] + b"\xff" * 5 + good[200:],
        b"{}",
        b'{"resourceMetrics":[5]}',
        b"{",
        b'{"resourceMetrics":[{"resource":' * 3000,
    ):
        parsed = parse(text)
        assert len(parsed.batch) == 0
        assert [(each.reason, each.payload) for each in parsed.rejected] == [(Reason.CORRUPT_MESSAGE, text)]


def test_several_messages_and_corrupt_ones_among_them() -> None:
    good, bad = every_kind().SerializeToString(), every_kind().SerializeToString()[:-3]
    texts = [
        good,
        bad,
        sdk_request().SerializeToString(),
        b"rubbish",
        b"",
        json_format.MessageToJson(every_kind()).encode(),
    ]
    messages = [Message(text, 1000 + n, "sub") for n, text in enumerate(texts)]
    form = message_format("otlp")
    (parsed,) = form.parse_all(messages)
    assert {(each.payload, each.arrival_ms) for each in parsed.rejected} == {(bad, 1001), (b"rubbish", 1003)}
    assert set(parsed.batch.arrivals_ms.tolist()) == {1000, 1002, 1005}
    assert len(parsed.batch) == 2 * len(expected(every_kind())) + len(content(parse(texts[2])))
    assert len(set(parsed.batch.series)) == len(parsed.batch.series)


BASE = every_kind().SerializeToString()


def edited(edits: list[tuple[int, int, bytes]]) -> bytes:
    text = BASE
    for start, size, new in edits:
        start %= len(text) + 1
        text = text[:start] + new + text[start + size :]
    return text


@given(
    st.one_of(
        st.binary(max_size=100),
        st.builds(
            edited,
            st.lists(
                st.tuples(st.integers(0, 1 << 14), st.integers(0, 30), st.binary(max_size=10)), max_size=4
            ),
        ),
    )
)
def test_hostile_requests_never_raise(text: bytes) -> None:
    parsed = parse(text)
    for rejected in parsed.rejected:
        if rejected.reason is Reason.CORRUPT_MESSAGE and len(parsed.batch) == 0:
            assert rejected.payload
    if parsed.rejected or not text:
        return
    try:
        request = ExportMetricsServiceRequest.FromString(text)
    except DecodeError:  # a string that is not UTF-8, of no series
        return
    assert len(parsed.batch) >= len(set(expected(request)))


def exponential_histograms(number: int, buckets: int, name: str = "sizes") -> ExportMetricsServiceRequest:
    """Histograms of one series with a count in each bucket."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.exponential_histogram.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_CUMULATIVE
    for second in range(number):
        point = metric.exponential_histogram.data_points.add(time_unix_nano=NS + second * 10**9)
        point.positive.bucket_counts.extend([1] * buckets)
    return request


def test_histograms_that_become_too_many_points_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte of a message is a bucket, which is a point."""
    monkeypatch.setattr(memory_limit, "MESSAGE_BYTES", 200_000)
    small, large = exponential_histograms(2, 30), exponential_histograms(20, 100)
    assert len(parse(small).batch) == 2 * (30 + 2)
    parsed = parse(large)
    assert not len(parsed.batch)
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, large.SerializeToString())
    assert "points and fields would take more than 200,000 bytes" in rejected.message
    # Together they need too much, of which each has enough.
    texts = [small.SerializeToString()] * 10 + [large.SerializeToString()] + [small.SerializeToString()]
    form = message_format("otlp")
    messages = [Message(text, number, "topic") for number, text in enumerate(texts)]
    contents = list(form.parse_all(messages))
    arrivals = [each for parsed in contents for each in parsed.batch.arrivals_ms.tolist()]
    assert arrivals == [number for number in range(12) if number != 10 for _ in range(64)]
    rejections = [(each.arrival_ms, each.payload) for parsed in contents for each in parsed.rejected]
    assert rejections == [(10, texts[10])]
