"""Trees and their rules (docs/spec/opentsdb.md §6.1; tree/Tree, tree/TreeRule of OpenTSDB 2.4.1)."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Sequence

LAST_TREE_ID = 65_535


class TreeError(ValueError):
    """A definition that cannot be taken: what is wrong with it, and where."""


class RuleType(enum.StrEnum):
    """What a rule takes its value from."""

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
      regex: a group of it is the name; it goes before a separator.
      separator: a regular expression too, as String.split takes it; each piece is a level.
      regex_group_idx: 0 for the first group.
      display_format: in place of the name, with {ovalue}, {value}, {tsuid}, {tag_name}.
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
        """As a TSD names it in cells of series that do not match (TreeRule.toString)."""
        return f"[{self.tree_id}:{self.level}:{self.order}:{self.type.value}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """One tree and its rules; the fields are those of /api/tree.

    Attributes:
      tree_id: 1 to 65535; 0 for one that has no id yet.
      created: in seconds; a TSD's API leaves it 0.
      enabled: whether a TSD, and a sync of all trees, keeps it up.
      strict_match: a series that fails on one level is not stored.
      store_failures: collisions and series that do not match are stored.
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
        """(level, its rules by order), ascending; levels without rules are left out."""
        for level, rules in itertools.groupby(self.rules, lambda rule: rule.level):
            yield level, list(rules)

    def with_id(self, tree_id: int) -> Tree:
        """The same tree under another id."""
        rules = tuple(dataclasses.replace(rule, tree_id=tree_id) for rule in self.rules)
        return dataclasses.replace(self, tree_id=tree_id, rules=rules)

    def with_rules(self, rules: Sequence[Rule]) -> Tree:
        """The tree with these rules, sorted; of two for one place the later one."""
        placed = {(rule.level, rule.order): rule for rule in rules}
        return dataclasses.replace(self, rules=tuple(placed[place] for place in sorted(placed)))
