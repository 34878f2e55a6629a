"""What Heroic's two message formats share: rules, and points of many documents or messages in one batch.

Rules for numbers, times and series: docs/spec/heroic.md §7; stricter than Heroic where it loses or changes
points silently.

A consumer's message holds few points, so messages that arrive together are read as one text.
"""

from __future__ import annotations

import abc
import base64
import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from timebeam.schema.bits.memory_limit import POINT_BYTES, charge, charge_json
from timebeam.schema.bits.reasons import Reason, RejectedError, shown
from timebeam.schema.core.batches import PointBuilder
from timebeam.schema.core.points import LAST_MILLISECOND, PointBatch, Series, Value, add_tag
from timebeam.schema.core.rejections import Joined, Rejected
from timebeam.schema.formats.base import (
    Framing,
    Message,
    MessageFormat,
    Parsed,
    Rejections,
    joined_message,
    joined_of,
    separated,
)

HeroicValue = int | float | bytes
"""A number, or the bytes of a distribution."""


def check_time(time: object, first: int = 1) -> int:
    """A time in ms.

    Args:
      first: the first accepted time; 1 for consumers, 0 for POST /write.

    Raises:
      RejectedError: BAD_TIMESTAMP, TIMESTAMP_OUT_OF_RANGE.
    """
    if type(time) is not int:
        missing = "missing" if time is None else f"{shown(time)!r} is not an integer"
        raise RejectedError(Reason.BAD_TIMESTAMP, f"time {missing}: give ms since 1970")
    if time < first:
        raise RejectedError(Reason.BAD_TIMESTAMP, f"time must be a positive number: {shown(time)}")
    if time > LAST_MILLISECOND:
        raise RejectedError(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"time {shown(time)} ms is after 2106-02-07; is the unit right?",
        )
    return time


def check_number(value: object, infinite: Reason = Reason.BAD_NUMBER) -> int | float:
    """A number of 64 bits.

    Args:
      infinite: the reason for infinities; in JSON they come from decimals beyond a double.

    Raises:
      RejectedError: EMPTY_VALUE, BAD_NUMBER, NUMBER_OUT_OF_RANGE.
    """
    if value is None:
        raise RejectedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if type(value) is int:
        if not -(1 << 63) <= value < 1 << 63:
            why = f"integer {shown(value)} needs more than 64 bits: send it as a decimal, or scale it"
            raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, why)
        return value
    if type(value) is not float:
        raise RejectedError(Reason.BAD_NUMBER, f"a value must be a number, not {shown(value)!r}")
    if not math.isfinite(value):
        reason = infinite if math.isinf(value) else Reason.BAD_NUMBER
        raise RejectedError(reason, f"value is NaN or Infinite: {value}")
    return value


def distribution(text: object) -> bytes:
    """The bytes of a distribution in base64.

    Raises:
      RejectedError: EMPTY_VALUE, BAD_SYNTAX.
    """
    if text is None:
        raise RejectedError(Reason.EMPTY_VALUE, "Empty value: give a distribution in base64")
    with contextlib.suppress(ValueError):  # text that is not base64 is rejected below
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    raise RejectedError(Reason.BAD_SYNTAX, f"a distribution must be base64, not {shown(text)!r}")


def series_of(metric: str, tags: Iterable[tuple[str, str]], resources: Iterable[tuple[str, str]]) -> Series:
    """A series from its strings.

    Raises:
      RejectedError: DUPLICATE_TAG, for a tag or a resource.
    """
    tags_and_resources: tuple[dict[str, str], dict[str, str]] = {}, {}
    for pairs, into in zip((tags, resources), tags_and_resources, strict=True):
        for key, value in pairs:
            add_tag(into, key, value)
    return Series.of(metric, *tags_and_resources)


_CHARGED_POINTS = 4096  # at once


class HeroicGatherer(PointBuilder):
    """Gathers the points and rejections of one message, and charges the points."""

    def __init__(self, message: Message, joined: Joined | None = None, *, separator: bytes = b"\n") -> None:
        """Gathers points whose spans are in the text of `message`; the others as in `Rejections`."""
        super().__init__(message.text, message.arrival_ms, message.source, message.offset)
        self._rejections = Rejections(message, joined, separator=separator)
        self.skipped: Counter[str] = Counter()
        """See `Parsed`."""

    def add(self, series: int, time_ms: int, value: Value, start: int, end: int) -> None:
        """See `PointBuilder.add`; raises NoRoomError."""
        if len(self._times) % _CHARGED_POINTS == 0:
            charge(2 * _CHARGED_POINTS * POINT_BYTES)  # each has a span of its own
        super().add(series, time_ms, value, start, end)

    def add_many(
        self, series: int, times_ms: Sequence[int], values: Sequence[Value], start: int, end: int
    ) -> None:
        """See `PointBuilder.add_many`; raises NoRoomError."""
        charge(len(times_ms) * POINT_BYTES)
        super().add_many(series, times_ms, values, start, end)

    def reject(self, error: RejectedError, start: int, end: int) -> None:
        """Adds the rejection of the bytes from `start` to `end`."""
        self._rejections.add(start, end, error)

    def finish(self) -> Parsed:
        """The points in the order of their arrival, as one batch, and the rejections."""
        return Parsed(self.batch(), self._rejections.rejected(), skipped=self.skipped)


class HeroicFormat(MessageFormat):
    """A format whose messages are read into a `HeroicGatherer`; `separator` as in `Rejections`."""

    separator: ClassVar[bytes] = b"\n"

    def plain(self, text: bytes) -> bytes:
        """The text of a message, decompressed if it is compressed.

        Raises:
          RejectedError: it is corrupt.
        """
        return text

    @abc.abstractmethod
    def read(self, text: bytes, start: int, end: int, points: HeroicGatherer) -> None:
        """Gathers points and rejections of the message from `start` to `end` in a decompressed text."""

    def _charge(self, text: bytes) -> None:
        """Charges the values of JSON; raises NoRoomError."""
        if self.framing is Framing.JSON:
            charge_json(text)

    def _parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`; offsets count in the decompressed text."""
        message = dataclasses.replace(message, text=self.plain(message.text))
        self._charge(message.text)
        points = HeroicGatherer(message, separator=self.separator)
        self.read(message.text, 0, len(message.text), points)
        return points.finish()

    def _parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; messages are read as one text."""
        plain: list[Message] = []
        corrupt: list[Rejected] = []
        for message in messages:
            try:
                plain.append(dataclasses.replace(message, text=self.plain(message.text)))
            except RejectedError as error:
                corrupt.append(self._failure(message, error))
        if not plain:
            yield Parsed(PointBatch.of([], 0), corrupt)
            return
        joined = joined_of(plain)
        whole = joined_message(plain)
        text = whole.text
        self._charge(text)
        points = HeroicGatherer(whole, joined, separator=self.separator)
        for message, start in zip(plain, joined.starts.tolist(), strict=True):
            self.read(text, start, start + len(message.text), points)
        parsed = separated(points.finish(), joined)
        yield dataclasses.replace(parsed, rejected=[*corrupt, *parsed.rejected])
