"""Where rules place a series (docs/spec/opentsdb.md §6.2): its examples, all rules, a plain evaluation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.budget import examples
from tests.support.plain.plain_trees import plain_place
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.stores.opentsdb.trees import tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import Tree, parse_trees
from timebeam.schema.stores.opentsdb.trees.explain_rules import placement_lines
from timebeam.schema.stores.opentsdb.trees.place_series import Outcome, Placement, TreeSeries, Uid, place

HOST = "web-01.lga.mysite.com"


def tree_of(*rules: dict[str, Any], **fields: Any) -> Tree:
    """A tree with id 1 whose rules are on levels 0, 1, ... unless they say so."""
    numbered = [{"level": level, **rule} for level, rule in enumerate(rules)]
    (tree,) = parse_trees(json.dumps({"name": "T", "treeId": 1, "rules": numbered, **fields}))
    return tree


def series_of(
    metric: str, custom: dict[tuple[str, str], dict[str, Any]] | None = None, **tags: str
) -> TreeSeries:
    found = custom or {}
    pairs = [
        (Uid(key, found.get(("tagk", key), {})), Uid(value, found.get(("tagv", value), {})))
        for key, value in tags.items()
    ]
    return TreeSeries(bytes(range(9)), Uid(metric, found.get(("metrics", metric), {})), pairs)


METRIC = {"type": "METRIC"}
SPLIT = {"type": "METRIC", "separator": "\\."}


def tagk(field: str, **more: Any) -> dict[str, Any]:
    return {"type": "TAGK", "field": field, **more}


def named(found: Placement) -> list[str]:
    return [*found.path, found.leaf]


def test_the_example_with_six_levels() -> None:
    tree = tree_of(
        tagk("host", regex=r"[^.]+\.([^.]+)\..*"),
        tagk("host", regex=r"^([a-z]+)"),
        tagk("host"),
        SPLIT,
        tagk("type"),
    )
    found = place(tree, series_of("sys.cpu.0", host=HOST, type="user"))
    assert found.path == ("lga", "web", HOST, "sys", "cpu", "0")
    assert found.leaf == "user"
    assert not found.failed
    key = tree_cells.branch_key(1, found.path)
    assert key == bytes.fromhex("0001 0001A246 0001CB54 247F7202 0001BECD 000181A8 00000030")


def test_the_first_order_with_a_name_wins() -> None:
    rules = [
        {**tagk("dc"), "level": 0, "order": 2},
        {**tagk("zone"), "level": 0, "order": 0},
        {**METRIC, "level": 4, "order": 0},
    ]
    assert named(place(tree_of(*rules), series_of("m", dc="d", zone="z"))) == ["z", "m"]
    assert named(place(tree_of(*rules), series_of("m", dc="d"))) == ["d", "m"]


CUSTOM = {
    ("metrics", "m"): {"owner": "metrics team", "empty": ""},
    ("tagk", "host"): {"owner": "hosts team"},
    ("tagv", "web01"): {"owner": "joe", "null": None},
}


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ({"type": "METRIC_CUSTOM", "field": "any"}, "metrics team"),
        ({"type": "TAGK_CUSTOM", "field": "host"}, "hosts team"),
        ({"type": "TAGV_CUSTOM", "field": "web01"}, "joe"),
    ],
)
def test_custom_fields(rule: dict[str, Any], name: str) -> None:
    tree = tree_of({**rule, "customField": "owner"}, METRIC)
    assert named(place(tree, series_of("m", CUSTOM, host="web01"))) == [name, "m"]


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        (tagk("dc"), Outcome.NO_TAG_KEY),
        ({"type": "METRIC_CUSTOM", "field": "x", "customField": "no"}, Outcome.NO_CUSTOM),
        ({"type": "METRIC_CUSTOM", "field": "x", "customField": "empty"}, Outcome.EMPTY_CUSTOM),
        ({"type": "TAGK_CUSTOM", "field": "dc", "customField": "owner"}, Outcome.NO_TAG_KEY),
        ({"type": "TAGV_CUSTOM", "field": "host", "customField": "owner"}, Outcome.NO_TAG_VALUE),
        (tagk("host", regex="z"), Outcome.NO_MATCH),
        (tagk("host", regex="(w)", regexGroupIdx=1), Outcome.NO_GROUP),
        (tagk("host", regex="(z*)"), Outcome.EMPTY_GROUP),
        (tagk("host", regex="(z)|w"), Outcome.EMPTY_GROUP),
        (tagk("host", separator="."), Outcome.NO_PIECE),
    ],
)
def test_why_a_rule_gives_no_name(rule: dict[str, Any], outcome: Outcome) -> None:
    tree = tree_of(rule, METRIC)
    found = place(tree, series_of("m", CUSTOM, host="web01"))
    assert found.steps[0][0].outcome is outcome
    assert named(found) == ["m"]
    assert found.not_matched == f"[1:0:0:{rule['type']}]"
    explained = "\n".join(placement_lines(tree, series_of("m", host="web01"), found, {}))
    assert outcome.value in explained


def test_a_null_custom_field_is_rejected() -> None:
    tree = tree_of({"type": "TAGV_CUSTOM", "field": "web01", "customField": "null"})
    with pytest.raises(RejectedError, match="is null") as error:
        place(tree, series_of("m", CUSTOM, host="web01"))
    assert error.value.reason is Reason.EMPTY_VALUE


@pytest.mark.parametrize(
    ("metric", "pieces"),
    [
        ("a.b.c", ["a", "b", "c"]),
        ("a", ["a"]),
        ("a.b..", ["a", "b"]),
        ("a..b", ["a", "b"]),
        (".a", ["a"]),
        ("...", []),
    ],
)
def test_a_separator_makes_a_level_of_each_piece(metric: str, pieces: list[str]) -> None:
    found = place(tree_of(SPLIT, tagk("host")), series_of(metric, host="h"))
    assert named(found) == [*pieces, "h"]


def test_a_separator_is_a_regular_expression() -> None:
    assert named(place(tree_of({**METRIC, "separator": "[._]"}), series_of("a_b.c", x="y"))) == [
        "a",
        "b",
        "c",
    ]
    assert named(place(tree_of({**METRIC, "separator": "."}, tagk("x")), series_of("a.b", x="y"))) == ["y"]


def test_a_regex_beats_a_separator() -> None:
    assert named(place(tree_of({**SPLIT, "regex": "(b.*)"}), series_of("a.b.c", x="y"))) == ["b.c"]


def test_an_empty_piece_leaves_the_level_to_the_next_order() -> None:
    rules = [{**SPLIT, "level": 0}, {**tagk("host"), "level": 0, "order": 1}]
    assert named(place(tree_of(*rules), series_of("a..b", host="h"))) == ["a", "h", "b"]
    shared = [{**SPLIT, "level": 0}, {**tagk("host", separator="-"), "level": 0, "order": 1}]
    assert named(place(tree_of(*shared), series_of("a..b", host="x-y"))) == ["a", "b"]
    with pytest.raises(RejectedError, match="used up"):
        place(tree_of(*shared), series_of("..", host="x-y"))


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("{value}!", "01!"),
        ("{ovalue}", "web01"),
        ("{tsuid}", "000102030405060708"),
        ("{tag_name}={value}", "host=01"),
        ("fixed", "fixed"),
        ("{other}", "{other}"),
        ("{value}{value}", "0101"),
    ],
)
def test_display_formats(form: str, name: str) -> None:
    tree = tree_of(tagk("host", regex=r"(\d+)", displayFormat=form))
    assert named(place(tree, series_of("m", host="web01"))) == [name]


def test_tokens_are_replaced_in_their_order_and_tag_name_depends_on_the_type() -> None:
    form = {"displayFormat": "<{tag_name}>{ovalue}"}
    assert named(place(tree_of({**METRIC, **form}), series_of("{value}", x="y"))) == ["<>{value}"]
    rule = {"type": "METRIC_CUSTOM", "field": "f", "customField": "owner", **form}
    assert named(place(tree_of(rule), series_of("m", CUSTOM, x="y"))) == ["<owner>metrics team"]
    nested = series_of("m", {("metrics", "m"): {"owner": "{value}{tsuid}"}}, x="y")
    assert named(place(tree_of({**rule, "displayFormat": "{ovalue}"}), nested))[0].endswith(
        "000102030405060708"
    )


def test_levels_without_a_name_are_left_out() -> None:
    found = place(tree_of(tagk("no"), tagk("host"), tagk("no"), METRIC, tagk("no")), series_of("m", host="h"))
    assert named(found) == ["h", "m"]
    assert found.not_matched == "[1:0:0:TAGK] [1:2:0:TAGK] [1:4:0:TAGK]"


@pytest.mark.parametrize(
    ("metric", "path", "leaf"),
    [
        ("a.a.b", ("a",), "b"),
        ("a.a", ("a",), "a"),
        ("a.b.b", ("a", "b"), "b"),
        ("a.b.a.c", ("a", "b", "a"), "c"),
        ("ROOT.a.b", ("a",), "b"),
        ("a.ROOT.b", ("a", "ROOT"), "b"),
    ],
)
def test_equal_names_that_follow_each_other_are_one_branch(
    metric: str, path: tuple[str, ...], leaf: str
) -> None:
    found = place(tree_of(SPLIT), series_of(metric, x="y"))
    assert (found.path, found.leaf) == (path, leaf)


def test_a_strict_tree_takes_all_levels_or_nothing() -> None:
    tree = tree_of(
        tagk("host"), {**tagk("a"), "level": 1}, {**tagk("b"), "level": 1, "order": 1}, strictMatch=True
    )
    assert named(place(tree, series_of("m", host="h", b="x"))) == ["h", "x"]
    found = place(tree, series_of("m", host="h"))
    assert (found.leaf, found.not_matched) == ("", "[1:1:1:TAGK]")


def test_a_series_without_any_name_is_not_placed() -> None:
    assert place(tree_of(tagk("no")), series_of("m", x="y")).leaf == ""
    assert place(tree_of(), series_of("m", x="y")).leaf == ""


def test_half_a_surrogate_pair_is_rejected() -> None:
    tree = tree_of({"type": "METRIC_CUSTOM", "field": "f", "customField": "owner"})
    with pytest.raises(RejectedError, match="surrogate") as error:
        place(tree, series_of("m", {("metrics", "m"): {"owner": "\ud83d"}}, x="y"))
    assert error.value.reason is Reason.NAME_NOT_STORABLE


def test_characters_of_two_halves_are_kept_or_rejected() -> None:
    series = series_of("m", {("metrics", "m"): {"owner": "\U0001f600-木"}}, x="y")
    rule = {"type": "METRIC_CUSTOM", "field": "f", "customField": "owner"}
    assert named(place(tree_of({**rule, "separator": "-"}), series)) == ["\U0001f600", "木"]
    with pytest.raises(RejectedError, match="in two"):
        place(tree_of({**rule, "separator": "x*"}), series)


VALUES = st.sampled_from(
    ["a", "b", "a.b", "a.b.c", "a..b", "web-01.lga", "..", "x_y", "ROOT", "b.b", "größe"]
)
FIELDS = st.fixed_dictionaries({}, optional={"owner": st.sampled_from(["", "q", "a.b"]), "zone": VALUES})


@st.composite
def rule_sets(draw: st.DrawFn) -> dict[str, Any]:
    """A tree as a file has it, of all types of rules."""
    rules = []
    for level in draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)):
        for order in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(["METRIC", "METRIC_CUSTOM", "TAGK", "TAGK_CUSTOM", "TAGV_CUSTOM"]))
            rule: dict[str, Any] = {"level": level, "order": order, "type": kind}
            rule["field"] = draw(VALUES if kind == "TAGV_CUSTOM" else st.sampled_from(["host", "dc", "no"]))
            if kind.endswith("CUSTOM"):
                rule["customField"] = draw(st.sampled_from(["owner", "zone"]))
            how = draw(st.integers(0, 3))
            if how == 0:
                rule["regex"] = draw(st.sampled_from([r"^([^.]+)", r"(a)|(b)", r"\.(.*)", "(z*)", "a"]))
                rule["regexGroupIdx"] = draw(st.integers(0, 1))
            elif how == 1:
                rule["separator"] = draw(st.sampled_from([r"\.", "-", "_"]))
            forms = ["", "", "{value}", "m:{value}", "{tag_name}", "{tsuid}/{ovalue}"]
            rule["displayFormat"] = draw(st.sampled_from(forms))
            rules.append(rule)
    return {"name": "T", "treeId": 7, "strictMatch": draw(st.booleans()), "rules": rules}


@st.composite
def any_series(draw: st.DrawFn) -> dict[str, Any]:
    tags = draw(
        st.lists(
            st.tuples(st.sampled_from(["host", "dc", "type"]), VALUES), min_size=1, unique_by=lambda t: t[0]
        )
    )
    metric = draw(VALUES)
    names = {
        ("metrics", metric),
        *(("tagk", key) for key, _ in tags),
        *(("tagv", value) for _, value in tags),
    }
    custom = {name: draw(FIELDS) for name in sorted(names)}
    return {
        "tsuid": draw(st.binary(min_size=9, max_size=9)).hex().upper(),
        "metric": metric,
        "tags": tags,
        "custom": custom,
    }


@examples(400)
@given(rule_sets(), any_series())
def test_random_rule_sets_agree_with_a_plain_evaluation(tree: dict[str, Any], one: dict[str, Any]) -> None:
    (parsed,) = parse_trees(json.dumps(tree))
    series = series_of(one["metric"], one["custom"], **dict(one["tags"]))._replace(
        tsuid=bytes.fromhex(one["tsuid"])
    )
    try:
        path, leaf, failed = plain_place(tree, one)
    except IndexError:
        with pytest.raises(RejectedError, match="used up"):
            place(parsed, series)
        return
    found = place(parsed, series)
    assert (list(found.path), found.leaf or None, found.not_matched) == (path, leaf, failed)
    assert list(placement_lines(parsed, series, found, {}))
