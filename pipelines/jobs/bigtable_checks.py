"""Checks of Bigtable before a job: tables, garbage collection, app profile, permissions, UIDs.

Read-only: nothing is created, written or deleted.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence

from google.api_core import exceptions
from google.cloud.bigtable import enums
from google.cloud.bigtable.column_family import GarbageCollectionRule, MaxAgeGCRule

from timebeam.schema.core.point_fragments import UidSpec
from timebeam.schema.core.rows import TableSpec
from timebeam.transforms.bigtable.create_tables import (
    admin_instance,
    family_rules,
    rule_text,
    union_members,
    with_versions,
)
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.opentsdb.assign_uids import read_counters

TABLE_PERMISSIONS = (
    "bigtable.tables.readRows",
    "bigtable.tables.mutateRows",
    "bigtable.tables.sampleRowKeys",
)
"""What jobs do with tables."""

_UIDS_NEAR = 0.8  # where a worker warns too

UNASKABLE = (
    exceptions.MethodNotImplemented,
    exceptions.Forbidden,
    exceptions.Unknown,
    exceptions.NotFound,
)
"""Errors that leave a question about permissions or profiles unanswered."""


class CheckStatus(enum.StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    UNCHECKED = "unchecked"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
      text: what was checked, and its state.
      fix: the command, option or page that fixes it; empty if there is nothing to fix.
    """

    status: CheckStatus
    text: str
    fix: str = ""


class BigtableChecks:
    """The checks of one instance.

    Raises:
      BigtableError: the emulator does not answer, or there are no credentials.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._instance = admin_instance(target)

    def tables(self, specs: Sequence[TableSpec], create_command: str) -> Iterator[Check]:
        """Whether tables and families exist, and what their garbage collection deletes.

        Args:
          create_command: the command that creates missing tables and families.
        """
        for spec in specs:
            rules = self._family_rules(spec.name)
            if isinstance(rules, Check):
                yield rules
            elif rules is None:
                yield Check(CheckStatus.MISSING, f"table {spec.name} does not exist", create_command)
            else:
                for family, versions in spec.families.items():
                    yield _family(spec, family, versions, rules, create_command)

    def profile(self, *, transactions: bool) -> Check:
        """Whether the app profile exists, allows UIDs and appends, and reads what was written last.

        Args:
          transactions: whether the job needs single-row transactions.
        """
        name = self._target.app_profile or "default"
        profile = self._instance.app_profile(name)
        create = (
            f"gcloud bigtable app-profiles create {name} --instance={self._target.instance} "
            f"--project={self._target.project} --route-to=CLUSTER --transactional-writes"
        )
        try:
            profile.reload()
        except exceptions.NotFound:
            return Check(CheckStatus.MISSING, f"app profile {name} does not exist", create)
        except UNASKABLE as error:
            return Check(CheckStatus.UNCHECKED, f"app profile {name}: {unanswered(error)}")
        single = profile.routing_policy_type == enums.RoutingPolicyType.SINGLE
        update = create.replace(" create ", " update ")
        if transactions and not (single and profile.allow_transactional_writes):
            why = "has no single-row transactions" if single else "routes to several clusters"
            return Check(
                CheckStatus.MISSING, f"app profile {name} {why}, which UIDs and appends need", update
            )
        if not single:
            why = "so a read may miss the newest points and marks of late points"
            return Check(CheckStatus.WARNING, f"app profile {name} routes to several clusters, {why}", update)
        return Check(CheckStatus.OK, f"app profile {name}")

    def permissions(self, specs: Sequence[TableSpec]) -> Iterator[Check]:
        """Whether we may read and write each table."""
        for spec in specs:
            try:
                granted = self._instance.table(spec.name).test_iam_permissions(list(TABLE_PERMISSIONS))
            except UNASKABLE as error:
                yield Check(CheckStatus.UNCHECKED, f"permissions on table {spec.name}: {unanswered(error)}")
                continue
            missing = [permission for permission in TABLE_PERMISSIONS if permission not in granted]
            if missing:
                yield Check(
                    CheckStatus.MISSING,
                    f"table {spec.name}: no permission {', '.join(missing)}",
                    f"gcloud bigtable instances add-iam-policy-binding {self._target.instance} "
                    f"--project={self._target.project} --member=serviceAccount:ACCOUNT "
                    "--role=roles/bigtable.user",
                )
            else:
                yield Check(CheckStatus.OK, f"permissions on table {spec.name}")

    def uids(self, spec: UidSpec, *, creates_metrics: bool) -> Iterator[Check]:
        """How many UIDs of each kind are assigned, by their counters.

        Args:
          creates_metrics: whether the job assigns UIDs to new metrics.
        """
        try:
            counters = read_counters(self._target, spec)
        except exceptions.GoogleAPICallError as error:
            yield Check(CheckStatus.UNCHECKED, f"UIDs of table {spec.table}: {unanswered(error)}")
            return
        for kind, (used, last) in counters.items():
            text = f"UIDs of kind {kind}: {min(used, last):,} of {last:,} are assigned"
            if used > _UIDS_NEAR * last:
                yield Check(CheckStatus.WARNING, text, "docs/how-to/handbook.md, UIDs run out")
            elif not used and kind == "metrics" and not creates_metrics:
                why = "the counter is at 0, so that points of new metrics are refused"
                yield Check(CheckStatus.WARNING, f"{text}: {why}", "--auto_create_metrics")
            else:
                yield Check(CheckStatus.OK, text)

    def _family_rules(self, table: str) -> dict[str, GarbageCollectionRule | None] | Check | None:
        """The GC rule of each family; None if the table does not exist; a check if it cannot be asked."""
        try:
            return family_rules(self._instance.table(table))
        except exceptions.Forbidden as error:
            return Check(
                CheckStatus.UNCHECKED,
                f"table {table}: {unanswered(error)}",
                "look with an account that has roles/bigtable.user",
            )
        except exceptions.GoogleAPICallError as error:
            raise BigtableError(f"{self._target} does not answer: {error}") from error


def _family(
    spec: TableSpec,
    family: str,
    versions: int,
    rules: dict[str, GarbageCollectionRule | None],
    create_command: str,
) -> Check:
    """The check of one family."""
    if family not in rules:
        return Check(
            CheckStatus.MISSING, f"table {spec.name}: family {family} does not exist", create_command
        )
    rule = rules[family]
    text = f"table {spec.name}, family {family}: {rule_text(rule)}"
    if rule != with_versions(rule, versions):
        return Check(CheckStatus.MISSING, f"{text}; it must be: newest {versions}", create_command)
    has_age = any(isinstance(member, MaxAgeGCRule) for member in union_members(rule))
    if has_age and not spec.cell_time:
        return Check(
            CheckStatus.WARNING,
            f"{text}: an age deletes names, index entries or marks that are in use",
            f"cbt setgcpolicy {spec.name} {family} maxversions={versions}",
        )
    return Check(CheckStatus.OK, text)


def unanswered(error: exceptions.GoogleAPICallError) -> str:
    """Why a question stays unanswered, in a line."""
    if isinstance(error, exceptions.MethodNotImplemented):
        return "an emulator does not answer this"
    return f"no answer: {str(error.message or error).splitlines()[0]}"
