"""`timebeam compact` against the emulator: the points of the model before and after, in fewer cells."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.bigtable.data import SetCell

from tests.support import model
from tests.support.budget import long_after
from tests.support.commands import Ran, timebeam
from tests.support.data_client import open_table
from tests.support.fault_proxy import AFTER, BEFORE, MUTATE_ROWS, BadEntries, Do, faulty, nth, some_keys
from tests.support.model import Point, StoredCell
from tests.support.parsed import options_of
from tests.support.processes.killed import run_and_kill
from tests.support.stored import Store
from tests.support.workload import FIRST_MS, HOUR_S, START_S, Workload, check_equal, run, versions
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.store import closed_hours

DAY = "--day=2026-01-01"
APPENDED_MS = 1_795_000_000_000
ANNOTATION, HISTOGRAM, CORRUPT = b"\x01\x00\x00", b"\x06\x00\x00", b"\x00\x00\x00\x10"


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    """Older versions stay, as the service can leave them for days: what compaction deletes is seen."""
    return Store.create(bigtable, prefix, max_versions=1000, salt_width=1, salt_buckets=3)


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends are as old as they need to be."""
    monkeypatch.setattr(closed_hours, "SETTLED_MS", 0)


def compacted(store: Store, *flags: str) -> dict[str, Any]:
    """The summary of a compaction that must succeed."""
    ran = timebeam("compact", *store.flags, "--summary=json", *(flags or (DAY,)))
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def ingested(ran: Ran) -> None:
    assert ran.code == 0, ran.err


def points_of(store: Store, folder: Path) -> list[Point]:
    """Points in every form of cell, with corrections in each; returned in the order in which they win."""
    work = Workload.write(folder, 1, series=9, hours=3, a_row=20)
    old, new = work.files
    for packing, file in (("points", old), ("compacted", new)):
        one = Workload(work.points, [file], work.format_name)
        ingested(run(one, store, f"--packing={packing}", "--bigtable-writer=direct"))
    (folder / "appended").mkdir()
    later = Workload.write(folder / "appended", 2, series=6, hours=3, a_row=10)
    ingested(run(Workload(later.points, later.files[:1], later.format_name), store, "--packing=append"))
    appended = [point for point in later.points if point.arrival_ms == FIRST_MS]
    return [*work.points, *(point._replace(arrival_ms=APPENDED_MS) for point in appended)]


def add_others(store: Store) -> set[StoredCell]:
    """Annotations, histograms and corrupt cells in every row."""
    others = set()
    for key in {cell.key for cell in versions(store)}:
        for qualifier, value in ((ANNOTATION, b"{}"), (HISTOGRAM, b"\x00"), (CORRUPT, bytes(40))):
            store.set_cell(store.layout.data_table, key, "t", qualifier, value)
            others.add(StoredCell(key, "t", qualifier, 1000, value))
    return others


@pytest.mark.parametrize("salt_width", [0, 1])
def test_the_points_are_the_same_in_one_cell_each_row(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, salt_width: int
) -> None:
    store = Store.create(bigtable, prefix, salt_width=salt_width, salt_buckets=3)
    points = points_of(store, tmp_path)
    check_equal(store, points, "append")
    before = versions(store, newest=True)
    summary = compacted(store)
    after = versions(store)
    check_equal(store, points, "compacted")
    rows = {cell.key for cell in before}
    assert len(after) == len(rows) == summary["rows_read"]
    assert (summary["cells_before"], summary["cells_after"]) == (len(before), len(after))
    assert (summary["bytes_before"], summary["bytes_after"]) == (size(before), size(after))
    newest = {key: max(cell.timestamp_ms for cell in before if cell.key == key) for key in rows}
    assert {cell.key: cell.timestamp_ms for cell in after} == newest
    assert timebeam("check", *store.flags).code == 0
    summary = compacted(store)
    assert summary["rows_rewritten"] == 0
    assert (summary["cells_before"], summary["cells_after"]) == (len(after), len(after))
    assert versions(store) == after


def size(cells: list[StoredCell]) -> int:
    return sum(len(cell.key) + 1 + len(cell.qualifier) + 8 + len(cell.value) for cell in cells)


@pytest.mark.parametrize("form", ["compacted", "append"])
def test_what_is_no_points_stays(store: Store, tmp_path: Path, form: str) -> None:
    points = points_of(store, tmp_path)
    others = add_others(store)
    compacted(store, DAY, f"--form={form}")
    after = set(versions(store))
    assert others <= after
    assert len(after - others) == len({cell.key for cell in after})
    assert all((len(cell.qualifier) == 3) == (form == "append") for cell in after - others)
    found = model.read_content(after - others, store.names(), store.layout.options)
    assert found == model.content(points)


def test_only_the_hours_asked_for_are_touched(store: Store, tmp_path: Path) -> None:
    points = points_of(store, tmp_path)
    before = versions(store)
    start, end = START_S + HOUR_S // 2, START_S + 5 * HOUR_S // 2  # within them is one whole hour
    summary = compacted(store, f"--start={start}", f"--end={end}")
    after = versions(store)

    def outside(cells: list[StoredCell]) -> set[StoredCell]:
        at = store.layout.options.salt_width + 3
        base = (START_S + HOUR_S).to_bytes(4, "big")
        return {cell for cell in cells if cell.key[at : at + 4] != base}

    assert outside(after) == outside(before)
    assert len(after) - len(outside(after)) == summary["rows_read"] == 9
    check_equal(store, points, "append")


