"""`timebeam ingest --meta`: the cells of a TSD for every new series, once, and nothing overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.golden.meta_cases import GROUPS, AnyCell, MetaCase, created_aside, meta_cases
from tests.jobs.meta.meta_tables import (
    edited,
    meta_name,
    plain_ts_cells,
    plain_uid_cells,
    ts_cells,
    uid_meta_cells,
    with_meta,
)
from tests.support.commands import timebeam
from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, Fault, faulty, share
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from tests.support.stored import Store
from tests.support.workload import FIRST_MS, SECOND_MS, Workload, run
from timebeam.transforms.read.table_reader import scan_table


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return with_meta(bigtable, prefix)


def ingested(work: Workload, store: Store, *flags: str) -> None:
    ran = run(work, store, *flags)
    assert ran.code == 0, ran.err


def series_of(work: Workload, arrival_ms: int = FIRST_MS) -> set[Any]:
    return {point.series for point in work.points if point.arrival_ms == arrival_ms}


@pytest.mark.parametrize(
    "golden",
    [pytest.param(one, id=f"{group}/{one.case.name}") for group in GROUPS for one in meta_cases(group)],
)
def test_the_cells_of_a_tsd(store: Store, tmp_path: Path, golden: MetaCase) -> None:
    """The points of the golden cases, names with their UIDs: all cells of all tables, `created` aside."""
    for name, uid in golden.case.uids.items():
        store.set_uid(name.kind, "name", uid, name.text.encode())
        store.set_uid(name.kind, "id", name.text.encode(), uid)
    path = tmp_path / "points.json"
    path.write_bytes(b"".join(text + b"\n" for _, text in golden.case.messages()))
    mode = "track" if golden.case.group == "meta_tracking" else "full"
    flags = ["--packing=points", f"--meta={mode}", "--format=opentsdb-json", f"--input={path}"]
    ran = timebeam("ingest", *store.flags, *flags, "--dead-letters", tmp_path / "dead")
    assert ran.code == 0, ran.err
    prefix = store.layout.options.table_prefix
    found = {
        AnyCell(table.removeprefix(prefix), row.key, cell.family, cell.qualifier, cell.value)
        for table in (store.layout.data_table, store.layout.options.uid_table, meta_name(store))
        for row in scan_table(store.target, table)
        for cell in row.cells
        if cell.family != "id"
    }
    expected = set(map(created_aside, golden.cells))
    if golden.case.group == "meta_realtime":  # which has no counters; `full` writes them too
        found = {cell for cell in found if cell.qualifier != b"ts_ctr"}
    # UIDs that a case has from one before it have no reverse mapping among its cells.
    assert {cell for cell in map(created_aside, found) if cell.qualifier not in _NAMES} == {
        cell for cell in expected if cell.qualifier not in _NAMES
    }


_NAMES = (b"metrics", b"tagk", b"tagv")


@pytest.mark.parametrize(
    ("packing", "writer"),
    [("compacted", "beam"), ("compacted", "direct"), ("points", "direct"), ("append", "beam")],
)
def test_every_series_and_name_once(store: Store, tmp_path: Path, packing: str, writer: str) -> None:
    both = Workload.write(tmp_path, 1, series=12, hours=2, a_row=5)
    work = Workload(both.points, both.files[:1], both.format_name)
    for _ in range(2):
        ingested(work, store, "--meta=full", f"--packing={packing}", f"--bigtable-writer={writer}")
        series = series_of(work)
        made = [(one, FIRST_MS // 1000, 1, FIRST_MS) for one in series]
        assert ts_cells(store) == plain_ts_cells(store, made)
        assert uid_meta_cells(store) == plain_uid_cells(store, [(one, FIRST_MS // 1000) for one in series])


def test_corrections_change_nothing(store: Store, tmp_path: Path) -> None:
    """Created when the oldest point arrived, last received when the newest did."""
    work = Workload.write(tmp_path, 1, series=12, hours=1, a_row=20)
    ingested(work, store, "--meta=full", "--packing=points")
    latest = dict.fromkeys(series_of(work), FIRST_MS) | dict.fromkeys(series_of(work, SECOND_MS), SECOND_MS)
    assert len(set(latest.values())) == 2
    made = [(one, FIRST_MS // 1000, 1, latest_ms) for one, latest_ms in latest.items()]
    assert ts_cells(store) == plain_ts_cells(store, made)
    ingested(Workload(work.points, work.files[1:], work.format_name), store, "--meta=full")
    assert ts_cells(store) == plain_ts_cells(store, made)


def test_tracking_writes_counters_only(store: Store, tmp_path: Path) -> None:
    work = Workload.write(tmp_path, 1, series=7, hours=2, a_row=3)
    ran = run(Workload(work.points, work.files[:1], work.format_name), store, "--meta=track")
    assert json.loads(ran.out)["meta_cells"] == 7
    made = [(one, 0, 1, FIRST_MS) for one in series_of(work)]
    assert ts_cells(store) == plain_ts_cells(store, made, document=False)
    assert uid_meta_cells(store) == []
    ingested(work, store, "--meta=full")
    assert {cell.qualifier for cell in ts_cells(store)} == {b"ts_ctr", b"ts_meta"}
    assert len(ts_cells(store)) == 14


def test_off_needs_no_table_and_writes_nothing(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix)
    work = Workload.write(tmp_path, 1, series=3, hours=1, a_row=9)
    ingested(work, store)
    assert uid_meta_cells(store) == []
    ran = run(work, store, "--meta=full")
    assert ran.code == 1
    assert f"table {prefix}tsdb-meta. Create" in ran.err
    assert ran.err.rstrip().endswith("--meta")
    command = ran.err.rstrip().partition("with: timebeam ")[2].split()
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
    assert timebeam(*command, *place).code == 0
    ingested(work, store, "--meta=full")
    assert len(ts_cells(store)) == 6


def test_a_dry_run_writes_no_meta_data(store: Store, tmp_path: Path) -> None:
    ingested(Workload.write(tmp_path, 1, series=3, hours=1, a_row=9), store, "--meta=full", "--dry-run")
    assert ts_cells(store) == uid_meta_cells(store) == []


def test_what_people_and_tsds_have_written_stays(store: Store, tmp_path: Path) -> None:
    work = Workload.write(tmp_path, 1, series=9, hours=1, a_row=3)
    ingested(work, store, "--meta=full")
    theirs, counter = [], (77).to_bytes(8, "big")
    for number, cell in enumerate(ts_cells(store)):
        if number % 3 == 0:
            is_counter = cell.qualifier == b"ts_ctr"
            value = counter if is_counter else edited(cell.value, custom={"owner": "日本"}, notes="mine")
            store.set_cell(meta_name(store), cell.key, "name", cell.qualifier, value)  # at 1 s
            store.remove_row(meta_name(store), cell.key)
            store.set_cell(meta_name(store), cell.key, "name", cell.qualifier, value)
            theirs.append((cell.key, cell.qualifier, 1000, value))
    uid = uid_meta_cells(store)[0]
    store.set_cell(store.layout.options.uid_table, uid.key, "name", uid.qualifier, b"no JSON at all")
    ingested(work, store, "--meta=full")
    after = ts_cells(store)
    assert len(after) == 18
    assert set(theirs) <= set(map(tuple, after))
    newest = {cell[:2]: cell for cell in sorted(uid_meta_cells(store), key=lambda cell: cell.timestamp_ms)}
    assert newest[uid[:2]].value == b"no JSON at all"


@pytest.mark.parametrize("name", ["😀", "łódź"])
def test_series_that_are_rejected_get_none(store: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.txt"
    lines = [f"put {name} 1 1 a=b", f"put m 1 1 {name}=b", f"put m 1 1 a={name}", "put m NaN 1 a=c"]
    path.write_text("\n".join([*lines, "put m 1 1 größe=ä", ""]), "utf-8")
    flags = ["--auto-create-metrics", "--meta=full", "--format=opentsdb-text", f"--input={path}"]
    ran = timebeam("ingest", *store.flags, *flags, "--dead-letters", tmp_path / "dead")
    assert ran.code == 0, ran.err
    assert not any(b"?" in text for cell in store.uid_cells() for text in (cell[0], cell[3]))
    assert {len(cell.key) for cell in ts_cells(store)} <= {9}
    stored = {row.key[:3] + row.key[7:] for row in store.rows()}
    assert {cell.key for cell in ts_cells(store)} == stored
    assert len(stored) <= 1


def test_a_series_whose_points_are_all_rejected_gets_none(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    bad = {"metric": "bad", "timestamp": 9999999999999, "value": 1, "tags": {"a": "b"}}
    good = {"metric": "good", "timestamp": 1, "value": 1, "tags": {"a": "b"}}
    path.write_text(json.dumps([bad, good]))
    flags = ["--auto-create-metrics", "--meta=full", "--format=opentsdb-json", f"--input={path}"]
    ran = timebeam("ingest", *store.flags, *flags, "--dead-letters", tmp_path / "dead")
    assert ran.code == 0, ran.err
    names = store.names()
    assert {names["metrics", cell.key[:3]] for cell in ts_cells(store)} == {"good"}
    assert len(ts_cells(store)) == 2


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_calls_that_fail_and_answers_that_get_lost(
    store: Store, tmp_path: Path, emulator: str, when: str
) -> None:
    work = Workload.write(tmp_path, 1, series=25, hours=1, a_row=2)
    ingested(work, store)
    fault = Fault(grpc.StatusCode.UNAVAILABLE, when)
    with faulty(emulator, share(COMPARE_AND_SET, 0.2, 5, fault)) as proxy:
        ingested(work, store, "--meta=full")
        assert proxy.faults
    assert len(ts_cells(store)) == 50
    made = [(series, FIRST_MS // 1000) for series in series_of(work)]
    assert uid_meta_cells(store) == plain_uid_cells(store, made)


def test_an_error_that_does_not_pass_fails_the_run(store: Store, tmp_path: Path, emulator: str) -> None:
    work = Workload.write(tmp_path, 1, series=3, hours=1, a_row=9)
    ingested(work, store)
    fault = Fault(grpc.StatusCode.PERMISSION_DENIED)
    with faulty(emulator, share(COMPARE_AND_SET, 1, 5, fault)):
        ran = run(work, store, "--meta=full")
    assert ran.code == 1
    assert "injected" in ran.err


def test_a_stream(store: Store, tmp_path: Path, emulator: str) -> None:
    """Series are looked at once, though every micro-batch is a run of its own."""

    def message(number: int) -> Published:
        tags = {"host": f"h{number % 4}"}
        point = {"metric": "m", "timestamp": 1_767_225_600 + number, "value": 1, "tags": tags}
        return Published(json.dumps(point).encode(), 5000 + number)

    def stream(numbers: range) -> int:
        with (
            PubSubServer([message(number) for number in numbers]).running() as server,
            faulty(emulator, lambda _: None) as proxy,
        ):
            ran = timebeam(
                *("ingest", *store.flags, "--auto-create-metrics", "--meta=full", "--format=opentsdb-json"),
                *("--stop-when-idle=0.5", "--flush-seconds=0.1", "--dead-letters", tmp_path / "dead"),
                f"--input-subscription={SUBSCRIPTION}",
            )
            assert ran.code == 0, ran.err
            assert server.left == 0
            return proxy.calls[COMPARE_AND_SET]

    assert stream(range(200)) > 4
    first = ts_cells(store)
    assert len(first) == 8
    assert stream(range(200, 400)) == 0
    assert ts_cells(store) == first


def test_a_copy(store: Store, bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    both = Workload.write(tmp_path, 1, series=6, hours=1, a_row=9)
    work = Workload(both.points, both.files[:1], both.format_name)
    ingested(work, store)
    Store.create(bigtable, prefix + "b")
    command = [
        *("copy", *store.flags[1:], "--from=opentsdb", "--to=opentsdb", f"--to-table-prefix={prefix}b"),
        *("--auto-create-metrics", "--start=0", "--meta=full", "--dead-letters", tmp_path / "dead"),
    ]
    missing = timebeam(*command)
    assert missing.code == 1
    assert missing.err.rstrip().endswith(f"--table-prefix {prefix}b --meta"), missing.err
    other = with_meta(bigtable, prefix + "b")
    ran = timebeam(*command)
    assert ran.code == 0, ran.err
    made = [(one, FIRST_MS // 1000, 1, FIRST_MS) for one in series_of(work)]
    assert ts_cells(other) == plain_ts_cells(other, made)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--layout=heroic"], "layout heroic has no metadata; opentsdb has"),
        (
            ["--layout=table", "--tables=examples/tables/sensor.toml", "--format=records"],
            "layout table has no metadata; opentsdb has",
        ),
    ],
)
def test_layouts_without_meta_data(
    bigtable: tuple[str, str], tmp_path: Path, flags: list[str], text: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
    if not any("format" in flag for flag in flags):
        flags = [*flags, "--format=opentsdb-json"]
    ran = timebeam("ingest", *flags, *place, "--meta=full", f"--input={path}")
    assert (ran.code, text in ran.err) == (2, True), ran.err
