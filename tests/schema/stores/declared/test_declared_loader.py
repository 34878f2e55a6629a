"""What the loader rejects and warns of, each with its path in the declaration.

Format: docs/spec/bigtable-patterns.md §5 and §6.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from timebeam.schema.bits.times import Span, span_of
from timebeam.schema.stores.declared import filled_tables
from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load
from timebeam.schema.stores.declared.read_section import dotted

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


def rejected(text: str) -> list[str]:
    with pytest.raises(DeclarationError) as caught:
        load(text, "t.toml")
    return str(caught.value).splitlines()


def test_a_sound_declaration_has_no_warnings() -> None:
    declaration = load(SOUND, "t.toml")
    assert declaration.warnings == []
    assert [layout.table for layout in declaration.layouts] == ["QUOTE"]


@pytest.mark.parametrize(
    ("old", "new", "path", "text"),
    [
        # 1. every read is served
        (
            'equals = ["EXCHANGE", "SYMBOL"]',
            'equals = ["SYMBOL"]',
            "layout.quote.read[0]",
            "EXCHANGE comes before it in the key",
        ),
        (
            'equals = ["EXCHANGE", "SYMBOL"]',
            'equals = ["EXCHANGE"]',
            "layout.quote.read[0]",
            "SYMBOL comes before it in the key",
        ),
        ('range = "T"', 'range = "BID"', "layout.quote.read[0]", "BID is not a time part of the key"),
        (
            TIME,
            '{ hash = "md5", of = [{ time = "T", width = 13 }] }',
            "layout.quote.read[0]",
            "T is hashed, so that an interval of it lies all over the table",
        ),
        ("scan = true", "scan = false", "layout.quote.read[1]", "give equals and range, or scan = true"),
        # 2. order
        (
            TIME,
            '{ time = "T" }',
            "layout.quote.key[2]",
            "a decimal time without width does not sort: add width",
        ),
        (
            TIME,
            '{ time = "T", width = 13, reverse = 9223372036854775807 }',
            "layout.quote.key[2].reverse",
            "does not fit 13 digits",
        ),
        (TIME, '{ time = "T", format = "%d%m%Y" }', "layout.quote.key[2].format", "does not sort by time"),
        (
            TIME,
            '{ time = "T", format = "%Y%m%d%H", tz = "Europe/Paris" }',
            "layout.quote.key[2].format",
            "where clocks go back an hour",
        ),
        (TIME, '{ time = "T", format = "%Y%q" }', "layout.quote.key[2].format", "unknown placeholder %q"),
        (
            TIME,
            '{ time = "T", format = "be32", reverse = 4294967296 }',
            "layout.quote.key[2].reverse",
            "reverse must be from 1 to 4294967295",
        ),
        (
            TIME,
            '{ time = "T", bucket = "15x", width = 13 }',
            "layout.quote.key[2].bucket",
            "not a length of time",
        ),
        (
            TIME,
            '{ time = "T", bucket = "1d", tz = "Mars/Base", width = 13 }',
            "layout.quote.key[2].tz",
            "no time zone 'Mars/Base'",
        ),
        (
            TIME,
            '{ time = "T", bucket = "1h", tz = "Asia/Kolkata", width = 13 }',
            "layout.quote.key[2].tz",
            "tz matters for buckets",
        ),
        # 3. unambiguous split
        (
            'separator = "#"',
            'separator = ""',
            "layout.quote.key[1]",
            "SYMBOL has no fixed width, and no separator ends it",
        ),
        ('separator = "#"', 'separator = "##"', "layout.quote.separator", "longer than one byte"),
        (
            FIELDS,
            '{ field = "EXCHANGE", width = 6, pad = "#" }',
            "layout.quote.key[0]",
            "padded with the separator",
        ),
        (
            FIELDS,
            '{ field = "EXCHANGE", width = 6, on_overflow = "cut" }',
            "layout.quote.key[0].on_overflow",
            "choose one of reject",
        ),
        (
            FIELDS,
            '{ field = "E", type = "uint", width = 6, align = "left" }',
            "layout.quote.key[0].align",
            "a uint is aligned right",
        ),
        (FIELDS, '{ field = "SYMBOL", width = 6 }', "layout.quote.key", "a field is repeated in the key"),
        # 4. identity
        (
            "allow_overwrite = true",
            'identity = ["USER"]',
            "layout.quote.identity",
            "USER tells events apart, but is neither",
        ),
        (
            f"{TIME},\n]\nallow_overwrite = true",
            '{ time = "T", bucket = "1h", width = 13 },\n]',
            "layout.quote.key[2]",
            "overwrite each other",
        ),
        # 5. idempotence
        (
            "allow_overwrite = true",
            'cell_time = "server"',
            "layout.quote.cell_time",
            "the client does not retry such writes",
        ),
        (
            "allow_overwrite = true",
            'cell_time = "revision"',
            "layout.quote.revision",
            'revision = "FIELD" go together',
        ),
        # 6. sizes
        (FIELDS, '{ field = "EXCHANGE", width = 5000 }', "layout.quote.key", "Bigtable takes at most 4096"),
        ('"BID"', '"' + "B" * 20_000 + '"', "layout.quote.columns", "Bigtable takes 16384"),
        # salts, hashes, suffixes
        (FIELDS, '{ salt = ["SYMBOL"] }', "layout.quote.key[0]", "a salt needs buckets"),
        (
            FIELDS,
            '{ salt = ["SYMBOL"], buckets = 11 }',
            "layout.quote.key[0].width",
            "salts up to 10 do not fit 1 digits",
        ),
        (
            FIELDS,
            '{ salt = ["SYMBOL"], buckets = 2, since = [[5, 3], [4, 2]] }',
            "layout.quote.key[0].since",
            "must ascend",
        ),
        (
            FIELDS,
            '{ salt = ["SYMBOL"], buckets = 2, since = [[2026-01-01, 3]] }',
            "layout.quote.key[0].since",
            "since must be a list",
        ),
        (
            FIELDS,
            '{ hash = "md5", of = ["SYMBOL"], length = 33 }',
            "layout.quote.key[0].length",
            "md5 has 32 digits",
        ),
        (FIELDS, '{ suffix = "payload", width = 9 }', "layout.quote.key[0].width", "8 digits at most"),
        (FIELDS, "{ width = 6 }", "layout.quote.key[0]", "must have one of const, field"),
        # names and types
        ('table = "QUOTE"', "table = 7", "layout.quote.table", "table must be a string in quotes, not 7"),
        ('table = "QUOTE"', 'table = "a/b"', "layout.quote.table", "not a name that Bigtable accepts"),
        ('table = "QUOTE"', "", "layout.quote", "lacks table"),
        (
            'family = "MD"',
            'family = "M D"',
            "layout.quote.columns.family",
            "not a name that Bigtable accepts",
        ),
        (
            "allow_overwrite = true",
            "allow_overwite = true",
            "layout.quote.allow_overwite",
            "unknown option 'allow_overwite'",
        ),
        (FIELDS, '{ field = "EXCHANGE", wdth = 6 }', "layout.quote.key[0].wdth", "unknown option 'wdth'"),
        (
            'encoding = "f64be"',
            'encoding = "f16"',
            "layout.quote.columns.fields[1].encoding",
            "choose one of text, i64be",
        ),
        ('"BID"', '"ASK"', "layout.quote.columns.fields[1]", "two columns have the qualifier 'ASK'"),
        (
            "allow_overwrite = true",
            "gc = { max_versions = 0 }",
            "layout.quote.gc.max_versions",
            "max_versions must be a whole number of at least 1",
        ),
        (
            FIELDS,
            '{ salt = ["SYMBOL"], buckets = 2, since = 7 }',
            "layout.quote.key[0].since",
            "since must be a list",
        ),
        (
            FIELDS,
            '{ hash = "md5", of = [7] }',
            "layout.quote.key[0].of[0]",
            "7 is neither a field's name nor",
        ),
        (FIELDS, "7", "layout.quote.key", "key must be a list of tables"),
        ('name = "by_symbol"', "name = 7", "layout.quote.read[0].name", "must be a string in quotes, not 7"),
        ("scan = true", 'scan = "yes"', "layout.quote.read[1].scan", "scan must be true or false, not 'yes'"),
        (
            'equals = ["EXCHANGE", "SYMBOL"]',
            'equals = ["EXCHANGE", 7]',
            "layout.quote.read[0].equals",
            'equals must be a list of names, as ["A", "B"]',
        ),
        ('{ name = "ASK", encoding = "f64be" }', "7", "layout.quote.columns.fields[1]", "nor { name = ... }"),
        ('family = "MD"', "", "layout.quote.columns", "lacks family"),
        ("# a comment", "[tables]", "tables", "unknown section 'tables'"),
        ("# a comment", "[[[", "line 1", "not TOML"),
    ],
)
def test_rejections(old: str, new: str, path: str, text: str) -> None:
    (message,) = rejected(changed((old, new)))
    assert message.startswith(f"t.toml {path}: " if path.startswith("line") else f"t.toml: {path}: ")
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
    ("old", "new", "path", "text"),
    [
        (
            'within = "1d"',
            'within = "1h"',
            "layout.day.columns.series",
            "must be the bucket of the key's time, which is 1d",
        ),
        (
            'step = "15m"',
            'step = "5s"',
            "layout.day.columns.series.qualifier.step",
            "a step of 5s cannot be written as HHMM",
        ),
        (
            'time = "TS", within',
            'time = "T", within',
            "layout.day.columns.series.qualifier.time",
            "T is not a time of the key",
        ),
        (
            'qualifier = "ID"',
            'qualifier = "0015"',
            "layout.day.columns.fields[0]",
            "looks like the qualifier of a reading",
        ),
        (
            "[layout.day.columns.series]",
            '[layout.day.columns.map]\nsource = "m"\n[layout.day.columns.series]',
            "layout.day.columns.map",
            "cannot be told apart",
        ),
    ],
)
def test_rejections_of_columns(old: str, new: str, path: str, text: str) -> None:
    (message,) = rejected(BUCKETS.replace(old, new))
    assert message.startswith(f"t.toml: {path}: ")
    assert text in message


def test_map_templates_that_could_not_be_split() -> None:
    for template in ("{a}{b}", "plain", "{a}/{b}/{c}", "{a"):
        text = changed(
            (
                'fields = ["BID", { name = "ASK", encoding = "f64be" }]',
                f'map = {{ source = "m", qualifier = "{template}" }}',
            )
        )
        (message,) = rejected(text)
        assert message.startswith("t.toml: layout.quote.columns.map.qualifier: ")


def test_all_wrong_layouts_are_told_at_once() -> None:
    two = changed((TIME, '{ time = "T" }')) + SOUND.replace("quote", "other").replace(TIME, '{ time = "T" }')
    paths = [message.split(": ")[1] for message in rejected(two)]
    assert paths == ["layout.quote.key[2]", "layout.other.key[2]"]


def test_one_table_has_one_layout() -> None:
    (message,) = rejected(SOUND + SOUND.replace("quote", "other"))
    assert (
        message
        == "t.toml: layout.other.table: table QUOTE is also that of layout quote: one table has one layout"
    )


def test_salts_that_change_need_a_time() -> None:
    key = '{ salt = ["A"], buckets = 2, since = [[0, 3]] }, { field = "A" }'
    text = f'[layout.t]\ntable = "T"\nkey = [{key}]\ncolumns = {{ family = "f", fields = ["V"] }}\n'
    (message,) = rejected(text)
    assert message.startswith("t.toml: layout.t.key: since needs a time to compare with")
    assert load(text + 'event_time = "T"\n', "t").layouts[0].event == ("T", "ms")


def test_day_tables_need_a_layout_with_days() -> None:
    copy = '[layout.copy]\ntable = "T_{day:%Y%m%d}"\nsource = "SOURCE"\n'
    assert "is not a layout of this file" in rejected(BUCKETS + copy)[0]
    assert load(BUCKETS + copy.replace("SOURCE", "day"), "t").day_tables
    assert "has no day in its key" in rejected(SOUND + copy.replace("SOURCE", "quote"))[0]
    assert "must contain the day once" in rejected(BUCKETS + copy.replace("_{day:%Y%m%d}", ""))[0]


COPY = """
[layout.copy]
table = "T_{day:%Y%m%d}"
source = "day"
expire = "10d"
"""


@pytest.mark.parametrize("form", ["%Y%m%d", "%Y-%m-%d", "%d%m%Y", "%Y.%j", "d%dm%my%Y"])
def test_names_that_hold_the_whole_date(form: str) -> None:
    (tables,) = load(BUCKETS + COPY.replace("%Y%m%d", form), "t").day_tables
    first = datetime.date(1999, 12, 1)
    every = [first + datetime.timedelta(n) for n in range(800)]
    names = [filled_tables.name_of(tables.table, day) for day in every]
    assert len(set(names)) == len(every)
    assert [filled_tables.day_of(tables, name) for name in names] == every


@pytest.mark.parametrize(
    "form",
    ["%Y%m", "%d", "", "today", "%m%d", "%y%m%d", "%F", "%Y%m%d%Y", "%Y%m%d%d", "%Y%b%d", "%Y-W%W",
     "%Y%m%d%H", "%Y%%m%d", "%Y/%m/%d", "%-d%m%Y", "%Y%j%d", "%Y%m%d%"],
)  # fmt: skip
def test_names_that_do_not_hold_the_whole_date_are_rejected(form: str) -> None:
    (message,) = rejected(BUCKETS + COPY.replace("%Y%m%d", form))
    assert "layout.copy.table" in message


def test_names_of_days_are_names_of_tables() -> None:
    (message,) = rejected(BUCKETS + COPY.replace("T_{", "T" * 43 + "{"))
    assert "not a name that Bigtable accepts" in message
    assert load(BUCKETS + COPY.replace("T_{", "T" * 42 + "{"), "t").day_tables


@pytest.mark.parametrize(
    ("table", "other"),
    [("T_{day:%Y%m%d}", "T_20260101"), ("T_{day:%Y%m%d}", "T_19991231"), ("{day:%Y-%m-%d}", "2026-01-01")],
)
def test_no_day_has_the_name_of_a_declared_table(table: str, other: str) -> None:
    text = BUCKETS + COPY.replace("T_{day:%Y%m%d}", table) + SOUND.replace('"QUOTE"', f'"{other}"')
    (message,) = rejected(text)
    assert f"{other} is also the table of layout quote" in message
    assert load(text.replace(f'"{other}"', '"T_20261301"'), "t").day_tables  # no day


@pytest.mark.parametrize(
    ("one", "other", "good"),
    [
        ("T_{day:%Y%m%d}", "T_{day:%Y%m%d}", False),
        ("T_{day:%Y%m%d}", "T_{day:%Y%d%m}", False),
        ("T_{day:%Y%m%d}", "T_2{day:%m%d%Y}", True),
        ("T_{day:%Y%m%d}", "T_2{day:%Y%j}", False),
        ("T_{day:%Y%m%d}", "U_{day:%Y%m%d}", True),
    ],
)
def test_two_layouts_name_no_day_alike(one: str, other: str, good: bool) -> None:
    second = COPY.replace("layout.copy", "layout.second").replace("T_{day:%Y%m%d}", other)
    text = BUCKETS + COPY.replace("T_{day:%Y%m%d}", one) + second
    if good:
        assert len(load(text, "t").day_tables) == 2
    else:
        assert "layout copy" in rejected(text)[0]


@pytest.mark.parametrize("expire", ["10h", "36h", "90s"])
def test_tables_expire_after_whole_days(expire: str) -> None:
    (message,) = rejected(BUCKETS + COPY.replace('"10d"', f'"{expire}"'))
    assert "whole days" in message


@pytest.mark.parametrize(
    ("key", "path", "text"),
    [
        (TIME, "layout.b.key[0]", "hot spot"),
        ('{ const = "BATTERY" }, ' + TIME, "layout.b.key[1]", "(field promotion), or a salt"),
        (
            '{ salt = ["T"], buckets = 3 }, ' + TIME,
            "layout.b.key",
            "ties: two records within one ms share a row",
        ),
        ('{ field = "U" }, ' + TIME, "layout.b.key", "ties: two records with the same U within one ms"),
        ('{ hash = "md5", of = [{ time = "T", width = 13 }] }', "layout.b.key", "ties"),
    ],
)
def test_hot_spots_and_ties_are_warned_of(key: str, path: str, text: str) -> None:
    declaration = load(
        f'[layout.b]\ntable = "B"\nkey = [{key}]\ncolumns = {{ family = "f", fields = ["X"] }}', "t.toml"
    )
    assert any(w.startswith(f"t.toml: {path}: ") and text in w for w in declaration.warnings)


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
    assert warning.startswith("t.toml: layout.day.key: rows may grow to")
    seldom = fine.replace("[layout.day.columns]", 'estimate = { interval = "1m" }\n[layout.day.columns]')
    assert load(seldom, "t.toml").warnings == []


def test_paths_of_a_document() -> None:
    assert dotted(("layout", "quote", "key", 1, "width")) == "layout.quote.key[1].width"
    assert dotted(("layout", "a.b", "read", 0)) == 'layout."a.b".read[0]'


def test_lengths_of_time() -> None:
    assert span_of("15m") == Span(900_000)
    assert span_of("3w") == Span(1_814_400_000)
    assert span_of("4294967296 ms") == Span(4_294_967_296)
    assert str(span_of("90m")) == "90m"
    assert (str(span_of("2mo")), span_of("2mo").months) == ("2mo", 2)
    for wrong in ("", "0d", "1.5h", "-1d", "d", "1y"):
        with pytest.raises(ValueError, match="not a length of time"):
            span_of(wrong)


def test_the_specification_s_own_example_loads() -> None:
    """The document of docs/spec/bigtable-patterns.md §5, with the parts that the examples do not have."""
    path = Path(__file__).resolve().parents[3] / "golden/tables/section5.toml"
    declaration = load(path.read_text(), path.name)
    assert [layout.name for layout in declaration.layouts] == [
        "quote",
        "current_metric",
        "sensor",
        "battery_salted",
    ]
    assert [tables.name for tables in declaration.day_tables] == ["sensor_day"]
    assert [warning.split(": ")[2] for warning in declaration.warnings] == ["ties", "ties"]
