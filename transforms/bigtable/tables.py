"""Tables and families: created, and checked before any work starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud import bigtable
from google.cloud.bigtable import column_family
from google.cloud.bigtable.table import Table

from schema.layouts import TableSpec
from transforms.bigtable.target import BigtableError, Target, check_emulator


def create_tables(target: Target, specs: Sequence[TableSpec], *, dry_run: bool) -> Iterator[str]:
    """Creates what is missing of tables, families and GC rules; yields a line for each thing.

    Raises:
      BigtableError: the instance cannot be reached or may not be changed.
    """
    for spec in specs:
        table = _admin_table(target, spec.name)
        rules = {name: column_family.MaxVersionsGCRule(versions) for name, versions in spec.families.items()}
        found = _families(target, table)
        if found is None:
            yield f"{'would create' if dry_run else 'created'} table {spec.name}, {_families_text(spec)}"
            if not dry_run:
                _call(target, table.create, column_families=rules)
            continue
        changes = 0
        for name, rule in rules.items():
            if name in found and found[name] == rule.to_pb():
                continue
            changes += 1
            verb = "family" if name not in found else "garbage collection of family"
            action = "would set" if dry_run else "set"
            yield f"{action} {verb} {name} of table {spec.name}: newest {spec.families[name]} version(s)"
            if not dry_run:
                family = table.column_family(name, gc_rule=rule)
                _call(target, family.create if name not in found else family.update)
        if not changes:
            yield f"table {spec.name} is there, {_families_text(spec)}"


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


def _admin_table(target: Target, name: str) -> Table:
    check_emulator()
    try:
        client = bigtable.Client(project=target.project, admin=True)
    except DefaultCredentialsError as error:
        raise BigtableError(
            "no Google Cloud credentials: run `gcloud auth application-default login`, or set "
            "BIGTABLE_EMULATOR_HOST to use a local emulator (see `timebeam emulator`)"
        ) from error
    return client.instance(target.instance).table(name)


def _families(target: Target, table: Table) -> dict[str, object] | None:
    """The GC rule, as a message, of each family of a table; None if there is no such table."""
    try:
        found = _call(target, table.list_column_families)
    except exceptions.NotFound:
        return None
    assert isinstance(found, dict)
    return {name: (family.gc_rule.to_pb() if family.gc_rule else None) for name, family in found.items()}


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


def _families_text(spec: TableSpec) -> str:
    text = ", ".join(f"{name} (newest {versions})" for name, versions in spec.families.items())
    return f"families {text}"
