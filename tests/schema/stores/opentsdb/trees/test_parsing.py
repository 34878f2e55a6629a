"""Trees and rules as users write them: what is taken, and every rejection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timebeam.schema.stores.opentsdb.trees.definitions import (
    Rule,
    RuleType,
    Tree,
    TreeError,
    parse_trees,
    warnings_of,
)

ROOT = Path(__file__).resolve().parents[5]

RULE: dict[str, Any] = {"level": 0, "order": 0, "type": "TAGK", "field": "host"}
NESTED = {"0": {"1": {"type": "METRIC"}}, "2": {"0": {"type": "tagk", "field": "host", "level": 2}}}


def parse(**fields: Any) -> Tree:
    (tree,) = parse_trees(json.dumps({"name": "T", **fields}))
    return tree


def test_all_fields_of_the_api_are_taken() -> None:
    rule = {
        "type": "tagv_custom",
        "field": "web-01",
        "regex": "(a)",
        "separator": "",
        "description": "d",
        "notes": "n",
        "level": 3,
        "order": 4,
        "treeId": 9,
        "customField": "owner",
        "regexGroupIdx": 1,
        "displayFormat": "{value}",
    }
    tree = parse(
        description="d",
        notes="n",
        strictMatch=True,
        enabled=True,
        storeFailures=True,
        created=5,
        treeId=9,
        rules=[rule],
    )
    wanted = Rule(
        9, 3, 4, RuleType.TAGV_CUSTOM, "web-01", "owner", "(a)", "", "d", "n", 1, display_format="{value}"
    )
    assert tree == Tree(9, "T", "d", "n", True, True, True, 5, (wanted,))


def test_rules_stand_in_an_array_or_by_level_and_order() -> None:
    by_place = parse(rules=NESTED)
    listed = parse(
        rules=[{"level": 2, "order": 0, "type": "TAGK", "field": "host"}, {"order": 1, "type": "METRIC"}]
    )
    assert by_place == listed
    assert [(rule.level, rule.order) for rule in listed.rules] == [(0, 1), (2, 0)]
    assert [level for level, _ in listed.levels()] == [0, 2]


def test_a_file_may_have_several_trees() -> None:
    assert [tree.name for tree in parse_trees('[{"name": "a"}, {"name": "b", "rules": null}]')] == ["a", "b"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "trees").glob("*.json")))
def test_the_examples_are_taken(path: Path) -> None:
    (tree,) = parse_trees(path.read_text("utf-8"))
    assert not warnings_of(tree)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "no tree"),
        ("5", "a tree is a JSON object"),
        ('{"name": "a", "name": "b"}', "duplicate key"),
        ("{}", "needs a name"),
        ('{"name": ""}', "needs a name"),
        ('{"name": 5}', "name is a string"),
        ('{"name": "a", "enabled": "true"}', "enabled is true or false"),
        ('{"name": "a", "created": 1.5}', "created is a whole number"),
        ('{"name": "a", "created": true}', "created is a whole number"),
        ('{"name": "a", "treeId": -1}', "treeId is from 0"),
        ('{"name": "a", "treeId": 65536}', "from 1 to 65535"),
        ('{"name": "a", "strict_match": true}', "unknown field 'strict_match'"),
        ('{"name": "\\ud800"}', "surrogate"),
        (json.dumps({"name": "a", "notes": "x" * 9000}), "more than 8192 bytes"),
    ],
)
def test_bad_trees_are_rejected(text: str, why: str) -> None:
    with pytest.raises(TreeError, match=why):
        parse_trees(text)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (5, "an array of rules"),
        ([5], "an array of rules"),
        ({"0": 5}, "holds objects by order"),
        ({"x": {"0": {"type": "METRIC"}}}, "a level, an order"),
        ({"0": {"0": {"type": "METRIC", "level": 1}}}, "says level 1"),
        ([{}], "its type is one of"),
        ([{"type": "TAGV"}], "its type is one of"),
        ([{**RULE, "level": -1}], "level is from 0"),
        ([{**RULE, "order": "0"}], "order is a whole number"),
        ([{**RULE, "regexGroupIdx": -1}], "regexGroupIdx is from 0"),
        ([{**RULE, "group": 1}], "unknown field 'group'"),
        ([{**RULE, "field": ""}], "Missing field name"),
        ([{"type": "METRIC_CUSTOM", "field": "a"}], "Missing custom field name"),
        ([{"type": "TAGK_CUSTOM", "customField": "a"}], "Missing field name"),
        ([{**RULE, "regex": "("}], "regex '\\('"),
        ([{**RULE, "regex": "a++"}], "possessive"),
        ([{**RULE, "separator": "["}], "separator '\\['"),
        ([{**RULE, "field": "host-\U0001f600"}], "ISO-8859-1"),
        ([{**RULE, "field": "主机"}], "ISO-8859-1, which has no 主"),
        ([{**RULE, "displayFormat": "\udc00"}], "surrogate"),
        ([RULE, RULE], "two rules have level 0 and order 0"),
        ([{**RULE, "treeId": 2}], "its treeId is 2, but the tree has none"),
    ],
)
def test_bad_rules_are_rejected(rules: Any, why: str) -> None:
    with pytest.raises(TreeError, match=why):
        parse(rules=rules)


def test_names_beyond_latin_1_are_taken_where_json_holds_them() -> None:
    tree = parse(
        name="木 \U0001f333",
        rules=[{**RULE, "type": "TAGK_CUSTOM", "customField": "所有者", "displayFormat": "→{value}"}],
    )
    assert tree.name == "木 \U0001f333"
    assert tree.rules[0].custom_field == "所有者"


def test_what_cannot_be_meant_is_a_warning() -> None:
    tree = parse(rules=[{**RULE, "regex": "(a)", "regexGroupIdx": 1, "separator": "-"}])
    assert len(warnings_of(tree)) == 2
    assert ["no rules" in text for text in warnings_of(parse())] == [True]
