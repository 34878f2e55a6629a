"""What the loader refuses and warns of, each with the line of the declaration (sections 5 and 6)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schema.declared.loader import DeclarationError, load
from schema.declared.spans import Span, span_of
from schema.declared.toml_lines import TomlLines

SOUND = """\
# a comment
[layout.quote]
table = "QUOTE"
separator = "#"
key = [
  { field = "EXCHANGE", width = 6 },
  { field = "SYMBOL" },   # with a bracket ] in a comment
  { time = "T", unit = "ms", width = 13 },
]
allow_overwrite = true
[layout.quote.columns]
family = "MD"
fields = ["BID", { name = "ASK", encoding = "f64be" }]
[[layout.quote.read]]
name = "by_symbol"
equals = ["EXCHANGE", "SYMBOL"]
range = "T"
[[layout.quote.read]]
name = "all"
scan = true
"""
TIME = '{ time = "T", unit = "ms", width = 13 }'
FIELDS = '{ field = "EXCHANGE", width = 6 }'


def changed(*pairs: tuple[str, str]) -> str:
    text = SOUND
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def refused(text: str) -> list[str]:
    with pytest.raises(DeclarationError) as caught:
        load(text, "t.toml")
    return str(caught.value).splitlines()


def test_a_sound_declaration_has_no_warnings() -> None:
    declaration = load(SOUND, "t.toml")
    assert declaration.warnings == []
    assert [layout.table for layout in declaration.layouts] == ["QUOTE"]


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        # 1. every read is served
        (
            'equals = ["EXCHANGE", "SYMBOL"]',
            'equals = ["SYMBOL"]',
            14,
            "EXCHANGE stands before it in the key",
        ),
        (
            'equals = ["EXCHANGE", "SYMBOL"]',
            'equals = ["EXCHANGE"]',
            14,
            "SYMBOL stands before it in the key",
        ),
        ('range = "T"', 'range = "BID"', 14, "BID is no time part of the key"),
        (
            TIME,
            '{ hash = "md5", of = [{ time = "T", width = 13 }] }',
            14,
            "T is hashed, so that an interval of it lies all over the table",
        ),
        ("scan = true", "scan = false", 18, "give equals and range, or scan = true"),
        # 2. order
        (TIME, '{ time = "T" }', 8, "a decimal time without width does not sort: add width"),
        (TIME, '{ time = "T", width = 13, reverse = 9223372036854775807 }', 8, "does not fit 13 digits"),
        (TIME, '{ time = "T", format = "%d%m%Y" }', 8, "does not sort by time"),
        (TIME, '{ time = "T", format = "%Y%m%d%H", tz = "Europe/Paris" }', 8, "where clocks go back an hour"),
        (TIME, '{ time = "T", format = "%Y%q" }', 8, "unknown placeholder %q"),
        (
            TIME,
            '{ time = "T", format = "be32", reverse = 4294967296 }',
            8,
            "reverse must be from 1 to 4294967295",
        ),
        (TIME, '{ time = "T", bucket = "15x", width = 13 }', 8, "no length of time"),
        (TIME, '{ time = "T", bucket = "1d", tz = "Mars/Base", width = 13 }', 8, "no time zone 'Mars/Base'"),
        (TIME, '{ time = "T", bucket = "1h", tz = "Asia/Kolkata", width = 13 }', 8, "tz matters for buckets"),
        # 3. unambiguous split
        ('separator = "#"', 'separator = ""', 7, "SYMBOL has no fixed width, and no separator ends it"),
        ('separator = "#"', 'separator = "##"', 4, "longer than one byte"),
        (FIELDS, '{ field = "EXCHANGE", width = 6, pad = "#" }', 6, "padded with the separator"),
        (FIELDS, '{ field = "EXCHANGE", width = 6, on_overflow = "cut" }', 6, "choose one of reject"),
        (FIELDS, '{ field = "E", type = "uint", width = 6, align = "left" }', 6, "a uint is aligned right"),
        (FIELDS, '{ field = "SYMBOL", width = 6 }', 5, "a field stands twice in the key"),
        # 4. identity
        ("allow_overwrite = true", 'identity = ["USER"]', 10, "USER tells events apart, but stands neither"),
        (
            f"{TIME},\n]\nallow_overwrite = true",
            '{ time = "T", bucket = "1h", width = 13 },\n]',
            8,
            "overwrite each other",
        ),
        # 5. idempotence
        ("allow_overwrite = true", 'cell_time = "server"', 10, "the client does not try such writes again"),
        ("allow_overwrite = true", 'cell_time = "revision"', 2, 'revision = "FIELD" go together'),
        # 6. sizes
        (FIELDS, '{ field = "EXCHANGE", width = 5000 }', 5, "Bigtable takes 4096"),
        ('"BID"', '"' + "B" * 20_000 + '"', 11, "Bigtable takes 16384"),
        # salts, hashes, suffixes
        (FIELDS, '{ salt = ["SYMBOL"] }', 6, "a salt needs buckets"),
        (FIELDS, '{ salt = ["SYMBOL"], buckets = 11 }', 6, "salts up to 10 do not fit 1 digits"),
        (FIELDS, '{ salt = ["SYMBOL"], buckets = 2, since = [[5, 3], [4, 2]] }', 6, "must ascend"),
        (FIELDS, '{ salt = ["SYMBOL"], buckets = 2, since = [[2026-01-01, 3]] }', 6, "since must be a list"),
        (FIELDS, '{ hash = "md5", of = ["SYMBOL"], length = 33 }', 6, "md5 has 32 digits"),
        (FIELDS, '{ suffix = "payload", width = 9 }', 6, "8 digits at most"),
        (FIELDS, "{ width = 6 }", 6, "must have one of const, field"),
        # names and types
        ('table = "QUOTE"', "table = 7", 3, "table must be a text in quotes, not 7"),
        ('table = "QUOTE"', 'table = "a/b"', 3, "no name that Bigtable takes"),
        ('table = "QUOTE"', "", 2, "layout.quote lacks table"),
        ('family = "MD"', 'family = "M D"', 12, "no name that Bigtable takes"),
        ("allow_overwrite = true", "allow_overwite = true", 10, "unknown option 'allow_overwite'"),
        (FIELDS, '{ field = "EXCHANGE", wdth = 6 }', 6, "unknown option 'wdth'"),
        ('encoding = "f64be"', 'encoding = "f16"', 13, "choose one of text, i64be"),
        ('"BID"', '"ASK"', 13, "two columns have the qualifier 'ASK'"),
        (
            "allow_overwrite = true",
            "gc = { max_versions = 0 }",
            10,
            "max_versions must be a whole number of at least 1",
        ),
        ("# a comment", "[tables]", 1, "unknown section 'tables'"),
        ("# a comment", "[[[", 1, "not TOML"),
    ],
)
def test_refusals(old: str, new: str, line: int, text: str) -> None:
    (message,) = refused(changed((old, new)))
    assert message.startswith(f"t.toml line {line}: ")
    assert text in message


BUCKETS = """\
[layout.day]
table = "DAY"
key = [{ field = "METER" }, { time = "TS", bucket = "1d", width = 13 }]
[layout.day.columns]
family = "f"
fields = [{ name = "METER", qualifier = "ID" }]
[layout.day.columns.series]
value = "V"
qualifier = { time = "TS", within = "1d", step = "15m" }
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ('within = "1d"', 'within = "1h"', 7, "must be the bucket of the key's time, which is 1d"),
        ('step = "15m"', 'step = "5s"', 9, "a step of 5s cannot be told in HHMM"),
        ('time = "TS", within', 'time = "T", within', 9, "T is no time of the key"),
        ('qualifier = "ID"', 'qualifier = "0015"', 4, "looks like the qualifier of a reading"),
        (
            "[layout.day.columns.series]",
            '[layout.day.columns.map]\nsource = "m"\n[layout.day.columns.series]',
            7,
            "could not be told apart",
        ),
    ],
)
def test_refusals_of_columns(old: str, new: str, line: int, text: str) -> None:
    (message,) = refused(BUCKETS.replace(old, new))
    assert re.match(rf"t.toml line {line}: ", message), message
    assert text in message


