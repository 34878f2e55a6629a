"""OpenTSDB's rules for the numbers and timestamps of incoming points; the refusals of one message.

Sources: core/Tags.looksLikeInteger and parseLong, core/TSDB.checkTimestampAndTags,
core/IncomingDataPoint.validate, tsd/PutDataPointRpc (OpenTSDB 2.4.1). The columnar path of
`linewise` accepts a subset of what these functions accept, and sends everything else here.

A message can hold millions of bad records of two bytes each. Each of the first `SINGLE` is one refusal; after
them, adjacent records with the same reason share a refusal, so all bytes are kept. A caller that only answers
a sender can stop such a message early: `refused_at_most`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import numpy as np

from timebeam.schema.messages.base import Message, TooManyRefusedError
from timebeam.schema.points import Joined, Reason, RefusedError, Rejected, Stage

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
"""Refusals of a message before adjacent ones are merged."""

_MOST: ContextVar[float] = ContextVar("most", default=math.inf)


@contextlib.contextmanager
def refused_at_most(records: int) -> Iterator[None]:
    """A context in which a message with more refused records than these raises TooManyRefusedError."""
    token = _MOST.set(records)
    try:
        yield
    finally:
        _MOST.reset(token)


class _RefusalRun:
    """Adjacent refused records with one reason."""

    def __init__(self, start: int, end: int, why: RefusedError, limit: int, points: int) -> None:
        """`limit`: the position before which the next record of the run must begin."""
        self.start, self.end, self.why, self.limit, self.points = start, end, why, limit, points
        self.records = 1


class Refusals:
    """Gathers the refusals of a message, in the order of its bytes."""

    def __init__(self, message: Message, joined: Joined | None = None) -> None:
        """`joined`: the messages that the text of `message` is joined from; their refusals are not merged."""
        self._message = message
        self._joined = joined
        self._runs: list[_RefusalRun] = []
        self._left = _MOST.get()

    @property
    def is_of_many(self) -> bool:
        """Whether the text is of several messages."""
        return self._joined is not None and len(self._joined.starts) > 1

    def add(self, start: int, end: int, why: RefusedError, points: int = 1) -> None:
        """Adds the refusal of the bytes from `start` to `end` of the message, which hold so many points.

        Raises:
          TooManyRefusedError: see `refused_at_most`.
        """
        if self._left <= 0:
            raise TooManyRefusedError(self.rejected())
        self._left -= 1
        run = self._runs[-1] if len(self._runs) >= SINGLE else None
        if run and run.why.reason is why.reason and self._neighbours(run, start):
            run.end = end
            run.records += 1
            run.points += points
        else:
            limit = self._limit(start) if len(self._runs) + 1 >= SINGLE else 0
            self._runs.append(_RefusalRun(start, end, why.with_traceback(None), limit, points))

    def rejected(self) -> Sequence[Rejected]:
        return [self._rejected(run) for run in self._runs]

    def _neighbours(self, run: _RefusalRun, start: int) -> bool:
        """Whether only separators are between a run and the record that begins at `start`."""
        if not run.end <= start < run.limit:
            return False
        return not self._message.text[run.end : start].strip(b" \t\r\n,")

    def _limit(self, start: int) -> int:
        """The end of the message that contains a position of the text."""
        if self._joined is None:
            return len(self._message.text) + 1
        starts = self._joined.starts
        number = int(np.searchsorted(starts, start, side="right"))
        return int(starts[number]) if number < len(starts) else len(self._message.text) + 1

    def _rejected(self, run: _RefusalRun) -> Rejected:
        more = f" (and {run.records - 1} more records after it)" if run.records > 1 else ""
        rejected = refusal(self._message, run.start, run.end, run.why.reason, run.why.message + more)
        return dataclasses.replace(rejected, points=run.points)


def refusal(message: Message, start: int, end: int, reason: Reason, why: str) -> Rejected:
    """The refusal of some bytes of a message."""
    payload = message.text[start:end]
    return Rejected(payload, reason, why, Stage.PARSE, message.source, message.offset + start)
