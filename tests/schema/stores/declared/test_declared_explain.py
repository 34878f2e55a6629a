"""Explanations and heat: what is printed is what the tables really hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from timebeam.schema.stores.declared.language.explain_layout import (
    create_commands,
    example_row,
    explain,
    heat,
)
from timebeam.schema.stores.declared.language.load_declaration import load

EXAMPLES = Path(__file__).resolve().parents[4] / "examples/tables"


def explained(name: str) -> str:
    return explain(load((EXAMPLES / f"{name}.toml").read_text(), f"{name}.toml"))


def test_the_key_with_the_bytes_of_each_part() -> None:
    text = explained("market")
    assert "  key     NASDAQ#ZXZZT#1426535612156  (26 bytes)\n" in text
    assert (
        "            bytes 0-5     NASDAQ                   EXCHANGE: text, 6 bytes, padded with ' '\n"
        in text
    )
    assert "            bytes 13-25   1426535612156            QUOTETIME in ms: decimal, 13 digits\n" in text
    assert "            BID = 600.55  @ 1426535612156\n" in text


def test_reads_and_their_ranges() -> None:
    assert (
        "    by_symbol: by EXCHANGE, SYMBOL, QUOTETIME from .. to: one range\n"
        "            [NASDAQ#ZXZZT#1426532400000, NASDAQ#ZXZZT#1426536000000)\n"
    ) in explained("market")
    assert "    meter_day: by METER, TS: one range\n            row 0000987654#14264892\n" in explained(
        "sensor"
    )
    assert "    inventory: the whole table, one scan\n" in explained("metrics")
    assert "    all_users: by TS from .. to: 6 ranges, one per salt; merge them by time\n" in explained(
        "battery_salted"
    )


def test_warnings_and_their_absence() -> None:
    assert "\nNo warnings\n" in explained("market")
    text = explained("battery_naive")
    assert "Warnings\n  battery_naive.toml: layout.battery.key[1]: hot spot" in text


def test_create_commands_make_the_tables_of_the_declaration() -> None:
    declaration = load((EXAMPLES / "garden_month.toml").read_text(), "t")
    for layout, spec in zip(declaration.layouts, declaration.specs, strict=True):
        ((family, versions),) = spec.families.items()
        cbt, gcloud = create_commands(layout)
        assert cbt == f"cbt createtable {spec.name} families={family}:maxversions={versions}"
        assert (
            f'create {spec.name} --instance=INSTANCE --column-families="{family}:maxversions={versions}"'
            in gcloud
        )


def test_layouts_without_examples_explain_themselves() -> None:
    declaration = load(
        '[layout.t]\ntable = "T"\nkey = [{ salt = ["X"], buckets = 5 }, { field = "ABCDEF", width = 3 }, '
        '{ field = "N", type = "uint" }, { hash = "md5", of = ["Y"], encoding = "raw", length = 2 }, '
        '{ time = "TS", width = 13 }, { suffix = ["Z"] }]\n'
        'allow_overwrite = true\ncell_time = "revision"\nrevision = "REV"\n'
        '[layout.t.columns]\nfamily = "f"\nfields = [{ name = "I", encoding = "i64be" }]\n'
        'series = { value = "V", qualifier = { field = "metric" } }\n',
        "t",
    )
    text = explain(declaration)
    assert "hash: md5(Y), first 2 bytes" in text
    assert "TS + REV: a version per revision" in text
    assert "metric = 1" in text


def test_an_example_that_does_not_fit_is_told() -> None:
    text = (EXAMPLES / "market.toml").read_text().replace('EXCHANGE = "NASDAQ"', 'EXCHANGE = "TOO LONG"')
    with pytest.raises(ValueError, match=r"layout quote: the example is rejected.*longer than 6 bytes"):
        example_row(load(text, "t").layouts[0])


def test_heat_of_time_that_leads() -> None:
    times = np.arange(600, dtype=np.int64) * 6000
    hot = heat([b"%013d" % time for time in times.tolist()], times)
    assert hot.counts.shape == (30, 60)
    assert (hot.share, hot.is_hot, int(hot.counts.sum())) == (1.0, True, 600)
    assert (
        hot.verdict()
        == "600 writes in 60 minutes, 30 key ranges: the busiest takes 100% of a minute's writes: a hot spot"
    )


def test_heat_of_a_field_that_leads() -> None:
    """Ten hosts, each writing in turn: one in ten at most goes to one place."""
    times = np.arange(6000, dtype=np.int64) * 600
    keys = [b"host%d#%013d" % (i % 10, time) for i, time in enumerate(times.tolist())]
    spread = heat(keys, times)
    assert spread.share < 0.2
    assert not spread.is_hot


def test_heat_counts_every_write_in_its_range_and_minute() -> None:
    keys = [b"b", b"a", b"c", b"a"]
    found = heat(keys, np.array([0, 60_000, 59_999, 119_999], np.int64))
    assert list(found.starts) == [b"a", b"b"]
    assert found.counts.tolist() == [[0, 2], [2, 0]]
    assert "a sample of at least 4 minutes tells more" in found.verdict()


def test_heat_of_nothing_and_of_years() -> None:
    with pytest.raises(ValueError, match="no writes"):
        heat([], np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="the sample spans 365 days"):
        heat([b"a", b"b"], np.array([0, 365 * 86_400_000], np.int64))
