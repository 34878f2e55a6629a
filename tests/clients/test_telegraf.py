"""Telegraf into Pub/Sub in three serializations: the points of each are those that its JSON says.

And into the front door with its outputs for InfluxDB, which take a 400 for the loss of all metrics of a body.
"""

from __future__ import annotations

import base64
import collections
import gzip
import json
import os
import re
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import timebeam
from tests.support.servers.front_door import front_door
from timebeam.pipelines.local.emulator import EmulatorError
from timebeam.pipelines.local.pubsub import publisher, pubsub_emulator, subscriber
from timebeam.schema.bits.compression import unpack
from timebeam.schema.formats import Message, message_format

pytestmark = pytest.mark.clients

BINARY = Path(__file__).parents[2] / "build" / "telegraf" / "telegraf"
SECONDS = 12

SERIALIZATIONS = {
    "influx": ("influx", "heroic", True, "gzip"),
    "json": ("telegraf-json", "opentsdb-salted", True, "identity"),
    "prometheusremotewrite": ("prometheus-remote-write", "kairosdb-milliseconds", False, "gzip"),
    "all": ("", "", True, "gzip"),
}
"""(format, layout, base64, content encoding) of each topic; `all` has JSON for the expected side."""

AGENT = """
[agent]
  interval = "1s"
  flush_interval = "2s"
  hostname = "web01"
[[inputs.cpu]]
[[inputs.mem]]
"""

OUTPUT = """
[[outputs.cloud_pubsub]]
  project = "local"
  topic = "{topic}"
  credentials_file = "credentials.json"
  data_format = "{serialization}"
  base64_data = {base64}
  content_encoding = "{encoding}"
"""

CREDENTIALS = {"type": "authorized_user", "client_id": "x", "client_secret": "x", "refresh_token": "x"}

Points = dict[tuple[tuple[str, tuple[tuple[str, str], ...]], int], float]
"""Values as doubles: Heroic stores no others, and remote write sends no others."""


