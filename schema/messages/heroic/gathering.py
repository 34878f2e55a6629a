"""What Heroic's two message formats share: points of many documents or messages become one batch.

A consumer's message holds few points, so messages that arrive together are read as one text.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from timebeam.schema.messages.base import Message, MessageFormat, Parsed, joined_of
from timebeam.schema.messages.heroic.rules import Value
from timebeam.schema.messages.refusals import Refusals
from timebeam.schema.points import Joined, Kind, Origins, PointBatch, RefusedError, Rejected, Series

_KINDS = {int: Kind.INTEGER, float: Kind.FLOAT, bytes: Kind.OPAQUE}


class HeroicGatherer:
    """Gathers the points and refusals of one message."""

    def __init__(self, message: Message, joined: Joined | None = None) -> None:
        """Gathers points whose spans are in the text of `message`; `joined` as in `Refusals`."""
        self._message = message
        self._numbers: dict[Series, int] = {}
        self._index: list[int] = []
        self._times: list[int] = []
        self._values: list[Value] = []
        self._spans: list[tuple[int, int, int]] = []
        self._refusals = Refusals(message, joined)

    def number_of(self, series: Series) -> int:
        """The number of a series in the batch."""
        return self._numbers.setdefault(series, len(self._numbers))

    def add(self, series: int, time_ms: int, value: Value, start: int, end: int) -> None:
        """Adds a point of the record from `start` to `end`."""
        self._index.append(series)
        self._times.append(time_ms)
        self._values.append(value)
        self._spans.append((start, end, 1))

    def add_many(self, series: int, times_ms: list[int], values: list[Value], start: int, end: int) -> None:
        """Adds points of one series and one record."""
        self._index += [series] * len(times_ms)
        self._times += times_ms
        self._values += values
        self._spans.append((start, end, len(times_ms)))

    def refuse(self, error: RefusedError, start: int, end: int) -> None:
        """Adds the refusal of the bytes from `start` to `end`."""
        self._refusals.add(start, end, error)

    def finish(self) -> Parsed:
        """The points in the order of their arrival, as one batch, and the refusals."""
        message, n = self._message, len(self._index)
        starts, ends, counts = np.array(self._spans, np.int64).reshape(-1, 3).T
        kinds = np.fromiter(map(_KINDS.__getitem__, map(type, self._values)), np.uint8, n)
        bits, payloads = np.empty(n, np.int64), []
        if (kinds == Kind.FLOAT).all():
            bits = np.array(self._values, np.float64).view(np.int64)
        else:
            floats, integers, distributions = (
                kinds == kind for kind in (Kind.FLOAT, Kind.INTEGER, Kind.OPAQUE)
            )
            bits.view(np.float64)[floats] = [value for value in self._values if type(value) is float]
            bits[integers] = [value for value in self._values if type(value) is int]
            payloads = [value for value in self._values if isinstance(value, bytes)]
            bits[distributions] = np.arange(len(payloads))
        batch = PointBatch(
            tuple(self._numbers),
            np.array(self._index, np.int32),
            np.array(self._times, np.int64),
            np.ones(n, np.bool_),
            kinds,
            bits,
            np.full(n, message.arrival_ms, np.int64),
            Origins(message.text, starts.repeat(counts), ends.repeat(counts), message.source, message.offset),
            payloads,
        )
        return Parsed(batch, self._refusals.rejected())


class HeroicFormat(MessageFormat):
    """A format whose messages are read into a `HeroicGatherer`."""

    def plain(self, text: bytes) -> bytes:
        """The text of a message, decompressed if it is compressed.

        Raises:
          RefusedError: it is damaged.
        """
        return text

    @abc.abstractmethod
    def read(self, text: bytes, start: int, end: int, points: HeroicGatherer) -> None:
        """Gathers points and refusals of the message from `start` to `end` in a decompressed text."""

    def parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`; offsets count in the decompressed text."""
        try:
            message = dataclasses.replace(message, text=self.plain(message.text))
        except RefusedError as error:
            points = HeroicGatherer(message)
            points.refuse(error, 0, len(message.text))
        else:
            points = HeroicGatherer(message)
            self.read(message.text, 0, len(message.text), points)
        return points.finish()

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; messages are read as one text."""
        plain: list[Message] = []
        damaged: list[Rejected] = []
        for message in messages:
            try:
                plain.append(dataclasses.replace(message, text=self.plain(message.text)))
            except RefusedError:
                damaged += [
                    dataclasses.replace(rejected, arrival_ms=message.arrival_ms, envelope=message.envelope)
                    for rejected in self.parse(message).rejected
                ]
        if not plain:
            yield Parsed(PointBatch.of([], 0), damaged)
            return
        joined = joined_of(plain)
        text = b"\n".join([message.text for message in plain])
        points = HeroicGatherer(Message(text, 0, plain[0].source), joined)
        for message, start in zip(plain, joined.starts.tolist(), strict=True):
            self.read(text, start, start + len(message.text), points)
        parsed = points.finish()
        origins = parsed.batch.origins
        assert origins is not None
        batch = dataclasses.replace(
            parsed.batch,
            arrivals_ms=joined.arrivals_at(origins.starts),
            origins=dataclasses.replace(origins, joined=joined),
        )
        yield Parsed(batch, [*damaged, *(joined.addressed(rejected) for rejected in parsed.rejected)])
