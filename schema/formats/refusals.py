"""The refusals of one message, gathered in the order of its bytes.

A message can hold millions of bad records of two bytes each. Each of the first `SINGLE` is one refusal; after
them, those with the same reason share a refusal, so all bytes are kept. A caller that only answers a sender
can stop such a message early: `Message.refused_at_most`.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from timebeam.schema.bits.reasons import Reason, RefusedError
from timebeam.schema.core.rejections import Joined, Records, Rejected, Stage, records_of
from timebeam.schema.formats.base import Message, TooManyRefusedError


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
        self._left = math.inf if message.refused_at_most is None else message.refused_at_most

    @property
    def is_of_many(self) -> bool:
        """Whether the text is of several messages."""
        return self._joined is not None and len(self._joined.starts) > 1

    def add(self, start: int, end: int, why: RefusedError, points: int = 1, records: Records = ()) -> None:
        """Adds the refusal of the bytes from `start` to `end` of the message, which hold so many points.

        Args:
          records: see `Rejected.records`.

        Raises:
          TooManyRefusedError: see `Message.refused_at_most`.
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
