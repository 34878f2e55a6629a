"""`timebeam query` against the same query computed in plain Python from the points that were sent."""

from __future__ import annotations

import csv
import datetime
import json
import re
from pathlib import Path

import pytest

from tests.support.commands import Ran, ingest, timebeam
from tests.support.model import Point
from tests.support.plain.plain_query import END_MS, SENT, START_MS, Query, expected
from tests.support.points import BASE_S, FIRST_MS, put_file
from tests.support.stored import Store


@pytest.fixture(scope="module", params=[{}, {"salt_width": 1}], ids=["unsalted", "salted"])
def store(
    request: pytest.FixtureRequest, bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Store:
    """Tables with all points in them."""
    store = Store.create(bigtable, f"query{request.param_index}_", **request.param)
    folder = tmp_path_factory.mktemp("query")
    file = put_file(folder / "a.txt", SENT)
    ingest(folder, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", file)
    return store


def ask(
    store: Store, *flags: str, metric: str = "sys.cpu", start: str = str(START_MS), end: str = str(END_MS)
) -> Ran:
    names = {flag.partition("=")[0] for flag in flags}
    times = [
        f"--{name}={time}" for name, time in (("start", start), ("end", end)) if f"--{name}" not in names
    ]
    return timebeam("query", metric, *store.flags, *times, *flags)


@pytest.mark.parametrize(
    "query",
    [
        Query(aggregator="none"),
        Query(),
        Query(aggregator="avg"),
        Query(group_by=["host"], aggregator="max"),
        Query(group_by=["host", "core"], aggregator="min"),
        Query({"host": {"a"}}),
        Query({"host": {"a", "c"}}, aggregator="none"),
        Query({"core": set()}, aggregator="none"),
        Query({"core": set(), "host": {"b"}}, group_by=["core"], aggregator="avg"),
        Query({"core": {"0", "1"}, "host": {"a", "b"}}, group_by=["host"]),
        Query({"host": {"z"}}, aggregator="none"),
        Query(aggregator="none", downsample=(600_000, "avg")),
        Query(group_by=["core"], aggregator="sum", downsample=(600_000, "max")),
        Query(group_by=["host"], aggregator="avg", downsample=(3_600_000, "sum")),
        Query({"host": {"a", "b"}}, aggregator="max", downsample=(60_000, "count")),
        Query(aggregator="sum", downsample=(47_000, "min")),
    ],
    ids=lambda query: " ".join(query.flags()),
)
def test_answers_are_those_of_a_plain_computation(store: Store, query: Query) -> None:
    ran = ask(store, *query.flags(), "--output=json-ms")
    results = json.loads(ran.out)
    assert (ran.code, bool(ran.err)) == (0, not results)
    assert {result["metric"] for result in results} <= {"sys.cpu"}
    found = [(result["tags"], result["aggregateTags"], result["dps"]) for result in results]
    wanted = expected(query)
    assert [result[:2] for result in found] == [result[:2] for result in wanted]
    for (_, _, dps), (_, _, wanted_dps) in zip(found, wanted, strict=True):
        assert dps == pytest.approx(wanted_dps, rel=1e-12, abs=1e-9)
    assert wanted or query.filters == {"host": {"z"}}


def test_json_is_in_seconds(store: Store) -> None:
    """Of the points of one second the last one shows, as with most readers of OpenTSDB's answers."""
    ran = ask(store, "--aggregator=none", "--tag", "host=a", "--tag", "core=0", "--output=json")
    ((_, _, wanted),) = expected(Query({"host": {"a"}, "core": {"0"}}, aggregator="none"))
    assert json.loads(ran.out)[0]["dps"] == {time[:-3]: value for time, value in wanted.items()}


def test_csv_holds_every_point(store: Store) -> None:
    ran = ask(store, "--aggregator=none", "--output=csv")
    header, *rows = csv.reader(ran.out.splitlines())
    assert header
    assert len(rows) == sum(len(dps) for _, _, dps in expected(Query(aggregator="none")))


def test_a_table_is_what_is_shown_if_nothing_else_is_asked_for(store: Store) -> None:
    ran = ask(store, "--group-by", "host")
    assert ran.code == 0
    assert [f"host={host}" in ran.out for host in "abcz"] == [True, True, True, False]


def test_a_chart_is_written(store: Store, tmp_path: Path) -> None:
    ran = ask(store, "--group-by", "host", "--output", str(tmp_path / "chart.html"))
    assert (ran.code, ran.out) == (0, f"wrote {tmp_path / 'chart.html'}\n")
    text = (tmp_path / "chart.html").read_text()
    assert "host=a" in text
    assert f'"range":[{START_MS},{END_MS}]' in text


def test_a_range_without_points_is_an_empty_answer(store: Store) -> None:
    ran = ask(store, "--output=json", start="2000-01-01", end="2000-01-02")
    assert (ran.code, json.loads(ran.out)) == (0, [])


@pytest.mark.parametrize(
    ("metric", "flags", "name"),
    [
        ("sys.cpus", [], "'metrics': 'sys.cpus'"),
        ("東京", [], "'metrics': '東京'"),
        ("", [], "'metrics': ''"),
        ("sys.cpu", ["--tag", "hosts=*"], "'tagk': 'hosts'"),
        ("sys.cpu", ["--tag", "host=a|y"], "'tagv': 'y'"),
    ],
)
def test_unknown_names(store: Store, metric: str, flags: list[str], name: str) -> None:
    ran = ask(store, *flags, metric=metric)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.removesuffix("; did you mean 'sys.cpu'?\n").removesuffix(
        "; did you mean 'host'?\n"
    ).rstrip() == (f"timebeam query: No such name for {name}")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--aggregator=most"], "no aggregator 'most'"),
        (["--downsample=1x-avg"], "1x"),
        (["--downsample=1m-most"], "no function 'most'"),
        (["--tag", "host"], "--tag host: give KEY=VALUE"),
        (
            ["--tag", "host=near(a)"],
            "--tag host=near(a): Could not find a tag value filter of the type: near; for the value itself "
            "give host=literal_or(near(a))\n",
        ),
        (
            ["--tag", "host=regexp(()"],
            "--tag host=regexp((): Unsupported regular expression: missing ): '('\n",
        ),
        (["--rate", "counter"], "--rate counter: give rate, rate{counter}"),
        (["--rate", "rate{counter,many}"], "Max value of counter was not a number"),
        (["--tsuid", "000001"], "give METRIC or --tsuid, not both"),
        (["--output=chart.gif"], "unknown output"),
        (["--start=yesterday"], "'yesterday' is not a time"),
        (
            ["--start=1795219200000", "--end=2000-01-01"],
            "the range ends, at 2000-01-01T00:00:00Z, before it starts, at 2026-11-21T00:00:00Z\n",
        ),
        (
            ["--timezone=Berlin"],
            "argument --timezone: 'Berlin' is not a time zone: give one such as Europe/Berlin",
        ),
        (["--nonsense"], "--nonsense"),
        (["--output=none/chart.png"], "there is no folder 'none'"),
    ],
)
def test_wrong_usage(store: Store, flags: list[str], text: str) -> None:
    ran = ask(store, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err


def test_days_and_shown_times_are_those_of_the_time_zone(store: Store) -> None:
    flags = ["--downsample=1dc-count", "--aggregator=none", "--timezone=America/New_York"]
    ran = ask(store, *flags, "--output=table", start="0")
    assert ran.code == 0, ran.err
    shown = re.findall(r"^  (\S+)", ran.out, re.MULTILINE)
    assert shown
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT00:00:00-0[45]:00", text) for text in shown)
    day = shown[0][:10]
    again = ask(store, *flags, "--output=json", start=day)
    assert again.out == ask(store, *flags, "--output=json", start=shown[0]).out != "[]\n"
    (ms,) = {*map(int, json.loads(ask(store, *flags, "--output=json-ms", start="0").out)[0]["dps"])}
    assert ms // 1000 == int(datetime.datetime.fromisoformat(shown[0]).timestamp())


def test_series_by_tsuid(store: Store) -> None:
    keys = (row.key[store.layout.options.salt_width :] for row in store.rows())
    tsuid = min(key[:3] + key[7:] for key in keys).hex()
    period = [f"--start={START_MS}", f"--end={END_MS}", "--output=json"]
    ran = timebeam("query", *store.flags, *period, "--tsuid", tsuid)
    (result,) = json.loads(ran.out)
    tags = [f"--tag={key}={value}" for key, value in result["tags"].items()]
    by_name = ask(store, "--output=json", "--explicit-tags", *tags, metric=result["metric"])
    assert json.loads(by_name.out) == [result]
    for flags in (["--tag", "host=a"], ["--group-by", "host"], ["--explicit-tags"]):
        rejected = timebeam("query", *store.flags, *period, "--tsuid", tsuid, *flags)
        assert (rejected.code, rejected.out) == (2, "")
        assert "--tsuid names the series: leave out --tag, --explicit-tags and --group-by" in rejected.err


def test_several_words_after_an_option_are_wrong_with_a_hint(store: Store) -> None:
    ran = timebeam("query", "sys.cpu", *store.flags, "--start=1h-ago", "--tag", *("host=a", "core=0"))
    assert (ran.code, ran.out) == (2, "")
    assert "'core=0': --tag takes one value; repeat it: --tag host=a --tag core=0" in ran.err


def test_missing_tables_are_named(bigtable: tuple[str, str]) -> None:
    project, instance = bigtable
    place = [f"--project={project}", f"--instance={instance}"]
    ran = timebeam("query", "m", "--layout=opentsdb", "--table-prefix=none-", *place, "--start=1h-ago")
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(
        r"timebeam query: .*table none-tsdb.*timebeam tables create --layout opentsdb --table-prefix none-\n",
        ran.err,
    )


def test_what_cannot_be_read_is_skipped_and_said(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """A column cut short, a key of no length, a tag whose name is lost: the rest is answered."""
    store = Store.create(bigtable, prefix)
    series = ("m", (("host", "a"),))
    file = put_file(tmp_path / "a.txt", [Point(series, BASE_S + at, at, FIRST_MS) for at in range(3)])
    ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", file)
    ((key, *_),) = store.cells()
    store.set_cell(store.layout.data_table, key, "t", b"\x00\x70\x00\x83", b"\1\2")
    store.set_cell(store.layout.data_table, key + b"\1", "t", b"\0\0", b"\1")
    store.set_cell(store.layout.data_table, key[:-3] + b"\0\0\x99", "t", b"\0\0", b"\5")
    lost = {"host": "unknown-uid-000099"}
    for flags, tags in (([], [{"host": "a"}, lost]), (["--tag", "host=*"], [{"host": "a"}, lost])):
        ran = ask(store, *flags, "--aggregator=none", "--output=json", metric="m", start=str(BASE_S))
        assert ran.code == 0
        results = json.loads(ran.out)
        assert [result["tags"] for result in results] == tags
        assert results[0]["dps"] == {str(BASE_S + at): at for at in range(3)}
        assert f"skipped: row {key.hex()}: column 00700083" in ran.err
        assert "14 bytes" in ran.err


def test_a_tag_key_whose_name_is_lost_still_filters(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix)
    points = [Point(("m", (("host", host),)), BASE_S, 1, FIRST_MS) for host in "abc"]
    file = put_file(tmp_path / "a.txt", points)
    ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", file)
    store.remove_row(store.layout.options.uid_table, b"\0\0\1")  # of all three kinds
    ran = ask(
        store, "--tag", "host=b|c", "--aggregator=count", "--output=json", metric="m", start=str(BASE_S)
    )
    assert (ran.code, [result["dps"] for result in json.loads(ran.out)]) == (0, [{str(BASE_S): 2}])
