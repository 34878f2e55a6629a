"""`timebeam names`: list, rename, free and fix, beside writers, and killed between any two steps."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from tests.support.commands import Ran, timebeam
from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, Call, Fault, faulty
from tests.support.processes.killed import run_through_kills
from tests.support.processes.uid_checks import ALL, assigned, check_bijection, uid_table
from tests.support.stored import Store
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.series.series_limits import FAMILY, counts_table
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.opentsdb.rename_uids import read_use

HOUR = 1_767_225_600 // 3600 * 3600
CPU, LOAD, HOST, WEB1, WEB2 = (
    Name("metrics", "sys.cpu"),
    Name("metrics", "sys.load"),
    Name("tagk", "host"),
    Name("tagv", "web1"),
    Name("tagv", "web2"),
)


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    """Two series of sys.cpu, one of which has two rows; sys.load has none."""
    store = Store.create(bigtable, prefix, salt_width=1, uid_width_metric=2)
    uids = assigned(store, [CPU, LOAD, HOST, WEB1, WEB2])
    for value, hour in ((WEB1, 0), (WEB1, 1), (WEB2, 0)):
        write_row(store, uids[CPU], uids[HOST] + uids[value], hour)
    return store


def write_row(store: Store, metric: bytes, tags: bytes, hour: int, table: str = "") -> None:
    """A point, in a row whose salt does not matter."""
    key = b"\0" + metric + (HOUR + 3600 * hour).to_bytes(4, "big") + tags
    store.set_cell(table or store.layout.data_table, key, "t", b"\0\0", b"\1")


def names(store: Store, action: str, *arguments: str) -> Ran:
    return timebeam("names", action, *arguments, *store.flags)


def age(store: Store) -> None:
    """Every cell of the UID table becomes as old as 1970."""
    cells = store.uid_cells()
    for key in {key for key, *_ in cells}:
        store.remove_row(store.layout.options.uid_table, key)
    for key, family, qualifier, value in cells:
        store.set_cell(store.layout.options.uid_table, key, family, qualifier, value)


def test_list_with_use(store: Store) -> None:
    ran = names(store, "list", "--use", "--output", "json")
    listed = json.loads(ran.out)
    counts = {
        entry["name"]: (entry["series"], entry["rows"], entry["rollups"], entry["others"])
        for entry in listed["names"]
    }
    assert counts == {
        "sys.cpu": (2, 3, 0, 0),
        "sys.load": (0, 0, 0, 0),
        "host": (2, 3, 0, 0),
        "web1": (1, 2, 0, 0),
        "web2": (1, 1, 0, 0),
    }
    assert [kind["used"] for kind in listed["kinds"]] == [2, 1, 2]
    ran = names(store, "list", "metrics", "sys.l")
    assert ran.out.splitlines() == [
        "metrics  0002  sys.load",
        "metrics: 2 names; 2 of 65,535 UIDs are used; at 2 new names in 30 days they last over 100 years",
        "tagk: 1 names; 1 of 16,777,215 UIDs are used; at 1 new names in 30 days they last over 100 years",
        "tagv: 2 names; 2 of 16,777,215 UIDs are used; at 2 new names in 30 days they last over 100 years",
    ]
    assert names(store, "list", "metric").code == 2


def test_rows_of_rollups_are_use_and_those_of_a_longer_prefix_are_not(store: Store) -> None:
    uids = store.uids()
    other = Store.create(
        (store.target.project, store.target.instance), store.layout.options.table_prefix + "copy-"
    )
    write_row(other, uids[LOAD], uids[HOST] + uids[WEB1], 0)
    counts = counts_table(store.layout.options.table_prefix)  # row keys that look like those of rollups
    list(create_tables(store.target, [counts], dry_run=False))
    key = b"\0" + uids[LOAD] + HOUR.to_bytes(4, "big") + uids[HOST] + uids[WEB1]
    store.set_cell(counts.name, key, FAMILY, b"series", b"")
    assert ("metrics", uids[LOAD]) not in read_use(store.target, store.layout)
    assert names(store, "free", "--output", "json").code == 0


def test_rename(store: Store) -> None:
    uid = store.uids()[CPU]
    before = store.uid_cells()
    dry = names(store, "rename", "metrics", "sys.cpu", "system.cpu")
    assert (
        dry.out == "would rename metrics sys.cpu to system.cpu, UID 0001\n"
        "nothing was changed: give --yes to change it\n"
    )
    assert store.uid_cells() == before
    ran = names(store, "rename", "metrics", "sys.cpu", "system.cpu", "--yes")
    assert ran.code == 0, ran.err
    new = Name("metrics", "system.cpu")
    check_bijection(store, store.uids())
    assert store.uids()[new] == uid
    assert CPU not in store.uids()
    again = names(store, "rename", "metrics", "sys.cpu", "system.cpu", "--yes")
    assert again.code == 2
    assert (
        "No such name for 'metrics': 'sys.cpu'; 'system.cpu' has the UID 0001: renamed before?" in again.err
    )


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            "sys.load",
            "has the UID 0002: to read both as one, `timebeam names merge metrics sys.cpu sys.load`",
        ),
        ("sys cpu", "illegal character"),
        ("sys.cpu", "has that name already"),
    ],
)
def test_a_rename_that_is_rejected(store: Store, new: str, message: str) -> None:
    before = store.uid_cells()
    ran = names(store, "rename", "metrics", "sys.cpu", new, "--yes")
    assert ran.code == 2
    assert message in ran.err
    assert store.uid_cells() == before


def killed(store: Store, emulator: str, call: int, when: str, *arguments: str) -> None:
    """Runs `timebeam names`, which reaches nothing from its nth changing call on."""
    seen: list[Any] = []

    def plan(made: Call) -> Fault | None:
        if made.method == COMPARE_AND_SET:
            seen.append(made)
        if len(seen) < call:
            return None
        first = len(seen) == call and made.method == COMPARE_AND_SET
        return Fault(grpc.StatusCode.PERMISSION_DENIED, when if first else BEFORE)

    with faulty(emulator, plan):
        assert names(store, *arguments).code != 0


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_rename_that_is_killed_is_finished_by_the_next(
    store: Store, emulator: str, call: int, when: str
) -> None:
    uid = store.uids()[CPU]
    words = ("rename", "metrics", "sys.cpu", "system.cpu", "--yes")
    killed(store, emulator, call, when, *words)
    mapped = {name.text for name, value in store.uids().items() if (name.kind, value) == ("metrics", uid)}
    assert store.names()["metrics", uid] in mapped  # a reader finds the rows by the name that it shows
    _, new = uid_table(store, ALL).resolve([Name("metrics", "other")])  # a writer goes on
    assert new == 1
    assert names(store, *words).code == (2 if (call, when) == (3, AFTER) else 0)
    assert store.uids()[Name("metrics", "system.cpu")] == uid
    check_bijection(store, store.uids())


@pytest.mark.parametrize("call", [1, 2, 3])
def test_fix_decides_a_rename_that_nobody_finishes(store: Store, emulator: str, call: int) -> None:
    killed(store, emulator, call, BEFORE, "rename", "metrics", "sys.cpu", "system.cpu", "--yes")
    assert names(store, "fix").code == 0
    assert names(store, "fix", "--yes").code == 0
    check_bijection(store, store.uids())
    name = Name("metrics", "system.cpu") if call == 3 else CPU
    assert store.uids()[name] == b"\0\1"
    assert names(store, "fix").out == "nothing to do\n"


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_free_takes_two_runs_a_week_apart(store: Store, emulator: str, call: int) -> None:
    """sys.load has no rows: its name loses the UID, and the UID goes after the wait, killed or not."""
    ran = names(store, "free")
    assert ran.out == "nothing to do\n"  # assigned a moment ago
    assert "unused UIDs that changed within --wait-hours 168 and wait: 1\n" in ran.err
    age(store)
    before = store.uid_cells()
    assert "would change: metrics: UID 0002 of 'sys.load' has no rows" in names(store, "free").out
    assert store.uid_cells() == before
    if call <= 2:
        killed(store, emulator, call, AFTER, "free", "--yes")
        age(store)
    assert names(store, "free", "--yes").code == 0
    assert LOAD not in store.uids()
    if call != 2:
        assert store.names()["metrics", b"\0\2"] == "sys.load"
        assert names(store, "free", "--yes").out == "nothing to do\n"  # it waits
        age(store)
        if call == 3:
            killed(store, emulator, 1, AFTER, "free", "--yes")
        assert names(store, "free", "--yes").code == 0
    assert ("metrics", b"\0\2") not in store.names()
    assert store.counters()["metrics"] == 2  # not given out again
    assert assigned(store, [LOAD])[LOAD] == b"\0\3"
    check_bijection(store, store.uids())


def test_a_uid_that_a_writer_still_had_gets_its_name_back(store: Store) -> None:
    uids = store.uids()
    age(store)
    assert names(store, "free", "--yes").code == 0
    write_row(store, uids[LOAD], uids[HOST] + uids[WEB1], 2)  # by a writer with a cache
    age(store)
    assert "has rows, but no forward mapping: it is restored" in names(store, "free", "--yes").out
    assert store.uids() == uids
    # Another writer, which does not know the UID, has assigned a new one: only a merge helps.
    store.remove_row(store.layout.options.uid_table, b"sys.load")
    new = assigned(store, [LOAD])[LOAD]
    ran = names(store, "free", "--yes")
    assert ran.code == 1
    assert f"'sys.load' has the UID {new.hex()}, but rows with 0002 too" in ran.out


@pytest.mark.long
def test_free_and_fix_that_are_killed_ten_times(store: Store, emulator: str) -> None:
    """Each kill loses a change, or the answer to one."""
    before, rows = store.uids(), store.cells()
    unused = assigned(store, [Name("metrics", f"unused{number}") for number in range(12)])
    for _ in range(2):  # the names lose their UIDs, then the UIDs go
        age(store)
        ran = run_through_kills(emulator, ["names", "free", *store.flags, "--yes"])
        assert ran.code == 0, ran.err
        assert unused.keys().isdisjoint(store.uids())
    assert not {("metrics", uid) for uid in unused.values()} & store.names().keys()
    del before[LOAD]  # without rows too
    check_bijection(store, before)
    lost = assigned(store, [Name("tagv", f"lost{number}") for number in range(12)])
    uids = store.uids()
    for name, uid in lost.items():
        write_row(store, before[CPU], before[HOST] + uid, 0)
        store.remove_row(store.layout.options.uid_table, name.text.encode())
    ran = run_through_kills(emulator, ["names", "fix", *store.flags, "--yes"])
    assert ran.code == 0, ran.err
    check_bijection(store, uids)
    assert rows < store.cells()
    assert names(store, "fix").out == "nothing to do\n"
