"""`timebeam delete` and `timebeam names` while a stream writes: nothing of it is lost."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import timebeam
from tests.support.processes.streams import start, wait_for
from tests.support.processes.uid_checks import assigned
from tests.support.pubsub_server import Published, PubSubServer
from tests.support.stored import Store
from timebeam.pipelines.store import delete
from timebeam.schema.core.point_fragments import Name

pytestmark = pytest.mark.long

HOUR = 1_767_225_600
PUBLISHED_MS = 1_790_000_000_000
Points = dict[tuple[str, str, int], int]
"""Value by metric, host and seconds after HOUR."""


def points(metrics: Iterable[str], hosts: Iterable[str], seconds: Iterable[int]) -> Points:
    """Each point with a value of its own."""
    places = ((metric, host, second) for second in seconds for metric in metrics for host in hosts)
    return {place: number for number, place in enumerate(places)}


def messages(content: Points) -> list[Published]:
    """One message for each point."""
    return [
        Published(
            json.dumps(
                {"metric": metric, "timestamp": HOUR + second, "value": value, "tags": {"host": host}}
            ).encode(),
            PUBLISHED_MS + number,
        )
        for number, ((metric, host, second), value) in enumerate(content.items())
    ]


def stored(store: Store) -> Points:
    return {
        (series.metric, dict(series.tags)["host"], time_ms // 1000 - HOUR): int(value)
        for series, values in store.points().items()
        for time_ms, value in values.items()
    }


@contextlib.contextmanager
def stream_of(store: Store, folder: Path, before: Points, during: Points) -> Iterator[None]:
    """A stream that has stored some points, and stores others in the block, the last ones after it."""
    early, late = messages(before), messages(during)
    with PubSubServer(early, seed=3).running() as server:
        process = start(store, folder / "stream", server)
        wait_for(server, len(early) - 1, process)

        def publish() -> None:
            for number in range(0, (len(late) - 1) // 10 * 10, 10):
                server.add(late[number : number + 10])
                time.sleep(0.02)

        publishing = threading.Thread(target=publish)
        publishing.start()
        yield
        publishing.join()
        server.add(late[(len(late) - 1) // 10 * 10 :])
        wait_for(server, len(early) + len(late) - 1, process)
        process.terminate()
        process.join()


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


HOSTS = [f"h{number}" for number in range(6)]


def test_delete(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream writes into the rows that are rewritten, behind the range of the deletion."""
    monkeypatch.setattr(delete, "SETTLED_MS", 0)
    before = points(["m"], HOSTS, range(0, 1200, 60))
    during = points(["m"], HOSTS, range(1201, 3600, 20))
    flags = ("m", f"--start={HOUR}", f"--end={HOUR + 599}", *store.flags, "--summary=json")
    with stream_of(store, tmp_path, before, during):
        token = json.loads(timebeam("delete", *flags, f"--log={tmp_path / 'log'}").out)["token"]
        ran = timebeam("delete", *flags, f"--log={tmp_path / 'log'}", "--token", token)
        assert ran.code == 0, ran.err
    rest = {place: value for place, value in before.items() if place[2] >= 600}
    assert len(rest) < len(before)
    assert stored(store) == rest | during


def test_rename(store: Store, tmp_path: Path) -> None:
    """The stream has the UID in its cache."""
    before, during = points(["m"], HOSTS, [0]), points(["m"], HOSTS, range(1, 3600, 15))
    with stream_of(store, tmp_path, before, during):
        ran = timebeam("names", "rename", "metrics", "m", "n", *store.flags, "--yes")
        assert ran.code == 0, ran.err
    assert stored(store) == {("n", *place): value for (_, *place), value in (before | during).items()}
    assert timebeam("names", "fix", *store.flags).out == "nothing to do\n"


def test_merge(store: Store, tmp_path: Path) -> None:
    """What the stream writes with the old UID meanwhile is merged by the next run."""
    before = points(["old"], HOSTS[:3], range(0, 1200, 60)) | points(["new"], HOSTS[3:], range(0, 1200, 60))
    during = points(["old"], HOSTS[:3], range(1, 3600, 15)) | points(["new"], HOSTS[3:], range(1, 3600, 15))
    with stream_of(store, tmp_path, before, during):
        uid = store.uids()[Name("metrics", "old")].hex()
        ran = timebeam("names", "merge", "metrics", "old", "new", *store.flags, "--yes")
        assert ran.code == 0, ran.err
    assert timebeam("names", "fix", *store.flags, "--yes").code == 0  # rows of the old UID get their name
    ran = timebeam("names", "merge", "metrics", uid, "new", *store.flags, "--yes")
    assert ran.code == 0, ran.err
    assert stored(store) == {("new", *place): value for (_, *place), value in (before | during).items()}
    assert timebeam("check", *store.flags).code == 0


def old_names(store: Store, count: int) -> list[Name]:
    """Metrics whose UIDs are as old as 1970, and have no rows."""
    names = [Name("metrics", f"unused{number}") for number in range(count)]
    assigned(store, names)
    cells = store.uid_cells()
    for key in {key for key, *_ in cells}:
        store.remove_row(store.layout.options.uid_table, key)
    for key, family, qualifier, value in cells:
        store.set_cell(store.layout.options.uid_table, key, family, qualifier, value)
    return names


def new_names(start: int, end: int) -> Points:
    """Points of new names, each of which gets a UID."""
    return {(f"m{number}", f"web{number}", number): number for number in range(start, end)}


def test_free(store: Store, tmp_path: Path) -> None:
    """Names of the stream that have no row yet are left alone."""
    unused = set(old_names(store, 40))
    before, during = new_names(0, 5), new_names(5, 300)
    with stream_of(store, tmp_path, before, during):
        for _ in range(5):
            ran = timebeam("names", "free", *store.flags, "--yes")
            assert ran.code == 0, ran.out
    assert stored(store) == before | during
    assert unused.isdisjoint(store.uids())
    assert timebeam("names", "fix", *store.flags).out == "nothing to do\n"
    assert timebeam("check", *store.flags).code == 0


def test_fix(store: Store, tmp_path: Path) -> None:
    """Forward mappings that were lost come back; assignments that are under way are not disturbed."""
    names = old_names(store, 40)
    uids = store.uids()
    for name in names:
        store.remove_row(store.layout.options.uid_table, name.text.encode())
    before, during = new_names(0, 5), new_names(5, 300)
    with stream_of(store, tmp_path, before, during):
        tag = assigned(store, [Name("tagk", "host"), Name("tagv", "web0")])
        for name in names:
            key = uids[name] + HOUR.to_bytes(4, "big") + tag[Name("tagk", "host")] + tag[Name("tagv", "web0")]
            store.set_cell(store.layout.data_table, key, "t", b"\0\0", b"\1")
        for _ in range(5):
            ran = timebeam("names", "fix", *store.flags, "--yes")
            assert ran.code == 0, ran.out
    assert {name: store.uids()[name] for name in names} == uids
    of_rows = {(name.text, "web0", 0): 1 for name in names}
    assert stored(store) == of_rows | before | during
    assert timebeam("names", "fix", *store.flags).out == "nothing to do\n"
