"""Debian's Prometheus scrapes itself and writes to the front door: stored is what it answers itself.

It counts no sample as failed, although each scrape has quantiles that are NaN, and a series of nine tags.
"""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.schema.stores.plain_opentsdb import number
from tests.support.any_store import AnyStore
from tests.support.commands import timebeam
from tests.support.model import Content
from tests.support.pubsub_server import SUBSCRIPTION, PubSubServer
from tests.support.servers.front_door import front_door
from tests.support.servers.programs import free_port, program, running_program
from timebeam.pipelines.serve.writes.front_door import Tokens

pytestmark = pytest.mark.clients

SCRAPED_SECONDS = 120


@pytest.mark.parametrize(("variant", "options"), [("heroic", {}), ("opentsdb", {"names": "escape"})])
def test_two_minutes_of_its_own_metrics(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str, options: dict[str, Any]
) -> None:
    binary = program("prometheus", "prometheus")
    store = AnyStore.create(bigtable, prefix, variant, **options)
    pubsub = PubSubServer(delivers=True)
    with front_door(pubsub=pubsub, tokens=Tokens(["secret"])) as (client, _):
        port = free_port()
        remote = {"url": f"{client.base_url}/api/v1/write", "authorization": {"credentials": "secret"}}
        config = {
            "global": {"scrape_interval": "2s"},
            "scrape_configs": [{"job_name": "self", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
            "remote_write": [remote],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        command = [binary, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
        with running_program(
            [*command, "--storage.tsdb.path=data"], port, "/-/ready", tmp_path
        ) as prometheus:
            time.sleep(SCRAPED_SECONDS)
            end_s = int(time.time()) - 1
            expected = answered(prometheus, end_s)
            wait_until_sent(prometheus)
            counters = {name: counter(prometheus, name) for name in COUNTERS}
            skipped = skipped_samples(client)
        ran = timebeam(
            *("ingest", *store.flags, *store.auto_create, "--format=prometheus-remote-write"),
            *(f"--input-subscription={SUBSCRIPTION}", "--stop-when-idle=2", "--flush-seconds=1"),
            *("--dead-letters", str(tmp_path / "dead"), "--summary=json"),
        )
    assert (ran.code, pubsub.left) == (0, 0), ran.err
    summary = json.loads(ran.out)
    assert (summary["rejected"], list(tmp_path.glob("dead*"))) == ({}, [])
    assert summary["skipped"]["not_finite"] > 0
    assert counters["samples_failed_total"] == counters["samples_dropped_total"] == 0, counters
    # It goes on to send after its counters were read.
    assert 10_000 < counters["samples_total"] <= summary["points_read"] + sum(summary["skipped"].values())
    assert 0 < skipped <= summary["skipped"]["not_finite"]
    stored = {key: value for key, value in store.content().items() if key[1] <= end_s * 1000}
    assert len({series for series, _ in expected}) > 300
    assert len(expected) > 10_000
    assert stored == expected


def answered(prometheus: httpx.Client, end_s: int) -> Content:
    """The samples of all series that Prometheus answers itself, without NaN and infinities."""
    parameters = {"query": '{__name__=~".+"}[10m]', "time": str(end_s)}
    response = prometheus.get("/api/v1/query", params=parameters)
    assert response.status_code == 200, response.text
    content: Content = {}
    for series in response.json()["data"]["result"]:
        labels: dict[str, Any] = series["metric"]
        name = labels.pop("__name__"), tuple(sorted(labels.items()))
        for seconds, text in series["values"]:
            if math.isfinite(value := float(text)):
                content[name, round(seconds * 1000)] = number(value)
    return content


COUNTERS = ("samples_total", "samples_failed_total", "samples_dropped_total", "samples_retried_total")


def counter(prometheus: httpx.Client, name: str) -> float:
    """What Prometheus has counted about its remote write."""
    found = re.findall(
        rf"^prometheus_remote_storage_{name}\{{.*\}} (.+)$", prometheus.get("/metrics").text, re.M
    )
    return sum(map(float, found))


def skipped_samples(client: httpx.Client) -> int:
    """The samples that the front door has skipped since they are no numbers."""
    kind = r'timebeam_write_skipped_total\{endpoint="/api/v1/write",kind="not_finite"\} (\d+)'
    return sum(map(int, re.findall(kind, client.get("/metrics").text)))


def wait_until_sent(prometheus: httpx.Client) -> None:
    """Until Prometheus has sent all that it scraped before now."""
    sent = "prometheus_remote_storage_queue_highest_sent_timestamp_seconds"
    now_s, until = time.time(), time.monotonic() + 60
    while True:
        (result,) = prometheus.get("/api/v1/query", params={"query": sent}).json()["data"]["result"]
        if float(result["value"][1]) >= now_s:
            return
        assert time.monotonic() < until
        time.sleep(1)
