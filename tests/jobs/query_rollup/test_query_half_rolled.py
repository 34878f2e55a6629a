"""Ranges of which only a part is rolled up: every point once, from whatever table."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.cloud.bigtable.data import DeleteRangeFromColumn, ReadRowsQuery

from tests.support.budget import long_after
from tests.support.commands import timebeam
from tests.support.data_client import open_table
from tests.support.plain.rolled import (
    DAY,
    HOUR,
    Points,
    ask,
    both,
    config_file,
    interval,
    roll_up,
    same,
    send,
    with_tables,
)
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.schema.stores.opentsdb import keys

END = DAY + 24 * HOUR - 1
HOURLY = interval("1h", "1d")
GROUPS = [{"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum"]}]
IN_PARTS = ((1, 3), (5, 6), (9, 20))
"""The hours that are rolled up."""


@pytest.fixture(
    params=[{}, pytest.param({"salt_width": 1, "salt_buckets": 3}, marks=pytest.mark.long)],
    ids=["", "salted"],
)
def store(request: pytest.FixtureRequest, bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix, **request.param)


@pytest.fixture
def plain(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def points(hours: Iterable[int] = range(24)) -> Points:
    """Integers, at each hour's first and last second too."""
    rng = random.Random(7)
    return {
        (
            Series.of("m", {"host": f"h{number}", "dc": f"d{number % 2}"}),
            DAY + hour * HOUR + second,
        ): rng.randrange(99)
        for number in range(4)
        for hour in hours
        for second in (0, *rng.sample(range(1, HOUR - 1), 5), HOUR - 1)
    }


