"""/api/v1/write: versions, packings, headers and refusals."""

from __future__ import annotations

import pyarrow as pa
import pytest
import zstandard

from tests.support.inputs.prometheus_proto import message as proto
from tests.support.servers.front_door import Door

TIME = 1_700_000_000_000
TYPE_2 = {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}


def request_1(*values: float) -> bytes:
    request = proto("WriteRequest")()
    for number, value in enumerate(values):
        series = request.timeseries.add()
        series.labels.add(name="__name__", value=f"metric{number}")
        series.samples.add(value=value, timestamp=TIME)
    return bytes(request.SerializeToString())


def request_2(*values: float) -> bytes:
    request = proto("v2.Request")(symbols=["", "__name__", "metric"])
    for value in values:
        series = request.timeseries.add(labels_refs=[1, 2])
        series.samples.add(value=value, timestamp=TIME)
    return bytes(request.SerializeToString())


def snappy(request: bytes) -> bytes:
    return bytes(pa.compress(request, codec="snappy", asbytes=True))


def test_version_1(door: Door) -> None:
    client, server = door
    body = snappy(request_1(1.5, 2.5))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    response = client.post("/api/v1/write", content=body, headers=headers)
    assert response.status_code == 204
    assert "x-prometheus-remote-write-samples-written" not in response.headers
    packed = zstandard.compress(request_1(3.5))
    headers["Content-Encoding"] = "zstd"
    assert client.post("/api/v1/write", content=packed, headers=headers).status_code == 204
    assert [message.data for message in server.published] == [body, packed]
    assert {message.attributes["format"] for message in server.published} == {"prometheus-remote-write"}


def test_version_2_is_told_what_was_written(door: Door) -> None:
    client, server = door
    response = client.post("/api/v1/write", content=snappy(request_2(1.5, 2.5)), headers=TYPE_2)
    assert response.status_code == 204
    assert response.headers["x-prometheus-remote-write-samples-written"] == "2"
    mixed = client.post("/api/v1/write", content=snappy(request_2(1.5, float("inf"))), headers=TYPE_2)
    assert mixed.status_code == 400
    assert mixed.headers["x-prometheus-remote-write-samples-written"] == "1"
    assert len(server.published) == 2


def test_histograms_count_as_histograms(door: Door) -> None:
    request = proto("v2.Request").FromString(request_2(1.5))
    histogram = request.timeseries[0].histograms.add(timestamp=TIME, schema=0, sum=3.0, count_int=2)
    histogram.positive_spans.add(offset=0, length=1)
    histogram.positive_deltas.append(2)
    response = door[0].post("/api/v1/write", content=snappy(request.SerializeToString()), headers=TYPE_2)
    assert response.status_code == 204
    assert response.headers["x-prometheus-remote-write-samples-written"] == "1"
    assert response.headers["x-prometheus-remote-write-histograms-written"] == "1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"}, 415),
        ({"Content-Type": "application/json"}, 415),
        ({"Content-Encoding": "br"}, 415),
        ({}, 204),
    ],
)
def test_types_and_encodings(door: Door, headers: dict[str, str], status: int) -> None:
    response = door[0].post("/api/v1/write", content=snappy(request_1(1.5)), headers=headers)
    assert response.status_code == status


def test_damaged_requests_are_not_published(door: Door) -> None:
    client, server = door
    for body in (b"x", snappy(request_1(1.5))[:-3], snappy(b"\xff" * 50)):
        assert client.post("/api/v1/write", content=body).status_code == 400
    assert server.published == []


def test_nothing_but_stale_markers_is_taken_and_not_published(door: Door) -> None:
    import struct

    stale = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
    client, server = door
    assert client.post("/api/v1/write", content=snappy(request_1(stale))).status_code == 204
    assert server.published == []
