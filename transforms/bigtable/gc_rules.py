"""Garbage collection rules of families: how many versions are kept, and how old a cell may become.

A family has a number of versions, which its layout needs, and can have a maximum age beside it, which an
operator sets. Together they are a union: a cell goes that is too old, or has too many newer versions.
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


def with_versions(found: GarbageCollectionRule | None, versions: int) -> GarbageCollectionRule:
    """A rule with this number of versions; what else was set, as a maximum age, stays.

    Args:
      found: the rule as it is; None if there is none.
    """
    wanted = MaxVersionsGCRule(versions)
    if found is not None and wanted in parts(found):
        return found
    others = [rule for rule in parts(found) if not isinstance(rule, MaxVersionsGCRule)]
    return _union([wanted, *others])


def with_max_age(found: GarbageCollectionRule | None, versions: int, days: float) -> GarbageCollectionRule:
    """A rule with this maximum age; its number of versions stays as it is.

    Args:
      found: the rule as it is; None if there is none.
      versions: what it gets if it has no number of versions.
      days: 0 for no maximum age.
    """
    others = [rule for rule in parts(found) if not isinstance(rule, MaxAgeGCRule)]
    if not any(isinstance(rule, MaxVersionsGCRule) for rule in others):
        others.insert(0, MaxVersionsGCRule(versions))
    return _union([*others, MaxAgeGCRule(days * _DAY)] if days else others)


def rule_text(rule: GarbageCollectionRule | None) -> str:
    """A rule in words: which cells are kept."""
    if rule is None:
        return "every version, for ever"
    if isinstance(rule, MaxVersionsGCRule):
        return f"newest {rule.max_num_versions}"
    if isinstance(rule, MaxAgeGCRule):
        return f"up to {rule.max_age / _DAY:g} days old"
    if isinstance(rule, GCRuleUnion):
        return ", ".join(map(rule_text, rule.rules))
    assert isinstance(rule, GCRuleIntersection)
    return f"({' or '.join(map(rule_text, rule.rules))})"


def parts(rule: GarbageCollectionRule | None) -> Sequence[GarbageCollectionRule]:
    """The rules of which each deletes what it deletes."""
    if rule is None:
        return ()
    return tuple(rule.rules) if isinstance(rule, GCRuleUnion) else (rule,)


def _union(rules: Sequence[GarbageCollectionRule]) -> GarbageCollectionRule:
    return rules[0] if len(rules) == 1 else GCRuleUnion(list(rules))
