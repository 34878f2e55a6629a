"""`timebeam replay` of files: payloads as input, rows as rows, what is not whole as dead letters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import grpc
import pytest

from tests.support.commands import code_of, ingest, timebeam
from tests.support.fault_proxy import MUTATE_ROWS, BadEntries, faulty, some_keys
from tests.support.stored import Store
from timebeam.schema.bits.protobuf import encoded_bytes, encoded_varint, field_contents
from timebeam.schema.formats import message_format

T = 1_767_225_600


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def replay(
    store: Store, folder: Path, pattern: str, *flags: str, form: str = "opentsdb-text"
) -> dict[str, object]:
    ran = timebeam(
        *("replay", folder / pattern, *store.flags, f"--format={form}", "--summary=json"),
        *("--dead-letters", folder / "again", *flags),
    )
    assert ran.out, ran.err
    summary = json.loads(ran.out)
    assert ran.code == code_of(summary), ran.err
    return summary


def values(store: Store) -> dict[int, float | int]:
    return {
        time_ms // 1000 - T: value for points in store.points().values() for time_ms, value in points.items()
    }


def test_after_the_fix_all_is_there_and_corrections_win(store: Store, tmp_path: Path) -> None:
    """Names that may not be created are rejected; a newer file corrects one of their points."""
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("".join(f"put m {T + n} {n} host=a\n" for n in range(5)) + "put m 5\n")
    new.write_text(f"put m {T + 2} 2.5 host=a\n")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    os.utime(new, (1_500_000_000, 1_500_000_000))
    source = ("--format=opentsdb-text", "--input")
    rejected = ingest(tmp_path, *store.flags, *source, old)
    assert {letter["arrival_ms"] for letter in rejected.letters} == {1_000_000_000_000}
    ingest(tmp_path, *store.flags, "--auto-create-metrics", *source, new)
    first: set[object] = set()
    for _ in range(2):
        summary = replay(store, tmp_path, "letters-*/*.jsonl", "--auto-create-metrics")
        assert (summary["points_stored"], summary["rejected"]) == (5, {"bad-syntax": 1})
        first = first or set(store.cells())
        assert set(store.cells()) == first
    assert values(store) == {0: 0, 1: 1, 2: 2.5, 3: 3, 4: 4}


def test_of_a_message_only_the_rejected_records_are_stored(
    bigtable: tuple[str, str], prefix: str, store: Store, tmp_path: Path
) -> None:
    """The payload is the whole message, whose other points may have been deleted meanwhile."""
    name = message_format("otlp", {}).example.replace(b"memory", b"m2mory")
    metrics = [name.replace(b"m2mory", b"m%dmory" % (number % 2)) for number in range(8)]
    request = _one_resource(metrics)
    (tmp_path / "a.pb").write_bytes(encoded_varint(len(request)) + request)
    one = tmp_path / "b.pb"
    one.write_bytes(encoded_varint(len(metrics[0])) + metrics[0])
    source = ("--format=otlp", "--input")
    ingest(tmp_path, *store.flags, "--auto-create-metrics", *source, one)
    found = ingest(tmp_path, *store.flags, *source, tmp_path / "a.pb")
    (letter,) = found.letters
    assert (letter["reason"], letter["points"], len(letter["records"])) == ("unknown-name", 4, 4)
    other = Store.create(bigtable, prefix + "2")
    summary = replay(other, tmp_path, "letters-*/*.jsonl", "--auto-create-metrics", form="otlp")
    assert (summary["points_read"], summary["rejected"]) == (4, {})
    assert {series.metric for series in other.points()} == {"m1mory"}


def _one_resource(requests: list[bytes]) -> bytes:
    """A request of OTLP with the scopes of several in one resource."""
    resources = [content for request in requests for _, content in field_contents(request)]
    scopes = [encoded_bytes(2, content) for one in resources for _, content in list(field_contents(one))[1:]]
    head = encoded_bytes(1, next(content for _, content in field_contents(resources[0])))
    return encoded_bytes(1, head + b"".join(scopes))


def test_rejected_rows_are_written(store: Store, emulator: str, tmp_path: Path) -> None:
    """Rows that Bigtable refused, as they are, with their cell timestamps."""
    path = tmp_path / "a.txt"
    path.write_text("".join(f"put m {T + 3600 * n} {n} host=a\n" for n in range(50)))
    flags = ("--format=opentsdb-text", "--auto-create-metrics", "--bigtable-writer=direct", "--input", path)
    bad = BadEntries(grpc.StatusCode.INVALID_ARGUMENT, some_keys(0.3, 1))
    with faulty(emulator, lambda call: bad if call.method == MUTATE_ROWS else None):
        found = ingest(tmp_path, *store.flags, *flags)
    assert 0 < len(found.letters) == 50 - len(values(store))
    replay(store, tmp_path, "letters-*/*.jsonl")
    assert values(store) == {3600 * n: n for n in range(50)}
    assert {cell[2] for cell in store.cells()} == {int(path.stat().st_mtime * 1000)}


def test_what_is_not_whole_stays_a_dead_letter(store: Store, tmp_path: Path) -> None:
    """A cut line may read as another one: put m T 1 host=aaaa... is a good line at any length."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"put m %d 1 host=" % T + b"a" * (1 << 20) + b"\n")
    ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", path)
    summary = replay(store, tmp_path, "letters-*/*.jsonl", "--auto-create-metrics")
    assert (summary["points_stored"], summary["rejected"]) == (0, {"line-too-long": 1})
    assert values(store) == {}
    (again,) = [
        json.loads(line) for name in tmp_path.glob("again*") for line in name.read_text().splitlines()
    ]
    assert again["source"] == str(path)


def test_other_files_are_rejected(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"metric": "m"}\n\nput m 1 1 host=a\n')
    assert replay(store, tmp_path, "a.jsonl")["rejected"] == {"bad-syntax": 2}
    ran = timebeam("replay", tmp_path / "none*", *store.flags, "--format=opentsdb-text")
    assert (ran.code, "no file matches" in ran.err) == (1, True)
