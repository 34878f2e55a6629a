"""The worked keys of the Bigtable patterns, byte for byte, out of the declarations that are shipped."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from timebeam.schema.core.rows import Row, TableSpec
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared.declaration import Declaration, TableLayout
from timebeam.schema.stores.declared.filled_tables import day_piece, is_expired, is_of_day, name_of
from timebeam.schema.stores.declared.language.load_declaration import load
from timebeam.schema.stores.declared.records import read_json
from timebeam.schema.stores.declared.write_records import rows

ROOT = Path(__file__).resolve().parents[4]
GOLDEN = json.loads((ROOT / "tests/golden/tables/patterns.json").read_text())
EXAMPLES = ROOT / "examples/tables"


def declared(name: str) -> Declaration:
    return load((EXAMPLES / f"{name}.toml").read_text(), f"{name}.toml")


def written(declaration: Declaration, *records: dict[str, Any]) -> list[Row]:
    """The rows of records given as JSON; none may be rejected."""
    lines = "\n".join(json.dumps(record) for record in records).encode()
    batch, rejected = read_json(Message(lines, 0))
    found, unwritten = rows(declaration, batch)
    assert (rejected, unwritten) == ([], [])
    return found


@pytest.mark.parametrize(
    ("case", "file"), [("market", "market"), ("padded", "market"), ("metrics", "metrics")]
)
def test_rows(case: str, file: str) -> None:
    found = [
        {
            "table": row.table,
            "key": row.key.decode(),
            "family": row.cells[0].family,
            "timestamp_ms": row.cells[0].timestamp_ms,
            "cells": {cell.qualifier.decode(): cell.value.decode() for cell in row.cells},
        }
        for row in written(declared(file), GOLDEN[case]["record"])
    ]
    assert found == GOLDEN[case]["rows"]


def test_numbers_keep_the_digits_that_were_received() -> None:
    line = b'{"EXCHANGE":"NYSE","SYMBOL":"F","BID":600.60,"ASK":1e2,"QUOTETIME":1426535612156}'
    batch, _ = read_json(Message(line, 0))
    (row,), _ = rows(declared("market"), batch)
    assert {cell.qualifier: cell.value for cell in row.cells}[b"BID"] == b"600.60"
    assert {cell.qualifier: cell.value for cell in row.cells}[b"ASK"] == b"1e2"


def test_the_day_row_of_a_meter() -> None:
    golden = GOLDEN["sensor"]
    start = golden["day_start_ms"]
    records = [
        {
            "METER": 987654,
            "TS": start + (int(name[:2]) * 60 + int(name[2:])) * 60_000 + 7,
            "READING": value,
        }
        for name, value in golden["cells"].items()
    ]
    found = written(declared("sensor"), *records)
    assert {row.key.decode() for row in found} == {golden["key"]}
    cells = {cell.qualifier.decode(): cell.value.decode() for row in found for cell in row.cells}
    assert cells == {"ID": "987654", **golden["cells"]}


def test_columns_of_days_of_23_and_25_hours() -> None:
    zone = datetime.UTC
    names = {}
    for day, hours in (
        (datetime.datetime(2015, 3, 8, 8, tzinfo=zone), 23),
        (datetime.datetime(2015, 11, 1, 7, tzinfo=zone), 25),
    ):
        start = int(day.timestamp()) * 1000
        records = [{"METER": 1, "TS": start + i * 900_000, "READING": 1} for i in range(hours * 4)]
        found = written(declared("sensor"), *records)
        assert len({row.key for row in found}) == 1
        names[hours] = [row.cells[1].qualifier for row in found]
        assert len(set(names[hours])) == hours * 4
    assert (names[23][-1], names[25][-1]) == (b"2245", b"2445")


def battery(name: str) -> list[str]:
    """The keys of the five worked events of Corrie."""
    first = GOLDEN["first_time_ms"]
    records = [{"USER": "Corrie", "PERCENTAGE": 98, "TS": first + i} for i in range(5)]
    return [row.key.decode() for row in written(declared(name), *records)]


def test_salts() -> None:
    found = [key.rsplit("#", 1)[0] for key in battery("battery_salted")]  # without our suffix
    assert found == [f"BATTERY#{salt}#{time}" for time, salt in GOLDEN["salts"].items()]


def test_digests() -> None:
    assert battery("battery_random") == [f"BATTERY#{digest}" for digest in GOLDEN["digests"].values()]


def test_promoted_and_naive_keys() -> None:
    assert battery("battery_promoted")[0] == "BATTERY#Corrie#20150301124501001"
    assert battery("battery_naive")[0] == "BATTERY#20150301124501001"


def test_reverse_times() -> None:
    golden = GOLDEN["reverse"]
    record = {"USER": "Corrie", "PERCENTAGE": 98, "TS": golden["time"]}
    (row,) = written(declared("battery_reverse"), record)
    assert row.key.decode() == f"BATTERY#Corrie#{golden['64 bits']}"
    text = (EXAMPLES / "battery_reverse.toml").read_text()
    short = text.replace("width = 19, reverse = 9223372036854775807", "width = 13, reverse = 9999999999999")
    (row,) = written(load(short, "short.toml"), record)
    assert row.key.decode() == f"BATTERY#Corrie#{golden['13 digits']}"


def test_the_month_row() -> None:
    new_york = [datetime.datetime(2015, 3, day, 12, tzinfo=datetime.UTC) for day in (1, 9, 31)]
    records = [
        {"GARDEN": "VEGGIEGARDEN", "TS": int(day.timestamp()) * 1000, "TEMPERATURE": 41.5} for day in new_york
    ]
    months = [row for row in written(declared("garden_month"), *records) if row.table == "GARDEN_MONTH"]
    assert {row.key.decode() for row in months} == {GOLDEN["garden"]["key"]}
    assert [row.cells[0].qualifier for row in months] == [b"1", b"9", b"31"]
    assert months[0].cells[0].family == GOLDEN["garden"]["family"]


def test_an_older_message_never_replaces_a_newer_value() -> None:
    """The cell timestamp is the event time, and one version is kept."""
    declaration = declared("metrics")
    record = {"HOSTNAME": "a", "TS": 1426535612045, "metrics": {"CPU": {"x": 1}}}
    older = {**record, "TS": 1426535612044, "metrics": {"CPU": {"x": 2}}}
    late = [row for row in written(declaration, record, older) if row.table == "CURRENT_METRIC"]
    assert late[0].key == late[1].key
    cells: dict[bytes, tuple[int, bytes]] = {}
    for row in late:
        for cell in row.cells:
            cells[cell.qualifier] = max(cells.get(cell.qualifier, (-1, b"")), (cell.timestamp_ms, cell.value))
    assert cells[b"CPU/x"][1] == b"1"
    assert declaration.specs[1] == TableSpec("CURRENT_METRIC", {"METRIC": 1}, holds_points=True)


def test_day_tables() -> None:
    declaration = declared("sensor")
    (copies,) = declaration.day_tables
    source: TableLayout = declaration.layout(copies.source)
    day = datetime.date(2015, 3, 16)
    assert name_of(copies.table, day) == "SENSOR_20150316"
    piece = day_piece(source, day)
    assert piece == b"14264892"
    assert is_of_day(source, b"0000987654#14264892", piece)
    assert not is_of_day(source, b"0000987654#14265756", piece)
    assert not is_expired(copies, day, day + datetime.timedelta(400))
    assert is_expired(copies, day, day + datetime.timedelta(401))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_loads(path: Path) -> None:
    declaration = load(path.read_text(), path.name)
    hot = [warning for warning in declaration.warnings if "hot spot" in warning]
    assert bool(hot) == (path.stem == "battery_naive")
    assert path.stem == "battery_naive" or not declaration.warnings
