"""Declared rollups against a model in plain Python, and what declarations of them are rejected."""

from __future__ import annotations

import datetime
import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plain.plain_rollups import Fraction, Table, midnight_ms, random_declared, random_points
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.batches import join
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.formats.base import Message
from timebeam.schema.rollup.accumulate import accumulate
from timebeam.schema.stores.declared.declaration import Declaration, DeclaredRollup
from timebeam.schema.stores.declared.filled_tables import rollup_rows, values_of
from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load
from timebeam.schema.stores.declared.records import read_json
from timebeam.schema.stores.declared.write_records import rows

INTERVALS = ("1m", "15m", "1h", "6h", "1d", "2d", "1w", "1mo", "3mo")
EVENTS = """
[layout.event]
table = "EVENT"
key = [{ field = "HOST" }, { time = "TS", unit = "ms", width = 13 }, { suffix = "payload" }]
columns = { family = "E", fields = ["V"] }
"""
TARGET = """
[layout.day]
table = "DAY"
key = [{ field = "HOST" }, { time = "TS", unit = "ms", width = 13 }]
columns = { family = "R", fields = ["sum", "count", "min", "max"] }
rollup = { source = "event", value = "V", interval = "1d" }
"""


def source_rows(declaration: Declaration, records: list[dict[str, object]]) -> list[Row]:
    """The rows of the source as a table holds them."""
    text = "\n".join(json.dumps(record) for record in records).encode()
    batch, rejected = read_json(Message(text, 1, "test"))
    made, unwritten = rows(declaration, batch)
    assert not rejected
    assert not unwritten
    cells: dict[bytes, dict[bytes, Cell]] = {}
    for row in made:
        for cell in row.cells:
            cells.setdefault(row.key, {})[cell.qualifier] = cell
    return [Row("SOURCE", key, list(cells[key].values())) for key in sorted(cells)]


def rolled_up(rollup: DeclaredRollup, declaration: Declaration, stored: list[Row]) -> list[Row]:
    """What the rollup makes of these rows of the source."""
    found = [values_of(rollup, declaration.layout(rollup.source), row) for row in stored]
    assert not any(rejected for _, rejected in found)
    buckets = accumulate(join([batch for batch, _ in found if batch]), 1, ties=True, ends=False)
    made, rejected = rollup_rows(rollup, buckets)
    assert not rejected
    return made


def table_of(made: list[Row], encodings: dict[str, str]) -> Table:
    """The numbers of rows, each key once."""
    found: Table = {}
    for row in made:
        assert row.key not in found, row.key
        numbers = found[row.key] = {}
        for cell in row.cells:
            name = cell.qualifier.decode()
            is_text = encodings[name] == "text"
            numbers[name] = Fraction(cell.value.decode() if is_text else struct.unpack(">d", cell.value)[0])
    return found


@given(st.integers(0, 1 << 32))
def test_rollups_are_those_of_the_model(seed: int) -> None:
    rng = random.Random(seed)
    declared = random_declared(rng, INTERVALS)
    declaration = load(declared.toml(), "random.toml")
    (rollup,) = declaration.rollups
    start_ms = midnight_ms(
        datetime.date(rng.randint(2012, 2025), rng.randint(1, 12), rng.randint(1, 28)), "UTC"
    )
    points = random_points(rng, 120, start_ms, start_ms + rng.choice([1, 5, 60]) * 86_400_000)
    stored = source_rows(declaration, [declared.record(point) for point in points])
    encodings = {column["name"]: column["encoding"] for column in declared.target["columns"]["fields"]}
    wanted = {
        key: {name: number for name, number in numbers.items() if name in encodings}
        for key, numbers in declared.table(points).items()
    }
    assert table_of(rolled_up(rollup, declaration, stored), encodings) == wanted


def test_groups_that_the_key_folds_are_one() -> None:
    text = EVENTS + TARGET.replace('{ field = "HOST" }', '{ field = "HOST", case = "lower" }')
    text = text.replace('"max"]', '"max", "HOST"]')
    declaration = load(text, "t.toml")
    records = [{"HOST": host, "TS": 1_767_225_600_000, "V": 1} for host in ("a", "A", "A")]
    records[2]["V"] = 5  # another event of the same host and instant
    (row,) = rolled_up(declaration.rollups[0], declaration, source_rows(declaration, records))
    values = {cell.qualifier: cell.value for cell in row.cells}
    assert values == {b"sum": b"7", b"count": b"3", b"min": b"1", b"max": b"5", b"HOST": b"a"}


