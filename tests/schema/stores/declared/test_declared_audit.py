"""`check` of declared tables: rows that a declaration writes are sound, every change of one is corruption."""

from __future__ import annotations

import json
import random

import pytest
from memory_tables import MemoryTables
from plain_points import PATTERNS, declared, stored

from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Severity
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared.audit_records import audit_rows
from timebeam.schema.stores.declared.language.load_declaration import load
from timebeam.schema.stores.declared.layout import DeclaredTables
from timebeam.schema.stores.declared.records import read_json
from timebeam.schema.stores.declared.write_records import rows

MANY = """
[layout.t]
table = "T"
key = [{ field = "A", case = "lower" },
       { salt = ["TS"], buckets = 3 }, { time = "TS", bucket = "1h", width = 13 },
       { hash = "sha1", of = ["A", "B"], encoding = "raw", length = 5 }, { suffix = ["C"], width = 6 }]
cell_time = "CELL_TIME"
REVISION
allow_overwrite = true
[layout.t.columns]
family = "f"
fields = ["A", "B", "C", { name = "N", encoding = "i64be" }, { name = "F", encoding = "f32be" },
          { name = "J", encoding = "json" }]
map = { source = "m", qualifier = "<{a}:{b}>", encoding = "json" }
"""


def many(cell_time: str) -> str:
    revision = 'revision = "R"' if cell_time == "revision" else ""
    return MANY.replace("CELL_TIME", cell_time).replace("REVISION", revision)


@pytest.mark.parametrize("name", PATTERNS)
def test_what_the_patterns_write_is_sound(name: str) -> None:
    layout = declared(name)
    tables = stored(layout, PATTERNS[name].records(random.Random(name)))
    assert list(layout.audit(tables.all)) == []


@pytest.mark.parametrize("cell_time", ["event", "arrival", "zero", "revision"])
def test_every_kind_of_part_column_and_timestamp_is_sound(cell_time: str) -> None:
    declaration = load(many(cell_time), "t")
    records = [
        {"A": f"Ä{n}", "B": "b", "C": "1.50", "N": -n, "F": 0.1, "TS": 1_426_535_612_045 + n, "R": n}
        | {"J": value, "m": {"x": {"y": value, "z": None}}}
        for n, value in enumerate([1.50, "s", [1, {"a": None}], True, "12", {"é": "\\"}])
    ]
    text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    written, rejected = rows(declaration, read_json(Message(text, 77, "a"))[0])
    assert not rejected
    assert list(audit_rows(declaration.layouts[0], written)) == []


def test_every_changed_byte_of_a_key_or_a_value_is_corruption() -> None:
    """Of a row whose every byte follows from its record; a value alone could be another record's."""
    layout = load(many("zero"), "t").layouts[0]
    record = {"A": "a", "B": "b", "C": "c", "TS": 1_426_535_612_045, "N": 1}
    (row,), _ = rows(load(many("zero"), "t"), read_json(Message(json.dumps(record).encode(), 77, "a"))[0])
    assert list(audit_rows(layout, [row])) == []
    for i in range(len(row.key)):
        key = row.key[:i] + bytes([row.key[i] ^ 1]) + row.key[i + 1 :]
        findings = list(audit_rows(layout, [row._replace(key=key)]))
        assert [finding.severity for finding in findings] == [Severity.CORRUPT], key
    for i, cell in enumerate(row.cells):
        for changed in (
            cell._replace(qualifier=b"X"),
            cell._replace(timestamp_ms=5),
            cell._replace(value=b"\xff"),
            cell._replace(value=b"123456"),
        ):
            cells = [*row.cells[:i], changed, *row.cells[i + 1 :]]
            findings = list(audit_rows(layout, [row._replace(cells=cells)]))
            assert [finding.severity for finding in findings] == [Severity.CORRUPT], changed


def test_timestamps_that_cell_time_does_not_give() -> None:
    layout = declared("sensor")
    tables = stored(layout, [{"METER": 7, "TS": 1426490100000, "READING": "1"}])
    (row,) = tables.all("SENSOR")
    for stamp in (1426490100000 + 900_000, 1426490100000 + 86_400_000, 0):
        cells = [cell._replace(timestamp_ms=stamp) for cell in row.cells]
        (finding,) = audit_rows(layout.declaration.layout("sensor"), [row._replace(cells=cells)])
        assert finding.severity is Severity.CORRUPT


