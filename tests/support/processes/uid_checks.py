"""Asking for UIDs in tests, and checking what then stands in the table."""

from __future__ import annotations

import collections
import itertools

from tests.support.commands import timebeam
from tests.support.stored import Store
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.selection import Severity
from timebeam.transforms.opentsdb.assign_uids import UidPolicy, UidTable

ALL = UidPolicy(auto_create_metrics=True)


def uid_table(store: Store, policy: UidPolicy = ALL) -> UidTable:
    return UidTable(store.target, store.layout, policy)


def assigned(store: Store, names: list[Name], policy: UidPolicy = ALL) -> dict[Name, bytes]:
    """The UIDs of names, none of which may be rejected."""
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
    """What `timebeam check` notes; asserts that it finds no corruption."""
    ran = timebeam("check", *store.flags, "--most", "1000000")
    lines = ran.out.splitlines()
    assert ran.code == 0, ran.out
    assert "corrupt: 0" in lines[-1]
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
