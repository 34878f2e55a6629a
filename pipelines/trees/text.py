"""Trees as text for a terminal and as JSON: what `timebeam trees show` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from timebeam.schema.stores.opentsdb.trees.definitions import Rule, Tree
from timebeam.schema.stores.opentsdb.trees.explain_rules import shown, tree_lines
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries
from timebeam.schema.stores.opentsdb.trees.tree_cells import Branch, Content, Leaf

_SHOWN_FAILURES = 20


class ShownTree(NamedTuple):
    """A tree and what the table holds of it; the series by TSUID, hex, as far as their names are known."""

    tree: Tree
    content: Content
    series: Mapping[str, TreeSeries]


def as_text(trees: Sequence[ShownTree], depth: int | None, *, branches: bool) -> str:
    """The trees with their rules and figures, and the branches and leaves, indented.

    Args:
      depth: only so many levels below the root; None for all.
    """
    return "\n".join(line for tree in trees for line in _lines(tree, depth, branches=branches))


def as_json(trees: Sequence[ShownTree]) -> str:
    """The trees as /api/tree answers, each with its root branch, collisions and series without match."""
    return json.dumps([_document(tree) for tree in trees], ensure_ascii=False, indent=1)


def series_text(shown_tree: ShownTree, tsuid: str) -> str:
    """The name of a series; its TSUID alone if it has none."""
    series = shown_tree.series.get(tsuid)
    return f"{tsuid}  {shown(str(series))}" if series else tsuid


def _lines(shown_tree: ShownTree, depth: int | None, *, branches: bool) -> Iterator[str]:
    content = shown_tree.content
    yield from tree_lines(shown_tree.tree)
    n_branches, leaves, deepest = content.counts()
    yield (
        f"  {n_branches:,} branches on {deepest:,} levels, {leaves:,} leaves, "
        f"{len(content.collisions):,} collisions, {len(content.not_matched):,} series without match"
    )
    for text in content.damage[:_SHOWN_FAILURES]:
        yield f"  damaged: {text}"
    if not branches:
        return
    for level, branch in content.root.walk():
        if depth is None or level <= depth:
            yield f"{'  ' * level}{shown(branch.name)}/"
            width = max((len(shown(leaf.name)) for leaf in branch.leaves), default=0)
            for leaf in branch.leaves if depth is None or level < depth else ():
                series = series_text(shown_tree, leaf.tsuid)
                yield f"{'  ' * level}  {shown(leaf.name):{min(width, 40)}}  {series}"
    yield from _failures("collisions: another series has the leaf", shown_tree, content.collisions)
    yield from _failures("without match: these rules failed", shown_tree, content.not_matched)


def _failures(heading: str, shown_tree: ShownTree, failures: Mapping[str, str]) -> Iterator[str]:
    if failures:
        yield heading
        for tsuid, why in list(failures.items())[:_SHOWN_FAILURES]:
            yield f"  {series_text(shown_tree, tsuid)}: {shown(why)}"
    if len(failures) > _SHOWN_FAILURES:
        yield f"  and {len(failures) - _SHOWN_FAILURES:,} more: --output json has them all"


def _document(shown_tree: ShownTree) -> dict[str, Any]:
    tree = shown_tree.tree
    return {
        "treeId": tree.tree_id,
        "name": tree.name,
        "description": tree.description,
        "notes": tree.notes,
        "strictMatch": tree.strict_match,
        "enabled": tree.enabled,
        "storeFailures": tree.store_failures,
        "created": tree.created,
        "rules": {
            str(level): {str(rule.order): _rule(rule) for rule in rules} for level, rules in tree.levels()
        },
        "root": _branch(shown_tree, shown_tree.content.root),
        "collisions": shown_tree.content.collisions,
        "notMatched": shown_tree.content.not_matched,
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "type": rule.type.value,
        "field": rule.field,
        "regex": rule.regex,
        "separator": rule.separator,
        "description": rule.description,
        "notes": rule.notes,
        "level": rule.level,
        "order": rule.order,
        "treeId": rule.tree_id,
        "customField": rule.custom_field,
        "regexGroupIdx": rule.regex_group_idx,
        "displayFormat": rule.display_format,
    }


def _branch(shown_tree: ShownTree, branch: Branch) -> dict[str, Any]:
    return {
        "displayName": branch.name,
        "branchId": branch.key.hex().upper(),
        "branches": [_branch(shown_tree, child) for child in branch.branches],
        "leaves": [_leaf(shown_tree, leaf) for leaf in branch.leaves],
    }


def _leaf(shown_tree: ShownTree, leaf: Leaf) -> dict[str, Any]:
    document: dict[str, Any] = {"displayName": leaf.name, "tsuid": leaf.tsuid}
    series = shown_tree.series.get(leaf.tsuid)
    if series:
        document["metric"] = series.metric.name
        document["tags"] = {key.name: value.name for key, value in series.tags}
    return document
