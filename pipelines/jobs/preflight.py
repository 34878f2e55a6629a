"""`--preflight`: checks what a job needs before it runs, and prints commands that fix what is missing.

Nothing is created, written or deleted. What cannot be checked is reported as unchecked, not as a failure.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, SetupOptions, WorkerOptions
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.bigtable import enums
from google.cloud.bigtable.column_family import GarbageCollectionRule, MaxAgeGCRule

from timebeam.pipelines.jobs.job import AnyJob, Needs, Run
from timebeam.pipelines.jobs.runners import EMULATOR_ON_DATAFLOW, HOW_TO_STAGE, unstaged_packages
from timebeam.pipelines.local.pubsub import PUBSUB_VARIABLE, publisher, subscriber
from timebeam.schema.core.point_fragments import Packing, UidSpec
from timebeam.schema.core.rows import TableSpec
from timebeam.transforms.bigtable.create_tables import (
    admin_instance,
    family_rules,
    rule_text,
    union_members,
    with_versions,
)
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, BigtableError, Target
from timebeam.transforms.dead_letters.letter_files import TOPIC, check_writable
from timebeam.transforms.input.files import match
from timebeam.transforms.opentsdb.assign_uids import read_counters

TABLE_PERMISSIONS = tuple(f"bigtable.tables.{verb}" for verb in ("readRows", "mutateRows", "sampleRowKeys"))
"""What jobs do with tables."""

_UIDS_NEAR = 0.8  # where a worker warns too

UNASKABLE = (exceptions.MethodNotImplemented, exceptions.Forbidden, exceptions.Unknown, exceptions.NotFound)
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


ok, warning, missing, unchecked = (functools.partial(Check, status) for status in CheckStatus)
"""Make the checks of each status out of text and fix."""


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
            try:
                rules = family_rules(self._instance.table(spec.name))
            except exceptions.Forbidden as error:
                look = "look with an account that has roles/bigtable.user"
                yield unchecked(f"table {spec.name}: {unanswered(error)}", look)
                continue
            except exceptions.GoogleAPICallError as error:
                raise BigtableError(f"{self._target} does not answer: {error}") from error
            if rules is None:
                yield missing(f"table {spec.name} does not exist", create_command)
                continue
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
            return missing(f"app profile {name} does not exist", create)
        except UNASKABLE as error:
            return unchecked(f"app profile {name}: {unanswered(error)}")
        single = profile.routing_policy_type == enums.RoutingPolicyType.SINGLE
        update = create.replace(" create ", " update ")
        if transactions and not (single and profile.allow_transactional_writes):
            why = "has no single-row transactions" if single else "routes to several clusters"
            return missing(f"app profile {name} {why}, which UIDs and appends need", update)
        if not single:
            why = "so a read may miss the newest points and marks of late points"
            return warning(f"app profile {name} routes to several clusters, {why}", update)
        return ok(f"app profile {name}")

    def permissions(self, specs: Sequence[TableSpec]) -> Iterator[Check]:
        """Whether we may read and write each table."""
        for spec in specs:
            try:
                granted = self._instance.table(spec.name).test_iam_permissions(list(TABLE_PERMISSIONS))
            except UNASKABLE as error:
                yield unchecked(f"permissions on table {spec.name}: {unanswered(error)}")
                continue
            lacking = [permission for permission in TABLE_PERMISSIONS if permission not in granted]
            if lacking:
                yield missing(
                    f"table {spec.name}: no permission {', '.join(lacking)}",
                    f"gcloud bigtable instances add-iam-policy-binding {self._target.instance} "
                    f"--project={self._target.project} --member=serviceAccount:ACCOUNT "
                    "--role=roles/bigtable.user",
                )
            else:
                yield ok(f"permissions on table {spec.name}")

    def uids(self, spec: UidSpec, *, creates_metrics: bool) -> Iterator[Check]:
        """How many UIDs of each kind are assigned, by their counters.

        Args:
          creates_metrics: whether the job assigns UIDs to new metrics.
        """
        try:
            counters = read_counters(self._target, spec)
        except exceptions.GoogleAPICallError as error:
            yield unchecked(f"UIDs of table {spec.table}: {unanswered(error)}")
            return
        for kind, (used, last) in counters.items():
            text = f"UIDs of kind {kind}: {min(used, last):,} of {last:,} are assigned"
            if used > _UIDS_NEAR * last:
                yield warning(text, "docs/operate/runbook.md, UIDs run out")
            elif not used and kind == "metrics" and not creates_metrics:
                why = "the counter is at 0, so that points of new metrics are rejected"
                yield warning(f"{text}: {why}", "--auto-create-metrics")
            else:
                yield ok(text)


def _family(
    spec: TableSpec,
    family: str,
    versions: int,
    rules: dict[str, GarbageCollectionRule | None],
    create_command: str,
) -> Check:
    """The check of one family."""
    if family not in rules:
        return missing(f"table {spec.name}: family {family} does not exist", create_command)
    rule = rules[family]
    text = f"table {spec.name}, family {family}: {rule_text(rule)}"
    if rule != with_versions(rule, versions):
        return missing(f"{text}; it must be: newest {versions}", create_command)
    has_age = any(isinstance(member, MaxAgeGCRule) for member in union_members(rule))
    if has_age and not spec.cell_time:
        return warning(
            f"{text}: an age deletes names, index entries or marks that are in use",
            f"cbt setgcpolicy {spec.name} {family} maxversions={versions}",
        )
    return ok(text)


def unanswered(error: exceptions.GoogleAPICallError) -> str:
    """Why a question stays unanswered, in a line."""
    if isinstance(error, exceptions.MethodNotImplemented):
        return "an emulator does not answer this"
    return f"no answer: {str(error.message or error).splitlines()[0]}"


def preflight(job: AnyJob, run: Run) -> int:
    """Prints a line for each check; exit code 1 if something is missing.

    Raises:
      BigtableError: Bigtable does not answer, or there are no credentials.
    """
    results: list[Check] = []
    for check in checks(job, run):
        if not run.as_json:
            print(f"{check.status.value:9}  {check.text}")
            if check.fix and check.fix not in {each.fix for each in results}:
                print(f"{'':9}  -> {check.fix}")
        results.append(check)
    counted = collections.Counter(each.status for each in results)
    if run.as_json:
        listed = [{"status": each.status, "text": each.text, "fix": each.fix or None} for each in results]
        print(json.dumps({"checks": listed}))
    else:
        print(", ".join(f"{counted[status]} {status.value}" for status in CheckStatus if counted[status]))
    return 1 if counted[CheckStatus.MISSING] else 0


def checks(job: AnyJob, run: Run) -> Iterator[Check]:
    """All checks of a job.

    Raises:
      BigtableError: Bigtable does not answer, or there are no credentials.
    """
    needs, tables = job.needs(), job.tables
    bigtable = BigtableChecks(job.target)
    table_checks = list(bigtable.tables(tables, run.create_command))
    yield from table_checks
    uids = needs.layout.uids if needs.layout else None
    yield bigtable.profile(transactions=uids is not None or needs.packing is Packing.APPEND)
    if not any(check.status is CheckStatus.MISSING for check in table_checks):
        yield from bigtable.permissions(tables)
        if uids is not None:
            yield from bigtable.uids(uids, creates_metrics=needs.creates_metrics)
    if needs.source and needs.source.subscription:
        yield from subscription_checks(needs.source.subscription)
    if needs.source and needs.source.topic:
        yield from topic_checks(needs.source.topic)
    for pattern in needs.inputs:
        yield _input(pattern)
    if run.dead_letters_option is not None:
        yield from _dead_letters(run.dead_letters_option)
    if run.runner.is_dataflow:
        yield from _dataflow(needs, run)


def _input(pattern: str) -> Check:
    """Whether there are files to be read."""
    try:
        files = match([pattern])
    except OSError as error:
        return missing(f"input: {error}")
    return ok(f"input {pattern}: {len(files):,} file{'s' if len(files) > 1 else ''}")


def _dead_letters(place: str) -> Iterator[Check]:
    """Whether dead letters can be written."""
    if TOPIC.fullmatch(place):
        yield from topic_checks(place)
    elif "://" in place:
        yield unchecked(f"dead letters {place}-*: written when the first record is rejected")
    else:
        try:
            check_writable(place)
            yield ok(f"dead letters {place}-*")
        except OSError as error:
            yield missing(f"dead letters {place}-*: cannot write there: {error.strerror}", "--dead-letters")


def _dataflow(needs: Needs, run: Run) -> Iterator[Check]:
    """Whether the options that Dataflow requires are given, and its workers can reach what they need."""
    options = run.runner.options
    cloud, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    if not cloud.region:
        yield missing("Dataflow: no region", "--region europe-west1")
    if not str(cloud.temp_location or "").startswith("gs://"):
        yield missing("Dataflow: no bucket for its files", "--temp_location gs://BUCKET/tmp")
    if setup.setup_file and not os.path.isfile(setup.setup_file):
        yield missing(f"Dataflow: no file {setup.setup_file}: {HOW_TO_STAGE}", "--sdk_container_image IMAGE")
    elif not (setup.setup_file or setup.extra_packages or options.view_as(WorkerOptions).sdk_container_image):
        yield missing(f"Dataflow: workers without timebeam: {HOW_TO_STAGE}", "--sdk_container_image IMAGE")
    for why in unstaged_packages(run.runner.flags, run.packages):
        yield missing(f"Dataflow: {why}", "--extra_package FILE")
    if os.environ.get(EMULATOR_VARIABLE):
        yield missing(f"Dataflow: {EMULATOR_ON_DATAFLOW}", f"unset {EMULATOR_VARIABLE}")
    for place in (*needs.inputs, run.dead_letters_option or ""):
        if place and "://" not in place and not TOPIC.fullmatch(place):
            yield missing(f"Dataflow: workers cannot reach {place}", f"gs://BUCKET/{os.path.basename(place)}")
    yield unchecked("Dataflow: quotas, network and permissions of its service account")


_SECONDS = 10.0
_DELETED_TOPIC = "_deleted-topic_"


def subscription_checks(name: str) -> Iterator[Check]:
    """Whether a subscription exists, can be pulled from, and by us.

    Args:
      name: projects/P/subscriptions/S.
    """
    _, project, _, short = name.split("/")
    create = (
        f"gcloud pubsub subscriptions create {short} --project={project} --topic=TOPIC --ack-deadline=60 "
        "--expiration-period=never"
    )
    label = f"subscription {name}"
    try:
        client: Any = subscriber()
        subscription = client.get_subscription(request={"subscription": name}, timeout=_SECONDS, retry=None)
    except (exceptions.GoogleAPICallError, DefaultCredentialsError) as error:
        yield _unanswered(label, error, create)
        return
    if subscription.topic == _DELETED_TOPIC:
        yield missing(f"{label}: its topic was deleted, no message will come", create)
    elif (
        subscription.push_config.push_endpoint
        or subscription.bigquery_config.table
        or subscription.cloud_storage_config.bucket
    ):
        change = f"gcloud pubsub subscriptions update {short} --project={project} --push-endpoint="
        yield missing(f"{label} is a push subscription, and jobs pull", change)
    else:
        yield ok(f"{label}, of topic {subscription.topic}")
    if subscription.dead_letter_policy.dead_letter_topic:
        attempts = subscription.dead_letter_policy.max_delivery_attempts
        yield warning(
            f"{label} forwards messages to its dead-letter topic after {attempts} deliveries: good ones too, "
            "while Bigtable does not answer; the job writes dead letters by itself",
            f"gcloud pubsub subscriptions update {short} --project={project} --clear-dead-letter-policy",
        )
    yield _granted(label, client.test_iam_permissions, name, "pubsub.subscriptions.consume")


def topic_checks(name: str) -> Iterator[Check]:
    """Whether a topic exists, and whether we may publish to it.

    Args:
      name: projects/P/topics/T.
    """
    _, project, _, short = name.split("/")
    label = f"topic {name}"
    try:
        client: Any = publisher()
        client.get_topic(request={"topic": name}, timeout=_SECONDS, retry=None)
    except (exceptions.GoogleAPICallError, DefaultCredentialsError) as error:
        yield _unanswered(label, error, f"gcloud pubsub topics create {short} --project={project}")
        return
    yield ok(label)
    yield _granted(label, client.test_iam_permissions, name, "pubsub.topics.publish")


def _granted(label: str, ask: Callable[..., Any], name: str, permission: str) -> Check:
    """Whether we have a permission."""
    _, project, kind, short = name.split("/")
    role = "subscriber" if kind == "subscriptions" else "publisher"
    request = {"resource": name, "permissions": [permission]}
    try:
        answer = ask(request=request, timeout=_SECONDS, retry=None)
    except exceptions.GoogleAPICallError as error:
        return unchecked(f"permission on {label}: {unanswered(error)}")
    if permission not in answer.permissions:
        return missing(
            f"{label}: no permission {permission}",
            f"gcloud pubsub {kind} add-iam-policy-binding {short} --project={project} "
            f"--member=serviceAccount:ACCOUNT --role=roles/pubsub.{role}",
        )
    return ok(f"permission on {label}")


def _unanswered(label: str, error: Exception, create: str) -> Check:
    """The check of what could not be looked at."""
    if isinstance(error, DefaultCredentialsError):
        return missing(f"{label}: no Google Cloud credentials", "gcloud auth application-default login")
    assert isinstance(error, exceptions.GoogleAPICallError)
    if isinstance(error, exceptions.NotFound):
        return missing(f"{label} does not exist", create)
    if isinstance(error, UNASKABLE):
        return unchecked(f"{label}: {unanswered(error)}")
    emulator = os.environ.get(PUBSUB_VARIABLE)
    where = f" ({PUBSUB_VARIABLE}={emulator})" if emulator else ""
    return missing(f"{label}: Pub/Sub does not answer{where}")
