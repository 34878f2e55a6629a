"""The contract of a message format.

A format turns the bytes of a block of a file, or of a message, into points in columns and refused records.
To add one: a module with a `MessageFormat`, its line in `FORMATS`, its tests.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from timebeam.schema.annotations import AnnotationEdit
from timebeam.schema.common.batches import join
from timebeam.schema.common.option import Option, OptionKind
from timebeam.schema.points import Envelope, HistogramBytes, Joined, PointBatch, Rejected, Series

E = TypeVar("E", bound=enum.Enum)


class Point(NamedTuple):
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
    """

    text: bytes
    arrival_ms: int
    source: str = ""
    offset: int = 0
    envelope: Envelope | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a message: its points, the refused records, and edits of annotations.

    Attributes:
      skipped: how many records of each kind are left out on purpose, as `stale_markers`.
      histograms: the number of native histograms of Prometheus, and of the points that they became.
    """

    batch: PointBatch
    rejected: Sequence[Rejected]
    annotations: Sequence[AnnotationEdit] = ()
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    histograms: tuple[int, int] = (0, 0)


class Framing(enum.Enum):
    """How files of a format are cut into messages of whole records."""

    LINES = "lines"
    JSON = "lines, or JSON documents over several lines"
    AVRO = "blocks of an Avro object container"
    PARQUET = "row groups of a Parquet file"
    DELIMITED = "protobuf messages, each behind its length, or lines of JSON"
    PROTOBUF = "protobuf messages, each behind its length"
    NONE = "not at all: the format is one of messages"


class RecordEncoding(enum.StrEnum):
    """How records of named fields are written."""

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"

    @property
    def framing(self) -> Framing:
        """How files are cut."""
        return Framing.AVRO if self is RecordEncoding.AVRO else Framing.LINES


class MessageFormat(abc.ABC):
    """One wire format. Instances keep bounded caches and belong to one thread.

    Attributes:
      edits_annotations: whether its records are edits of annotations instead of points.
      escapes_names: whether its names have characters that OpenTSDB does not allow, as a rule.
      declared_options: the options of `from_options`; formats may share one.
    """

    name: str
    example: bytes
    framing: Framing = Framing.LINES
    edits_annotations: ClassVar[bool] = False
    escapes_names: ClassVar[bool] = False
    declared_options: ClassVar[tuple[Option, ...]] = ()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> MessageFormat:
        """A new instance, from those of the options that the format declares.

        Raises:
          ValueError: a value is wrong; the message names the option.
        """
        return cls()

    @abc.abstractmethod
    def parse(self, message: Message) -> Parsed:
        """Reads every record of a message; never raises for bad input, but returns it in `rejected`."""

    def good_points(self, text: bytes) -> int | None:
        """The number of points in the text of a message, if a quick look shows that all of it is good.

        None says nothing: `parse` decides. It only reads caches: another thread may call `parse` meanwhile.
        """
        return None

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """Reads several messages of one source into as few batches as possible.

        Each batch costs about a millisecond after parsing, whatever its size, so messages of one point each
        must share batches. Offsets of refusals count from the start of their message.
        """
        joined = joined_of(messages)
        parsed = [self.parse(message) for message in messages]
        rejected = [
            dataclasses.replace(refusal, arrival_ms=message.arrival_ms, envelope=message.envelope)
            for message, result in zip(messages, parsed, strict=True)
            for refusal in result.rejected
        ]
        edits = [edit for result in parsed for edit in result.annotations]
        skipped: Counter[str] = Counter()
        for result in parsed:
            skipped.update(result.skipped)
        yield Parsed(join([result.batch for result in parsed], joined), rejected, edits, skipped)


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


_ENTRY = re.compile(r"(metric|timestamp|value|tags|tag:[^=:]+)(:?=)(.+)")


class FieldSource(NamedTuple):
    """A field that holds a string, or a constant string."""

    text: str
    constant: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields of a record that hold the parts of a point.

    Attributes:
      timestamp, value: fields with a number, or with an array of numbers.
      tags: a field with a map of tags; empty if there is none.
      tag: (tag key, source of its value) for tags with a field of their own.
    """

    metric: FieldSource
    timestamp: str
    value: str
    tags: str
    tag: tuple[tuple[str, FieldSource], ...]

    @classmethod
    def of(cls, text: str, option: str) -> RecordFields:
        """Parses entries such as `metric=name`, `metric:=constant`, `tag:host=field`, separated by commas.

        Args:
          option: the name of the option, for messages.

        Raises:
          ValueError: an entry is malformed, duplicate or missing.
        """
        sources: dict[str, FieldSource] = {}
        for entry in text.split(","):
            match = _ENTRY.fullmatch(entry.strip())
            if not match or (match[2] == ":=" and match[1] in ("timestamp", "value", "tags")):
                raise ValueError(
                    f"{option}: {entry!r} is not one of metric=FIELD, metric:=TEXT, timestamp=FIELD, "
                    "value=FIELD, tags=FIELD, tag:KEY=FIELD, tag:KEY:=TEXT"
                )
            if match[1] in sources:
                raise ValueError(f"{option}: duplicate {match[1]}")
            sources[match[1]] = FieldSource(match[3], match[2] == ":=")
        missing = {"metric", "timestamp", "value"} - sources.keys()
        if missing:
            raise ValueError(f"{option} lacks {', '.join(sorted(missing))}")
        tags = sources.get("tags")
        return cls(
            sources["metric"],
            sources["timestamp"].text,
            sources["value"].text,
            tags.text if tags else "",
            tuple((key[4:], source) for key, source in sources.items() if key.startswith("tag:")),
        )

    def names(self) -> set[str]:
        """The fields that a record must have."""
        field_names = {source.text for _, source in (("", self.metric), *self.tag) if not source.constant}
        return (field_names | {self.timestamp, self.value, self.tags}) - {""}


def line_spans(text: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) of the lines that hold more than blanks, without newlines; `start` is that of the text."""
    for line in text.split(b"\n"):
        if line.strip():
            yield start, start + len(line)
        start += len(line) + 1


def joined_of(messages: Sequence[Message]) -> Joined:
    """The positions of messages in their texts joined by newlines."""
    n = len(messages)
    lengths = np.fromiter((len(message.text) for message in messages), np.int64, n) + 1
    arrivals = np.fromiter((message.arrival_ms for message in messages), np.int64, n)
    offsets = np.fromiter((message.offset for message in messages), np.int64, n)
    envelopes = [message.envelope for message in messages]
    return Joined(np.cumsum(lengths) - lengths, arrivals, envelopes, offsets)


def member(choices: type[E], option: str, value: str) -> E:
    """The member of an enum with the value of an option.

    Raises:
      ValueError: no member has it.
    """
    try:
        return choices(value)
    except ValueError:
        names = ", ".join(str(choice.value) for choice in choices)
        raise ValueError(f"{option} must be one of {names}, not {value!r}") from None


HISTOGRAM_ID = 42
"""The id of SimpleHistogram in the configuration that OpenTSDB's documentation gives."""

HISTOGRAM_ID_OPTION = Option(
    "histogram_id",
    "opentsdb-histogram, otlp: the id of SimpleHistogramDecoder in tsd.core.histograms.config",
    OptionKind.WHOLE,
    HISTOGRAM_ID,
)


def checked_histogram_id(options: Mapping[str, Any]) -> int:
    """The value of `--histogram_id`.

    Raises:
      ValueError: it is not the value of a byte.
    """
    number = int(options.get("histogram_id", HISTOGRAM_ID))
    if not 0 <= number <= 255:
        raise ValueError(f"histogram_id must be from 0 to 255, not {number}")
    return number
