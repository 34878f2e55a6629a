"""Formats whose records are lines, read on two paths: most lines in columns, the others one by one.

A format tells which lines of a block it can read in columns. All others go to its slow path, which reads any
line and is the reference that tests compare the columnar path with.

In lines with one timestamp and one value, `LineFormat` only finds two numbers; the rest of the line (its
skeleton) is the cache key of the series. The format parses the first line with a skeleton in full, with
known numbers in the two places: this proves that these places hold the timestamp and the value in every
line with the same skeleton. All other lines go to the slow path of the format, one by one.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, byte_view, used_numbers
from timebeam.schema.bits.lru_cache import CACHED_BYTES, LruCache
from timebeam.schema.bits.memory_limit import NoRoomError, charge_json
from timebeam.schema.bits.reasons import Reason, RejectedError, decoded
from timebeam.schema.core.batches import join_pieces, selected
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, PointBatch, Series
from timebeam.schema.core.rejections import Joined, Origins, Spans
from timebeam.schema.formats.base import (
    Framing,
    Message,
    MessageFormat,
    Parsed,
    ParsedPoint,
    Rejections,
    joined_message,
    joined_of,
    separated,
)
from timebeam.schema.formats.options import DEFAULTS, FormatOptions

_AT_ONCE = 1 << 18  # lines that are read together; a block of a file has fewer, a message may have more


@dataclasses.dataclass(frozen=True, slots=True)
class LineRecord:
    """A record from the slow path: its span in the text, and its point or rejection."""

    start: int
    end: int
    outcome: ParsedPoint | RejectedError

    @classmethod
    def of(cls, text: bytes, start: int, end: int, read: Callable[[str], ParsedPoint]) -> LineRecord:
        """The record of one line of UTF-8; `read` gives its point, or raises RejectedError."""
        outcome: ParsedPoint | RejectedError
        try:
            outcome = read(decoded(text[start:end], "line"))
        except RejectedError as error:
            outcome = error
        return cls(start, end, outcome)


NO_POINTS = PointBatch.of([], 0)


def points_of_lines(
    message: Message,
    series: tuple[Sequence[Series], Int64s],
    times: tuple[Int64s, Bools],
    values: tuple[Bytes, Int64s],
    spans: Spans,
) -> PointBatch:
    """n points that were read in columns, with the spans of their lines.

    Args:
      series: all, and the number of each point's.
      times, values: (in ms, whether each was given in ms), (kinds, bits), as in `PointBatch`.
    """
    origins = Origins(message.text, *spans, message.source, message.offset)
    arrivals_ms = np.full(len(series[1]), message.arrival_ms, np.int64)
    index = series[1].astype(np.int32)
    return PointBatch(tuple(series[0]), index, *times, *values, arrivals_ms, origins)


class LinewiseFormat(MessageFormat):
    """A format of lines; a subclass reads many lines in columns, and any single line."""

    def columnar(self, message: Message, starts: Int64s, ends: Int64s) -> tuple[PointBatch, Int64s]:
        """(points of the lines that can be read in columns, int64[k] the numbers of the other lines).

        Here no line is read in columns.

        Args:
          starts, ends: int64[n], spans of lines of the text; at least one.
        """
        return NO_POINTS, np.arange(len(starts))

    @abc.abstractmethod
    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """The records of one line (or other span): the slow path, and the reference."""

    def split(self, text: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
        """The spans of records in lines of several records each; other lines stay as they are.

        Args:
          starts, ends: int64[n], spans of lines.
        """
        return starts, ends

    def _parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`. Blank lines are skipped."""
        if self.is_whole(message.text):
            return self._read_lines(message, np.zeros(1, np.int64), np.full(1, len(message.text)))
        return self._read_lines(message, *text_columns.lines(message.text))

    def _parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; messages of lines are read as one text."""
        text = joined_message(messages)
        if text.text.count(b"\n") >= len(messages):  # one has several lines
            documents: list[Message] = []
            lines: list[Message] = []
            for message in messages:
                (documents if self.is_whole(message.text) else lines).append(message)
            if documents:
                yield from super()._parse_all(documents)
                messages, text = lines, joined_message(lines)
        if messages:
            joined = joined_of(messages)
            yield separated(self._read_lines(text, *text_columns.lines(text.text), joined), joined)

    def _read_lines(
        self, message: Message, starts: Int64s, ends: Int64s, joined: Joined | None = None
    ) -> Parsed:
        """The records in these lines (or other spans) of a text; `joined` as in `Rejections`."""
        if self.framing is Framing.JSON:
            charge_json(message.text)
        starts, ends = self.split(message.text, starts, ends)
        rejections = Rejections(message, joined)
        together = (slice(first, first + _AT_ONCE) for first in range(0, len(starts), _AT_ONCE))
        batches = [self._read_some(message, starts[lines], ends[lines], rejections) for lines in together]
        return Parsed(join_pieces(batches, message.text, message.offset), rejections.rejected())

    def _read_some(
        self, message: Message, starts: Int64s, ends: Int64s, rejections: Rejections
    ) -> PointBatch:
        """The points of some lines of a text; adds their rejections to `rejections`."""
        text = message.text
        fast, slow = self.columnar(message, starts, ends)
        points: list[ParsedPoint] = []
        spans: list[tuple[int, int]] = []
        for line in slow:
            count = len(points)
            try:
                for record in self.records(text, int(starts[line]), int(ends[line])):
                    if isinstance(record.outcome, RejectedError):
                        rejections.add(record.start, record.end, record.outcome)
                    else:
                        points.append(record.outcome)
                        spans.append((record.start, record.end))
            except NoRoomError as error:
                if rejections.is_of_many:
                    raise  # for each message there is as much room
                del points[count:], spans[count:]
                why = RejectedError(Reason.CORRUPT_MESSAGE, str(error))
                rejections.add(int(starts[line]), int(ends[line]), why)
        if not points:
            return fast
        where = np.array(spans, np.int64).reshape(-1, 2)
        origins = Origins(text, where[:, 0], where[:, 1], message.source, message.offset)
        others = PointBatch.of(points, message.arrival_ms, origins)
        joined = join_pieces([fast, others], text, message.offset)
        assert joined.origins is not None
        return joined.take(np.argsort(joined.origins.starts, kind="stable"))


Skeleton = tuple[bytes, bytes, bytes]

_PROBE_TIME = 1_987_654_321
_PROBE_VALUE = 4_815_162_342
_PROBE_MARKS = (b"%d" % _PROBE_TIME, b"%d" % _PROBE_VALUE, b"\\u003")  # and digits as JSON escapes


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Where the numbers of n lines begin: byte positions int64[n], bool[n] whether both were found."""

    times: Int64s
    values: Int64s
    is_located: Bools


