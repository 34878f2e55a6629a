"""Rejected input: its original bytes, the reason, and where it came from."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.reasons import Reason, RejectedError


class Stage(enum.StrEnum):
    """The part of a pipeline that rejected something."""

    READ = "read"
    PARSE = "parse"
    ASSIGN = "assign"
    ENCODE = "encode"
    VALIDATE = "validate"
    WRITE = "write"


class Envelope(NamedTuple):
    """What Pub/Sub knows about a message beside its payload."""

    message_id: str
    publish_ms: int
    attributes: Mapping[str, str]


Records = tuple[tuple[int, int], ...]
"""Spans of records: (offset, length) of each; see `Rejected.records`."""


class Part(NamedTuple):
    """Which part of a payload a dead letter holds that is too long for one letter.

    Attributes:
      number, total: from 1 to `total`.
      sha256: of the whole payload, in hexadecimal digits.
    """

    number: int
    total: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected:
    """Rejected input: its original bytes, why, and where it came from.

    >>> rejected = Rejected(b"put load soon 1 host=a", Reason.BAD_TIMESTAMP, "no time: soon", Stage.PARSE)
    >>> rejected.reason.value, rejected.stage.value, rejected.points
    ('bad-timestamp', 'parse', 1)

    Attributes:
      payload: the original bytes (of a line, of one element of an array, of a row).
      source: file path or subscription; empty if unknown.
      offset: byte offset of the payload in the (decompressed) file or message; -1 if unknown.
      arrival_ms: its arrival, as in `PointBatch.arrivals_ms`; -1 if unknown.
      envelope: of its Pub/Sub message, if it came in one.
      points: the number of points that it stands for; 1 for bytes that could not be read.
      records: (offset, length) in the whole payload of the rejected records, or of runs of them; empty if all
        are rejected. In a payload of format `parquet`: (number of the first row, rows).
      part: if `payload` is only a part of the original bytes.
    """

    payload: bytes
    reason: Reason
    message: str
    stage: Stage
    source: str = ""
    offset: int = -1
    arrival_ms: int = -1
    envelope: Envelope | None = None
    points: int = 1
    records: Records = ()
    part: Part | None = None


MOST_RECORDS = 1000
"""Spans of rejected records that a rejection lists."""


@dataclasses.dataclass(frozen=True, slots=True)
class Joined:
    """The m messages that were joined into one text.

    Attributes:
      starts: int64[m], the start of each message in the text, ascending.
      arrivals_ms: int64[m], the arrival of each message.
      envelopes: of each message, or None.
      offsets: int64[m], the offset of each text in its message; not 0 if a message was cut.
    """

    starts: Int64s
    arrivals_ms: Int64s
    envelopes: Sequence[Envelope | None]
    offsets: Int64s

    def numbers_at(self, starts: Int64s) -> Int64s:
        """int64[n]: the number of the message at each of the positions `starts` int64[n]."""
        return np.searchsorted(self.starts, starts, "right") - 1

    def arrivals_at(self, starts: Int64s) -> Int64s:
        """int64[n]: the arrival of the message at each of the positions `starts` int64[n]."""
        return self.arrivals_ms[self.numbers_at(starts)]

    def number_at(self, start: int) -> int:
        """The number of the message at a position of the text."""
        return int(np.searchsorted(self.starts, start, "right")) - 1

    def addressed(self, rejected: Rejected) -> Rejected:
        """Converts the offset of a rejection from the joined text to its own message."""
        index = self.number_at(rejected.offset)
        return dataclasses.replace(
            rejected,
            offset=rejected.offset - int(self.starts[index]) + int(self.offsets[index]),
            arrival_ms=int(self.arrivals_ms[index]),
            envelope=self.envelopes[index],
        )


Spans = tuple[Int64s, Int64s]
"""(starts, ends) int64[k] in a text, ascending."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origins:
    """The bytes that the points of a batch were read from.

    Attributes:
      text: of the whole block or message, or of several joined messages.
      starts, ends: int64[n], the span of the record of each point in `text`.
      source: file path or subscription.
      offset: byte offset of `text` in the (decompressed) source; 0 if messages were joined.
      joined: the joined messages; None for a single one.
      wholes: what the records in it cannot be read without; a record outside can be read alone.
    """

    text: bytes
    starts: Int64s
    ends: Int64s
    source: str
    offset: int
    joined: Joined | None = None
    wholes: Spans | None = None

    def take(self, indices: Int64s | slice) -> Origins:
        """The origins of a selection of points."""
        return dataclasses.replace(self, starts=self.starts[indices], ends=self.ends[indices])

    def reject(
        self, points: Int64s, why: Callable[[int], RejectedError], stage: Stage, arrivals_ms: Int64s
    ) -> list[Rejected]:
        """The rejections of points: one for all that a payload holds and one reason rejects.

        Args:
          why: says why a point is rejected, by its number.
          arrivals_ms: int64[n], of all points.
        """
        starts, ends = self.starts[points], self.ends[points]
        rejections = []
        for start, end, error, group in grouped(starts, ends, self.wholes, points, why):
            rejected = Rejected(
                self.text[start:end],
                error.reason,
                error.message,
                stage,
                self.source,
                self.offset + start,
                points=len(group),
                records=records_of(starts[group], ends[group], (start, end)),
            )
            rejected = self.joined.addressed(rejected) if self.joined else rejected
            arrival_ms = int(arrivals_ms[points[group[0]]])
            rejections.append(dataclasses.replace(rejected, arrival_ms=arrival_ms))
        return rejections


