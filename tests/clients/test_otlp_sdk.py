"""The OpenTelemetry SDK over OTLP/HTTP: what is stored is what the SDK's own reader collects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.schema.stores.plain_opentsdb import number
from tests.support.any_store import AnyStore
from tests.support.commands import timebeam
from tests.support.pubsub_server import SUBSCRIPTION, PubSubServer
from tests.support.servers.front_door import front_door
from timebeam.pipelines.serve.writes.front_door import Tokens

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
@pytest.mark.parametrize(
    ("variant", "options"), [("kairosdb-milliseconds", {}), ("opentsdb", {"names": "escape"})]
)
def test_metrics_of_the_sdk(
    bigtable: tuple[str, str],
    prefix: str,
    tmp_path: Path,
    compression: Compression,
    variant: str,
    options: dict[str, Any],
) -> None:
    store = AnyStore.create(bigtable, prefix, variant, **options)
    pubsub = PubSubServer(delivers=True)
    with front_door(pubsub=pubsub, tokens=Tokens(["secret"])) as (client, _):
        exporter = OTLPMetricExporter(
            f"{client.base_url}/v1/metrics",
            headers={"Authorization": "Bearer secret"},
            compression=compression,
        )
        collected = InMemoryMetricReader()
        sending = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
        resource = Resource({"service.name": "shop", "host.name": "web01"})
        provider = MeterProvider([collected, sending], resource=resource)
        record(provider)
        expected = series_of(collected.get_metrics_data())
        assert sending.force_flush()
        provider.shutdown()
        ran = timebeam(
            *("ingest", *store.flags, *store.auto_create, "--format=otlp"),
            f"--input-subscription={SUBSCRIPTION}",
            *("--stop-when-idle=1", "--flush-seconds=0.3", "--summary=json"),
            *("--dead-letters", str(tmp_path / "dead")),
        )
    assert (ran.code, pubsub.left) == (0, 0), ran.err
    assert json.loads(ran.out)["rejected"] == {}
    latest: dict[Any, Any] = {}
    for (series, _), value in sorted(store.content().items(), key=lambda item: item[0][1]):
        latest[series] = value
    assert latest == expected


def record(provider: MeterProvider) -> None:
    meter = provider.get_meter("test")
    requests, latency = meter.create_counter("requests"), meter.create_histogram("latency")
    for status in (200, 500):
        requests.add(status, {"status": status})
        latency.record(status / 100, {"status": status})
    meter.create_gauge("load").set(0.5)


def series_of(data: Any) -> dict[Any, Any]:
    """The value of each series, read from the SDK's objects."""
    series: dict[Any, Any] = {}
    for resource in data.resource_metrics:
        of_resource = dict(resource.resource.attributes)
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                tags = {
                    key: str(value)
                    for key, value in (of_resource | dict(point.attributes)).items()
                    if key in ("service.name", "host.name", "status")
                }
                for suffix, more, value in values_of(point):
                    series[metric.name + suffix, tuple(sorted((tags | more).items()))] = number(value)
    return series


def values_of(point: Any) -> list[tuple[str, dict[str, str], float]]:
    """(suffix, more tags, value) of what a point becomes."""
    if hasattr(point, "value"):
        return [("", {}, point.value)]
    values = [
        ("_count", {}, point.count),
        ("_sum", {}, point.sum),
        ("_min", {}, point.min),
        ("_max", {}, point.max),
    ]
    total = 0
    for count, bound in zip(point.bucket_counts, [*point.explicit_bounds, float("inf")], strict=True):
        total += count
        name = "+Inf" if bound == float("inf") else f"{bound:g}"
        values.append(("_bucket", {"le": name}, total))
    return values
