"""Formats whose records are lines, read on two paths: most lines in columns, the others one by one.

A format tells which lines of a block it can read in columns. All others go to its slow path, which reads any
line and is the reference that tests compare the columnar path with.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from timebeam.schema.common.batches import concatenate
from timebeam.schema.messages import columns
from timebeam.schema.messages.base import Message, MessageFormat, Parsed, Point, joined_of
from timebeam.schema.messages.refusals import Refusals
from timebeam.schema.points import Bools, Bytes, Int64s, Joined, Origins, PointBatch, RefusedError, Series

_AT_ONCE = 1 << 18  # lines that are read together; a block of a file has fewer, a message may have more
_IS_SOLID = np.array([bool(bytes([byte]).strip()) for byte in range(256)])


@dataclasses.dataclass(frozen=True, slots=True)
class LineRecord:
    """A record from the slow path: its span in the text, and its point or refusal."""

    start: int
    end: int
    outcome: Point | RefusedError


@dataclasses.dataclass(frozen=True, slots=True)
class PointColumns:
    """n points that were read in columns; `names` are their series, `starts` and `ends` spans of lines."""

    names: list[Series]
    series: Int64s
    times_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    starts: Int64s
    ends: Int64s

    @classmethod
    def empty(cls) -> PointColumns:
        """No points."""
        none = np.empty(0, np.int64)
        return cls([], none, none, none.astype(np.bool_), none.astype(np.uint8), none, none, none)

    def take(self, points: Int64s) -> PointColumns:
        """A selection of points, without unused series."""
        used = np.flatnonzero(np.bincount(self.series[points], minlength=1))
        rank = np.zeros(len(self.names), np.int64)
        rank[used] = np.arange(len(used))
        return PointColumns(
            [self.names[number] for number in used.tolist()],
            rank[self.series[points]],
            self.times_ms[points],
            self.in_ms[points],
            self.kinds[points],
            self.bits[points],
            self.starts[points],
            self.ends[points],
        )


class LinewiseFormat(MessageFormat):
    """A format of lines; a subclass reads many lines in columns, and any single line."""

    def spans(self, text: bytes) -> tuple[Int64s, Int64s]:
        """(starts, ends) int64[n] of the lines that are not blank, without newlines."""
        view = columns.byte_view(text)
        newline = view == 10
        if np.count_nonzero(newline) * 8 > len(text):  # most lines are empty: only others get spans
            newline = np.concatenate(([True], newline, [True]))
            starts = np.flatnonzero(newline[:-1] > newline[1:])
            ends = np.flatnonzero(newline[1:] > newline[:-1])
        else:
            ends = np.flatnonzero(newline)
            if text and not text.endswith(b"\n"):
                ends = np.append(ends, len(text))
            starts = np.empty_like(ends)
            if len(starts):
                starts[0] = 0
                starts[1:] = ends[:-1] + 1
        doubtful = np.flatnonzero(view[starts] <= 32)
        if len(doubtful):
            blank = doubtful[_are_blank(view, starts[doubtful], ends[doubtful])]
            if len(blank):
                starts, ends = np.delete(starts, blank), np.delete(ends, blank)
        return starts, ends

    @abc.abstractmethod
    def columnar(self, text: bytes, starts: Int64s, ends: Int64s) -> tuple[PointColumns, Int64s]:
        """(points of the lines that can be read in columns, int64[k] the numbers of the other lines).

        Args:
          starts, ends: int64[n], the lines from `spans`; at least one.
        """

    @abc.abstractmethod
    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """The records of one line (or other span): the slow path, and the reference."""

    def is_lines(self, text: bytes) -> bool:
        """Whether each line of a text is a record; not so for a document over several lines."""
        return True

    def parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`. Blank lines are skipped."""
        return self._read_lines(message, *self.spans(message.text))

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; messages of lines are read as one text."""
        documents = [message for message in messages if not self.is_lines(message.text)]
        if documents:
            yield from super().parse_all(documents)
            messages = [message for message in messages if self.is_lines(message.text)]
        if messages:
            yield self._parse_joined(messages)

    def _parse_joined(self, messages: Sequence[Message]) -> Parsed:
        """The records of messages whose lines are records."""
        joined = joined_of(messages)
        text = Message(b"\n".join([message.text for message in messages]), 0, messages[0].source)
        parsed = self._read_lines(text, *LinewiseFormat.spans(self, text.text), joined)
        batch = parsed.batch
        if batch.origins is not None:
            batch = dataclasses.replace(
                batch,
                arrivals_ms=joined.arrivals_at(batch.origins.starts),
                origins=dataclasses.replace(batch.origins, joined=joined),
            )
        return Parsed(batch, [joined.addressed(rejected) for rejected in parsed.rejected])

    def _read_lines(
        self, message: Message, starts: Int64s, ends: Int64s, joined: Joined | None = None
    ) -> Parsed:
        """The records in these lines (or other spans) of a text; `joined` as in `Refusals`."""
        refusals = Refusals(message, joined)
        batch = PointBatch.of([], message.arrival_ms)
        for first in range(0, len(starts), _AT_ONCE):
            last = first + _AT_ONCE
            new_points = self._read_some(message, starts[first:last], ends[first:last], refusals)
            batch = (
                concatenate(batch, new_points)
                if len(batch) and len(new_points)
                else new_points
                if len(new_points)
                else batch
            )
        return Parsed(batch, refusals.rejected())

    def _read_some(self, message: Message, starts: Int64s, ends: Int64s, refusals: Refusals) -> PointBatch:
        """The points of some lines of a text; adds their refusals to `refusals`."""
        text = message.text
        fast, slow = self.columnar(text, starts, ends)
        points: list[Point] = []
        spans: list[tuple[int, int]] = []
        for line in slow:
            for record in self.records(text, int(starts[line]), int(ends[line])):
                if isinstance(record.outcome, RefusedError):
                    refusals.add(record.start, record.end, record.outcome)
                else:
                    points.append(record.outcome)
                    spans.append((record.start, record.end))
        return _batch(message, fast, points, spans)


def _are_blank(view: Bytes, starts: Int64s, ends: Int64s) -> Bools:
    """bool[n]: whether each line is blank; computed in arrays, since there may be millions."""
    blank = starts == ends
    if not blank.all():
        solid = np.zeros(len(view) + 1, np.int32)  # number of non-blank bytes before each byte
        np.cumsum(_IS_SOLID[view], out=solid[1:])
        blank |= solid[starts] == solid[ends]
    return blank


def _batch(
    message: Message, fast: PointColumns, points: list[Point], spans: list[tuple[int, int]]
) -> PointBatch:
    """The points of both paths as one batch, in the order of the input."""
    origins = Origins(message.text, fast.starts, fast.ends, message.source, message.offset)
    arrivals = np.full(len(fast.series), message.arrival_ms, np.int64)
    batch = PointBatch(
        tuple(fast.names),
        fast.series.astype(np.int32),
        fast.times_ms,
        fast.in_ms,
        fast.kinds,
        fast.bits,
        arrivals,
        origins,
    )
    if not points:
        return batch
    where = np.array(spans, np.int64).reshape(-1, 2)
    origins = Origins(message.text, where[:, 0], where[:, 1], message.source, message.offset)
    joined = concatenate(batch, PointBatch.of(points, message.arrival_ms, origins))
    assert joined.origins is not None
    return joined.take(np.argsort(joined.origins.starts, kind="stable"))
