"""Tables and families created and dropped, and their garbage collection.

A layout needs a number of versions; an operator can add a maximum age. Together they are a union: a cell is
deleted if it is too old, or if it has too many newer versions.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.api_core import exceptions
from google.cloud import bigtable
from google.cloud.bigtable.column_family import (
    GarbageCollectionRule,
    GCRuleIntersection,
    GCRuleUnion,
    MaxAgeGCRule,
    MaxVersionsGCRule,
)
from google.cloud.bigtable.instance import Instance
from google.cloud.bigtable.table import Table

from timebeam.transforms.bigtable.existing_tables import TableFamilies, admin_errors, forget_table_names
from timebeam.transforms.bigtable.target import Target, check_emulator

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


def create_tables(target: Target, specs: Sequence[TableFamilies], *, dry_run: bool) -> Iterator[str]:
    """Creates missing tables and families and sets their GC rules; yields a line for each change.

    A maximum age (`set_max_age`) stays.

    Raises:
      BigtableError: the instance cannot be reached or may not be changed.
    """
    action = "would create" if dry_run else "created"
    for spec in specs:
        table = _table(target, spec.name)
        existing = _family_rules(target, table)
        rules = {
            family: with_versions((existing or {}).get(family), versions)
            for family, versions in spec.families.items()
        }
        if existing is None:
            yield f"{action} table {spec.name}, {_families_text(rules)}"
            if not dry_run:
                forget_table_names()
                with admin_errors(target), contextlib.suppress(exceptions.AlreadyExists):
                    table.create(column_families=rules)  # unless another program has just done so
            continue
        changes = {family: rule for family, rule in rules.items() if existing.get(family) != rule}
        for family, rule in changes.items():
            noun = "garbage collection of family" if family in existing else "family"
            verb = "would set" if dry_run else "set"
            yield f"{verb} {noun} {family} of table {spec.name}: newest {spec.families[family]} version(s)"
            if not dry_run:
                column_family = table.column_family(family, gc_rule=rule)
                with admin_errors(target):
                    (column_family.update if family in existing else column_family.create)()
        if not changes:
            yield f"table {spec.name} exists, {_families_text(rules)}"


def show_rules(target: Target, specs: Sequence[TableFamilies]) -> Iterator[str]:
    """A line for each family of some tables: which cells its garbage collection keeps.

    Raises:
      BigtableError: the instance cannot be reached.
    """
    for spec in specs:
        rules = _family_rules(target, _table(target, spec.name))
        if rules is None:
            yield f"table {spec.name} does not exist"
            continue
        for family in spec.families:
            text = rule_text(rules[family]) if family in rules else "does not exist"
            yield f"table {spec.name}, family {family}: {text}"


def set_max_age(
    target: Target, specs: Sequence[TableFamilies], days: float, *, dry_run: bool
) -> Iterator[str]:
    """Sets the maximum age of cells in all existing families of these tables; yields a line for each family.

    The service deletes older cells for good, within days.

    Args:
      days: 0 for no maximum age.

    Raises:
      BigtableError: the instance cannot be reached or may not be changed.
    """
    for spec in specs:
        table = _table(target, spec.name)
        rules = _family_rules(target, table) or {}
        for family, versions in spec.families.items():
            old = rules.get(family)
            new = with_max_age(old, versions, days)
            label = f"table {spec.name}, family {family}: {rule_text(new)}"
            if old == new:
                yield f"{label}, unchanged"
                continue
            yield f"{'would set' if dry_run else 'set'} {label} (was {rule_text(old)})"
            if not dry_run:
                with admin_errors(target):
                    table.column_family(family, gc_rule=new).update()


def drop_table(target: Target, name: str) -> None:
    """Deletes a table and all its rows for good.

    Raises:
      BigtableError: the instance cannot be reached or may not be changed.
    """
    forget_table_names()
    with admin_errors(target):
        _table(target, name).delete()


def admin_instance(target: Target) -> Instance:
    """The instance, over an admin client.

    Raises:
      BigtableError: the emulator does not answer, or there are no credentials.
    """
    check_emulator(target)
    with admin_errors(target):
        client = bigtable.Client(project=target.project, admin=True)
    return client.instance(target.instance)


def family_rules(table: Table) -> dict[str, GarbageCollectionRule | None] | None:
    """The GC rule of each family of a table; None if the table does not exist."""
    try:
        families: dict[str, Any] = table.list_column_families()
    except exceptions.NotFound:
        return None
    return {name: family.gc_rule for name, family in families.items()}


def _family_rules(target: Target, table: Table) -> dict[str, GarbageCollectionRule | None] | None:
    with admin_errors(target):
        return family_rules(table)


def _table(target: Target, name: str) -> Table:
    return admin_instance(target).table(name)


def _families_text(rules: Mapping[str, GarbageCollectionRule]) -> str:
    return "families " + ", ".join(f"{name} ({rule_text(rule)})" for name, rule in rules.items())
