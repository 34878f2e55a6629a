"""UIDs under faults: many writers at once, and writers that die half-way (tests 10 and 11)."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.cloud.bigtable_v2.types import CheckAndMutateRowRequest

from tests.support.commands import timebeam
from tests.support.fault_proxy import (
    AFTER,
    COMPARE_AND_SET,
    INCREMENT,
    AnyFault,
    Call,
    Drop,
    Fault,
    either,
    faulty,
    nth,
    share,
)
from tests.support.processes import uid_victim
from tests.support.processes.uid_race import race
from tests.support.stored import Store
from tests.support.workload import Workload, check_equal, run
from timebeam.schema.core.point_fragments import Name
from timebeam.transforms.opentsdb.assign_uids import UidPolicy

CREATE = UidPolicy(auto_create_metrics=True)
METRICS = tuple(Name("metrics", f"sys.m{number}") for number in range(5))


def check_bijection(store: Store, names: set[Name]) -> int:
    """Asserts that just these names have UIDs, each its own, and that each UID leads back.

    Returns how many ids below the counters are not in use.
    """
    uids = store.uids()
    assert uids.keys() == names
    assert len({(name.kind, uid) for name, uid in uids.items()}) == len(names)
    backwards = store.names()
    assert all(backwards[name.kind, uid] == name.text for name, uid in uids.items())
    highest = store.counters()
    assert all(int.from_bytes(uid, "big") <= highest[name.kind] for name, uid in uids.items())
    return sum(highest.values()) - len(names)


def names_of(work: Workload) -> set[Name]:
    """The names that the points of a workload need."""
    found = set()
    for metric, tags in {point.series for point in work.points}:
        found.add(Name("metrics", metric))
        for key, value in tags:
            found |= {Name("tagk", key), Name("tagv", value)}
    return found


def notes(store: Store) -> list[str]:
    """What `timebeam check` notes; asserts that it finds no corruption."""
    checked = timebeam("check", *store.flags, "--most=100000")
    assert checked.code == 0, checked.out
    return checked.out.splitlines()[:-1]


@pytest.mark.long
def test_many_writers_with_lost_answers_agree(store: Store, emulator: str, tmp_path: Path, seed: int) -> None:
    """Test 10. Eight processes and an ingest resolve the same 500 new names at once; of the answers to
    increments and compare-and-sets 10 % are lost after commit.

    Names and UIDs map one to one, every process has the same, no id is used twice, every data row
    decodes, and the ids that were burned are those that the table shows.
    """
    work = Workload.write(tmp_path, seed, series=2450, hours=1, a_row=1)
    names = names_of(work)
    assert len(names) == 500
    lost = Fault(grpc.StatusCode.UNAVAILABLE, AFTER)
    loses = either(
        nth(INCREMENT, (2,), lost),
        share(INCREMENT, 0.1, seed, lost),
        share(COMPARE_AND_SET, 0.1, seed, lost),
    )
    begun = threading.Event()

    def plan(call: Call) -> AnyFault | None:
        if call.method == INCREMENT:
            begun.set()
        return loses(call)

    with faulty(emulator, plan) as proxy, concurrent.futures.ThreadPoolExecutor() as pool:
        racing = pool.submit(race, 8, 100, store.target, store.layout, CREATE, sorted(names))
        assert begun.wait(300)
        ran = run(work, store, "--bigtable-writer=direct", "--packing=points")
        results = racing.result()
    assert ran.code == 0
    assert {fault_call.method for fault_call, _ in proxy.faults} == {INCREMENT, COMPARE_AND_SET}
    burned = check_bijection(store, names)
    print(f"{burned} ids burned, {len(proxy.faults)} answers lost, {proxy.calls}")
    assert all(found == store.uids() for found, _ in results)
    orphans = store.names().keys() - {(name.kind, uid) for name, uid in store.uids().items()}
    assert len(notes(store)) == len(orphans) <= burned
    check_equal(store, work.points, "points")


def first_mapping(call: Call) -> bool:
    """After the increment, before the reverse mappings."""
    return call.method == COMPARE_AND_SET


def forward_mapping(call: Call) -> bool:
    """After the reverse mappings, before the forward ones."""
    if call.method != COMPARE_AND_SET:
        return False
    return CheckAndMutateRowRequest.deserialize(call.request).row_key.startswith(b"sys.")


def next_kind(call: Call) -> bool:
    """After the forward mappings of one kind, before the increment of the next."""
    return call.method == INCREMENT and call.number == 2


@pytest.mark.parametrize(
    ("gap", "held_calls", "orphans", "burned"),
    [(first_mapping, 5, 0, 5), (forward_mapping, 5, 5, 5), (next_kind, 1, 0, 0)],
)
def test_a_writer_is_killed_half_way(
    store: Store,
    emulator: str,
    tmp_path: Path,
    seed: int,
    gap: Callable[[Call], bool],
    held_calls: int,
    orphans: int,
    burned: int,
) -> None:
    """Test 11. SIGKILL between increment, reverse mapping and forward mapping, and before the next kind.

    The next ingest completes the mapping: no name has two ids, no id two names, the content is equal,
    and `timebeam check` lists the reverse mappings that the dead writer left behind.
    """
    work = Workload.write(tmp_path, seed, series=50, hours=10, a_row=4)
    held, killed = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        held.release()
        assert killed.wait(60)

    with faulty(emulator, lambda call: Drop(hold) if gap(call) else None):
        victim = uid_victim.start(store.target, store.layout, CREATE, [*METRICS, Name("tagk", "host")])
        for _ in range(held_calls):
            assert held.acquire(timeout=60)
        victim.kill()
        victim.join()
        killed.set()
    assert len(notes(store)) == orphans
    assert run(work, store, "--packing=compacted").code == 0
    assert check_bijection(store, names_of(work)) == burned
    assert len(notes(store)) == orphans
    check_equal(store, work.points, "compacted")
