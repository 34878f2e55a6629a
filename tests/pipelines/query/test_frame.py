"""`timebeam.read_frame` against the points that were sent, and against `timebeam query`."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import timebeam
from tests.support.commands import ingest
from tests.support.commands import timebeam as run
from tests.support.house.documents import blocks, run_shell, shell_lines
from tests.support.plain.plain_query import END_MS, SENT, START_MS
from tests.support.plain.rolled import DAY, config_file, interval, send, with_tables
from tests.support.points import put_file
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.transforms.bigtable.target import BigtableError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def store(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.create(bigtable, "frame_", salt_width=1)
    folder = tmp_path_factory.mktemp("frame")
    file = put_file(folder / "a.txt", SENT)
    ingest(folder, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", file)
    return store


def frame(store: Store, metric: str = "sys.cpu", **arguments: object) -> pa.Table:
    place = {"project": store.target.project, "instance": store.target.instance, "layout": "opentsdb"}
    period = {"start": START_MS, "end": END_MS}
    options = {"table_prefix": "frame_", "salt_width": 1}
    return timebeam.read_frame(metric, **{"arrow": True, **place, **period, **options, **arguments})


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
        ({"metric": None}, ValueError, "metric is None"),
        ({"tags": "host=a"}, ValueError, "give a dict"),
        ({"tags": {"host": 3}}, ValueError, r"tags\['host'\] is 3: give a text, or a list of texts"),
        ({"group_by": 3}, ValueError, "group_by is 3"),
        ({"group_by": [3]}, ValueError, r"group_by is \[3\]"),
        ({"timezone": "Berlin"}, ValueError, "'Berlin' is no time zone"),
        ({"metric": "sys.cpx"}, LookupError, "did you mean 'sys.cpu'"),
        ({"tags": {"host": ["a*", "b"]}}, LookupError, r"'tagv': 'a\*'"),
        ({"tags": {"host": "a(1)"}}, LookupError, r"'tagv': 'a\(1\)'"),
        ({"tsuid": "000001000001000001"}, ValueError, "give METRIC or --tsuid, not both"),
        ({"layout": "influx"}, ValueError, "invalid choice: 'influx'"),
        ({"salt_widht": 1}, ValueError, "did you mean --salt-width"),
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
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    assert run("tables", "create", *place, "--layout=opentsdb", "--salt-width=1").code == 0
    file = put_file(tmp_path / "a.txt", SENT)
    flags = ["--format=opentsdb-text", "--auto-create-metrics", "--input", file]
    ingest(tmp_path, *place, "--layout=opentsdb", *flags)
    options = {"project": bigtable[0], "instance": bigtable[1], "table_prefix": prefix, "layout": "opentsdb"}
    table = timebeam.read_frame("sys.cpu", start=START_MS, end=END_MS, arrow=True, **options)
    assert table.num_rows > 5
    with pytest.raises(ValueError, match="--salt-width says salt_width 0, but table"):
        timebeam.read_frame("sys.cpu", start=START_MS, arrow=True, salt_width=0, **options)


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


def test_it_is_shown_before_it_is_used() -> None:
    code = "import sys, timebeam; sys.exit('read_frame' not in dir(timebeam))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_it_starts_no_beam() -> None:
    code = "import sys, timebeam; timebeam.read_frame; sys.exit('apache_beam' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


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
    """Without options in the call: from timebeam.toml of the folder, and its profile, as `timebeam query`."""
    monkeypatch.chdir(tmp_path)
    place = f'project = "{store.target.project}"\ninstance = "{store.target.instance}"\n'
    text = f'layout = "opentsdb"\n{place}[profiles.salted]\ntable_prefix = "frame_"\nsalt_width = 1\n'
    Path("timebeam.toml").write_text(text)
    period = {"start": START_MS, "end": END_MS, "arrow": True}
    with pytest.raises(BigtableError, match="tsdb"):
        timebeam.read_frame("sys.cpu", **period)
    assert timebeam.read_frame("sys.cpu", profile="salted", **period).equals(frame(store))
    Path("timebeam.toml").rename("other.toml")
    assert timebeam.read_frame("sys.cpu", config="other.toml", profile="salted", **period).num_rows > 5
    monkeypatch.setenv("TIMEBEAM_CONFIG", "other.toml")
    monkeypatch.setenv("TIMEBEAM_PROFILE", "salted")
    assert timebeam.read_frame("sys.cpu", **period).num_rows > 5
    with pytest.raises(ValueError, match="no profile 'salty'"):
        timebeam.read_frame("sys.cpu", profile="salty", **period)


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
    place = {"project": bigtable[0], "instance": bigtable[1], "table_prefix": prefix, "layout": "opentsdb"}
    hourly = {"start": DAY, "end": DAY + 86_399, "downsample": "1h-sum", "arrow": True, **place}
    table = timebeam.read_frame("sys.load", rollup_config=config, **hourly)
    expected = [float(sum(range(60 * hour, 60 * hour + 60))) for hour in range(24)]
    assert table.column("value").to_pylist() == expected
    with pytest.warns(UserWarning, match="nothing found"):
        assert timebeam.read_frame("sys.load", **hourly).num_rows == 0
    with pytest.warns(UserWarning, match="nothing found"):
        assert timebeam.read_frame("sys.load", rollup_config=config, rollup=False, **hourly).num_rows == 0
