"""Parses the bodies of requests in threads, as the stream will: many short ones together.

A parse costs about a millisecond for one point or thousands. Bodies that arrive while others are parsed are
therefore parsed together, and what was read is told apart by the number of each body. Most bodies are
short and good: where their format can tell by a quick look, they are only counted.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from timebeam.pipelines.serve.writes import FORMATS
from timebeam.schema.bits.compression import compression, unpack
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Envelope, Rejected, Stage
from timebeam.schema.formats import Message, MessageFormat, Parsed
from timebeam.schema.formats.base import TooManyRejectedError
from timebeam.schema.formats.prometheus.remote_write import RemoteWrite
from timebeam.transforms.input.parse import FormatKey, Formats
from timebeam.transforms.input.unpack_messages import GATHERED_BYTES, gather, rejected_message

SHORT_BYTES = 1 << 18
"""Bodies that are longer when unpacked are parsed in a thread of their own: short ones need not wait."""

BODIES_AT_ONCE = 256

_LOG = logging.getLogger("timebeam.serve")

LISTED_REJECTIONS, LISTED_BYTES = 1_000, 1 << 20
"""Rejections of a body that an answer can list, and the bytes of their payloads. After so many in one
portion a body is read no further: a rejected record costs as much as a hundred good points, and 64 KB of gzip
can be 30 million of them."""


@dataclasses.dataclass(slots=True)
class BodyContent:
    """What a body holds.

    Attributes:
      points: that are good.
      rejected_points: points and records that are not.
      rejected: the first, up to `LISTED_REJECTIONS` and `LISTED_BYTES`; each stands for some points.
      histograms, histogram_points: see `Parsed.histograms`.
      reasons: of all rejections.
      skipped: how much of each kind is left out on purpose; see `Parsed.skipped`.
      is_unread: whether some of the body was not read; then the counts are of what was read.
    """

    points: int = 0
    rejected_points: int = 0
    histograms: int = 0
    histogram_points: int = 0
    is_unread: bool = False
    listed_bytes: int = 0
    rejected: list[Rejected] = dataclasses.field(default_factory=list)
    reasons: set[Reason] = dataclasses.field(default_factory=set)
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def reject(self, rejected: Rejected) -> None:
        """Counts a rejection."""
        self.rejected_points += rejected.points
        self.reasons.add(rejected.reason)
        self.is_unread |= rejected.reason is Reason.INTERNAL_ERROR
        if len(self.rejected) < LISTED_REJECTIONS and self.listed_bytes < LISTED_BYTES:
            self.listed_bytes += len(rejected.payload)
            if self.listed_bytes > LISTED_BYTES:  # of a body of one record, or of many
                rejected = dataclasses.replace(rejected, payload=rejected.payload[:SHORT_BYTES])
            self.rejected.append(rejected)

    @property
    def may_have_points(self) -> bool:
        """Whether a point of the body is good, or may be since it was not read."""
        return self.points > 0 or self.is_unread

    def stop(self, why: TooManyRejectedError) -> None:
        """Counts the rejections after which the body is read no further; the first one says so."""
        for rejected in why.rejected:
            self.reject(rejected)
        first = self.rejected[0]
        message = f"{first.message}; after {self.rejected_points:,} rejections the rest was not read"
        self.rejected[0] = dataclasses.replace(first, message=message)
        self.is_unread = True


def contents_of(bodies: Sequence[tuple[bytes, Mapping[str, str]]], formats: Formats) -> list[BodyContent]:
    """As `parse_bodies`; if that fails, body by body, so that none costs another one.

    A body that fails alone counts as rejected and unread: it is published, and the stream decides.
    """
    try:
        return parse_bodies(bodies, formats)
    except Exception as error:
        if len(bodies) > 1:
            return [content for body in bodies for content in contents_of([body], formats)]
        _LOG.exception("a body cannot be read")
        why = f"the server failed to read it: {type(error).__name__}: {error}"[:180]
        content = BodyContent(is_unread=True)
        content.reject(Rejected(bodies[0][0], Reason.INTERNAL_ERROR, why, Stage.PARSE))
        return [content]


def parse_bodies(bodies: Sequence[tuple[bytes, Mapping[str, str]]], formats: Formats) -> list[BodyContent]:
    """The content of each of some bodies, which come with the attributes of their messages.

    The number of a body takes the place of its arrival, by which points and rejections are told apart.
    """
    messages = [
        Message(body, number, envelope=Envelope("", number, attributes), rejected_at_most=LISTED_REJECTIONS)
        for number, (body, attributes) in enumerate(bodies)
    ]
    contents = [BodyContent() for _ in bodies]
    for portion in gather(messages, lambda message: formats[formats.key(message)].framing):
        if isinstance(portion, Rejected):
            contents[portion.arrival_ms].reject(portion)
            continue
        groups: dict[FormatKey, list[Message]] = {}
        for message in portion:
            if contents[message.arrival_ms].is_unread:
                continue
            try:
                groups.setdefault(formats.key(message), []).append(message)
            except RejectedError as error:
                contents[message.arrival_ms].reject(rejected_message(message, error))
        for key, group in groups.items():
            _read(group, formats[key], contents)
    return contents


def _read(group: list[Message], form: MessageFormat, contents: list[BodyContent]) -> None:
    """Adds what some bodies hold to their contents.

    They are read together, unless native histograms are to be counted, or so much is rejected that one may
    be read no further: how each is answered depends on that body alone.
    """
    if len(group) > 1 and form.name != RemoteWrite.name:
        with contextlib.suppress(TooManyRejectedError):
            _count(list(form.parse_all(group)), group[0].arrival_ms, contents)
            return
    for message in group:
        content = contents[message.arrival_ms]
        if content.is_unread:
            continue
        try:
            _count(list(form.parse_all([message])), message.arrival_ms, contents)
        except TooManyRejectedError as error:
            content.stop(error)


def _count(parts: list[Parsed], number: int, contents: list[BodyContent]) -> None:
    """Adds what was read to the contents of the bodies; `number` is that of the first."""
    for parsed in parts:
        counts = np.bincount(parsed.batch.arrivals_ms, minlength=1)
        for body in np.flatnonzero(counts).tolist():
            contents[body].points += int(counts[body])
        for rejected in parsed.rejected:
            contents[rejected.arrival_ms].reject(rejected)
        contents[number].histograms += parsed.histograms[0]
        contents[number].histogram_points += parsed.histograms[1]
        contents[number].skipped.update(parsed.skipped)


_Waiting = tuple[bytes, Mapping[str, str], asyncio.Future[BodyContent]]


class BodyParser:
    """Parses bodies in two threads, one for short ones and one for long ones; belongs to one event loop.

    Short bodies whose points a quick look shows to be good need no thread.
    """

    def __init__(self, options: Mapping[str, Any], formats: Sequence[str] = ()) -> None:
        """
        Args:
          options: of the formats, as `message_format` takes them.
          formats: those that bodies can have beside `FORMATS`.
        """
        self._lanes = [_Lane(options, formats), _Lane(options, formats)]

    async def parse(self, body: bytes, attributes: Mapping[str, str]) -> BodyContent:
        """What a body holds."""
        short, long = self._lanes
        encoding = attributes.get("content-encoding") or compression(body)
        plain = _unpacked(encoding, body)
        if plain is None:
            return await long.parse(body, attributes)
        if "content-encoding" in attributes:
            rest = {name: value for name, value in attributes.items() if name != "content-encoding"}
            body, attributes = plain, rest
        good = short.good_points(body, attributes)
        return await short.parse(body, attributes) if good is None else BodyContent(good)

    def close(self) -> None:
        """Ends the threads."""
        for lane in self._lanes:
            lane.thread.shutdown(wait=False)


def _unpacked(encoding: str, body: bytes) -> bytes | None:
    """A short body without its encoding; None if it is long, as 2 KB of zstd may be 64 MiB, or corrupt."""
    if len(body) > SHORT_BYTES:
        return None
    try:
        return unpack(encoding, body, SHORT_BYTES) if encoding else body
    except RejectedError:
        return None


class _Lane:
    """A thread, with its own formats and their caches, and the bodies that wait for it."""

    def __init__(self, options: Mapping[str, Any], formats: Sequence[str]) -> None:
        self.thread = ThreadPoolExecutor(1, "timebeam-parse")
        self._formats = Formats("", options, (*FORMATS, *formats))
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._task: asyncio.Task[None] | None = None

    def good_points(self, body: bytes, attributes: Mapping[str, str]) -> int | None:
        """See `MessageFormat.good_points`; called in the event loop, with the caches of the thread."""
        message = Message(body, 0, envelope=Envelope("", 0, attributes))
        try:
            return self._formats[self._formats.key(message)].good_points(body)
        except Exception:  # `contents_of` decides, and says what is wrong
            return None

    async def parse(self, body: bytes, attributes: Mapping[str, str]) -> BodyContent:
        future: asyncio.Future[BodyContent] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, attributes, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._parse_waiting())
        return await future

    async def _parse_waiting(self) -> None:
        """Parses until no body waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = list(self._next())
            bodies = [(body, attributes) for body, attributes, _ in batch]
            contents = await loop.run_in_executor(self.thread, contents_of, bodies, self._formats)
            for (_, _, future), content in zip(batch, contents, strict=True):
                if not future.done():
                    future.set_result(content)

    def _next(self) -> Iterator[_Waiting]:
        """The bodies that wait, as many as are parsed together."""
        size = 0
        for _ in range(min(BODIES_AT_ONCE, len(self._waiting))):
            size += len(self._waiting[0][0])
            yield self._waiting.popleft()
            if size >= GATHERED_BYTES:
                return
