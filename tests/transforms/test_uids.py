"""UIDs in Bigtable: one name, one UID, whoever asks, however often, and whatever fails on the way."""

from __future__ import annotations

import collections
import itertools
import logging

import grpc
import pytest

from schema.layouts import Name, Severity
from schema.points import Reason, RefusedError
from tests.golden.cases import cases
from tests.support.commands import timebeam
from tests.support.faults import AFTER, BEFORE, Call, Fault, faulty, nth
from tests.support.stored import Store
from tests.support.uid_race import race
from transforms.uids import DryUidTable, UidPolicy, UidTable

ALL = UidPolicy(auto_create_metrics=True)
INCREMENT, COMPARE_AND_SET = "ReadModifyWriteRow", "CheckAndMutateRow"


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def uid_table(store: Store, policy: UidPolicy = ALL) -> UidTable:
    return UidTable(store.target, store.layout, policy)


def assigned(store: Store, names: list[Name], policy: UidPolicy = ALL) -> dict[Name, bytes]:
    """The UIDs of names, none of which may be refused."""
    found, _ = uid_table(store, policy).resolve(names)
    uids = {name: uid for name, uid in found.items() if isinstance(uid, bytes)}
    assert uids.keys() == set(names)
    return uids


def check_bijection(store: Store, uids: dict[Name, bytes]) -> None:
    """Asserts that the table maps these names, and no others, to these UIDs and back."""
    assert store.uids() == uids
    by_uid = {(name.kind, uid): name.text for name, uid in uids.items()}
    assert len(by_uid) == len(uids)
    backwards = store.names()
    assert {pair: backwards[pair] for pair in by_uid} == by_uid
    for (kind, _), text in backwards.items():
        assert Name(kind, text) in uids
    for kind, counter in store.counters().items():
        ids = [int.from_bytes(uid, "big") for found, uid in backwards if found == kind]
        assert not ids or 0 < min(ids) <= max(ids) <= counter


def notes(store: Store) -> list[str]:
    """What `timebeam check` notes; asserts that it finds no damage."""
    ran = timebeam("check", *store.flags, "--most", "1000000")
    lines = ran.out.splitlines()
    assert ran.code == 0, ran.out
    assert "damaged: 0" in lines[-1]
    assert all(line.startswith(f"{Severity.NOTE.value}: ") for line in lines[:-1])
    return lines[:-1]


def mixed_names(count: int) -> list[Name]:
    """Names of all kinds, most of them the same text in several kinds, some beyond ASCII."""
    texts = [f"größe.{number}" if number % 7 == 0 else f"n{number}" for number in range(count)]
    kinds = itertools.cycle(("metrics", "tagv", "tagk", "tagv", "tagv"))
    used: collections.Counter[str] = collections.Counter()
    names = []
    for kind in itertools.islice(kinds, count):
        names.append(Name(kind, texts[used[kind]]))
        used[kind] += 1
    assert len(set(names)) == count
    return names


def test_eight_processes_agree_on_500_names(store: Store) -> None:
    names = mixed_names(500)
    runs = race(8, 50, store.target, store.layout, ALL, names)
    uids, _ = runs[0]
    assert all(found == uids for found, _ in runs)
    assert uids.keys() == set(names)
    check_bijection(store, {name: uid for name, uid in uids.items() if isinstance(uid, bytes)})
    notes(store)
    before = store.uid_cells()
    found, count = uid_table(store).resolve(names)
    assert (found, count) == (uids, 0)
    assert store.uid_cells() == before


def test_uids_are_those_of_a_tsd(store: Store) -> None:
    """The names of tests/golden/opentsdb/uid.json in the order in which a TSD met them.

    It looks up the tags of a point before its metric, each tag's value beside its key; kinds have
    counters of their own, so that only the order within a kind counts.
    """
    (case,) = cases("uid")
    names = [
        *[Name("metrics", text) for text in ("cpu.user", "cpu.sys", "mem.free", "web01", "mem.größe")],
        *[Name("metrics", text) for text in ("assigned.1", "assigned.2")],
        *[Name("tagk", text) for text in ("host", "dc", "zone", "cpu.user", "rack")],
        *[Name("tagv", text) for text in ("web01", "lga", "web02", "sjc", "a", "web03", "host")],
        *[Name("tagv", text) for text in ("münchen", "r1", "r2")],
    ]
    for name in names:
        assigned(store, [name])
    # The last step of the case renames a metric, which these pipelines do not do.
    renamed = {Name("metrics", "assigned.2"): case.uids[Name("metrics", "renamed.2")]}
    expected = {name: uid for name, uid in case.uids.items() if name.text != "renamed.2"} | renamed
    assert store.uids() == expected
    assert notes(store) == []


