"""`timebeam trees create`, `show` and `test`, and `tables create --trees`, as a user types them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden.tree_cases import tree_case
from tests.jobs.trees.forest import Forest
from tests.support.commands import Ran, timebeam
from tests.support.fault_proxy import BEFORE, COMPARE_AND_SET, Do, faulty, nth
from timebeam.pipelines.local.emulator import HOST_VARIABLE

SPLIT = {"level": 0, "order": 0, "type": "METRIC", "separator": "\\."}
HOST = {"level": 1, "order": 0, "type": "TAGK", "field": "host", "regex": "^([a-z]+)"}
TREE: dict[str, Any] = {"name": "T", "enabled": True, "storeFailures": True, "rules": [SPLIT, HOST]}


@pytest.fixture
def forest(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Forest:
    return Forest.create(bigtable, prefix, tmp_path)


@pytest.fixture
def golden(forest: Forest) -> Forest:
    """The tables of the tree of a real TSD."""
    for table, cells in tree_case("trees").cells.items():
        forest.put(table, cells)
    return forest


def rules(forest: Forest, tree_id: int) -> set[bytes]:
    key = tree_id.to_bytes(2, "big")
    return {cell[1] for cell in forest.cells() if cell[0] == key and cell[1].startswith(b"tree_rule:")}


def test_the_table_is_created_on_demand(bigtable: tuple[str, str], prefix: str) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    ran = timebeam("trees", "show", *place)
    assert ran.code == 1
    command = re.search(r"timebeam (tables create .*)", ran.err)
    assert command is not None
    assert command[1] == f"tables create --layout opentsdb --table-prefix {prefix} --trees"
    ran = timebeam(*command[1].split(), *place[:2])
    assert f"created table {prefix}tsdb-tree, families t (newest 1)" in ran.out
    ran = timebeam("trees", "show", *place)
    assert (ran.code, ran.out.strip()) == (0, "")
    assert "has no tree" in ran.err
    ran = timebeam("trees", "purge", *place)
    assert (ran.code, ran.out, "has no tree: nothing to purge" in ran.err) == (0, "", True)
    assert timebeam("tables", "create", "--layout=heroic", "--trees", *place).code == 2


@pytest.mark.parametrize("group", ["trees", "trees_strict"])
def test_create_stores_the_cells_of_a_tsd(forest: Forest, group: str) -> None:
    case = tree_case(group)
    forest.create_tree(case.definition())
    wanted = {cell for cell in case.cells["tsdb-tree"] if cell[2].startswith(b"tree")}
    assert {(key, name, value) for key, name, _, value in forest.cells()} == {
        (key, name, value) for key, _, name, value in wanted
    }
    ran = forest.create_tree(case.definition())
    assert ": unchanged" in ran.out


def test_trees_are_told_apart_by_id_else_by_name(forest: Forest) -> None:
    assert "tree 1, 'T': new" in forest.create_tree(TREE).out
    assert "tree 2, 'U': new" in forest.create_tree({**TREE, "name": "U"}).out
    assert "tree 9, 'T': new" in forest.create_tree({**TREE, "treeId": 9}).out
    assert "tree 10, 'V': new" in forest.create_tree({**TREE, "name": "V"}).out
    assert '"name":"W"' in forest.create_tree({**TREE, "treeId": 2, "name": "W"}).out
    ran = forest.run("create", forest.folder / "tree.json")
    assert ran.code == 0
    (forest.folder / "tree.json").write_text(json.dumps(TREE))
    ran = forest.run("create", forest.folder / "tree.json")
    assert ran.code == 2
    assert "trees 1, 9 are all named 'T'" in ran.err


def test_rules_are_changed_and_deleted_if_asked(forest: Forest) -> None:
    forest.create_tree({**TREE, "created": 77})
    changed = {
        **TREE,
        "description": "new",
        "rules": [SPLIT, {**HOST, "level": 5}, {**SPLIT, "notes": "n", "level": 2}],
    }
    dry = forest.create_tree(changed, "--dry-run")
    assert rules(forest, 1) == {b"tree_rule:0:0", b"tree_rule:1:0"}
    ran = forest.create_tree(changed)
    assert "rule 1:0: not in the file, stays" in ran.out
    assert dry.out.replace("would store: ", "") == ran.out
    assert rules(forest, 1) == {b"tree_rule:0:0", b"tree_rule:1:0", b"tree_rule:2:0", b"tree_rule:5:0"}
    ran = forest.create_tree(changed, "--exact")
    assert ran.out.strip() == "rule 1:0: deleted"
    assert rules(forest, 1) == {b"tree_rule:0:0", b"tree_rule:2:0", b"tree_rule:5:0"}
    (definition,) = (json.loads(cell[3]) for cell in forest.cells() if cell[1] == b"tree")
    assert (definition["description"], definition["created"]) == ("new", 77)


def test_who_changes_a_tree_at_the_same_time_is_not_overwritten(forest: Forest, emulator: str) -> None:
    forest.create_tree(TREE)
    theirs = (b"\x00\x01", "t", b"tree_rule:1:0", b'{"type":"METRIC","level":1,"order":0,"treeId":1}')
    between = nth(COMPARE_AND_SET, (1,), Do(lambda: forest.put("tsdb-tree", {theirs}), BEFORE))
    (forest.folder / "tree.json").write_text(json.dumps({**TREE, "rules": [SPLIT, {**HOST, "notes": "n"}]}))
    with faulty(emulator, between):
        ran = forest.run("create", forest.folder / "tree.json")
    assert ran.code == 1
    assert "changed by another writer" in ran.err
    assert theirs[3] in {cell[3] for cell in forest.cells()}
    first = nth(COMPARE_AND_SET, (1,), Do(lambda: forest.create_tree({**TREE, "name": "other"}), BEFORE))
    (forest.folder / "mine.json").write_text(json.dumps({**TREE, "name": "mine"}))
    with faulty(emulator, first):
        ran = forest.run("create", forest.folder / "mine.json")
    assert "tree 3, 'mine': new" in ran.out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["create"], "create takes one file"),
        (["create", "missing.json"], "cannot read the tree missing.json"),
        (["show", "T"], "show takes no 'T'"),
        (["show", "--tree", "no"], "there is no tree 'no'; trees: none"),
        (["show", "--output", "pdf"], "unknown output 'pdf'"),
        (["show", "--depth", "0"], "not a whole number from 1 to"),
        (["test"], "test takes a series"),
        (["test", "sys.cpu"], "no-tags"),
        (["test", "sys.cpu", "host"], "'host' is not a tag"),
        (["test", "sys.cpu", "a=b", "a=c"], "is a duplicate tag"),
        (["test", "sys cpu!", "a=b"], "not a tag"),
        (["test", "metric-\U0001f600", "host=a"], "bad-metric"),
        (["test", "sys.cpu", "host=主机"], "name-not-storable"),
        (["test", "000001"], "series-not-storable"),
        (["test", "000001000001000001"], "unknown-name"),
        (["sync"], "no tree of table"),
        (["sync", "--tree", "7"], "there is no tree '7'"),
        (["sync", "--no_such"], "unknown option --no_such"),
        (["show", "--no_such"], "unknown option --no_such"),
        (["grow"], "invalid choice: 'grow'"),
    ],
)
def test_what_cannot_be_carried_out_is_said_in_a_line(forest: Forest, arguments: list[str], why: str) -> None:
    ran = forest.run(arguments[0], *arguments[1:])
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err
    assert "Traceback" not in ran.err


def test_a_bad_file_is_named(forest: Forest) -> None:
    path = forest.folder / "bad.json"
    path.write_text('{"name": "T", "rules": [{"type": "TAGK"}]}')
    ran = forest.run("create", path)
    assert ran.code == 2
    assert f"{path}: rule of level 0 and order 0 (TAGK): Missing field name" in ran.err


def test_show_prints_the_tree_of_a_tsd(golden: Forest) -> None:
    ran = golden.run("show")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "tree 1, 'T': d"
    assert "  level 0, order 0: TAGK host, regex ^([a-z]+)\\. group 1  (datacenter)" in lines
    assert "  10 branches on 3 levels, 6 leaves, 0 collisions, 0 series without match" in lines
    start = lines.index("ROOT/")
    assert lines[start : start + 6] == [
        "ROOT/",
        "  dal/",
        "    web01/",
        "      cpu  000004000001000001  cpu{host=dal.web01}",
        "      cpu/",
        "        system  000001000001000001  cpu.system{host=dal.web01}",
    ]
    assert golden.run("show", "--depth=1").out.splitlines()[start:] == [
        "ROOT/", "  dal/", "  lga/", "  nomatch/", "  sjc/"
    ]  # fmt: skip


def test_show_gives_json_and_files(golden: Forest) -> None:
    (tree,) = json.loads(golden.run("show", "--output=json").out)
    assert tree["rules"]["0"]["1"]["field"] == "dc"
    (dal, *_) = tree["root"]["branches"]
    assert dal["branchId"] == "00010001838F"
    (leaf,) = dal["branches"][0]["leaves"]
    assert leaf == {
        "displayName": "cpu",
        "tsuid": "000004000001000001",
        "metric": "cpu",
        "tags": {"host": "dal.web01"},
    }
    for name in ("t.json", "t.txt", "t.html"):
        path = golden.folder / name
        ran = golden.run("show", f"--output={path}")
        assert ran.out == f"wrote {path}\n"
        assert "web01" in path.read_text()
    assert golden.run("show", f"--output={golden.folder / 'no' / 't.html'}").code == 2


def test_the_page_holds_names_as_data_alone(forest: Forest) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    series = {
        "tsuid": "000001000001000001",
        "metric": "m",
        "tags": [("host", "a")],
        "custom": {("metrics", "m"): {"owner": evil}},
    }
    forest.add([series])
    rule = {"level": 0, "order": 0, "type": "METRIC_CUSTOM", "field": "x", "customField": "owner"}
    forest.create_tree({**TREE, "name": f"T {evil}", "rules": [rule]})
    forest.sync()
    page = forest.run("show", "--output=html").out
    assert "<img" not in page
    assert page.count("</script>") == 2
    data = re.search(r'id="data">(.*)</script>', page)
    assert data is not None
    (tree,) = json.loads(data[1])
    assert tree["root"] == ["ROOT", [], [[evil, series["tsuid"], "m{host=a}"]]]
    assert "http" not in page.replace("http-equiv", "")


def test_show_names_corruption_and_what_is_not_in_the_tree(golden: Forest) -> None:
    hidden = "000001000001000001000003000005"
    golden.put(
        "tsdb-tree",
        {(b"\x00\x01\x01", "t", b"tree_collision:" + bytes.fromhex(hidden), b"000001000001000001")},
    )
    ran = golden.run("show")
    assert ran.code == 0
    assert f"  {hidden}  cpu.system{{host=dal.web01,owner=x}}: 000001000001000001" in ran.out
    golden.put("tsdb-tree", {(b"\x00\x01\x00\x00\x00\x01", "t", b"leaf:aaaa", b"{}")})
    ran = golden.run("show")
    assert ran.code == 1
    assert "corrupt: row 000100000001, column b'leaf:aaaa': a leaf without" in ran.out
    golden.put("tsdb-tree", {(b"\x00\x02", "t", b"tree", b"{")})
    ran = golden.run("show")
    assert (ran.code, "skipped: row 0002, column b'tree'" in ran.err) == (1, True)
    assert "tree 1, 'T'" in ran.out


def explained(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.err
    return [line.strip() for line in ran.out.splitlines()]


def test_test_explains_rule_by_rule(golden: Forest) -> None:
    before = golden.cells()
    by_name = explained(golden.run("test", "app.bytes", "host=web03", "dc=sjc"))
    assert by_name == explained(golden.run("test", "000003000001000003000002000004"))
    assert by_name == explained(golden.run("test", "app.bytes{dc=sjc,host=web03}"))
    assert by_name[0] == "app.bytes{host=web03,dc=sjc}  TSUID 000003000001000003000002000004"
    for line in (
        "no name: the regex does not match ('web03')",
        "'sjc' gives 'sjc'",
        "piece 2 of 'app.bytes' gives 'bytes'",
        "place: ROOT / sjc / web03 / app / bytes",
        "branch app: row 00010001bcec06bc4c5700017a21, there",
        "leaf bytes: column leaf:059dc06b, there",
    ):
        assert line in by_name
    collision = explained(golden.run("test", "cpu.system", "host=dal.web01", "owner=x"))
    assert (
        collision[-1] == "leaf system: column leaf:cb1c722f, taken by series 000001000001000001: a collision"
    )
    unknown = explained(golden.run("test", "new.metric", "host=dal.web01"))
    assert unknown[1].startswith("without UID: metrics new.metric;")
    assert unknown[-1] == "leaf metric: column leaf:bfc5f5b0, new"
    assert golden.cells() == before


def test_test_tries_a_file_also_without_bigtable(forest: Forest, monkeypatch: pytest.MonkeyPatch) -> None:
    path = forest.folder / "tree.json"
    path.write_text(json.dumps({**TREE, "strictMatch": True}))
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    assert HOST_VARIABLE not in os.environ
    ran = timebeam("trees", "test", "--definition", path, "a.b", "host=web1")
    assert explained(ran)[1].startswith("not looked up: metrics a.b, tagk host, tagv web1")
    assert explained(ran)[-1] == "place: ROOT / a / b / web"
    ran = timebeam("trees", "test", "--definition", path, "a.b", "x=y")
    assert "not placed: the tree is strict, and these failed: [0:1:0:TAGK]" in explained(ran)
    assert timebeam("trees", "test", "--definition", path, "000001000001000001").code == 2
    assert timebeam("trees", "test", "a.b", "x=y").code == 2


def test_a_tree_that_is_not_enabled_is_synced_by_name_only(golden: Forest) -> None:
    golden.create_tree({**tree_case("trees").definition(), "enabled": False})
    assert golden.run("sync").code == 2
    ran = golden.run("sync", "--tree=T", f"--dead-letters={golden.folder / 'dead'}")
    assert ran.code == 0
    assert "not enabled" in ran.err
    assert re.search(r"leaves unchanged +6\n", ran.out)
    assert re.search(r"collisions +1\n", ran.out)
