"""Declared tables read as points, against the models of `plain_points`."""

from __future__ import annotations

import json
import random

import pytest
from memory_tables import MemoryTables
from plain_points import (
    EVER,
    EXAMPLES,
    PATTERNS,
    START_MS,
    declared,
    expected,
    points_of,
    read,
    sensor_records,
    stored,
)

from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Finding, Selected, Selection, Severity, UnknownNameError
from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load


@pytest.mark.parametrize("name", PATTERNS)
def test_points_are_those_of_the_model(name: str) -> None:
    """All of them, and those of random selections by metric, tags and time."""
    rng = random.Random(name)
    layout, pattern = declared(name), PATTERNS[name]
    records = pattern.records(rng)
    tables = stored(layout, records)
    everything = expected(pattern, records, EVER)
    assert read(layout, tables, EVER) == everything
    series = sorted({series for series, _ in everything})
    times_ms = sorted(time_ms for _, time_ms in everything)
    sizes = set()
    for _ in range(60):
        metric, tags = rng.choice(series)
        start_ms, end_ms = sorted(rng.choices([0, 1 << 46, *times_ms], k=2))
        if rng.random() < 0.2:
            end_ms = start_ms
        filters = {
            key: frozenset(rng.choice([[], [value], [value, "other"], ["x" * 300]]))
            for key, value in rng.sample(tags, rng.randrange(len(tags) + 1))
        }
        selection = Selection(rng.choice([None, metric, metric]), filters, start_ms, end_ms)
        found = read(layout, tables, selection)
        assert found == expected(pattern, records, selection), selection
        sizes.add(len(found))
    assert len(sizes) > 5


def test_the_example_as_it_is_written() -> None:
    layout = declared("market")
    lines = (EXAMPLES / "market.jsonl").read_text().splitlines()
    tables = stored(layout, [json.loads(line) for line in lines])
    tags = {"EXCHANGE": frozenset(["NASDAQ"]), "SYMBOL": frozenset(["ZXZZT"])}
    found = read(layout, tables, Selection("quote.ASK", tags, 1426535612156, 1426535612156))
    name = ("quote.ASK", (("EXCHANGE", "NASDAQ"), ("SYMBOL", "ZXZZT")))
    assert found == {(name, 1426535612156): 600.60}
    (scan,) = tables.scans
    assert scan.ranges == [(b"NASDAQ#ZXZZT#1426535612156", b"NASDAQ#ZXZZT#1426535612156\0")]
    assert scan.columns == ("MD", b"ASK", b"ASK\0")


@pytest.mark.parametrize(
    ("name", "metric", "tags", "rows_read"),
    [
        ("market", "quote.BID", {"EXCHANGE": ["NYSE"], "SYMBOL": ["F"]}, 2),
        ("metrics", "server.CPU/x", {"HOSTNAME": ["server1"]}, 2),
        ("sensor", "meter.reading", {"METER": ["7"]}, 1),
        ("promoted", "battery.percentage", {"USER": ["Jo"]}, 2),
        ("reverse", "battery.percentage", {"USER": ["Jo"]}, 2),
        ("naive", "battery.percentage", {"USER": ["Jo"]}, 2),
        ("salted", "battery.percentage", {"USER": ["Jo"]}, 2),
    ],
)
def test_a_query_that_the_key_serves_reads_its_rows_only(
    name: str, metric: str, tags: dict[str, list[str]], rows_read: int
) -> None:
    layout, pattern = declared(name), PATTERNS[name]
    records = pattern.records(random.Random(name))
    tables = stored(layout, records)
    filters = {key: frozenset(values) for key, values in tags.items()}
    times = sorted(
        time_ms for _, time_ms in expected(pattern, records, Selection(metric, filters, 0, 1 << 46))
    )
    first, last = times[0], times[min(rows_read, len(times)) - 1]
    selection = Selection(metric, filters, first, last)
    assert layout.full_scan(selection) == ""
    assert len(read(layout, tables, selection)) == rows_read
    assert tables.rows_read <= 3 * rows_read


@pytest.mark.parametrize(
    ("name", "metric", "needs"),
    [("market", "quote.BID", "EXCHANGE"), ("metrics", "server.CPU/x", "HOSTNAME"), ("sensor", None, "METER")],
)
def test_a_query_without_the_front_of_the_key_is_a_full_scan(
    name: str, metric: str | None, needs: str
) -> None:
    reason = declared(name).full_scan(Selection(metric, {}, START_MS, START_MS + 5))
    assert needs in reason
    assert "scans all" in reason


