"""Records, and points, into the tables of shipped declarations, read back by the codec of declared tables."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.support.commands import ingest, timebeam
from tests.support.inputs.example_tables import EXAMPLES, Tables
from tests.support.inputs.file_lines import sizes
from tests.support.points import FIRST_MS, LATER_MS, write_file
from timebeam.pipelines.options.parameters import DECLARED


def lines(records: Iterable[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(record).encode() + b"\n" for record in records]


@pytest.mark.parametrize("writer", ["beam", "direct"])
def test_quotes_and_trades(bigtable: tuple[str, str], prefix: str, tmp_path: Path, writer: str) -> None:
    """One message, two tables; texts of numbers are as they were."""
    tables = Tables(bigtable, prefix, EXAMPLES / "market.toml")
    found = tables.ingest(tmp_path, EXAMPLES / "market.jsonl", f"--bigtable-writer={writer}")
    assert not found.letters
    assert (found.summary["points_read"], found.summary["points_stored"], found.summary["rows"]) == (3, 3, 4)
    quotes = {record["SYMBOL"]: record for record in tables.records("quote")}
    assert {name: (quote["BID"], quote["ASK"]) for name, quote in quotes.items()} == {
        "ZXZZT": ("600.55", "600.60"),
        "F": ("16.05", "16.10"),
    }
    trades = {record["SYMBOL"]: record for record in tables.records("trade")}
    assert {name: (trade["TRADETIME"], trade["LASTSALE"]) for name, trade in trades.items()} == {
        "ZXZZT": (1426535612045, "600.58"),
        "ZVZZT": (1426535613007, "10.00"),
    }
    before = tables.cells()
    assert (prefix + "QUOTE", b"NASDAQ#ZXZZT#1426535612156") in {cell[:2] for cell in before}
    tables.ingest(tmp_path, EXAMPLES / "market.jsonl")
    assert tables.cells() == before


def test_an_older_message_never_replaces_a_newer_value(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """In CURRENT_METRIC, in whatever order they come; METRIC holds them all."""
    tables = Tables(bigtable, prefix, EXAMPLES / "metrics.toml")
    rng = random.Random(4)
    sent = [
        {
            "HOSTNAME": f"server{host}",
            "TS": 1426535612045 + 5000 * step,
            "metrics": {"CPU": {f"CPU{rng.randrange(3)}_USR": f"{rng.random():.3f}"}},
        }
        for step in range(40)
        for host in range(3)
    ]
    shuffled = rng.sample(sent, len(sent))
    for number, age_ms in enumerate((LATER_MS, FIRST_MS)):  # the age of the file must not matter
        path = write_file(tmp_path / f"{number}.jsonl.gz", lines(shuffled[number::2]), age_ms)
        assert not tables.ingest(tmp_path, path).letters
    latest: dict[str, dict[str, str]] = {}
    for record in sent:  # in the order of their times
        entries = latest.setdefault(record["HOSTNAME"], {})
        entries |= {f"CPU/{name}": value for name, value in record["metrics"]["CPU"].items()}
    current = {record["HOSTNAME"]: record for record in tables.records("current_metric")}
    assert {host: record["metrics"] for host, record in current.items()} == latest
    assert {record["TS"] for record in current.values()} == {1426535612045 + 5000 * 39}
    history = {(record["HOSTNAME"], record["TS"]): record["metrics"] for record in tables.records("metric")}
    assert history == {
        (record["HOSTNAME"], record["TS"]): {
            f"CPU/{name}": value for name, value in record["metrics"]["CPU"].items()
        }
        for record in sent
    }


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_readings_of_csv_in_many_blocks(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, suffix: str
) -> None:
    """Every block knows the header; a wide row gets its columns from several of them."""
    tables = Tables(bigtable, prefix, EXAMPLES / "sensor.toml")
    start_ms, quarter_ms = 1426489200000, 900_000
    sent = {
        (meter, start_ms + quarter_ms * at): f"{meter}.{at:03}" for meter in (7, 987654) for at in range(200)
    }
    rows = [f"{meter},{time_ms},{value}\r\n".encode() for (meter, time_ms), value in sent.items()]
    random.Random(1).shuffle(rows)
    path = write_file(tmp_path / f"sensor{suffix}", [b"\r\n", b"METER,TS,READING\r\n", *rows])
    with sizes(1000, 200):
        found = tables.ingest(tmp_path, path, "--records-encoding=csv")
    assert not found.letters
    assert found.summary["points_stored"] == 400
    stored = {(int(record["METER"]), record["TS"]): record["READING"] for record in tables.records("sensor")}
    assert stored == sent


def test_records_of_avro(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    tables = Tables(bigtable, prefix, EXAMPLES / "sensor.toml")
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "METER", "type": "long"},
            {"name": "TS", "type": "long"},
            {"name": "READING", "type": ["null", "double"]},
        ],
    }
    with (EXAMPLES / "sensor.csv").open() as file:
        sent = [
            {"METER": int(row["METER"]), "TS": int(row["TS"]), "READING": float(row["READING"])}
            for row in csv.DictReader(file)
        ]
    path = tmp_path / "sensor.avro"
    with path.open("wb") as out:
        fastavro.writer(out, schema, [*sent, {"METER": -1, "TS": 5, "READING": 1.0}])
    found = tables.ingest(tmp_path, path, "--records-encoding=avro")
    ((reason, source),) = [(letter["reason"], letter["source"]) for letter in found.letters]
    assert (reason, source) == ("series-not-storable", str(path))
    stored = [(int(one["METER"]), one["TS"], float(one["READING"])) for one in tables.records("sensor")]
    assert sorted(stored) == sorted((one["METER"], one["TS"], one["READING"]) for one in sent)


POINTS = """
[layout.point]
table = "POINT"
key = [{ field = "metric" }, { field = "host" }, { time = "timestamp", unit = "ms", width = 13 }]
allow_overwrite = false
[layout.point.columns]
family = "F"
fields = ["value"]
"""


def test_points_of_a_format(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """A point is a record; one whose tags have no place in the key is a dead letter."""
    (tmp_path / "point.toml").write_text(POINTS)
    tables = Tables(bigtable, prefix, tmp_path / "point.toml")
    put = [
        b"put m 1356998400 1.50 host=a\n",
        b"put m 1356998401250 7 host=b\n",
        b"put m 1356998400 7 host=b core=1\n",
        b"put m x 7 host=b\n",
    ]
    path = write_file(tmp_path / "put.txt", put)
    found = ingest(tmp_path, *tables.flags, "--format=opentsdb-text", "--input", path)
    rejected = {letter["payload"]: (letter["reason"], letter["offset"]) for letter in found.letters}
    offset = len(put[0]) + len(put[1])
    assert rejected == {
        put[2].decode().strip(): ("series-not-storable", offset),
        put[3].decode().strip(): ("bad-timestamp", offset + len(put[2])),
    }
    assert {letter["arrival_ms"] for letter in found.letters} == {FIRST_MS}
    assert (found.summary["points_read"], found.summary["points_stored"]) == (4, 2)
    stored = {(one["host"], one["timestamp"], one["value"]) for one in tables.records("point")}
    assert stored == {("a", 1356998400000, "1.5"), ("b", 1356998401250, "7")}


def test_what_is_rejected(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """With original bytes, place and arrival; the good lines of the block are stored."""
    tables = Tables(bigtable, prefix, EXAMPLES / "metrics.toml")
    good = {"HOSTNAME": "a", "TS": 1426535612045, "metrics": {"CPU": {"x": 1}}}
    bad = [b"not json\n", *lines([{**good, "HOSTNAME": "a#b"}, {**good, "TS": "soon"}])]
    path = write_file(tmp_path / "a.jsonl", [bad[0], *lines([good]), *bad[1:]])
    found = tables.ingest(tmp_path, path)
    assert [(letter["payload"] + "\n").encode() for letter in found.letters] == bad
    assert [letter["reason"] for letter in found.letters] == [
        "bad-syntax",
        "series-not-storable",
        "bad-timestamp",
    ]
    assert {(letter["source"], letter["arrival_ms"]) for letter in found.letters} == {(str(path), FIRST_MS)}
    assert found.letters[1]["offset"] == len(bad[0]) + len(lines([good])[0])
    assert len(tables.records("metric")) == 1


@pytest.mark.parametrize("text", [b"METER,,READING\n1,2,3\n", b"METER,METER\n1,2\n", b'"METER\n1,2\n'])
def test_a_file_of_csv_without_a_header(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, text: bytes
) -> None:
    tables = Tables(bigtable, prefix, EXAMPLES / "sensor.toml")
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(text))
    with sizes(5, 100):
        found = tables.ingest(tmp_path, path, "--records-encoding=csv")
    assert "".join(letter["payload"] for letter in found.letters).encode() == text
    assert {letter["reason"] for letter in found.letters} == {"bad-syntax"}


def test_dry_run_writes_nothing(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    tables = Tables(bigtable, prefix, EXAMPLES / "market.toml")
    found = tables.ingest(tmp_path, EXAMPLES / "market.jsonl", "--dry-run")
    assert (found.summary["rows"], tables.cells()) == (4, set())


def test_tables_of_a_declaration(bigtable: tuple[str, str], prefix: str) -> None:
    tables = Tables(bigtable, prefix, EXAMPLES / "market.toml")
    again = timebeam("tables", "create", *tables.flags)
    assert again.code == 0
    assert again.out.splitlines() == [
        f"table {prefix}QUOTE exists, families MD (newest 1)",
        f"table {prefix}TRADE exists, families MD (newest 1)",
    ]


@pytest.mark.parametrize(
    ("command", "flags", "text"),
    [
        (["ingest"], [f"--tables={EXAMPLES / 'market.toml'}", "--packing=compacted"], "leave --packing out"),
        (["ingest"], [], "--tables FILE"),
        (["ingest"], [f"--tables={EXAMPLES / 'market.jsonl'}"], "market.jsonl line 1: not TOML"),
        (["tables", "create"], [], "--tables FILE"),
        (["query", "m"], ["--start=1h-ago"], "--tables FILE"),
        (["check"], [], "--tables FILE"),
        (["suggest", "metrics"], [], "does not support declared tables"),
    ],
)
def test_wrong_usage(bigtable: tuple[str, str], command: list[str], flags: list[str], text: str) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
    if command == ["ingest"]:
        flags = [*flags, "--format=records", "--input", str(EXAMPLES / "market.jsonl")]
    ran = timebeam(*command, f"--layout={DECLARED}", *place, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err


def test_records_are_for_declared_tables_alone(bigtable: tuple[str, str]) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
    ran = timebeam("ingest", "--layout=heroic", *place, "--format=records", "--input", "x.json")
    assert (ran.code, "--layout table" in ran.err) == (2, True)


def test_missing_tables_are_named_with_the_declaration(bigtable: tuple[str, str], prefix: str) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
    declared = EXAMPLES / "market.toml"
    ran = timebeam(
        *("ingest", f"--layout={DECLARED}", *place, f"--tables={declared}", f"--table-prefix={prefix}"),
        *("--format=records", "--input", EXAMPLES / "market.jsonl"),
    )
    assert ran.code == 1
    assert f"table {prefix}QUOTE, table {prefix}TRADE" in ran.err
    assert ran.err.endswith(f"--layout table --table-prefix {prefix} --tables {declared}\n")


def test_letters_of_avro_records_are_replayed(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """A letter holds one record in a container of its own, which another declaration can take."""
    narrow = tmp_path / "narrow.toml"
    text = (EXAMPLES / "sensor.toml").read_text().replace("width = 10, pad", "width = 4, pad")
    narrow.write_text(text.replace("METER = 987654", "METER = 9876"))
    tables = Tables(bigtable, prefix, narrow)
    fields = [{"name": name, "type": "long"} for name in ("METER", "TS", "READING")]
    path = tmp_path / "sensor.avro"
    meters = (7, 98765, 98766)
    with path.open("wb") as out:
        records = [{"METER": meter, "TS": 1_426_490_100_000, "READING": meter + 1} for meter in meters]
        fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, records)
    found = tables.ingest(tmp_path, path, "--records-encoding=avro")
    assert [letter["reason"] for letter in found.letters] == ["series-not-storable"] * 2
    letters = tmp_path / "letters.jsonl"
    letters.write_text("".join(json.dumps(letter) + "\n" for letter in found.letters))
    path.unlink()  # the letters suffice
    wide = Tables(bigtable, f"{prefix}wide-", EXAMPLES / "sensor.toml")
    flags = (*wide.flags, "--format=records", "--records-encoding=avro", "--summary=json")
    ran = timebeam("replay", letters, *flags, "--dead-letters", tmp_path / "again")
    assert (ran.code, json.loads(ran.out)["rejected"]) == (0, {}), ran.err
    stored = {int(each["METER"]): each["READING"] for each in wide.records("sensor")}
    assert stored == {98765: "98766", 98766: "98767"}