TIME = '{ time = "TS", unit = "ms", width = 13 }]\ncolumns = { family = "R"'
SOURCE_TIME = '{ time = "TS", unit = "ms", width = 13 }, { suffix = "payload" }'


def cut(part: str) -> tuple[str, str]:
    return TIME, TIME.replace('{ time = "TS", unit = "ms", width = 13 }', part)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        # The key of the target cannot tell two intervals apart, or gives back another start.
        ([cut('{ time = "TS", width = 13, bucket = "1d" }'), ('"1d" }\n', '"1h" }\n')], "cuts TS"),
        ([cut('{ time = "TS", width = 13, bucket = "1mo" }')], "cuts TS"),
        ([cut('{ time = "TS", width = 13, bucket = "1d", tz = "Asia/Tokyo" }')], "cuts TS"),
        ([cut('{ time = "TS", width = 13, divide = 100000000 }')], "cuts TS"),
        ([cut('{ time = "TS", format = "%Y%m%d" }'), ('"1d" }\n', '"1h" }\n')], "cuts TS"),
        ([cut('{ time = "TS", width = 13, bucket = "1w" }'), ('"1d" }\n', '"1w" }\n')], "cuts TS"),
        ([('"1d" }\n', '"1500ms" }\n')], "whole seconds"),
        # The source does not hold the time that tells which interval a record is in.
        (
            [
                (SOURCE_TIME, '{ time = "TS", width = 13, bucket = "1d" }'),
                ('fields = ["V"] }', 'fields = ["V"] }\nallow_overwrite = true\ncell_time = "arrival"'),
                ('"1d" }\n', '"1h" }\n'),
            ],
            "layout event holds TS",
        ),
        (
            [
                (SOURCE_TIME, '{ time = "TS", width = 13, bucket = "1d" }'),
                ('fields = ["V"] }', 'fields = ["V"] }\ngc = { max_versions = 9 }'),
            ],
            "versions",
        ),
        # Fields that only a digest holds.
        (
            [
                (
                    '{ field = "HOST" }, { time = "TS", unit = "ms", width = 13 }]',
                    '{ hash = "md5", of = ["HOST"], length = 2 }, { time = "TS", width = 13 }]',
                )
            ],
            "by: HOST must be in the key",
        ),
        (
            [
                (
                    '{ field = "HOST" }, { time = "TS", unit = "ms", width = 13 }]',
                    '{ suffix = ["HOST"] }, { time = "TS", width = 13 }]',
                )
            ],
            "by: HOST must be in the key",
        ),
        ([('interval = "1d"', 'interval = "1d", week_begins = "sunday"')], "week_begins"),
        ([('interval = "1d"', 'interval = "1w", week_begins = "funday"')], "choose one of monday"),
        (
            [
                (
                    'fields = ["sum", "count", "min", "max"] }',
                    'fields = ["sum"] }\ncell_time = "revision"\nrevision = "REV"',
                )
            ],
            "field REV is in no rollup",
        ),
    ],
)
def test_rollups_that_would_lose_records_are_rejected(changes: list[tuple[str, str]], text: str) -> None:
    declaration = EVENTS + TARGET
    for old, new in changes:
        assert declaration.count(old) == 1, old
        declaration = declaration.replace(old, new)
    with pytest.raises(DeclarationError, match=text):
        load(declaration, "t.toml")


