"""OpenTSDB's rules for the numbers and timestamps of incoming points; the refusals of one message.

Sources: core/Tags.looksLikeInteger and parseLong, core/TSDB.checkTimestampAndTags,
core/IncomingDataPoint.validate, tsd/PutDataPointRpc (OpenTSDB 2.4.1). The columnar path of
`linewise` accepts a subset of what these functions accept, and sends everything else here.

A message can hold millions of bad records of two bytes each. Each of the first `SINGLE` is one refusal; after
them, those with the same reason share a refusal, so all bytes are kept. A caller that only answers a sender
can stop such a message early: `refused_at_most`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar

import numpy as np

from timebeam.schema.bits.reasons import Reason, RefusedError
from timebeam.schema.core.rejections import Joined, Records, Rejected, Stage, records_of
from timebeam.schema.formats.base import Message, TooManyRefusedError

FIRST_MILLISECOND = 1 << 32
"""Timestamps are milliseconds from this one on, else seconds (core/Const.SECOND_MASK)."""

LAST_MILLISECOND = (1 << 32) * 1000 - 1
"""The last millisecond whose base time fits 32 bits of seconds: 2106-02-07T06:28:15.999Z. OpenTSDB
takes up to 9999999999999 and wraps the base time; those are refused here."""

_HUGE = 1 << 1024
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SECONDS_AND_THOUSANDTHS = re.compile(r"[0-9]{1,10}\.[0-9]{3}")


def integer(text: str) -> int:
    """An integer in digits; one of more than 400, beyond any double, is one that is beyond it too.

    Python itself reads at most 4,300 digits.
    """
    if len(text) <= 400:
        return int(text)
    return -_HUGE if text.startswith("-") else _HUGE


def parse_value(text: str) -> int | float:
    """The number in a string: an integer if it has none of `.`, `e`, `E`, else a double.

    Java's `1.5f`, `0x1.8p1` and surrounding blanks, which a TSD accepts in decimals, are refused.

    Raises:
      RefusedError: EMPTY_VALUE, BAD_NUMBER (also NaN and infinities), NUMBER_OUT_OF_RANGE.
    """
    if not text:
        raise RefusedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if _INTEGER.fullmatch(text):
        value = integer(text)
        if not -(1 << 63) <= value < 1 << 63:
            raise RefusedError(
                Reason.NUMBER_OUT_OF_RANGE,
                f"integer {short(text)} needs more than 64 bits: send it as a decimal, or scale it",
            )
        return value
    if not _DECIMAL.fullmatch(text):
        raise RefusedError(Reason.BAD_NUMBER, f"Unable to parse value to a number: {short(text)!r}")
    return finite(text)


def finite(text: str) -> float:
    """The double in a string that is known to be a number.

    Raises:
      RefusedError: it is NaN, infinite, or beyond the greatest double.
    """
    number = float(text)
    if not math.isfinite(number):
        raise RefusedError(Reason.NUMBER_OUT_OF_RANGE, f"value is NaN or Infinite: {short(text)}")
    return number


def parse_time(text: str, *, dotted: bool = False) -> tuple[int, bool]:
    """(time in ms, whether it was given in ms) of a timestamp.

    >>> parse_time("1356998400"), parse_time("1356998400500"), parse_time("1356998400.500", dotted=True)
    ((1356998400000, False), (1356998400500, True), (1356998400500, True))

    Args:
      text: seconds or, from `FIRST_MILLISECOND` on, milliseconds.
      dotted: also accept seconds with exactly three decimals, as telnet `put` does. (For another number of
        decimals a TSD stores a wrong time; here it is refused.)

    Raises:
      RefusedError: BAD_TIMESTAMP (no integer, zero or negative), TIMESTAMP_OUT_OF_RANGE.
    """
    if dotted and _SECONDS_AND_THOUSANDTHS.fullmatch(text):
        text = text.replace(".", "")
    if not _INTEGER.fullmatch(text):
        raise RefusedError(
            Reason.BAD_TIMESTAMP,
            f"Invalid timestamp {short(text)!r}: give seconds or milliseconds since 1970 as an integer",
        )
    number = integer(text)
    if number <= 0:
        raise RefusedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {short(text)}: it must be above 0")
    if number < FIRST_MILLISECOND:
        return number * 1000, False
    if number > LAST_MILLISECOND:
        raise RefusedError(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"bad timestamp {short(text)}: the last that the row key can hold is {LAST_MILLISECOND} ms",
        )
    return number, True


def add_tag(tags: dict[str, str], key: str, value: str) -> None:
    """Adds a tag; equal tags count once (core/Tags.parse).

    Raises:
      RefusedError: DUPLICATE_TAG; the key already has another value.
    """
    if tags.setdefault(key, value) != value:
        raise RefusedError(Reason.DUPLICATE_TAG, f"duplicate tag: {key}={tags[key]} and {key}={value}")


def short(text: str) -> str:
    """At most 40 characters of a string, for error messages."""
    return text if len(text) <= 40 else text[:37] + "..."


def shown(value: object, size: int = 40) -> str:
    """The first characters of a value of a message, for errors; JSON nests deeper than Python writes out."""
    try:
        return str(value)[:size]
    except RecursionError:
        return "nested values"


class RefusedPoints:
    """The refusals of points of one record, which can be millions: the first of each reason, and counts."""

    def __init__(self) -> None:
        self._first: dict[Reason, str] = {}
        self._counts: collections.Counter[Reason] = collections.Counter()

    def add(self, why: RefusedError) -> None:
        """Adds the refusal of a point."""
        self._first.setdefault(why.reason, why.message)
        self._counts[why.reason] += 1

    def of_record(self, others: str) -> list[RefusedError]:
        """A refusal for each reason, which counts the `others`."""
        return [
            RefusedError(reason, first + (f" (and {more} more of {others})" if more else ""))
            for reason, first in self._first.items()
            for more in (self._counts[reason] - 1,)
        ]


SINGLE = 10_000
"""Refusals of a message before those with one reason are merged."""

_MOST: ContextVar[float] = ContextVar("most", default=math.inf)


@contextlib.contextmanager
def refused_at_most(records: int) -> Iterator[None]:
    """A context in which a message with more refused records than these raises TooManyRefusedError."""
    token = _MOST.set(records)
    try:
        yield
    finally:
        _MOST.reset(token)


class _SharedRefusal:
    """Refused records of one reason: one record, or many of a message."""

    def __init__(self, start: int, end: int, why: RefusedError, points: int, records: Records) -> None:
        self.why, self.points = why, points
        self.spans = array("q", (start, end))
        self.records = {0: records} if records else {}  # by the number of the span

    def add(self, start: int, end: int, points: int, records: Records) -> None:
        """Adds one more record."""
        if records:
            self.records[len(self.spans) // 2] = records
        self.spans.extend((start, end))
        self.points += points


class Refusals:
    """Gathers the refusals of a message, in the order of its bytes."""

    def __init__(self, message: Message, joined: Joined | None = None, *, separator: bytes = b"\n") -> None:
        """Gathers refusals of spans of `message`.

        Args:
          joined: the messages that the text of `message` is joined from; their refusals are not merged.
          separator: what is between records in a message of several.
        """
        self._message = message
        self._joined, self._separator = joined, separator
        self._refused: list[_SharedRefusal] = []
        self._shared: dict[tuple[int, Reason], _SharedRefusal] = {}
        self._left = _MOST.get()

    @property
    def is_of_many(self) -> bool:
        """Whether the text is of several messages."""
        return self._joined is not None and len(self._joined.starts) > 1

    def add(self, start: int, end: int, why: RefusedError, points: int = 1, records: Records = ()) -> None:
        """Adds the refusal of the bytes from `start` to `end` of the message, which hold so many points.

        Args:
          records: see `Rejected.records`.

        Raises:
          TooManyRefusedError: see `refused_at_most`.
        """
        if self._left <= 0:
            raise TooManyRefusedError(self.rejected())
        self._left -= 1
        if len(self._refused) < SINGLE:
            self._refused.append(_SharedRefusal(start, end, why.with_traceback(None), points, records))
            return
        number = 0 if self._joined is None else self._joined.number_at(start)
        shared = self._shared.get((number, why.reason))
        if shared is None:
            shared = _SharedRefusal(start, end, why.with_traceback(None), points, records)
            self._shared[number, why.reason] = shared
            self._refused.append(shared)
        else:
            shared.add(start, end, points, records)

    def rejected(self) -> Sequence[Rejected]:
        return [self._rejected(shared) for shared in self._refused]

    def _rejected(self, shared: _SharedRefusal) -> Rejected:
        starts, ends, why = shared.spans[::2], shared.spans[1::2], shared.why
        first = refusal(self._message, starts[0], ends[0], why.reason, why.message)
        if len(starts) == 1:
            return dataclasses.replace(first, points=shared.points, records=shared.records.get(0, ()))
        text, separator = self._message.text, self._separator
        payloads = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        if separator == b"\n":  # a record of JSON over several lines becomes one
            payloads = [piece.replace(b"\n", b" ") for piece in payloads]
        return dataclasses.replace(
            first,
            payload=separator.join(payloads),
            message=f"{why.message} (and {len(starts) - 1} more records)",
            points=shared.points,
            records=_records_of(shared.records, payloads, separator) if shared.records else (),
        )


def _records_of(listed: Mapping[int, Records], payloads: Sequence[bytes], separator: bytes) -> Records:
    """The refused records of payloads that are joined, from those that some of them list."""
    position, spans = 0, []
    for number, piece in enumerate(payloads):
        records = listed.get(number) or ((0, len(piece)),)
        spans += [(position + offset, position + offset + length) for offset, length in records]
        position += len(piece) + len(separator)
    starts, ends = np.array(spans, np.int64).T
    return records_of(starts, ends, (0, position - len(separator)))


def refusal(message: Message, start: int, end: int, reason: Reason, why: str) -> Rejected:
    """The refusal of some bytes of a message."""
    payload = message.text[start:end]
    return Rejected(payload, reason, why, Stage.PARSE, message.source, message.offset + start)
