"""Writers mark the hours of their points, and `rollup --changed` does exactly the marked hours again."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import time
import types
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import ingest, timebeam
from tests.support.fault_proxy import INCREMENT, MUTATE_ROWS, BadEntries, Call, Do, faulty
from tests.support.plain.rollup_day import (
    CONFIG,
    DAY,
    HOUR,
    SECONDS,
    Points,
    expected,
    points_of,
    rollup,
    same,
    send,
    stored,
)
from tests.support.stored import Store
from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.read.table_reader import scan_table
from timebeam.transforms.rollup import changed_hours
from timebeam.transforms.rollup.changed_hours import (
    ChangedHour,
    ChangedHoursWriter,
    changed_hours_table,
    changed_ranges,
    clear_hours,
    read_changed_hours,
)
from timebeam.transforms.rollup.row_leases import DEAD_MS

MARK_BYTES = 7
"""Of the row key of a mark, the longest of its table."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rollups.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, config: Path) -> Store:
    made = Store.create(bigtable, prefix)
    assert timebeam("tables", "create", *made.flags, "--rollup-config", config).code == 0
    return made


def send_late(store: Store, folder: Path, points: Points, age: int, *more: str) -> None:
    """As `send`, with marks."""
    path = folder / f"late-{age}.txt"
    path.write_text(
        "".join(
            f"put {series.metric} {time_ms // 1000} {value!r} "
            + " ".join(f"{key}={tag}" for key, tag in series.tags)
            + "\n"
            for (series, time_ms), value in points.items()
        )
    )
    os.utime(path, (1_700_000_000 + age,) * 2)
    flags = ("--format=opentsdb-text", "--mark-changed", "--decimals=double", *more)
    ingest(folder, *store.flags, *flags, "--input", path)


def marks(store: Store) -> list[ChangedHour]:
    return list(read_changed_hours(store.target, store.layout))


