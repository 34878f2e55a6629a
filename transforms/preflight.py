"""What Bigtable can be asked before a job: tables, garbage collection, app profile, permissions, UIDs.

Only questions: nothing is created, written or deleted.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud import bigtable
from google.cloud.bigtable import enums
from google.cloud.bigtable.column_family import GarbageCollectionRule, MaxAgeGCRule

from timebeam.schema.layouts import TableSpec, UidSpec
from timebeam.schema.layouts.opentsdb import uid_table
from timebeam.transforms.bigtable.gc_rules import parts, rule_text, with_versions
from timebeam.transforms.bigtable.target import BigtableError, Target, check_emulator
from timebeam.transforms.readers.table_reader import TableReader

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
"""Answers to a question about permissions or profiles that leave it open."""


class Status(enum.StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    UNCHECKED = "unchecked"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing that a job needs.

    Attributes:
      what: it, and how it was found, in words.
      mend: the command, or the words, that put it right; empty if nothing is to be done.
    """

    status: Status
    what: str
    mend: str = ""


class BigtableChecks:
    """The checks of one instance.

    Raises:
      BigtableError: the emulator does not answer, or there are no credentials.
    """

    def __init__(self, target: Target) -> None:
        check_emulator()
        self._target = target
        try:
            client = bigtable.Client(project=target.project, admin=True)
        except DefaultCredentialsError as error:
            raise BigtableError(
                "no Google Cloud credentials: run `gcloud auth application-default login`"
            ) from error
        self._instance = client.instance(target.instance)

    def tables(self, specs: Sequence[TableSpec], create_command: str) -> Iterator[Check]:
        """Whether tables and families are there, and what their garbage collection does.

        Args:
          create_command: what creates what is missing.
        """
        for spec in specs:
            found = self._families(spec.name)
            if isinstance(found, Check):
                yield found
            elif found is None:
                yield Check(Status.MISSING, f"table {spec.name} is not there", create_command)
            else:
                for family, versions in spec.families.items():
                    yield _family(spec, family, versions, found, create_command)

    def profile(self, *, transactions: bool) -> Check:
        """Whether the app profile is there, and fit for UIDs and appends.

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
            return Check(Status.MISSING, f"app profile {name} is not there", create)
        except UNASKABLE as error:
            return Check(Status.UNCHECKED, f"app profile {name}: {said(error)}")
        single = profile.routing_policy_type == enums.RoutingPolicyType.SINGLE
        if transactions and not (single and profile.allow_transactional_writes):
            why = "has no single-row transactions" if single else "routes to several clusters"
            update = create.replace(" create ", " update ")
            return Check(Status.MISSING, f"app profile {name} {why}, which UIDs and appends need", update)
        return Check(Status.OK, f"app profile {name}")

    def permissions(self, specs: Sequence[TableSpec]) -> Iterator[Check]:
        """Whether we may read and write each table."""
        for spec in specs:
            try:
                granted = self._instance.table(spec.name).test_iam_permissions(list(TABLE_PERMISSIONS))
            except UNASKABLE as error:
                yield Check(Status.UNCHECKED, f"permissions on table {spec.name}: {said(error)}")
                continue
            lacking = [one for one in TABLE_PERMISSIONS if one not in granted]
            if lacking:
                yield Check(
                    Status.MISSING,
                    f"table {spec.name}: no permission {', '.join(lacking)}",
                    f"gcloud bigtable instances add-iam-policy-binding {self._target.instance} "
                    f"--project={self._target.project} --member=serviceAccount:ACCOUNT "
                    "--role=roles/bigtable.user",
                )
            else:
                yield Check(Status.OK, f"permissions on table {spec.name}")

    def uids(self, spec: UidSpec, *, creates_metrics: bool) -> Iterator[Check]:
        """How many of the UIDs of each kind are given: their counters, read.

        Args:
          creates_metrics: whether the job gives UIDs to new metrics.
        """
        try:
            row = (
                TableReader(self._target).rows(spec.table, [uid_table.COUNTER_ROW]).get(uid_table.COUNTER_ROW)
            )
        except exceptions.GoogleAPICallError as error:
            yield Check(Status.UNCHECKED, f"UIDs of table {spec.table}: {said(error)}")
            return
        given = {
            cell.qualifier.decode("iso-8859-1"): int.from_bytes(cell.value, "big", signed=True)
            for cell in (row.cells if row else ())
            if cell.family == uid_table.ID_FAMILY
        }
        for kind, width in spec.widths.items():
            last, used = uid_table.last_id(width), given.get(kind, 0)
            text = f"UIDs of kind {kind}: {min(used, last):,} of {last:,} are given"
            if used > _UIDS_NEAR * last:
                yield Check(Status.WARNING, text, "docs/how-to/handbook.md, UIDs run out")
            elif not used and kind == "metrics" and not creates_metrics:
                why = "the counter is at 0, so that points of new metrics are refused"
                yield Check(Status.WARNING, f"{text}: {why}", "--auto_create_metrics")
            else:
                yield Check(Status.OK, text)

    def _families(self, table: str) -> dict[str, GarbageCollectionRule | None] | Check | None:
        """The rule of each family; None if there is no such table; a check if the question failed."""
        try:
            found: Any = self._instance.table(table).list_column_families()
        except exceptions.NotFound:
            return None
        except exceptions.Forbidden as error:
            return Check(
                Status.UNCHECKED,
                f"table {table}: {said(error)}",
                "look with an account that has roles/bigtable.user",
            )
        except exceptions.GoogleAPICallError as error:
            raise BigtableError(f"{self._target} does not answer: {error}") from error
        return {name: family.gc_rule for name, family in found.items()}


def _family(
    spec: TableSpec,
    family: str,
    versions: int,
    found: dict[str, GarbageCollectionRule | None],
    create_command: str,
) -> Check:
    """The check of one family."""
    if family not in found:
        return Check(Status.MISSING, f"table {spec.name}: family {family} is not there", create_command)
    rule, text = found[family], f"table {spec.name}, family {family}: {rule_text(found[family])}"
    if rule != with_versions(rule, versions):
        return Check(Status.MISSING, f"{text}; wanted: newest {versions}", create_command)
    aged = any(isinstance(part, MaxAgeGCRule) for part in parts(rule))
    if aged and not spec.cell_time:
        return Check(
            Status.WARNING,
            f"{text}: an age deletes names, index entries or marks that are in use",
            f"cbt setgcpolicy {spec.name} {family} maxversions={versions}",
        )
    return Check(Status.OK, text)


def said(error: exceptions.GoogleAPICallError) -> str:
    """What was answered to a question that the answer leaves open, in a line."""
    if isinstance(error, exceptions.MethodNotImplemented):
        return "not to be asked of an emulator"
    return f"not to be asked: {str(error.message or error).splitlines()[0]}"
