"""The bytes of the table of trees: those of a real TSD, in both directions, and the documents' example."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.tree_cases import GROUPS, TreeCase, tree_case
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.trees import tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import RuleType, TreeError, parse_trees
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries, Uid, place
from timebeam.schema.stores.opentsdb.trees.tree_cells import Leaf, read_content

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


def series_of(case: TreeCase) -> list[TreeSeries]:
    """The series of the points that were put."""
    found = []
    for point in case.points():
        uid = {
            kind: {name: bytes.fromhex(raw) for name, raw in one.items()} for kind, one in case.uids.items()
        }
        pairs = sorted((uid["tagk"][k] + uid["tagv"][v], k, v) for k, v in point["tags"].items())
        tsuid = uid["metrics"][point["metric"]] + b"".join(raw for raw, _, _ in pairs)
        found.append(TreeSeries(tsuid, Uid(point["metric"]), [(Uid(k), Uid(v)) for _, k, v in pairs]))
    return found


def test_the_worked_example_of_the_documents() -> None:
    path = ("dal", "web01", "myapp")
    assert tree_cells.branch_key(1, path) == bytes.fromhex("0001 0001838F 06BC4C55 06387CF5")
    assert [tree_cells.branch_key(1, path[:n]).hex() for n in (0, 1)] == ["0001", "00010001838f"]
    assert tree_cells.leaf_qualifier("bytes_sent") == b"leaf:" + bytes.fromhex("530152EC")
    assert tree_cells.branch_json(path[:1]) == b'{"path":{"0":"ROOT","1":"dal"},"displayName":"dal"}'
    leaf = Leaf("bytes_sent", "000001000001000001")
    assert tree_cells.leaf_json(leaf) == b'{"displayName":"bytes_sent","tsuid":"000001000001000001"}'


@pytest.mark.parametrize("group", GROUPS)
def test_a_tree_and_its_series_become_the_cells_of_a_tsd(group: str) -> None:
    case = tree_case(group)
    (tree,) = parse_trees(json.dumps(case.definition()))
    made = {(tree_cells.tree_key(1), tree_cells.TREE, tree_cells.tree_json(tree))}
    made |= {
        (tree_cells.tree_key(1), tree_cells.rule_qualifier(rule), tree_cells.rule_json(rule))
        for rule in tree.rules
    }
    leaves: dict[tuple[bytes, bytes], Leaf] = {}
    for series in series_of(case):
        found = place(tree, series)
        for depth in range(len(found.path) + 1 if found.leaf else 0):
            path = found.path[:depth]
            made.add((tree_cells.branch_key(1, path), tree_cells.BRANCH, tree_cells.branch_json(path)))
        if found.leaf:
            place_of = tree_cells.branch_key(1, found.path), tree_cells.leaf_qualifier(found.leaf)
            leaves.setdefault(
                place_of, Leaf(found.leaf, tree_cells.hex_text(series.tsuid))
            )  # the first one stays
    made |= {(key, name, tree_cells.leaf_json(leaf)) for (key, name), leaf in leaves.items()}
    assert made == {(key, name, value) for key, _, name, value in case.cells["tsdb-tree"]}


@pytest.mark.parametrize("group", GROUPS)
def test_the_cells_of_a_tsd_are_read(group: str) -> None:
    case = tree_case(group)
    rows = case.rows("tsdb-tree")
    tree = tree_cells.read_tree(rows[0])
    (wanted,) = parse_trees(json.dumps(case.definition()))
    assert tree == wanted
    content = read_content(1, rows)
    assert not content.corruption
    answers = [step["answer"] for step in case.steps if step["http"][1].startswith("/api/tree/branch")]
    for answer in answers:
        assert [(one["displayName"], one["branchId"]) for one in answer["branches"]] == [
            (branch.name, tree_cells.hex_text(branch.key)) for branch in content.root.branches
        ]
    written = {
        (branch.key, tree_cells.leaf_qualifier(leaf.name), tree_cells.leaf_json(leaf))
        for _, branch in content.root.walk()
        for leaf in branch.leaves
    }
    stored = {(row, name, value) for row, _, name, value in case.cells["tsdb-tree"] if name[:5] == b"leaf:"}
    assert written == stored


def test_any_order_of_keys_and_unknown_ones_are_read() -> None:
    text = b'{"displayName":"b","more":1,"path":{"1":"a","0":"ROOT","2":"b","10":"k"}}'
    assert tree_cells.read_branch(text) == ("a", "b", "k")
    assert tree_cells.read_leaf(b'{"tsuid":"0A","x":null,"displayName":"n"}') == Leaf("n", "0A")
    rule = b'{"type":"tagk","field":"host","level":1,"order":2,"treeId":7,"regex":null,"other":[]}'
    row = Row(
        "tsdb-tree",
        b"\x00\x01",
        [Cell("t", b"tree", 0, b'{"name":"n"}'), Cell("t", b"tree_rule:1:2", 0, rule)],
    )
    tree = tree_cells.read_tree(row)
    assert tree is not None
    assert tree.tree_id == 1
    assert (tree.rules[0].type, tree.rules[0].tree_id) == (RuleType.TAGK, 7)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{", b"\xff", b'{"path":[]}', b'{"path":{}}', b'{"path":{"0":1}}']
)
def test_corrupt_cells_are_found(value: bytes) -> None:
    with pytest.raises(TreeError):
        tree_cells.read_branch(value)
    with pytest.raises(TreeError):
        tree_cells.read_leaf(value)


@given(st.lists(NAMES, max_size=4), NAMES)
def test_names_of_all_kinds_are_read_back(path: list[str], name: str) -> None:
    assert tree_cells.read_branch(tree_cells.branch_json(path)) == tuple(path)
    assert tree_cells.read_leaf(tree_cells.leaf_json(Leaf(name, "00"))) == Leaf(name, "00")
    assert len(tree_cells.branch_key(1, path)) == 2 + 4 * len(path)


@given(NAMES, NAMES, st.booleans(), st.integers(0, 2**31 - 1))
def test_definitions_of_all_kinds_are_read_back(name: str, notes: str, flag: bool, created: int) -> None:
    (tree,) = parse_trees('{"name": "x", "treeId": 3}')
    tree = dataclasses.replace(tree, name=name, notes=notes, strict_match=flag, created=created)
    row = Row("tsdb-tree", b"\x00\x03", [Cell("t", b"tree", 0, tree_cells.tree_json(tree))])
    assert tree_cells.read_tree(row) == tree


def test_a_tree_is_read_back_whatever_is_missing() -> None:
    keys = [tree_cells.branch_key(1, path) for path in (("b",), ("b", "x"), ("A",))]
    rows = sorted(
        [
            Row("", keys[1], [Cell("t", b"leaf:0000", 0, b'{"displayName":"l","tsuid":"01"}')]),
            Row("", keys[2], [Cell("t", b"branch", 0, tree_cells.branch_json(["A"]))]),
            Row("", b"\x00\x01\x01", [Cell("t", b"tree_collision:\x0a\xff", 0, b"0B")]),
            Row("", b"\x00\x01\x02", [Cell("t", b"tree_not_matched:\x0c", 0, b"[1:0:0:METRIC]")]),
            Row("", b"\x00\x01abc", []),
        ],
        key=lambda row: row.key,
    )
    content = read_content(1, rows)
    assert content.collisions == {"0AFF": "0B"}
    assert content.not_matched == {"0C": "[1:0:0:METRIC]"}
    assert [branch.name for branch in content.root.branches] == ["00000062", "A"]
    assert content.counts() == (3, 1, 2)
    assert len(content.corruption) == 2


def test_the_range_of_a_tree_is_its_own() -> None:
    assert tree_cells.tree_range(1) == (b"\x00\x01", b"\x00\x02")
    assert tree_cells.tree_range(255) == (b"\x00\xff", b"\x01\x00")
    assert tree_cells.tree_range(65_535) == (b"\xff\xff", b"")
