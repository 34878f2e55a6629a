"""`timebeam meta sync`: the meta table out of the data table, against a slow model of `metasync`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.bigtable.data import DeleteRangeFromColumn

from tests.jobs.meta.meta_tables import (
    MetaCell,
    edited,
    meta_name,
    plain_ts_cells,
    plain_uid_cells,
    ts_cells,
    tsuid_of,
    uid_meta_cells,
    with_meta,
)
from tests.support.budget import long_after
from tests.support.commands import timebeam
from tests.support.data_client import open_table
from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, Call, Do, Fault, faulty, share
from tests.support.model import SeriesName
from tests.support.stored import Store
from tests.support.workload import HOUR_S, Workload, run

OPTIONS: list[dict[str, Any]] = [
    {},
    {"salt_width": 1, "salt_buckets": 3},
    {"uid_width_metric": 4, "uid_width_tagk": 1, "uid_width_tagv": 2},
]


def sync(store: Store, *flags: str, code: int = 0) -> dict[str, Any]:
    """The summary of a synchronisation."""
    ran = timebeam("meta", "sync", *store.flags, "--summary=json", *flags)
    assert ran.code == code, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def filled(store: Store, folder: Path, packing: str = "compacted", **size: int) -> Workload:
    work = Workload.write(folder, 3, **({"series": 14, "hours": 3, "a_row": 6} | size))
    ran = run(work, store, f"--packing={packing}")
    assert ran.code == 0, ran.err
    return work


def hours_of(work: Workload) -> dict[SeriesName, list[int]]:
    """The hours with points of each series, ascending, in seconds."""
    found: dict[SeriesName, list[int]] = {}
    for point in sorted(work.points, key=lambda point: point.time_ms):
        found.setdefault(point.series, []).append(point.time_ms // 3_600_000 * HOUR_S)
    return found


def plain_sync(store: Store, work: Workload) -> list[MetaCell]:
    hours = hours_of(work).items()
    return plain_ts_cells(store, [(one, times[0], 1, times[-1] * 1000) for one, times in hours])


def points_of(work: Workload) -> dict[SeriesName, int]:
    times = {(point.series, point.time_ms) for point in work.points}
    return {one: sum(series == one for series, _ in times) for one, _ in times}


@pytest.mark.parametrize("options", long_after(2, OPTIONS))
def test_what_is_missing_is_made_from_the_data(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    store = with_meta(bigtable, prefix, **options)
    work = filled(store, tmp_path)
    dry = sync(store, "--dry-run")
    assert ts_cells(store) == uid_meta_cells(store) == []
    done = sync(store)
    assert {**dry, "dry_run": False, "seconds": 0} == {**done, "seconds": 0}
    assert (done["series"], done["series_created"], done["rows_read"]) == (14, 28, 42)
    assert ts_cells(store) == plain_sync(store, work)
    names = plain_uid_cells(store, [(one, times[0]) for one, times in hours_of(work).items()])
    assert uid_meta_cells(store) == names
    assert done["uids_created"] == len(names)
    again = sync(store)
    assert (again["series_created"], again["uids_created"], again["counters_set"]) == (0, 0, 0)
    assert (ts_cells(store), uid_meta_cells(store)) == (plain_sync(store, work), names)


@pytest.mark.parametrize("packing", ["points", "append"])
def test_points_are_counted(bigtable: tuple[str, str], prefix: str, tmp_path: Path, packing: str) -> None:
    store = with_meta(bigtable, prefix)
    work = filled(store, tmp_path, packing)
    sync(store)
    done = sync(store, "--count")
    counts = points_of(work)
    assert done["points"] == sum(counts.values())
    assert (done["series_created"], done["counters_set"], done["counters_lost"]) == (0, 14, 0)
    newest = {cell.key: cell for cell in sorted(ts_cells(store), key=lambda cell: cell.timestamp_ms)}
    assert {key: int.from_bytes(cell.value, "big") for key, cell in newest.items()} == {
        tsuid_of(store.uids(), series): points for series, points in counts.items()
    }
    before = ts_cells(store)
    assert sync(store, "--count")["counters_set"] == 0
    assert sync(store)["counters_set"] == 0
    assert ts_cells(store) == before


def test_a_count_into_an_empty_table_has_the_newest_arrival(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = with_meta(bigtable, prefix)
    work = filled(store, tmp_path, "points")
    assert sync(store, "--count")["series_created"] == 28
    latest: dict[SeriesName, int] = {}
    for point in work.points:
        latest[point.series] = max(latest.get(point.series, 0), point.arrival_ms)
    counts = points_of(work)
    made = [(one, times[0], counts[one], latest[one]) for one, times in hours_of(work).items()]
    assert ts_cells(store) == plain_ts_cells(store, made)


def test_a_counter_that_grows_meanwhile_stays(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, emulator: str
) -> None:
    store = with_meta(bigtable, prefix)
    filled(store, tmp_path)
    sync(store)
    key = ts_cells(store)[0].key
    value = (9999).to_bytes(8, "big")

    def grow() -> None:
        store.remove_row(meta_name(store), key)
        store.set_cell(meta_name(store), key, "name", b"ts_ctr", value)

    def plan(call: Call) -> Do | None:
        return Do(grow) if call.method == COMPARE_AND_SET and key in call.request else None

    with faulty(emulator, plan):
        done = sync(store, "--count")
    assert (done["counters_set"], done["counters_lost"]) == (13, 1)
    assert [cell.value for cell in ts_cells(store) if cell.key == key] == [value]


def test_what_exists_stays_and_what_is_corrupt_is_said(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = with_meta(bigtable, prefix)
    work = filled(store, tmp_path)
    sync(store)
    rows = sorted({cell.key for cell in ts_cells(store)})
    old = {cell.key: cell.value for cell in ts_cells(store) if cell.qualifier == b"ts_meta"}
    mine = edited(old[rows[0]], description="größe 日本 😀", custom={"owner": "me"}, created=1)
    for key, qualifier, value in (
        (rows[0], b"ts_meta", mine),
        (rows[1], b"ts_meta", b"{"),
        (rows[2], b"ts_ctr", b"\0\1"),
    ):
        store.remove_row(meta_name(store), key)
        store.set_cell(meta_name(store), key, "name", qualifier, value)
    store.remove_row(meta_name(store), rows[3])
    uid = store.uids()
    store.set_uid("tagk_meta", "name", sorted(uid.values())[0], b"[]")
    ran = timebeam("meta", "sync", *store.flags, "--count")
    assert ran.code == 1
    assert "corrupt, not changed       3" in ran.out
    newest = {cell[:2]: cell.value for cell in sorted(ts_cells(store), key=lambda cell: cell.timestamp_ms)}
    assert newest[rows[0], b"ts_meta"] == mine
    assert newest[rows[1], b"ts_meta"] == b"{"
    assert (rows[3], b"ts_meta") in newest
    assert len(newest) == 2 * len(hours_of(work))


def test_series_whose_names_are_lost_and_keys_of_no_series(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = with_meta(bigtable, prefix)
    work = filled(store, tmp_path)
    uids = store.uids()
    lost = next(uid for name, uid in uids.items() if name == ("tagv", "dc1"))
    gone = DeleteRangeFromColumn("name", b"tagv")
    open_table(store.target, store.layout.options.uid_table).mutate_row(
        lost, gone
    )  # other kinds share the row
    store.set_cell(store.layout.data_table, b"none", "t", b"\0\0", b"\1")
    annotations = bytes(3) + b"\1\1\1\1"
    store.set_cell(store.layout.data_table, annotations, "t", b"\1\0\0", b"{}")
    done = sync(store, code=1)
    bad = [one for one in hours_of(work) if ("dc", "dc1") in one[1]]
    assert (done["series_skipped"], done["keys_skipped"], done["corrupt"]) == (len(bad), 1, 0)
    found = {cell.key for cell in ts_cells(store)}
    assert found == {tsuid_of(uids, one) for one in hours_of(work) if one not in bad}


@pytest.mark.parametrize("when", long_after(1, [AFTER, BEFORE]))
def test_failing_calls(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, emulator: str, when: str
) -> None:
    store = with_meta(bigtable, prefix)
    work = filled(store, tmp_path)
    fault = Fault(grpc.StatusCode.ABORTED, when)
    with faulty(emulator, share(COMPARE_AND_SET, 0.2, 1, fault)) as proxy:
        sync(store)
        assert proxy.faults
    assert ts_cells(store) == plain_sync(store, work)
    with faulty(emulator, share(COMPARE_AND_SET, 0.2, 2, fault)):
        assert sync(store, "--count")["counters_set"] == 14
    assert sync(store, "--count")["counters_set"] == 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--layout=heroic"], "layout heroic has no metadata; opentsdb has"),
        (["--layout=opentsdb", "--yes"], "--yes needs --purge"),
        (["--layout=opentsdb", "--purge", "--yes", "--dry-run"], "give only one of them"),
        (
            [
                "--layout=opentsdb",
                "--purge",
                "--runner=DataflowRunner",
                "--dataflow_endpoint=http://localhost:9",
            ],
            "on this machine",
        ),
        (["--layout=opentsdb", "--nonsense"], "unknown option --nonsense"),
    ],
)
def test_wrong_usage(bigtable: tuple[str, str], prefix: str, flags: list[str], text: str) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    ran = timebeam("meta", "sync", *flags, *place)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_a_missing_meta_table_is_said(bigtable: tuple[str, str], prefix: str) -> None:
    store = Store.create(bigtable, prefix)
    ran = timebeam("meta", "sync", *store.flags)
    assert ran.code == 1
    assert f"missing in instance {bigtable[1]} of project local" in ran.err
    assert ran.err.rstrip().endswith("--meta")
