"""`timebeam.open` and its database against the points that were sent, and against the commands."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import timebeam
from tests.support.commands import ingest
from tests.support.commands import timebeam as run
from tests.support.house.documents import blocks, run_shell, shell_lines
from tests.support.layout_words import layout_words
from tests.support.plain.plain_query import END_MS, SENT, START_MS
from tests.support.plain.rolled import DAY, config_file, interval, send, with_tables
from tests.support.points import put_file
from tests.support.stored import Store
from timebeam import BigtableError, Series
from timebeam.stores import OpenTsdb
from timebeam.transforms.read.table_reader import scan_table

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def store(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.create(bigtable, "frame_", salt_width=1)
    folder = tmp_path_factory.mktemp("frame")
    file = put_file(folder / "a.txt", SENT)
    ingest(folder, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", file)
    return store


def place(store: Store) -> dict[str, str]:
    return {"project": store.target.project, "instance": store.target.instance}


def frame(store: Store, metric: str | None = "sys.cpu", **arguments: Any) -> pa.Table:
    names = ("layout", "table_prefix", "salt_width", "salt_widht")
    settings = {name: arguments.pop(name) for name in names if name in arguments}
    settings = {"table_prefix": "frame_", "salt_width": 1, **settings}
    settings["store"] = settings.pop("layout", "opentsdb")
    database = timebeam.open(**place(store), **settings)
    return database.query(metric, **{"start": START_MS, "end": END_MS, **arguments}).to_arrow()


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({}, ["--aggregator=none"]),
        ({"aggregator": "sum", "group_by": ["host"]}, ["--group-by=host"]),
        (
            {"tags": {"host": ["a", "c"], "core": "*"}},
            ["--aggregator=none", "--tag", "host=a|c", "--tag", "core=*"],
        ),
        ({"aggregator": "avg", "downsample": "10m-max"}, ["--aggregator=avg", "--downsample=10m-max"]),
    ],
)
def test_points_are_those_of_a_query(store: Store, arguments: dict[str, object], flags: list[str]) -> None:
    table = frame(store, **arguments)
    period = [f"--start={START_MS}", f"--end={END_MS}", "--output=json-ms"]
    results = json.loads(run("query", "sys.cpu", *store.flags, *period, *flags).out)
    expected = [
        (result["metric"], result["tags"], int(time_ms), value)
        for result in results
        for time_ms, value in result["dps"].items()
    ]
    keys = [name for name in table.column_names if name not in ("metric", "time", "value")]
    found = [
        (
            row["metric"],
            {key: row[key] for key in keys if row[key] is not None},
            int(row["time"].timestamp() * 1000 + 0.5),
            row["value"],
        )
        for row in table.to_pylist()
    ]
    assert len(found) > 5
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert [row[3] for row in found] == pytest.approx([row[3] for row in expected])


def test_a_range_without_points_is_an_empty_table(store: Store) -> None:
    with pytest.warns(UserWarning, match="nothing found: table frame_tsdb has rows that fit these options"):
        table = frame(store, start=0, end="1970-02-01")
    assert (table.num_rows, table.column_names) == (0, ["metric", "time", "value"])


def test_one_tag_key_may_be_a_string(store: Store) -> None:
    assert frame(store, aggregator="sum", group_by="host").equals(
        frame(store, aggregator="sum", group_by=["host"])
    )


def test_times_may_be_datetimes(store: Store) -> None:
    start = datetime.datetime.fromtimestamp(START_MS / 1000, datetime.UTC)
    end = datetime.datetime.fromtimestamp(END_MS / 1000, datetime.UTC)
    assert frame(store, start=start, end=end).equals(frame(store))
    with pytest.raises(ValueError, match="time zone"):
        frame(store, start=datetime.datetime(2013, 1, 1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"metric": ["sys.cpu", "sys.load"]}, ValueError, r"one metric; for several, pandas\.concat"),
        ({"metric": None}, ValueError, "give METRIC, or --tsuid"),
        ({"tags": "host=a"}, ValueError, "give a dict"),
        ({"tags": {"host": 3}}, ValueError, r"tags\['host'\] is 3: give a text, or a list of texts"),
        ({"group_by": 3}, ValueError, "group_by is 3"),
        ({"group_by": [3]}, ValueError, r"group_by is \[3\]"),
        ({"timezone": "Berlin"}, ValueError, "'Berlin' is not a time zone"),
        ({"metric": "sys.cpx"}, LookupError, "did you mean 'sys.cpu'"),
        ({"tags": {"host": ["a*", "b"]}}, LookupError, r"'tagv': 'a\*'"),
        ({"tags": {"host": "a(1)"}}, LookupError, r"'tagv': 'a\(1\)'"),
        ({"tsuids": ["000001000001000001"]}, ValueError, "give METRIC or --tsuid, not both"),
        ({"layout": "influx"}, ValueError, "layout: 'influx'"),
        ({"salt_widht": 1}, ValueError, "unknown setting salt_widht: did you mean salt_width"),
        ({"tags": {"host": []}}, ValueError, "--tag host=: give KEY=VALUE"),
        ({"start": "soon"}, ValueError, "soon"),
        ({"start": END_MS, "end": START_MS}, ValueError, "before it starts"),
        ({"aggregator": "mean"}, ValueError, "mean"),
        ({"downsample": "often"}, ValueError, "often"),
        ({"layout": "table"}, ValueError, "--tables FILE"),
        ({"table_prefix": "none_"}, BigtableError, "timebeam tables create --layout opentsdb"),
    ],
)
def test_wrong_arguments(
    store: Store, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        frame(store, **arguments)


def test_stored_settings_are_used_and_not_contradicted(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    flags = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    assert run("tables", "create", *flags, "--layout=opentsdb", "--set=salt_width=1").code == 0
    file = put_file(tmp_path / "a.txt", SENT)
    ingest(tmp_path, *flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", file)
    database = timebeam.open(*bigtable, table_prefix=prefix)
    table = database.query("sys.cpu", start=START_MS, end=END_MS).to_arrow()
    assert table.num_rows > 5
    same = timebeam.open(*bigtable, store=OpenTsdb(table_prefix=prefix, salt_width=1))
    assert same.query("sys.cpu", start=START_MS, end=END_MS).to_arrow().equals(table)
    with pytest.raises(ValueError, match="argument salt_width says salt_width 0, but table"):
        timebeam.open(*bigtable, table_prefix=prefix, salt_width=0)
    with pytest.raises(ValueError, match="argument salt_width says salt_width 0, but table"):
        timebeam.open(*bigtable, store=OpenTsdb(table_prefix=prefix))


def test_days_are_those_of_a_time_zone(store: Store) -> None:
    """SENT begins on a day of Berlin that is another day in UTC."""
    table = frame(store, start=0, end=END_MS, timezone="Asia/Kathmandu", downsample="1dc-count")
    times = table.column("time")
    assert times.type == pa.timestamp("ms", "Asia/Kathmandu")
    assert {(time.hour, time.minute) for time in times.to_pylist()} == {(0, 0)}
    first = times.to_pylist()[0]
    again = frame(store, start=first.date().isoformat(), timezone="Asia/Kathmandu", downsample="1dc-count")
    assert again.equals(table)
    utc = frame(store, start=first.date().isoformat(), downsample="1dc-count")
    assert utc.column("time").to_pylist() != times.to_pylist()


def test_the_page_on_notebooks_runs_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulator: str
) -> None:
    """In the instance `local`, whose tables no other test has: the page names no instance."""
    pytest.importorskip("pandas")
    page = (ROOT / "docs" / "start" / "notebook.md").read_text("utf-8")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    run_shell(shell_lines(page), tmp_path, [])
    code = blocks(page, "python")
    assert len(code) >= 5
    exec(compile("\n".join(code), "notebook.md", "exec"), {"__name__": "example"})


def test_settings_of_a_profile_and_of_variables(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without arguments: from timebeam.toml of the folder, and its profile, as `timebeam query`."""
    monkeypatch.chdir(tmp_path)
    lines = "".join(f'{name} = "{text}"\n' for name, text in place(store).items())
    text = f'layout = "opentsdb"\n{lines}[profiles.salted]\ntable_prefix = "frame_"\nsalt_width = 1\n'
    Path("timebeam.toml").write_text(text)
    period = {"start": START_MS, "end": END_MS}
    with pytest.raises(BigtableError, match="tsdb"):
        timebeam.open().query("sys.cpu", **period)
    assert timebeam.open(profile="salted").query("sys.cpu", **period).to_arrow().equals(frame(store))
    Path("timebeam.toml").rename("other.toml")
    database = timebeam.open(config="other.toml", profile="salted")
    assert database.query("sys.cpu", **period).to_arrow().num_rows > 5
    monkeypatch.setenv("TIMEBEAM_CONFIG", "other.toml")
    monkeypatch.setenv("TIMEBEAM_PROFILE", "salted")
    assert timebeam.open().query("sys.cpu", **period).to_arrow().num_rows > 5
    with pytest.raises(ValueError, match="no profile 'salty'"):
        timebeam.open(profile="salty")


