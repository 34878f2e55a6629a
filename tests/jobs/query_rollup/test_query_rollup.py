"""Queries through rollups give what queries of the points give."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.support.budget import long_after
from tests.support.commands import timebeam
from tests.support.plain.rolled import (
    DAY,
    HOUR,
    Points,
    both,
    config_file,
    interval,
    roll_up,
    same,
    send,
    with_tables,
)
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.schema.core.points import Series
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.query.answer import Result, answer
from timebeam.schema.query.downsample import Downsampling, Fill
from timebeam.schema.query.question import Question
from timebeam.transforms.query.read_rollups import find_points, find_rolled_up

HOURS = 54
START, END = DAY + 5 * HOUR // 2, DAY + 50 * HOUR + 700
NOW_MS = (DAY + 100 * HOUR) * 1000
GROUPS = [
    {"metrics": ["sys.*"], "keepTags": ["dc"], "aggregators": ["sum", "min", "max"]},
    {"metrics": ["sys.*"], "keepTags": [], "aggregators": ["count", "sum"]},
]


def points(rng: random.Random) -> Points:
    """Integers and positive decimals; series without a tag, hours without points, ends and late starts."""
    found: Points = {}
    for number in range(8):
        tags = {"host": f"h{number}", "dc": f"d{number % 2}"}
        if number == 5:
            del tags["dc"]
        for hour in range(12 * (number == 3), HOURS - 20 * (number == 6)):
            if rng.random() < 0.3:
                continue
            for second in rng.sample(range(HOUR), 6):
                time = DAY + hour * HOUR + second
                found[Series.of("sys.int", tags), time] = rng.randrange(-1000, 100_000)
                found[Series.of("sys.float", tags), time] = rng.uniform(0.1, 1e6)
    return found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    return config_file(folder, [interval("5m", "1d"), interval("1h", "1n"), interval("1d", "1y")], GROUPS)


@pytest.fixture(scope="module")
def store(bigtable: tuple[str, str], config: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = with_tables(Store.create(bigtable, "rolled_"), config)
    send(made, tmp_path_factory.mktemp("points"), points(random.Random(1)))
    roll_up(made, config, DAY, DAY + 72 * HOUR)
    return made


def alike(found: list[Result], wanted: list[Result], exact: bool) -> None:
    assert wanted
    for one, other in zip(found, wanted, strict=True):
        assert (one.tags, one.aggregate_tags) == (other.tags, other.aggregate_tags)
        np.testing.assert_array_equal(one.times_ms, other.times_ms)
        np.testing.assert_allclose(one.values, other.values, rtol=0 if exact else 1e-12)


def test_a_configuration_of_a_tsd_with_the_id_5_is_read_and_not_written(
    store: Store, config: Path, tmp_path: Path
) -> None:
    content = json.loads(config.read_text())
    content["aggregationIds"]["first"] = 5
    with_5 = tmp_path / "with_5.json"
    with_5.write_text(json.dumps(content))
    for function, table in (("first", ""), ("sum", "rollup-1h")):
        through, raw, said = both(store, with_5, "sys.int", START, END, "--downsample", f"2h-{function}")
        same(through, raw, exact=True)
        assert ("under which no TSD reads rollups" in said) == (not table)
        assert table in said
    ran = timebeam(
        *("rollup", *store.flags, "--rollup-config", with_5, f"--start={DAY}", f"--end={DAY + 24 * HOUR}")
    )
    assert (ran.code, ran.out) == (2, "")
    assert "aggregationIds: first is not written under the id 5: TSDs read a qualifier of 3 bytes" in ran.err


@pytest.mark.parametrize(
    ("metric", "length", "share"),
    long_after(
        2,
        [
            *(("sys.int", length, 7) for length in ("90m", "2d")),
            *itertools.product(("sys.int", "sys.float"), ("90m", "2d", "10m"), (1,)),
        ],
    ),
)
def test_every_function_aggregator_and_grouping(
    store: Store, config: Path, metric: str, length: str, share: int
) -> None:
    """The series are read once for each function and then aggregated in every way, or every seventh."""
    turn = itertools.count()
    for function in ("sum", "count", "min", "max", "avg", "first", "last"):
        how = Downsampling.parse(f"{length}-{function}")
        asked = Question(metric, {}, (), "none", how, START * 1000, END * 1000)
        through = find_rolled_up(store.target, store.layout, read_config(str(config)), asked, NOW_MS)
        raw = find_points(store.target, store.layout, asked)
        assert "rollups of" in "".join(through.explained)
        assert not through.corruption
        exact = metric == "sys.int" or function not in ("sum", "avg")
        ways = [(Fill.NONE, by) for by in ([], ["dc"], ["dc", "host"])] + [(fill, ["dc"]) for fill in Fill]
        for (fill, by), name in itertools.product(ways, (*AGGREGATORS, "none")):
            if next(turn) % share:
                continue
            filled = dataclasses.replace(how, fill=fill)
            question = dataclasses.replace(asked, group_by=by, aggregator=name, downsampling=filled)
            found, wanted = answer(question, through.series), answer(question, raw.series)
            alike(found, wanted, exact)


@pytest.mark.parametrize(
    ("length", "table"),
    [
        ("5m", "rollup-5m"),
        ("15m", "rollup-5m"),
        ("1h", "rollup-1h"),
        ("36h", "rollup-1h"),
        ("2d", "rollup-1d"),
    ],
)
def test_the_longest_interval_that_divides_is_read(
    store: Store, config: Path, length: str, table: str
) -> None:
    found, wanted, said = both(store, config, "sys.int", START, END, f"--downsample={length}-max")
    same(found, wanted, exact=True)
    assert f"{store.layout.options.table_prefix}{table} (rollups of " in said


@pytest.mark.parametrize("fill", ["nan", "null", "zero"])
def test_fills_and_filters(store: Store, config: Path, fill: str) -> None:
    flags = ["--tag", "host=h1|h2|h6", "--tag", "dc=*", "--group-by", "host", f"--downsample=1h-avg-{fill}"]
    found, wanted, said = both(store, config, "sys.float", START, END, *flags)
    same(found, wanted, exact=False)
    assert "rollups of 1h" in said


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "no rollups: the query has no downsampling"),
        (["--downsample=7m-sum"], "no rollups of series: 420000 ms are not a multiple"),
        (["--downsample=90s-sum"], "no rollups of series: 90000 ms are not a multiple"),
        (["--downsample=0all-sum"], "no rollups: 0all has no intervals"),
        (["--downsample=1h-median"], "no rollups: median cannot be computed"),
    ],
)
def test_what_rollups_cannot_serve_is_read_from_points(
    store: Store, config: Path, flags: list[str], why: str
) -> None:
    found, wanted, said = both(store, config, "sys.float", START, END, *flags)
    same(found, wanted, exact=True)
    assert why in said
    assert said.endswith(f"{store.layout.data_table} (points)\n")


@pytest.mark.parametrize(
    ("flags", "table"),
    [
        (["--aggregator=zimsum", "--group-by=dc", "--downsample=1h-sum"], "preagg-1h"),
        (["--aggregator=zimsum", "--group-by=dc", "--downsample=1d-count"], "preagg-1d"),
        (["--aggregator=mimmax", "--group-by=dc", "--downsample=6h-max"], "preagg-1h"),
        (["--aggregator=mimmin", "--tag", "dc=d1", "--downsample=5m-min"], "preagg-5m"),
        (["--aggregator=max", "--tag", "dc=*", "--downsample=1h-max-nan"], "preagg-1h"),
        (["--aggregator=sum", "--group-by=dc", "--downsample=1h-sum-zero"], "preagg-1h"),
        (["--aggregator=pfsum", "--group-by=dc", "--downsample=1h-count-null"], "preagg-1h"),
        (["--aggregator=zimsum", "--downsample=2h-count"], "preagg-1h"),
        (["--aggregator=zimsum", "--group-by=dc", "--downsample=2m-sum"], "preagg-1m"),
        (["--aggregator=zimsum", "--downsample=3m-count"], "preagg-1m"),
        # What would change the answer is read from rollups of series.
        (["--aggregator=sum", "--group-by=dc", "--downsample=1h-sum"], "rollup-1h"),
        (["--aggregator=max", "--group-by=dc", "--downsample=1h-max"], "rollup-1h"),
        (["--aggregator=max", "--group-by=dc", "--downsample=1h-max-zero"], "rollup-1h"),
        (["--aggregator=zimsum", "--group-by=dc", "--downsample=1h-max"], "rollup-1h"),
        (["--aggregator=avg", "--group-by=dc", "--downsample=1h-avg"], "rollup-1h"),
        (
            ["--aggregator=zimsum", "--group-by", "dc", "--group-by", "host", "--downsample=1h-sum"],
            "rollup-1h",
        ),
        (["--aggregator=zimsum", "--tag", "host=h1", "--downsample=1h-sum"], "rollup-1h"),
        (["--aggregator=none", "--downsample=1h-sum"], "rollup-1h"),
        (["--aggregator=mimmax", "--downsample=1h-max"], "rollup-1h"),
    ],
    ids=str,
)
@pytest.mark.parametrize("metric", ["sys.int", "sys.float"])
def test_pre_aggregates_where_the_query_allows_it(
    store: Store, config: Path, metric: str, flags: list[str], table: str
) -> None:
    found, wanted, said = both(store, config, metric, START, END, *flags)
    exact = metric == "sys.int" or not {"sum", "avg"}.intersection(flags[-1].split("-"))
    same(found, wanted, exact=exact, tags=table.startswith("rollup"))
    assert f"{store.layout.options.table_prefix}{table} (" in said
    if table.startswith("preagg"):
        assert [one["tags"] for one in found] == [
            {key: value for key, value in one["tags"].items() if key == "dc"} if "dc" in str(flags) else {}
            for one in wanted
        ]
