"""/v1/metrics: protobuf and JSON, partial success, and errors as google.rpc.Status."""

from __future__ import annotations

import gzip

import pytest
from google.protobuf import json_format
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.support.servers.front_door import Door

NS = 1_700_000_000_000_000_000
PROTOBUF, JSON = {"Content-Type": "application/x-protobuf"}, {"Content-Type": "application/json"}


def request(*times_ns: int) -> ExportMetricsServiceRequest:
    message = ExportMetricsServiceRequest()
    metric = message.resource_metrics.add().scope_metrics.add().metrics.add(name="memory")
    for time_ns in times_ns:
        metric.gauge.data_points.add(time_unix_nano=time_ns, as_double=1.5)
    return message


@pytest.mark.parametrize("packing", ["", "gzip"])
def test_protobuf(door: Door, packing: str) -> None:
    client, server = door
    body = request(NS, NS + 1_000_000_000).SerializeToString()
    if packing:
        body = gzip.compress(body)
    headers = PROTOBUF | ({"Content-Encoding": packing} if packing else {})
    response = client.post("/v1/metrics", content=body, headers=headers)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == "application/x-protobuf"
    (message,) = server.published
    expected = {"format": "otlp"} | ({"content-encoding": packing} if packing else {})
    assert (message.data, message.attributes) == (body, expected)


def test_json(door: Door) -> None:
    client, server = door
    body = json_format.MessageToJson(request(NS)).encode()
    response = client.post("/v1/metrics", content=body, headers=JSON)
    assert (response.status_code, response.json()) == (200, {})
    assert [message.data for message in server.published] == [body]


@pytest.mark.parametrize("good", [0, 2])
def test_partial_success(door: Door, good: int) -> None:
    client, server = door
    message = request(*[NS] * good, 0)
    response = client.post("/v1/metrics", content=message.SerializeToString(), headers=PROTOBUF)
    partial = ExportMetricsServiceResponse.FromString(response.content).partial_success
    assert (response.status_code, partial.rejected_data_points) == (200, 1)
    assert "Invalid timestamp 0" in partial.error_message
    as_json = client.post("/v1/metrics", content=json_format.MessageToJson(message), headers=JSON)
    parsed = json_format.Parse(as_json.text, ExportMetricsServiceResponse())
    assert parsed.partial_success.rejected_data_points == 1
    assert len(server.published) == (2 if good else 0)


def test_an_empty_request_is_good(door: Door) -> None:
    response = door[0].post("/v1/metrics", content=b"", headers=PROTOBUF)
    assert (response.status_code, response.content, door[1].published) == (200, b"", [])


def test_errors(door: Door) -> None:
    client, server = door
    corrupt = client.post("/v1/metrics", content=request(NS).SerializeToString()[:-3], headers=PROTOBUF)
    assert (corrupt.status_code, Status.FromString(corrupt.content).code) == (400, 3)
    no_json = client.post("/v1/metrics", content=b"{", headers=JSON)
    assert (no_json.status_code, no_json.json()["code"]) == (400, 3)
    assert client.post("/v1/metrics", content=b"", headers={"Content-Type": "text/plain"}).status_code == 415
    assert server.published == []
