"""Points of declared tables by the commands that read points: query, series, copy, check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.cloud.bigtable.data.mutations import SetCell

from tests.support.commands import Ran, ingest, timebeam
from tests.support.data_client import open_table
from timebeam.transforms.bigtable.target import Target

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "tables"
BASE_S = 1_356_998_400
SENT = [
    ("sys.cpu.percent", BASE_S + second, f"{second}.25", {"host": host, "core": core, "mode": mode})
    for second in range(0, 600, 60)
    for host in ("a", "b")
    for core in ("0", "1")
    for mode in ("user", "system")
]


@pytest.fixture
def tables(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> list[str]:
    """The options of tables of `points.toml` with the points sent to them."""
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    flags = [*place, "--layout=table", f"--tables={EXAMPLES / 'points.toml'}"]
    assert timebeam("tables", "create", *flags).code == 0
    lines = [
        f"put {metric} {time_s} {value} {' '.join(f'{key}={text}' for key, text in tags.items())}"
        for metric, time_s, value, tags in SENT
    ]
    path = tmp_path / "put.txt"
    path.write_text("\n".join(lines) + "\n")
    assert not ingest(tmp_path, *flags, "--format=opentsdb-text", "--input", path).letters
    return flags


def query(flags: list[str], *more: str) -> Ran:
    period = [f"--start={BASE_S}", f"--end={BASE_S + 599}", "--output=json"]
    return timebeam("query", "sys.cpu.percent", *flags, *period, *more)


def test_a_query_groups_aggregates_and_downsamples(tables: list[str]) -> None:
    ran = query(tables, "--tag=host=a", "--group-by=mode", "--aggregator=sum", "--downsample=5m-max")
    results = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    expected: dict[str, dict[str, float]] = {}
    for mode in ("system", "user"):
        for start in (0, 300):
            largest = [
                max(
                    float(value)
                    for _, time_s, value, tags in SENT
                    if tags == {"host": "a", "core": core, "mode": mode}
                    and start <= time_s - BASE_S < start + 300
                )
                for core in ("0", "1")
            ]
            expected.setdefault(mode, {})[str(BASE_S + start)] = sum(largest)
    assert {result["tags"]["mode"]: result["dps"] for result in results} == expected


def test_every_series_as_it_was_sent(tables: list[str]) -> None:
    results = json.loads(query(tables, "--aggregator=none").out)
    found = {
        (result["metric"], tuple(sorted(result["tags"].items())), int(time_s), value)
        for result in results
        for time_s, value in result["dps"].items()
    }
    assert found == {
        (metric, tuple(sorted(tags.items())), time_s, float(value)) for metric, time_s, value, tags in SENT
    }


def test_tags_in_the_case_of_the_key(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """A key that holds its fields in lower case is asked for in any case, as by records."""
    declaration = tmp_path / "folded.toml"
    declaration.write_text(
        """
[layout.load]
table = "LOAD"
separator = "#"
key = [{ field = "HOST", case = "lower" }, { time = "TS", unit = "ms", width = 13 }]
cell_time = "event"

[layout.load.columns]
family = "f"
fields = ["LOAD"]

[layout.load.points]
metric = "cpu.load"
value = ["LOAD"]
tags = ["HOST"]
"""
    )
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    flags = [*place, "--layout=table", f"--tables={declaration}"]
    assert timebeam("tables", "create", *flags).code == 0
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"HOST": "Web01", "TS": {BASE_S * 1000}, "LOAD": "2.5"}}\n')
    assert not ingest(tmp_path, *flags, "--format=records", "--input", path).letters
    for host in ("Web01", "web01", "WEB01"):
        ran = timebeam(
            "query", "cpu.load", *flags, f"--start={BASE_S}", "--tag", f"HOST={host}", "--output=json"
        )
        assert ran.code == 0, ran.err
        assert [result["dps"] for result in json.loads(ran.out)] == [{str(BASE_S): 2.5}]


def test_a_chart_of_declared_points(tables: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "a.png"
    ran = timebeam("query", "sys.cpu.percent", *tables, f"--start={BASE_S}", f"--output={chart}")
    assert (ran.code, chart.read_bytes()[:4]) == (0, b"\x89PNG"), ran.err


def test_series_by_patterns(tables: list[str]) -> None:
    ran = timebeam("series", "sys.*", *tables, "--tag=mode=us*", "--output=json")
    assert {(each["metric"], tuple(each["tags"].items())) for each in json.loads(ran.out)} == {
        (metric, tuple(sorted(tags.items()))) for metric, _, _, tags in SENT if tags["mode"] == "user"
    }
    assert timebeam("series", "other.*", *tables).out == ""


def test_a_copy_into_opentsdb_is_complete(tables: list[str], tmp_path: Path) -> None:
    place, prefix = tables[:2], tables[2].partition("=")[2]
    sink = [*place, "--layout=opentsdb", f"--table-prefix={prefix}o-"]
    assert timebeam("tables", "create", *sink).code == 0
    copy = [*place, "--from=table", tables[2], tables[4], "--to=opentsdb", f"--to-table-prefix={prefix}o-"]
    options = ["--auto-create-metrics", "--start=2012-01-01", "--dead-letters", tmp_path / "dead"]
    ran = timebeam("copy", *copy, *options)
    assert ran.code == 0, ran.err
    assert f"copied {len(SENT)} points of 8 series; verified" in ran.out
    assert query(sink, "--aggregator=none").out == query(tables, "--aggregator=none").out


def test_check_finds_corruption(tables: list[str]) -> None:
    ran = timebeam("check", *tables)
    assert (ran.code, "corrupt: 0; notes: 0" in ran.out) == (0, True), ran.out
    target = Target(*(flag.partition("=")[2] for flag in tables[:2]))
    table = open_table(target, tables[2].partition("=")[2] + "CPU")
    for key in (b"sys.cpu.percent#a#0#1356998400001", b"sys.cpu.percent#a#0"):
        table.mutate_row(key, SetCell("PERCENT", b"user", b"1", timestamp_micros=1000))
    ran = timebeam("check", *tables)
    assert (ran.code, "corrupt: 2; notes: 0" in ran.out) == (1, True), ran.out
    assert "cell_time" in ran.out
    assert "ends before its part" in ran.out