def hours_of(points: Points) -> set[int]:
    return {at // 1000 // HOUR * HOUR for _, at in points}


def test_late_points_and_corrections(store: Store, config: Path, tmp_path: Path) -> None:
    """After `--changed` the tables are those of a computation from scratch; only the changed were read."""
    rng = random.Random(11)
    points = points_of(rng, DAY, 6) | points_of(rng, DAY - 24 * HOUR, 6)
    send(store, tmp_path, points, 1)
    assert rollup(store, config, f"--start={DAY - 24 * HOUR}", f"--end={DAY + 24 * HOUR}").code == 0
    assert marks(store) == []
    late = {
        (series, at // 1000 * 1000 + 7000): 5
        for series, at in rng.sample(sorted(points), 40)
        if series.metric == "sys.m1" and at >= DAY * 1000
    }
    corrected = {key: -1 for key in sorted(points) if key[0].metric == "sys.m1" and not key[1] % 1000}
    corrected = {key: value for key, value in list(corrected.items())[:5] if key[1] >= DAY * 1000} | late
    send_late(store, tmp_path, corrected, 2)
    points |= corrected
    assert {(mark.start_s // 86_400 * 86_400, len(mark.metric)) for mark in marks(store)} == {(DAY, 3)}
    assert len(marks(store)) == len({at // 1000 // HOUR for _, at in corrected})
    ran = rollup(store, config, "--changed")
    assert ran.code == 0, ran.err
    read = json.loads(ran.out)["points_read"]
    assert read == sum(key[0].metric == "sys.m1" and key[1] >= DAY * 1000 for key in points)
    assert marks(store) == []
    same(stored(store, SECONDS), expected(points))
    again = rollup(store, config, "--changed")
    assert (again.code, "no late points" in again.err) == (0, True)


def test_marks_of_a_metric_stay_if_bigtable_rejects_a_row(
    store: Store, config: Path, tmp_path: Path, emulator: str
) -> None:
    points = points_of(random.Random(17), DAY, 2)
    send(store, tmp_path, points, 1)
    late = {key: 1 for key in sorted(points) if not key[1] % 1000}
    send_late(store, tmp_path, late, 2)
    marked = marks(store)
    metric = marked[0].metric
    kept = [mark for mark in marked if mark.metric == metric]
    assert len(kept) < len(marked)
    bad = itertools.count()
    fault = BadEntries(
        grpc.StatusCode.INVALID_ARGUMENT,
        lambda key: len(key) > MARK_BYTES and key.startswith(metric) and not next(bad),
    )
    with faulty(emulator, lambda call: fault if call.method == MUTATE_ROWS else None):
        ran = rollup(store, config, "--changed")
    assert json.loads(ran.out)["rejected"] == {"write-refused": 1}
    assert marks(store) == kept
    assert rollup(store, config, "--changed").code == 0
    assert marks(store) == []
    same(stored(store, SECONDS), expected(points | late))


def test_hours_that_are_not_over_stay_marked(store: Store, config: Path, tmp_path: Path) -> None:
    now = int(time.time())
    path = tmp_path / "now.txt"
    path.write_text(f"put sys.m {now} 1 host=a\nput sys.m {now - 3 * 86_400} 1 host=a\n")
    flags = ("--format=opentsdb-text", "--auto-create-metrics", "--bigtable-writer=direct", "--mark-changed")
    ingest(tmp_path, *store.flags, *flags, "--input", path)
    assert len(marks(store)) == 2
    assert rollup(store, config, "--changed").code == 0
    assert [mark.start_s for mark in marks(store)] == [now // HOUR * HOUR]


def test_a_mark_that_changed_meanwhile_stays(store: Store, config: Path, tmp_path: Path) -> None:
    points = points_of(random.Random(12), DAY, 2)
    send(store, tmp_path, points, 1)
    send_late(store, tmp_path, {key: 1 for key in sorted(points)[:3] if not key[1] % 1000} or points, 2)
    old = marks(store)
    send_late(store, tmp_path, {key: 2 for key in sorted(points)[:3] if not key[1] % 1000} or points, 3)
    clear_hours(store.target, store.layout, old)
    assert {(mark.metric, mark.start_s) for mark in marks(store)} == {
        (mark.metric, mark.start_s) for mark in old
    }
    clear_hours(store.target, store.layout, marks(store))
    assert marks(store) == []


WRITERS = [
    ("--bigtable-writer=direct", "--packing=compacted"),
    ("--bigtable-writer=direct", "--packing=points"),
    ("--bigtable-writer=direct", "--packing=append"),
    ("--bigtable-writer=beam", "--packing=compacted"),
]


@pytest.mark.parametrize("flags", WRITERS, ids=lambda flags: " ".join(flags))
def test_every_writer_marks_before_and_after(
    store: Store, config: Path, tmp_path: Path, emulator: str, flags: tuple[str, ...]
) -> None:
    """A rollup may read and clear the marks before the points of a request are stored: they come again."""
    points = points_of(random.Random(18), DAY, 2)
    send(store, tmp_path, {key: 1 for key in points if key[1] % 1000}, 1)
    late = {key: 1 for key in sorted(points) if not key[1] % 1000}
    cleared = []

    def clear() -> None:
        cleared.append(marks(store))
        clear_hours(store.target, store.layout, cleared[-1])

    def plan(call: Call) -> Do | None:
        table = call.request[2 : 2 + call.request[1]].decode()
        is_data = table.endswith("/" + store.layout.data_table) and call.method in (MUTATE_ROWS, INCREMENT)
        return Do(clear) if is_data else None

    with faulty(emulator, plan):
        send_late(store, tmp_path, late, 2, *flags)
    assert {mark.start_s for marked in cleared for mark in marked} == hours_of(late)
    assert {mark.start_s for mark in marks(store)} == hours_of(late)
    assert rollup(store, config, "--changed").code == 0
    assert marks(store) == []


def test_a_forked_process_is_a_writer_of_its_own() -> None:
    """Otherwise its marks could have the times of another writer's marks, or close their request."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, changed_hours._WRITER.column(DAY))
        os._exit(0)
    os.waitpid(child, 0)
    column = os.read(reading, 100)
    assert (len(column), column == changed_hours._WRITER.column(DAY)) == (9, False)


def test_a_mark_of_a_writer_whose_clock_is_behind_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers mark one hour; the second one's clock is a day behind, and stands still."""
    hours_writer, hour = ChangedHoursWriter(store.layout), [(b"\0\0\1", DAY)]
    hours_writer.mark(store.target, hour, stored=True)
    read = marks(store)
    behind = changed_hours._HourWriter()
    monkeypatch.setattr(changed_hours, "_WRITER", behind)
    monkeypatch.setattr(changed_hours, "time", types.SimpleNamespace(time=lambda: 1_600_000_000.0))
    hours_writer.mark(store.target, hour, stored=True)
    clear_hours(store.target, store.layout, read)
    (mark,) = marks(store)
    column = behind.column(DAY)
    assert mark.times_ms == ((column, 1_600_000_000_000),)
    hours_writer.mark(store.target, hour, stored=True)
    clear_hours(store.target, store.layout, [mark])
    (mark,) = marks(store)
    assert mark.times_ms == ((column, 1_600_000_000_001),)
    clear_hours(store.target, store.layout, [mark])
    assert marks(store) == []


@pytest.mark.parametrize(
    "row",
    [
        Row("", b"\0\0\1" + (DAY + HOUR).to_bytes(4, "big"), [Cell("t", b"", 1_772_400_000_000, b"")]),
        Row("", b"end", [Cell("t", b"", DAY * 1000, b"")]),
    ],
)
def test_rows_from_before_the_first_release_are_rejected(store: Store, config: Path, row: Row) -> None:
    """Such a row was named by an hour: read as the row of a day, it would mark other hours."""
    table = changed_hours_table(store.layout).name
    write_all(store.target, table, [row._replace(table=table)])
    ran = rollup(store, config, "--changed")
    assert (ran.code, ran.out) == (1, "")
    assert f"row {row.key.hex()} has column (empty), which is not a mark: delete the table" in ran.err
    assert list(scan_table(store.target, table)) == [row._replace(table=table)]


def test_a_rollup_of_a_range_clears_the_marks_that_it_covers(
    store: Store, config: Path, tmp_path: Path
) -> None:
    """Intervals are up to a day long: an hour is covered if its whole day is."""
    points = points_of(random.Random(20), DAY - 24 * HOUR, 30)
    send_late(store, tmp_path, points, 1, "--auto-create-metrics")
    assert {mark.start_s for mark in marks(store)} == hours_of(points)
    assert rollup(store, config, f"--start={DAY - 9 * HOUR}", f"--end={DAY - 6 * HOUR}").code == 0
    assert {mark.start_s for mark in marks(store)} == hours_of(points)
    assert rollup(store, config, f"--start={DAY - 24 * HOUR}", f"--end={DAY - HOUR}").code == 0
    hours = {hour for hour in hours_of(points) if hour >= DAY - HOUR}
    assert {mark.start_s for mark in marks(store)} == hours
    assert rollup(store, config, "--day=2026-02-28").code == 0
    assert {mark.start_s for mark in marks(store)} == {DAY - HOUR}
    assert rollup(store, config, "--changed").code == 0
    assert marks(store) == []
    same(stored(store, SECONDS), expected(points))


def test_wrong_usage(store: Store, config: Path) -> None:
    ran = timebeam("rollup", *store.flags, "--rollup-config", config, "--changed", "--day=2026-02-28")
    assert (ran.code, "--changed selects the days" in ran.err) == (2, True), ran.err


def test_all_days_share_one_run_and_its_dead_letters(store: Store, config: Path, tmp_path: Path) -> None:
    """Two changed days with a corrupt cell each: one summary, and both cells are in the dead letters."""
    points = points_of(random.Random(13), DAY, 1) | points_of(random.Random(14), DAY - 24 * HOUR, 1)
    send(store, tmp_path, points, 1)
    late = {key: 1 for key in sorted(points) if not key[1] % 1000}
    send_late(store, tmp_path, late, 2)
    corrupt = set()
    for start_s in (DAY - 24 * HOUR, DAY):
        row = next(row for row in store.rows() if start_s.to_bytes(4, "big") in row.key)
        store.set_cell(store.layout.data_table, row.key, "t", b"\x12", b"odd")
        corrupt.add(row.key.hex())
    ran = rollup(store, config, "--changed")
    assert (ran.code, len(ran.out.splitlines())) == (0, 1)
    files = sorted(tmp_path.glob("rollup-letters*"))
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert {base64.b64decode(json.loads(one["payload"])["key"]).hex() for one in letters} == corrupt


def test_without_intervals_of_a_day_only_the_changed_hours_are_read(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    config = tmp_path / "hours.json"
    intervals = [one for one in CONFIG["intervals"] if one["interval"] != "1d"]
    config.write_text(json.dumps({**CONFIG, "intervals": intervals}))
    store = Store.create(bigtable, prefix)
    assert timebeam("tables", "create", *store.flags, "--rollup-config", config).code == 0
    points = points_of(random.Random(15), DAY, 12)
    send(store, tmp_path, points, 1)
    assert rollup(store, config, f"--start={DAY}", f"--end={DAY + 24 * HOUR}").code == 0
    chosen = {3, 4, 9}
    late = {
        key: 1
        for key in sorted(points)
        if (key[1] // 1000 - DAY) // HOUR in chosen and key[0].metric == "sys.m0" and not key[1] % 1000
    }
    send_late(store, tmp_path, late, 2)
    points |= late
    ran = rollup(store, config, "--changed")
    assert ran.code == 0, ran.err
    hours = [
        int(line.split("changes in ")[1].split()[0]) for line in ran.err.splitlines() if " metrics" in line
    ]
    assert hours == [2, 1]
    read = sum(json.loads(line)["points_read"] for line in ran.out.splitlines())
    assert read == sum(
        key[0].metric == "sys.m0" and (key[1] // 1000 - DAY) // HOUR in chosen for key in points
    )
    assert marks(store) == []
    wanted = [name for name in SECONDS if "1d" not in name]
    same(stored(store, wanted), {key: value for key, value in expected(points).items() if "1d" not in key[0]})


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 60)), min_size=1, unique=True),
    st.lists(
        st.sampled_from([60, 2700, HOUR, 2 * HOUR, 7 * HOUR, 24 * HOUR, 48 * HOUR, 72 * HOUR]),
        min_size=1,
        max_size=3,
        unique=True,
    ),
)
def test_ranges_have_all_intervals_of_the_hours_and_each_mark_once(found, lengths):
    given_marks = [ChangedHour(metric, DAY + hour * HOUR, ()) for metric, hour in found]
    ranges = changed_ranges(given_marks, lengths)
    assert {mark for one in ranges for mark in one.hours} == set(given_marks)
    assert sum(len(one.hours) for one in ranges) == len(given_marks)
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(ranges))
    for one in ranges:
        assert one.metrics == {mark.metric for mark in one.hours}
        needed = set()
        for mark in one.hours:
            for length in lengths:
                first = mark.start_s // length * length
                for start in range(first, mark.start_s + HOUR, length):
                    assert one.start_s <= start
                    assert start + length <= one.end_s
                    needed |= set(range(start // 60, (start + length) // 60))
        assert set(range(one.start_s // 60, one.end_s // 60)) == needed  # and nothing else


def test_a_mark_is_open_while_a_request_of_its_hour_is_under_way(store: Store) -> None:
    """Two requests of one process overlap; a follower may delete the mark when both are stored."""
    hours_writer, hour, other = ChangedHoursWriter(store.layout), (b"\0\0\1", DAY), (b"\0\0\1", DAY + HOUR)

    def still_open() -> list[bool]:
        return [bool(mark.open) and not mark.settled(0).times_ms for mark in marks(store)]

    hours_writer.mark(store.target, [hour, other], stored=False)
    assert still_open() == [True, True]
    hours_writer.mark(store.target, [hour], stored=False)
    hours_writer.mark(store.target, [hour, other], stored=True)
    assert still_open() == [True, False]
    assert all(mark.settled(mark.times_ms[0][1] + DEAD_MS) == mark for mark in marks(store))
    hours_writer.mark(store.target, [hour], stored=True)
    assert still_open() == [False, False]
