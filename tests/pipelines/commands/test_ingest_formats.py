"""`timebeam ingest` with the formats that have options: into the tables, and what is wrong usage."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import pytest

from tests.schema.stores.plain_opentsdb import number
from tests.support.commands import ingest, timebeam
from tests.support.points import stored
from tests.support.stored import Store
from timebeam.schema.formats.avro.schema import own_schema

T = 1_356_998_400
SERIES = ("sys.cpu", (("host", "web01"),))


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "reading", "type": "double"},
        {"name": "host", "type": "string"},
    ],
}
READINGS = [{"ts": (T + i) * 1_000_000, "reading": i / 4, "host": "web01"} for i in range(300)]
FIELDS = "--avro-fields=metric:=sys.cpu,timestamp=ts,value=reading,tag:host=host"


def container(path: Path) -> Path:
    """The readings in a file, an Avro container of several blocks."""
    file = io.BytesIO()
    fastavro.writer(file, SCHEMA, READINGS, codec="deflate", sync_interval=500)
    path.write_bytes(file.getvalue())
    return path


def test_line_protocol(store: Store, tmp_path: Path) -> None:
    lines = [f'sys,host=web01 cpu={i}.5,procs={i}i,state="up" {T + i}' for i in range(200)]
    (tmp_path / "a.lp").write_text("\n".join(lines))
    flags = ("--format=influx", "--influx-precision=s", "--auto-create-metrics", "--input", tmp_path / "a.lp")
    found = ingest(tmp_path, *store.flags, *flags)
    wanted = {(SERIES, (T + i) * 1000): number(i + 0.5) for i in range(200)}
    wanted |= {(("sys.procs", SERIES[1]), (T + i) * 1000): number(i) for i in range(200)}
    assert stored(store) == wanted
    assert (found.summary["points_stored"], found.summary["rejected"]) == (400, {"bad-number": 200})
    assert sorted(letter["payload"] for letter in found.letters) == sorted(lines)


def test_avro_containers(store: Store, tmp_path: Path) -> None:
    path = container(tmp_path / "a.avro")
    found = ingest(tmp_path, *store.flags, "--format=avro", FIELDS, "--auto-create-metrics", "--input", path)
    assert stored(store) == {(SERIES, (T + i) * 1000): number(i / 4) for i in range(300)}
    assert found.letters == []


def test_avro_batches_as_json_with_a_schema_file(store: Store, tmp_path: Path) -> None:
    (tmp_path / "batch.avsc").write_text(own_schema("point_batch"))
    batch = {"metric": "sys.cpu", "tags": {"host": "web01"}, "timestamps": [T, T + 1, 0]}
    line = json.dumps(batch | {"values": [{"long": 7}, {"double": 0.5}, {"long": 8}]})
    (tmp_path / "a.json").write_text(line)
    schemas = ("--avro-schema=point_batch", f"--avro-schema={tmp_path / 'batch.avsc'}")
    for schema in schemas:
        flags = ("--format=avro", "--avro-encoding=json", schema, "--auto-create-metrics")
        found = ingest(tmp_path, *store.flags, *flags, "--input", tmp_path / "a.json")
        assert stored(store) == {(SERIES, T * 1000): number(7), (SERIES, (T + 1) * 1000): number(0.5)}
        (letter,) = found.letters
        assert (letter["reason"], letter["payload"]) == ("bad-timestamp", line)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--format=influx", "--influx-metric={measurement}"], "influx_metric must hold {field}"),
        (["--format=influx", "--influx-precision=minutes"], "--influx-precision"),
        (["--format=influx", "--drop-tags=host"], "give overflow_tag"),
        (["--format=avro", "--avro-fields=metric"], "avro_fields: 'metric' is not one of"),
        (["--format=avro", "--avro-schema=point"], "avro_schema: a container holds its own schema"),
        (["--format=avro", "--avro-encoding=json", "--avro-schema=nowhere.avsc"], "cannot read the schema"),
        (["--format=avro", "--avro-encoding=json", "--avro-schema=setup.py"], "no Avro schema"),
        (["--format=avro", "--avro-encoding=binary"], "reads messages, not files"),
    ],
)
def test_wrong_usage_is_said_before_any_work(
    store: Store, tmp_path: Path, arguments: list[str], text: str
) -> None:
    ran = timebeam("ingest", *store.flags, "--input", container(tmp_path / "a.avro"), *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert (store.cells(), store.uid_cells()) == (set(), set())