def expected(sent: Points, function: str, length: int) -> dict[str, dict[str, float]]:
    """By host, in plain Python."""
    found: dict[str, dict[int, list[float]]] = {}
    for (series, at), value in sent.items():
        host = dict(series.tags)["host"]
        found.setdefault(host, {}).setdefault(at // length * length, []).append(value)
    folds = {"sum": sum, "count": len, "avg": lambda values: sum(values) / len(values)}
    return {
        host: {str(at): float(folds[function](values)) for at, values in sorted(buckets.items())}
        for host, buckets in found.items()
    }


def by_host(out: str) -> dict[str, dict[str, float]]:
    return {one["tags"]["host"]: one["dps"] for one in json.loads(out)}


def remove_points(store: Store, hours: Iterable[int]) -> None:
    """Removes the raw rows of some hours of the day."""
    gone = {DAY + hour * HOUR for hour in hours}
    for row in store.rows():
        if keys.parse_key(store.layout.options, row.key).base_s in gone:
            store.remove_row(store.layout.data_table, row.key)


@pytest.mark.parametrize("group", [False, True], ids=["series", "groups"])
def test_a_day_rolled_up_in_parts(store: Store, tmp_path: Path, group: bool) -> None:
    """Where there are rollups the points may be gone; where there are none they are read, and once."""
    config = config_file(tmp_path, [HOURLY], GROUPS)
    with_tables(store, config)
    sent = points()
    send(store, tmp_path, sent)
    flags = ["--aggregator=zimsum", "--group-by=dc"] if group else ["--aggregator=none"]
    queries = [[*flags, f"--downsample={one}"] for one in ("1h-sum", "1h-count", "6h-sum", "1d-count")]
    wanted = [json.loads(ask(store, "m", DAY, END, *query).out) for query in queries]
    for first, end in IN_PARTS:
        roll_up(store, config, DAY + first * HOUR, DAY + end * HOUR)
    remove_points(store, (hour for part in IN_PARTS for hour in range(*part)))
    for query, before in zip(queries, wanted, strict=True):
        ran = ask(store, "m", DAY, END, *query, "--rollup-config", config, "--explain")
        same(json.loads(ran.out), before, exact=True, tags=not group)
        table = store.layout.options.table_prefix + ("preagg-1h" if group else "rollup-1h")
        served = [line.split(": ")[0] for line in ran.err.splitlines() if f": {table} (" in line]
        assert served == [" to ".join(f"2024-02-28T{hour:02}:00:00Z" for hour in part) for part in IN_PARTS]
    if not group:
        ran = ask(store, "m", DAY, END, "--aggregator=none", "--downsample=2h-avg", "--rollup-config", config)
        assert by_host(ran.out) == expected(sent, "avg", 2 * HOUR)


def test_what_is_younger_than_the_delay_comes_from_points(plain: Store, tmp_path: Path) -> None:
    """Rollups younger than delaySla are not read, though they are there."""
    half_past_twelve = DAY + 12 * HOUR + 1800
    delay = int(time.time()) - half_past_twelve
    config = config_file(tmp_path, [{**HOURLY, "delaySla": f"{delay}s"}])
    with_tables(plain, config)
    send(plain, tmp_path, points())
    roll_up(plain, config, DAY, DAY + 24 * HOUR)
    flags = ["--aggregator=none", "--downsample=1h-count"]
    found, wanted, said = both(plain, config, "m", DAY, END, *flags)
    same(found, wanted, exact=True)
    prefix = plain.layout.options.table_prefix
    assert said.splitlines() == [
        f"2024-02-28T00:00:00Z to 2024-02-28T12:00:00Z: {prefix}rollup-1h (rollups of 1h)",
        f"2024-02-28T12:00:00Z to 2024-02-29T01:00:00Z: {prefix}tsdb (the newest points, by delaySla)",
        "rollups are of the points of their last run: marked_since is not set",
    ]
    remove_points(plain, range(24))
    ran = ask(plain, "m", DAY, END, *flags, "--rollup-config", config)
    assert by_host(ran.out) == expected(points(range(12)), "count", HOUR)
    # The whole range is too young: points alone.
    said = ask(plain, "m", DAY + 12 * HOUR, END, *flags, "--rollup-config", config, "--explain").err
    assert "no rollups of series of 1h: none of the range is old enough\n" in said


def test_the_longest_interval_that_is_old_enough_is_read(plain: Store, tmp_path: Path) -> None:
    delay = int(time.time()) - (DAY + 12 * HOUR)
    config = config_file(tmp_path, [HOURLY, interval("1d", "1y", delaySla=f"{delay}s")])
    with_tables(plain, config)
    send(plain, tmp_path, points())
    roll_up(plain, config, DAY, DAY + 24 * HOUR)
    found, wanted, said = both(plain, config, "m", DAY, END, "--downsample=1d-sum")
    same(found, wanted, exact=True)
    assert "no rollups of series of 1d" in said
    assert "rollup-1h (rollups of 1h)" in said


def test_an_interval_that_lacks_a_number_comes_from_points(plain: Store, tmp_path: Path) -> None:
    """A sum that was rejected, or went: of all series, that no series is left out of its groups."""
    config = config_file(tmp_path, [HOURLY])
    with_tables(plain, config)
    send(plain, tmp_path, points())
    roll_up(plain, config, DAY, DAY + 24 * HOUR)
    table = open_table(plain.target, plain.layout.options.table_prefix + "rollup-1h")
    row, *_ = table.read_rows(ReadRowsQuery())
    table.mutate_row(row.row_key, DeleteRangeFromColumn("t", bytes([0, 0, 4 << 4 | 7])))
    for function in ("sum", "avg", "max"):
        found, wanted, said = both(plain, config, "m", DAY, END, f"--downsample=2h-{function}")
        same(found, wanted, exact=True)
        assert ("2024-02-28T04:00:00Z to 2024-02-28T05:00:00Z" in said) == (function != "max")


@pytest.mark.parametrize(("number", "lacking"), [(0, "sum"), (1, "count")])
def test_groups_of_which_another_tool_wrote_one_number(
    plain: Store, tmp_path: Path, number: int, lacking: str
) -> None:
    """What the rows of SUM lack is read elsewhere; those of COUNT are not looked at."""
    groups = [{"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum", "count"]}]
    config = config_file(tmp_path, [HOURLY], groups)
    with_tables(plain, config)
    send(plain, tmp_path, points())
    roll_up(plain, config, DAY, DAY + 24 * HOUR)
    table = open_table(plain.target, plain.layout.options.table_prefix + "preagg-1h")
    removed = 0
    for row in table.read_rows(ReadRowsQuery()):
        if ("_aggregate", "SUM") in plain.series(row.row_key).tags:
            columns = [cell.qualifier for cell in row.cells if cell.qualifier[0] == number]
            table.mutate_row(row.row_key, [DeleteRangeFromColumn("t", column) for column in columns])
            removed += len(columns)
    assert removed == 2 * 24
    for function in ("sum", "count"):
        flags = ["--aggregator=zimsum", "--group-by=dc", f"--downsample=1h-{function}"]
        found, wanted, said = both(plain, config, "m", DAY, END, *flags)
        same(found, wanted, exact=True, tags=False)
        assert ("(pre-aggregates of 1h, sum by dc)" in said) == (function != lacking), said


def test_what_cannot_be_read_is_said(plain: Store, tmp_path: Path) -> None:
    config = config_file(tmp_path, [HOURLY])
    with_tables(plain, config)
    send(plain, tmp_path, points([4]))
    roll_up(plain, config, DAY, DAY + 24 * HOUR)
    prefix = plain.layout.options.table_prefix
    row, *_ = open_table(plain.target, prefix + "rollup-1h").read_rows(ReadRowsQuery())
    plain.set_cell(
        prefix + "rollup-1h", row.row_key, "t", b"\x00" + (8 << 4 | 7).to_bytes(2, "big"), b"short"
    )
    flags = ["--aggregator=none", "--downsample=1h-sum", "--rollup-config", str(config)]
    ran = ask(plain, "m", DAY, END, *flags)
    assert by_host(ran.out) == expected(points([4]), "sum", HOUR)
    assert ran.err.startswith(f"skipped: row {row.row_key.hex()}: column 000087: 5 bytes")


