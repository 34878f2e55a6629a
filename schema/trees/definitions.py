"""Trees and their rules (docs/spec/opentsdb.md §6.1; tree/Tree, tree/TreeRule of OpenTSDB 2.4.1)."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Sequence

LAST_TREE_ID = 65_535


class TreeError(ValueError):
    """A definition is refused; the message tells what is wrong, and where."""


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
