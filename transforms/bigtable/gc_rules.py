"""Garbage collection rules of families: the number of versions, and the maximum age of cells.

A layout needs a number of versions; an operator can add a maximum age. Together they are a union: a cell is
deleted if it is too old, or if it has too many newer versions.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from google.cloud.bigtable.column_family import (
    GarbageCollectionRule,
    GCRuleIntersection,
    GCRuleUnion,
    MaxAgeGCRule,
    MaxVersionsGCRule,
)

_DAY = datetime.timedelta(days=1)


def with_versions(rule: GarbageCollectionRule | None, versions: int) -> GarbageCollectionRule:
    """The rule with this number of versions; its other members, such as a maximum age, stay.

    Args:
      rule: None for a family without a rule.
    """
    newest = MaxVersionsGCRule(versions)
    members = union_members(rule)
    if rule is not None and newest in members:
        return rule
    return _union([newest, *(member for member in members if not isinstance(member, MaxVersionsGCRule))])


def with_max_age(rule: GarbageCollectionRule | None, versions: int, days: float) -> GarbageCollectionRule:
    """The rule with this maximum age; its number of versions stays.

    Args:
      rule: None for a family without a rule.
      versions: the number if the rule has none.
      days: 0 for no maximum age.
    """
    members = [member for member in union_members(rule) if not isinstance(member, MaxAgeGCRule)]
    if not any(isinstance(member, MaxVersionsGCRule) for member in members):
        members.insert(0, MaxVersionsGCRule(versions))
    return _union([*members, MaxAgeGCRule(days * _DAY)] if days else members)


def rule_text(rule: GarbageCollectionRule | None) -> str:
    """Which cells a rule keeps, in words."""
    if rule is None:
        return "every version, forever"
    if isinstance(rule, MaxVersionsGCRule):
        return f"newest {rule.max_num_versions}"
    if isinstance(rule, MaxAgeGCRule):
        return f"up to {rule.max_age / _DAY:g} days old"
    if isinstance(rule, GCRuleUnion):
        return ", ".join(map(rule_text, rule.rules))
    assert isinstance(rule, GCRuleIntersection)
    return f"({' or '.join(map(rule_text, rule.rules))})"


def union_members(rule: GarbageCollectionRule | None) -> Sequence[GarbageCollectionRule]:
    """The rules that each delete cells on their own: the members of a union, or the rule itself."""
    if rule is None:
        return ()
    return tuple(rule.rules) if isinstance(rule, GCRuleUnion) else (rule,)


def _union(rules: Sequence[GarbageCollectionRule]) -> GarbageCollectionRule:
    return rules[0] if len(rules) == 1 else GCRuleUnion(list(rules))