def test_rollups_are_read_as_by_a_query(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """The points are gone, so that what is returned can only be from the rollups."""
    store = Store.create(bigtable, prefix)
    config = config_file(tmp_path, [interval("1h", "1d")])
    with_tables(store, config)
    series = Series.of("sys.load", {"host": "a"})
    send(store, tmp_path, {(series, DAY + 60 * n): float(n) for n in range(24 * 60)})
    rolled = run("rollup", *store.flags, "--rollup-config", config, "--day=2024-02-28")
    assert rolled.code == 0, rolled.err
    for row in store.rows():
        store.remove_row(store.layout.data_table, row.key)
    hourly = {"start": DAY, "end": DAY + 86_399, "downsample": "1h-sum"}
    database = timebeam.open(*bigtable, store="opentsdb", table_prefix=prefix, rollup_config=config)
    table = database.query("sys.load", **hourly).to_arrow()
    expected = [float(sum(range(60 * hour, 60 * hour + 60))) for hour in range(24)]
    assert table.column("value").to_pylist() == expected
    with pytest.warns(UserWarning, match="nothing found"):
        assert database.query("sys.load", rollups=False, **hourly).to_arrow().num_rows == 0
    without = timebeam.open(*bigtable, store="opentsdb", table_prefix=prefix)
    with pytest.warns(UserWarning, match="nothing found"):
        assert without.query("sys.load", **hourly).to_dict() == {}


def test_a_dict_and_a_frame_hold_what_the_table_holds(store: Store) -> None:
    database = timebeam.open(**place(store), store="opentsdb", table_prefix="frame_", salt_width=1)
    result = database.query("sys.cpu", start=START_MS, end=END_MS)
    table = result.to_arrow()
    times_ms = [round(time.timestamp() * 1000) for time in table.column("time").to_pylist()]
    values = list(result.to_dict().values())
    assert [time_ms for points in values for time_ms in points] == times_ms
    assert [value for points in values for value in points.values()] == table.column("value").to_pylist()
    assert {series.metric for series in result.to_dict()} == {"sys.cpu"}
    pytest.importorskip("pandas")
    assert result.to_pandas()["value"].tolist() == table.column("value").to_pylist()


def test_a_frame_of_polars(store: Store) -> None:
    pytest.importorskip("polars")
    database = timebeam.open(**place(store), store="opentsdb", table_prefix="frame_", salt_width=1)
    result = database.query("sys.cpu", start=START_MS, end=END_MS)
    assert result.to_polars()["value"].to_list() == result.to_arrow().column("value").to_pylist()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("*", ["*"]), ("sys.c*{host=a|c*}", ["sys.c*", "--tag=host=a|c*"]), ("sys.none", ["sys.none"])],
)
def test_series_are_those_of_the_command(store: Store, pattern: str, words: list[str]) -> None:
    database = timebeam.open(**place(store), store="opentsdb", table_prefix="frame_", salt_width=1)
    listed = json.loads(run("series", *words, *store.flags, "--output=json").out)
    assert database.series(pattern) == [Series.of(each["metric"], each["tags"]) for each in listed]
    with pytest.raises(ValueError, match="give METRIC or METRIC"):
        database.series("sys.load{host=a")
    with pytest.raises(ValueError, match="give each key once"):
        database.series("sys.load{host}")


