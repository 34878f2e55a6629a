"""`--preflight`: checks what a job needs before it runs, and prints commands that fix what is missing.

Nothing is created, written or deleted. What cannot be checked is reported as unchecked, not as a failure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError

from timebeam.pipelines.jobs.bigtable_checks import UNASKABLE, BigtableChecks, Check, CheckStatus, unanswered
from timebeam.pipelines.jobs.job import AnyJob, Needs, Run
from timebeam.pipelines.jobs.runners import EMULATOR_ON_DATAFLOW, HOW_TO_STAGE, is_dataflow
from timebeam.pipelines.local.pubsub import PUBSUB_VARIABLE, publisher, subscriber
from timebeam.schema.core.point_fragments import Packing
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE
from timebeam.transforms.dead_letters.letter_files import TOPIC, check_writable
from timebeam.transforms.input.files import match


def preflight(job: AnyJob, run: Run) -> int:
    """Prints a line for each check; exit code 1 if something is missing.

    Raises:
      BigtableError: Bigtable does not answer, or there are no credentials.
    """
    if run.as_json:
        results = list(checks(job, run))
        listed = [
            {"status": each.status.value, "text": each.text, "fix": each.fix or None} for each in results
        ]
        print(json.dumps({"checks": listed}))
        return 1 if any(each.status is CheckStatus.MISSING for each in results) else 0
    statuses: list[CheckStatus] = []
    printed: set[str] = set()
    for check in checks(job, run):
        statuses.append(check.status)
        print(f"{check.status.value:9}  {check.text}")
        if check.fix and check.fix not in printed:
            print(f"{'':9}  -> {check.fix}")
            printed.add(check.fix)
    counted = {status: statuses.count(status) for status in CheckStatus}
    print(", ".join(f"{number} {status.value}" for status, number in counted.items() if number))
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
    if is_dataflow(run.flags):
        yield from _dataflow(needs, run)


def _input(pattern: str) -> Check:
    """Whether there are files to be read."""
    try:
        files = match([pattern])
    except OSError as error:
        return Check(CheckStatus.MISSING, f"input: {error}")
    return Check(CheckStatus.OK, f"input {pattern}: {len(files):,} file{'s' if len(files) > 1 else ''}")


def _dead_letters(place: str) -> Iterator[Check]:
    """Whether dead letters can be written."""
    if TOPIC.fullmatch(place):
        yield from topic_checks(place)
        return
    if "://" in place:
        yield Check(
            CheckStatus.UNCHECKED, f"dead letters {place}-*: written when the first record is refused"
        )
        return
    try:
        check_writable(place)
    except OSError as error:
        yield Check(
            CheckStatus.MISSING,
            f"dead letters {place}-*: cannot write there: {error.strerror}",
            "--dead_letters",
        )
    else:
        yield Check(CheckStatus.OK, f"dead letters {place}-*")


def _dataflow(needs: Needs, run: Run) -> Iterator[Check]:
    """Whether the options that Dataflow requires are given, and its workers can reach what they need."""
    options = PipelineOptions([*run.flags])
    cloud, workers, setup = (
        options.view_as(options_class) for options_class in (GoogleCloudOptions, WorkerOptions, SetupOptions)
    )
    if not cloud.region:
        yield Check(CheckStatus.MISSING, "Dataflow: no region", "--region europe-west1")
    if not str(cloud.temp_location or "").startswith("gs://"):
        yield Check(
            CheckStatus.MISSING, "Dataflow: no bucket for its files", "--temp_location gs://BUCKET/tmp"
        )
    if setup.setup_file and not os.path.isfile(setup.setup_file):
        yield Check(
            CheckStatus.MISSING,
            f"Dataflow: no file {setup.setup_file}: {HOW_TO_STAGE}",
            "--sdk_container_image IMAGE",
        )
    elif not (setup.setup_file or setup.extra_packages or workers.sdk_container_image):
        yield Check(
            CheckStatus.MISSING,
            f"Dataflow: workers without timebeam: {HOW_TO_STAGE}",
            "--sdk_container_image IMAGE",
        )
    if os.environ.get(EMULATOR_VARIABLE):
        yield Check(CheckStatus.MISSING, f"Dataflow: {EMULATOR_ON_DATAFLOW}", f"unset {EMULATOR_VARIABLE}")
    local = [
        place for place in (*needs.inputs, run.dead_letters_option or "") if place and "://" not in place
    ]
    for place in local:
        if not TOPIC.fullmatch(place):
            yield Check(
                CheckStatus.MISSING,
                f"Dataflow: workers cannot reach {place}",
                f"gs://BUCKET/{os.path.basename(place)}",
            )
    yield Check(CheckStatus.UNCHECKED, "Dataflow: quotas, network and permissions of its service account")


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
        yield Check(CheckStatus.MISSING, f"{label}: its topic was deleted, no message will come", create)
    elif (
        subscription.push_config.push_endpoint
        or subscription.bigquery_config.table
        or subscription.cloud_storage_config.bucket
    ):
        change = f"gcloud pubsub subscriptions update {short} --project={project} --push-endpoint="
        yield Check(CheckStatus.MISSING, f"{label} is a push subscription, and jobs pull", change)
    else:
        yield Check(CheckStatus.OK, f"{label}, of topic {subscription.topic}")
    if subscription.dead_letter_policy.dead_letter_topic:
        attempts = subscription.dead_letter_policy.max_delivery_attempts
        yield Check(
            CheckStatus.WARNING,
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
    yield Check(CheckStatus.OK, label)
    yield _granted(label, client.test_iam_permissions, name, "pubsub.topics.publish")


def _granted(label: str, ask: Callable[..., Any], name: str, permission: str) -> Check:
    """Whether we have a permission."""
    _, project, kind, short = name.split("/")
    role = "subscriber" if kind == "subscriptions" else "publisher"
    request = {"resource": name, "permissions": [permission]}
    try:
        answer = ask(request=request, timeout=_SECONDS, retry=None)
    except exceptions.GoogleAPICallError as error:
        return Check(CheckStatus.UNCHECKED, f"permission on {label}: {unanswered(error)}")
    if permission not in answer.permissions:
        return Check(
            CheckStatus.MISSING,
            f"{label}: no permission {permission}",
            f"gcloud pubsub {kind} add-iam-policy-binding {short} --project={project} "
            f"--member=serviceAccount:ACCOUNT --role=roles/pubsub.{role}",
        )
    return Check(CheckStatus.OK, f"permission on {label}")


def _unanswered(label: str, error: Exception, create: str) -> Check:
    """The check of what could not be looked at."""
    if isinstance(error, DefaultCredentialsError):
        return Check(
            CheckStatus.MISSING,
            f"{label}: no Google Cloud credentials",
            "gcloud auth application-default login",
        )
    assert isinstance(error, exceptions.GoogleAPICallError)
    if isinstance(error, exceptions.NotFound):
        return Check(CheckStatus.MISSING, f"{label} does not exist", create)
    if isinstance(error, UNASKABLE):
        return Check(CheckStatus.UNCHECKED, f"{label}: {unanswered(error)}")
    emulator = os.environ.get(PUBSUB_VARIABLE)
    where = f" ({PUBSUB_VARIABLE}={emulator})" if emulator else ""
    return Check(CheckStatus.MISSING, f"{label}: Pub/Sub does not answer{where}")
