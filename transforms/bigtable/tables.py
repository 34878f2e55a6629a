"""Tables and families: created, and checked before any work starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud import bigtable
from google.cloud.bigtable.column_family import GarbageCollectionRule
from google.cloud.bigtable.instance import Instance
from google.cloud.bigtable.table import Table

from timebeam.transforms.bigtable.gc_rules import rule_text, with_max_age, with_versions
from timebeam.transforms.bigtable.target import BigtableError, Target, check_emulator


class TableSpec(Protocol):
    """A table and its families."""

    @property
    def name(self) -> str:
        """The table's name, without project and instance."""

    @property
    def families(self) -> Mapping[str, int]:
        """How many versions garbage collection keeps of each cell, by family."""


def create_tables(target: Target, specs: Sequence[TableSpec], *, dry_run: bool) -> Iterator[str]:
    """Creates what is missing of tables, families and GC rules; yields a line for each thing.

    A maximum age that was set (`set_max_age`) stays.

    Raises:
      BigtableError: the instance cannot be reached or may not be changed.
    """
    for spec in specs:
        table = _admin_table(target, spec.name)
        found = _families(target, table)
        rules = {
            name: with_versions((found or {}).get(name), versions) for name, versions in spec.families.items()
        }
        if found is None:
            yield f"{'would create' if dry_run else 'created'} table {spec.name}, {_families_text(rules)}"
            if not dry_run:
                _call(target, table.create, column_families=rules)
            continue
        changes = 0
        for name, rule in rules.items():
            if name in found and found[name] == rule:
                continue
            changes += 1
            verb = "family" if name not in found else "garbage collection of family"
            action = "would set" if dry_run else "set"
            yield f"{action} {verb} {name} of table {spec.name}: newest {spec.families[name]} version(s)"
            if not dry_run:
                family = table.column_family(name, gc_rule=rule)
                _call(target, family.create if name not in found else family.update)
        if not changes:
            yield f"table {spec.name} is there, {_families_text(rules)}"


def show_rules(target: Target, specs: Sequence[TableSpec]) -> Iterator[str]:
    """A line for each family of some tables with what its garbage collection keeps.

    Raises:
      BigtableError: the instance cannot be reached.
    """
    for spec in specs:
        found = _families(target, _admin_table(target, spec.name))
        if found is None:
            yield f"table {spec.name} is not there"
            continue
        for name in spec.families:
            kept = rule_text(found[name]) if name in found else "is not there"
            yield f"table {spec.name}, family {name}: {kept}"


def set_max_age(target: Target, specs: Sequence[TableSpec], days: float, *, dry_run: bool) -> Iterator[str]:
    """Sets the maximum age of the cells of all families that the layout has in tables that are there.

    The service deletes what is older, within days, for good. Yields a line for each family.

    Args:
      days: 0 for no maximum age.

    Raises:
      BigtableError: the instance cannot be reached or may not be changed.
    """
    for spec in specs:
        table = _admin_table(target, spec.name)
        found = _families(target, table) or {}
        for name, versions in spec.families.items():
            rule = with_max_age(found.get(name), versions, days)
            if found.get(name) == rule:
                yield f"table {spec.name}, family {name}: {rule_text(rule)}, as it was"
                continue
            yield (
                f"{'would set' if dry_run else 'set'} table {spec.name}, family {name}: {rule_text(rule)} "
                f"(was {rule_text(found.get(name))})"
            )
            if not dry_run:
                _call(target, table.column_family(name, gc_rule=rule).update)


def check_tables(target: Target, specs: Sequence[TableSpec], create_command: str) -> None:
    """Raises BigtableError, in one line, unless all tables and families are there.

    Args:
      create_command: what the user is told to run if something is missing.
    """
    missing = []
    for spec in specs:
        found = _families(target, _admin_table(target, spec.name))
        if found is None:
            missing.append(f"table {spec.name}")
        else:
            missing += [f"family {name} of table {spec.name}" for name in spec.families if name not in found]
    if missing:
        raise BigtableError(
            f"missing in {target}: {', '.join(missing)}. Create what is missing with: {create_command}"
        )


def table_names(target: Target) -> list[str]:
    """The names of all tables of the instance.

    Raises:
      BigtableError: the instance cannot be reached.
    """
    found = _call(target, _admin_instance(target).list_tables)
    assert isinstance(found, list)
    return sorted(table.table_id for table in found)


def drop_table(target: Target, name: str) -> None:
    """Deletes a table with all that is in it, for good.

    Raises:
      BigtableError: the instance cannot be reached or may not be changed.
    """
    _call(target, _admin_table(target, name).delete)


def _admin_table(target: Target, name: str) -> Table:
    return _admin_instance(target).table(name)


def _admin_instance(target: Target) -> Instance:
    check_emulator()
    try:
        client = bigtable.Client(project=target.project, admin=True)
    except DefaultCredentialsError as error:
        raise BigtableError(
            "no Google Cloud credentials: run `gcloud auth application-default login`, or set "
            "BIGTABLE_EMULATOR_HOST to use a local emulator (see `timebeam emulator`)"
        ) from error
    return client.instance(target.instance)


def _families(target: Target, table: Table) -> dict[str, GarbageCollectionRule | None] | None:
    """The GC rule of each family of a table; None if there is no such table."""
    try:
        found = _call(target, table.list_column_families)
    except exceptions.NotFound:
        return None
    assert isinstance(found, dict)
    return {name: family.gc_rule for name, family in found.items()}


def _call(target: Target, method: object, **arguments: object) -> object:
    """Calls an admin method; what a user can mend becomes a BigtableError of one line."""
    assert callable(method)
    try:
        return method(**arguments)
    except exceptions.NotFound:
        raise
    except exceptions.PermissionDenied as error:
        raise BigtableError(f"no permission on {target}: {error.message}") from error
    except (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.RetryError) as error:
        raise BigtableError(f"{target} does not answer: {error}") from error


def _families_text(rules: Mapping[str, GarbageCollectionRule]) -> str:
    return "families " + ", ".join(f"{name} ({rule_text(rule)})" for name, rule in rules.items())