class _SlowSkeleton:
    """A cached skeleton whose lines must take the slow path."""


_SLOW = _SlowSkeleton()


class LineFormat(LinewiseFormat):
    """A format for the columnar reader; a subclass locates the numbers and parses single lines."""

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._skeletons: LruCache[Skeleton, Series | _SlowSkeleton] = LruCache(options.remembered)
        self._series: LruCache[Series, Series] = LruCache(options.remembered)
        self._has_long = False

    @abc.abstractmethod
    def locate(self, text: bytes, view: Bytes, starts: Int64s, ends: Int64s) -> Places:
        """Where the timestamp and value of each line begin; wrong places are detected later.

        Args:
          text: the bytes, with padding after the last line (see `text_columns.padded`).
          view: the same as uint8.
          starts, ends: int64[n], spans of the lines, without newlines.
        """

    def columnar(self, message: Message, starts: Int64s, ends: Int64s) -> tuple[PointBatch, Int64s]:
        """See `LinewiseFormat.columnar`; one point per line."""
        text = message.text
        padded = text_columns.padded(text)
        view = byte_view(padded)
        places = self.locate(padded, view, starts, ends)
        values = text_columns.numbers(padded, places.values, places.is_located)
        time_lengths, times = text_columns.timestamps(padded, places.times)
        good = values.good & (time_lengths > 0) & (times <= LAST_MILLISECOND)
        time_first = places.times < places.values
        good &= places.times + time_lengths <= np.where(time_first, places.values, ends)
        mostly_time_first = bool(time_first[good].sum() * 2 >= good.sum())
        good &= time_first == mostly_time_first  # lines with the rarer order of keys take the slow path
        lines = np.flatnonzero(good)
        if len(lines) == 0:
            return NO_POINTS, np.arange(len(starts))
        cuts = [places.times, places.times + time_lengths, places.values, places.values + values.lengths]
        if not mostly_time_first:
            cuts = cuts[2:] + cuts[:2]
        cuts = [starts, *cuts, ends]
        chosen: slice | Int64s = slice(None) if len(lines) == len(starts) else lines
        cuts, times = [cut[chosen] for cut in cuts], times[chosen]
        names, series = self._resolve(self._skeletons_of(text, padded, cuts), mostly_time_first)
        in_ms = times >= FIRST_MILLISECOND
        times_ms = np.where(in_ms, times, times * 1000)
        numbers = values.kinds[chosen], values.bits[chosen]
        in_series, spans = (names, series), (cuts[0], cuts[5])
        points = points_of_lines(message, in_series, (times_ms, in_ms), numbers, spans)
        is_plain = series >= 0
        good[lines] = is_plain
        return points if is_plain.all() else selected(points, is_plain), np.flatnonzero(~good)

    def _skeletons_of(
        self, text: bytes, padded: bytes, cuts: list[Int64s]
    ) -> list[tuple[Int64s, list[bytes]]]:
        """The strings before, between and after the numbers of n lines, each as `text_columns.distinct`.

        Args:
          cuts: six int64[n]: start of line, start and end of the first and second number, end of line.
        """
        # The string between two lines holds the newline, and all lines that were not located.
        cut = text_columns.strings_between(text, *cuts).view(pa.binary())
        indexes = np.arange(0, len(cut), len(cuts))
        between = text_columns.first_if_same(padded, cuts[2], cuts[3])
        return [
            text_columns.distinct(cut, indexes),
            between or text_columns.distinct(cut, indexes + 2),
            text_columns.distinct(cut, indexes + 4),
        ]

    def _resolve(
        self, keys: list[tuple[Int64s, list[bytes]]], time_first: bool
    ) -> tuple[list[Series], Int64s]:
        """(distinct series, int64[n] the number of each line's series) of lines by their skeleton strings."""
        strings = [distinct_strings for _, distinct_strings in keys]
        sizes = [len(distinct_strings) for distinct_strings in strings]
        code = (keys[0][0] * sizes[1] + keys[1][0]) * sizes[2] + keys[2][0]
        if sizes[0] * sizes[1] * sizes[2] <= 4 * len(code) + 1024:
            used, inverse = used_numbers(code)
        else:
            used, inverse = np.unique(code, return_inverse=True)
        prefixes, tails = np.divmod(used, sizes[2])
        places = (*np.divmod(prefixes, sizes[1]), tails)
        pieces = [
            map(distinct_strings.__getitem__, place.tolist())
            for distinct_strings, place in zip(strings, places, strict=True)
        ]
        numbers: dict[int, int] = {}  # by identity: equal series are one object, see `_all_series`
        names: list[Series] = []
        number_of = []
        for series in self._all_series(list(zip(*pieces, strict=True)), time_first):
            if isinstance(series, _SlowSkeleton):
                number_of.append(-1)
                continue
            number = numbers.setdefault(id(series), len(names))
            if number == len(names):
                names.append(series)
            number_of.append(number)
        if self._series.full or self._has_long:  # one that is not, or no more, cached may be two objects
            distinct: dict[Series, int] = {}
            renumber = [distinct.setdefault(series, len(distinct)) for series in names]
            names, number_of = list(distinct), [renumber[i] if i >= 0 else -1 for i in number_of]
        return names, np.array(number_of, np.int64)[inverse]

    def _all_series(self, skeletons: Sequence[Skeleton], time_first: bool) -> list[Series | _SlowSkeleton]:
        """The series of each skeleton, or `_SLOW` if its lines must take the slow path; cached."""
        cached = self._skeletons.get_all(skeletons)
        return [
            self._learn(skeleton, time_first) if known is None else known
            for skeleton, known in zip(skeletons, cached, strict=True)
        ]

    def _learn(self, skeleton: Skeleton, time_first: bool) -> Series | _SlowSkeleton:
        """Like `_all_series`, for a skeleton that is not cached."""
        learned = self._probe(skeleton, time_first) or _SLOW
        if sum(map(len, skeleton)) > CACHED_BYTES:
            self._has_long = True
            return learned
        if isinstance(learned, Series):
            self._series[learned] = learned = self._series.get(learned) or learned
        self._skeletons[skeleton] = learned
        return learned

    def _probe(self, skeleton: Skeleton, time_first: bool) -> Series | None:
        """Parses a line with this skeleton and known numbers; its series if they are read as expected."""
        if any(mark in piece for piece in skeleton for mark in _PROBE_MARKS):
            return None  # the parser could read other numbers than those in the two places
        numbers = [str(_PROBE_TIME).encode(), str(_PROBE_VALUE).encode()]
        if not time_first:
            numbers.reverse()
        line = skeleton[0] + numbers[0] + skeleton[1] + numbers[1] + skeleton[2]
        outcomes = [record.outcome for record in self.records(line, 0, len(line))]
        if len(outcomes) != 1 or isinstance(outcomes[0], RejectedError):
            return None
        series, time_ms, in_ms, value = outcomes[0]
        proven = (time_ms, in_ms, value) == (_PROBE_TIME * 1000, False, _PROBE_VALUE)
        return series if proven and isinstance(value, int) else None
