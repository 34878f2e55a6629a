"""/api/v1/write: versions, packings, headers and rejections."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter

import httpx
import pyarrow as pa
import pytest
import zstandard

from tests.support.inputs.prometheus_proto import message as proto
from tests.support.servers.front_door import Door, front_door

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
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
    late = proto("v2.Request").FromString(request_2(1.5, 2.5))
    late.timeseries[1].samples[0].timestamp = 1 << 60
    mixed = client.post("/api/v1/write", content=snappy(late.SerializeToString()), headers=TYPE_2)
    assert mixed.status_code == 400
    assert mixed.headers["x-prometheus-remote-write-samples-written"] == "1"
    assert len(server.published) == 2


def test_nan_and_infinities_fail_no_request(door: Door) -> None:
    """Quantiles of no observations are in each scrape of each Prometheus."""
    client, server = door
    before = skipped(client)
    request = snappy(request_1(1.5, math.nan, math.inf, -math.inf, STALE))
    assert client.post("/api/v1/write", content=request).status_code == 204
    assert [message.data for message in server.published] == [request]
    assert skipped(client) - before == Counter(not_finite=3, stale_markers=1)


@pytest.mark.parametrize("values", [(1.5, math.nan), (math.nan, math.inf), (STALE,), (1.5, STALE, math.nan)])
def test_what_is_skipped_counts_as_written(door: Door, values: tuple[float, ...]) -> None:
    """Prometheus 3 takes what is missing there for failed, and zeros for the answer of an old server."""
    response = door[0].post("/api/v1/write", content=snappy(request_2(*values)), headers=TYPE_2)
    assert response.status_code == 204
    assert response.headers["x-prometheus-remote-write-samples-written"] == str(len(values))
    assert len(door[1].published) == (1.5 in values)


def test_they_are_rejected_where_the_options_say_so() -> None:
    with front_door(formats={"nan": "reject"}) as (client, server):
        request = snappy(request_2(1.5, math.nan, STALE))
        response = client.post("/api/v1/write", content=request, headers=TYPE_2)
        assert (response.status_code, len(server.published)) == (400, 1)
        assert response.headers["x-prometheus-remote-write-samples-written"] == "2"
        assert "value is NaN or Infinite: nan of metric" in response.text
        assert skipped(client) == Counter(stale_markers=1)


def skipped(client: httpx.Client) -> Counter[str]:
    """What the endpoint has skipped, by kind."""
    pattern = r'timebeam_write_skipped_total\{endpoint="/api/v1/write",kind="(\w+)"\} (\d+)'
    return Counter({kind: int(n) for kind, n in re.findall(pattern, client.get("/metrics").text) if n != "0"})


def test_histograms_count_as_histograms(door: Door) -> None:
    request = proto("v2.Request").FromString(request_2(1.5))
    histogram = request.timeseries[0].histograms.add(timestamp=TIME, schema=0, sum=3.0, count_int=2)
    histogram.positive_spans.add(offset=0, length=1)
    histogram.positive_deltas.append(2)
    request.timeseries[0].histograms.add(timestamp=TIME + 1, sum=STALE)
    without_sum = request.timeseries[0].histograms.add(timestamp=TIME + 2, sum=math.nan, count_int=2)
    without_sum.positive_spans.add(offset=0, length=1)
    without_sum.positive_deltas.append(2)
    response = door[0].post("/api/v1/write", content=snappy(request.SerializeToString()), headers=TYPE_2)
    assert response.status_code == 204
    assert response.headers["x-prometheus-remote-write-samples-written"] == "1"
    assert response.headers["x-prometheus-remote-write-histograms-written"] == "3"


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


def test_corrupt_requests_are_not_published(door: Door) -> None:
    client, server = door
    for body in (b"x", snappy(request_1(1.5))[:-3], snappy(b"\xff" * 50)):
        assert client.post("/api/v1/write", content=body).status_code == 400
    assert server.published == []


def test_nothing_but_stale_markers_is_taken_and_not_published(door: Door) -> None:
    client, server = door
    assert client.post("/api/v1/write", content=snappy(request_1(STALE))).status_code == 204
    assert server.published == []
