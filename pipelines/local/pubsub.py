"""Clients of Pub/Sub, its emulator as a child process, and subscriptions for the time of one run."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.protobuf.duration_pb2 import Duration
from google.pubsub_v1 import PublisherAsyncClient, PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import (
    PublisherGrpcAsyncIOTransport,
    PublisherGrpcTransport,
)
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import ExpirationPolicy, PublishRequest, PubsubMessage
from google.pubsub_v1.types import Subscription as SubscriptionConfig

from timebeam.pipelines.local.emulator import EmulatorError, child, sdk_roots
from timebeam.pipelines.options.place import emulator_address

PUBSUB_VARIABLE = "PUBSUB_EMULATOR_HOST"

LEASE_SECONDS = 30
"""How long a message that was pulled is not delivered again, unless its lease is renewed."""

_NO_CREDENTIALS = (
    "no Google Cloud credentials: run `gcloud auth application-default login`, or set "
    f"{PUBSUB_VARIABLE} to use a local emulator"
)

_LOGGER = logging.getLogger(__name__)


class SubscriptionError(RuntimeError):
    """The subscription cannot be used: one line that says what to do."""


def _emulator() -> str | None:
    """HOST:PORT of the emulator, if the variable names one; raises UsageError if it is no address."""
    return emulator_address(PUBSUB_VARIABLE, "set it to localhost:PORT of one that is running")


def subscriber() -> SubscriberClient:
    """A client of the service, or of the emulator, there without gRPC's limit of 4 MiB a response.

    google.cloud.pubsub_v1's own keeps that limit on the emulator: 100 messages of 110 KB fail forever.

    Raises:
      SubscriptionError: there are no credentials.
    """
    emulator = _emulator()
    if not emulator:
        try:
            return SubscriberClient()
        except DefaultCredentialsError as error:
            raise SubscriptionError(_NO_CREDENTIALS) from error
    channel = grpc.insecure_channel(emulator, options=[("grpc.max_receive_message_length", -1)])
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))


def publisher() -> PublisherClient:
    """A client of the service or of the emulator."""
    emulator = _emulator()
    if not emulator:
        return PublisherClient()
    return PublisherClient(transport=PublisherGrpcTransport(channel=grpc.insecure_channel(emulator)))


def async_publisher() -> PublisherAsyncClient:
    """`publisher` for the running event loop."""
    emulator = _emulator()
    if not emulator:
        return PublisherAsyncClient()
    channel = grpc.aio.insecure_channel(emulator)
    return PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))


def publish_request(topic: str, messages: Iterable[tuple[bytes, Mapping[str, str]]]) -> Any:
    """The request to publish (data, attributes): plain protobuf, which is many times faster to make."""
    request, message = PublishRequest.pb(), PubsubMessage.pb()
    return request(
        topic=topic, messages=[message(data=data, attributes=attributes) for data, attributes in messages]
    )


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


def check_topic(topic: str) -> None:
    """Raises SubscriptionError if a topic does not exist; what cannot be asked shows when it is used.

    The role of a publisher may not ask for a topic.
    """
    try:
        publisher().get_topic(topic=topic, timeout=10, retry=None)
    except exceptions.NotFound as error:
        raise SubscriptionError(f"{topic} does not exist: create it, or correct its name") from error
    except DefaultCredentialsError as error:
        raise SubscriptionError(_NO_CREDENTIALS) from error
    except exceptions.GoogleAPICallError as error:
        _LOGGER.warning("topic %s was not checked: %s", topic, type(error).__name__)


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
        emulator = os.environ.get(PUBSUB_VARIABLE)
        where = f" ({PUBSUB_VARIABLE}={emulator})" if emulator else ""
        raise SubscriptionError(f"Pub/Sub does not answer{where}: {error}") from error


START_SECONDS = 60.0

_NONE = f"""\
No Pub/Sub emulator was found. Any one of these helps:
  - gcloud components install pubsub-emulator, and java 11 or newer on PATH
  - set {PUBSUB_VARIABLE}=localhost:PORT to an emulator that is already running"""


def find() -> list[str] | None:
    """The command that runs the emulator, without its port; None if there is none."""
    java = shutil.which("java")
    for root in sdk_roots():
        jars = sorted(root.glob("platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"))
        if java and jars:
            return [os.path.realpath(java), "-jar", str(jars[-1]), "--host=127.0.0.1"]
    return None


@contextlib.contextmanager
def pubsub_emulator() -> Iterator[str]:
    """An emulator for the time of the block: \"host:port\". One that the variable names is used as it is.

    The variable is set as long.

    Raises:
      EmulatorError: there is none, or it does not answer.
    """
    running = os.environ.get(PUBSUB_VARIABLE)
    if running:
        yield running
        return
    command = find()
    if command is None:
        raise EmulatorError(_NONE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log, child([*command, f"--port={port}"], log) as process:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise EmulatorError(f"the Pub/Sub emulator did not start:\n{log.read().decode()[-2000:]}")
            time.sleep(0.05)
        os.environ[PUBSUB_VARIABLE] = f"127.0.0.1:{port}"
        try:
            yield os.environ[PUBSUB_VARIABLE]
        finally:
            del os.environ[PUBSUB_VARIABLE]


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return bool(connection.recv(1))
    return False
