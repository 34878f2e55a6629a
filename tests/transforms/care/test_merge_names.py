"""`timebeam names merge`: the rows of one name, moved to another; of each instant the latest arrival wins."""

from __future__ import annotations

import random
from pathlib import Path

import grpc
import pytest
from google.cloud.bigtable.data import SetCell

from tests.support.commands import Ran, ingest, timebeam
from tests.support.data_client import open_table
from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, MUTATE_ROWS, Call, Do, Fault, faulty
from tests.support.plain.rolled import config_file, interval, with_tables
from tests.support.points import write_file
from tests.support.processes.killed import run_and_kill, run_through_kills
from tests.support.processes.uid_checks import assigned
from tests.support.stored import Store
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.transforms.opentsdb import merge_uids
from timebeam.transforms.read.table_reader import scan_table

DAY = 1_767_225_600
Expected = dict[Series, dict[int, float]]


def filled(store: Store, folder: Path, renamed: dict[str, str]) -> Expected:
    """Points of both names in four files, of which the later ones correct some; what is read after the merge.

    Args:
      renamed: what each name is called after the merge.
    """
    chance = random.Random(5)
    latest: Expected = {}
    for number, packing in enumerate(("compacted", "points", "compacted", "append")):
        lines, points = [], {}
        for _ in range(60):
            metric, host = chance.choice(("sys.old", "sys.new")), chance.choice(("old", "new", "c"))
            time_s, value = DAY + chance.choice((0, 3600)) + chance.randrange(40), chance.randrange(900) / 8
            key = (renamed.get(metric, metric), renamed.get(host, host), time_s)
            if key in points:
                continue  # of one arrival each instant has one value, under either name
            points[key] = value
            lines.append(f"put {metric} {time_s} {value} host={host} dc=x\n".encode())
        for (metric, host, time_s), value in points.items():
            series = Series.of(metric, {"host": host, "dc": "x"})
            latest.setdefault(series, {})[time_s * 1000] = value
        path = write_file(folder / f"{number}.txt", lines, 1_767_300_000_000 + 1000 * number)
        flags = ("--format=opentsdb-text", "--auto-create-metrics", f"--packing={packing}", f"--input={path}")
        ingest(folder, *store.flags, *flags)
    return latest


def merged(store: Store, *words: str) -> Ran:
    return timebeam("names", "merge", *words, *store.flags)