@pytest.mark.parametrize("create", [False, True], ids=["missing", "empty"])
def test_tables_without_content(plain: Store, tmp_path: Path, create: bool) -> None:
    config = config_file(tmp_path, [HOURLY], GROUPS)
    if create:
        with_tables(plain, config)
    send(plain, tmp_path, points())
    flags = ["--aggregator=zimsum", "--group-by=dc", "--downsample=1h-sum"]
    found, wanted, said = both(plain, config, "m", DAY, END, *flags)
    same(found, wanted, exact=True)
    prefix = plain.layout.options.table_prefix
    rollups = f"{'nothing in' if create else 'no table'} {prefix}rollup-1h"
    assert said.splitlines()[1:] == [
        rollups,
        f"2024-02-28T00:00:00Z to 2024-02-29T01:00:00Z: {prefix}tsdb (points)",
    ]


@pytest.mark.parametrize("shared", long_after(1, [True, False]), ids=["one table", ""])
@pytest.mark.parametrize("tag_raw", [False, True], ids=["", "tagRaw"])
def test_tags_of_aggregates_are_not_shown(plain: Store, tmp_path: Path, tag_raw: bool, shared: bool) -> None:
    one = {**HOURLY, "preAggregationTable": HOURLY["table"]} if shared else HOURLY
    config = config_file(tmp_path, [one], GROUPS, tagRaw=tag_raw)
    with_tables(plain, config)
    send(plain, tmp_path, points())
    roll_up(plain, config, DAY, DAY + 12 * HOUR)
    for flags in (["--aggregator=none"], ["--aggregator=zimsum", "--group-by=dc"]):
        found, wanted, said = both(plain, config, "m", DAY, END, *flags, "--downsample=1h-sum")
        same(found, wanted, exact=True, tags="none" in flags[0])
        assert all("_aggregate" not in str(result) for result in found)
        assert said.count("of 1h") == 1
    found, wanted, said = both(plain, config, "m", DAY, END, "--tag", "host=h1|h2", "--downsample=6h-max")
    same(found, wanted, exact=True)


def test_rows_of_months_and_weeks_of_days(plain: Store, tmp_path: Path) -> None:
    """Over the end of a February of 29 days; intervals of 7 and of 30 days, counted from 1970."""
    config = config_file(tmp_path, [interval("1h", "1n"), interval("1d", "1y")])
    with_tables(plain, config)
    rng = random.Random(3)
    series = [Series.of("m", {"host": host}) for host in "abc"]
    start, end = DAY - 10 * 24 * HOUR, DAY + 12 * 24 * HOUR
    sent = {(rng.choice(series), rng.randrange(start, end)): rng.randrange(1000) for _ in range(800)}
    send(plain, tmp_path, sent)
    roll_up(plain, config, start, DAY + 8 * 24 * HOUR)
    for length, table in (("6h", "rollup-1h"), ("1d", "rollup-1d"), ("1w", "rollup-1d"), ("1n", "rollup-1d")):
        flags = ["--group-by=host", f"--downsample={length}-avg-nan"]
        found, wanted, said = both(plain, config, "m", start - 48 * HOUR, end - 5000, *flags)
        same(found, wanted, exact=True)
        assert f"{table} (rollups of" in said
        assert "(not in the other table)" in said


def test_more_gaps_than_reads(plain: Store, tmp_path: Path) -> None:
    """A series with a point every second hour: what lies between the gaps is read too, and not taken."""
    config = config_file(tmp_path, [interval("5m", "1d")])
    with_tables(plain, config)
    sent = {key: value for key, value in points(range(0, 24, 2)).items() if key[1] % HOUR < 1200}
    send(plain, tmp_path, sent)
    roll_up(plain, config, DAY, DAY + 24 * HOUR)
    found, wanted, said = both(plain, config, "m", DAY, END, "--group-by=host", "--downsample=10m-count")
    same(found, wanted, exact=True)
    assert "more parts" in said.splitlines()[-1]


def test_wrong_usage(plain: Store, tmp_path: Path) -> None:
    config = config_file(tmp_path, [HOURLY])
    query = ["query", "m", *plain.flags, "--start=1h-ago", "--rollup-config"]
    ran = timebeam(*query, tmp_path / "none.json")
    assert (ran.code, "cannot read the rollup configuration" in ran.err) == (2, True)
    ran = timebeam(*(flag.replace("opentsdb", "kairosdb") for flag in query), config)
    assert (ran.code, "layout kairosdb has no rollup tables; opentsdb has" in ran.err) == (2, True)
    ran = timebeam(*query, config, "--downsample=1h-sum")
    assert (ran.code, ran.err) == (1, "timebeam query: No such name for 'metrics': 'm'\n")
