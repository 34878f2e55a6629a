"""Requests of remote write and OTLP, and protobuf's own parser of them, for `benchmarks.kernel`.

2,000 series of 10 labels with a sample each, as Prometheus sends them; and 25 metrics of 400 data points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.inputs.prometheus_proto import message
from timebeam.schema.formats import Message

REQUESTS = 20
FIRST_MS = 1_767_225_600_000


def remote_write(number: int) -> bytes:
    """A request of remote write 1.0, one of `REQUESTS`, without Snappy."""
    request = message("WriteRequest")()
    for n in range(2_000):
        series = request.timeseries.add()
        series.labels.add(name="__name__", value=f"http_requests_total_{n % 50}")
        for k in range(9):
            series.labels.add(name=f"label_{k}", value=f"value-{n if k == 0 else n * k % 97}")
        series.samples.add(value=n / 7 if n % 4 else 0.0, timestamp=FIRST_MS + number * 15_000)
    return bytes(request.SerializeToString())


def otlp(number: int) -> bytes:
    """A request of OTLP, one of `REQUESTS`."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.add(key="service.name", value=AnyValue(string_value="shop"))
    scope = resource.scope_metrics.add()
    for metric in range(25):
        data = scope.metrics.add(name=f"http.server.figure_{metric}").gauge
        for n in range(400):
            time_ns = (FIRST_MS + number * 15_000) * 1_000_000
            point = data.data_points.add(time_unix_nano=time_ns, as_double=n * 1.5 + metric)
            point.attributes.add(key="host.name", value=AnyValue(string_value=f"web{n:03d}"))
            point.start_time_unix_nano = FIRST_MS * 1_000_000
    return bytes(request.SerializeToString())


def load(form: str) -> tuple[list[Message], Callable[[], list[Any]]]:
    """The messages of a format, and what parses them with protobuf's own parser."""
    if form == "otlp":
        texts = [otlp(number) for number in range(REQUESTS)]
        return [Message(text, 1) for text in texts], lambda: [
            ExportMetricsServiceRequest.FromString(text) for text in texts
        ]
    texts = [remote_write(number) for number in range(REQUESTS)]
    packed = [Message(pa.compress(text, codec="snappy", asbytes=True), 1) for text in texts]
    request = message("WriteRequest")
    return packed, lambda: [request.FromString(text) for text in texts]
