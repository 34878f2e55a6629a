"""The contract of a message format, and the rejections of a message.

A format turns the bytes of a block of a file, or of a message, into points in columns and rejected records.
To add one: see `timebeam.schema.formats`.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import math
import traceback
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from timebeam.schema.bits.json_text import is_document
from timebeam.schema.bits.memory_limit import NoRoomError, metered
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.annotations import AnnotationEdit
from timebeam.schema.core.batches import join, join_pieces
from timebeam.schema.core.points import HistogramBytes, PointBatch, Series
from timebeam.schema.core.rejections import Envelope, Joined, Records, Rejected, Stage, records_of
from timebeam.schema.formats.options import DEFAULTS, FormatOptions, Nan


class ParsedPoint(NamedTuple):
    """One point from the slow path of a format."""

    series: Series
    time_ms: int
    in_ms: bool
    value: int | float | HistogramBytes


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """Bytes to parse, and where they come from.

    Attributes:
      text: a block of whole records of a file, or the payload of one message.
      arrival_ms: publish time of the message, or modification time of the file, in ms.
      source: file path or subscription.
      offset: byte offset of `text` in the (decompressed) source.
      envelope: of a Pub/Sub message; else None.
      records: the records of `text` to read, as in `Rejected`: formats whose rejections list records read no
        others. Empty for all.
      rejected_at_most: after so many rejected records the message is read no further: TooManyRejectedError.
        None for no limit.
    """

    text: bytes
    arrival_ms: int
    source: str = ""
    offset: int = 0
    envelope: Envelope | None = None
    records: Records = ()
    rejected_at_most: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a message: its points, the rejected records, and edits of annotations.

    Attributes:
      skipped: how many records of each kind are left out on purpose, as `stale_markers`.
      histograms: the number of native histograms of Prometheus, and of all points that they became.
    """

    batch: PointBatch
    rejected: Sequence[Rejected]
    annotations: Sequence[AnnotationEdit] = ()
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    histograms: tuple[int, int] = (0, 0)

    @property
    def points(self) -> PointBatch:
        """The points: `batch`, by its name in the library."""
        return self.batch


class Framing(enum.Enum):
    """How files of a format are cut into messages of whole records."""

    LINES = "lines"
    JSON = "lines, or JSON documents over several lines"
    AVRO = "blocks of an Avro object container"
    PARQUET = "row groups of a Parquet file"
    DELIMITED = "protobuf messages, each behind its length, or lines of JSON"
    PROTOBUF = "protobuf messages, each behind its length"
    NONE = "not at all: the format is one of messages"


class TooManyRejectedError(Exception):
    """A message has more rejected records than `Message.rejected_at_most` allows; `rejected` are the
    first."""

    def __init__(self, rejected: Sequence[Rejected]) -> None:
        super().__init__(f"more than {len(rejected)} records are rejected")
        self.rejected = rejected


