"""Debian's Prometheus as a client of remote read: queries of PromQL and an alert, against a plain model."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.commands import ingest
from tests.support.servers.programs import free_port, program, running_program
from tests.support.servers.running_server import running
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.transforms.query.budget import Budget

pytestmark = pytest.mark.clients

LIMITS = ServerLimits(Budget(100_000, 1_000_000, 1_000_000, 1 << 26, 60.0), 4, 64, 1 << 20)
NOW_S = int(time.time()) // 60 * 60
OLD_S = 1_394_000_000
"""In 2014."""

ALERT = "min_over_time(sys:load[2h]) > 50"
HOSTS = {"a": 0, "b": 100}
"""What is added to the values of each."""

Points = dict[str, list[tuple[int, float]]]


def random_points() -> Points:
    chance = random.Random(4)
    return {
        host: [
            (first_s + second, base + chance.randrange(-99, 99) / 8)
            for first_s in (OLD_S, NOW_S - 3600)
            for second in range(0, 3600, 30)
        ]
        for host, base in HOSTS.items()
    }


POINTS = random_points()


@pytest.fixture(scope="module")
def prometheus(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    binary = program("prometheus", "prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    store = Store.create(bigtable, "prometheus_")
    path = folder / "points.txt"
    path.write_text(
        "".join(
            f"put sys.load {second} {value} host={host} k8s.pod=p-{host}\n"
            for host, points in POINTS.items()
            for second, value in points
        )
    )
    assert ingest(folder, *store.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", path)
    with contextlib.ExitStack() as stack:
        api = Api(store.target, store.layout, ignored_labels=["replica"])
        server = stack.enter_context(running(api, LIMITS))
        remote = {"url": f"{server.base_url}/api/v1/read", "read_recent": True}
        rules = {"groups": [{"name": "g", "rules": [{"alert": "Busy", "expr": ALERT}]}]}
        config = {
            "global": {"evaluation_interval": "1s", "external_labels": {"replica": "A"}},
            "remote_read": [remote],
            "rule_files": ["rules.yml"],
        }
        for name, content in (("rules.yml", rules), ("prometheus.yml", config)):  # JSON is YAML
            (folder / name).write_text(json.dumps(content))
        port = free_port()
        command = [binary, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
        yield stack.enter_context(
            running_program([*command, "--storage.tsdb.path=data"], port, "/-/ready", folder)
        )


def query(prometheus: httpx.Client, text: str, time_s: int) -> list[dict[str, Any]]:
    response = prometheus.get("/api/v1/query", params={"query": text, "time": time_s})
    assert response.status_code == 200, response.text
    result: list[dict[str, Any]] = response.json()["data"]["result"]
    return result


def plain_average(host: str, end_s: int, seconds: int) -> float:
    values = [value for second, value in POINTS[host] if end_s - seconds <= second <= end_s]
    return sum(values) / len(values)


@pytest.mark.parametrize("end_s", [OLD_S + 1800, NOW_S - 60])
def test_averages_over_time(prometheus: httpx.Client, end_s: int) -> None:
    result = query(prometheus, "avg_over_time(sys:load[10m])", end_s)
    averages = {item["metric"]["host"]: float(item["value"][1]) for item in result}
    assert averages == pytest.approx({host: plain_average(host, end_s, 600) for host in HOSTS}, rel=1e-12)
    assert [item["metric"]["U__k8s_2e_pod"] for item in result] == ["p-a", "p-b"]


def test_matchers_of_a_selector(prometheus: httpx.Client) -> None:
    for selector in ('{__name__=~"sys:.*",host!="a"}', 'sys:load{U__k8s_2e_pod=~"p-[b-z]",dc=""}'):
        (item,) = query(prometheus, f"count_over_time({selector}[1h])", OLD_S + 3600)
        assert (item["metric"]["host"], item["value"][1]) == ("b", "120")
    assert query(prometheus, 'sys:load{host="c"}', OLD_S + 3600) == []


def test_intervals_by_a_label(prometheus: httpx.Client) -> None:
    result = query(prometheus, 'max_over_time(sys:load{__rollup__="15m-max"}[1h])', OLD_S + 3600)
    assert {item["metric"]["host"]: float(item["value"][1]) for item in result} == {
        host: max(value for second, value in points if second < OLD_S + 3600)
        for host, points in POINTS.items()
    }


def test_an_alert(prometheus: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    alerts: list[dict[str, Any]] = []
    while not alerts:
        assert time.monotonic() < deadline, prometheus.get("/api/v1/rules").text
        time.sleep(0.5)
        alerts = prometheus.get("/api/v1/alerts").json()["data"]["alerts"]
    assert [(alert["labels"]["host"], alert["state"]) for alert in alerts] == [("b", "firing")]
