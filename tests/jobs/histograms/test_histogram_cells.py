"""Histograms beside points: no command is harmed by them, `copy` carries them, `check` reports them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from tests.golden.cases import cases
from tests.support.commands import timebeam
from tests.support.inputs.annotations import A, load, notes, query, send
from tests.support.points import BASE_S
from tests.support.servers.golden_api import normal
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.columns.rewrite_row import compact_row

VALUES = {case.name: next(iter(case.cells))[2] for case in cases("histogram")}
CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {
            "table": "tsdb",
            "preAggregationTable": "tsdb",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {"table": "hourly", "preAggregationTable": "hourly-agg", "interval": "1h", "rowSpan": "1d"},
    ],
}


@pytest.fixture(scope="module")
def plain(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Points, and an annotation of a series and a global one."""
    folder = tmp_path_factory.mktemp("plain")
    store = load(Store.create(bigtable, "histogram_points_"), folder)
    send(store, folder, {"tsuid": A, "startTime": BASE_S, "notes": "x"}, {"startTime": BASE_S, "notes": "y"})
    return store


def with_histograms(plain: Store, prefix: str) -> Store:
    """The same, and histograms of seconds and ms in the first hour of host=a, one of another codec."""
    store = Store.create((plain.target.project, plain.target.instance), prefix)
    store.copy(plain)
    key = bytes.fromhex(f"000001{BASE_S:08x}000001000001")
    for column, value in (
        (b"\x06\x00\x07", VALUES["s"]),
        (b"\x06\x00\x00\x1b\x5d", VALUES["big_counts"]),
        (b"\x06\x00\x08", b"\x09sketch"),
    ):
        store.set_cell(store.layout.data_table, key, "t", column, value)
    return store


@pytest.fixture
def store(plain: Store, prefix: str) -> Store:
    return with_histograms(plain, prefix)


def histograms(store: Store) -> set[tuple[bytes, bytes, int, bytes]]:
    return {cell for cell in store.cells() if len(cell[1]) in (3, 5) and cell[1][0] == 6}


def test_decoding_and_queries_pass_over_them(plain: Store, store: Store) -> None:
    assert store.points() == plain.points()
    for flags in (["--output=csv"], ["--output=json", "--group-by=host", "--downsample=30m-sum"]):
        assert query(store, *flags) == query(plain, *flags)


def test_check_reports_them(store: Store) -> None:
    ran = timebeam("check", *store.flags)
    assert ran.code == 0
    assert "the first of 1 rows with histograms: 1 of codec 9, 2 of codec 42" in ran.out
    assert ran.out.endswith("corrupt: 0; notes: 1\n")
    key = next(iter(histograms(store)))[0]
    store.set_cell(store.layout.data_table, key, "t", b"\x06\x00\x09", b"")
    ran = timebeam("check", *store.flags)
    assert ran.code == 1
    assert "histogram 060009: empty, so without the id of a codec" in ran.out


def test_compact_leaves_them(plain: Store, store: Store) -> None:
    """And annotations: of many cells, one remains, and what is no point."""
    key = bytes.fromhex(f"000001{BASE_S:08x}000001000001")
    store.set_cell(store.layout.data_table, key, "t", b"\x00\x50", b"\x09")
    before, points = histograms(store) | notes(store), store.points()
    day = datetime.datetime.fromtimestamp(BASE_S, datetime.UTC).date().isoformat()
    ran = timebeam("compact", *store.flags, "--day", day, "--summary=json")
    assert json.loads(ran.out)["rows_rewritten"] >= 1
    assert histograms(store) | notes(store) == before
    assert store.points() == points


@pytest.mark.parametrize("form", [Packing.COMPACTED, Packing.APPEND])
def test_a_row_of_nothing_else_is_not_compacted(form: Packing) -> None:
    row = Row(
        "tsdb", b"k", [Cell("t", b"\x06\x00\x07", 1, VALUES["s"]), Cell("t", b"\x01\x00\x00", 1, b"{}")]
    )
    assert compact_row(row, form, 10) is None