class MessageFormat(abc.ABC):
    """One wire format. Instances keep bounded caches and belong to one thread.

    `parse` and `parse_all` are the doors: what cannot be read together is read in halves, and what cannot be
    read alone is rejected, whatever `_parse` and `_parse_all` raise. So no record costs another one.

    Attributes:
      name, example: small letters, digits and `-`; a good message.
      options_class: the class of its options, which a format of another package may extend.
      edits_annotations: whether its records are edits of annotations instead of points.
      escapes_names: whether its names have characters that OpenTSDB does not allow, as a rule.
      skips_nan: whether NaN and infinities are left out and counted, as `NOT_FINITE`, and not rejected; a
        format whose values are doubles takes it from option `nan`, in others they are no numbers.
    """

    name: str
    example: bytes
    options_class: ClassVar[type[FormatOptions]] = FormatOptions
    framing: Framing = Framing.LINES
    edits_annotations: ClassVar[bool] = False
    escapes_names: ClassVar[bool] = False
    skips_nan: bool = False

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        """A new instance with its own options among these; raises ValueError if one is wrong."""
        self._options = options
        if options.nan is not None:
            self.skips_nan = options.nan is Nan.SKIP

    def parse(self, message: Message) -> Parsed:
        """Reads every record of a message; never raises for input, but returns it in `rejected`."""
        try:
            with metered():
                return self._parse(message)
        except _PASSED:
            raise
        except Exception as error:  # which no format has foreseen, or there is no room for all of it
            halves = self._halves(message)
            if not halves:
                return Parsed(PointBatch.of([], message.arrival_ms), [self._failure(message, error)])
            parsed = [self.parse(half) for half in halves]
            return _summed(join_pieces([half.batch for half in parsed], message.text, message.offset), parsed)

    @abc.abstractmethod
    def _parse(self, message: Message) -> Parsed:
        """Reads every record of a message; what it raises becomes a rejection (`parse`)."""

    def good_points(self, text: bytes) -> int | None:
        """The number of points in the text of a message, if a quick look shows that all of it is good.

        None says nothing: `parse` decides. It only reads caches: another thread may call `parse` meanwhile.
        """
        return None

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """Reads several messages of one source into as few batches as possible.

        Each batch costs about a millisecond after parsing, whatever its size, so messages of one point each
        must share batches. Offsets of rejections count from the start of their message.
        """
        try:
            with metered():
                read = list(self._parse_all(messages))
        except _PASSED:
            raise
        except Exception as error:  # see `parse`
            if len(messages) > 1:
                halves = [messages[: len(messages) // 2], messages[len(messages) // 2 :]]
            else:
                halves = [[half] for half in self._halves(messages[0])]
            if not halves:
                read = [Parsed(PointBatch.of([], 0), [self._failure(messages[0], error)])]
            else:
                for half in halves:
                    yield from self.parse_all(half)
                return
        yield from read

    def is_whole(self, text: bytes) -> bool:
        """Whether a text is one record over several lines."""
        return self.framing is Framing.JSON and is_document(text)

    def _halves(self, message: Message) -> list[Message]:
        """A message of several lines as two; none if its text is one record, or is not made of lines."""
        text = message.text
        if self.framing not in (Framing.LINES, Framing.JSON):
            return []
        if self.is_whole(text):
            return []
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        cut = text.find(b"\n", max(first, (first + last) // 2), last) + 1
        cut = cut or text.rfind(b"\n", first, last) + 1
        if not cut:
            return []
        second = dataclasses.replace(message, text=text[cut:], offset=message.offset + cut)
        return [dataclasses.replace(message, text=text[:cut]), second]

    def _failure(self, message: Message, error: Exception) -> Rejected:
        """The rejection of a message that raises an error."""
        if isinstance(error, NoRoomError):
            reason, why = Reason.CORRUPT_MESSAGE, str(error)
        elif isinstance(error, RejectedError):
            reason, why = error.reason, error.message
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            reason = Reason.INTERNAL_ERROR
            why = f"the reader of {self.name} failed at {place}: {type(error).__name__}: {error}"[:180]
        around = b"\r\n" if self.framing in (Framing.LINES, Framing.JSON) else b""
        text = message.text.strip(around)
        start = len(message.text) - len(message.text.lstrip(around))
        place_in_source = (message.source, message.offset + start, message.arrival_ms, message.envelope)
        return Rejected(text, reason, why, Stage.PARSE, *place_in_source, records=message.records)

    def _parse_all(self, messages: Sequence[Message]) -> Iterable[Parsed]:
        """As `parse_all`, but raises what it raises."""
        joined = joined_of(messages)
        parsed = [self._parse(message) for message in messages]
        return [_summed(join([result.batch for result in parsed], joined), parsed)]


_PASSED = (TooManyRejectedError, MemoryError)
"""What a door lets pass: the caller wants no more, or this process has no memory, for whatever message."""


def _summed(batch: PointBatch, parts: Sequence[Parsed]) -> Parsed:
    """The points of `batch`, with everything else that was read in parts."""
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    rejected = [rejected for part in parts for rejected in part.rejected]
    return Parsed(batch, rejected, [edit for part in parts for edit in part.annotations], skipped)


def separated(parsed: Parsed, joined: Joined) -> Parsed:
    """What was read from a text of joined messages, with the arrivals and offsets of each message."""
    batch, origins = parsed.batch, parsed.batch.origins
    if origins is not None:
        arrivals_ms = joined.arrivals_at(origins.starts)
        origins = dataclasses.replace(origins, joined=joined)
        batch = dataclasses.replace(batch, arrivals_ms=arrivals_ms, origins=origins)
    return dataclasses.replace(
        parsed, batch=batch, rejected=[joined.addressed(rejected) for rejected in parsed.rejected]
    )


def joined_message(messages: Sequence[Message]) -> Message:
    """The texts of messages of one source, joined by newlines, for spans in them; see `joined_of`."""
    text = b"\n".join([message.text for message in messages])
    first = messages[0] if messages else Message(b"", 0)
    return Message(text, 0, first.source, rejected_at_most=first.rejected_at_most)


def joined_of(messages: Sequence[Message]) -> Joined:
    """The positions of messages in their texts joined by newlines."""
    n = len(messages)
    lengths = np.fromiter((len(message.text) for message in messages), np.int64, n) + 1
    arrivals = np.fromiter((message.arrival_ms for message in messages), np.int64, n)
    offsets = np.fromiter((message.offset for message in messages), np.int64, n)
    envelopes = [message.envelope for message in messages]
    return Joined(np.cumsum(lengths) - lengths, arrivals, envelopes, offsets)


NOT_FINITE = "not_finite"
"""The kind of `Parsed.skipped` for points that are NaN or infinite."""


class RejectedPoints:
    """The rejections of points of one record, which can be millions: the first of each reason, and counts."""

    def __init__(self) -> None:
        self._first: dict[Reason, str] = {}
        self._counts: Counter[Reason] = Counter()

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
    """Gathers the rejections of a message, in the order of its bytes.

    A message can hold millions of bad records of two bytes each. Each of the first `SINGLE` is one rejection;
    after them, those with the same reason share a rejection, so all bytes are kept.
    """

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
