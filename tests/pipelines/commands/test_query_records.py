"""`timebeam query TABLE`: records of declared tables, against those that were sent; and `replay` of them."""

from __future__ import annotations

import base64
import csv
import datetime
import io
import json
import random
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Ran, ingest, timebeam

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "tables"
LOS_ANGELES = zoneinfo.ZoneInfo("America/Los_Angeles")
START_MS = 1_426_535_000_000

Record = dict[str, Any]


class Tables:
    """The tables of a declaration with records in them."""

    def __init__(self, bigtable: tuple[str, str], prefix: str, folder: Path, path: Path) -> None:
        self._folder = folder
        self.flags = [
            *(f"--project={bigtable[0]}", f"--instance={bigtable[1]}", "--layout=table"),
            *(f"--tables={path}", f"--table-prefix={prefix}"),
        ]
        ran = timebeam("tables", "create", *self.flags)
        assert ran.code == 0, ran.err

    def store(self, records: list[Record]) -> list[dict[str, Any]]:
        """Ingests records; returns the dead letters."""
        path = self._folder / f"{len(list(self._folder.iterdir()))}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return ingest(self._folder, *self.flags, "--format=records", "--input", path).letters

    def query(self, name: str, *flags: str) -> Ran:
        return timebeam("query", name, *self.flags, *flags)

    def records(self, name: str, *flags: str) -> list[Record]:
        ran = self.query(name, *flags, "--output=json")
        assert ran.code == 0, ran.err
        return list(json.loads(ran.out))


