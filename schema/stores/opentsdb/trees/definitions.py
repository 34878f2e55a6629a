"""Trees and their rules (docs/spec/opentsdb.md §6.1), parsed from users' JSON and from the table's cells.

The fields are those of /api/tree and /api/tree/rule. Sources: tree/Tree, tree/TreeRule and
TreeRule.validateRule of OpenTSDB 2.4.1.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from timebeam.schema.bits import regex
from timebeam.schema.bits.json_text import DuplicateKeyError, distinct

LAST_TREE_ID = 65_535


class TreeError(ValueError):
    """A definition is rejected; the message tells what is wrong, and where."""


class RuleType(enum.StrEnum):
    """The source of a rule's value."""

    METRIC = "METRIC"
    """The name of the metric."""
    METRIC_CUSTOM = "METRIC_CUSTOM"
    """A custom field of the metric's UID meta."""
    TAGK = "TAGK"
    """The value of a tag, by its key."""
    TAGK_CUSTOM = "TAGK_CUSTOM"
    """A custom field of the UID meta of a tag key."""
    TAGV_CUSTOM = "TAGV_CUSTOM"
    """A custom field of the UID meta of a tag value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule; the fields are those of /api/tree/rule.

    Attributes:
      field: name of a tag key (TAGK, TAGK_CUSTOM) or of a tag value (TAGV_CUSTOM).
      custom_field: key in the custom fields of the UID meta (the three *_CUSTOM).
      regex: one of its groups is the name; it takes precedence over a separator.
      separator: a regular expression for String.split; each part is a level.
      regex_group_idx: 0 for the first group.
      display_format: replaces the name; with {ovalue}, {value}, {tsuid}, {tag_name}.
    """

    tree_id: int
    level: int
    order: int
    type: RuleType
    field: str = ""
    custom_field: str = ""
    regex: str = ""
    separator: str = ""
    description: str = ""
    notes: str = ""
    regex_group_idx: int = 0
    display_format: str = ""

    def __str__(self) -> str:
        """The name in the cells of series that do not match (TreeRule.toString)."""
        return f"[{self.tree_id}:{self.level}:{self.order}:{self.type.value}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """One tree and its rules; the fields are those of /api/tree.

    Attributes:
      tree_id: 1 to 65535; 0 for a tree without an id.
      created: when, in seconds; 0 if created by a TSD's API.
      enabled: whether a TSD, and a sync of all trees, updates it.
      strict_match: do not store a series that fails on one level.
      store_failures: store collisions and series that do not match.
      rules: by level, then order.
    """

    tree_id: int
    name: str
    description: str = ""
    notes: str = ""
    strict_match: bool = False
    enabled: bool = False
    store_failures: bool = False
    created: int = 0
    rules: tuple[Rule, ...] = ()

    def levels(self) -> Iterator[tuple[int, list[Rule]]]:
        """(level, its rules by order), ascending; without levels that have no rules."""
        for level, rules in itertools.groupby(self.rules, lambda rule: rule.level):
            yield level, list(rules)

    def with_id(self, tree_id: int) -> Tree:
        """The same tree with another id."""
        rules = tuple(dataclasses.replace(rule, tree_id=tree_id) for rule in self.rules)
        return dataclasses.replace(self, tree_id=tree_id, rules=rules)

    def with_rules(self, rules: Sequence[Rule]) -> Tree:
        """The tree with these rules, sorted; the later one of two with the same level and order."""
        placed = {(rule.level, rule.order): rule for rule in rules}
        return dataclasses.replace(self, rules=tuple(placed[place] for place in sorted(placed)))


_LAST_INT = (1 << 31) - 1
_DEFINITION_BYTES = 8 * 1024
"""Limit for a definition or rule as JSON, since a filter, of at most 20 KB, compares all of it."""

_WORDS = {str: "a string", int: "a whole number", bool: "true or false"}


def _members(owner: type) -> dict[str, tuple[str, type]]:
    """(field, type) by the name of the member in JSON, for the fields that are a single value."""
    kinds = {name: str if kind is RuleType else kind for name, kind in get_type_hints(owner).items()}
    heads = {name: name.split("_") for name, kind in kinds.items() if kind in _WORDS}
    return {
        head + "".join(map(str.capitalize, rest)): (name, kinds[name])
        for name, (head, *rest) in heads.items()
    }


_TREE_MEMBERS, _RULE_MEMBERS = _members(Tree), _members(Rule)


def parse_trees(text: str) -> list[Tree]:
    """The trees of a file: one JSON object, or an array of them.

    Its rules are in `rules`: an array, as for /api/tree/rules, or objects by level and order, as from
    /api/tree.

    Raises:
      TreeError: it is not JSON, a field is unknown or has a wrong value, or a rule cannot work.
    """
    try:
        document = json.loads(text, object_pairs_hook=distinct)
    except DuplicateKeyError as error:
        raise TreeError("it is not JSON: duplicate key in an object") from error
    except (ValueError, RecursionError) as error:
        raise TreeError(f"it is not JSON: {error}") from error
    documents = document if isinstance(document, list) else [document]
    if not documents:
        raise TreeError("it has no tree")
    return [_tree(tree_document) for tree_document in documents]


def tree_of(values: Mapping[str, Any]) -> Tree:
    """A tree without rules from a JSON object; unknown fields are ignored.

    Raises:
      TreeError: a field has a wrong value.
    """
    fields = _fields(values, _TREE_MEMBERS, "tree")
    return Tree(**{"tree_id": 0, "name": "", **fields})


def rule_of(values: Mapping[str, Any]) -> Rule:
    """A rule from a JSON object; unknown fields are ignored.

    Raises:
      TreeError: a field has a wrong value.
    """
    fields = _fields(values, _RULE_MEMBERS, "rule")
    text = str(fields.get("type", "")).upper()
    if text not in RuleType.__members__:
        raise TreeError(f"rule: its type is one of {', '.join(RuleType.__members__)}, not {text!r}")
    return Rule(**{"tree_id": 0, "level": 0, "order": 0, **fields, "type": RuleType(text)})


def warnings_of(tree: Tree) -> list[str]:
    """Warnings about parts of a tree that are allowed but have no effect, one line each."""
    warnings = []
    for rule in tree.rules:
        if rule.regex and rule.separator:
            warnings.append(f"{_who(rule)}: it has a regex, so its separator is not used")
        if rule.regex and regex.compiled(rule.regex).groups <= rule.regex_group_idx:
            warnings.append(
                f"{_who(rule)}: it never matches: its regex has no group {rule.regex_group_idx + 1}"
            )
    if not tree.rules:
        warnings.append(f"tree {tree.name!r} has no rules: no series can be placed")
    return warnings


def _tree(document: object) -> Tree:
    """A tree from a file, with its rules."""
    if not isinstance(document, dict):
        raise TreeError("a tree is a JSON object with name and rules")
    _check_known(document, {*_TREE_MEMBERS, "rules"}, "tree")
    tree = tree_of(document)
    if not tree.name:
        raise TreeError("tree: it needs a name")
    if not 0 <= tree.tree_id <= LAST_TREE_ID:
        raise TreeError(f"tree {tree.name!r}: treeId is from 1 to {LAST_TREE_ID}, not {tree.tree_id}")
    _check_text(f"tree {tree.name!r}", tree.name, tree.description, tree.notes)
    rules: dict[tuple[int, int], Rule] = {}
    for rule_document in _rule_documents(document.get("rules")):
        _check_known(rule_document, set(_RULE_MEMBERS), "rule")
        rule = rule_of(rule_document)
        if rule.tree_id not in (0, tree.tree_id):
            whose = f"the tree has {tree.tree_id}" if tree.tree_id else "the tree has none"
            raise TreeError(f"{_who(rule)}: its treeId is {rule.tree_id}, but {whose}")
        check_rule(rule)
        if (rule.level, rule.order) in rules:
            raise TreeError(f"two rules have level {rule.level} and order {rule.order}")
        rules[rule.level, rule.order] = rule
    return tree.with_rules(list(rules.values())).with_id(tree.tree_id)


def check_rule(rule: Rule) -> None:
    """Checks that a TSD accepts a rule, and that it can give a name.

    Raises:
      TreeError: not so.
    """
    who = _who(rule)
    if rule.type is not RuleType.METRIC and not rule.field:
        raise TreeError(f"{who}: Missing field name required for {rule.type.value} rule")
    if rule.type not in (RuleType.METRIC, RuleType.TAGK) and not rule.custom_field:
        raise TreeError(f"{who}: Missing custom field name required for {rule.type.value} rule")
    try:
        rule.field.encode("iso-8859-1")
    except UnicodeEncodeError as error:
        if rule.type is not RuleType.METRIC_CUSTOM:
            raise TreeError(
                f"{who}: field {rule.field!r}: names are stored as ISO-8859-1, which has no "
                f"{rule.field[error.start]}, so no series can have it"
            ) from error
    for option, pattern in (("regex", rule.regex), ("separator", rule.separator)):
        try:
            regex.compiled(pattern)
        except regex.PatternError as error:
            raise TreeError(f"{who}: {option} {pattern!r}: {error}") from error
    strings = (rule.field, rule.custom_field, rule.regex, rule.separator, rule.display_format)
    _check_text(who, *strings, rule.description, rule.notes)


def _who(rule: Rule) -> str:
    return f"rule of level {rule.level} and order {rule.order} ({rule.type.value})"


def _rule_documents(rules: object) -> Iterator[Mapping[str, Any]]:
    """The rules, in either form."""
    if rules is None:
        return
    if isinstance(rules, dict):
        for level, orders in rules.items():
            if not isinstance(orders, dict):
                raise TreeError(f"rules: level {level!r} holds objects by order")
            for order, rule in orders.items():
                if not (level.isdecimal() and order.isdecimal() and isinstance(rule, dict)):
                    raise TreeError(f"rules: {level!r}, {order!r}: give a level, an order, and a rule")
                place = {"level": int(level), "order": int(order)}
                for name, number in place.items():
                    if rule.get(name, number) != number:
                        raise TreeError(f"rules: the rule at {level}, {order} says {name} {rule[name]}")
                yield {**rule, **place}
        return
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise TreeError("rules: give an array of rules, or objects by level and order")
    yield from rules


def _fields(values: Mapping[str, Any], members: Mapping[str, tuple[str, type]], owner: str) -> dict[str, Any]:
    """The fields of an object, with the names of the dataclass; without null ones."""
    fields = {}
    for key, (name, kind) in members.items():
        value = values.get(key)
        if value is None:
            continue
        if type(value) is not kind:
            raise TreeError(f"{owner}: {key} is {_WORDS[kind]}, not {value!r}")
        if isinstance(value, int) and not 0 <= value <= _LAST_INT:
            raise TreeError(f"{owner}: {key} is from 0 to {_LAST_INT}, not {value}")
        fields[name] = value
    return fields


def _check_known(document: Mapping[str, Any], fields: set[str], owner: str) -> None:
    for key in document:
        if key not in fields:
            raise TreeError(f"{owner}: unknown field {key!r}; there are {', '.join(sorted(fields))}")


def _check_text(who: str, *strings: str) -> None:
    for string in strings:
        try:
            string.encode()
        except UnicodeEncodeError as error:
            raise TreeError(f"{who}: half a surrogate pair in {string!r}") from error
    if sum(len(string.encode()) for string in strings) > _DEFINITION_BYTES:
        raise TreeError(f"{who}: its strings have more than {_DEFINITION_BYTES} bytes in total")