def test_one_bad_row_of_many_is_the_only_corruption() -> None:
    layout = declared("market")
    tables = stored(layout, PATTERNS["market"].records(random.Random(1)))
    good = [*tables.all("QUOTE")]
    bad = good[3]._replace(key=good[3].key.replace(b"#", b"_", 1))
    findings = list(audit_rows(layout.declaration.layout("quote"), [*good[:3], bad, *good[4:]]))
    assert [(finding.key, finding.table) for finding in findings] == [(bad.key, "QUOTE")]


def test_other_families_are_notes() -> None:
    layout = declared("market")
    (row,) = stored(layout, [{"EXCHANGE": "N", "SYMBOL": "F", "QUOTETIME": 5, "BID": "1"}]).all("QUOTE")
    row = row._replace(cells=[*row.cells, Cell("mine", b"x", 5, b"1")])
    (finding,) = audit_rows(layout.declaration.layout("quote"), [row])
    assert (finding.severity, "mine" in finding.text) == (Severity.NOTE, True)


def test_restore_takes_rows_that_the_declaration_writes() -> None:
    layout = declared("market")
    tables = stored(layout, [{"EXCHANGE": "N", "SYMBOL": "F", "QUOTETIME": 5, "BID": "1"}])
    (row,) = tables.all("QUOTE")
    restored = layout.restore(row, tables)
    assert (len(restored.points), restored.rest) == (0, row)
    bad = [
        row._replace(table="OTHER"),
        row._replace(key=b"x"),
        row._replace(cells=[*row.cells, Cell("mine", b"x", 5, b"1")]),
        Row("QUOTE", row.key, []),
    ]
    for each in bad:
        with pytest.raises(ValueError, match=r"."):
            layout.restore(each, tables)


def test_a_row_in_the_table_of_another_day_is_corruption() -> None:
    sensor = declared("sensor")
    tables = stored(sensor, [{"METER": 7, "TS": 1426490100000, "READING": "1"}])
    (row,) = tables.all("SENSOR")
    layout = DeclaredTables(
        sensor.declaration, lambda: ("SENSOR_20150316", "SENSOR_20150317", "SENSOR_X", "OTHER")
    )
    days = MemoryTables([row._replace(table=name) for name in layout.existing()])
    (finding,) = layout.audit(days.all)
    assert (finding.table, finding.text) == ("SENSOR_20150317", "it is not a row of 2015-03-17")


@pytest.mark.parametrize("qualifier", ['{ field = "Q" }', '{ time = "TS", within = "1h", step = "1m" }'])
def test_a_record_without_its_reading_is_sound(qualifier: str) -> None:
    declaration = load(
        '[layout.t]\ntable = "T"\nkey = [{ field = "A" }, { time = "TS", bucket = "1h", width = 13 }]\n'
        'allow_overwrite = true\n[layout.t.columns]\nfamily = "f"\nfields = ["M"]\n'
        f'series = {{ value = "R", qualifier = {qualifier} }}\n',
        "t",
    )
    records = [{"A": "a", "TS": 1_426_535_612_045, "M": "x"}, {"A": "b", "TS": 1, "M": "x", "Q": "q"}]
    text = "\n".join(map(json.dumps, records)).encode()
    written, rejected = rows(declaration, read_json(Message(text, 0))[0])
    assert not rejected
    assert list(audit_rows(declaration.layouts[0], written)) == []


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_a_reading_of_a_step_does_not_tell_a_suffix_of_the_exact_time(unit: str) -> None:
    """Its row has one column of times, which is not that of each reading."""
    time = f'{{ time = "TS", unit = "{unit}", bucket = "1h", width = 16 }}'
    declaration = load(
        f'[layout.t]\ntable = "T"\nkey = [{time}, {{ suffix = ["TS"], width = 4 }}]\n'
        'cell_time = "arrival"\nallow_overwrite = true\n[layout.t.columns]\nfamily = "f"\nfields = ["TS"]\n'
        'series = { value = "R", qualifier = { time = "TS", within = "1h", step = "1m" } }\n',
        "t",
    )
    records = [{"TS": 1_426_535_612_045 + n, "R": n} for n in (0, 1, 61_000)]
    text = "\n".join(map(json.dumps, records)).encode()
    written, rejected = rows(declaration, read_json(Message(text, 0))[0])
    assert not rejected
    assert list(audit_rows(declaration.layouts[0], written)) == []
