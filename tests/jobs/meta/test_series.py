"""`timebeam series` and `timebeam suggest` against a search of the points by Python's own means."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.meta.meta_tables import meta_name, tsuid_of, with_meta
from tests.support.any_store import AnyStore
from tests.support.commands import Ran, timebeam
from tests.support.model import SeriesName
from tests.support.stored import Store
from timebeam.schema.stores.opentsdb.options import Names

SERIES: list[SeriesName] = [
    *[
        (metric, (("dc", dc), ("host", host)))
        for metric in ("sys.cpu.user", "sys.cpu.sys", "sys.mem", "sys.größe", "other", "Sys.cpu.x")
        for dc, host in (("lga", "web01"), ("lga", "web02"), ("sjc", "db1"))
    ],
    ("sys.cpu.user", (("core", "0"), ("host", "web01"))),
    ("äußerst", (("host", "münchen"),)),
    ("ÿ.last", (("host", "ÿÿ"),)),
]

SEARCHES: list[tuple[str, list[str]]] = [
    ("*", []),
    ("sys.cpu.*", []),
    ("sys.cpu.user", []),
    ("sys.cpu", []),
    ("*e", []),
    ("*.*.*", []),
    ("s*.*m*", []),
    ("ÿ*", []),
    ("ä*t", ["host=m*n"]),
    ("*", ["host=web*"]),
    ("sys.*", ["host=web*", "dc=lga|sjc"]),
    ("*", ["host=*"]),
    ("*", ["core=*"]),
    ("*", ["host=db1|*2"]),
    ("*", ["rack=*"]),
    ("", []),
]


def fill(flags: list[str], folder: Path, *more: str, series: list[SeriesName] = SERIES) -> None:
    path = folder / "points.json"
    points = [
        {"metric": metric, "timestamp": 1_767_225_600 + hour * 3600, "value": 1, "tags": dict(tags)}
        for metric, tags in series
        for hour in range(3)
    ]
    path.write_text(json.dumps(points))
    ran = timebeam(
        *("ingest", *flags, "--format=opentsdb-json", f"--input={path}", *more),
        *("--dead-letters", folder / "dead"),
    )
    assert ran.code == 0, ran.err


def plain(metric: str, tags: list[str]) -> set[SeriesName]:
    """The series that a search finds, by fnmatch."""

    def takes(series: SeriesName) -> bool:
        own = dict(series[1])
        return fnmatch.fnmatchcase(series[0], metric) and all(
            any(fnmatch.fnmatchcase(own.get(key, "\0"), one) for one in values.split("|")) and (key in own)
            for key, _, values in (tag.partition("=") for tag in tags)
        )

    return set(filter(takes, SERIES))


def found(ran: Ran, code: int = 0) -> list[dict[str, Any]]:
    assert ran.code == code, ran.err
    series: list[dict[str, Any]] = json.loads(ran.out)
    return series


def names(series: list[dict[str, Any]]) -> list[SeriesName]:
    return [(one["metric"], tuple(sorted(one["tags"].items()))) for one in series]


def tag_flags(tags: list[str]) -> list[str]:
    return [f"--tag={tag}" for tag in tags]


@pytest.fixture(scope="module")
def store(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = with_meta(bigtable, "series_", salt_width=1, salt_buckets=4)
    fill(store.flags, tmp_path_factory.mktemp("points"), "--auto-create-metrics", "--meta=full")
    return store


@pytest.mark.parametrize(("metric", "tags"), SEARCHES)
def test_series_of_the_meta_table_and_of_the_data_keys(store: Store, metric: str, tags: list[str]) -> None:
    uids = store.uids()
    for source in ("meta", "data", "auto"):
        ran = timebeam(
            "series", metric, *store.flags, "--output=json", f"--source={source}", *tag_flags(tags)
        )
        series = found(ran)
        assert sorted(names(series)) == sorted(plain(metric, tags))
        assert [one["tsuid"] for one in series] == [
            tsuid_of(uids, name).hex().upper() for name in names(series)
        ]
        table = store.layout.data_table if source == "data" else meta_name(store)
        assert ran.err.splitlines()[0].endswith(f"table {table}")
        assert ran.err.startswith(f"{len(series)} series, from ")
        assert {one["points"] for one in series} <= ({None} if source == "data" else {1})


def test_text_and_csv(store: Store) -> None:
    tsuid = tsuid_of(store.uids(), ("äußerst", (("host", "münchen"),))).hex().upper()
    ran = timebeam("series", "ä*", *store.flags)
    assert ran.out == f"{tsuid}  äußerst{{host=münchen}}\n"
    rows = list(csv.reader(io.StringIO(timebeam("series", "*", *store.flags, "--output=csv").out)))
    assert rows[0] == ["tsuid", "metric", "tags", "created", "points"]
    assert sorted((row[1], row[2]) for row in rows[1:]) == sorted(
        (metric, " ".join(f"{key}={value}" for key, value in tags)) for metric, tags in SERIES
    )
    assert timebeam("series", "none", *store.flags, "--output=json").out == "[\n]\n"


@pytest.mark.parametrize("variant", ["opentsdb", "heroic", "kairosdb-milliseconds"])
def test_a_spreadsheet_takes_no_guarded_name_for_a_formula(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    """Metrics and tags that begin with each of the four characters, and one that begins with none."""
    more = {"names": Names.ESCAPE} if variant == "opentsdb" else {}
    store = AnyStore.create(bigtable, prefix, variant, **more)
    formulas: list[SeriesName] = [(f"{start}1+1", ((f"{start}k", "v"),)) for start in "=+-@"]
    fill(store.flags, tmp_path, "--auto-create-metrics", series=[*formulas, ("a=1", (("k", "=v"),))])

    def listed(*flags: str) -> set[tuple[str, str]]:
        ran = timebeam("series", "*", *store.flags, "--output=csv", *flags)
        return {(metric, tags) for _, metric, tags, _, _ in csv.reader(ran.out.splitlines()[1:])}

    names = [(metric, f"{key}={value}") for metric, ((key, value),) in formulas]
    assert listed() == {*names, ("a=1", "k==v")}
    assert listed("--csv-guard") == {*((f"'{metric}", f"'{tags}") for metric, tags in names), ("a=1", "k==v")}


def test_without_a_meta_table_the_data_keys_are_read(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix)
    fill(store.flags, tmp_path, "--auto-create-metrics")
    ran = timebeam("series", "*", *store.flags, "--output=json")
    assert sorted(names(found(ran))) == sorted(SERIES)
    assert f"the keys of the data table {prefix}tsdb" in ran.err
    missing = timebeam("series", "*", *store.flags, "--source=meta")
    assert (missing.code, missing.err.rstrip().endswith("--meta")) == (1, True)
    store = with_meta(bigtable, prefix)  # there now, and empty
    assert f"the keys of the data table {prefix}tsdb" in timebeam("series", "*", *store.flags).err


def test_rows_that_cannot_be_read_are_said(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = with_meta(bigtable, prefix)
    fill(store.flags, tmp_path, "--auto-create-metrics", "--meta=full")
    metric = store.uids()["metrics", "sys.mem"]  # type: ignore[index]
    store.set_cell(meta_name(store), metric + bytes(5), "name", b"ts_ctr", bytes(8))
    store.set_cell(meta_name(store), metric + b"\1\1\1\1\1\1", "name", b"ts_ctr", bytes(8))
    store.set_cell(meta_name(store), tsuid_of(store.uids(), SERIES[6]), "name", b"ts_meta", b"?")
    ran = timebeam("series", "sys.m*", *store.flags, "--output=json")
    assert len(found(ran, 1)) == 2
    assert ran.err.count("skipped: row") == 3
    assert "has no name" in ran.err


@pytest.mark.parametrize("variant", ["heroic", "heroic-readable", "kairosdb-milliseconds"])
def test_other_layouts_by_their_keys(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    fill(store.flags, tmp_path)
    for metric, tags in SEARCHES:
        ran = timebeam("series", metric, *store.flags, "--output=json", *tag_flags(tags))
        assert sorted(names(found(ran))) == sorted(plain(metric, tags))
    ran = timebeam("series", "*", *store.flags, "--source=data")
    assert (ran.code, "has no metadata; opentsdb has" in ran.err) == (2, True)


@pytest.mark.parametrize("most", [None, 1, 3])
@pytest.mark.parametrize("prefix_text", ["", "s", "sys.cpu.", "sys.cpu.user", "ä", "ÿ", "z", "S"])
@pytest.mark.parametrize("kind", ["metrics", "tagk", "tagv"])
def test_suggest(store: Store, kind: str, prefix_text: str, most: int | None) -> None:
    if most is not None and kind != "metrics":
        return
    known = {
        "metrics": {metric for metric, _ in SERIES},
        "tagk": {key for _, tags in SERIES for key, _ in tags},
        "tagv": {value for _, tags in SERIES for _, value in tags},
    }[kind]
    expected = sorted(
        (name for name in known if name.startswith(prefix_text)), key=lambda name: name.encode("latin-1")
    )[: most or 25]
    flags = [*store.flags, *([f"--max={most}"] if most else [])]
    ran = timebeam("suggest", kind, prefix_text, *flags)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == expected
    if kind == "metrics" and not prefix_text:
        assert json.loads(timebeam("suggest", kind, *flags, "--output=json").out) == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["suggest", "metrics", "日"], "ISO-8859-1, which has no '日'"),
        (["series", "😀*"], "ISO-8859-1, which has no '😀'"),
        (["series", "*", "--tag=host=ł*"], "ISO-8859-1, which has no 'ł'"),
        (["series", "*", "--tag=ł=*"], "ISO-8859-1, which has no 'ł'"),
        (["series", "*", "--tag=host"], "give each key once"),
        (["suggest", "metric"], "invalid choice"),
        (["suggest", "metrics", "--max=0"], "not a whole number from 1 to"),
        (["series"], "METRIC"),
    ],
)
def test_wrong_usage(store: Store, arguments: list[str], text: str) -> None:
    ran = timebeam(*arguments, *store.flags)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_suggest_needs_a_table_of_names(bigtable: tuple[str, str], prefix: str) -> None:
    store = AnyStore.create(bigtable, prefix, "heroic")
    ran = timebeam("suggest", "metrics", *store.flags)
    assert (ran.code, "try `timebeam series`" in ran.err) == (2, True)
