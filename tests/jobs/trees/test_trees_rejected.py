"""What `timebeam trees sync` leaves as it is, rejects or records, against the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.trees.forest import Forest
from tests.support.plain.plain_trees import plain_cells


@pytest.fixture
def forest(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Forest:
    return Forest.create(bigtable, prefix, tmp_path)


def one(tsuid: str, metric: str, *tags: tuple[str, str], **custom: dict[str, Any]) -> dict[str, Any]:
    """A series; custom fields by `KIND_NAME`."""
    found = {tuple(name.split("_", 1)): fields for name, fields in custom.items()}
    return {"tsuid": tsuid, "metric": metric, "tags": list(tags), "custom": found}


SPLIT = {"level": 0, "order": 0, "type": "METRIC", "separator": "\\."}
HOST = {"level": 1, "order": 0, "type": "TAGK", "field": "host"}
TREE = {"name": "T", "enabled": True, "storeFailures": True, "rules": [SPLIT, HOST]}


def test_the_first_leaf_stays(forest: Forest) -> None:
    forest.add([one("000002000001000001", "m", ("host", "a"))])
    forest.create_tree({**TREE, "rules": [SPLIT]})
    forest.sync()
    first = forest.values(1)
    smaller, larger = "000001000001000001", "000003000001000001"
    forest.add([one(larger, "m", ("host", "a")), one(smaller, "m", ("host", "a"))])
    summary = forest.sync()
    assert summary["collisions"] == 2
    collisions = {
        (b"\x00\x01\x01", b"tree_collision:" + bytes.fromhex(tsuid)): "000002000001000001"
        for tsuid in (smaller, larger)
    }
    assert forest.values(1) == first | collisions


def test_what_has_failed_otherwise_is_corrected(forest: Forest) -> None:
    forest.add([one("000002000001000001", "m", ("x", "a"))])
    forest.create_tree({**TREE, "strictMatch": True})
    forest.sync()
    key, name = b"\x00\x01\x02", b"tree_not_matched:" + bytes.fromhex("000002000001000001")
    assert forest.values(1) == {(key, name): "[1:1:0:TAGK]"}
    forest.create_tree(
        {**TREE, "strictMatch": True, "rules": [SPLIT, HOST, {**HOST, "level": 2, "field": "dc"}]}
    )
    assert forest.sync()["failures_written"] == 1
    assert forest.values(1) == {(key, name): "[1:1:0:TAGK] [1:2:0:TAGK]"}
    assert {(cell[1], cell[2]) for cell in forest.cells() if cell[0] == key} == {(name, 1)}


def test_branches_of_one_hash_do_not_mix(forest: Forest) -> None:
    forest.add(
        [one("000001000001000001", "Aa.x", ("host", "a")), one("000002000001000001", "BB.x", ("host", "a"))]
    )
    forest.create_tree(TREE)
    for _ in range(2):
        summary = forest.sync()
        assert (summary["rejected"], summary["collisions"]) == (2, 0)
    branches = [value["displayName"] for (_, name), value in forest.values(1).items() if name == b"branch"]
    assert sorted(branches) == ["Aa", "ROOT", "x"]
    letters = [letter for letter in forest.letters() if "not stored" in letter["message"]]
    assert len(letters) == 2
    assert "'BB/x' has the same hash as 'Aa/x'" in letters[0]["message"]
    assert json.loads(letters[0]["payload"]) == {"tsuid": "000002000001000001", "treeId": 1}


def test_series_that_cannot_be_placed_are_dead_letters(forest: Forest) -> None:
    good = one("000001000001000001", "m", ("host", "a"), tagv_a={"owner": "x"})
    null = one("000001000001000002", "m", ("host", "b"), tagv_b={"owner": None})
    corrupt = one("000001000001000003", "m", ("host", "c"), tagv_c={"owner": ["x"]})
    forest.add([good, null, corrupt])
    forest.put(
        "tsdb-meta",
        {(bytes.fromhex(key), "name", b"ts_ctr", bytes(8)) for key in ("0001", "000009000001000001")},
    )
    rule = {"level": 0, "order": 0, "type": "TAGV_CUSTOM", "customField": "owner"}
    rules = [{**rule, "field": "a"}, {**rule, "field": "b", "order": 1}, HOST]
    forest.create_tree({**TREE, "rules": rules})
    summary = forest.sync()
    assert (summary["series"], summary["leaves_written"], summary["rejected"]) == (5, 1, 4)
    found = {json.loads(letter["payload"])["tsuid"]: letter["reason"] for letter in forest.letters()}
    assert found == {
        "0001": "series-not-storable",
        "000009000001000001": "unknown-name",
        "000001000001000002": "empty-value",
        "000001000001000003": "bad-syntax",
    }


def test_corrupt_rows_are_left_as_they_are(forest: Forest) -> None:
    forest.add(
        [one("000001000001000001", "m", ("host", "a")), one("000002000001000001", "n.k", ("host", "a"))]
    )
    forest.create_tree(TREE)
    forest.put("tsdb-tree", {(b"\x00\x01\x00\x00\x00m", "t", b"branch", b"corrupt")})
    before = forest.cells()
    summary = forest.sync()
    assert (summary["rejected"], summary["leaves_written"]) == (1, 1)
    assert before <= forest.cells()
    assert "cannot be read" in forest.letters()[0]["message"]


def test_all_bytes_of_hashes_can_be_asked_for(forest: Forest) -> None:
    """A hash is any 4 bytes: line breaks, zeros and what a pattern has for its own."""
    names = ["größe", "\x0a\x0a", "|", "(", "a\\E", "\u0a0a", "\u2a2a\u5c5c", "\ud7ff\uffee", ".*", "木"]
    custom = {f"tagv_v{at}": {"owner": name} for at, name in enumerate(names)}
    many = [
        one(f"0000010000010000{at + 1:02X}", "m", ("host", f"v{at}"), **custom) for at in range(len(names))
    ]
    forest.add(many)
    rule = {"level": 0, "type": "TAGV_CUSTOM", "customField": "owner"}
    tree = {**TREE, "rules": [{**rule, "field": f"v{at}", "order": at} for at in range(len(names))]}
    forest.create_tree(tree)
    assert forest.sync()["leaves_written"] == len(names)
    assert forest.sync()["leaves_there"] == len(names)
    assert forest.values(1) == plain_cells({**tree, "treeId": 1}, many)


def test_a_stored_tree_that_cannot_be_used_does_not_stop_the_others(forest: Forest) -> None:
    forest.add([one("000001000001000001", "m", ("host", "a"))])
    forest.create_tree(TREE)
    rule = {"type": "METRIC", "level": 0, "order": 0, "treeId": 2, "regex": "(?=a)"}
    forest.create_tree({**TREE, "name": "U", "rules": [{**SPLIT, "treeId": 2}], "treeId": 2})
    forest.put("tsdb-tree", {(b"\x00\x02", "t", b"tree_rule:0:0", json.dumps(rule).encode())})
    ran = forest.run("sync", f"--dead-letters={forest.folder / 'dead'}")
    assert ran.code == 1
    assert "skipped: row 0002, column b'tree_rule:0:0'" in ran.err
    assert not forest.values(2)
    assert len(forest.values(1)) == 3
    forest.create_tree({**TREE, "name": "U"})
    assert forest.sync()["leaves_written"] == 1