def test_the_rows_of_the_uid_table(store: Store) -> None:
    """Section 5.1 of the format notes, cell by cell."""
    assigned(store, [Name("metrics", "sys.größe"), Name("tagv", "sys.größe")])
    assert store.uid_cells() == {
        (b"\0", "id", b"metrics", b"\0\0\0\0\0\0\0\1"),
        (b"\0", "id", b"tagv", b"\0\0\0\0\0\0\0\1"),
        (b"sys.gr\xf6\xdfe", "id", b"metrics", b"\0\0\1"),
        (b"sys.gr\xf6\xdfe", "id", b"tagv", b"\0\0\1"),
        (b"\0\0\1", "name", b"metrics", b"sys.gr\xf6\xdfe"),
        (b"\0\0\1", "name", b"tagv", b"sys.gr\xf6\xdfe"),
    }


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
    assert "unused second one" in note


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
def test_a_writer_that_dies_at_any_call_leaves_no_damage(
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


@pytest.mark.parametrize("when", [BEFORE, AFTER])
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
    assert proxy.faults == (3 if method == INCREMENT else 120)
    assert count == 60
    check_bijection(store, {name: uid for name, uid in found.items() if isinstance(uid, bytes)})
    assert notes(store) == []  # an answer that got lost is no lost race
    burned = sum(store.counters().values()) - 60
    assert burned == (60 if (method, when) == (INCREMENT, AFTER) else 0)


def test_an_error_that_stays_is_raised(store: Store, emulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transforms.uids.time.sleep", lambda seconds: None)
    fault = Fault(grpc.StatusCode.UNAVAILABLE)
    with (
        faulty(emulator, nth(COMPARE_AND_SET, range(1, 1000), fault)),
        pytest.raises(Exception, match="injected"),
    ):
        uid_table(store).resolve([Name("tagk", "host")])


def test_the_last_uids_are_assigned_and_no_more(
    bigtable: tuple[str, str], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.create(bigtable, prefix, uid_width_metric=1)
    store.set_counter("metrics", 250)
    names = [Name("metrics", f"m{number}") for number in range(8)]
    with caplog.at_level(logging.WARNING, "transforms.uids"):
        found, count = uid_table(store).resolve(names)
    assert count == 5
    assert sorted(uid for uid in found.values() if isinstance(uid, bytes)) == [
        bytes([n]) for n in range(251, 256)
    ]
    refused = [uid for uid in found.values() if isinstance(uid, RefusedError)]
    assert {error.reason for error in refused} == {Reason.UIDS_EXHAUSTED}
    assert all(
        error.message.startswith("All Unique IDs for metrics are already assigned") for error in refused
    )
    assert "255 of 255 UIDs of kind metrics are used" in caplog.text
    again, count = uid_table(store).resolve(names)
    assert count == 0
    assert {name: uid for name, uid in again.items() if isinstance(uid, bytes)} == {
        name: uid for name, uid in found.items() if isinstance(uid, bytes)
    }


@pytest.mark.parametrize("used", [203, 204])
def test_one_warning_above_four_fifths(
    bigtable: tuple[str, str], prefix: str, caplog: pytest.LogCaptureFixture, used: int
) -> None:
    """255 ids of one byte: 204 are exactly four fifths, the next one is above."""
    store = Store.create(bigtable, prefix, uid_width_tagv=1)
    store.set_counter("tagv", used)
    table = uid_table(store)
    with caplog.at_level(logging.WARNING, "transforms.uids"):
        table.resolve([Name("tagv", "a")])
        table.resolve([Name("tagv", "b")])
    messages = [record.message for record in caplog.records if "UIDs of kind tagv" in record.message]
    assert messages == ["205 of 255 UIDs of kind tagv are used"]


@pytest.mark.parametrize(
    ("kind", "option"),
    [("metrics", "--auto_create_metrics"), ("tagk", "--auto_create_tagks"), ("tagv", "--auto_create_tagvs")],
)
def test_without_auto_create_a_name_stays_unknown(store: Store, kind: str, option: str) -> None:
    known = Name(kind, "known")
    uid = assigned(store, [known])[known]
    before = store.uid_cells()
    policy = UidPolicy(auto_create_tagks=False, auto_create_tagvs=False)
    found, count = uid_table(store, policy).resolve([known, Name(kind, "new")])
    assert (found[known], count) == (uid, 0)
    error = found[Name(kind, "new")]
    assert isinstance(error, RefusedError)
    assert error.reason is Reason.UNKNOWN_NAME
    assert error.message.startswith(f"No such name for '{kind}': 'new'")
    assert error.message.endswith(option)
    assert store.uid_cells() == before


def test_the_defaults_are_those_of_a_tsd() -> None:
    policy = UidPolicy()
    assert [policy.creates(kind) for kind in ("metrics", "tagk", "tagv")] == [False, True, True]


def test_random_metrics_leave_the_counter_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = UidPolicy(auto_create_metrics=True, random_metrics=True)
    drawn = iter([5, 5, 0x123456, 5, 0x123456, 9])
    bounds = []

    def randint(first: int, last: int) -> int:
        bounds.append((first, last))
        return next(drawn)

    monkeypatch.setattr("transforms.uids.random.randint", randint)
    taken = Name("metrics", "taken")
    assert assigned(store, [taken], policy) == {taken: b"\0\0\5"}
    # Both draw a UID that is taken, then one draws what the other one has, then a free one.
    names = [Name("metrics", "a"), Name("metrics", "b")]
    uids = assigned(store, names, policy)
    assert sorted(uids.values()) == [b"\0\0\x09", b"\x12\x34\x56"]
    check_random_bijection(store, uids | {taken: b"\0\0\5"})
    assert set(bounds) == {(1, 0xFFFFFF)}
    assert store.counters() == {}
    assert notes(store) == []
    assert assigned(store, [Name("tagk", "host")], policy) == {Name("tagk", "host"): b"\0\0\1"}


def check_random_bijection(store: Store, uids: dict[Name, bytes]) -> None:
    assert store.uids() == uids
    assert store.names() == {(name.kind, uid): name.text for name, uid in uids.items()}


def test_a_stored_uid_of_another_width_is_an_error(store: Store) -> None:
    store.set_uid("metrics", "name", b"\0\0\0\1", b"sys.cpu")
    store.set_uid("metrics", "id", b"sys.cpu", b"\0\0\0\1")
    message = r"metrics 'sys.cpu' has a UID of 4 bytes where 3 are configured: set --uid_width_metric "
    with pytest.raises(ValueError, match=message):
        uid_table(store).resolve([Name("metrics", "sys.cpu")])
    with pytest.raises(ValueError, match=message):
        list(uid_table(store).snapshot())


def test_the_snapshot_holds_every_name_and_nothing_else(store: Store) -> None:
    names = mixed_names(40)
    uids = assigned(store, names)
    # Meta data that a TSD with tsd.core.meta.enable_tracking keeps in the same table.
    store.set_uid("metric_meta", "name", b"\0\0\1", b"{}")
    assert dict(uid_table(store).snapshot()) == uids


def test_names_of_uids(store: Store) -> None:
    names = mixed_names(40)
    uids = assigned(store, names)
    pairs = [(name.kind, uid) for name, uid in uids.items()]
    found = uid_table(store).names_of(
        [*pairs, ("metrics", b"\xff\xff\xff"), ("tagk", uids[names[0]] + b"\0")]
    )
    assert found == {(name.kind, uid): name.text for name, uid in uids.items()}


def test_names_that_cannot_be_stored_are_unknown(store: Store) -> None:
    """A query may ask for anything; the row of counters is no name either."""
    assigned(store, [Name("metrics", "known")])
    odd = [Name("metrics", "東京"), Name("metrics", ""), Name("metrics", "\0")]
    assert uid_table(store).look_up([*odd, Name("metrics", "known")]) == {Name("metrics", "known"): b"\0\0\1"}


def test_a_dry_table_writes_nothing(store: Store) -> None:
    known = assigned(store, [Name("tagk", "host")])
    before = store.uid_cells()
    names = [*known, Name("tagk", "new"), Name("metrics", "m"), Name("tagv", "m")]
    dry = DryUidTable(store.target, store.layout, ALL)
    found, count = dry.resolve(names)
    assert count == 3
    assert found[Name("tagk", "host")] == known[Name("tagk", "host")]
    assert all(isinstance(uid, bytes) and len(uid) == 3 for uid in found.values())
    assert dry.resolve(names) == (found, 3)
    assert store.uid_cells() == before