def test_names_are_those_of_the_command(store: Store) -> None:
    database = timebeam.open(**place(store), store="opentsdb", table_prefix="frame_", salt_width=1)
    for kind, prefix in (("metrics", "sys."), ("tagk", ""), ("tagv", "a")):
        out = run("suggest", kind, prefix, *store.flags).out
        assert database.suggest(prefix, kind=kind) == out.splitlines()
    assert len(database.suggest(kind="tagv", limit=1)) == 1
    with pytest.raises(ValueError, match="ISO-8859-1"):
        database.suggest("\u0142")


FORMATS = {"opentsdb": {"salt_width": 1}, "heroic": {}, "kairosdb": {"row_spec": "milliseconds"}}


@pytest.mark.parametrize("layout", FORMATS)
def test_points_are_written_as_an_ingest_writes_them(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, layout: str
) -> None:
    file = put_file(tmp_path / "a.txt", SENT)
    text = file.read_bytes() + b"put sys.cpu soon 1 host=a\n" + b"put sys.cpu 1356998400 1 host=a\n" * 2
    file.write_bytes(text)
    arrival_ms = 1_700_000_000_000
    os.utime(file, (arrival_ms / 1000, arrival_ms / 1000))
    cells = []
    for number in range(2):
        flags = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}{number}-"]
        flags += [f"--layout={layout}"]
        flags += layout_words(FORMATS[layout])
        assert run("tables", "create", *flags).code == 0
        database = timebeam.open(*bigtable, table_prefix=f"{prefix}{number}-")
        if number:
            parsed = timebeam.parse("opentsdb-text", text, arrival_ms=arrival_ms)
            assert database.write(parsed.points, auto_create_metrics=True) == []
            assert [rejected.payload for rejected in parsed.rejected] == [b"put sys.cpu soon 1 host=a"]
        else:
            ingested = ingest(
                tmp_path, *flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", file
            )
            assert len(ingested.letters) == 1
        cells.append(
            {
                (spec.name.removeprefix(f"{prefix}{number}-"), row.key, cell.family, cell.qualifier): (
                    cell.value,
                    cell.timestamp_ms,
                )
                for spec in database.store.tables()
                for row in scan_table(database.target, spec.name)
                for cell in row.cells
                if not spec.name.endswith("tsdb-uid")
            }
        )
    assert len(cells[0]) > 3
    assert cells[0] == cells[1]


