"""Records to rows and back: keys against a plain oracle, order of time, ranges of reads, rejections."""

from __future__ import annotations

import itertools
import json
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_tables import MemoryTables
from plain_tables import bucket_start_ms, key, to_ms

from tests.support.budget import examples
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Scan
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared.audit_records import audit_rows
from timebeam.schema.stores.declared.declaration import TableLayout
from timebeam.schema.stores.declared.keys import ranges
from timebeam.schema.stores.declared.language.load_declaration import load
from timebeam.schema.stores.declared.read_records import RecordSelection, decode, remembered_times
from timebeam.schema.stores.declared.records import RecordBatch, read_json
from timebeam.schema.stores.declared.write_records import rows

AB = '{ field = "A" }, { field = "B" }'
PADDED = '{ field = "A", width = 9, pad = "_", align = "right" }, { field = "B" }'
ANEW = '{ salt = ["TS", "C"], hash = "md5", buckets = 2, since = [[1400000000000, 3], [1600000000000, 9]] }'
MS = '{ time = "TS", width = 13 }'
LONG = '{ time = "TS", width = 19, reverse = 9223372036854775807 }'
BACK = "width = 13, reverse = 9999999999999 }"
MICROS = '{ time = "TS", unit = "us", format = "%Y-%m-%d %H:%M:%S.%f" }'
TEXT = '{ time = "TS", format = "%Y%m%d%H%M%S%L" }'
DAY = '{ time = "TS", bucket = "1d", tz = "America/Sao_Paulo", divide = 1000, width = 10 }'
KEYS = {
    "fixed": f'{{ field = "A", width = 6 }}, {{ field = "B" }}, {MS}',
    "right": f'{PADDED}, {{ time = "TS", format = "be64" }}',
    "seconds": f'{AB}, {{ time = "TS", unit = "s", format = "be32" }}',
    "micros": f"{AB}, {MICROS}",
    "reverse": f"{AB}, {LONG}",
    "short": f'{AB}, {{ time = "TS", {BACK}',
    "day": f"{AB}, {DAY}",
    "days": f'{AB}, {{ time = "TS", bucket = "3d", tz = "Asia/Kolkata", {BACK}',
    "month": f'{AB}, {{ time = "TS", bucket = "1mo", tz = "Europe/Paris", format = "%Y%m%d" }}',
    "quarter": f'{AB}, {{ time = "TS", bucket = "15m", unit = "s", width = 10 }}',
    "salted": f'{{ salt = ["TS"], buckets = 7, width = 2 }}, {AB}, {TEXT}',
    "salted by field": f'{{ salt = ["A", "B"], hash = "fnv1a64", buckets = 5, base = 1 }}, {AB}, {MS}',
    "salted anew": f'{ANEW}, {{ field = "A", case = "lower" }}, {{ field = "B" }}, {MS}',
    "suffixed": f'{{ const = "x" }}, {AB}, {MS}, {{ suffix = ["C"], width = 6 }}',
    "hashed": f'{{ hash = "sha1", of = ["A", "B"], encoding = "raw", length = 5 }}, {MS}',
}
CUT = {"day", "days", "month", "quarter"}


def document(key_text: str) -> str:
    return (
        f'[layout.t]\ntable = "T"\nallow_overwrite = true\nkey = [{key_text}]\n[layout.t.columns]\n'
        'family = "f"\nfields = ["C", { name = "N", encoding = "i64be" }, '
        '{ name = "F", encoding = "f64be" }, { name = "J", encoding = "json" }]\n'
    )


DOCUMENTS = {name: document(text) for name, text in KEYS.items()}
DECLARATIONS = {name: load(text, name) for name, text in DOCUMENTS.items()}
LAYOUTS: dict[str, TableLayout] = {name: found.layouts[0] for name, found in DECLARATIONS.items()}
PLAIN = {name: tomllib.loads(text)["layout"]["t"] for name, text in DOCUMENTS.items()}

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="#_ "), min_size=1, max_size=3
).filter(lambda text: len(text.encode()) <= 6)
times_ms = st.integers(86_400_000 * 31, 4_102_444_800_000)


