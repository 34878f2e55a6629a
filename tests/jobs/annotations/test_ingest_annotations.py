"""Annotations through `timebeam ingest`: stored, changed and deleted, in a real Bigtable."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.golden.cases import Case, cases
from tests.support.commands import timebeam
from tests.support.inputs.annotations import A, B, load, notes, query, send
from tests.support.points import BASE_S, FIRST_MS, LATER_MS
from tests.support.stored import Store
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.formats import Message, message_format
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.transforms.opentsdb.edit_annotations import AddressedEdit
from timebeam.transforms.opentsdb.edit_annotations import store as store_annotations


@pytest.fixture(scope="module")
def loaded(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Points of two series, whose TSUIDs are A and B."""
    return load(Store.create(bigtable, "annotations_"), tmp_path_factory.mktemp("points"))


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, loaded: Store) -> Store:
    """A copy of the loaded tables, to be written to."""
    store = Store.create(bigtable, prefix)
    store.copy(loaded)
    return store


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in cases("annotations") if case.name != "local_shared"]
)
def test_requests_become_the_cells_of_a_tsd(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, case: Case
) -> None:
    store = Store.create(bigtable, prefix)
    for name, uid in case.uids.items():
        store.set_uid(name.kind, "id", name.text.encode(), uid)
        store.set_uid(name.kind, "name", uid, name.text.encode())
    bodies = [step["http"][2] for step in case.steps if step["http"][1] == "/api/annotation"]
    sent = send(store, tmp_path, *bodies)
    expected = {(key, column, value) for key, column, value in case.cells if cells.is_annotation(column)}
    assert {(key, column, value) for key, column, _, value in notes(store)} == expected
    assert (sent.summary["annotations_read"], sent.letters) == (len(bodies), [])


def test_edits_in_time_again_late_and_deleted(store: Store, tmp_path: Path) -> None:
    at = {"tsuid": A, "startTime": BASE_S + 7}
    first, later = {**at, "description": "first", "notes": "n"}, {**at, "description": "later"}
    place = cells.place(store.layout.options, bytes.fromhex(A), BASE_S + 7)
    merged = Annotation(A, BASE_S + 7, 0, "later", "n").stored()
    for arrival_ms, body in ((FIRST_MS, first), (LATER_MS, later), (FIRST_MS, first), (LATER_MS, later)):
        sent = send(store, tmp_path, body, arrival_ms=arrival_ms)
    assert notes(store) == {(*place, LATER_MS, merged)}
    assert sent.summary["annotations_written"] == 0
    late = send(store, tmp_path, {**at, "method": "DELETE"}, arrival_ms=FIRST_MS)
    assert late.summary["annotations_deleted"] == 0
    done = send(store, tmp_path, {**at, "method": "DELETE"}, arrival_ms=LATER_MS)
    assert done.summary["annotations_deleted"] == 1
    assert notes(store) == set()
    assert send(store, tmp_path, {**at, "method": "DELETE"}).summary["annotations_deleted"] == 0


def test_a_deletion_takes_older_versions_with_it(store: Store, tmp_path: Path) -> None:
    at = {"startTime": BASE_S, "description": "a"}
    send(store, tmp_path, at, arrival_ms=FIRST_MS)
    send(store, tmp_path, {**at, "notes": "b"}, arrival_ms=LATER_MS)
    send(store, tmp_path, {**at, "method": "DELETE"}, arrival_ms=LATER_MS)
    assert notes(store) == set()


def test_many_writers_of_one_annotation_lose_nothing(store: Store) -> None:
    """Sixteen edits of one field each, at once: a blind write would lose most of them."""
    fields = [f"f{number}" for number in range(16)]
    at = cells.place(store.layout.options, b"", BASE_S)

    def edit(number: int) -> None:
        if number % 2:
            body = {"startTime": BASE_S, "custom": {"a": "b"}}
        else:
            body = {"startTime": BASE_S, ("notes" if number % 4 else "description"): fields[number]}
        message = Message(json.dumps(body).encode(), FIRST_MS + number)
        (found,) = message_format("opentsdb-annotations").parse(message).annotations
        assert store_annotations(store.target, store.layout, {at: [AddressedEdit("", found)]}) == []

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(edit, range(16)))
    ((_, _, timestamp_ms, value),) = notes(store)
    found = json.loads(value)
    assert found["custom"] == {"a": "b"}
    assert found["description"] in fields
    assert found["notes"] in fields
    assert timestamp_ms == FIRST_MS + 15