def grouped(
    starts: Int64s,
    ends: Int64s,
    wholes: Spans | None,
    numbers: Int64s,
    why: Callable[[int], RejectedError],
) -> list[tuple[int, int, RejectedError, Int64s]]:
    """(start and end of a payload, the first error, which of the records) by payload and reason.

    Args:
      starts, ends: int64[n], the spans of rejected records.
      wholes: see `Origins`.
      numbers: int64[n], what `why` is asked for each of them.
    """
    if wholes is not None and len(wholes[0]):
        whole_number = np.searchsorted(wholes[0], starts, "right") - 1
        is_inside = (whole_number >= 0) & (starts < wholes[1][whole_number])
        starts = np.where(is_inside, wholes[0][whole_number], starts)
        ends = np.where(is_inside, wholes[1][whole_number], ends)
    groups: dict[tuple[int, Reason], tuple[int, RejectedError, list[int]]] = {}
    for place, (start, end, number) in enumerate(
        zip(starts.tolist(), ends.tolist(), numbers.tolist(), strict=True)
    ):
        error = why(number)
        groups.setdefault((start, error.reason), (end, error, []))[2].append(place)
    return [
        (start, end, error, np.array(places, np.int64)) for (start, _), (end, error, places) in groups.items()
    ]


def records_of(starts: Int64s, ends: Int64s, payload: tuple[int, int]) -> Records:
    """(offset, length) of records in their payload, those that touch each other as one; see `Rejected`.

    Of more than `MOST_RECORDS` the last one reaches to the end of all, so that none is missing.

    Args:
      starts, ends: int64[n], in any order; n is not 0.
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order] - payload[0], np.maximum.accumulate(ends[order]) - payload[0]
    is_first = np.append(True, starts[1:] > ends[:-1])
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(starts)) - 1
    begins, stops = starts[firsts][:MOST_RECORDS], ends[lasts][:MOST_RECORDS]
    stops[-1] = ends[-1] if len(firsts) > MOST_RECORDS else stops[-1]
    if (int(begins[0]), int(stops[-1])) == (0, payload[1] - payload[0]) and len(begins) == 1:
        return ()
    return tuple(zip(begins.tolist(), (stops - begins).tolist(), strict=True))


def is_listed(starts: Int64s, records: Records) -> Bools:
    """bool[n]: whether a record at each of the positions `starts` int64[n] of a payload is listed."""
    spans = np.array(sorted(records), np.int64).reshape(-1, 2)
    place = np.searchsorted(spans[:, 0], starts, "right") - 1
    return (place >= 0) & (starts < (spans[:, 0] + spans[:, 1])[place])