def test_points_without_a_uid_are_rejected(store: Store) -> None:
    database = timebeam.open(**place(store), store="opentsdb", table_prefix="frame_", salt_width=1)
    parsed: Any = timebeam.parse("opentsdb-text", b"put sys.new 1356998400 1 host=a")
    with pytest.raises(TypeError, match=r"write takes Points, such as parse\(...\)\.points, not Parsed"):
        database.write(parsed)
    (rejected,) = database.write(parsed.points)
    assert (rejected.reason.value, rejected.payload) == ("unknown-name", b"put sys.new 1356998400 1 host=a")


def test_records_are_not_written(bigtable: tuple[str, str], prefix: str) -> None:
    database = timebeam.open(
        *bigtable, store="table", table_prefix=prefix, tables=ROOT / "examples/tables/points.toml"
    )
    with pytest.raises(ValueError, match="write them with `timebeam ingest`"):
        database.write(timebeam.parse("influx", b"load,host=a value=1").points)


def test_an_emulator_is_that_of_one_database(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, host = frame(store), os.environ["BIGTABLE_EMULATOR_HOST"]
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST")
    settings = {"store": "opentsdb", "table_prefix": "frame_", "salt_width": 1}
    database = timebeam.open(**place(store), emulator=host, **settings)
    assert database.query("sys.cpu", start=START_MS, end=END_MS).to_arrow().equals(expected)
    assert database.series("sys.cpu{host=a}")
    assert database.write(timebeam.parse("opentsdb-text", b"put sys.cpu 2000000000 1 host=a").points) == []
    with pytest.raises(BigtableError, match="no Bigtable emulator answers at localhost:1 "):
        timebeam.open(emulator="localhost:1")
    with pytest.raises(ValueError, match="give --project and --instance"):
        timebeam.open(store="opentsdb")
    assert "BIGTABLE_EMULATOR_HOST" not in os.environ
