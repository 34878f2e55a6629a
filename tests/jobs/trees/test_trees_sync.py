"""`timebeam trees sync` against the emulator: the cells of a TSD, and those that a plain evaluation wants."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.golden.tree_cases import GROUPS, tree_case
from tests.jobs.trees.forest import Forest
from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, Fault, either, every, faulty, no_faults
from tests.support.plain.plain_trees import plain_cells

LOST_BY_A_TSD = {
    "trees": (b"\x00\x01\x01", b"tree_collision:", "000001000001000001000003000005", "000001000001000001"),
    "trees_strict": (b"\x00\x01\x02", b"tree_not_matched:", "000002000002000002", "[1:2:0:TAGK]"),
}


@pytest.fixture
def forest(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Forest:
    return Forest.create(bigtable, prefix, tmp_path)


@pytest.mark.parametrize("group", GROUPS)
def test_the_cells_of_a_tsd_and_those_that_it_loses(forest: Forest, group: str) -> None:
    case = tree_case(group)
    forest.put("tsdb-uid", case.cells["tsdb-uid"])
    forest.put("tsdb-meta", case.cells["tsdb-meta"])
    forest.create_tree(case.definition())
    summary = forest.sync()
    assert summary["source"] == forest.prefix + "tsdb-meta"
    key, prefix, tsuid, value = LOST_BY_A_TSD[group]
    wanted = {(key, name, value) for key, _, name, value in case.cells["tsdb-tree"]}
    wanted.add((key, prefix + bytes.fromhex(tsuid), value.encode()))
    assert {(key, name, value) for key, name, _, value in forest.cells()} == wanted
    series = len(case.cells["tsdb-meta"])
    assert summary["series"] == series
    assert summary["leaves_written"] == series - 1
    assert summary["collisions"] + summary["not_matched"] == summary["failures_written"] == 1


def test_a_tree_of_a_tsd_is_kept_up(forest: Forest) -> None:
    case = tree_case("trees")
    for table in ("tsdb-uid", "tsdb-meta"):
        forest.put(table, case.cells[table])
    forest.put(
        "tsdb-tree", {cell for cell in case.cells["tsdb-tree"] if cell[0] != bytes.fromhex("00010001a246")}
    )
    summary = forest.sync()
    assert (summary["leaves_written"], summary["branches_written"]) == (0, 1)
    assert {cell[:2] for cell in forest.cells()} >= {
        (row, name) for row, _, name, _ in case.cells["tsdb-tree"]
    }


VALUES = ["a", "b", "a.b", "a.b.c", "a..b", "web-01.lga", "..", "x_y", "ROOT", "b.b", "größe"]


def random_tree(random_: random.Random, tree_id: int) -> dict[str, Any]:
    """A tree with rules of all types."""
    rules = []
    for level in random_.sample(range(8), random_.randint(2, 5)):
        for order in range(random_.randint(1, 3)):
            kind = random_.choice(["METRIC", "METRIC_CUSTOM", "TAGK", "TAGK", "TAGK_CUSTOM", "TAGV_CUSTOM"])
            rule: dict[str, Any] = {"level": level, "order": order, "type": kind}
            rule["field"] = random_.choice(VALUES if kind == "TAGV_CUSTOM" else ["host", "dc", "type"])
            rule["customField"] = random_.choice(["owner", "zone"]) if kind.endswith("CUSTOM") else ""
            how = random_.randint(0, 3)
            if how == 0:
                rule["regex"] = random_.choice([r"^([^.]+)", r"(a)|(b)", r"\.(.*)", "(z*)"])
                rule["regexGroupIdx"] = random_.randint(0, 1)
            elif how == 1 and order == 0:
                rule["separator"] = random_.choice([r"\.", "-", "_"])
            rule["displayFormat"] = random_.choice(
                ["", "", "", "{value}", "m:{value}", "{tag_name}", "{tsuid}"]
            )
            rules.append(rule)
    flags = {name: random_.random() < 0.5 for name in ("strictMatch", "storeFailures")}
    return {"name": f"tree {tree_id}", "treeId": tree_id, "enabled": True, "rules": rules, **flags}


def random_series(random_: random.Random, n: int) -> list[dict[str, Any]]:
    """Distinct series with custom fields, by TSUID."""
    kinds = {"metrics": VALUES, "tagk": ["host", "dc", "type"], "tagv": VALUES}
    uids = {
        (kind, text): (at + 1).to_bytes(3, "big")
        for kind, texts in kinds.items()
        for at, text in enumerate(texts)
    }
    fields = {name: {key: random_.choice(["", "q", "a.b"]) for key in ("owner", "zone")} for name in uids}
    custom = {name: found for name, found in fields.items() if random_.random() < 0.6}
    found = {}
    while len(found) < n:
        metric = random_.choice(VALUES)
        keys = random_.sample(kinds["tagk"], random_.randint(1, 3))
        tags = sorted(((key, random_.choice(VALUES)) for key in keys), key=lambda tag: uids["tagk", tag[0]])
        raw = uids["metrics", metric] + b"".join(
            uids["tagk", key] + uids["tagv", value] for key, value in tags
        )
        tsuid = raw.hex().upper()
        found[tsuid] = {"tsuid": tsuid, "metric": metric, "tags": tags, "custom": custom}
    return [found[tsuid] for tsuid in sorted(found)]


def test_ten_random_rule_sets_agree_with_a_plain_evaluation_and_a_second_sync_writes_nothing(
    forest: Forest, emulator: str
) -> None:
    random_ = random.Random(7)
    many = random_series(random_, 120)
    forest.add(many)
    trees = [random_tree(random_, tree_id) for tree_id in range(1, 11)]
    (forest.folder / "trees.json").write_text(json.dumps(trees))
    assert forest.run("create", forest.folder / "trees.json").code == 0
    dry = forest.sync("--dry-run")
    assert all(not forest.values(tree["treeId"]) for tree in trees)
    summary = forest.sync()
    for tree in trees:
        assert forest.values(tree["treeId"]) == plain_cells(tree, many), json.dumps(tree)
    done = ("leaves_written", "branches_written", "collisions", "not_matched", "failures_written", "rejected")
    assert [summary[name] for name in done] == [dry[name] for name in done]
    assert summary["leaves_written"] > 100
    assert summary["collisions"] > 20
    assert summary["rejected"] == 0
    before = forest.cells()
    with faulty(emulator, no_faults) as proxy:
        again = forest.sync()
        assert not {"CheckAndMutateRow", "MutateRows", "MutateRow"} & set(proxy.calls)
    assert forest.cells() == before
    assert [again[name] for name in ("leaves_written", "branches_written", "failures_written")] == [0, 0, 0]
    assert again["leaves_there"] == summary["leaves_written"]
    assert again["branches_there"] == summary["branches_written"]


def test_answers_that_get_lost_change_nothing(forest: Forest, emulator: str) -> None:
    many = random_series(random.Random(3), 60)
    forest.add(many)
    tree = random_tree(random.Random(5), 1)
    lost = every(COMPARE_AND_SET, 2, Fault(grpc.StatusCode.UNAVAILABLE, AFTER))
    late = every(COMPARE_AND_SET, 5, Fault(grpc.StatusCode.ABORTED, BEFORE))
    with faulty(emulator, either(late, lost)) as proxy:
        forest.create_tree(tree)
        summary = forest.sync()
        assert proxy.faults
    stored = forest.values(1)
    assert stored == plain_cells(tree, many)
    leaves = [name for _, name in stored if name.startswith(b"leaf:")]
    assert summary["leaves_written"] == len(leaves)
    assert summary["branches_written"] == len([name for _, name in stored if name == b"branch"])


def test_without_meta_the_series_are_those_of_the_data(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    forest = Forest.create(bigtable, prefix, tmp_path, salt_width=1, salt_buckets=3)
    many = random_series(random.Random(1), 40)
    forest.add(many)
    forest.put("tsdb-meta", set())
    for series in many:
        forest.store.remove_row(prefix + "tsdb-meta", bytes.fromhex(series["tsuid"]))
        raw = bytes.fromhex(series["tsuid"])
        for hour in (0, 1, 9):
            key = bytes([len(raw) % 3]) + raw[:3] + (1_356_998_400 + 3600 * hour).to_bytes(4, "big") + raw[3:]
            forest.put("tsdb", {(key, "t", b"\x00\x00", b"\x01")})
    forest.put("tsdb", {(bytes(8), "t", b"\x01\x00\x00", b"{}"), (b"\x01" * 9, "t", b"\x00\x00", b"\x01")})
    tree = random_tree(random.Random(2), 1)
    forest.create_tree(tree)
    summary = forest.sync()
    assert summary["source"] == prefix + "tsdb"
    assert forest.values(1) == plain_cells(tree, many)
    assert summary["series"] == len(many)
    (letter,) = forest.letters()
    assert (letter["reason"], letter["source"]) == ("series-not-storable", f"row of table {prefix}tsdb")
    assert forest.run("sync", "--series=meta").code == 2
