"""`timebeam delete` against the emulator: the model without the points of the range, byte for byte."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from google.cloud.bigtable.data import SetCell

from tests.jobs.trees.forest import Forest
from tests.schema.stores.plain_opentsdb import number
from tests.support import model
from tests.support.any_store import VARIANTS, AnyStore
from tests.support.budget import long_after
from tests.support.commands import Ran, ingest, timebeam
from tests.support.data_client import open_table
from tests.support.decoded import decode_row
from tests.support.fault_proxy import AFTER, MUTATE_ROWS, Do, faulty, nth
from tests.support.inputs.annotations import A, B, load, notes, send
from tests.support.model import Content, Point, StoredCell
from tests.support.plain import rollup_day
from tests.support.points import BASE_S, corrections_of, put_file, random_points
from tests.support.processes.killed import run_and_kill, run_through_kills
from tests.support.stored import Store
from tests.support.workload import HOUR_S, START_S, Workload, run, versions
from timebeam.pipelines.jobs import run as jobs_run
from timebeam.pipelines.store import delete
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.selection import Selected, Selection
from timebeam.schema.stores.declared.language import load_declaration
from timebeam.schema.stores.declared.layout import DeclaredTables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.care import delete_from_tables
from timebeam.transforms.read.table_reader import TableReader, scan_table


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends are as old as they need to be."""
    monkeypatch.setattr(delete, "SETTLED_MS", 0)


def dry_run(store: AnyStore, folder: Path, *flags: str) -> dict[str, Any]:
    """The summary of a dry run."""
    ran = timebeam("delete", *flags, *store.flags, f"--log={folder / 'log'}", "--summary=json")
    assert ran.code == 0, ran.err
    summary: dict[str, Any] = json.loads(ran.out)
    assert summary["dry_run"]
    return summary


def test_a_dry_run_says_how_to_delete() -> None:
    summary = delete.DeleteSummary(
        seconds=1.0,
        dry_run=True,
        by_rule={("", "tsdb"): delete_from_tables.DeleteFigures(2, 3, 4, 50)},
        tally=delete_from_tables.DeleteTally(0, 0, 0, 0),
        token="1-2-3",
    )
    lines = [" ".join(line.split()) for line in summary.to_text().splitlines()]
    assert lines[1] == "to delete from tsdb 2 rows, 3 cells, 4 points, 50 bytes"
    assert lines[-1] == "to delete the same command with --token 1-2-3"


def test_figures_are_below_each_other_beside_rules() -> None:
    rule, figures = "sys.*: 30 days, rollups 400 days", delete_from_tables.DeleteFigures(2, 3, 4, 50)
    summary = delete.DeleteSummary(
        seconds=1.0,
        dry_run=False,
        by_rule={(rule, "tsdb"): figures},
        tally=delete_from_tables.DeleteTally(0, 0, 0, 0),
        token="",
    )
    first = f"{rule}, deleted from tsdb "
    assert summary.to_text().splitlines() == [
        f"{first}2 rows, 3 cells, 4 points, 50 bytes",
        f"{'seconds':{len(first)}}1.0",
    ]


def delete_points(store: AnyStore, folder: Path, *flags: str) -> dict[str, Any]:
    """The summary of a dry run and, if it found anything, the real one."""
    dry = dry_run(store, folder, *flags)
    if not dry["token"]:
        return dry
    ran = real_run(store, folder, dry["token"], *flags)
    assert ran.code == 0, ran.err
    summary: dict[str, Any] = json.loads(ran.out)
    assert summary["tables"] | dry["tables"] == summary["tables"]
    return summary


def real_run(store: AnyStore, folder: Path, token: str, *flags: str) -> Ran:
    log = f"--log={folder / 'log'}"
    return timebeam("delete", *flags, *store.flags, log, "--token", token, "--summary=json")


def stored_points(store: AnyStore, folder: Path, *flags: str) -> list[Point]:
    """Points in two files, the second with corrections, as they were ingested."""
    points = random_points(400)
    corrections = corrections_of(points[::7])
    for name, part in (("first.txt", points), ("second.txt", corrections)):
        file = put_file(folder / name, part, part[0].arrival_ms)
        settings = [*store.flags, *store.auto_create, "--format=opentsdb-text", *flags]
        ingest(folder, *settings, "--input", file)
    return [*points, *corrections]


