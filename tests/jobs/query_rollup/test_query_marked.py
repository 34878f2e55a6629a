"""In tables whose writers all mark, a query uses no rollup of an hour that is marked or leased."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import timebeam
from tests.support.plain.rolled import (
    DAY,
    HOUR,
    Points,
    both,
    config_file,
    follow,
    interval,
    same,
    send,
    with_tables,
)
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.schema.query.choose_rollups import overlapping
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.changed_hours import changed_hours_table, day_key, hours_note, read_days
from timebeam.transforms.rollup.row_leases import LeaseRow, claim, release

END = DAY + 24 * HOUR - 1
FLAGS = ("--aggregator=none", "--downsample=1h-sum")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return config_file(tmp_path, [interval("1h", "1n"), interval("1d", "1y")])


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, config: Path) -> Store:
    return with_tables(Store.create(bigtable, prefix, marked_since="2024-01-01"), config)


def points(hours: range, second: int = 7, number: int = 1) -> Points:
    return {
        (Series.of("m", {"host": host}), DAY + hour * HOUR + second): number + hour
        for host in ("a", "b")
        for hour in hours
    }


def from_points(store: Store, config: Path, *flags: str) -> list[str]:
    """The parts of the day that a query reads from points, as start and end; its answer is right."""
    through, raw, said = both(store, config, "m", DAY, END, *(flags or FLAGS))
    same(through, raw, exact=True)
    table = f" {store.layout.data_table} ("
    spans = [line.partition(": ")[0].split(" to ") for line in said.splitlines() if table in line]
    last = "2024-02-29T00"
    return [f"{start[8:13]} to {min(end, last)[8:13]}" for start, end in spans if start < last]


def test_marked_and_leased_hours_are_read_from_points(store: Store, config: Path, tmp_path: Path) -> None:
    send(store, tmp_path, points(range(24)))
    assert from_points(store, config) == ["28T00 to 29T00"]
    follow(store, config)
    assert list(read_days(TableReader(store.target), store.layout)) == []
    assert from_points(store, config) == []
    assert from_points(store, config, "--aggregator=none", "--downsample=1d-sum") == []
    send(store, tmp_path, points(range(5, 6), number=1000))  # corrections
    send(store, tmp_path, points(range(9, 11), second=8))  # late ones
    parts = ["28T05 to 28T06", "28T09 to 28T11"]
    assert from_points(store, config) == parts
    assert from_points(store, config, "--aggregator=none", "--downsample=1d-sum") == ["28T00 to 29T00"]
    follow(store, config)
    table, key = changed_hours_table(store.layout).name, day_key(b"\0\0\1", DAY)
    assert from_points(store, config) == []
    note = hours_note([DAY + 2 * HOUR, DAY + 3 * HOUR])
    (lease,) = claim(store.target, table, [LeaseRow(key, None, ())], -1, {key: note})
    parts = ["28T02 to 28T04"]
    assert from_points(store, config) == parts  # its end has passed, but nobody has recomputed them
    (other,) = claim(store.target, table, [LeaseRow(key, lease, ())], 60, {key: b"\0\0\0"})
    assert from_points(store, config) == parts  # lost
    assert release(store.target, table, [other]) == [other]
    assert from_points(store, config) == parts
    assert lease.note == bytes((0, 0, 0b1100))


def test_explain_says_whether_rollups_are_current(store: Store, config: Path, tmp_path: Path) -> None:
    send(store, tmp_path, points(range(24)))
    follow(store, config)

    def said(marked_since: str) -> list[str]:
        flags = [flag for flag in store.flags if "marked_since" not in flag]
        ran = timebeam(
            *("query", "m", *flags, "--rollup-config", config, f"--set=marked_since={marked_since}", *FLAGS),
            *(f"--start={DAY}", f"--end={END}", "--explain"),
        )
        assert ran.code == 0, ran.err
        return ran.err.splitlines()

    prefix = store.layout.options.table_prefix
    lines = [
        f"2024-02-28T00:00:00Z to 2024-02-29T00:00:00Z: {prefix}rollup-1h (rollups of 1h)",
        f"2024-02-29T00:00:00Z to 2024-02-29T01:00:00Z: {prefix}tsdb (not in the other table)",
    ]
    assert said("2024-02-28") == lines
    before = "before 2024-02-29T00:00:00Z, marked_since, rollups are of the points of their last run"
    assert said("2024-02-29") == [*lines, before]
    assert said("") == [*lines, "rollups are of the points of their last run: marked_since is not set"]


def test_the_day_is_stored_with_the_tables(
    bigtable: tuple[str, str], prefix: str, config: Path, tmp_path: Path
) -> None:
    """All commands take it from there: `ingest` marks without an option."""
    place = [
        "--layout=opentsdb",
        f"--project={bigtable[0]}",
        f"--instance={bigtable[1]}",
        f"--table-prefix={prefix}",
    ]
    created = timebeam("tables", "create", *place, "--set=marked_since=1970-01-01", "--rollup-config", config)
    assert created.code == 0, created.err
    path = tmp_path / "in.txt"
    path.write_text(f"put m {DAY} 1 host=a\n")
    flags = (
        *place[1:],
        "--format=opentsdb-text",
        "--auto-create-metrics",
        f"--dead-letters={tmp_path}/letters",
    )
    ran = timebeam("ingest", *flags, "--input", path)
    assert ran.code == 0, ran.err
    store = Store.create(bigtable, prefix)
    (day,) = read_days(TableReader(store.target), store.layout)
    assert day.changing == {DAY}
    ran = timebeam("query", "m", *place, "--set=marked_since=2026-01-01", "--start=1d-ago")
    assert (ran.code, "has 1970-01-01 here" in ran.err) == (2, True), ran.err


@given(
    st.lists(st.integers(0, 200), max_size=5, unique=True), st.sampled_from([60, 2700, 3600, 7200, 86_400])
)
def test_overlapping_intervals(hours: list[int], seconds: int) -> None:
    starts_s = np.array(hours, np.int64) * HOUR
    numbers = {second // seconds for hour in hours for second in range(hour * HOUR, (hour + 1) * HOUR, 60)}
    assert overlapping(starts_s, seconds * 1000).tolist() == sorted(numbers)