def test_a_dry_run_counts_the_same_and_writes_nothing(store: Store, tmp_path: Path) -> None:
    points_of(store, tmp_path)
    before = versions(store)
    planned = compacted(store, DAY, "--dry-run")
    assert versions(store) == before
    done = compacted(store)
    assert planned.pop("dry_run") is True
    assert done.pop("dry_run") is False
    assert planned | {"seconds": 0} == done | {"seconds": 0}
    text = timebeam("compact", *store.flags, DAY, "--dry-run").out.splitlines()
    assert text[0] == "nothing was written (dry run)"
    assert text[2].split() == ["rows", "to", "rewrite", "0"]


def test_points_written_between_reading_and_writing_survive(
    store: Store, tmp_path: Path, emulator: str
) -> None:
    work = Workload.write(tmp_path, 3, series=6, hours=2, a_row=10)
    ingested(run(work, store, "--packing=points"))
    late: set[StoredCell] = set()

    def write() -> None:
        """A correction of one column of each row, a point at a new instant, and an appended one."""
        table = open_table(store.target, store.layout.data_table)
        for cell in {cell.key: cell for cell in versions(store)}.values():
            at = cell.timestamp_ms + 3_600_000
            new = bytes.fromhex("f3fffff0" if cell.qualifier[0] >= 0xF0 else "e0f0")
            for qualifier, value in (
                (cell.qualifier, bytes(len(cell.value))),
                (new, b"\x07"),
                (b"\x05\x00\x00", b"\xe0\xe0\x09"),
            ):
                table.mutate_row(cell.key, SetCell("t", qualifier, value, at * 1000))
                late.add(StoredCell(cell.key, "t", qualifier, at, value))

    before = set(versions(store))
    with faulty(emulator, nth(MUTATE_ROWS, [1], Do(write))) as proxy:
        assert compacted(store)["rows_rewritten"] == 12
        assert len(proxy.faults) == 1
    names, options = store.names(), store.layout.options
    assert len(late) == 36
    corrected = {(cell.key, cell.qualifier) for cell in late}
    expected = {cell for cell in before if (cell.key, cell.qualifier) not in corrected} | late
    found = model.read_content(versions(store, newest=True), names, options)
    assert found == model.read_content(expected, names, options)
    assert late <= set(versions(store))
    compacted(store)
    assert model.read_content(versions(store), names, options) == found


@pytest.mark.parametrize("when", long_after(1, [AFTER, BEFORE]))
def test_killed_and_run_again(store: Store, tmp_path: Path, emulator: str, when: str) -> None:
    points = points_of(store, tmp_path)
    rows = len({cell.key for cell in versions(store)})
    assert run_and_kill(emulator, ["compact", *store.flags, DAY], 2, when).ran.code == -signal.SIGKILL
    check_equal(store, points, "append")
    compacted(store)
    assert len(versions(store)) == rows
    check_equal(store, points, "compacted")


def test_a_row_that_bigtable_rejects_stays_as_it_was(store: Store, tmp_path: Path, emulator: str) -> None:
    points = points_of(store, tmp_path)
    before = versions(store)
    is_bad = some_keys(0.3, 1)
    fault = BadEntries(grpc.StatusCode.INVALID_ARGUMENT, is_bad)
    rejected = {cell.key for cell in before if is_bad(cell.key)}
    with faulty(emulator, lambda call: fault if call.method == MUTATE_ROWS else None):
        ran = timebeam("compact", *store.flags, DAY, "--summary=json")
    assert ran.code == 1
    assert json.loads(ran.out)["rows_rejected"] == len(rejected) > 0
    assert {cell for cell in versions(store) if is_bad(cell.key)} == {
        cell for cell in before if is_bad(cell.key)
    }
    check_equal(store, points, "append")
    compacted(store)
    check_equal(store, points, "compacted")


NOON = 1_772_280_000_000  # 2026-02-28T12:00Z


@pytest.mark.parametrize(
    ("words", "first", "end"),
    [
        ([], -36, -12),
        (["--closed-hours=12"], -36, -12),
        (["--closed-hours=12.5"], -60, -36),
        (["--day=2026-02-28"], -12, -1),
        (["--day=2026-02-28", "--closed-hours=0"], -12, 0),
        (["--day=2026-02-28", "--closed-hours=1.5"], -12, -2),
        (["--start=6h-ago", "--end=now"], -6, -1),
        (["--start=330m-ago", "--end=150m-ago"], -5, -3),
    ],
)
def test_only_closed_hours(words: list[str], first: int, end: int) -> None:
    expected = tuple(NOON // 1000 + hours * HOUR_S for hours in (first, end))
    assert closed_hours.hours_of(options_of(closed_hours.CompactOptions, "compact", *words), NOON) == expected


@pytest.mark.parametrize(
    "words",
    [["--day=2026-03-01"], ["--start=1h-ago", "--end=now"], ["--start=59m-ago", "--end=10m-ago"]],
)
def test_no_closed_hour(words: list[str]) -> None:
    with pytest.raises(UsageError, match="no hour of this time range is closed"):
        closed_hours.hours_of(options_of(closed_hours.CompactOptions, "compact", *words), NOON)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--layout=heroic"], "layout heroic has no compaction; opentsdb has"),
        (["--layout=opentsdb", "--day=yesterday"], "isoformat"),
        (
            ["--layout=opentsdb", "--day=2026-02-28", "--start=1", "--end=2"],
            "give --start and --end, or --day",
        ),
        (["--layout=opentsdb", "--start=2d-ago"], "give --start and --end, or --day"),
        (["--layout=opentsdb", "--form=points"], "invalid choice"),
    ],
)
def test_wrong_usage(bigtable: tuple[str, str], prefix: str, flags: list[str], text: str) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    ran = timebeam("compact", *flags, *place)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_tables_that_are_missing_are_said(bigtable: tuple[str, str], prefix: str) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    ran = timebeam("compact", "--layout=opentsdb", *place)
    assert (ran.code, f"table {prefix}tsdb" in ran.err) == (1, True), ran.err