def without(content: Content, metric: str, first_ms: int, last_ms: int) -> Content:
    return {
        (series, time_ms): value
        for (series, time_ms), value in content.items()
        if series[0] != metric or not first_ms <= time_ms <= last_ms
    }


@pytest.mark.parametrize("variant", long_after(4, VARIANTS))
def test_the_points_of_a_range_are_gone(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    points = stored_points(store, tmp_path)
    content = store.content()
    if store.layout.uids:
        assert content == model.content(points)
    metric = points[0].series[0]
    times = sorted(time_ms for series, time_ms in content if series[0] == metric)
    first_ms, last_ms = times[len(times) // 4], times[len(times) // 2]
    expected = without(content, metric, first_ms, last_ms)
    summary = delete_points(store, tmp_path, metric, f"--start={first_ms}", f"--end={last_ms}")
    assert store.content() == expected
    deleted = sum(table["points"] for table in summary["tables"].values())
    if store.layout.name == "kairosdb":  # an integer and a decimal of one instant are in two rows
        assert deleted >= len(content) - len(expected)
    else:
        assert deleted == len(content) - len(expected)
    assert timebeam("check", *store.flags).code == 0
    again = dry_run(store, tmp_path, metric, f"--start={first_ms}", f"--end={last_ms}")
    assert (again["tables"], again["token"]) == ({}, "")
    lines = [json.loads(line) for path in tmp_path.glob("log-*.jsonl") for line in path.open()]
    assert sum(line["points"] for line in lines) == deleted
    assert {line["series"].split("{")[0] for line in lines} == {metric}


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> AnyStore:
    return AnyStore.create(bigtable, prefix, "opentsdb")


RANGE = ("--start=1356998400", "--end=1357002000")


def test_tags_select_as_a_query_does(store: AnyStore, tmp_path: Path) -> None:
    stored_points(store, tmp_path)
    content = store.content()
    delete_points(store, tmp_path, "sys.cpu", *RANGE, "--tag", "host=regexp([ab])", "--tag", "mode=us*")
    expected = {
        (series, time_ms): value
        for (series, time_ms), value in content.items()
        if series[0] != "sys.cpu"
        or dict(series[1])["host"] == "c"
        or dict(series[1])["mode"] == "sys"
        or time_ms > 1_357_002_000_000
    }
    assert len(expected) < len(content)
    assert store.content() == expected


def test_a_token_is_rejected_after_cells_have_changed(store: AnyStore, tmp_path: Path) -> None:
    points = stored_points(store, tmp_path)
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE)["token"]
    late = points[0]._replace(series=("sys.cpu", (("host", "z"),)), time=1_356_998_401)
    ingest(
        tmp_path, *store.flags, "--format=opentsdb-text", "--input", put_file(tmp_path / "late.txt", [late])
    )
    content = store.content()
    ran = real_run(store, tmp_path, token, "sys.cpu", *RANGE)
    assert (ran.code, json.loads(ran.out)["changed"]) == (1, True)
    assert store.content() == content
    ran = real_run(store, tmp_path, token, "sys.cpu", "--start=1356998400")
    assert "other options" in ran.err


@pytest.mark.parametrize("flags", [(), ("--series",)])
def test_a_token_is_rejected_after_its_run(store: AnyStore, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The same file ingested again gives cells of the same timestamps: only a new dry run deletes these."""
    stored_points(store, tmp_path)
    content = store.content()
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE, *flags)["token"]
    assert real_run(store, tmp_path, token, "sys.cpu", *RANGE, *flags).code == 0
    settings = (*store.flags, "--format=opentsdb-text")
    ingest(tmp_path, *settings, "--input", tmp_path / "first.txt", tmp_path / "second.txt")
    ran = real_run(store, tmp_path, token, "sys.cpu", *RANGE, *flags)
    assert (ran.code, f"--token {token} was used at 20" in ran.err) == (2, True), ran.err
    assert store.content() == content
    delete_points(store, tmp_path, "sys.cpu", *RANGE, *flags)
    assert store.content() == without(content, "sys.cpu", 1_356_998_400_000, 1_357_002_000_000)


def test_what_arrives_after_the_dry_run_stays(store: AnyStore, tmp_path: Path) -> None:
    """Cells behind the cut-off are not those of the dry run, and neither reject it nor are deleted."""
    stored_points(store, tmp_path)
    content = store.content()
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE)["token"]
    newest_ms = int(token.partition("-")[0], 16)
    new = Point(("sys.cpu", (("host", "new"),)), 1_356_998_500, 7, newest_ms + 2_000)
    file = put_file(tmp_path / "new.txt", [new], newest_ms + 2_000)
    ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--input", file)
    ran = real_run(store, tmp_path, token, "sys.cpu", *RANGE)
    assert ran.code == 0, ran.err
    expected = without(content, "sys.cpu", 1_356_998_400_000, 1_357_002_000_000)
    assert store.content() == expected | model.content([new])


def test_an_unknown_metric_is_named(store: AnyStore, tmp_path: Path) -> None:
    stored_points(store, tmp_path)
    ran = timebeam("delete", "sys.cpv", *RANGE, *store.flags, f"--log={tmp_path / 'log'}")
    assert ran.code == 2
    assert "did you mean 'sys.cpu'?" in ran.err


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, 2])
def test_a_killed_run_is_completed_by_the_same_token(
    store: AnyStore, tmp_path: Path, emulator: str, nth: int
) -> None:
    stored_points(store, tmp_path)
    expected = without(store.content(), "sys.cpu", 1_356_998_400_000, 1_357_002_000_000)
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE)["token"]
    arguments = ["delete", "sys.cpu", *RANGE, *store.flags, f"--log={tmp_path / 'log'}", "--token", token]
    killed = run_and_kill(emulator, arguments, nth, AFTER, settle_at_once)
    assert killed.killed or nth > 1
    if killed.killed:
        ran = real_run(store, tmp_path, token, "sys.cpu", *RANGE)
        assert ran.code == 0, ran.err
    assert store.content() == expected


def settle_at_once() -> None:
    """In a process to be killed."""
    delete.SETTLED_MS = 0


def test_what_is_written_between_reading_and_deleting_stays(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, emulator: str
) -> None:
    """In each row a correction of a column, a point at a new instant, and an append."""
    store = Store.create(bigtable, prefix)
    work = Workload.write(tmp_path, 3, series=6, hours=2, a_row=10)
    assert run(work, store, "--packing=compacted").code == 0
    flags = ("sys.m0", f"--start={START_S + 600}", f"--end={START_S + HOUR_S + 600}", *store.flags)
    log = ("--summary=json", f"--log={tmp_path / 'log'}")
    token = json.loads(timebeam("delete", *flags, *log).out)["token"]
    before, late = set(versions(store)), set[StoredCell]()

    def write() -> None:
        table = open_table(store.target, store.layout.data_table)
        for cell in {cell.key: cell for cell in before}.values():
            at = int(token.partition("-")[0], 16) + 1_000
            new = bytes.fromhex("f3fffff0" if cell.qualifier[0] >= 0xF0 else "e0f0")
            for qualifier, value in (
                (cell.qualifier, bytes(len(cell.value))),
                (new, b"\x07"),
                (b"\x05\x00\x00", b"\xe0\xe0\x09"),
            ):
                table.mutate_row(cell.key, SetCell("t", qualifier, value, at * 1000))
                late.add(StoredCell(cell.key, "t", qualifier, at, value))

    with faulty(emulator, nth(MUTATE_ROWS, [1], Do(write))) as proxy:
        ran = timebeam("delete", *flags, *log, "--token", token)
        assert (ran.code, len(proxy.faults)) == (0, 1), ran.err
    names, options = store.names(), store.layout.options
    rest = without(
        model.read_content(before, names, options),
        "sys.m0",
        (START_S + 600) * 1000,
        (START_S + HOUR_S + 600) * 1000,
    )
    stored = model.read_content(versions(store, newest=True), names, options)
    assert stored == rest | model.read_content(late, names, options)


def test_rollups_are_made_again_from_what_is_left(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    config = tmp_path / "rollups.json"
    config.write_text(json.dumps(rollup_day.CONFIG))
    store = Store.create(bigtable, prefix)
    assert timebeam("tables", "create", *store.flags, "--rollup-config", config).code == 0
    points = rollup_day.points_of(random.Random(11), rollup_day.DAY, 6)
    rollup_day.send(store, tmp_path, points, 1)
    assert rollup_day.rollup(store, config).code == 0
    start_s, end_s = rollup_day.DAY + 1800, rollup_day.DAY + 4 * 3600
    flags = ("sys.m1", f"--start={start_s}", f"--end={end_s}", *store.flags, "--summary=json")
    log = f"--log={tmp_path / 'log'}"
    token = json.loads(timebeam("delete", *flags, log).out)["token"]
    assert timebeam("delete", *flags, log, "--token", token).code == 0
    ran = rollup_day.rollup(store, config, "--changed")
    assert ran.code == 0, ran.err
    left = {
        (series, time_ms): value
        for (series, time_ms), value in points.items()
        if series.metric != "sys.m1" or not start_s * 1000 <= time_ms <= end_s * 1000
    }
    assert len(left) < len(points)
    rollup_day.same(rollup_day.stored(store, rollup_day.SECONDS), rollup_day.expected(left))


def test_rollups_outlive_points_by_rule(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sys.m0 the points of February go, of sys.m1 the rollups, in rows that March shares; sys.m2 stays."""
    config = tmp_path / "rollups.json"
    config.write_text(json.dumps(rollup_day.CONFIG))
    store = Store.create(bigtable, prefix)
    assert timebeam("tables", "create", *store.flags, "--rollup-config", config).code == 0
    march_s = rollup_day.DAY + 86_400
    points = rollup_day.points_of(random.Random(12), march_s - 3 * 3600, 6)
    rollup_day.send(store, tmp_path, points, 1)
    span = (f"--start={rollup_day.DAY}", f"--end={march_s + 86_400}")
    assert rollup_day.rollup(store, config, *span).code == 0
    names = [*rollup_day.SECONDS, "preagg", *(f"preagg-{name[7:]}" for name in rollup_day.SECONDS)]
    before = {name: rollup_day.cells(store, name) for name in names}
    metric = store.uids()[Name("metrics", "sys.m1")]
    expected = {
        name: [cell for cell in cells if cell[0][:3] != metric or cell[2] >= march_s * 10**6]
        for name, cells in before.items()
    }
    assert all(0 < len(expected[name]) < len(before[name]) for name in names)
    monkeypatch.setattr(jobs_run, "clock_ms", lambda: (march_s + 30 * 86_400 + 3600) * 1000)
    settings = tmp_path / "timebeam.toml"
    settings.write_text(
        f'rollup_config = "{config}"\n[retention]\n"sys.m0" = {{ points = 30, rollups = "forever" }}\n'
        '"sys.m1" = { points = "forever", rollups = 30 }\n'
    )
    flags = (*store.flags, f"--config={settings}", f"--log={tmp_path / 'log'}")
    lines = timebeam("delete", *flags).out.splitlines()
    assert any(
        line.startswith(f"sys.m0: 30 days, rollups forever, to delete from {prefix}tsdb ") for line in lines
    )
    ran = timebeam("delete", *flags, "--unattended", "--summary=json")
    assert ran.code == 0, ran.err
    rules = json.loads(ran.out)["rules"]
    assert rules.keys() == {"sys.m0: 30 days, rollups forever", "sys.m1: forever, rollups 30 days"}
    assert rules["sys.m1: forever, rollups 30 days"].keys() == {prefix + name for name in names}
    assert {name: rollup_day.cells(store, name) for name in names} == expected
    stored = store.points()
    assert {(series, time_ms) for series, values in stored.items() for time_ms in values} == {
        (series, time_ms)
        for series, time_ms in points
        if series.metric != "sys.m0" or time_ms >= march_s * 1000
    }
    assert rollup_day.rollup(store, config, "--changed").code == 0  # nothing is marked
    assert {name: rollup_day.cells(store, name) for name in names} == expected
    config_free = timebeam("delete", *store.flags, "--keep-days=*=1/7", f"--log={tmp_path / 'log'}")
    assert "the days of rollups need --rollup-config" in config_free.err


@pytest.mark.parametrize("variant", ["heroic", "heroic-readable", "kairosdb-milliseconds"])
def test_index_rows_of_series_without_points_go(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    stored_points(store, tmp_path)
    content = store.content()
    delete_points(store, tmp_path, "sys.cpu", "--start=0", "--end=now", "--tag=host=a", "--series")
    expected = {
        (series, time_ms): value
        for (series, time_ms), value in content.items()
        if dict(series[1])["host"] != "a" or series[0] != "sys.cpu"
    }
    assert store.content() == expected
    assert timebeam("check", *store.flags).code == 0
    series = json.loads(timebeam("series", "sys.cpu", *store.flags, "--output=json").out)
    assert {listed["tags"]["host"] for listed in series} == {"b", "c"}


def test_no_summary_is_shown_before_the_log_says_that_a_run_is_done(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed while it deletes index rows must not look finished."""
    store = AnyStore.create(bigtable, prefix, "heroic")
    stored_points(store, tmp_path)
    log = tmp_path / "log"
    flags = ("sys.cpu", "--start=0", "--end=now", "--tag=host=a", "--series", *store.flags, f"--log={log}")
    token = json.loads(timebeam("delete", *flags, "--summary=json").out)["token"]
    before: list[set[str]] = []

    def not_shown(*_: object) -> None:
        series = json.loads(timebeam("series", "sys.cpu", *store.flags, "--output=json").out)
        before.append({listed["tags"]["host"] for listed in series})
        raise ValueError("the summary is not shown")

    monkeypatch.setattr(jobs_run, "show", not_shown)
    with pytest.raises(ValueError, match="is not shown"):
        timebeam("delete", *flags, f"--token={token}")
    assert before == [{"b", "c"}]
    assert len([*tmp_path.glob("log*-done.json")]) == 1


def test_metadata_and_leaves_of_series_without_points_go(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    forest = Forest.create(bigtable, prefix, tmp_path)
    store = load(forest.store, tmp_path)
    assert timebeam("meta", "sync", *store.flags).code == 0
    send(
        store, tmp_path, *({"startTime": BASE_S + 60 * n, "tsuid": A, "description": str(n)} for n in (1, 2))
    )
    rules = [
        {"level": 0, "order": 0, "type": "TAGK", "field": "host"},
        {"level": 1, "order": 0, "type": "METRIC"},
    ]
    forest.create_tree({"name": "hosts", "enabled": True, "rules": rules})
    assert forest.sync()["leaves_written"] == 2
    log = ("--summary=json", f"--log={tmp_path / 'log'}")
    notes_of_range = (
        "sys.load",
        f"--start={BASE_S}",
        f"--end={BASE_S + 90}",
        *store.flags,
        "--annotations",
        *log,
    )
    token = json.loads(timebeam("delete", *notes_of_range).out)["token"]
    assert timebeam("delete", *notes_of_range, "--token", token).code == 0
    assert len(notes(store)) == 1
    flags = ("sys.load", "--start=0", "--tag=host=a", "--series", *store.flags, *log)
    token = json.loads(timebeam("delete", *flags).out)["token"]
    ran = timebeam("delete", *flags, "--token", token)
    assert ran.code == 0, ran.err
    assert notes(store) == set()
    tables = json.loads(ran.out)["tables"]
    assert tables[prefix + "tsdb-meta"]["rows"] == tables[prefix + "tsdb-tree"]["rows"] == 1
    assert {row.key.hex() for row in scan_table(store.target, prefix + "tsdb-meta")} == {B}
    assert json.loads(timebeam("trees", "purge", *forest.store.flags, "--output=json").out)[0]["cells"] == 1
    assert timebeam("trees", "purge", *forest.store.flags, "--yes").code == 0
    shown = timebeam("trees", "show", *forest.store.flags).out
    assert "b/" in shown.split()
    assert "a/" not in shown.split()


@pytest.mark.parametrize("variant", long_after(1, ["opentsdb", "kairosdb-milliseconds", "heroic"]))
def test_points_older_than_some_days_are_deleted_by_metric(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    stored_points(store, tmp_path)
    content = store.content()
    flags = ("--keep-days", "*.cpu=100", "--keep-days", "sys*=30000", *store.flags)
    log = ("--summary=json", f"--log={tmp_path / 'log'}")
    planned = json.loads(timebeam("delete", *flags, *log).out)
    assert store.content() == content
    ran = timebeam("delete", *flags, *log, "--unattended")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["tables"] == planned["tables"]
    assert store.content() == without(content, "sys.cpu", 0, 1 << 42)
    for other in ("sys.cpu", "--end=2001-01-01"):
        assert "leave out METRIC" in timebeam("delete", *flags, *log, other).err
    settings = tmp_path / "timebeam.toml"
    settings.write_text('keep_days = ["*.cpu=1"]\n')
    settled = timebeam("delete", "sys.cpu", "--start=0", "--end=1", *store.flags, f"--config={settings}")
    assert settled.code == 0, settled.err
    hidden = timebeam("delete", "--keep-days", "1,sys*=30000", *store.flags, *log, "--unattended")
    assert (hidden.code, "never applies" in hidden.err) == (2, True)
    assert (
        "--unattended is for" in timebeam("delete", "sys.cpu", "--start=0", *store.flags, "--unattended").err
    )


@pytest.mark.parametrize("flags", [["--keep-days=7"], ["--tsuid=000001000001000001", "--start=0"]])
def test_missing_tables_are_named(bigtable: tuple[str, str], prefix: str, flags: list[str]) -> None:
    target = f"--project={bigtable[0]}", f"--instance={bigtable[1]}"
    ran = timebeam("delete", "--layout=opentsdb", f"--table-prefix={prefix}", *target, *flags)
    assert (ran.code, "Create what is missing with" in ran.err) == (1, True), ran.err


def test_index_rows_of_all_metrics_are_in_the_figures(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = AnyStore.create(bigtable, prefix, "heroic")
    stored_points(store, tmp_path)
    index = prefix + "series"
    before = sum(len(row.cells) for row in scan_table(store.target, index))
    flags = ("--keep-days=1", "--series", "--unattended", *store.flags)
    ran = timebeam("delete", *flags, "--summary=json", f"--log={tmp_path / 'log'}")
    assert ran.code == 0, ran.err
    assert store.content() == {}
    remaining = sum(len(row.cells) for row in scan_table(store.target, index))
    assert 0 < json.loads(ran.out)["tables"][index]["cells"] == before - remaining


def declared_points(target: Target, prefix: str, file: Path) -> Content:
    """All points of the tables that a file declares."""
    layout = DeclaredTables(load_declaration.load(file.read_text(), file.name).with_prefix(prefix))
    content: Content = {}
    for selected in layout.select(Selection(None, {}, 0, 1 << 42), TableReader(target)):
        assert isinstance(selected, Selected)
        for series, time_ms, value in decode_row(layout, *selected).batch.points():
            content[(series.metric, series.tags), time_ms] = number(value)
    return content


def test_values_of_declared_tables(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    examples = Path(__file__).parents[3] / "examples" / "tables"
    target = Target(*bigtable)
    place = (f"--project={target.project}", f"--instance={target.instance}", f"--table-prefix={prefix}")
    flags = ("--layout=table", "--tables", examples / "metrics.toml", *place)
    assert timebeam("tables", "create", *flags).code == 0
    ingest(tmp_path, *flags, "--format=records", "--input", examples / "metrics.jsonl")
    content = declared_points(target, prefix, examples / "metrics.toml")
    metric, host = "server.CPU/CPU1_USR", "server1.aaa.bbb.com"
    chosen = {key for key in content if key[0] == (metric, (("HOSTNAME", host),))}
    last_ms = min(time_ms for _, time_ms in chosen)
    selected = (metric, "--start=0", f"--end={last_ms}", "--summary=json", f"--log={tmp_path / 'log'}")
    assert "--full-scan" in timebeam("delete", *selected, *flags).err
    selected = (*selected, f"--tag=HOSTNAME={host}")
    token = json.loads(timebeam("delete", *selected, *flags).out)["token"]
    assert timebeam("delete", *selected, *flags, "--token", token).code == 0
    expected = {key: value for key, value in content.items() if key not in chosen or key[1] > last_ms}
    assert len(expected) == len(content) - 1
    assert declared_points(target, prefix, examples / "metrics.toml") == expected
    assert timebeam("check", *flags).code == 0


def test_copies_in_tables_per_day_go_too(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(__file__).parents[3] / "examples" / "tables" / "sensor.toml"
    target = Target(*bigtable)
    place = (f"--project={target.project}", f"--instance={target.instance}", f"--table-prefix={prefix}")
    flags = ("--layout=table", "--tables", file, *place)
    assert timebeam("tables", "create", *flags).code == 0
    start_ms = 1_426_489_200_000  # 2015-03-16 in Los Angeles
    readings = [
        {"METER": meter, "TS": start_ms + quarter * 900_000, "READING": f"{meter}.5"}
        for meter in (1, 2)
        for quarter in range(0, 192, 5)
    ]
    (tmp_path / "readings.jsonl").write_text("".join(json.dumps(reading) + "\n" for reading in readings))
    ingest(tmp_path, *flags, "--format=records", "--input", tmp_path / "readings.jsonl")
    rollup = ("rollup", *flags, "--day=2015-03-16", f"--dead-letters={tmp_path / 'letters'}")
    with monkeypatch.context() as clock:
        clock.setattr(jobs_run, "clock_ms", lambda: start_ms + 3 * 86_400_000)
        assert timebeam(*rollup).code == 0
    names = [f"{prefix}SENSOR", f"{prefix}SENSOR_20150316"]
    first_ms, last_ms = start_ms + 20 * 900_000, start_ms + 120 * 900_000
    before = {name: sum(len(row.cells) for row in scan_table(target, name)) for name in names}
    selected = ("meter.reading", f"--start={first_ms}", f"--end={last_ms}", "--tag=METER=1", *flags)
    log = ("--summary=json", f"--log={tmp_path / 'log'}")
    token = json.loads(timebeam("delete", *selected, *log).out)["token"]
    ran = timebeam("delete", *selected, *log, "--token", token)
    assert ran.code == 0, ran.err
    tables = json.loads(ran.out)["tables"]
    assert {name: figures["points"] for name, figures in tables.items()} == {names[0]: 21, names[1]: 16}
    after = {name: sum(len(row.cells) for row in scan_table(target, name)) for name in names}
    assert {name: before[name] - after[name] for name in names} == {names[0]: 21, names[1]: 16}
    query = ("query", "meter.reading", f"--start={start_ms}", f"--end={start_ms + 2 * 86_400_000}", *flags)
    for meter, count in ((1, len(readings) // 2 - 21), (2, len(readings) // 2)):
        answer = json.loads(timebeam(*query, f"--tag=METER={meter}", "--output=json").out)
        assert sum(len(series["dps"]) for series in answer) == count
    assert timebeam("check", *flags).code == 0


@pytest.mark.long
def test_killed_ten_times(store: AnyStore, tmp_path: Path, emulator: str) -> None:
    stored_points(store, tmp_path, "--packing=points")
    expected = without(store.content(), "sys.cpu", 0, 2_000_000_000_000)
    span = ("sys.cpu", "--start=0", "--end=2000000000")
    token = dry_run(store, tmp_path, *span)["token"]
    arguments = ["delete", *span, *store.flags, f"--log={tmp_path / 'log'}", "--token", token]
    ran = run_through_kills(emulator, arguments, before=small_batches)
    assert ran.code == 0, ran.err
    assert store.content() == expected


def small_batches() -> None:
    """In a process to be killed: many requests."""
    settle_at_once()
    delete_from_tables._MUTATIONS_AT_ONCE = 3


@pytest.mark.parametrize("place", ["/proc/nope/x", "nope://bucket/x"])
def test_a_log_that_cannot_be_written_is_rejected_before_the_run(
    store: AnyStore, tmp_path: Path, place: str
) -> None:
    stored_points(store, tmp_path)
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE)["token"]
    ran = timebeam("delete", *store.flags, "sys.cpu", *RANGE, "--token", token, "--log", place)
    assert (ran.code, len(ran.err.splitlines())) == (2, 2)
    assert f"--log {place}-{token}: cannot create files there" in ran.err
    digest = token.split("-", 1)[1]
    ran = timebeam(
        "delete", *store.flags, "sys.cpu", *RANGE, "--token", f"4{token.split('-')[0][1:]}-{digest}"
    )
    assert "dry run in the future" in ran.err
    ran = timebeam("export", *store.flags, "--start=2013-01-01", "--end=2013-01-02", "--output", place)
    assert f"--output {place}: cannot create files there" in ran.err
