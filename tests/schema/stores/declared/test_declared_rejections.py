"""What tables reject of records and points, with its reason and original bytes; nothing is bent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Row
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared.declaration import Declaration
from timebeam.schema.stores.declared.keys import ranges
from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load
from timebeam.schema.stores.declared.read_records import decode
from timebeam.schema.stores.declared.records import read_json
from timebeam.schema.stores.declared.write_records import of_points, rows

DECLARED = """\
[layout.one]
table = "ONE"
when = "T"
key = [
  { field = "A", width = 4 },
  { field = "N", type = "uint", width = 3 },
  { field = "B" },
  { time = "T", width = 13 },
]
allow_overwrite = true
[layout.one.columns]
family = "f"
fields = ["V", { name = "I", encoding = "i64be" }, { name = "F", encoding = "f32be" }]

[layout.two]
table = "TWO"
when = "U"
key = [{ field = "A" }]
columns = { family = "f", map = { source = "m", qualifier = "{c}/{n}" }, fields = ["U"] }
"""
GOOD: dict[str, Any] = {"A": "a", "N": 7, "B": "b", "T": 1426535612045, "V": "v"}


def run(*records: dict[str, Any] | str) -> tuple[list[Row], list[Rejected]]:
    lines = "\n".join(x if isinstance(x, str) else json.dumps(x) for x in records)
    batch, rejected = read_json(Message(lines.encode(), 0, "file", 100))
    assert rejected == []
    return rows(load(DECLARED, "t"), batch)


@pytest.mark.parametrize(
    ("field", "value", "reason", "text"),
    [
        ("A", None, Reason.SERIES_NOT_STORABLE, "A is missing, and the key needs it"),
        ("A", "", Reason.SERIES_NOT_STORABLE, "A is empty"),
        ("A", "abcde", Reason.SERIES_NOT_STORABLE, "longer than 4 bytes"),
        ("A", "ééé", Reason.SERIES_NOT_STORABLE, "longer than 4 bytes"),
        ("A", "ab ", Reason.SERIES_NOT_STORABLE, "ends with ' ', which pads it"),
        ("A", "a#", Reason.SERIES_NOT_STORABLE, "contains the separator '#'"),
        ("B", "#", Reason.SERIES_NOT_STORABLE, "contains the separator '#'"),
        ("N", "07", Reason.SERIES_NOT_STORABLE, "not a whole number without sign and leading zeros"),
        ("N", -7, Reason.SERIES_NOT_STORABLE, "not a whole number"),
        ("N", 7.0, Reason.SERIES_NOT_STORABLE, "not a whole number"),
        ("N", 1000, Reason.SERIES_NOT_STORABLE, "longer than 3 bytes"),
        ("T", "soon", Reason.BAD_TIMESTAMP, "'soon' is not a whole number of ms since 1970"),
        ("T", 1.5, Reason.BAD_TIMESTAMP, "not a whole number"),
        ("T", "0x10", Reason.BAD_TIMESTAMP, "not a whole number"),
        ("T", 9223372036854775808, Reason.BAD_TIMESTAMP, "not a whole number"),
        ("T", -1, Reason.TIMESTAMP_OUT_OF_RANGE, "before 1970"),
        ("T", 253402300800000, Reason.TIMESTAMP_OUT_OF_RANGE, "after the year 9999"),
        ("T", 10000000000000, Reason.TIMESTAMP_OUT_OF_RANGE, "does not fit the key"),
        ("V", [1], Reason.VALUE_NOT_STORABLE, 'needs encoding = "json"'),
        ("V", {"a": 1}, Reason.VALUE_NOT_STORABLE, 'needs encoding = "json"'),
        ("I", "1.5", Reason.BAD_NUMBER, "not a whole number"),
        ("I", 2**63, Reason.NUMBER_OUT_OF_RANGE, "does not fit 64 bits"),
        ("F", "NaN", Reason.BAD_NUMBER, "not a number"),
        ("F", 1e39, Reason.NUMBER_OUT_OF_RANGE, "beyond f32be"),
        ("F", "1e400", Reason.NUMBER_OUT_OF_RANGE, "beyond f32be"),
        ("V", None, Reason.EMPTY_VALUE, "none of the fields of its columns"),
    ],
)
def test_one_bad_field(field: str, value: object, reason: Reason, text: str) -> None:
    bad = {**GOOD, field: value}
    found, (rejected,) = run(GOOD, bad, {**GOOD, "B": "c"})
    assert [row.key for row in found] == [b"a   #007#b#1426535612045", b"a   #007#c#1426535612045"]
    assert (rejected.reason, rejected.stage, rejected.source) == (reason, Stage.ENCODE, "file")
    assert rejected.message.startswith("table ONE: ")
    assert text in rejected.message
    assert rejected.payload == json.dumps(bad).encode()
    assert rejected.offset == 100 + len(json.dumps(GOOD)) + 1


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"a/b": {"x": 1}}, Reason.NAME_NOT_STORABLE),
        ({"a": 1}, Reason.BAD_SYNTAX),
        ([1], Reason.BAD_SYNTAX),
        ("text", Reason.BAD_SYNTAX),
        ({"a": {"x": [1]}}, Reason.VALUE_NOT_STORABLE),
    ],
)
def test_bad_maps(entries: object, reason: Reason) -> None:
    found, (rejected,) = run({"A": "a", "U": 1, "m": entries})
    assert (found, rejected.reason) == ([], reason)


def test_entries_of_maps_without_value_are_absent() -> None:
    (row,), rejected = run('{"A":"a","U":1,"m":{"c" : {"n":null,"o":1.50}}}')
    assert rejected == []
    assert [(cell.qualifier, cell.value) for cell in row.cells] == [(b"U", b"1"), (b"c/o", b"1.50")]


def test_a_record_that_no_table_takes() -> None:
    found, (rejected,) = run({"A": "a"})
    assert (found, rejected.reason) == ([], Reason.EMPTY_VALUE)
    assert "none of the fields T, U" in rejected.message


def test_a_record_rejected_by_one_table_is_written_to_the_other() -> None:
    found, rejected = run({**GOOD, "A": "too long", "U": 1})
    assert [row.table for row in found] == ["TWO"]
    assert [one.message.split(":")[0] for one in rejected] == ["table ONE"]


def test_revisions_are_versions() -> None:
    declaration = load(
        '[layout.r]\ntable = "R"\nkey = [{ field = "A" }]\nevent_time = "T"\ncell_time = "revision"\n'
        'revision = "REV"\ngc = { max_versions = 5 }\ncolumns = { family = "f", fields = ["V"] }\n',
        "t",
    )
    records = [{"A": "a", "T": 1000, "REV": revision, "V": revision} for revision in (0, 1, 2, -1, "x", None)]
    batch, _ = read_json(Message("\n".join(map(json.dumps, records)).encode(), 0))
    found, rejected = rows(declaration, batch)
    assert [row.cells[0].timestamp_ms for row in found] == [1000, 1001, 1002]
    assert [one.reason for one in rejected] == [Reason.BAD_NUMBER] * 3


def test_payload_suffixes_part_what_ties_and_redelivery_does_not() -> None:
    declaration = load(
        '[layout.s]\ntable = "S"\n'
        'key = [{ field = "A" }, { time = "T", width = 13 }, { suffix = "payload" }]\n'
        'columns = { family = "f", fields = ["V"] }\n',
        "t",
    )
    lines = b'{"A":"a","T":1,"V":1}\n{"A":"a","T":1,"V":2}\n{"A":"a","T":1,"V":1}'
    batch, _ = read_json(Message(lines, 0))
    found, _ = rows(declaration, batch)
    assert found[0] == found[2]
    assert found[0].key != found[1].key


POINTS = """\
[layout.tall]
table = "TALL"
key = [{ field = "metric" }, { field = "host" }, { time = "timestamp", width = 13 }]
allow_overwrite = ALLOW
columns = { family = "f", fields = ["value"] }
"""


def points(allow: bool = False) -> tuple[Declaration, PointBatch]:
    one, two = Series.of("cpu", {"host": "a"}), Series.of("cpu", {"host": "a", "dc": "lga"})
    batch = PointBatch.of(
        [(one, 5, True, 1), (two, 6, True, 2), (one, 7, True, 0.1), (one, 8, True, 42.0)], 9
    )
    return load(POINTS.replace("ALLOW", str(allow).lower()), "t"), batch


def test_points_keep_their_kind_and_lose_no_tag() -> None:
    declaration, batch = points()
    found, (rejected,) = of_points(declaration, batch)
    assert rejected.reason is Reason.SERIES_NOT_STORABLE
    assert "dc is neither in the key nor in a qualifier of TALL" in rejected.message
    assert json.loads(rejected.payload)["tags"] == {"dc": "lga", "host": "a"}
    made, bad = rows(declaration, found)
    assert bad == []
    assert [(row.key, row.cells[0].value) for row in made] == [
        (b"cpu#a#0000000000005", b"1"),
        (b"cpu#a#0000000000007", b"0.1"),
        (b"cpu#a#0000000000008", b"42.0"),
    ]
    assert decode(declaration.layouts[0], made[0]) == [
        {"metric": "cpu", "host": "a", "timestamp": 5, "value": "1"}
    ]


def test_points_may_lose_tags_that_the_declaration_gives_up() -> None:
    declaration, batch = points(allow=True)
    assert of_points(declaration, batch)[1] == []


def test_opaque_points_and_resources_are_rejected() -> None:
    declaration, _ = points()
    series = Series.of("cpu", {"host": "a"})
    rich = Series.of("cpu", {"host": "a"}, {"pod": "x"})
    clash = Series.of("cpu", {"host": "a", "value": "x"})
    batch = PointBatch.of(
        [(series, 1, True, b"\0"), (rich, 1, True, 1), (clash, 1, True, 1), (series, 1, True, "t")], 9
    )
    found, rejected = of_points(declaration, batch)
    expected = [Reason.VALUE_NOT_STORABLE, Reason.SERIES_NOT_STORABLE, Reason.SERIES_NOT_STORABLE]
    assert [one.reason for one in rejected] == expected
    assert np.array_equal(found.are_texts("value"), [True])


@pytest.mark.parametrize(
    ("fixed", "interval", "text"),
    [
        ({"B": "b"}, None, "A comes before it"),
        ({"A": "a"}, (0, 1), "N comes before the time in the key"),
        ({"A": "a", "V": "v"}, None, "V: it is not in the front of the key"),
        ({"A": "too long"}, None, "longer than 4 bytes"),
        ({"A": "a", "N": 1, "B": "b", "T": "x"}, None, "not a whole number"),
    ],
)
def test_reads_that_the_key_does_not_serve(
    fixed: dict[str, str | int], interval: tuple[int, int] | None, text: str
) -> None:
    layout = load(DECLARED, "t").layouts[0]
    with pytest.raises(ValueError, match=text):
        ranges(layout, fixed, interval)


def test_ranges_of_the_specification() -> None:
    layout = load(DECLARED, "t").layouts[0]
    fixed: dict[str, str | int] = {"A": "a", "N": 7, "B": "b"}
    assert ranges(layout, fixed, (5, 9)) == [(b"a   #007#b#0000000000005", b"a   #007#b#0000000000009")]
    assert ranges(layout, fixed, (9, 9)) == []
    assert ranges(layout, fixed, (-9, 0)) == []
    assert ranges(layout, {**fixed, "T": 5}) == [(b"a   #007#b#0000000000005", b"a   #007#b#0000000000005\0")]
    assert ranges(layout, {"A": "a"}) == [(b"a   #", b"a   $")]
    assert ranges(layout, {}) == [(b"", b"")]
    end = 10**15
    assert ranges(layout, fixed, (5, end)) == [(b"a   #007#b#0000000000005", b"a   #007#b$")]


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"a   #007#b",
        b"a   #007#b#14265356120451",
        b"a   007#b#1426535612045",
        b"a   #007#b#x426535612045",
    ],
)
def test_keys_of_other_layouts_do_not_decode(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"key|not a time"):
        decode(load(DECLARED, "t").layouts[0], Row("ONE", key, []))


def test_the_rejected_record_is_the_one_that_is_named_where_tables_take_some_only() -> None:
    other, bad = {"A": "a", "U": 1, "m": {"c": {"n": 1}}}, {**GOOD, "B": "#"}
    found, (rejected,) = run(other, other, bad, GOOD)
    assert [row.table for row in found] == ["ONE", "TWO", "TWO"]
    assert rejected.payload == json.dumps(bad).encode()


def test_days_that_do_not_begin_at_a_whole_step_of_the_key_are_rejected() -> None:
    """Liberia was 44 minutes and 30 seconds behind UTC until 1972."""
    declaration = load(
        '[layout.d]\ntable = "D"\nallow_overwrite = true\ncolumns = { family = "f", fields = ["A"] }\n'
        'key = [{ field = "A" }, { time = "T", bucket = "1d", '
        'tz = "Africa/Monrovia", divide = 100000, width = 8 }]\n',
        "t",
    )
    batch, _ = read_json(Message(b'{"A":"a","T":31536000000}\n{"A":"a","T":94694400000}', 0))
    (row,), (rejected,) = rows(declaration, batch)
    assert row.key == b"a#00946944"
    assert rejected.reason is Reason.TIMESTAMP_OUT_OF_RANGE


def declared(key: str, columns: str = 'fields = ["V"]', more: str = "allow_overwrite = true") -> Declaration:
    return load(
        f'[layout.t]\ntable = "T"\nkey = [{key}]\n{more}\n[layout.t.columns]\nfamily = "f"\n{columns}\n', "t"
    )


def stored(declaration: Declaration, *records: dict[str, Any]) -> tuple[list[Row], list[Rejected]]:
    text = "\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    batch, rejected = read_json(Message(text.encode(), 0))
    assert not rejected
    return rows(declaration, batch)


@pytest.mark.parametrize(
    ("template", "entries", "good"),
    [
        ("{a}::{b}", {"cpu": {"user": 1}, "cpu:": {"x": 1}}, False),
        ("{a}::{b}", {"cpu": {":user": 1, "a::b": 2, "x:": 3}}, True),
        ("{a}aba{b}", {"xab": {"y": 1}}, False),
        ("<{a}/{b}>", {"<": {"/>": 1}}, True),
    ],
)
def test_names_of_map_entries_come_back_from_their_qualifiers(
    template: str, entries: dict[str, Any], good: bool
) -> None:
    declaration = declared('{ field = "A" }', f'map = {{ source = "m", qualifier = "{template}" }}', "")
    found, rejected = stored(declaration, {"A": "a", "m": entries})
    if good:
        assert len(found[0].cells) == sum(map(len, entries.values()))
    else:
        assert [one.reason for one in rejected] == [Reason.NAME_NOT_STORABLE]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Pacific/Kiritimati", "America/New_York", "UTC"])
def test_the_last_hours_of_the_year_9999_are_stored_readably_or_rejected(zone: str) -> None:
    declaration = declared(
        f'{{ field = "A" }}, {{ time = "T", bucket = "1d", tz = "{zone}", format = "%Y%m%d" }}'
    )
    last_ms = 253_402_300_799_999
    records = [{"A": "a", "T": last_ms - hours * 3_600_000, "V": "1"} for hours in range(30)]
    found, rejected = stored(declaration, *records)
    assert {row.key for row in found} >= {b"a#99991231"}
    assert all(row.key.startswith(b"a#999912") for row in found)
    assert len(rejected) == {"Asia/Kolkata": 6, "Pacific/Kiritimati": 14}.get(zone, 0)
    assert {one.reason for one in rejected} <= {Reason.TIMESTAMP_OUT_OF_RANGE}
    assert all(f"is after the year 9999 in {zone}" in one.message for one in rejected)


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_ranges_of_text_times_without_end_hold_all_rows(zone: str) -> None:
    declaration = declared(
        f'{{ field = "A" }}, {{ time = "T", bucket = "1d", tz = "{zone}", format = "%Y%m%d" }}'
    )
    (row,), _ = stored(declaration, {"A": "a", "T": 1_700_000_000_000, "V": "1"})
    ((start, end),) = ranges(declaration.layouts[0], {"A": "a"}, (0, 253_402_300_800_000))
    assert start <= row.key < end


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_versions_tell_steps_apart_in_every_unit(unit: str) -> None:
    """Steps are whole milliseconds, as timestamps of cells are; times in microseconds are not."""
    text = (
        '[layout.t]\ntable = "T"\ngc = { max_versions = 3 }\n'
        f'key = [{{ time = "TS", unit = "{unit}", bucket = "1d", format = "be64" }}]\n'
        '[layout.t.columns]\nfamily = "f"\nfields = ["V"]\n'
    )
    series = 'series = { value = "R", qualifier = { time = "TS", within = "1d", step = "6h" } }\n'
    load(text + series, "t")
    if unit == "us":
        with pytest.raises(DeclarationError, match="the key cuts TS"):
            load(text, "t")
    else:
        load(text, "t")


@pytest.mark.parametrize("salted", ["", "A", "C"])
def test_a_hash_without_a_separator_is_refuted_beside_a_salt(salted: str) -> None:
    """The complaint names two records that differ, in the same bucket of the salt."""
    salt = f'{{ salt = ["{salted}"], buckets = 3 }}, ' if salted else ""
    text = (
        '[layout.t]\ntable = "T"\nseparator = ""\nevent_time = "TS"\n'
        f'key = [{salt}{{ hash = "md5", of = ["A", "C"], length = 20 }}]\n'
        'columns = { family = "f", fields = ["V"] }\n'
    )
    with pytest.raises(
        DeclarationError, match=r"A=\d+, C=\d+ and A=\d+, C=\d+ are both row .* with a separator"
    ):
        load(text, "t")


def test_fields_that_are_hashed_together_are_told_apart_by_their_separator() -> None:
    declaration = declared('{ hash = "md5", of = ["A", "B"] }', more="")
    found, rejected = stored(
        declaration,
        {"A": "x#y", "B": "z", "V": 1},
        {"A": "x", "B": "y#z", "V": 2},
        {"A": "x", "B": "z", "V": 3},
    )
    assert len(found) == 1
    assert [one.reason for one in rejected] == [Reason.SERIES_NOT_STORABLE] * 2
    assert "contains the separator '#', which ends it in the hash" in rejected[0].message


def test_a_record_without_a_reading_needs_no_qualifier() -> None:
    series = 'fields = ["M"]\nseries = { value = "R", qualifier = { field = "Q" } }'
    declaration = declared('{ field = "A" }', series)
    found, rejected = stored(
        declaration, {"A": "a", "M": 1}, {"A": "a", "M": 1, "R": 2}, {"A": "a", "Q": "q"}
    )
    assert [[cell.qualifier for cell in row.cells] for row in found] == [[b"M"]]
    assert [one.reason for one in rejected] == [Reason.SERIES_NOT_STORABLE, Reason.EMPTY_VALUE]