def test_map_templates_that_could_not_be_split() -> None:
    for template in ("{a}{b}", "plain", "{a}/{b}/{c}", "{a"):
        text = changed(
            (
                'fields = ["BID", { name = "ASK", encoding = "f64be" }]',
                f'map = {{ source = "m", qualifier = "{template}" }}',
            )
        )
        (message,) = refused(text)
        assert message.startswith("t.toml line 13: ")


def test_all_wrong_layouts_are_told_at_once() -> None:
    two = changed((TIME, '{ time = "T" }')) + SOUND.replace("quote", "other").replace(TIME, '{ time = "T" }')
    assert [message.split(":")[0] for message in refused(two)] == ["t.toml line 8", "t.toml line 28"]


def test_one_table_has_one_layout() -> None:
    (message,) = refused(SOUND + SOUND.replace("quote", "other"))
    assert message == "t.toml line 22: table QUOTE is also that of layout quote: one table has one layout"


def test_salts_that_change_need_a_time() -> None:
    key = '{ salt = ["A"], buckets = 2, since = [[0, 3]] }, { field = "A" }'
    text = f'[layout.t]\ntable = "T"\nkey = [{key}]\ncolumns = {{ family = "f", fields = ["V"] }}\n'
    (message,) = refused(text)
    assert message.startswith("t.toml line 3: since needs a time to compare with")
    assert load(text + 'event_time = "T"\n', "t").layouts[0].event == ("T", "ms")


