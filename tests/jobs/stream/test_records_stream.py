"""Declared tables from a subscription: redelivered, shuffled, with poison among the records."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import timebeam
from tests.support.inputs.example_tables import EXAMPLES, Tables
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer

START_MS = 1426535612045


def stream(tables: Tables, folder: Path, messages: list[Published], *flags: str, deliveries: int = 5) -> Any:
    """Streams the messages; (summary, dead letters)."""
    with PubSubServer(messages, deliveries=deliveries, seed=3, batch=50).running() as server:
        ran = timebeam(
            *("ingest", *tables.flags, f"--input-subscription={SUBSCRIPTION}", "--stop-when-idle=0.5"),
            *("--summary=json", "--dead-letters", folder / "dead", *(flags or ("--format=records",))),
        )
        assert ran.code == 0, ran.err
        assert server.left == 0
    letters = [json.loads(line) for path in folder.glob("dead*") for line in path.read_text().splitlines()]
    return json.loads(ran.out), letters


@pytest.mark.parametrize("writer", ["direct", "beam"])
def test_histories_and_latest_values(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, writer: str
) -> None:
    """Every message one to five times in any order: the history holds all, the latest table the latest."""
    tables = Tables(bigtable, prefix, EXAMPLES / "metrics.toml")
    rng = random.Random(4)
    sent = [
        {
            "HOSTNAME": f"server{host}",
            "TS": START_MS + 5000 * step,
            "metrics": {"CPU": {f"CPU{rng.randrange(3)}_USR": f"{rng.random():.3f}"}},
        }
        for step in range(30)
        for host in range(3)
    ]
    lines = [json.dumps(record).encode() for record in sent]
    messages = [Published(b"\n".join(lines[at : at + 2]), 1000 + at) for at in range(0, len(lines), 2)]
    messages[3] = Published(gzip.compress(messages[3].data), 1006, {"content-encoding": "gzip"})
    stream(tables, tmp_path, messages, "--format=records", f"--bigtable-writer={writer}")
    latest: dict[str, dict[str, str]] = {}
    for record in sent:
        latest.setdefault(record["HOSTNAME"], {}).update(
            {f"CPU/{name}": value for name, value in record["metrics"]["CPU"].items()}
        )
    current = {record["HOSTNAME"]: record for record in tables.records("current_metric")}
    assert {host: record["metrics"] for host, record in current.items()} == latest
    assert len(tables.records("metric")) == len(sent)


def test_poison_and_what_is_known_of_it(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    tables = Tables(bigtable, prefix, EXAMPLES / "metrics.toml")
    good = {"HOSTNAME": "server1", "TS": START_MS, "metrics": {"CPU": {"USR": "1"}}}
    messages = [
        Published(json.dumps(good).encode() + b"\nnot json\n", 10, {"site": "lab"}),
        Published(json.dumps(good | {"HOSTNAME": "a#b", "TS": START_MS + 1}).encode(), 11),
        Published(b"\x1f\x8b broken", 12, {"content-encoding": "gzip"}),
    ]
    summary, letters = stream(tables, tmp_path, messages, deliveries=1)
    found = {letter["message_id"]: letter for letter in letters}
    assert {number: letter["reason"] for number, letter in found.items() if number != "1"} == {
        "0": "bad-syntax",
        "2": "corrupt-message",
    }
    assert (found["0"]["payload"], found["0"]["attributes"]) == ("not json", {"site": "lab"})
    assert found["0"]["offset"] == messages[0].data.index(b"not")
    assert [letter["publish_time_ms"] for _, letter in sorted(found.items())] == [10, 11, 12]
    assert summary["points_read"] == 4
    assert len(tables.records("metric")) == 1


def test_csv_messages_begin_with_their_header(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    tables = Tables(bigtable, prefix, EXAMPLES / "sensor.toml")
    messages = [
        Published(
            f"METER,TS,READING\n{meter},{1426489200000 + 900_000 * at},{meter}.{at}\n".encode(), 10 + at
        )
        for meter in (7, 8)
        for at in range(20)
    ]
    messages.append(Published(b"METER,METER\n1,2\n", 100))
    messages.append(Published(b"7,1426489200000,7.5\n", 100))  # was taken for a header without records
    summary, letters = stream(tables, tmp_path, messages, "--format=records", "--records-encoding=csv")
    assert summary["points_stored"] >= 40
    assert {letter["message_id"] for letter in letters} == {"40", "41"}
    stored = {(int(one["METER"]), one["TS"]): one["READING"] for one in tables.records("sensor")}
    assert len(stored) == 40
    assert stored[7, 1426489200000 + 900_000 * 3] == "7.3"


def test_points_into_declared_tables(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "point.toml"
    path.write_text(
        """
[layout.point]
table = "POINT"
separator = "#"
key = [{ field = "metric" }, { field = "host" }, { time = "timestamp", unit = "ms", width = 13 }]
identity = ["metric", "host"]
gc = { max_versions = 1 }
estimate = { interval = "5s", value_bytes = 16 }

[layout.point.columns]
family = "p"
fields = ["value"]

[[layout.point.read]]
name = "series"
equals = ["metric", "host"]
range = "timestamp"
"""
    )
    tables = Tables(bigtable, prefix, path)
    lines = [f"put sys.m {1_767_225_600 + at} {at} host=a".encode() for at in range(30)]
    messages = [Published(line, 1000 + at) for at, line in enumerate(lines)]
    stream(tables, tmp_path, messages, "--format=opentsdb-text")
    assert len(tables.records("point")) == 30
