"""Leases against the emulator: one holder at a time, and whoever lost one learns it."""

from __future__ import annotations

import types
from collections.abc import Callable

import grpc
import pytest

from tests.support.fault_proxy import AFTER, COMPARE_AND_SET, Fault, faulty, share
from timebeam.schema.core.rows import Cell, Deletion, Row, TableSpec
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.read.table_reader import read_rows, scan_table
from timebeam.transforms.rollup import row_leases as leases_module
from timebeam.transforms.rollup.row_leases import (
    DEAD_MS,
    FAMILY,
    Lease,
    LeaseRow,
    claim,
    deletion_of,
    give_up,
    release,
)

START_S = 1_800_000_000.0
KEYS = [b"a", b"b", b"c"]


class Clock:
    """The time of the test, in s; it stands still between two steps."""

    def __init__(self) -> None:
        self.now_s = START_S

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases_module, "time", types.SimpleNamespace(time=clock.time))
    return clock


@pytest.fixture
def table(bigtable: tuple[str, str], prefix: str) -> tuple[Target, str]:
    target = Target(*bigtable)
    list(
        create_tables(target, [TableSpec(prefix + "leases", {FAMILY: 1}, holds_points=False)], dry_run=False)
    )
    return target, prefix + "leases"


def read_leases(target: Target, table: str, keys: list[bytes]) -> list[LeaseRow]:
    """The leases of row keys, in their order; also of rows that do not exist."""
    rows = read_rows(target, table, keys)
    return [LeaseRow.of(key, rows[key].cells if key in rows else ()) for key in keys]


def taken(table: tuple[Target, str], keys: list[bytes] = KEYS, seconds: float = 60) -> list[Lease]:
    return claim(*table, read_leases(*table, keys), seconds)


def test_the_bytes_of_a_lease_and_of_a_lost_one(table: tuple[Target, str], clock: Clock) -> None:
    (first,) = claim(*table, read_leases(*table, [b"a"]), 60, {b"a": b"note"})
    value = first.holder + int((START_S + 60) * 1000).to_bytes(8, "big") + b"note"
    (row,) = scan_table(*table)
    assert (row.key, row.cells) == (b"a", [Cell("t", b"lease", 0, value)])
    clock.now_s += 60
    (second,) = taken(table, [b"a"])
    (row,) = scan_table(*table)
    assert {cell.qualifier: cell.value for cell in row.cells} == {
        b"lease": second.holder + int((START_S + 120) * 1000).to_bytes(8, "big"),
        b"lost" + first.holder: value,
    }
    assert LeaseRow.of(row.key, row.cells) == LeaseRow(b"a", second, [first])


def test_the_first_of_two_claimers_gets_the_lease(table: tuple[Target, str], clock: Clock) -> None:
    """Both have read that nobody has it."""
    rows = read_leases(*table, KEYS)
    first = claim(*table, rows[:2], 60)
    second = claim(*table, rows, 60)
    assert ([lease.key for lease in first], [lease.key for lease in second]) == ([b"a", b"b"], [b"c"])
    assert [row.lease for row in read_leases(*table, KEYS)] == [*first, *second]
    assert taken(table) == []


def test_a_lease_is_free_after_its_end_or_its_release(table: tuple[Target, str], clock: Clock) -> None:
    (first,) = taken(table, [b"a"])
    clock.now_s += 59.999
    assert taken(table, [b"a"]) == []
    assert release(*table, [first]) == [first]
    assert list(scan_table(*table)) == []
    assert len(taken(table, [b"a"])) == 1
    clock.now_s += 60
    assert len(taken(table, [b"a"])) == 1


def test_a_paused_holder_learns_that_its_lease_is_lost(table: tuple[Target, str], clock: Clock) -> None:
    paused = taken(table)
    clock.now_s += 60
    (other,) = taken(table, [b"b"])
    assert release(*table, paused) == [paused[0], paused[2]]
    lost = read_leases(*table, [b"b"])[0].lost
    assert lost == [paused[1]]
    assert release(*table, [other]) == [other]
    assert read_leases(*table, [b"b"]) == [LeaseRow(b"b", None, lost)]
    mark = Cell(FAMILY, b"mark", 1000, b"")
    give_up(*table, lost, {b"b": [mark]})
    (row,) = [row for row in scan_table(*table) if row.key == b"b"]
    assert row.cells == [mark]


def test_the_first_of_two_claimers_gets_a_lease_that_has_ended(
    table: tuple[Target, str], clock: Clock
) -> None:
    taken(table, [b"a"])
    clock.now_s += 60
    rows = read_leases(*table, [b"a"])
    assert len(claim(*table, rows, 60)) == 1
    assert claim(*table, rows, 60) == []


def test_a_release_deletes_other_columns_only_if_the_lease_was_not_lost(
    table: tuple[Target, str], clock: Clock
) -> None:
    write_all(*table, [Row(table[1], key, [Cell("t", b"mark", 5, b"")]) for key in KEYS])
    first = taken(table, KEYS[:2])
    clock.now_s += 60
    (second,) = taken(table, [b"b"])
    deleted = {key: [Deletion("t", b"mark", 6)] for key in KEYS}
    assert release(*table, first, deleted) == first[:1]
    assert [row.key for row in scan_table(*table)] == [b"b", b"c"]
    assert release(*table, [second], {b"b": [deletion_of(first[1]), *deleted[b"b"]]}) == [second]
    assert [row.key for row in scan_table(*table)] == [b"c"]


def test_a_holder_is_dead_an_hour_after_its_end(table: tuple[Target, str], clock: Clock) -> None:
    (lease,) = taken(table, [b"a"])
    clock.now_s = lease.end_ms / 1000 + DEAD_MS / 1000 - 1
    assert not lease.is_dead
    clock.now_s += 1
    assert lease.is_dead


def test_lost_answers(table: tuple[Target, str], clock: Clock, emulator: str) -> None:
    """Calls that were carried out, but whose answers are lost, are known to be carried out."""
    plan = share(COMPARE_AND_SET, 0.6, 1, Fault(grpc.StatusCode.UNAVAILABLE, AFTER))

    def lossy(call: Callable[[], list[Lease]]) -> list[Lease]:
        with faulty(emulator, plan):
            return call()

    read = read_leases(*table, KEYS)
    first = lossy(lambda: claim(*table, read, 60))
    assert [lease.key for lease in first] == KEYS
    clock.now_s += 60
    ended = read_leases(*table, KEYS)
    second = lossy(lambda: claim(*table, ended, 60))
    assert [lease.key for lease in second] == KEYS
    lost = {lease.key: [deletion_of(lease)] for lease in first}
    assert lossy(lambda: release(*table, second, lost)) == second
    assert list(scan_table(*table)) == []
