"""The rejections of one message, gathered in the order of its bytes.

A message can hold millions of bad records of two bytes each. Each of the first `SINGLE` is one rejection;
after them, those with the same reason share a rejection, so all bytes are kept. A caller that only answers a
sender can stop such a message early: `Message.rejected_at_most`.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Joined, Records, Rejected, Stage, records_of
from timebeam.schema.formats.base import Message, TooManyRejectedError


class RejectedPoints:
    """The rejections of points of one record, which can be millions: the first of each reason, and counts."""

    def __init__(self) -> None:
        self._first: dict[Reason, str] = {}
        self._counts: collections.Counter[Reason] = collections.Counter()

    def add(self, why: RejectedError) -> None:
        """Adds the rejection of a point."""
        self._first.setdefault(why.reason, why.message)
        self._counts[why.reason] += 1

    def of_record(self, others: str) -> list[RejectedError]:
        """A rejection for each reason, which counts the `others`."""
        return [
            RejectedError(reason, first + (f" (and {more} more of {others})" if more else ""))
            for reason, first in self._first.items()
            for more in (self._counts[reason] - 1,)
        ]


SINGLE = 10_000
"""Rejections of a message before those with one reason are merged."""


class _SharedRejection:
    """Rejected records of one reason: one record, or many of a message."""

    def __init__(self, start: int, end: int, why: RejectedError, points: int, records: Records) -> None:
        self.why, self.points = why, points
        self.spans = array("q", (start, end))
        self.records = {0: records} if records else {}  # by the number of the span

    def add(self, start: int, end: int, points: int, records: Records) -> None:
        """Adds one more record."""
        if records:
            self.records[len(self.spans) // 2] = records
        self.spans.extend((start, end))
        self.points += points


class Rejections:
    """Gathers the rejections of a message, in the order of its bytes."""

    def __init__(self, message: Message, joined: Joined | None = None, *, separator: bytes = b"\n") -> None:
        """Gathers rejections of spans of `message`.

        Args:
          joined: the messages that the text of `message` is joined from; their rejections are not merged.
          separator: what is between records in a message of several.
        """
        self._message = message
        self._joined, self._separator = joined, separator
        self._singles: list[_SharedRejection] = []
        self._shared: dict[tuple[int, Reason], _SharedRejection] = {}
        self._left = math.inf if message.rejected_at_most is None else message.rejected_at_most

    @property
    def is_of_many(self) -> bool:
        """Whether the text is of several messages."""
        return self._joined is not None and len(self._joined.starts) > 1

    def add(self, start: int, end: int, why: RejectedError, points: int = 1, records: Records = ()) -> None:
        """Adds the rejection of the bytes from `start` to `end` of the message, which hold so many points.

        Args:
          records: see `Rejected.records`.

        Raises:
          TooManyRejectedError: see `Message.rejected_at_most`.
        """
        if self._left <= 0:
            raise TooManyRejectedError(self.rejected())
        self._left -= 1
        if len(self._singles) < SINGLE:
            self._singles.append(_SharedRejection(start, end, why.with_traceback(None), points, records))
            return
        number = 0 if self._joined is None else self._joined.number_at(start)
        shared = self._shared.get((number, why.reason))
        if shared is None:
            shared = _SharedRejection(start, end, why.with_traceback(None), points, records)
            self._shared[number, why.reason] = shared
            self._singles.append(shared)
        else:
            shared.add(start, end, points, records)

    def rejected(self) -> Sequence[Rejected]:
        return [self._rejected(shared) for shared in self._singles]

    def _rejected(self, shared: _SharedRejection) -> Rejected:
        starts, ends, why = shared.spans[::2], shared.spans[1::2], shared.why
        first = rejection(self._message, starts[0], ends[0], why.reason, why.message)
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
    """The rejected records of payloads that are joined, from those that some of them list."""
    position, spans = 0, []
    for number, piece in enumerate(payloads):
        records = listed.get(number) or ((0, len(piece)),)
        spans += [(position + offset, position + offset + length) for offset, length in records]
        position += len(piece) + len(separator)
    starts, ends = np.array(spans, np.int64).T
    return records_of(starts, ends, (0, position - len(separator)))


def rejection(message: Message, start: int, end: int, reason: Reason, why: str) -> Rejected:
    """The rejection of some bytes of a message."""
    place = message.source, message.offset + start, message.arrival_ms, message.envelope
    return Rejected(message.text[start:end], reason, why, Stage.PARSE, *place)
