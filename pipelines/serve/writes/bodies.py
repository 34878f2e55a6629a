"""Parses the bodies of requests in threads, as the stream will: many short ones together.

A parse costs about a millisecond for one point or thousands. Bodies that arrive while others are parsed are
therefore parsed together, and what was read is told apart by the number of each body.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from timebeam.pipelines.serve.writes import FORMATS
from timebeam.schema.messages import Message, Parsed
from timebeam.schema.messages.linewise import LinewiseFormat
from timebeam.schema.points import Envelope, RefusedError, Rejected
from timebeam.transforms.input.messages import FormatKey, Formats
from timebeam.transforms.input.parse import PORTION_BYTES, portions, refused_message

THREADS = 2
"""A long body occupies one; short ones go on in the other."""

BODIES_AT_ONCE = 256

LISTED_REFUSALS = 1_000
"""Refusals of a body that an answer can list."""


@dataclasses.dataclass(slots=True)
class BodyContent:
    """What a body holds.

    Attributes:
      points: that are good.
      refused: points and records that are not.
      rejected: the first `LISTED_REFUSALS` refusals; each may stand for several points.
      skipped: records left out on purpose, by kind.
    """

    points: int = 0
    refused: int = 0
    rejected: list[Rejected] = dataclasses.field(default_factory=list)
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def refuse(self, rejected: Rejected) -> None:
        """Counts a refusal."""
        self.refused += rejected.points
        if len(self.rejected) < LISTED_REFUSALS:
            self.rejected.append(rejected)


def parse_bodies(bodies: Sequence[tuple[bytes, Mapping[str, str]]], formats: Formats) -> list[BodyContent]:
    """The content of each of some bodies, which come with the attributes of their messages.

    The number of a body takes the place of its arrival, by which points and refusals are told apart.
    """
    messages = [
        Message(body, number, envelope=Envelope("", number, attributes))
        for number, (body, attributes) in enumerate(bodies)
    ]
    contents = [BodyContent() for _ in bodies]
    for portion in portions(messages, lambda message: formats[formats.key(message)].framing):
        if isinstance(portion, Rejected):
            contents[portion.arrival_ms].refuse(portion)
            continue
        groups: dict[FormatKey, list[Message]] = {}
        for message in portion:
            try:
                groups.setdefault(formats.key(message), []).append(message)
            except RefusedError as error:
                contents[message.arrival_ms].refuse(refused_message(message, error))
        for key, group in groups.items():
            for parsed, number in _parsed(group, formats, key):
                _count(parsed, number, contents)
    return contents


def _parsed(group: list[Message], formats: Formats, key: FormatKey) -> Iterator[tuple[Parsed, int]]:
    """(content, number of the first of its bodies): of lines together, of other formats one by one."""
    together = [group] if isinstance(formats[key], LinewiseFormat) else [[message] for message in group]
    for messages in together:
        for parsed in formats[key].parse_all(messages):
            yield parsed, messages[0].arrival_ms


def _count(parsed: Parsed, number: int, contents: list[BodyContent]) -> None:
    """Adds what was read to the contents of the bodies."""
    counts = np.bincount(parsed.batch.arrivals_ms, minlength=1)
    for body in np.flatnonzero(counts).tolist():
        contents[body].points += int(counts[body])
    for rejected in parsed.rejected:
        contents[rejected.arrival_ms].refuse(rejected)
    contents[number].skipped.update(parsed.skipped)


class BodyParser:
    """Parses bodies in threads; belongs to one event loop."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: of the formats, as `message_format` takes them."""
        self._options = options
        self._threads = ThreadPoolExecutor(THREADS, "timebeam-parse")
        self._of_thread = threading.local()
        self._waiting: collections.deque[tuple[bytes, Mapping[str, str], asyncio.Future[BodyContent]]] = (
            collections.deque()
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def parse(self, body: bytes, attributes: Mapping[str, str]) -> BodyContent:
        """What a body holds."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((body, attributes, future))
        if len(self._tasks) < THREADS:
            task = asyncio.create_task(self._parse_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        content: BodyContent = await future
        return content

    async def _parse_waiting(self) -> None:
        """Parses until no body waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = list(self._next())
            bodies = [(body, attributes) for body, attributes, _ in batch]
            try:
                contents = await loop.run_in_executor(self._threads, self._parse, bodies)
            except Exception as error:
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, _, future), content in zip(batch, contents, strict=True):
                if not future.done():
                    future.set_result(content)

    def _next(self) -> Iterator[tuple[bytes, Mapping[str, str], asyncio.Future[BodyContent]]]:
        """The bodies that wait, as many as are parsed together."""
        size = 0
        for _ in range(min(BODIES_AT_ONCE, len(self._waiting))):
            size += len(self._waiting[0][0])
            yield self._waiting.popleft()
            if size >= PORTION_BYTES:
                return

    def _parse(self, bodies: Sequence[tuple[bytes, Mapping[str, str]]]) -> list[BodyContent]:
        """In a thread, which has its own formats with their caches."""
        formats: Formats | None = getattr(self._of_thread, "formats", None)
        if formats is None:
            formats = self._of_thread.formats = Formats("", self._options, FORMATS)
        return parse_bodies(bodies, formats)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False)
