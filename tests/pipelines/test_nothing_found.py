"""Commands that find nothing say why: no rows, rows that do not fit the options, or nothing asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import Ran, ingest, timebeam
from tests.support.model import Point
from tests.support.points import BASE_S, FIRST_MS, put_file

START, END = f"--start={BASE_S}", f"--end={BASE_S + 3600}"
NAMES = ("sys.cpu", "sys.load", "sys.net.bytes")


def filled(bigtable: tuple[str, str], prefix: str, folder: Path, variant: str) -> AnyStore:
    """Tables with a point of each metric."""
    store = AnyStore.create(bigtable, prefix, variant)
    points = [Point((name, (("host", "web01"),)), BASE_S, 1, FIRST_MS) for name in NAMES]
    file = put_file(folder / "a.txt", points)
    ingest(folder, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", file)
    return store


def commands(store: AnyStore, folder: Path, *layout: str) -> list[Ran]:
    """What the commands that read say."""
    config = folder / "rollups.json"
    config.write_text(
        json.dumps(
            {
                "aggregationIds": {"sum": 0, "count": 1},
                "intervals": [
                    {
                        "table": "tsdb",
                        "preAggregationTable": "tsdb-preagg",
                        "interval": "1m",
                        "rowSpan": "1h",
                        "defaultInterval": True,
                    },
                    {"table": "r1h", "preAggregationTable": "p1h", "interval": "1h", "rowSpan": "1d"},
                ],
            }
        )
    )
    flags = [*store.flags, *layout]
    rolled = ["--rollup-config", config]
    timebeam("tables", "create", *flags, *rolled)
    letters = ["--dead-letters", folder / "dead"]
    sink = [f"--to-table-prefix={store.options['table_prefix']}to-"]
    timebeam("tables", "create", "--layout=heroic", *store.place, f"--table-prefix={sink[0].split('=')[1]}")
    source = [flag.replace("--layout", "--from") for flag in flags]
    return [
        timebeam("query", "sys.load", *flags, START, END),
        timebeam("series", "*", "--source=data", *flags),
        timebeam("copy", *source, "--to=heroic", *sink, START, END, *letters),
        timebeam("rollup", *flags, *rolled, START, END, *letters),
        timebeam("compact", *flags, START, END),
    ]


def test_empty_tables_are_called_empty(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    for ran in commands(store, tmp_path)[1:]:  # `query` knows no name
        assert (ran.code, ran.err.splitlines()[-1]) == (0, f"nothing found: table {prefix}tsdb is empty")


def test_rows_of_another_salt_are_seen(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = filled(bigtable, prefix, tmp_path, "opentsdb")
    ran_query, ran_series, ran_copy, ran_rollup, ran_compact = commands(store, tmp_path, "--set=salt_width=1")
    for ran in (ran_query, ran_copy, ran_rollup, ran_compact):
        last = ran.err.splitlines()[-1]
        assert last.startswith(f"nothing found: table {prefix}tsdb has rows, but none of the first 3 fits")
    assert "0 series" in ran_series.err or "skipped" in ran_series.err


@pytest.mark.parametrize("variant", ["opentsdb-salted", "heroic", "heroic-readable", "kairosdb-legacy"])
def test_rows_that_fit_and_are_not_asked_for(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = filled(bigtable, prefix, tmp_path, variant)
    ran = timebeam("query", "sys.load", *store.flags, "--start=2001-01-01", "--end=2001-01-02")
    assert (ran.code, ran.out) == (0, "no points\n")
    assert "has rows that fit these options; none matches the selection" in ran.err
    ran = timebeam("query", "sys.load", *store.flags, START, END, "--group-by", "host", "--group-by", "dc")
    assert ran.code == 0
    assert ran.err == (
        "nothing found: no series has the tag key 'dc' of --group-by; the series that match have host\n"
    )
    ran = timebeam("query", "sys.load", *store.flags, START, END)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("variant", ["opentsdb", "heroic", "heroic-readable", "kairosdb-legacy"])
def test_a_misspelt_metric_has_near_names(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = filled(bigtable, prefix, tmp_path, variant)
    for name, near in (
        ("sys.laod", "'sys.load'"),
        ("SYS.CPU", "'sys.cpu'"),
        ("ys.net.bytes", "'sys.net.bytes'"),
    ):
        ran = timebeam("query", name, *store.flags, START, END)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.endswith(f"; did you mean {near}?\n"), ran.err
    assert "did you mean" not in timebeam("query", "東京", *store.flags, START, END).err


def test_a_misspelt_tag_has_near_names(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = filled(bigtable, prefix, tmp_path, "opentsdb")
    for tag, error in (
        ("hosts=*", "No such name for 'tagk': 'hosts'; did you mean 'host'?"),
        ("host=web1", "No such name for 'tagv': 'web1'; did you mean 'web01'?"),
    ):
        ran = timebeam("query", "sys.load", *store.flags, START, END, "--tag", tag)
        assert (ran.code, ran.err) == (1, f"timebeam query: {error}\n")
