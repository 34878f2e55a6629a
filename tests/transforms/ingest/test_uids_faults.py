"""UIDs when writers die between the steps, and when answers get lost: at most an id is wasted."""

from __future__ import annotations

import itertools

import grpc
import pytest

from tests.support.budget import long_after
from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, INCREMENT, Call, Fault, faulty, nth
from tests.support.processes.uid_checks import assigned, check_bijection, mixed_names, notes, uid_table
from tests.support.stored import Store
from timebeam.schema.core.point_fragments import Name


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def test_a_crash_after_the_increment_costs_an_id(store: Store) -> None:
    store.set_counter("tagk", 7)
    assert assigned(store, [Name("tagk", "host")]) == {Name("tagk", "host"): b"\0\0\x08"}
    assert notes(store) == []


def test_a_crash_after_the_reverse_mapping_leaves_an_orphan(store: Store) -> None:
    store.set_counter("tagk", 7)
    store.set_uid("tagk", "name", b"\0\0\7", b"host")
    (note,) = notes(store)
    assert "000007" in note
    assert "lacks its forward mapping" in note
    assert assigned(store, [Name("tagk", "host")]) == {Name("tagk", "host"): b"\0\0\x08"}
    check_bijection(store, {Name("tagk", "host"): b"\0\0\x08"})
    (note,) = notes(store)
    assert "000007" in note
    assert "unused second UID" in note


def test_a_crash_after_the_forward_mapping_loses_nothing(store: Store) -> None:
    store.set_counter("tagk", 7)
    store.set_uid("tagk", "name", b"\0\0\7", b"host")
    store.set_uid("tagk", "id", b"host", b"\0\0\7")
    before = store.uid_cells()
    found, count = uid_table(store).resolve([Name("tagk", "host")])
    assert (found, count) == ({Name("tagk", "host"): b"\0\0\7"}, 0)
    assert store.uid_cells() == before


@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_writer_that_dies_at_any_call_leaves_no_corruption(
    store: Store, emulator: str, call: int, when: str
) -> None:
    """From its n-th call on the writer reaches nothing any more; another one takes over."""
    names = [Name("metrics", "sys.cpu"), Name("tagk", "host"), Name("tagv", "a"), Name("tagv", "b")]
    last = Fault(grpc.StatusCode.PERMISSION_DENIED, when)
    dead = Fault(grpc.StatusCode.PERMISSION_DENIED, BEFORE)

    def plan(seen: Call) -> Fault | None:
        numbers.append(seen.method)
        if len(numbers) < call:
            return None
        return last if len(numbers) == call else dead

    numbers: list[str] = []
    with faulty(emulator, plan), pytest.raises(Exception, match="injected"):
        uid_table(store).resolve(names)
    notes(store)
    uids = assigned(store, names)
    check_bijection(store, uids)
    assert len(notes(store)) <= 1


TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@pytest.mark.parametrize("when", long_after(1, [AFTER, BEFORE]))
@pytest.mark.parametrize("method", [INCREMENT, COMPARE_AND_SET])
def test_answers_that_get_lost_are_cleared_up(store: Store, emulator: str, method: str, when: str) -> None:
    """Every call fails once, with each transient error in turn, before or after it was carried out."""
    codes = itertools.cycle(TRANSIENT)
    names = mixed_names(60)
    seen: set[bytes] = set()

    def plan(call: Call) -> Fault | None:
        if call.method != method or call.request in seen:
            return None
        seen.add(call.request)
        return Fault(next(codes), when)

    with faulty(emulator, plan) as proxy:
        found, count = uid_table(store).resolve(names)
    assert len(proxy.faults) == (3 if method == INCREMENT else 120)
    assert count == 60
    check_bijection(store, {name: uid for name, uid in found.items() if isinstance(uid, bytes)})
    assert notes(store) == []  # an answer that got lost is no lost race
    burned = sum(store.counters().values()) - 60
    assert burned == (60 if (method, when) == (INCREMENT, AFTER) else 0)


def test_an_error_that_stays_is_raised(store: Store, emulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timebeam.transforms.bigtable.retry.OPERATION_SECONDS", 0.5)
    fault = Fault(grpc.StatusCode.UNAVAILABLE)
    with (
        faulty(emulator, nth(COMPARE_AND_SET, range(1, 1000), fault)),
        pytest.raises(Exception, match="injected"),
    ):
        uid_table(store).resolve([Name("tagk", "host")])
