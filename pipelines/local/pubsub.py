"""Clients of Pub/Sub, or of its emulator, and subscriptions for the time of one run."""

from __future__ import annotations

import logging
import os
import uuid
from typing import Any

import grpc
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.protobuf.duration_pb2 import Duration
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import ExpirationPolicy
from google.pubsub_v1.types import Subscription as SubscriptionConfig

EMULATOR_VARIABLE = "PUBSUB_EMULATOR_HOST"

LEASE_SECONDS = 30
"""How long a message that was pulled is not delivered again, unless its lease is renewed."""

_LOGGER = logging.getLogger(__name__)


class SubscriptionError(RuntimeError):
    """The subscription cannot be used: one line that says what to do."""


def subscriber() -> SubscriberClient:
    """A client of the service, or of the emulator, there without gRPC's limit of 4 MiB a response.

    google.cloud.pubsub_v1's own keeps that limit on the emulator: 100 messages of 110 KB fail forever.

    Raises:
      SubscriptionError: there are no credentials.
    """
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if not emulator:
        try:
            return SubscriberClient()
        except DefaultCredentialsError as error:
            raise SubscriptionError(
                "no Google Cloud credentials: run `gcloud auth application-default login`, or set "
                f"{EMULATOR_VARIABLE} to use a local emulator"
            ) from error
    channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1)])
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))


def publisher() -> PublisherClient:
    """A client of the service or of the emulator."""
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if not emulator:
        return PublisherClient()
    return PublisherClient(transport=PublisherGrpcTransport(channel=grpc.insecure_channel(emulator)))


def subscribe(topic: str) -> str:
    """A new subscription of a topic, for the time of one run; its name.

    If the run is killed before `unsubscribe`, the service removes it after a day.

    Raises:
      SubscriptionError: the topic does not exist, or may not be used.
    """
    project = topic.split("/")[1]
    name = f"projects/{project}/subscriptions/timebeam-{uuid.uuid4().hex}"
    config = SubscriptionConfig(
        name=name,
        topic=topic,
        ack_deadline_seconds=LEASE_SECONDS,
        expiration_policy=ExpirationPolicy(ttl=Duration(seconds=86_400)),
    )
    call(lambda: subscriber().create_subscription(request=config, timeout=20), topic)
    return name


def unsubscribe(name: str) -> None:
    """Removes a subscription; the service removes one that is left behind."""
    try:
        subscriber().delete_subscription(subscription=name, timeout=20)
    except exceptions.GoogleAPICallError as error:
        _LOGGER.warning("subscription %s was not deleted: %s", name, error)


def call(method: Any, name: str) -> Any:
    """What a call gives; what a user can fix becomes a SubscriptionError of one line."""
    try:
        return method()
    except exceptions.NotFound as error:
        raise SubscriptionError(f"{name} does not exist: create it, or correct its name") from error
    except exceptions.PermissionDenied as error:
        raise SubscriptionError(f"no permission on {name}: {error.message}") from error
    except exceptions.InvalidArgument as error:
        raise SubscriptionError(f"{name}: {error.message}") from error
    except (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.RetryError) as error:
        emulator = os.environ.get(EMULATOR_VARIABLE)
        where = f" ({EMULATOR_VARIABLE}={emulator})" if emulator else ""
        raise SubscriptionError(f"Pub/Sub does not answer{where}: {error}") from error
