"""Debian's vmctl moves the example's metrics out of the server into VictoriaMetrics, all of their points."""

from __future__ import annotations

import collections
import gzip
import json
import math
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ingest
from tests.support.servers.programs import free_port, program, running_program
from tests.support.servers.running_server import running
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.transforms.query.budget import Budget

pytestmark = pytest.mark.clients

METRICS = Path(__file__).parents[2] / "examples" / "metrics"
LIMITS = ServerLimits(Budget(1_000_000, 10_000_000, 1_000_000, 1 << 30, 60.0), 4, 64, 1 << 20)

Name = tuple[str, tuple[tuple[str, str], ...]]


def example_sums() -> dict[Name, dict[int, float]]:
    """Sums of the points of each second, of series as vmctl names them; of one instant the last counts."""
    points: dict[Name, dict[int, float]] = collections.defaultdict(dict)
    for path in METRICS.glob("*.gz"):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            if line.startswith("{"):
                record = json.loads(line)
                metric, time, value, tags = (record[key] for key in ("metric", "timestamp", "value", "tags"))
            else:
                _, metric, time, value, *words = line.split()
                tags = dict(word.split("=") for word in words)
            time_ms = int(time) if int(time) >= 1 << 32 else int(time) * 1000
            points[metric.replace(".", "_"), tuple(sorted(tags.items()))][time_ms] = float(value)
    sums: dict[Name, dict[int, float]] = {}
    for name, series in points.items():
        sums[name] = collections.defaultdict(float)
        for time_ms, number in series.items():
            sums[name][time_ms // 1000] += number
    return sums


def test_vmctl_moves_all_points(bigtable: tuple[str, str], tmp_path: Path) -> None:
    vmctl, victoria = program("vmctl", "victoria-metrics"), program("victoria-metrics", "victoria-metrics")
    store = Store.create(bigtable, "vmctl_")
    for format_name, pattern in (("opentsdb-json", "*.json.gz"), ("opentsdb-text", "*.txt.gz")):
        flags = (*store.flags, "--auto-create-metrics", f"--format={format_name}")
        assert ingest(tmp_path, *flags, "--input", METRICS / pattern).letters == []
    expected = example_sums()
    last_s = max(max(series) for series in expected.values())
    port = free_port()
    command = [victoria, f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=100y"]
    with (
        running(Api(store.target, store.layout), LIMITS) as server,
        running_program([*command, "-storageDataPath=data"], port, "/health", tmp_path) as client,
    ):
        ran = subprocess.run(
            [
                *(vmctl, "opentsdb", "-s", "--vm-disable-progress-bar"),
                f"--otsdb-addr={server.base_url}",
                f"--vm-addr={client.base_url}",
                *("--otsdb-filters=sys", "--otsdb-filters=process"),
                "--otsdb-retentions=sum-1s-sum:1h:1d",
                f"--otsdb-hard-ts-start={last_s + 1}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        assert client.get("/internal/force_flush").status_code == 200
        exported = client.get("/api/v1/export", params={"match[]": '{__name__!=""}', "start": 0}).text
    moved: dict[Name, dict[int, float]] = {}
    for line in exported.splitlines():
        record = json.loads(line)
        metric = record["metric"].pop("__name__")
        seconds = (time_ms // 1000 for time_ms in record["timestamps"])
        moved[metric, tuple(sorted(record["metric"].items()))] = dict(
            zip(seconds, record["values"], strict=True)
        )
    assert {name: len(series) for name, series in moved.items()} == {
        name: len(series) for name, series in expected.items()
    }
    for name, series in expected.items():
        assert math.isclose(sum(moved[name].values()), sum(series.values()), rel_tol=1e-12)