KINDS = {
    "metrics": ("metrics", "sys.old", "sys.new"),
    "tagv": ("tagv", "old", "new"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_merge(bigtable: tuple[str, str], prefix: str, tmp_path: Path, kind: str) -> None:
    _, old, new = words = KINDS[kind]
    store = Store.create(bigtable, prefix, salt_width=1, salt_buckets=4)
    expected = filled(store, tmp_path, {old: new})
    before = store.cells()
    dry = merged(store, *words)
    assert dry.code == 0, dry.err
    assert dry.out.startswith("would move ")
    assert store.cells() == before
    ran = merged(store, *words, "--yes")
    assert ran.code == 0, ran.err
    assert store.points() == expected
    assert merged(store, *words, "--yes").code == 2
    assert old not in {name.text for name in store.uids()}
    assert timebeam("check", *store.flags).code == 0  # the UID keeps its name until `free`
    assert timebeam("names", "fix", *store.flags).out == "nothing to do\n"


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_merge_that_is_killed_goes_on(
    bigtable: tuple[str, str], prefix: str, emulator: str, tmp_path: Path, call: int, when: str
) -> None:
    store = Store.create(bigtable, prefix)
    expected = filled(store, tmp_path, {"sys.old": "sys.new"})
    seen: list[str] = []

    def plan(made: Call) -> Fault | None:
        if made.method == MUTATE_ROWS:
            seen.append(made.method)
        if len(seen) < call:
            return None
        first = len(seen) == call and made.method == MUTATE_ROWS
        return Fault(grpc.StatusCode.PERMISSION_DENIED, when if first else BEFORE)

    with faulty(emulator, plan):
        assert merged(store, *KINDS["metrics"], "--yes").code != 0
    assert merged(store, *KINDS["metrics"], "--yes").code == 0
    assert store.points() == expected


def test_a_point_that_comes_meanwhile_stays_and_is_moved_next(
    bigtable: tuple[str, str], prefix: str, emulator: str, tmp_path: Path
) -> None:
    """A writer has the old UID in its cache; it writes between the check of the values and the deletion."""
    store = Store.create(bigtable, prefix)
    expected = filled(store, tmp_path, {"sys.old": "sys.new"})
    old = {name.text: uid for name, uid in store.uids().items()}["sys.old"]
    path = write_file(
        tmp_path / "late.txt", [b"put sys.old %d 7.5 host=c dc=x\n" % (DAY + 100)], 1_767_400_000_000
    )
    calls: list[str] = []

    def write_late() -> None:
        flags = ("--format=opentsdb-text", "--packing=points", f"--input={path}", "--auto-create-metrics")
        ingest(tmp_path, *store.flags, *flags)

    def plan(made: Call) -> Do | None:
        if made.method == MUTATE_ROWS:
            calls.append(made.method)
            return Do(write_late, BEFORE) if len(calls) == 2 else None
        return None

    with faulty(emulator, plan):
        assert merged(store, *KINDS["metrics"], "--yes").code == 0
    late = Series.of("sys.old", {"host": "c", "dc": "x"})
    assert store.points()[late] == {(DAY + 100) * 1000: 7.5}
    assert timebeam("names", "fix", *store.flags, "--yes").code == 0  # the rows get their name back
    assert merged(store, "metrics", old.hex(), "sys.new", "--yes").code == 0
    expected[Series.of("sys.new", {"host": "c", "dc": "x"})][(DAY + 100) * 1000] = 7.5
    assert store.points() == expected


def test_an_append_of_the_same_millisecond_stays_and_is_moved_next(
    bigtable: tuple[str, str], prefix: str, emulator: str, tmp_path: Path
) -> None:
    """Bigtable gives an append the timestamp of the cell that it extends if no millisecond has passed."""
    store = Store.create(bigtable, prefix)
    path = write_file(
        tmp_path / "in.txt", [b"put sys.old %d 1 host=c\n" % DAY, b"put sys.new %d 2 host=c\n" % DAY]
    )
    flags = ("--format=opentsdb-text", "--auto-create-metrics", "--packing=append", f"--input={path}")
    ingest(tmp_path, *store.flags, *flags)
    uid = store.uids()[Name("metrics", "sys.old")]
    row = next(row for row in store.rows() if row.key.startswith(uid))
    (cell,) = row.cells
    longer = SetCell("t", cell.qualifier, cell.value + b"\x00\x10\x07", cell.timestamp_ms * 1000)
    calls: list[str] = []

    def append() -> None:
        open_table(store.target, store.layout.data_table).mutate_row(row.key, longer)

    def plan(made: Call) -> Do | None:
        if made.method in (MUTATE_ROWS, COMPARE_AND_SET):
            calls.append(made.method)
            return Do(append, BEFORE) if len(calls) == 2 else None  # after the new cells are written
        return None

    with faulty(emulator, plan):
        assert merged(store, *KINDS["metrics"], "--yes").code == 0
    assert store.points()[Series.of("sys.old", {"host": "c"})] == {DAY * 1000: 1, (DAY + 1) * 1000: 7}
    assert timebeam("names", "fix", *store.flags, "--yes").code == 0
    assert merged(store, "metrics", uid.hex(), "sys.new", "--yes").code == 0
    assert store.points()[Series.of("sys.new", {"host": "c"})][(DAY + 1) * 1000] == 7


def test_rollups_of_both_names_stay_and_others_move(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    config = config_file(tmp_path, [interval("1h", "1d")])
    store = with_tables(Store.create(bigtable, prefix), config)
    words = ("metrics", "old", "new", "--yes", f"--rollup-config={config}")
    uids = assigned(
        store, [Name("metrics", "old"), Name("metrics", "new"), Name("tagk", "host"), Name("tagv", "a")]
    )
    old, new, tag = uids[Name("metrics", "old")], uids[Name("metrics", "new")], b"\0\0\1\0\0\1"
    table = f"{prefix}rollup-1h"
    base = DAY.to_bytes(4, "big")
    for metric, qualifier, value in (
        (old, b"\0\0\x10", b"\5"),  # the sum of 01:00, which only the old name has
        (old, b"\1\0\x10", b"\1"),  # the count, whose column looks like that of an annotation
        (old, b"\0\0\x20", b"\6"),
        (new, b"\0\0\x21", b"\0\7"),  # the sum of 02:00 on two bytes
    ):
        store.set_cell(table, metric + base + tag, "t", qualifier, value)
    ran = merged(store, *words)
    assert (ran.code, "1 cells stay" in ran.out) == (1, True)
    cells = {(row.key[:3], cell.qualifier) for row in scan_table(store.target, table) for cell in row.cells}
    assert cells == {(new, b"\0\0\x10"), (new, b"\1\0\x10"), (old, b"\0\0\x20"), (new, b"\0\0\x21")}
    assert store.uids() == uids
    store.remove_row(table, old + base + tag)
    assert merged(store, *words).code == 0
    assert Name("metrics", "old") not in store.uids()


def test_two_old_rows_of_one_new_key_keep_rollups_of_one_interval(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """Series x=old y=old and x=old y=new become one; of the second the rollups that both have must stay."""
    of_x = {"metrics": ["*"], "keepTags": ["x"], "aggregators": ["sum"]}
    config = config_file(tmp_path, [interval("1h", "1d")], [of_x])
    store = with_tables(Store.create(bigtable, prefix), config)
    words = ("metrics m", "tagk x", "tagk y", "tagv old", "tagv new")
    names = [Name(*word.split()) for word in words]
    uids = assigned(store, names)
    m, x, y, old, new = (uids[name] for name in names)
    both_old, one_old, merged_key = (
        m + DAY.to_bytes(4, "big") + x + first + y + second
        for first, second in ((old, old), (old, new), (new, new))
    )
    first_key, second_key = sorted((both_old, one_old))
    sum_, count, named = b"\0\0", b"\1\0", b"sum:\0"
    tables = (f"{prefix}rollup-1h", f"{prefix}preagg-1h")
    for table in tables:
        for key, qualifier, value in (
            (first_key, sum_ + b"\x10", b"\5"),
            (second_key, sum_ + b"\x10", b"\6"),
            (first_key, count + b"\x10", b"\2"),
            (second_key, count + b"\x10", b"\2"),  # of as many other points
            (first_key, sum_ + b"\x20", b"\7"),
            (second_key, named + b"\x20", b"\x08"),  # the same aggregation and hour
            (second_key, sum_ + b"\x30", b"\x09"),
        ):
            store.set_cell(table, key, "t", qualifier, value)
    words = ("tagv", "old", "new", "--yes", f"--rollup-config={config}")
    ran = merged(store, *words)
    assert (ran.code, "6 cells stay" in ran.out) == (1, True), ran.out
    for table in tables:
        rows = {row.key: row.cells for row in scan_table(store.target, table)}
        assert {key: {cell.qualifier: cell.value for cell in cells} for key, cells in rows.items()} == {
            second_key: {sum_ + b"\x10": b"\6", count + b"\x10": b"\2", named + b"\x20": b"\x08"},
            merged_key: {
                sum_ + b"\x10": b"\5",
                count + b"\x10": b"\2",
                sum_ + b"\x20": b"\7",
                sum_ + b"\x30": b"\x09",
            },
        }
    assert (merged(store, *words).code, Name("tagv", "old") in store.uids()) == (1, True)


def small_batches() -> None:
    """In a process to be killed: many requests."""
    merge_uids._ROWS_AT_ONCE = 1


@pytest.mark.long
def test_a_merge_and_a_rename_that_are_killed_ten_times(
    bigtable: tuple[str, str], prefix: str, emulator: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix)
    expected = filled(store, tmp_path, {"sys.old": "sys.new"})
    merging = ("names", "merge", "metrics", "sys.old", "sys.new", *store.flags, "--yes")
    ran = run_through_kills(emulator, merging, before=small_batches)
    assert ran.code == 0, ran.err
    assert store.points() == expected
    there = ("names", "rename", "metrics", "sys.new", "sys.newer", *store.flags, "--yes")
    kills = [run_and_kill(emulator, there, 1 + nth % 3, AFTER if nth % 2 else BEFORE) for nth in range(10)]
    assert any(kill.killed for kill in kills)
    timebeam(*there)
    assert {series.metric for series in store.points()} == {"sys.newer"}
    assert timebeam("names", "fix", *store.flags).out == "nothing to do\n"