def test_rollups_pass_over_them(plain: Store, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "rollups.json"
    path.write_text(json.dumps(CONFIG))
    answers, dead = [], tmp_path / "dead"
    for one in (plain, store):
        day = datetime.datetime.fromtimestamp(BASE_S, datetime.UTC).date().isoformat()
        for command in (
            ["tables", "create", *one.flags, "--rollup-config", path],
            ["rollup", *one.flags, "--rollup-config", path, "--day", day, "--dead-letters", dead],
        ):
            ran = timebeam(*command)
            assert ran.code == 0, ran.err
        answers.append(query(one, "--downsample=1h-sum", "--rollup-config", str(path), "--output=csv").out)
    assert answers[0] == answers[1]


def test_query_shows_buckets_and_percentiles(store: Store) -> None:
    ran = query(store, "--histogram", "--output=json")
    assert "histogram 060008 of codec 09 is not a SimpleHistogram" in ran.err
    answer = {one["metric"]: one["dps"] for one in json.loads(ran.out)}
    assert answer["sys.load_0.0_1.75"] == {str(BASE_S + 7): 12}
    assert answer["sys.load_3.0_4.5"] == {str(BASE_S + 7): 5_000_000_000}
    assert answer["sys.load_UNDERFLOW"] == {
        str(BASE_S + 7): 128
    }  # of 7.005 s: JSON in seconds repeats its key
    table = query(store, "--percentiles", "50", "--percentiles", "99.9", "--tag=host=a").out
    assert "sys.load_pct_50.0{host=a}  2 points\n  2013-01-01T00:00:07.000Z  2.625\n" in table
    assert "sys.load_pct_99.9{host=a}  2 points\n" in table
    assert query(store, "--histogram", "--tag=host=b").out == "no points\n"


def test_histograms_are_downsampled_by_their_sums(store: Store) -> None:
    ran = query(store, "--histogram", "--output=json", "--downsample=1m-sum")
    answer = {one["metric"]: one["dps"] for one in json.loads(ran.out)}
    assert answer["sys.load_0.0_1.75"] == {str(BASE_S): 12}
    assert answer["sys.load_UNDERFLOW"] == {str(BASE_S): 2 + 128}  # of 7 s and of 7.005 s


def test_the_api_gives_what_the_command_gives(store: Store) -> None:
    api, url = Api(store.target, store.layout), f"/api/query?start={BASE_S}&end={BASE_S + 7200}&m=sum:"
    for flags, words in (
        (["--percentiles", "50", "--percentiles", "99.9"], "percentiles[50,99.9]:"),
        (["--histogram"], "show-histogram-buckets:"),
        (["--histogram", "--downsample=1m-sum"], "1m-sum:show-histogram-buckets:"),
    ):
        response = respond(api, request_of("GET", f"{url}{words}sys.load{{host=*}}"))
        command = query(store, "--output=json", "--group-by=host", *flags)
        assert normal(json.loads(json.dumps(response.body))) == normal(json.loads(command.out))
        assert len(response.body) >= 2
        assert len(api.skipped) == 1
        api.skipped.clear()
    body = {"start": BASE_S, "queries": [{"metric": "sys.load", "aggregator": "sum", "percentiles": [0]}]}
    response = respond(api, request_of("POST", "/api/query", json.dumps(body).encode()))
    assert (response.status, response.body["error"]["message"]) == (400, "percentile 0 is not from 1 to 100")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--percentiles", "0.1"], "percentile 0.1 is not from 1 to 100"),
        (["--histogram", "--aggregator=max"], "for histograms; choose from"),
    ],
)
def test_what_histograms_do_not_give(plain: Store, flags: list[str], text: str) -> None:
    ran = timebeam("query", "sys.load", *plain.flags, f"--start={BASE_S}", *flags)
    assert ran.code == 2
    assert text in ran.err


def test_copy_carries_histograms_and_annotations(store: Store, tmp_path: Path) -> None:
    """With the UIDs of the other tables, in keys and in the JSON of annotations."""
    prefix = store.layout.options.table_prefix
    other = Store.create((store.target.project, store.target.instance), prefix + "to_", salt_width=1)
    other.set_counter("metrics", 6)
    place = [f"--project={store.target.project}", f"--instance={store.target.instance}"]
    command = [
        *("copy", "--from=opentsdb", f"--table-prefix={prefix}", "--to=opentsdb", "--to-set=salt_width=1"),
        *(f"--to-table-prefix={prefix}to_", "--start=2012-12-31", "--end=2013-01-02", *place),
        *("--auto-create-metrics", "--dead-letters", tmp_path / "dead"),
    ]
    for _ in range(2):
        ran = timebeam(*command)
        assert ran.code == 0, ran.err
        assert "copied 2 annotations and 3 histograms; verified" in ran.out
    assert other.points() == store.points()
    assert {cell[1:] for cell in histograms(other)} == {cell[1:] for cell in histograms(store)}
    uids = {name.kind + name.text: uid.hex().upper() for name, uid in other.uids().items()}
    assert uids["metricssys.load"] == "000007"
    tsuid = uids["metricssys.load"] + uids["tagkhost"] + uids["tagva"]
    assert {json.loads(value).get("tsuid") for *_, value in notes(other)} == {None, tsuid}
    assert timebeam("check", *other.flags).code == 0
    annotated = query(other, "--output=annotations", "--global-annotations").out
    assert [json.loads(line)["notes"] for line in annotated.splitlines()] == ["y", "x"]


def test_copy_to_another_layout_says_what_it_leaves_out(store: Store, tmp_path: Path) -> None:
    prefix = store.layout.options.table_prefix
    place = [f"--project={store.target.project}", f"--instance={store.target.instance}"]
    assert timebeam("tables", "create", "--layout=heroic", f"--table-prefix={prefix}", *place).code == 0
    ran = timebeam(
        *(
            "copy",
            "--from=opentsdb",
            f"--table-prefix={prefix}",
            "--to=heroic",
            f"--to-table-prefix={prefix}",
        ),
        *("--start=2012-12-31", "--end=2013-01-02", *place, "--dead-letters", tmp_path / "dead"),
    )
    assert ran.code == 0, ran.err
    assert (
        "not copied: 5 annotations and histograms: layout heroic has no annotations; opentsdb has" in ran.out
    )
