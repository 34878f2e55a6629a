"""Leases of jobs that rewrite rows: who waits for whom, and what a dead or a stopped holder leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.support.stored import Store
from timebeam.pipelines.options.use_settings import read_rows, settings_table
from timebeam.transforms.bigtable.target import BigtableError
from timebeam.transforms.care import range_leases as module
from timebeam.transforms.care.range_leases import Leases

HOUR_S = 3600
CPU, DISK = b"\0\0\1", b"\0\0\2"


@pytest.fixture
def new_run(bigtable: tuple[str, str], prefix: str) -> Callable[[str], Leases]:
    """Makes a run of a command on one store."""
    store = Store.create(bigtable, prefix)

    def make(command: str) -> Leases:
        leases = Leases(store.target, settings_table(prefix), command)
        list(leases.open())
        return leases

    return make


@pytest.fixture(autouse=True)
def _seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 2.0)


class Waiting:
    """A lease that another thread takes, holds until `leave`, and gives back."""

    def __init__(self, leases: Leases, metrics: tuple[bytes, ...] = (), *period_s: int) -> None:
        self.granted, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(leases, metrics, *period_s), daemon=True)
        self._thread.start()

    def _hold(self, leases: Leases, metrics: tuple[bytes, ...], *period_s: int) -> None:
        with leases.lease(metrics, *period_s):
            self.granted.set()
            self._leave.wait(60)

    def leave(self) -> None:
        assert self.granted.wait(60)
        self._leave.set()
        self._thread.join(60)


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (((), 0, HOUR_S), ((), 0, HOUR_S), True),
        (((CPU,), 0, HOUR_S), ((), 0, HOUR_S), True),
        (((CPU, DISK), 0, HOUR_S), ((DISK,), 0, HOUR_S), True),
        (((CPU,), 0, 2 * HOUR_S), ((CPU,), HOUR_S, 3 * HOUR_S), True),
        (((CPU,), 0, HOUR_S), ((CPU,), HOUR_S, 2 * HOUR_S), False),
        (((CPU,), 0, HOUR_S), ((DISK,), 0, HOUR_S), False),
        (((CPU,),), ((CPU,), HOUR_S, 2 * HOUR_S), True),
    ],
)
def test_who_waits(
    new_run: Callable[[str], Leases],
    first: tuple[tuple[bytes, ...], int, int],
    second: tuple[tuple[bytes, ...], int, int],
    waits: bool,
) -> None:
    with new_run("compact").lease(*first):
        other = Waiting(new_run("delete"), *second)
        assert other.granted.wait(0.7 if waits else 60) is not waits
    other.leave()


def test_leases_of_one_run_do_not_wait_for_each_other(new_run: Callable[[str], Leases]) -> None:
    run = new_run("compact")
    with run.lease(), run.lease([CPU]):
        pass


def test_leases_are_granted_in_the_order_in_which_they_were_asked_for(
    new_run: Callable[[str], Leases],
) -> None:
    """A merge takes all; runs that take a metric each do not keep it waiting."""
    order = []
    with ExitStack() as first:
        first.enter_context(new_run("compact").lease([CPU]))
        merge = Waiting(new_run("names merge"))
        time.sleep(0.5)
        later = Waiting(new_run("compact"), (DISK,))
        assert not later.granted.wait(0.5)
        assert not merge.granted.is_set()
    assert merge.granted.wait(60)
    order.append(later.granted.is_set())
    merge.leave()
    later.leave()
    assert order == [False]


def test_a_lease_that_nobody_renews_ends(
    new_run: Callable[[str], Leases], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder learns of it before it writes again."""
    monkeypatch.setattr(module.RangeLease, "renew", lambda _: None)  # as if the process stood still
    dead = new_run("delete")._enter([CPU], 0, HOUR_S)
    monkeypatch.undo()
    monkeypatch.setattr(module, "LEASE_SECONDS", 1.0)
    with new_run("compact").lease([CPU]) as lease:
        lease.check()
        with pytest.raises(BigtableError, match="stood still"):
            dead.renew()


def test_a_lease_is_renewed_while_it_is_held(new_run: Callable[[str], Leases]) -> None:
    with new_run("compact").lease() as lease:
        other = Waiting(new_run("delete"))
        assert not other.granted.wait(5)
        lease.check()
    other.leave()


def test_an_error_gives_the_lease_back(new_run: Callable[[str], Leases]) -> None:
    with pytest.raises(ValueError, match="corrupt"), new_run("compact").lease():
        raise ValueError("corrupt")
    with new_run("delete").lease():
        pass


def test_the_row_of_leases_is_no_setting(bigtable: tuple[str, str], prefix: str) -> None:
    store = Store.create(bigtable, prefix)
    leases = Leases(store.target, settings_table(prefix), "compact")
    list(leases.open())
    with leases.lease():
        assert read_rows(store.target, settings_table(prefix).name) == {}


def test_a_run_that_may_have_missed_moved_rows_gets_no_lease(new_run: Callable[[str], Leases]) -> None:
    """A merge between two leases of a deletion moves rows to keys that it has read."""
    run, merge = new_run("delete"), new_run("names merge")
    moved = run.last_moved()
    assert moved == 0
    with run.lease([CPU], moved=moved):
        pass
    with merge.lease(moves=True):
        pass
    with (
        pytest.raises(BigtableError, match="`timebeam names merge` has moved rows"),
        run.lease([CPU], moved=moved),
    ):
        pass
    with run.lease([CPU]), run.lease([CPU], moved=run.last_moved()):  # of a job that need not read all rows
        pass


def test_nothing_has_moved_in_a_store_without_leases(bigtable: tuple[str, str], prefix: str) -> None:
    store = Store.create(bigtable, prefix)
    assert Leases(store.target, settings_table(prefix), "delete").last_moved() == 0