@pytest.fixture
def declared(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Callable[[str], Tables]:
    return lambda name: Tables(bigtable, prefix, tmp_path, EXAMPLES / name)


def flags_of(where: dict[str, list[str]], start_ms: int | None, end_ms: int | None) -> list[str]:
    flags = ["--full-scan"]
    if where:
        flags += [f"--where={field}={'|'.join(values)}" for field, values in where.items()]
    flags += [f"--start={start_ms}"] if start_ms is not None else []
    return flags + ([f"--end={end_ms}"] if end_ms is not None else [])


def test_quotes_and_trades(declared: Callable[[str], Tables]) -> None:
    """By every combination of fields of the key, other fields, and time."""
    rng = random.Random(1)
    tables = declared("market.toml")
    sent = [
        {"EXCHANGE": exchange, "SYMBOL": symbol, "QUOTETIME": START_MS + 1000 * n, "BID": f"{n % 4}.50"}
        | ({"TRADETIME": START_MS + 1000 * n, "LASTSALE": n % 3} if n % 2 else {})
        for n, (exchange, symbol) in enumerate(
            (rng.choice(["NASDAQ", "NYSE"]), rng.choice(["F", "GE", "ZXZZT"])) for _ in range(60)
        )
    ]
    assert not tables.store(sent)
    for name, time, value in (("QUOTE", "QUOTETIME", "BID"), ("trade", "TRADETIME", "LASTSALE")):
        fields = ("EXCHANGE", "SYMBOL", time, value)
        for _ in range(12):
            where = {
                field: rng.sample(choices, rng.choice([1, 1, 2]))
                for field, choices in {
                    "EXCHANGE": ["NASDAQ", "NYSE", "LSE"],
                    "SYMBOL": ["F", "GE", "X"],
                    value: ["0.50", "1.50", "0", "1"],
                }.items()
                if rng.random() < 0.4
            }
            low, high = sorted(rng.choices(range(START_MS, START_MS + 60_000), k=2))
            start_ms, end_ms = rng.choice(
                [(None, None), (low, high), (low, 1_800_000_000_000), (0, high), (low, low)]
            )
            expected = sorted(
                tuple(str(record[field]) for field in fields)
                for record in sent
                if time in record
                and all(str(record[field]) in values for field, values in where.items())
                and (start_ms is None or start_ms <= record[time] <= (end_ms or 0))
            )
            found = tables.records(name, *flags_of(where, start_ms, end_ms))
            assert sorted(tuple(str(record[field]) for field in fields) for record in found) == expected


def test_metrics_of_one_host_and_the_inventory(declared: Callable[[str], Tables]) -> None:
    tables = declared("metrics.toml")
    sent = [
        {"HOSTNAME": f"s{host}", "TS": START_MS + step, "metrics": {"CPU": {"x": f"0.{step}0"}}}
        for host in range(3)
        for step in range(4)
    ]
    assert not tables.store(sent)
    history = tables.records(
        "METRIC", "--where=HOSTNAME=s1", f"--start={START_MS + 1}", f"--end={START_MS + 2}"
    )
    assert history == [
        {"HOSTNAME": "s1", "TS": START_MS + step, "metrics": {"CPU/x": f"0.{step}0"}} for step in (1, 2)
    ]
    inventory = tables.records("CURRENT_METRIC")  # a declared read: no --full-scan
    assert inventory == [
        {"HOSTNAME": f"s{host}", "TS": START_MS + 3, "metrics": {"CPU/x": "0.30"}} for host in range(3)
    ]
    (current,) = tables.records("current_metric", "--where=HOSTNAME=s2")
    assert current["HOSTNAME"] == "s2"


def test_readings_across_tables_of_days(declared: Callable[[str], Tables]) -> None:
    """Each day in its own table; a day without one, and a table of no day, are not read."""
    tables = declared("sensor.toml")
    today = datetime.datetime.now(LOS_ANGELES).date()
    days = [today - datetime.timedelta(n) for n in (5, 4, 2)]
    sent = [
        {"METER": meter, "TS": midnight_ms(day) + 900_000 * step, "READING": f"{meter}.{step}"}
        for day in days
        for meter in (7, 987654)
        for step in (0, 50, 91)
    ]
    assert not tables.store(sent)
    for day in days[:2]:
        assert timebeam("rollup", *tables.flags, f"--day={day}").code == 0
    checked = timebeam("check", *tables.flags)
    assert (checked.code, f"SENSOR_{days[1]:%Y%m%d}" in checked.out) == (0, True), checked.out

    def model(meters: tuple[int, ...], start_ms: int, end_ms: int, of_days: list[datetime.date]) -> list[Any]:
        first, last = midnight_ms(of_days[0]), midnight_ms(of_days[-1] + datetime.timedelta(1))
        return sorted(
            (str(record["METER"]), record["TS"], record["READING"])
            for record in sent
            if record["METER"] in meters
            and start_ms <= record["TS"] <= end_ms
            and first <= record["TS"] < last
        )

    def found(name: str, *flags: str) -> list[Any]:
        return sorted((each["METER"], each["TS"], each["READING"]) for each in tables.records(name, *flags))

    start_ms, end_ms = midnight_ms(days[0]) + 900_000, midnight_ms(days[2]) + 86_000_000
    range_flags = [f"--start={start_ms}", f"--end={end_ms}"]
    by_meter = found("sensor_day", "--where=METER=7", *range_flags)
    assert by_meter == model((7,), start_ms, end_ms, days[:2])
    assert len(by_meter) == 5
    assert found("sensor_day", "--full-scan", *range_flags) == model((7, 987654), start_ms, end_ms, days[:2])
    assert found("sensor", "--where=METER=7", *range_flags) == model((7,), start_ms, end_ms, days)
    name = f"SENSOR_{days[1]:%Y%m%d}"
    assert found(name, "--full-scan") == model((7, 987654), 0, 1 << 46, days[1:2])
    for missing in (f"SENSOR_{days[2]:%Y%m%d}", "SENSOR_19990101"):
        ran = tables.query(missing, "--full-scan")
        assert (ran.code, ran.out) == (0, "no records\n")
        assert "there is no table" in ran.err
        assert missing in ran.err
    ran = tables.query("sensor_day", "--where=METER=7", f"--start={midnight_ms(days[2])}")
    assert (ran.code, ran.out) == (0, "no records\n")
    assert "there is no table" in ran.err


def midnight_ms(day: datetime.date) -> int:
    midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=LOS_ANGELES)
    return int(midnight.timestamp()) * 1000


@pytest.mark.parametrize("variant", ["naive", "promoted", "salted", "random", "reverse"])
def test_batteries(declared: Callable[[str], Tables], variant: str) -> None:
    """By time, and one instant; the hashed time serves an instant alone."""
    tables = declared(f"battery_{variant}.toml")
    sent = [{"USER": f"u{n % 3}", "TS": START_MS + n, "PERCENTAGE": n} for n in range(20)]
    assert not tables.store(sent)
    user = ["--where=USER=u2"] if variant in ("promoted", "reverse") else []
    (found,) = tables.records("BATTERY", *user, f"--start={START_MS + 5}", f"--end={START_MS + 5}")
    assert (found["USER"], found["TS"], found["PERCENTAGE"]) == ("u2", START_MS + 5, "5")
    ran = tables.query("BATTERY", *user, f"--start={START_MS + 5}", f"--end={START_MS + 8}")
    assert ran.code == (2 if variant == "random" else 0)
    if variant == "random":
        assert "scans all of it" in ran.err
    found_times = [
        record["TS"]
        for record in tables.records(
            "BATTERY", *user, "--full-scan", f"--start={START_MS + 5}", f"--end={START_MS + 8}"
        )
    ]
    assert sorted(found_times) == [START_MS + n for n in (5, 6, 7, 8) if not user or n % 3 == 2]