def test_day_tables_need_a_layout_with_days() -> None:
    copy = '[layout.copy]\ntable = "T_{day:%Y%m%d}"\nsource = "SOURCE"\n'
    assert "is no layout of this file" in refused(BUCKETS + copy)[0]
    assert load(BUCKETS + copy.replace("SOURCE", "day"), "t").day_tables
    assert "has no day in its key" in refused(SOUND + copy.replace("SOURCE", "quote"))[0]
    assert "must hold the day once" in refused(BUCKETS + copy.replace("_{day:%Y%m%d}", ""))[0]


@pytest.mark.parametrize(
    ("key", "line", "text"),
    [
        (TIME, 3, "hot spot"),
        ('{ const = "BATTERY" }, ' + TIME, 3, "(field promotion), or a salt"),
        ('{ salt = ["T"], buckets = 3 }, ' + TIME, 3, "ties: two records within one ms share a row"),
        ('{ field = "U" }, ' + TIME, 3, "ties: two records with the same U within one ms"),
        ('{ hash = "md5", of = [{ time = "T", width = 13 }] }', 3, "ties"),
    ],
)
def test_hot_spots_and_ties_are_warned_of(key: str, line: int, text: str) -> None:
    declaration = load(
        f'[layout.b]\ntable = "B"\nkey = [{key}]\ncolumns = {{ family = "f", fields = ["X"] }}', "t.toml"
    )
    assert any(w.startswith(f"t.toml line {line}: ") and text in w for w in declaration.warnings)


@pytest.mark.parametrize("remedy", ['{ salt = ["T"], buckets = 3 }', '{ field = "U" }'])
def test_remedied_hot_spots_are_not_warned_of(remedy: str) -> None:
    key = f'{remedy}, {TIME}, {{ suffix = "payload" }}'
    declaration = load(
        f'[layout.b]\ntable = "B"\nkey = [{key}]\ncolumns = {{ family = "f", fields = ["X"] }}', "t"
    )
    assert declaration.warnings == []


def test_rows_that_would_pass_100_mb_are_warned_of() -> None:
    fine = BUCKETS.replace('step = "15m"', 'step = "1ms", format = "be32"')
    (warning,) = load(fine, "t.toml").warnings
    assert warning.startswith("t.toml line 1: rows may grow to") or "line 3: rows may grow to" in warning
    seldom = fine.replace("[layout.day.columns]", 'estimate = { interval = "1m" }\n[layout.day.columns]')
    assert load(seldom, "t.toml").warnings == []


def test_lines_of_a_document() -> None:
    lines = TomlLines(SOUND)
    assert lines.line(("layout", "quote")) == 2
    assert [lines.line(("layout", "quote", "key", i)) for i in range(3)] == [6, 7, 8]
    assert lines.line(("layout", "quote", "columns", "fields", 1)) == 13
    assert lines.line(("layout", "quote", "read", 0, "range")) == 17
    assert lines.line(("layout", "quote", "read", 1)) == 18
    assert lines.line(("layout", "quote", "read", 1, "missing")) == 18
    assert lines.line(("nothing",)) == 1


def test_lengths_of_time() -> None:
    assert span_of("15m") == Span(900_000)
    assert span_of("3w") == Span(1_814_400_000)
    assert span_of("4294967296 ms") == Span(4_294_967_296)
    assert str(span_of("90m")) == "90m"
    assert (str(span_of("2mo")), span_of("2mo").months) == ("2mo", 2)
    for wrong in ("", "0d", "1.5h", "-1d", "d", "1y"):
        with pytest.raises(ValueError, match="no length of time"):
            span_of(wrong)


def test_the_specification_s_own_example_loads() -> None:
    """Section 5's document, with the parts that the examples do not have."""
    path = Path(__file__).resolve().parents[2] / "golden/tables/section5.toml"
    declaration = load(path.read_text(), path.name)
    assert [layout.name for layout in declaration.layouts] == [
        "quote",
        "current_metric",
        "sensor",
        "battery_salted",
    ]
    assert [tables.name for tables in declaration.day_tables] == ["sensor_day"]
    assert [warning.split(": ")[1] for warning in declaration.warnings] == ["ties", "ties"]
