"""A subscription of dead letters, which joins the parts of a payload once all of them have come."""

from __future__ import annotations

import dataclasses
import hashlib
import time

from timebeam.pipelines.local.subscription import Portion, Subscription
from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Message
from timebeam.transforms.dead_letters.letter import from_json, joined, of_one_payload, to_json

_REMEMBERED = 100_000
"""Parts that have been joined, and are known when they come again."""


@dataclasses.dataclass(slots=True)
class _Payload:
    """The parts of a payload that have come, by number, and the portions that hold each."""

    by_number: dict[int, Rejected] = dataclasses.field(default_factory=dict)
    portions: list[Portion] = dataclasses.field(default_factory=list)


class LetterSubscription(Subscription):
    """Parts wait for the others of their payload, in whatever batch these come, and are not acknowledged.

    If more than half of what may be held waits, the parts that have waited longest are taken as they are, and
    so are all when nothing comes any more: the graph rejects them, so they stay dead letters. When it stops
    before, Pub/Sub delivers them again. A part that comes again after it was joined is only acknowledged.
    """

    def __init__(self, name: str, max_messages: int, max_bytes: int) -> None:
        super().__init__(name, max_messages, max_bytes)
        self._payloads: dict[str, _Payload] = {}
        self._joined: LruCache[bytes, bool] = LruCache(_REMEMBERED)
        self._is_idle = False

    def take(self, messages: int, size: int, seconds: float) -> list[Portion]:
        while portions := super().take(messages, size, seconds):
            ready = [ready_portion for portion in portions for ready_portion in self._without_parts(portion)]
            while self._payloads and self._waits_too_much():
                ready += self._ready_portions(next(iter(self._payloads)))
            if ready:
                return ready
        if not self._is_idle:
            return []
        return [portion for identity in [*self._payloads] for portion in self._ready_portions(identity)]

    def _idle(self, called: float) -> bool:
        self._is_idle = super()._idle(called)
        return self._is_idle

    def _waits_too_much(self) -> bool:
        size = sum(portion.size for portion in self._waiting)
        return size > self._max_bytes // 2 or len(self._waiting) > self._max_messages // 2

    def _without_parts(self, portion: Portion) -> list[Portion]:
        """A portion without the parts in it, which wait, and the letters whose last part is in it."""
        rejections: dict[int, Rejected] = {}
        for number, message in enumerate(portion.messages):
            if (rejection := _part_of(message)) is not None:
                rejections[number] = rejection
        if not rejections:
            return [portion]
        rest = [number for number in range(len(portion.messages)) if number not in rejections]
        divided = self._divided(portion, [*([number] for number in rejections), *([rest] if rest else [])])
        ready = divided[len(rejections) :]
        for rejected, piece in zip(rejections.values(), divided, strict=False):
            assert rejected.part is not None
            if self._joined.get(_digest(piece.messages[0])):
                acknowledged_only = dataclasses.replace(piece, messages=[])
                self._replace([piece], [acknowledged_only])
                ready.append(acknowledged_only)
                continue
            identity = of_one_payload(rejected)
            payload = self._payloads.setdefault(identity, _Payload())
            payload.by_number.setdefault(rejected.part.number, rejected)
            payload.portions.append(piece)
            with self._changed:
                self._waiting[piece] = None
            if len(payload.by_number) == rejected.part.total:
                ready += self._ready_portions(identity)
        return ready

    def _ready_portions(self, identity: str) -> list[Portion]:
        """The portions of a payload, which wait no more; as one if they are all of its parts."""
        payload = self._payloads.pop(identity)
        with self._changed:
            for portion in payload.portions:
                del self._waiting[portion]
        letter = _joined(payload)
        if letter is None:
            return payload.portions
        for portion in payload.portions:
            self._joined[_digest(portion.messages[0])] = True
        return [self._merged(payload.portions, letter)]


def _digest(message: Message) -> bytes:
    return hashlib.sha256(message.text).digest()


def _part_of(message: Message) -> Rejected | None:
    """The rejection in a message, if it is a letter with a part of a payload."""
    if b'"part"' not in message.text:
        return None
    try:
        rejected = from_json(message.text).rejected
    except ValueError:
        return None
    return None if rejected.part is None else rejected


def _joined(payload: _Payload) -> Message | None:
    """The letter of a whole payload; None if the parts are not all, or more than one says to be the same."""
    messages = [message for portion in payload.portions for message in portion.messages]
    if len({message.text for message in messages}) > len(payload.by_number):
        return None
    try:
        rejected = joined(payload.by_number.values())
    except ValueError:
        return None
    latest = max(messages, key=lambda message: message.arrival_ms)
    return dataclasses.replace(latest, text=to_json(rejected, int(time.time() * 1000)).encode())