def test_unknown_names() -> None:
    market = declared("market")
    with pytest.raises(UnknownNameError) as caught:
        list(market.select(Selection("quote.BIT", {}, 0, 1), MemoryTables([])))
    assert caught.value.near()[0] == "quote.BID"
    with pytest.raises(UnknownNameError) as caught:
        list(market.select(Selection("quote.BID", {"SYMBOLS": frozenset()}, 0, 1), MemoryTables([])))
    assert caught.value.near() == ["SYMBOL"]


def changed(row: Row, **fields: bytes) -> Row:
    """A row with readings that are changed."""
    return row._replace(
        cells=[cell._replace(**fields) if cell.qualifier != b"ID" else cell for cell in row.cells]
    )


def test_rows_that_cannot_be_read_are_findings() -> None:
    layout = declared("sensor")
    tables = stored(layout, sensor_records(random.Random(3)))
    good = [*tables.all("SENSOR")]
    bad_key = good[0]._replace(key=b"0000000007#1")
    bad_column = changed(good[1], qualifier=b"99999")
    beyond = changed(good[2], value=b"\xff")
    selected = list(layout.select(EVER, MemoryTables([bad_key, bad_column, beyond, *good[3:]])))
    findings = [each for each in selected if isinstance(each, Finding)]
    assert [(each.severity, each.key) for each in findings] == [(Severity.CORRUPT, bad_key.key)]
    decoded = layout.decode_rows([each for each in selected if isinstance(each, Selected)])
    assert {row.key for row, _ in decoded.corruption} == {bad_column.key, beyond.key}
    rest = layout.decode_rows(
        [each for each in layout.select(EVER, MemoryTables(good[3:])) if isinstance(each, Selected)]
    )
    assert dict(points_of(decoded.batch)) == dict(points_of(rest.batch))


POINTS = """
[layout.t]
table = "T"
key = [{ field = "A" }, { salt = ["B"], buckets = 3 }, { time = "TS", width = 13 }]
allow_overwrite = true
[layout.t.columns]
family = "f"
fields = ["B", "C", "D"]
[layout.t.points]
"""
OTHER = POINTS.replace("layout.t", "layout.u").replace('"T"', '"U"')


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ('metric = "m"', "lacks value"),
        ('value = "C"', "lacks metric"),
        ('metric = "m"\nvalue = "X"', "X is not a column of this layout"),
        ('metric = "m"\nvalue = ["C", "C"]', "a list of different ones"),
        ('metric = "m"\nvalue = ["C", "D"]', "several columns of a row would be one metric"),
        ('metric = "{X}"\nvalue = "C"', "{X} is not a field of the key"),
        ('metric = "{A}.{column}"\nvalue = "C"', "one placeholder at most"),
        ('metric = "m"\nvalue = "C"\ntags = []', "A tells series apart"),
        ('metric = "m"\nvalue = "C"\ntags = ["A", "X"]', "X is not a field"),
        ('metric = "m"\nvalue = "C"\ntags = ["A", "A"]', "given twice"),
        ('metric = "m"\nvalue = "C"\ntags = ["A"]', "the salt in the key is of B"),
        ('metric = "m"\nvalue = "C"\ntags = ["A", "B"]\ntime = "X"', "the time of this layout is TS"),
        ('metric = "m"\nvalue = "C"\ntags = ["A", "B"]\nunit = "s"', "unit"),
        (
            f'metric = "{{A}}"\nvalue = "C"\ntags = ["B"]{OTHER}metric = "u"\nvalue = "C"\ntags = ["A", "B"]',
            "may have points of the same metric",
        ),
    ],
)
def test_points_that_would_mix_series_are_rejected(points: str, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        load(POINTS + points, "t.toml")
    assert message in str(caught.value)
    assert "t.toml: layout." in str(caught.value)


def test_metrics_of_two_tables_may_begin_differently() -> None:
    points = 'metric = "t.{A}"\nvalue = "C"\ntags = ["B"]'
    others = 'metric = "u.{column}"\nvalue = ["C", "D"]\ntags = ["A", "B"]'
    assert len(load(f"{POINTS}{points}{OTHER}{others}", "t.toml").layouts) == 2
