"""A subscription read by this process: messages pulled in portions, acknowledged when they are stored.

Beam's local runners have no suitable source: theirs takes 10 messages per pull and acknowledges before
processing, so a crash loses them. One thread pulls; another extends the leases of unacknowledged messages.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Sequence

from google.api_core import exceptions
from google.pubsub_v1.types import PullResponse

from timebeam.pipelines.local.pubsub import LEASE_SECONDS, call, subscriber
from timebeam.schema.formats import Message
from timebeam.transforms.input.parse import pubsub_message

_LOGGER = logging.getLogger(__name__)

_PULL = 1000
"""Messages asked for at once: the most that the service gives."""
_IDS = 1000
"""Acknowledge ids in one request: the service takes 512 KiB, and an id has up to some 220 bytes."""
_RENEW_SECONDS = 5
_LEFT_SECONDS = 15
_PULL_SECONDS = 3
"""A pull without messages lasts so long, and so may stopping. The emulator does not notice a call that
is cancelled earlier, and would hand it the next 100 messages."""

_PASSING = (
    exceptions.ServiceUnavailable,
    exceptions.InternalServerError,
    exceptions.ResourceExhausted,
    exceptions.Aborted,
    exceptions.Cancelled,
    exceptions.Unknown,
)


@dataclasses.dataclass(slots=True, eq=False)
class Portion:
    """What one pull gave.

    Attributes:
      size: bytes of the payloads.
      pulled: when it came (monotonic, s).
      expires: when its lease ends (monotonic, s), unless renewed.
    """

    messages: list[Message]
    ack_ids: list[str]
    size: int
    pulled: float
    expires: float


class Subscription:
    """`take` portions, `acknowledge` them when what they hold is stored.

    Memory is bounded by what may be pulled and not yet acknowledged.
    """

    def __init__(self, name: str, max_messages: int, max_bytes: int) -> None:
        """Looks the subscription up.

        Raises:
          SubscriptionError: it does not exist, or may not be used.
        """
        self.name = name
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._client = subscriber()
        config = call(lambda: self._client.get_subscription(subscription=name, timeout=20), name)
        self._first_lease = config.ack_deadline_seconds
        self._changed = threading.Condition()
        self._ready: collections.deque[Portion] = collections.deque()
        self._leased: dict[Portion, None] = {}  # pulled, not yet acknowledged
        self._waiting: dict[Portion, None] = {}  # those of them that nobody works on
        self._messages = self._bytes = 0  # of the leased ones
        self._idle_seconds: float | None = None
        self._busy_until = self._expected_until = 0.0  # monotonic, s; see `_idle`
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._pull, self._renew)]

    def start(self, idle_seconds: float | None = None) -> None:
        """Begins to pull; stops by itself after this many seconds without work (`_idle`)."""
        self._idle_seconds, self._busy_until = idle_seconds, time.monotonic()
        for thread in self._threads:
            thread.start()

    def take(self, messages: int, size: int, seconds: float) -> list[Portion]:
        """Portions with about this many messages or bytes; fewer if the first of them came `seconds` ago.

        Empty only after pulling has stopped, and all that was pulled has been taken.

        Raises:
          GoogleAPICallError: pulling failed for good.
        """
        portions: list[Portion] = []
        count = total = 0
        deadline = None
        with self._changed:
            while count < messages and total < size:
                if self._ready:
                    portion = self._ready.popleft()
                    portions.append(portion)
                    count += len(portion.messages)
                    total += portion.size
                    deadline = deadline or portion.pulled + seconds
                elif self._error:
                    raise self._error
                elif self._stopping.is_set() or (portions and self._full()):
                    break  # nothing more will come, or only after these are acknowledged
                elif deadline is None:
                    self._changed.wait(0.2)  # not forever: Ctrl-C must be seen
                elif deadline <= time.monotonic():
                    break
                else:
                    self._changed.wait(min(0.2, deadline - time.monotonic()))
        return portions

    def acknowledge(self, portions: Sequence[Portion]) -> None:
        """Acknowledges messages; if that fails, they are only delivered again."""
        with self._changed:
            self._busy_until = math.inf
        self._release(portions)
        ids = [ack_id for portion in portions for ack_id in portion.ack_ids]
        for first in range(0, len(ids), _IDS):
            try:
                self._client.acknowledge(
                    subscription=self.name, ack_ids=ids[first : first + _IDS], timeout=30
                )
            except exceptions.GoogleAPIError as error:
                _LOGGER.warning("could not acknowledge, so some messages are delivered again: %s", error)
                self._expect(max(portion.expires for portion in portions) + _PULL_SECONDS)
        with self._changed:
            self._busy_until = time.monotonic()

    def stop_pulling(self) -> None:
        """Stops pulling; `take` still returns the pulled messages."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Returns unacknowledged messages, to be delivered again at once."""
        self.stop_pulling()
        # Order matters: a pull still waiting would be handed what is given back, and lose it for a lease.
        if self._threads[0].is_alive():
            self._threads[0].join(_PULL_SECONDS + 1)
        with self._changed:
            portions = list(self._leased)
        self._release(portions)
        try:
            self._modify(portions, 0)
        except exceptions.GoogleAPIError as error:
            _LOGGER.warning(
                "could not return messages, so they are delivered again when their leases end: %s", error
            )

    def _idle(self, called: float) -> bool:
        """Whether there was nothing to do for `idle_seconds`; asked after a pull that found nothing.

        That is: nothing is held but what waits for others, and the last batch was acknowledged that long ago,
        and so long ago ended the leases of all that is known to come again, and the pull was `called` after
        that. Between two pulls none is under way, so nothing can come while this is decided.
        """
        with self._changed:
            since = max(self._busy_until, self._expected_until)
            is_working = len(self._leased) > len(self._waiting)
            if self._idle_seconds is None or is_working or called < since:
                return False
            return time.monotonic() - since >= self._idle_seconds

    def _expect(self, until: float) -> None:
        """Notes that messages come again which are under a lease until then (monotonic, s)."""
        with self._changed:
            self._expected_until = max(self._expected_until, until)

    def _divided(self, portion: Portion, groups: Sequence[Sequence[int]]) -> list[Portion]:
        """A portion for each group of the messages of one, by their numbers."""
        divided = [
            dataclasses.replace(
                portion,
                messages=[portion.messages[number] for number in group],
                ack_ids=[portion.ack_ids[number] for number in group],
                size=sum(len(portion.messages[number].text) for number in group),
            )
            for group in groups
        ]
        self._replace([portion], divided)
        return divided

    def _merged(self, portions: Sequence[Portion], message: Message) -> Portion:
        """One portion in the place of some: of one message, which is acknowledged with all of theirs."""
        merged = Portion(
            [message],
            [ack_id for portion in portions for ack_id in portion.ack_ids],
            len(message.text),
            min(portion.pulled for portion in portions),
            min(portion.expires for portion in portions),
        )
        self._replace(portions, [merged])
        return merged

    def _replace(self, portions: Sequence[Portion], new_portions: Sequence[Portion]) -> None:
        """Holds portions in the place of others, whose leases are theirs."""
        with self._changed:
            self._release(portions)
            for portion in new_portions:
                self._leased[portion] = None
                self._messages += len(portion.messages)
                self._bytes += portion.size

    def _full(self) -> bool:
        return self._messages >= self._max_messages or self._bytes >= self._max_bytes

    def _release(self, portions: Sequence[Portion]) -> None:
        with self._changed:
            for portion in portions:
                if portion in self._leased:
                    del self._leased[portion]
                    self._waiting.pop(portion, None)
                    self._messages -= len(portion.messages)
                    self._bytes -= portion.size
            self._changed.notify_all()

    def _pull(self) -> None:
        """Pulls until stopped or idle; waits while Pub/Sub does not answer."""
        pause, mean = 0.0, 1.0
        while not self._stopping.is_set():
            with self._changed:
                while self._full() and not self._stopping.is_set():
                    self._changed.wait(0.2)
                free = (self._max_bytes - self._bytes) / mean
                room = max(1, int(min(_PULL, self._max_messages - self._messages, free)))
            if self._stopping.is_set():
                return
            called = time.monotonic()
            try:
                response = self._client.pull(
                    subscription=self.name, max_messages=room, timeout=_PULL_SECONDS, retry=None
                )
                pause = 0.0
            except exceptions.DeadlineExceeded:
                response = PullResponse()
            except _PASSING as error:
                # Its answer may have been lost, with messages.
                self._expect(time.monotonic() + self._first_lease)
                pause = min(30.0, max(0.5, pause * 2))
                _LOGGER.warning("pull failed: %s; retrying in %.0f s", error, pause)
                self._stopping.wait(pause)
                continue
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            portion = _portion(response, self.name, called + self._first_lease)
            if not portion.messages:
                if self._idle(called):
                    self.stop_pulling()
                continue
            mean = max(1.0, 0.8 * mean + 0.2 * portion.size / len(portion.messages))
            with self._changed:
                self._ready.append(portion)
                self._leased[portion] = None
                self._messages += len(portion.messages)
                self._bytes += portion.size
                self._changed.notify_all()

    def _renew(self) -> None:
        """Extends every lease that ends soon, until all is acknowledged; goes on after `stop_pulling`."""
        while True:
            time.sleep(min(_RENEW_SECONDS, self._first_lease / 4))
            soon = time.monotonic() + min(_LEFT_SECONDS, self._first_lease / 2)
            with self._changed:
                due = [portion for portion in self._leased if portion.expires < soon]
                if self._stopping.is_set() and not self._leased:
                    return
            if due:
                try:
                    self._modify(due, LEASE_SECONDS)
                    for portion in due:
                        portion.expires = time.monotonic() + LEASE_SECONDS
                except exceptions.GoogleAPIError as error:
                    _LOGGER.warning("leases not renewed: %s", error)

    def _modify(self, portions: Sequence[Portion], seconds: int) -> None:
        """Sets the leases of portions to end in so many seconds."""
        ids = [ack_id for portion in portions for ack_id in portion.ack_ids]
        for first in range(0, len(ids), _IDS):
            self._client.modify_ack_deadline(
                subscription=self.name,
                ack_ids=ids[first : first + _IDS],
                ack_deadline_seconds=seconds,
                timeout=30,
            )


def _portion(response: PullResponse, source: str, expires: float) -> Portion:
    """The messages of a pull; taken from the protobuf below, which costs 4 us a message instead of 25."""
    messages, ids, size = [], [], 0
    for received in PullResponse.pb(response).received_messages:
        raw = received.message
        publish_ms = raw.publish_time.seconds * 1000 + raw.publish_time.nanos // 1_000_000
        messages.append(pubsub_message(raw.data, raw.message_id, publish_ms, dict(raw.attributes), source))
        ids.append(received.ack_id)
        size += len(raw.data)
    return Portion(messages, ids, size, time.monotonic(), expires)
