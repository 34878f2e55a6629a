"""Publishes messages to Pub/Sub from an event loop, many a call; a message is confirmed, or it failed.

google.cloud.pubsub_v1's own publisher works with threads and futures of its own; here the event loop waits.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import grpc

from timebeam.pipelines.local.pubsub import async_publisher, publish_request
from timebeam.pipelines.serve.route_requests import UnavailableError

CALLS = 4
"""Calls under way at once."""

CALL_BYTES = 9_700_000
CALL_MESSAGES = 1_000
"""Pub/Sub takes 10 MB and 1,000 messages a call."""

CALL_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0

_LASTING = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""Errors that another try does not repair."""

_LOG = logging.getLogger("timebeam.serve")


class PublishError(UnavailableError):
    """A message was not confirmed in time; it may be in Pub/Sub all the same."""


@dataclasses.dataclass(slots=True, eq=False)
class _Pending:
    data: bytes
    attributes: Mapping[str, str]
    future: asyncio.Future[None]


class Publisher:
    """Publishes to one topic; belongs to one event loop.

    Attributes:
      failure: the error of the last call; empty if it succeeded.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._client: Any = None
        self._waiting: collections.deque[_Pending] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure = ""

    async def publish(self, data: bytes, attributes: Mapping[str, str], seconds: float | None) -> None:
        """Returns when Pub/Sub has confirmed a message.

        Args:
          seconds: how long to try; None for as long as it takes.

        Raises:
          PublishError: it was not confirmed in time.
        """
        pending = _Pending(data, attributes, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        if len(self._tasks) < CALLS:
            task = asyncio.create_task(self._publish_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(seconds):
                await pending.future
        except TimeoutError as error:
            why = self.failure or "no answer"
            raise PublishError(f"Pub/Sub did not confirm within {seconds:g} seconds: {why}") from error

    async def _publish_waiting(self) -> None:
        """Publishes until no message waits."""
        while self._waiting:
            batch, pause = self._next(), FIRST_PAUSE_SECONDS
            while batch and not await self._call(batch):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                batch = [pending for pending in batch if not pending.future.done()]

    def _next(self) -> list[_Pending]:
        """The messages of a call; those that nobody waits for any more are dropped."""
        batch: list[_Pending] = []
        size = 0
        while self._waiting and len(batch) < CALL_MESSAGES:
            pending = self._waiting[0]
            size += len(pending.data) + sum(
                len(key) + len(value) for key, value in pending.attributes.items()
            )
            if batch and size > CALL_BYTES:
                break
            self._waiting.popleft()
            if not pending.future.done():
                batch.append(pending)
        return batch

    async def _call(self, batch: list[_Pending]) -> bool:
        """Whether a call is over: its messages are confirmed, or cannot be published."""
        try:
            if self._client is None:
                self._client = async_publisher()
            messages = [(pending.data, pending.attributes) for pending in batch]
            request = publish_request(self._topic, messages)
            await self._client.transport.publish(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            code = error.code()
            if not self.failure:
                _LOG.error("cannot publish to %s: %s: %s", self._topic, code.name, error.details())
            self.failure = code.name
            if code not in _LASTING:
                return False
            self._end(batch, PublishError(f"cannot publish to {self._topic}: {code.name}"))
            return True
        except Exception as error:  # no credentials, or no room for a channel: whoever waits is told
            self.failure = type(error).__name__
            _LOG.exception("cannot publish to %s", self._topic)
            self._end(batch, PublishError(f"cannot publish to {self._topic}: {self.failure}"))
            return True
        if self.failure:
            _LOG.warning("publishes to %s again", self._topic)
        self.failure = ""
        self._end(batch, None)
        return True

    @staticmethod
    def _end(batch: list[_Pending], error: PublishError | None) -> None:
        for pending in batch:
            if pending.future.done():
                continue
            if error is None:
                pending.future.set_result(None)
            else:
                pending.future.set_exception(error)

    async def close(self) -> None:
        """Closes the connection; messages that are not confirmed fail by their time."""
        if self._client is not None:
            await self._client.transport.close()
