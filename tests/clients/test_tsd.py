"""A real TSD and `timebeam serve` over the same tables give equal answers to seeded questions.

Needs a TSD 2.4.1 on the Bigtable emulator:

    TSD_URL=http://localhost:4242 BIGTABLE_EMULATOR_HOST=localhost:8086 .venv/bin/pytest -m clients \\
        tests/clients/test_tsd.py

`TSD_SEEDS=1-20` asks for more points and questions; `TSD_SALT_WIDTH=1` is for salted tables.

A TSD that works: `net.opentsdb:opentsdb:2.4.1` and its dependencies, without asynchbase; the classes of
asyncbigtable 0.4.3, compiled from its sources with version 1.9.0 of
`com.google.cloud.bigtable:bigtable-hbase-2.x-hadoop`; and `javax.xml.bind:jaxb-api:2.3.1` (Java 11 on).
Before it starts, `timebeam tables create --layout opentsdb --meta --trees --rollup-config rollups.json`, with
the file that `python -m tests.support.servers.tsd_questions` prints. Its settings, besides port, static root
and cache folder:

    tsd.rollups.enable = true
    tsd.rollups.config = rollups.json
    google.bigtable.project.id = local
    google.bigtable.instance.id = local
    google.bigtable.emulator.endpoint.host = localhost:8086
    google.bigtable.auth.null.credential.enable = true
    google.bigtable.use.plaintext.negotiation = true
    hbase.client.connection.impl = com.google.cloud.bigtable.hbase2_x.BigtableConnection
    hbase.client.async.connection.impl = org.apache.hadoop.hbase.client.BigtableAsyncConnection
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.commands import timebeam
from tests.support.servers.running_server import running
from tests.support.servers.tsd_questions import ROLLUPS, differing, lines, questions, zoned_questions
from timebeam.pipelines.local.emulator import HOST_VARIABLE
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Budget

pytestmark = pytest.mark.clients

LIMITS = ServerLimits(Budget(100_000, 10_000_000, 1_000_000, 1 << 28, 60.0), 4, 64, 1 << 20)
SALT_WIDTH = int(os.environ.get("TSD_SALT_WIDTH", "0"))
FLAGS = ("--layout=opentsdb", "--project=local", "--instance=local", f"--set=salt_width={SALT_WIDTH}")
FIRST_SEED, _, LAST_SEED = os.environ.get("TSD_SEEDS", "1-3").partition("-")
QUESTIONS = 200
PACKINGS = ("compacted", "points", "append")


@pytest.fixture(scope="module")
def tsd() -> Iterator[httpx.Client]:
    url = os.environ.get("TSD_URL")
    if not url or not os.environ.get(HOST_VARIABLE):
        pytest.skip(f"no TSD: set TSD_URL, and {HOST_VARIABLE} to the emulator that has its tables")
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tsd") / "rollups.json"
    path.write_text(json.dumps(ROLLUPS))
    return path


@pytest.fixture(scope="module")
def server(tsd: httpx.Client, config: Path) -> Iterator[httpx.Client]:
    layout = OpenTsdb(OpenTsdbOptions.of({"salt_width": SALT_WIDTH}))
    api = Api(Target("local", "local"), layout, (layout, read_config(str(config))))
    with running(api, LIMITS) as client:
        yield client


@pytest.mark.parametrize("seed", range(int(FIRST_SEED), int(LAST_SEED or FIRST_SEED) + 1))
def test_answers_are_those_of_a_tsd(
    tsd: httpx.Client, server: httpx.Client, config: Path, tmp_path: Path, seed: int
) -> None:
    points = tmp_path / "points.txt"
    points.write_text("".join(line + "\n" for line in lines(seed)))
    letters = f"--dead-letters={tmp_path / 'dead'}"
    packed = ("--format=opentsdb-text", "--auto-create-metrics", f"--packing={PACKINGS[seed % 3]}")
    for command in (
        ("ingest", *FLAGS, *packed, f"--input={points}", letters),
        ("rollup", *FLAGS, f"--rollup-config={config}", "--day=2013-01-01", letters),
    ):
        ran = timebeam(*command)
        assert ran.code == 0, ran.err
    asked = [question for rolled in (False, True) for question in questions(seed, QUESTIONS, rolled=rolled)]
    failures = []
    for question in asked + zoned_questions(seed, QUESTIONS):
        method = "GET" if question.body is None else "POST"
        answers = [client.request(method, question.path, json=question.body) for client in (tsd, server)]
        texts = differing(question, *((answer.status_code, answer.text) for answer in answers))
        failures += [f"{question.path} {question.body or ''}: {text}" for text in texts[:1]]
    assert failures == []
