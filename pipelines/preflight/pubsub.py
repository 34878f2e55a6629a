"""What can be asked of Pub/Sub before a job runs: a subscription, a topic, and whether we may use them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError

from timebeam.pipelines.local.pubsub import EMULATOR_VARIABLE, publisher, subscriber
from timebeam.pipelines.preflight.bigtable import UNASKABLE, Check, Status, unanswered

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
        yield Check(Status.MISSING, f"{label}: its topic was deleted, no message will come", create)
    elif (
        subscription.push_config.push_endpoint
        or subscription.bigquery_config.table
        or subscription.cloud_storage_config.bucket
    ):
        change = f"gcloud pubsub subscriptions update {short} --project={project} --push-endpoint="
        yield Check(Status.MISSING, f"{label} is a push subscription, and jobs pull", change)
    else:
        yield Check(Status.OK, f"{label}, of topic {subscription.topic}")
    if subscription.dead_letter_policy.dead_letter_topic:
        attempts = subscription.dead_letter_policy.max_delivery_attempts
        yield Check(
            Status.WARNING,
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
    yield Check(Status.OK, label)
    yield _granted(label, client.test_iam_permissions, name, "pubsub.topics.publish")


def _granted(label: str, ask: Callable[..., Any], name: str, permission: str) -> Check:
    """Whether we have a permission."""
    _, project, kind, short = name.split("/")
    role = "subscriber" if kind == "subscriptions" else "publisher"
    request = {"resource": name, "permissions": [permission]}
    try:
        answer = ask(request=request, timeout=_SECONDS, retry=None)
    except exceptions.GoogleAPICallError as error:
        return Check(Status.UNCHECKED, f"permission on {label}: {unanswered(error)}")
    if permission not in answer.permissions:
        return Check(
            Status.MISSING,
            f"{label}: no permission {permission}",
            f"gcloud pubsub {kind} add-iam-policy-binding {short} --project={project} "
            f"--member=serviceAccount:ACCOUNT --role=roles/pubsub.{role}",
        )
    return Check(Status.OK, f"permission on {label}")


def _unanswered(label: str, error: Exception, create: str) -> Check:
    """The check of what could not be looked at."""
    if isinstance(error, DefaultCredentialsError):
        return Check(
            Status.MISSING, f"{label}: no Google Cloud credentials", "gcloud auth application-default login"
        )
    assert isinstance(error, exceptions.GoogleAPICallError)
    if isinstance(error, exceptions.NotFound):
        return Check(Status.MISSING, f"{label} does not exist", create)
    if isinstance(error, UNASKABLE):
        return Check(Status.UNCHECKED, f"{label}: {unanswered(error)}")
    emulator = os.environ.get(EMULATOR_VARIABLE)
    where = f" ({EMULATOR_VARIABLE}={emulator})" if emulator else ""
    return Check(Status.MISSING, f"{label}: Pub/Sub does not answer{where}")
