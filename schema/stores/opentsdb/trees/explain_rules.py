"""Rules and placements in words, as printed by `timebeam trees show` and `timebeam trees test`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from timebeam.schema.stores.opentsdb.trees import tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import Rule, RuleType, Tree, TreeError
from timebeam.schema.stores.opentsdb.trees.place_series import Attempt, Outcome, Placement, TreeSeries
from timebeam.schema.stores.opentsdb.trees.tree_cells import ROOT


def shown(text: str) -> str:
    """A name for a terminal, escaped if it is not printable."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def rule_text(rule: Rule) -> str:
    """A rule on one line, without level and order."""
    text = rule.type.value
    if rule.type in (RuleType.TAGK, RuleType.TAGK_CUSTOM, RuleType.TAGV_CUSTOM):
        text += f" {shown(rule.field)}"
    if rule.type not in (RuleType.METRIC, RuleType.TAGK):
        text += f", custom field {shown(rule.custom_field)}"
    if rule.regex:
        text += f", regex {shown(rule.regex)} group {rule.regex_group_idx + 1}"
    elif rule.separator:
        text += f", split at {shown(rule.separator)}"
    if rule.display_format:
        text += f", shown as {shown(rule.display_format)}"
    return text + (f"  ({shown(rule.description)})" if rule.description else "")


def tree_lines(tree: Tree) -> Iterator[str]:
    """A tree and its rules."""
    title = f"tree {tree.tree_id}, {tree.name!r}" if tree.tree_id else f"tree {tree.name!r}, of the file"
    yield title + (f": {shown(tree.description)}" if tree.description else "")
    yield "  " + ", ".join(
        (
            "enabled" if tree.enabled else "not enabled",
            "strict: a series that fails on a level is left out" if tree.strict_match else "not strict",
            "failures are stored" if tree.store_failures else "failures are not stored",
        )
    )
    for level, rules in tree.levels():
        for rule in rules:
            yield f"  level {level}, order {rule.order}: {rule_text(rule)}"
    if not tree.rules:
        yield "  no rules"


def placement_lines(
    tree: Tree,
    series: TreeSeries,
    placement: Placement,
    existing: Mapping[bytes, Mapping[bytes, bytes]] | None,
) -> Iterator[str]:
    """The outcome of each rule for a series, and what a sync would do with it.

    Args:
      existing: values in the table, by row key and qualifier; None for a tree that is not in a table.
    """
    level = order = None
    steps = 0
    for step in placement.steps:
        if step[0].rule.level != level:
            level, order, steps = step[0].rule.level, None, 0
            yield f"  level {level}"
        for attempt in step:
            steps += bool(attempt.rule.separator and not attempt.rule.regex and attempt.matched is not None)
            if attempt.rule.order != order:
                order = attempt.rule.order
                yield f"    order {order}: {rule_text(attempt.rule)}"
            yield f"      {_outcome(attempt, steps)}"
    if not placement.leaf:
        yield from _not_placed(tree, series, placement)
        return
    yield f"  place: {' / '.join(map(shown, (ROOT, *placement.path, placement.leaf)))}"
    if placement.failed:
        yield f"  levels without a name are left out: {placement.not_matched}"
    if existing is not None:
        yield from _rows(tree, series, placement, existing)


def _outcome(attempt: Attempt, piece: int) -> str:
    if attempt.matched is None:
        value = "" if attempt.value is None else f" ({attempt.value!r})"
        return f"no name: {attempt.outcome.value}{value}"
    shown = repr(attempt.value)
    if attempt.rule.separator and not attempt.rule.regex:
        shown = f"piece {piece} of {shown}"
    if attempt.outcome is not Outcome.NAMED:
        return f"no name: {shown}: {attempt.outcome.value}"
    via = f" {attempt.matched!r}, shown as" if attempt.rule.display_format else ""
    return f"{shown} gives{via} {attempt.name!r}"


def _not_placed(tree: Tree, series: TreeSeries, placement: Placement) -> Iterator[str]:
    """Why a series has no leaf, and where this is recorded."""
    if not tree.rules:
        yield "  not placed: the tree has no rules"
        return
    why = "the tree is strict, and" if tree.strict_match else "no rule gives a name:"
    yield f"  not placed: {why} these failed: {placement.not_matched}"
    if not tree.tree_id:
        yield "  recorded by a sync" if tree.store_failures else "  recorded nowhere: storeFailures is off"
    elif tree.store_failures:
        qualifier = f"{tree_cells.NOT_MATCHED.decode()}{series.tsuid.hex()}"
        yield f"  recorded: row {tree_cells.not_matched_key(tree.tree_id).hex()}, column {qualifier}"
    else:
        yield "  recorded nowhere: storeFailures is off"


def _rows(
    tree: Tree, series: TreeSeries, placement: Placement, existing: Mapping[bytes, Mapping[bytes, bytes]]
) -> Iterator[str]:
    """The cells of a placement, and whether they exist."""
    for depth in range(len(placement.path) + 1):
        path = placement.path[:depth]
        key = tree_cells.branch_key(tree.tree_id, path)
        state = "new" if tree_cells.BRANCH not in existing.get(key, {}) else "there"
        yield f"  branch {shown(path[-1] if path else ROOT)}: row {key.hex()}, {state}"
    qualifier = tree_cells.leaf_qualifier(placement.leaf)
    state = _leaf_state(series, existing.get(key, {}).get(qualifier))
    column = qualifier.removeprefix(tree_cells.LEAF).hex()
    yield f"  leaf {shown(placement.leaf)}: column leaf:{column}, {state}"


def _leaf_state(series: TreeSeries, stored: bytes | None) -> str:
    if stored is None:
        return "new"
    try:
        first = tree_cells.read_leaf(stored).tsuid.upper()
    except TreeError as error:
        return f"cannot be read: {error}"
    return "there" if first == tree_cells.hex_text(series.tsuid) else f"taken by series {first}: a collision"
