"""Trees as text for a terminal and as JSON: what `timebeam trees show` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from timebeam.schema.trees.browse import Branch, Content
from timebeam.schema.trees.cells import Leaf
from timebeam.schema.trees.definitions import Rule, Tree
from timebeam.schema.trees.evaluate import TreeSeries
from timebeam.schema.trees.explain import shown, tree_lines

_SHOWN_FAILURES = 20


class Shown(NamedTuple):
    """A tree and what the table holds of it; the series by TSUID, hex, as far as their names are known."""

    tree: Tree
    content: Content
    series: Mapping[str, TreeSeries]


def as_text(trees: Sequence[Shown], depth: int | None, *, branches: bool) -> str:
    """The trees with their rules and figures, and the branches and leaves, indented.

    Args:
      depth: only so many levels below the root; None for all.
    """
    return "\n".join(line for one in trees for line in _lines(one, depth, branches=branches))


def as_json(trees: Sequence[Shown]) -> str:
    """The trees as /api/tree answers, each with its root branch, collisions and series without match."""
    return json.dumps([_document(one) for one in trees], ensure_ascii=False, indent=1)


def series_text(one: Shown, tsuid: str) -> str:
    """The name of a series; its TSUID alone if it has none."""
    series = one.series.get(tsuid)
    return f"{tsuid}  {shown(str(series))}" if series else tsuid


def _lines(one: Shown, depth: int | None, *, branches: bool) -> Iterator[str]:
    content = one.content
    yield from tree_lines(one.tree)
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
                yield f"{'  ' * level}  {shown(leaf.name):{min(width, 40)}}  {series_text(one, leaf.tsuid)}"
    yield from _failures("collisions: the leaf has another series", one, content.collisions)
    yield from _failures("without match: these rules failed", one, content.not_matched)


def _failures(what: str, one: Shown, failures: Mapping[str, str]) -> Iterator[str]:
    if failures:
        yield what
        for tsuid, why in list(failures.items())[:_SHOWN_FAILURES]:
            yield f"  {series_text(one, tsuid)}: {shown(why)}"
    if len(failures) > _SHOWN_FAILURES:
        yield f"  and {len(failures) - _SHOWN_FAILURES:,} more: --output json has them all"


def _document(one: Shown) -> dict[str, Any]:
    tree = one.tree
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
        "root": _branch(one, one.content.root),
        "collisions": one.content.collisions,
        "notMatched": one.content.not_matched,
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


def _branch(one: Shown, branch: Branch) -> dict[str, Any]:
    return {
        "displayName": branch.name,
        "branchId": branch.key.hex().upper(),
        "branches": [_branch(one, child) for child in branch.branches],
        "leaves": [_leaf(one, leaf) for leaf in branch.leaves],
    }


def _leaf(one: Shown, leaf: Leaf) -> dict[str, Any]:
    found: dict[str, Any] = {"displayName": leaf.name, "tsuid": leaf.tsuid}
    series = one.series.get(leaf.tsuid)
    if series:
        found["metric"] = series.metric.name
        found["tags"] = {key.name: value.name for key, value in series.tags}
    return found
