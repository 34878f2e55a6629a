"""A Pub/Sub of our own for tests: gRPC on localhost, leases, redelivery, and what else a test plans.

It does what the service promises and no more: each message at least once, in any order. Tests decide how
often and in which order, what is published when, and see what was acknowledged.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from google.pubsub_v1 import types

EMULATOR_VARIABLE = "PUBSUB_EMULATOR_HOST"
SUBSCRIPTION = "projects/local/subscriptions/points"
TOPIC = "projects/local/topics/points"


class Published(NamedTuple):
    """One message; publish time in ms."""

    data: bytes
    publish_ms: int
    attributes: Mapping[str, str] = {}


def raw(message_type: Any) -> Any:
    """The protobuf class below one of google.pubsub_v1's."""
    return type(message_type.pb(message_type()))


_PULL_RESPONSE, _RECEIVED = raw(types.PullResponse), raw(types.ReceivedMessage)


class PubSubServer:
    """One subscription with messages that are there from the start, or come by `Publish`."""

    def __init__(
        self,
        messages: Sequence[Published] = (),
        *,
        deliveries: int = 1,
        seed: int = 1,
        lease_seconds: int = 10,
        batch: int = 1000,
        topics: Sequence[str] | None = None,
        delivers: bool = False,
    ) -> None:
        """
        Args:
          deliveries: each message is delivered once to so many times, whatever is acknowledged.
          seed: of how often, and in which order.
          batch: messages of one pull.
          topics: that can be published to; any without it.
          delivers: whether the subscription has what comes by `Publish`.
        """
        self._lock = threading.Lock()
        rng = random.Random(seed)
        self._messages = list(messages)
        self._waiting = [number for number in range(len(messages)) for _ in range(rng.randint(1, deliveries))]
        if deliveries > 1:
            rng.shuffle(self._waiting)
        self._leased: dict[str, tuple[int, float]] = {}
        self._lease_seconds, self._batch = lease_seconds, batch
        self._ids = 0
        self._topics, self._delivers = topics, delivers
        self.acknowledged: set[int] = set()
        """Numbers of the messages acknowledged at least once."""
        self.published: list[Published] = []
        """What came by `Publish`, of any topic."""
        self.fault: grpc.StatusCode | None = None
        """The answer to `Publish`, while it is not None."""
        self.publish_seconds = 0.0
        """How long `Publish` takes."""
        unlimited = [("grpc.max_receive_message_length", -1)]
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=unlimited)
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "google.pubsub.v1.Subscriber",
                    {
                        "Pull": _handler(types.PullRequest, self._pull),
                        "Acknowledge": _handler(types.AcknowledgeRequest, self._acknowledge),
                        "ModifyAckDeadline": _handler(types.ModifyAckDeadlineRequest, self._modify),
                        "GetSubscription": _handler(types.GetSubscriptionRequest, self._get),
                        "CreateSubscription": _handler(types.Subscription, self._create),
                        "DeleteSubscription": _handler(types.DeleteSubscriptionRequest, self._delete),
                    },
                ),
                grpc.method_handlers_generic_handler(
                    "google.pubsub.v1.Publisher", {"Publish": _handler(types.PublishRequest, self._publish)}
                ),
            ]
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.subscriptions = {SUBSCRIPTION}

    @contextlib.contextmanager
    def running(self) -> Iterator[PubSubServer]:
        """Serves, with the emulator's variable set to it."""
        before = os.environ.get(EMULATOR_VARIABLE)
        os.environ[EMULATOR_VARIABLE] = self.host
        self._server.start()
        try:
            yield self
        finally:
            self._server.stop(0).wait()
            if before is None:
                del os.environ[EMULATOR_VARIABLE]
            else:
                os.environ[EMULATOR_VARIABLE] = before

    @property
    def host(self) -> str:
        """What the emulator's variable must say."""
        return f"127.0.0.1:{self.port}"

    @property
    def left(self) -> int:
        """Messages that were never acknowledged."""
        with self._lock:
            return len(self._messages) - len(self.acknowledged)

    @property
    def waiting(self) -> int:
        """Deliveries that are not under way."""
        with self._lock:
            return len(self._waiting)

    @property
    def held(self) -> int:
        """Deliveries under a lease that has not ended."""
        with self._lock:
            return sum(expires >= time.monotonic() for _, expires in self._leased.values())

    def end_leases(self) -> None:
        """Deliveries that nobody works on any more come again now, not when their leases end."""
        with self._lock:
            self._waiting += [number for number, _ in self._leased.values()]
            self._leased.clear()

    def add(self, messages: Sequence[Published]) -> None:
        """Publishes messages to the subscription."""
        with self._lock:
            first = len(self._messages)
            self._messages += messages
            self._waiting += range(first, len(self._messages))

    def _pull(self, request: Any, context: grpc.ServicerContext) -> Any:
        until = time.monotonic() + min(0.4, (context.time_remaining() or 1.0) / 2)
        while True:
            with self._lock:
                now = time.monotonic()
                for ack_id, (number, expires) in list(self._leased.items()):
                    if expires < now:
                        del self._leased[ack_id]
                        self._waiting.append(number)
                taken = self._waiting[: min(request.max_messages, self._batch)]
                if taken or now > until or not context.is_active():
                    del self._waiting[: len(taken)]
                    return _PULL_RESPONSE(received_messages=[self._received(number) for number in taken])
            time.sleep(0.01)

    def _received(self, number: int) -> Any:
        """A delivery under a new acknowledge id."""
        self._ids += 1
        ack_id = f"ack-{self._ids}"
        self._leased[ack_id] = (number, time.monotonic() + self._lease_seconds)
        message = self._messages[number]
        received = _RECEIVED(ack_id=ack_id)
        received.message.data = message.data
        received.message.message_id = str(number)
        received.message.attributes.update(message.attributes)
        received.message.publish_time.seconds = message.publish_ms // 1000
        received.message.publish_time.nanos = message.publish_ms % 1000 * 1_000_000
        return received

    def _acknowledge(self, request: Any, _: grpc.ServicerContext) -> Any:
        with self._lock:
            for ack_id in request.ack_ids:
                number, _ = self._leased.pop(ack_id, (-1, 0.0))
                if number >= 0:
                    self.acknowledged.add(number)
        return None

    def _modify(self, request: Any, _: grpc.ServicerContext) -> Any:
        with self._lock:
            for ack_id in request.ack_ids:
                if ack_id in self._leased:
                    number, _ = self._leased[ack_id]
                    if request.ack_deadline_seconds == 0:  # given back
                        del self._leased[ack_id]
                        self._waiting.append(number)
                        continue
                    self._leased[ack_id] = (number, time.monotonic() + request.ack_deadline_seconds)
        return None

    def _get(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.subscription not in self.subscriptions:
            context.abort(grpc.StatusCode.NOT_FOUND, "Subscription does not exist")
        return self._config(request.subscription)

    def _create(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.topic != TOPIC:
            context.abort(grpc.StatusCode.NOT_FOUND, "Topic not found")
        self.subscriptions.add(request.name)
        return self._config(request.name)

    def _delete(self, request: Any, _: grpc.ServicerContext) -> Any:
        self.subscriptions.discard(request.subscription)
        return None

    def _config(self, name: str) -> Any:
        config = raw(types.Subscription)
        return config(name=name, topic=TOPIC, ack_deadline_seconds=self._lease_seconds)

    def _publish(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self._topics is not None and request.topic not in self._topics:
            context.abort(grpc.StatusCode.NOT_FOUND, "Topic not found")
        if self.fault is not None:
            context.abort(self.fault, "planned by a test")
        time.sleep(self.publish_seconds)
        now_ms = int(time.time() * 1000)
        messages = [Published(message.data, now_ms, dict(message.attributes)) for message in request.messages]
        with self._lock:
            self.published += messages
        if self._delivers:
            self.add(messages)
        return raw(types.PublishResponse)(message_ids=[str(i) for i, _ in enumerate(request.messages)])


def _handler(request_type: Any, answer: Any) -> grpc.RpcMethodHandler:
    """Answers None as the empty message."""

    def serialize(response: Any) -> bytes:
        return b"" if response is None else response.SerializeToString()

    return grpc.unary_unary_rpc_method_handler(answer, raw(request_type).FromString, serialize)