@pytest.mark.parametrize(
    "changes",
    [
        [cut('{ time = "TS", width = 13, bucket = "1d" }')],
        [cut('{ time = "TS", format = "%Y%m%d" }')],
        [cut('{ time = "TS", width = 13, bucket = "1d" }'), ('"1d" }\n', '"1mo" }\n')],
        [
            cut('{ time = "TS", width = 13, bucket = "1w" }'),
            ('"1d" }\n', '"1w", week_begins = "thursday" }\n'),
        ],
        [cut('{ time = "TS", width = 6, divide = 86400000 }')],
    ],
)
def test_keys_that_hold_the_starts_of_intervals_are_taken(changes: list[tuple[str, str]]) -> None:
    declaration = EVENTS + TARGET
    for old, new in changes:
        assert declaration.count(old) == 1, old
        declaration = declaration.replace(old, new)
    assert load(declaration, "t.toml").rollups


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4),
        ("-4.5", -4.5),
        ("+4", 4),
        ("007", 7),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("9" * 19, float("9" * 19)),
    ],
)
def test_texts_that_are_numbers(text: str, number: float) -> None:
    declaration = load(EVENTS + TARGET, "t.toml")
    row = Row("EVENT", b"a#1767225600000#01234567", [Cell("E", b"V", 0, text.encode())])
    batch, rejected = values_of(declaration.rollups[0], declaration.layouts[0], row)
    assert rejected == []
    assert batch is not None
    assert [batch.value(i) for i in range(len(batch))] == [number]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1_000", Reason.BAD_NUMBER),
        (" 4 ", Reason.BAD_NUMBER),
        ("4\n", Reason.BAD_NUMBER),
        ("٣", Reason.BAD_NUMBER),
        ("1٣", Reason.BAD_NUMBER),
        ("４", Reason.BAD_NUMBER),
        ("", Reason.BAD_NUMBER),
        ("--4", Reason.BAD_NUMBER),
        ("0x10", Reason.BAD_NUMBER),
        ("nan", Reason.BAD_NUMBER),
        ("Infinity", Reason.BAD_NUMBER),
        ("1e999", Reason.NUMBER_OUT_OF_RANGE),
        ("9" * 400, Reason.NUMBER_OUT_OF_RANGE),
        ("9" * 9000, Reason.NUMBER_OUT_OF_RANGE),
    ],
)
def test_texts_that_are_no_numbers(text: str, reason: Reason) -> None:
    declaration = load(EVENTS + TARGET, "t.toml")
    row = Row("EVENT", b"a#1767225600000#01234567", [Cell("E", b"V", 0, text.encode())])
    batch, (rejected,) = values_of(declaration.rollups[0], declaration.layouts[0], row)
    assert (batch, rejected.reason, rejected.payload) == (None, reason, row.key)
    assert len(rejected.message) < 300


WIDE = EVENTS.replace("width = 13", "width = 19") + TARGET
READINGS = """
[layout.event]
table = "EVENT"
key = [{ field = "HOST" }, { time = "TS", bucket = "1d", width = 13 }]
columns = { family = "E", series = { value = "V", qualifier = { time = "TS", within = "1d", step = "1m", format = "number" } } }
cell_time = "arrival"
"""  # noqa: E501
COLUMN = """
[layout.event]
table = "EVENT"
key = [{ field = "HOST" }, { suffix = ["TS"] }]
allow_overwrite = true
columns = { family = "E", fields = ["V", "TS"] }
"""


@pytest.mark.parametrize(
    ("declaration", "key", "cells"),
    [
        (WIDE, b"a#9999999999999999999#01234567", {b"V": b"1"}),
        (READINGS + TARGET, b"a#1767225600000", {b"9" * 30: b"1"}),
        (READINGS + TARGET, b"a#1767225600000", {b"9" * 18: b"1"}),
        (COLUMN + TARGET, b"a#01234567", {b"TS": b"1_767_225_600_000", b"V": b"1"}),
        (COLUMN + TARGET, b"a#01234567", {b"TS": "١٧٦٧".encode(), b"V": b"1"}),
        (COLUMN + TARGET, b"a#01234567", {b"TS": b"-1", b"V": b"1"}),
        (COLUMN + TARGET, b"a#01234567", {b"TS": b"9" * 5000, b"V": b"1"}),
    ],
)
def test_foreign_rows_are_rejected(declaration: str, key: bytes, cells: dict[bytes, bytes]) -> None:
    loaded = load(declaration, "t.toml")
    row = Row("EVENT", key, [Cell("E", name, 0, value) for name, value in cells.items()])
    batch, (rejected,) = values_of(loaded.rollups[0], loaded.layouts[0], row)
    assert (batch, rejected.reason, rejected.payload) == (None, Reason.CORRUPT_FILE, key)


def test_a_sum_beyond_the_floats_has_no_cell() -> None:
    declaration = load(EVENTS + TARGET, "t.toml")
    records = [{"HOST": "a", "TS": 1_767_225_600_000 + n, "V": 1.7e308} for n in range(2)]
    (row,) = rolled_up(declaration.rollups[0], declaration, source_rows(declaration, records))
    assert sorted(cell.qualifier for cell in row.cells) == [b"count", b"max", b"min"]
