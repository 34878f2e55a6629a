"""When `--stop-when-idle` ends a local stream: not while anything is on its way that it knows of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.pubsub_v1 import types

from tests.support.processes.streams import line, stream, values
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer, raw
from tests.support.stored import Store
from timebeam.pipelines.local import subscription as subscription_module
from timebeam.pipelines.local.subscription import Subscription

MESSAGES = [Published(line(number), 1000 + number) for number in range(40)]


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


class LateAnswer(PubSubServer):
    """The first pull finds nothing; the answer of the second, with all messages, is long on its way."""

    pulls = 0

    def _pull(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.pulls += 1
        if self.pulls == 1:
            return raw(types.PullResponse)()
        if self.pulls == 2:
            self.add(MESSAGES)
        response = super()._pull(request, context)
        if self.pulls == 2:
            time.sleep(3)
        return response


def test_messages_that_a_pull_brings_while_idleness_passes_are_stored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "_PULL_SECONDS", 30)
    with LateAnswer().running() as server:
        stream(store, tmp_path, "--stop-when-idle=2")
        assert (server.left, server.held) == (0, 0)
    assert sorted(values(store)) == list(range(40))


class FailedAcknowledge(PubSubServer):
    """The first acknowledgement fails: what it named comes again when its lease ends."""

    failed = 0

    def _acknowledge(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not self.failed:
            self.failed += 1
            context.abort(grpc.StatusCode.INTERNAL, "not now")
        return super()._acknowledge(request, context)


def test_messages_whose_acknowledgement_failed_are_waited_for(store: Store, tmp_path: Path) -> None:
    with FailedAcknowledge(MESSAGES, lease_seconds=2).running() as server:
        stream(store, tmp_path)
        assert (server.failed, server.left) == (1, 0)
    assert sorted(values(store)) == list(range(40))


class LostAnswer(PubSubServer):
    """The first pull leases all messages, and fails on its way back."""

    lost = 0

    def _pull(self, request: Any, context: grpc.ServicerContext) -> Any:
        response = super()._pull(request, context)
        if not self.lost:
            self.lost = len(response.received_messages)
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return response


def test_messages_of_a_pull_that_failed_are_waited_for(store: Store, tmp_path: Path) -> None:
    with LostAnswer(MESSAGES, lease_seconds=2).running() as server:
        stream(store, tmp_path)
        assert (server.lost, server.left) == (40, 0)
    assert sorted(values(store)) == list(range(40))


@pytest.fixture
def one_pulled() -> Iterator[tuple[PubSubServer, Subscription]]:
    """A subscription of one message."""
    with PubSubServer(MESSAGES[:1], lease_seconds=2).running() as server:
        subscription = Subscription(SUBSCRIPTION, max_messages=1000, max_bytes=1 << 20)
        yield server, subscription
        subscription.close()


AWAY = exceptions.RetryError("Timeout of 60.0s exceeded", None)
"""What the client raises when it has tried for a minute; it is no `GoogleAPICallError`."""


def test_acknowledging_while_the_service_is_away_raises_nothing(
    one_pulled: tuple[PubSubServer, Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, subscription = one_pulled
    acknowledge, answers = subscription._client.acknowledge, [AWAY]

    def away_once(**arguments: Any) -> None:
        if answers:
            raise answers.pop()
        acknowledge(**arguments)

    monkeypatch.setattr(subscription._client, "acknowledge", away_once)
    subscription.start()
    for left in (1, 0):
        subscription.acknowledge(subscription.take(1, 1, 0.0))
        assert (answers, server.left) == ([], left)


def test_leases_are_renewed_again_when_the_service_is_back(
    one_pulled: tuple[PubSubServer, Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, subscription = one_pulled
    modify, answers = subscription._client.modify_ack_deadline, [AWAY, AWAY]

    def away_twice(**arguments: Any) -> None:
        if answers:
            raise answers.pop()
        modify(**arguments)

    monkeypatch.setattr(subscription._client, "modify_ack_deadline", away_twice)
    subscription.start()
    portion = subscription.take(1, 1, 0.0)[0]
    until = time.monotonic() + 60
    while portion.expires < time.monotonic() + 10:
        assert time.monotonic() < until
        time.sleep(0.05)
