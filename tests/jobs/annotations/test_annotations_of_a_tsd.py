"""Annotations as a TSD stored them whose seconds are a multiple of 1,000: in a column of another time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.cases import Case, cases
from tests.support.commands import timebeam
from tests.support.inputs.annotations import notes, send
from tests.support.stored import Store
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells

CASES = {case.name: case for case in cases("annotations")}
THOUSAND_S = 1356999000
"""Its column is that of 1357001799 s."""


def filled(bigtable: tuple[str, str], prefix: str, case: Case) -> Store:
    """The cells of a TSD."""
    store = Store.create(bigtable, prefix)
    for name, uid in case.uids.items():
        store.set_uid(name.kind, "id", name.text.encode(), uid)
        store.set_uid(name.kind, "name", uid, name.text.encode())
        store.set_counter(name.kind, int.from_bytes(uid, "big"))
    for key, column, value in case.cells:
        store.set_cell(store.layout.data_table, key, "t", column, value)
    return store


def starts(store: Store, metric: str) -> list[int]:
    """The starts that a query of the hour shows, in s or ms, in order of time."""
    hour = ("--start=2013-01-01T00:00:00Z", "--end=2013-01-01T01:00:00Z")
    ran = timebeam("query", metric, *store.flags, *hour, "--output=annotations")
    assert ran.code == 0, ran.err
    assert "belongs to another cell" not in ran.err
    return [json.loads(line)["startTime"] for line in ran.out.splitlines()]


def test_every_command_takes_them_for_what_they_are(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    case, metric = CASES["local_thousand_both"], "annotations.m8"
    store = filled(bigtable, f"{prefix}a_", case)
    sink = Store.create(bigtable, f"{prefix}b_")
    stored = {(column, value) for _, column, value in case.cells}
    three = [THOUSAND_S, THOUSAND_S * 1000, THOUSAND_S + 1]
    assert sorted(starts(store, metric)) == sorted(three)
    assert timebeam("check", *store.flags).code == 0
    assert timebeam("compact", *store.flags, "--start=2013-01-01", "--end=2013-01-02").code == 0
    assert {(column, value) for _, column, _, value in store.cells()} == stored
    # The range of the copy ends before 1357001799, the time of a column.
    window = ("--start=2013-01-01T00:00:00Z", "--end=2013-01-01T00:20:00Z")
    copied = timebeam(
        *("copy", "--from=opentsdb", "--to=opentsdb", *store.flags[1:], *window, "--auto-create-metrics"),
        *(f"--to-table-prefix={prefix}b_", "--dead-letters", tmp_path / "dead"),
    )
    assert copied.code == 0, copied.err
    assert sorted(starts(sink, metric)) == sorted(three)
    sink.set_uid("tagv", "id", b"b", bytes((0, 0, 2)))
    sink.set_uid("tagv", "name", bytes((0, 0, 2)), b"b")
    assert timebeam("names", "merge", "tagv", "a", "b", *sink.flags, "--yes").code == 0
    assert sorted(starts(sink, metric)) == sorted(three)
    deleted = ("delete", metric, *store.flags, *window, "--annotations", "--summary=json")
    log = f"--log={tmp_path / 'log'}"
    token = json.loads(timebeam(*deleted, log).out)["token"]
    assert timebeam(*deleted, log, "--token", token).code == 0
    assert starts(store, metric) == []


def test_an_edit_moves_what_earlier_versions_stored(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    case, metric = CASES["local_thousand"], "annotations.m6"
    store = filled(bigtable, prefix, case)
    ((key, column, value),) = [cell for cell in case.cells if cells.is_annotation(cell[1])]
    tsuid = json.loads(value)["tsuid"]
    former = cells.former_place(store.layout.options, bytes.fromhex(tsuid), THOUSAND_S)
    assert former == (key, bytes.fromhex("010258"))
    store.remove_row(store.layout.data_table, key)
    store.set_cell(store.layout.data_table, former.key, "t", former.qualifier, value)
    assert starts(store, metric) == [THOUSAND_S]
    assert timebeam("check", *store.flags).code == 0
    send(store, tmp_path, {"tsuid": tsuid, "startTime": THOUSAND_S, "notes": "n"})
    (found,) = notes(store)
    changed = Annotation(tsuid, THOUSAND_S, 0, json.loads(value)["description"], "n").stored()
    assert (found[0], found[1], found[3]) == (key, column, changed)
    send(store, tmp_path, {"tsuid": tsuid, "startTime": THOUSAND_S, "method": "DELETE"})
    assert notes(store) == set()


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_tsd_would_mix_is_rejected(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, *, at_once: bool
) -> None:
    case = CASES["local_shared"]
    first, second = [step["http"][2] for step in case.steps if step["http"][1] == "/api/annotation"]
    store = filled(bigtable, prefix, case)
    store.remove_row(store.layout.data_table, next(iter(case.cells))[0])
    if not at_once:
        assert send(store, tmp_path, first).letters == []
    sent = send(store, tmp_path, first, second, second | {"method": "DELETE"})
    assert [letter["reason"] for letter in sent.letters] == ["value-not-storable"]
    assert f"startTime {THOUSAND_S}" in sent.letters[0]["message"]
    ((*_, value),) = notes(store)
    assert value == Annotation(first["tsuid"], THOUSAND_S, 0, first["description"]).stored()