def test_what_is_rejected_is_a_dead_letter_and_can_be_replayed(store: Store, tmp_path: Path) -> None:
    good = {"metric": "sys.load", "tags": {"host": "b"}, "startTime": BASE_S + 60, "description": "good"}
    bad = [
        {"tsuid": "000009000001000001", "startTime": BASE_S, "notes": "no such metric"},
        {"tsuid": "0001", "startTime": BASE_S, "notes": "no tsuid"},
        {"metric": "sys.new", "tags": {"host": "b"}, "startTime": BASE_S, "notes": "new"},
        {"startTime": BASE_S},
    ]
    sent = send(store, tmp_path, good, *bad)
    assert {one["reason"] for one in sent.letters} == {"unknown-name", "bad-metric", "empty-value"}
    assert {one["payload"] for one in sent.letters} == {json.dumps(one) for one in bad}
    assert {one["arrival_ms"] for one in sent.letters} == {FIRST_MS}
    place = cells.place(store.layout.options, bytes.fromhex(B), BASE_S + 60)
    assert notes(store) == {(*place, FIRST_MS, Annotation(B, BASE_S + 60, 0, "good").stored())}
    (letters,) = tmp_path.glob("letters-*/*.jsonl")
    ran = timebeam(
        *("replay", letters, *store.flags, "--format=opentsdb-annotations", "--auto-create-metrics"),
        *("--dead-letters", tmp_path / "again", "--summary=json"),
    )
    assert json.loads(ran.out)["rejected"] == {"bad-metric": 1, "empty-value": 1, "unknown-name": 1}
    assert {json.loads(value)["notes"] for *_, value in notes(store)} == {"", "new"}


def test_dry_run_and_other_layouts(store: Store, tmp_path: Path) -> None:
    sent = send(store, tmp_path, {"startTime": BASE_S, "notes": "x"}, flags=["--dry-run"])
    assert (sent.summary["annotations_written"], notes(store)) == (1, set())
    ran = timebeam(
        *("ingest", "--layout=heroic", "--format=opentsdb-annotations", "--input=x"),
        *("--project=local", "--instance=local"),
    )
    assert ran.code == 2
    assert "layout heroic has no annotations; opentsdb has" in ran.err


def test_what_is_stored_and_is_no_annotation(store: Store, tmp_path: Path) -> None:
    place = cells.place(store.layout.options, b"", BASE_S)
    store.set_cell(store.layout.data_table, place.key, "t", place.qualifier, b"{broken")
    ran = timebeam("check", *store.flags)
    assert ran.code == 1
    assert "annotation 010000: not JSON" in ran.out
    assert "annotation 010000: not JSON" in query(store, "--global-annotations").err
    sent = send(store, tmp_path, {"startTime": BASE_S, "notes": "x"})
    assert [one["reason"] for one in sent.letters] == ["value-not-storable"]
    store.remove_row(store.layout.data_table, place.key)
    (letters,) = tmp_path.glob("letters-*/*.jsonl")
    ran = timebeam(
        *("replay", letters, *store.flags, "--format=opentsdb-annotations"),
        *("--dead-letters", tmp_path / "again", "--summary=json"),
    )
    assert json.loads(ran.out)["annotations_written"] == 1
    store.remove_row(store.layout.data_table, place.key)
    store.set_cell(store.layout.data_table, place.key, "t", place.qualifier, b"{broken")
    send(store, tmp_path, {"startTime": BASE_S, "notes": "x", "method": "PUT"})
    assert notes(store) == {(*place, FIRST_MS, Annotation("", BASE_S, notes="x").stored())}


def test_long_annotations_are_changed_too(store: Store, tmp_path: Path) -> None:
    """A filter of Bigtable may not be as long as this one."""
    long = "x" * 50_000
    send(store, tmp_path, {"startTime": BASE_S, "notes": long})
    send(store, tmp_path, {"startTime": BASE_S, "description": "d"}, arrival_ms=LATER_MS)
    ((*_, value),) = notes(store)
    assert value == Annotation("", BASE_S, 0, "d", long).stored()


def test_salted_tables(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix, salt_width=1)
    load(store, tmp_path)
    send(
        store, tmp_path, {"tsuid": A, "startTime": BASE_S, "notes": "x"}, {"startTime": BASE_S, "notes": "y"}
    )
    points = {key for key, column, *_ in store.cells() if not cells.is_annotation(column)}
    keys = {key for key, *_ in notes(store)}
    assert bytes(4) + BASE_S.to_bytes(4, "big") in keys
    assert len(keys & points) == 1
    (result,) = json.loads(query(store, "--output=json", "--global-annotations", "--tag=host=a").out)
    assert [one["notes"] for one in result["annotations"] + result["globalAnnotations"]] == ["x", "y"]
    assert timebeam("check", *store.flags).code == 0