def test_forms_of_the_output(declared: Callable[[str], Tables]) -> None:
    tables = declared("market.toml")
    tables.store([{"EXCHANGE": "NYSE", "SYMBOL": "=F", "QUOTETIME": START_MS, "BID": "600.60", "ASK": "a,b"}])
    flags = ["--where", "EXCHANGE=NYSE", "--where", "SYMBOL==F"]
    assert tables.records("QUOTE", *flags) == [
        {"EXCHANGE": "NYSE", "SYMBOL": "=F", "QUOTETIME": START_MS, "BID": "600.60", "ASK": "a,b"}
    ]
    heading, row = csv.reader(io.StringIO(tables.query("QUOTE", *flags, "--output=csv", "--csv-guard").out))
    assert dict(zip(heading, row, strict=True)) == {
        "EXCHANGE": "NYSE",
        "SYMBOL": "'=F",
        "QUOTETIME": str(START_MS),
        "BID": "600.60",
        "ASK": "a,b",
        "BIDSIZE": "",
        "ASKSIZE": "",
    }
    heading_line, line = tables.query("QUOTE", *flags).out.splitlines()
    assert heading_line.split() == ["EXCHANGE", "SYMBOL", "QUOTETIME", "BID", "ASK", "BIDSIZE", "ASKSIZE"]
    assert line.split() == ["NYSE", "=F", str(START_MS), "600.60", "a,b"]
    assert json.loads(tables.query("TRADE", *flags, "--output=json").out) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["QUOTE"], 2, "a read of table"),
        (["QUOTE", "--where=SYMBOL=F"], 2, "keys begin with EXCHANGE"),
        (["QUOTE", "--where=SYMBL=F"], 1, "did you mean 'SYMBOL'?"),
        (["QUOTE", "--where=SYMBOL"], 2, "FIELD=V"),
        (["QUOTE", "--where", "SYMBOL=F", "--where", "SYMBOL=G"], 2, "each field once"),
        (["QUOTE", "--where=EXCHANGE=TOO LONG"], 2, "longer than 6 bytes"),
        (["QUOTE", "--where=QUOTETIME=5"], 2, "give --start and --end"),
        (["QUOTE", "--where=EXCHANGE=N", "--start=soon"], 2, "soon"),
        (["QUOTE", "--where=EXCHANGE=N", "--start=9", "--end=5"], 2, "ends"),
        (["QUOTE", "--where=EXCHANGE=N", "--tag=a=b"], 2, "--tag is for points"),
        (["QUOTE", "--where=EXCHANGE=N", "--output=a.png"], 2, "records are shown as table, json, csv"),
        (["QUOTES", "--start=1h-ago"], 1, "did you mean"),
        (["quote.BID", "--where=EXCHANGE=N", "--start=1h-ago"], 2, "--where is for records"),
        (["quote.BID"], 2, "--start"),
        (["quote.BID", "--start=1h-ago"], 2, "--full-scan"),
    ],
)
def test_wrong_questions(
    declared: Callable[[str], Tables], arguments: list[str], code: int, message: str
) -> None:
    ran = declared("market.toml").query(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_dead_letters_are_replayed_after_a_fix(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """JSON lines, and lines of CSV with the header of their file."""
    path = tmp_path / "sensor.toml"
    narrow = (EXAMPLES / "sensor.toml").read_text()
    path.write_text(
        narrow.replace("width = 10, pad", "width = 4, pad").replace("METER = 987654", "METER = 9876")
    )
    tables = Tables(bigtable, prefix, tmp_path, path)
    flags = [*tables.flags, "--format=records"]
    good = '{"METER": 7, "TS": 1426490100000, "READING": 1.50}\n'
    bad = '{"METER": 98765, "TS": 1426490100000, "READING": 2}\n'
    for name, text, encoding in (
        ("a.jsonl", good + bad, "json"),
        ("b.csv", "METER,TS,READING\n8,1426490100000,1.5\n98766,1426490100000,3.0\n", "csv"),
    ):
        (tmp_path / name).write_text(text)
        letters = tmp_path / f"letters-{encoding}"
        letters.mkdir()
        command = ["--records-encoding", encoding, "--dead-letters", letters / "dead"]
        ran = timebeam("ingest", *flags, "--input", tmp_path / name, *command)
        assert ran.code == 0, ran.err
        again = timebeam(
            "replay",
            letters / "*.jsonl",
            *flags,
            "--records-encoding",
            encoding,
            "--summary=json",
            "--dead-letters",
            letters / "again",
        )
        assert json.loads(again.out)["rejected"] == {"series-not-storable": 1}
    path.write_text(narrow)  # other keys, so other tables: those that there are keep their declaration
    ran = timebeam("tables", "create", *tables.flags)
    assert (ran.code, "declares another key of table SENSOR" in ran.err) == (2, True), ran.err
    tables = Tables(bigtable, f"{prefix}wide-", tmp_path, path)
    flags = [*tables.flags, "--format=records"]
    for encoding in ("json", "csv"):
        source = tmp_path / f"letters-{encoding}" / "again*.jsonl"
        ran = timebeam(
            "replay",
            source,
            *flags,
            "--records-encoding",
            encoding,
            "--summary=json",
            "--dead-letters",
            tmp_path / "none",
        )
        assert (ran.code, json.loads(ran.out)["points_stored"]) == (0, 1), ran.err
    found = tables.records("SENSOR", "--where=METER=98765|98766")
    assert [(each["METER"], each["TS"], each["READING"]) for each in found] == [
        ("98765", 1426490100000, "2"),
        ("98766", 1426490100000, "3.0"),
    ]


def test_a_rejected_header_never_becomes_a_record(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """A file with a wrong header is rejected with it, and replayed after a correction rejected again."""
    tables = Tables(bigtable, prefix, tmp_path, EXAMPLES / "sensor.toml")
    flags = [*tables.flags, "--format=records", "--records-encoding=csv", "--summary=json"]
    file = tmp_path / "a.csv"
    file.write_text("METER,METER,READING\n8,1426490100000,1.5\n")
    rejected = timebeam("ingest", *flags, "--input", file, "--dead-letters", tmp_path / "dead")
    assert json.loads(rejected.out)["rejected"] == {"bad-syntax": 1}
    file.write_text("METER,TS,READING\n8,1426490100000,1.5\n")
    ran = timebeam("replay", tmp_path / "dead*.jsonl", *flags, "--dead-letters", tmp_path / "again")
    assert json.loads(ran.out)["rejected"] == {"bad-syntax": 1}
    file.unlink()
    ran = timebeam("replay", tmp_path / "dead*.jsonl", *flags, "--dead-letters", tmp_path / "again")
    assert json.loads(ran.out)["rejected"] == {"bad-syntax": 1}


def test_rejected_rows_are_replayed_as_they_are(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """A row of this declaration is written; any other stays a dead letter."""
    tables = Tables(bigtable, prefix, tmp_path, EXAMPLES / "market.toml")

    def letter(table: str, key: bytes, cells: dict[bytes, bytes], stamp: int = 5) -> dict[str, Any]:
        def text(raw: bytes) -> str:
            return base64.b64encode(raw).decode()

        row = {
            "table": prefix + table,
            "key": text(key),
            "cells": [
                {"family": "MD", "qualifier": text(name), "timestamp_ms": stamp, "value": text(value)}
                for name, value in cells.items()
            ],
        }
        return {
            "reason": "write-refused",
            "message": "no",
            "stage": "write",
            "source": "row",
            "offset": -1,
            "arrival_ms": -1,
            "payload": json.dumps(row),
        }

    key = b"NYSE  #F    #0000000000005"
    cells = {b"EXCHANGE": b"NYSE", b"SYMBOL": b"F", b"QUOTETIME": b"5", b"BID": b"1.50"}
    letters = [
        letter("QUOTE", key, cells),
        letter("QUOTE", key[:-1] + b"6", cells),  # the column says another time
        letter("QUOTE", key, {b"EVIL": b"x"}),
        letter("QUOTE", key, cells, stamp=6),
        letter("OTHER", key, cells),
    ]
    path = tmp_path / "dead.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in letters))
    ran = timebeam(
        "replay",
        path,
        *tables.flags,
        "--format=records",
        "--summary=json",
        "--dead-letters",
        tmp_path / "again",
    )
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["rejected"] == {"write-refused": 4}
    (found,) = tables.records("QUOTE", "--full-scan")
    assert found == {"EXCHANGE": "NYSE", "SYMBOL": "F", "QUOTETIME": 5, "BID": "1.50"}