@st.composite
def records(draw: st.DrawFn, name: str, size: int = 5) -> list[dict[str, Any]]:
    """Records that a layout takes; few distinct fields, so that series meet."""
    some = draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    layout = LAYOUTS[name]
    assert layout.event is not None
    found = []
    for _ in range(draw(st.integers(1, size))):
        ms = draw(times_ms | st.sampled_from([1_399_999_999_999, 1_400_000_000_000, 1_541_300_400_000]))
        found.append(
            {
                "A": draw(st.sampled_from(some)),
                "B": draw(st.sampled_from(some)),
                "TS": {"s": ms // 1000, "ms": ms, "us": ms * 1000 + ms % 997}[layout.event[1]],
                "C": draw(texts),
                "N": draw(st.integers(-(2**63), 2**63 - 1)),
                "F": draw(st.floats(allow_nan=False, allow_infinity=False)),
                "J": draw(st.lists(st.integers() | st.text(max_size=3), max_size=2)),
            }
        )
    return found


def written(name: str, found: list[dict[str, Any]]) -> list[Row]:
    lines = b"\n".join(json.dumps(record).encode() for record in found)
    batch, rejected = read_json(Message(lines, 7))
    made, unwritten = rows(DECLARATIONS[name], batch)
    assert (rejected, unwritten) == ([], [])
    return made


@pytest.mark.parametrize("name", KEYS)
def test_records_come_back_and_keys_are_the_oracle_s_and_sort_by_time(name: str) -> None:
    layout = LAYOUTS[name]

    @examples(40)
    @given(records(name))
    def check(found: list[dict[str, Any]]) -> None:
        made = written(name, found)
        assert len(made) == len(found)
        for row, record in zip(made, found, strict=True):
            plain = {field: str(value) for field, value in record.items()}
            assert row.key == key(PLAIN[name], plain)
            (back,) = decode(layout, row)
            expected = {**record, "J": json.dumps(record["J"])}
            if name == "salted anew":
                expected["A"] = record["A"].lower()
            if name == "hashed":
                del expected["A"], expected["B"]
            assert back == expected
            assert isinstance(back["F"], float)
            assert layout.event is not None
            assert {cell.timestamp_ms for cell in row.cells} == {to_ms(record["TS"], layout.event[1])}
        check_order(name, made, found)

    check()


def check_order(name: str, made: list[Row], found: list[dict[str, Any]]) -> None:
    """Keys of one series (and salt) sort by time, or the other way round."""
    layout = LAYOUTS[name]
    backwards = layout.time is not None and layout.time.reverse is not None
    series: dict[Any, list[tuple[int, bytes]]] = {}
    for row, record in zip(made, found, strict=True):
        salt = row.key[:2] if layout.salt else b""
        series.setdefault((record["A"], record["B"], salt), []).append((record["TS"], row.key))
    for rows_of_one in series.values():
        rows_of_one.sort(key=lambda pair: pair[0])
        for (before, first), (after, second) in itertools.pairwise(rows_of_one):
            if before < after and (first != second or name not in CUT):
                assert first > second if backwards else first < second


@pytest.mark.parametrize("name", KEYS)
def test_ranges_hold_exactly_the_rows_that_they_must(name: str) -> None:
    layout = LAYOUTS[name]
    assert layout.time is not None
    unit = layout.time.unit

    @examples(25)
    @given(records(name), st.data())
    def check(found: list[dict[str, Any]], data: st.DataObject) -> None:
        made = written(name, found)
        a, b = data.draw(st.sampled_from(found)), data.draw(st.sampled_from(found))
        fixed = {field: data.draw(st.sampled_from([a[field], b[field]])) for field in ("A", "B")}
        near = st.sampled_from([to_ms(record["TS"], unit) for record in found]).flatmap(
            lambda ms: st.integers(ms - 2, ms + 2)
        )
        start, end = sorted([data.draw(near | times_ms), data.draw(near | times_ms)])
        got = ranges(layout, fixed, (start, end))
        assert all(x < y or not y for x, y in got)
        assert all(x[1] < y[0] for x, y in itertools.pairwise(got))
        for row, record in zip(made, found, strict=True):
            inside = any(x <= row.key and (not y or row.key < y) for x, y in got)
            mine = _same(name, record, fixed)
            assert inside == (mine and _meets(PLAIN[name]["key"], record["TS"], unit, start, end)), row.key
        everything = ranges(layout, fixed)
        for row, record in zip(made, found, strict=True):
            inside = any(x <= row.key and (not y or row.key < y) for x, y in everything)
            assert inside == _same(name, record, fixed)

    check()


def _same(name: str, record: dict[str, Any], fixed: dict[str, Any]) -> bool:
    a, wanted = record["A"], fixed["A"]
    if name == "salted anew":
        a, wanted = a.lower(), wanted.lower()
    return (a, record["B"]) == (wanted, fixed["B"])


def _meets(parts: list[dict[str, Any]], value: int, unit: str, start_ms: int, end_ms: int) -> bool:
    """Whether the row of a time holds times of the interval: its bucket, or the time itself."""
    part = next(part for part in parts if "time" in part)
    scale = {"s": 0.001, "ms": 1, "us": 1000}[unit]
    if "bucket" not in part:
        return start_ms * scale <= value < end_ms * scale
    if start_ms >= end_ms:
        return False
    zone = part.get("tz", "UTC")
    mine, first, last = (
        bucket_start_ms(ms, part["bucket"], zone) for ms in (to_ms(value, unit), start_ms, end_ms - 1)
    )
    if unit == "s":  # an interval that holds no whole second holds no time
        first, last = (
            bucket_start_ms(-(-ms // 1000) * 1000, part["bucket"], zone) for ms in (start_ms, end_ms)
        )
        if -(-start_ms // 1000) >= -(-end_ms // 1000):
            return False
        last = bucket_start_ms((-(-end_ms // 1000) - 1) * 1000, part["bucket"], zone)
    return first <= mine <= last


def test_batches_without_records() -> None:
    empty = RecordBatch({}, np.zeros(0, np.int64))
    assert rows(DECLARATIONS["fixed"], empty) == ([], [])


SERIES = """\
[layout.s]
table = "S"
key = [{ field = "A" }, { time = "TS", bucket = "1d", tz = "America/Sao_Paulo", divide = 1000, width = 10 }]
cell_time = "arrival"
allow_overwrite = true
[layout.s.columns]
family = "f"
fields = ["C"]
series = { value = "V", qualifier = { time = "TS", within = "1d", step = "1s", format = "FORM" } }
"""


@pytest.mark.parametrize("form", ["HHMMSS", "number", "be32"])
def test_readings_come_back(form: str) -> None:
    declaration = load(SERIES.replace("FORM", form), "t")
    (layout,) = declaration.layouts

    @given(st.lists(st.tuples(texts, times_ms, texts), min_size=1, max_size=12))
    def check(found: list[tuple[str, int, str]]) -> None:
        lines = b"\n".join(json.dumps({"A": a, "TS": ms, "C": "c", "V": v}).encode() for a, ms, v in found)
        batch, _ = read_json(Message(lines, 1_700_000_000_000))
        made, unwritten = rows(declaration, batch)
        assert unwritten == []
        for row, (a, ms, v) in zip(made, found, strict=True):
            start = bucket_start_ms(ms, "1d", "America/Sao_Paulo")
            assert row.key == a.encode() + b"#%010d" % (start // 1000)
            assert {cell.timestamp_ms for cell in row.cells} == {1_700_000_000_000}
            (back,) = decode(layout, row)
            assert back == {"A": a, "TS": ms // 1000 * 1000, "C": "c", "V": v}
        merged: dict[bytes, list[Any]] = {}
        for row in made:
            merged.setdefault(row.key, []).extend(row.cells)
        for one, cells in merged.items():
            readings = decode(layout, Row("S", one, [cell for cell in cells if cell.qualifier != b"C"]))
            assert len(readings) == sum(row.key == one for row in made)

    check()


COARSE = [
    ("90m", "%Y%m%d%H", "UTC", "15m"),
    ("36h", "%Y-%m-%d", "UTC", "1h"),
    ("45d", "%Y%m", "America/New_York", "1d"),
    ("18mo", "%Y", "Europe/Paris", "1d"),
]


@pytest.mark.parametrize(("bucket", "form", "zone", "step"), COARSE)
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_buckets_that_begin_amid_their_text_come_back(
    bucket: str, form: str, zone: str, step: str, unit: str
) -> None:
    """A bucket of 90 minutes begins at 01:30, and its text is the hour 01."""
    part = f'time = "TS", unit = "{unit}", bucket = "{bucket}", format = "{form}", tz = "{zone}"'
    qualifier = f'time = "TS", within = "{bucket}", step = "{step}", format = "number"'
    text = f"""\
[layout.t]
table = "T"
key = [{{ field = "A" }}, {{ {part} }}]
cell_time = "arrival"
columns = {{ family = "f", series = {{ value = "R", qualifier = {{ {qualifier} }} }} }}
"""
    declaration = load(text, "t")
    (layout,) = declaration.layouts
    units = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    days = [*range(600, 1700, 7), 20_000, 2_932_890]
    times = sorted((day * 86_400 + hours * 3600 + 1800) * units for day in days for hours in (0, 7, 13, 23))
    lines = [json.dumps({"A": "a", "TS": time, "R": str(time)}).encode() for time in times]
    batch, rejected = read_json(Message(b"\n".join(lines), 0))
    made, unwritten = rows(declaration, batch)
    assert (rejected, unwritten) == ([], [])
    assert not list(audit_rows(layout, made))
    back = {record["R"]: record["TS"] for row in made for record in decode(layout, row)}
    assert len(back) == len(times)
    remembered_ms = remembered_times(layout, np.array([time * 1000 // units for time in times]))
    assert remembered_ms is not None
    for time, remembered in zip(times, remembered_ms.tolist(), strict=True):
        start_ms = bucket_start_ms(time * 1000 // units, bucket, zone)
        assert back[str(time)] == remembered * units // 1000
        assert bucket_start_ms(remembered, bucket, zone) == start_ms


def test_maps_come_back() -> None:
    declaration = load(
        '[layout.m]\ntable = "M"\nkey = [{ field = "A" }]\n[layout.m.columns]\nfamily = "f"\n'
        'map = { source = "m", qualifier = "p.{c}/{n}!" }\nfields = ["A"]\n',
        "t",
    )
    names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=3)
    inner = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)

    @given(
        st.dictionaries(
            names,
            st.dictionaries(inner, st.text(st.characters(exclude_categories=["Cs"]), max_size=3), min_size=1),
            min_size=1,
        )
    )
    def check(found: dict[str, dict[str, str]]) -> None:
        batch, rejected = read_json(Message(json.dumps({"A": "a", "m": found}).encode(), 0))
        (row,), unwritten = rows(declaration, batch)
        assert (rejected, unwritten) == ([], [])
        (back,) = decode(declaration.layouts[0], row)
        expected = {f"p.{c}/{n}!": v for c, entries in found.items() for n, v in entries.items()}
        assert back == {"A": "a", "m": expected}
        assert len(row.cells) == 1 + len(expected)

    check()


@pytest.mark.parametrize("case", ["lower", "upper"])
def test_texts_fold_alike_when_they_are_written_and_asked_for(case: str) -> None:
    """Python folds some characters to two, and knows others that Arrow does not."""
    texts = ["Gießen", "GIEẞEN", "İzmir", "ŉ", "ΐ", "ﬁ", "ǅ", "Σς", "é"]
    declaration = load(
        f'[layout.t]\ntable = "T"\nkey = [{{ field = "A", case = "{case}" }}, {{ field = "N" }}]\n'
        'columns = { family = "f", fields = ["V"] }\n',
        "t",
    )
    records = [{"A": text, "N": str(n), "V": "1"} for n, text in enumerate(texts)]
    lines = "\n".join(map(json.dumps, records)).encode()
    tables = MemoryTables(rows(declaration, read_json(Message(lines, 0))[0])[0])
    layout = declaration.layouts[0]
    for number, text in enumerate(texts):
        selection = RecordSelection({"A": [text]})
        found = [
            record
            for row in tables.scan(Scan("T", selection.plan(layout).ranges))
            for record in selection.records(layout, row)
        ]
        assert str(number) in {record["N"] for record in found}, text