def test_metrics_of_telegraf(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    _skip_without_telegraf()
    try:
        with pubsub_emulator() as host:
            for topic in SERIALIZATIONS:
                _create(topic)
            _run(tmp_path, host)
            expected = _expected()
            assert len(expected) > 200
            for topic, (form, variant, *_) in SERIALIZATIONS.items():
                if form:
                    store = AnyStore.create(bigtable, f"{prefix}{topic}", variant)
                    assert _stored(store, topic, tmp_path) == _named(expected, form)
    except EmulatorError as error:
        pytest.skip(str(error))


FIELDS = 'kinds,t=v on=true,off=false,text="first\nsecond",name="x",number=5i,half=0.5'
"""A metric with fields of all kinds, and no time: Telegraf adds one."""

FOR_INFLUXDB = """
[[inputs.file]]
  files = ["fields"]
  data_format = "influx"
[[outputs.influxdb]]
  urls = ["{url}"]
  skip_database_creation = true
[[outputs.influxdb_v2]]
  urls = ["{url}"]
  token = "secret"
  organization = "o"
  bucket = "b"
"""


def test_its_outputs_for_influxdb_lose_nothing(tmp_path: Path) -> None:
    _skip_without_telegraf()
    (tmp_path / "fields").write_text(FIELDS)
    with front_door() as (client, server):
        (tmp_path / "telegraf.conf").write_text(AGENT + FOR_INFLUXDB.format(url=client.base_url))
        _run_until_sent(tmp_path, {})
        requests = re.findall(
            r'timebeam_writes_total\{endpoint="(.+)",status="(.+)"\}', client.get("/metrics").text
        )
    assert requests == [("/api/v2/write", "204"), ("/write", "204")]
    form, values = message_format("influx"), collections.defaultdict(set)
    for message in server.published:
        body = unpack(message.attributes.get("content-encoding", ""), message.data)
        for series, _, value in form.parse(Message(body, 0)).batch.points():
            values[series.metric].add(value)
    of_file = {name: numbers for name, numbers in values.items() if name.startswith("kinds.")}
    assert of_file == {"kinds.on": {1}, "kinds.off": {0}, "kinds.number": {5}, "kinds.half": {0.5}}
    assert {"cpu.usage_user", "mem.free"} <= values.keys()


def _skip_without_telegraf() -> None:
    if not BINARY.exists():
        pytest.skip("no Telegraf: make telegraf (needs Go)")


def _create(topic: str) -> None:
    """A topic with a subscription."""
    with publisher() as publishing, subscriber() as subscribing:
        publishing.create_topic(name=f"projects/local/topics/{topic}")
        subscribing.create_subscription(
            name=f"projects/local/subscriptions/{topic}", topic=f"projects/local/topics/{topic}"
        )


def _run(folder: Path, host: str) -> None:
    """Telegraf for some seconds; what it has gathered it sends before it ends."""
    outputs = [
        OUTPUT.format(
            topic=topic,
            serialization="json" if topic == "all" else topic,
            base64=json.dumps(is_base64),
            encoding=encoding,
        )
        for topic, (_, _, is_base64, encoding) in SERIALIZATIONS.items()
    ]
    (folder / "telegraf.conf").write_text(AGENT + "".join(outputs))
    (folder / "credentials.json").write_text(json.dumps(CREDENTIALS))
    _run_until_sent(folder, {"PUBSUB_EMULATOR_HOST": host})


def _run_until_sent(folder: Path, variables: dict[str, str]) -> None:
    """Telegraf with the configuration of a folder, for some seconds; it logs no error."""
    with (folder / "telegraf.log").open("w") as log:
        process = subprocess.Popen(
            [BINARY, "--config", "telegraf.conf"],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
        time.sleep(SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (folder / "telegraf.log").read_text()
    assert " E! " not in (folder / "telegraf.log").read_text()


def _expected() -> Points:
    """The points of topic `all`, whose messages are read by Python's own modules."""
    points: Points = {}
    with subscriber() as client:
        while True:
            name = "projects/local/subscriptions/all"
            pulled = client.pull(subscription=name, max_messages=1000, return_immediately=True)
            if not pulled.received_messages:
                return points
            for received in pulled.received_messages:
                metric: dict[str, Any] = json.loads(base64.b64decode(gzip.decompress(received.message.data)))
                tags = tuple(sorted(metric["tags"].items()))
                for field, value in metric["fields"].items():
                    series = f"{metric['name']}.{field}", tags
                    points[series, metric["timestamp"] * 1000] = float(value)
            ids = [received.ack_id for received in pulled.received_messages]
            client.acknowledge(subscription=name, ack_ids=ids)


def _named(points: Points, form: str) -> Points:
    """Points with the names of a format: Telegraf's remote write joins metric and field by `_`."""
    if form != "prometheus-remote-write":
        return points
    return {((name.replace(".", "_"), tags), time): value for ((name, tags), time), value in points.items()}


def _stored(store: AnyStore, topic: str, folder: Path) -> Points:
    """What is stored of a topic, whose messages do not tell their format; `_` is escaped in OpenTSDB."""
    ran = timebeam(
        *("ingest", *store.flags, *store.auto_create, "--format=auto"),
        *("--formats=influx,telegraf-json,prometheus-remote-write",),
        *(f"--input-subscription=projects/local/subscriptions/{topic}", "--stop-when-idle=2"),
        *("--flush-seconds=1", "--dead-letters", str(folder / f"dead-{topic}"), "--summary=json"),
    )
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["rejected"] == {}
    plain = (lambda name: name.replace("__", "_")) if "opentsdb" in store.layout.name else str
    return {
        (
            (plain(metric), tuple((plain(tag_key), plain(tag)) for tag_key, tag in tags)),
            time_ms,
        ): float(value) if kind == "int" else struct.unpack(">d", value)[0]
        for ((metric, tags), time_ms), (kind, value) in store.content().items()
    }
