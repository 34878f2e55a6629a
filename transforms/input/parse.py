"""Messages of any format, of files or of Pub/Sub, into points, rejections, and edits of annotations.

Parsing and each step behind it cost about a millisecond for one point or thousands, so short messages are
parsed together. Attributes of a message say how to read it:

| attribute | meaning |
|---|---|
| `format` | the message format instead of `--format`: one of `--formats` |
| `content-encoding` | `gzip`, `zstd`, `snappy` or `base64`, or two of them: how the payload is packed |
| `ce-type`, `content-type` | with `--format auto`: of OTLP and remote write |
| `method` | `opentsdb-annotations`: POST, PUT or DELETE, as of the HTTP request |
| `googclient_schemaencoding` | `BINARY` or `JSON`: set by topics with a schema: the encoding of `avro` |
| `influx_precision` | the unit of the timestamps of `influx`, instead of `--influx-precision` |
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import apache_beam as beam
from apache_beam import typehints
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput
from apache_beam.utils import shared

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.annotations import AnnotationEdit
from timebeam.schema.core.batches import follows, join_pieces
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import (
    AUTO,
    FORMATS,
    Framing,
    Message,
    MessageFormat,
    Parsed,
    message_format,
    unknown_format,
)
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import REJECTED, BufferedDoFn, RejectedOutput, reject, windowed
from timebeam.transforms.input.unpack_messages import (
    GATHERED_BYTES,
    JSON,
    ReadMessage,
    choose_format,
    is_told_by_content,
    joined_contents,
    parse_gathered,
    rejected_message,
    unwrapped,
)

GATHERED_MESSAGES = 50_000
"""A list of messages is complete when it has so many, or `GATHERED_BYTES`."""

_LISTS = typehints.List[Message]

FormatKey = tuple[str, str]
"""Name of a format, and what its attribute in `VARIANTS` says (empty for none)."""

VARIANTS = {"avro": ("googclient_schemaencoding", "avro_encoding"), "influx": ("influx_precision",) * 2}
"""Formats of which a message chooses an option: its attribute and the option."""

ANNOTATIONS: Final = "annotations"

SPARSE_POINTS = 200
"""`JoinFn` joins batches with fewer points for each series, until they have so many."""

JOINED_POINTS = 300_000
JOINED_BYTES = 32 << 20
"""Or so many points in all, or so many bytes of text."""

AnnotationsOutput = TaggedOutput[Literal["annotations"], list[AnnotationEdit]]


def parsing(fn: beam.DoFn) -> Any:
    """A ParDo with the outputs `main` (`PointBatch`), `REJECTED` and `ANNOTATIONS` (lists of edits)."""
    step = beam.ParDo(fn).with_output_types(PointBatch)
    return step.with_outputs(REJECTED, ANNOTATIONS, main="main")


def parsed_points(parsed: Parsed) -> Iterable[PointBatch | AnnotationsOutput]:
    """Points, and edits as elements of `ANNOTATIONS`, of a parsed message; counts them and the rejections."""
    rejected_points = sum(rejected.points for rejected in parsed.rejected)
    metrics.count("points_read", len(parsed.batch) + rejected_points)
    metrics.count_skipped(parsed.skipped)
    if parsed.annotations:
        metrics.count_annotations("annotations_read", len(parsed.annotations))
        yield TaggedOutput(ANNOTATIONS, list(parsed.annotations))
    if len(parsed.batch):
        yield parsed.batch


class JoinFn(beam.DoFn):
    """`PointBatch` in; larger ones out, in order: those of adjacent blocks with few points of each series.

    A batch becomes one piece of each row that it touches. A block of a hundred thousand series has a point of
    each, and a piece costs as much as a hundred points.
    """

    def __init__(self) -> None:
        self._batches: list[PointBatch] = []

    def start_bundle(self) -> None:
        """Starts without points."""
        self._batches = []

    def process(self, batch: PointBatch) -> Iterator[PointBatch]:
        is_sparse = len(batch) < SPARSE_POINTS * len(batch.series)
        if self._batches and not (is_sparse and follows(self._batches[-1], batch)):
            yield self._joined()
        if not is_sparse:
            yield batch
            return
        self._batches.append(batch)
        size = sum(len(batch.origins.text) for batch in self._batches if batch.origins is not None)
        points = min(JOINED_POINTS, SPARSE_POINTS * len(batch.series))
        if sum(map(len, self._batches)) >= points or size >= JOINED_BYTES:
            yield self._joined()

    def finish_bundle(self) -> Iterator[Any]:
        """The rest of the bundle."""
        return windowed([self._joined()] if self._batches else ())

    def _joined(self) -> PointBatch:
        batches, self._batches = self._batches, []
        if len(batches) == 1:
            return batches[0]
        origins = [batch.origins for batch in batches if batch.origins is not None]
        return join_pieces(batches, b"".join([origin.text for origin in origins]), origins[0].offset)


class ParseFn(beam.DoFn):
    """`Message` in; `PointBatch` out, rejected records to the output `REJECTED`, edits to `ANNOTATIONS`."""

    def __init__(self, format_name: str, options: Mapping[str, Any]) -> None:
        """See `message_format` for the arguments."""
        self._format_name, self._options = format_name, options
        self._format: MessageFormat | None = None

    def setup(self) -> None:
        """Makes the format, whose caches live as long as the worker."""
        self._format = message_format(self._format_name, self._options)

    def process(self, message: Message) -> Iterable[PointBatch | RejectedOutput | AnnotationsOutput]:
        assert self._format is not None
        parsed = self._format.parse(message)
        for rejected in parsed.rejected:
            yield reject(rejected)
        yield from parsed_points(parsed)


class GatherFn(BufferedDoFn[Message]):
    """`Message` in; lists of them out, of a bounded size, within a bundle."""

    most, most_weight = GATHERED_MESSAGES, GATHERED_BYTES

    def weight(self, message: Message) -> int:
        return len(message.text)

    def handle(self, messages: list[Message]) -> Iterable[list[Message]]:
        return (messages,)


def gathered(messages: PCollection[Any]) -> PCollection[list[Message]]:
    """Lists of messages, from a source of single messages or of lists."""
    if messages.element_type == _LISTS:
        return messages
    return messages | "Gather" >> beam.ParDo(GatherFn()).with_output_types(list[Message])


def single(messages: PCollection[Any]) -> PCollection[Message]:
    """Single messages, from a source of single messages or of lists."""
    if messages.element_type != _LISTS:
        return messages
    return messages | "Each" >> beam.FlatMap(iter).with_output_types(Message)


class Formats:
    """The message formats of one worker thread, created when needed; each keeps its caches."""

    def __init__(self, name: str, options: Mapping[str, Any], selectable: Collection[str] = ()) -> None:
        """`name` is the default format; a message may choose another of `selectable` by attribute."""
        self._name, self._options, self._selectable = name, dict(options), tuple(selectable)
        self._formats: dict[FormatKey, MessageFormat] = {}

    def key(self, message: Message) -> FormatKey:
        """The format that a message is read with.

        Raises:
          RejectedError: no format has that name, it is not selectable, or the options do not fit it.
        """
        attributes = message.envelope.attributes if message.envelope else {}
        if not attributes:
            return self._default_key
        name = attributes.get("format") or self._name
        if name != self._name and name not in self._selectable:  # whose package a message does not choose
            why = f"attributes of the message: {unknown_format(name)}"
            if name in FORMATS:
                why = f"attribute format: {name} is not read here: add it with --formats {name}"
            raise RejectedError(Reason.UNKNOWN_FORMAT, why)
        return self._key(name, attributes)

    def open(self, message: Message) -> Message:
        """A message without packings that its content tells, and with the name of its format.

        Raises:
          RejectedError: a packing is corrupt, or `key` rejects the message.
        """
        attributes = message.envelope.attributes if message.envelope else {}
        if not attributes and self._name != AUTO:
            if message.text[:1] in JSON or not self._is_default_told:
                return message
            return unwrapped(message, is_whole=False)
        if (attributes.get("format") or self._name) == AUTO:
            plain = unwrapped(message, is_whole=True)
            return choose_format(
                plain, [(each, self[self._key(each, attributes)]) for each in self._selectable]
            )
        return unwrapped(message, is_whole=False) if is_told_by_content(self[self.key(message)]) else message

    @functools.cached_property
    def _default_key(self) -> FormatKey:
        """The format of messages without attributes; raises as `_key` does."""
        return self._key(self._name, {})

    @functools.cached_property
    def _is_default_told(self) -> bool:
        """Whether the content of messages without attributes tells how they are packed; raises as `_key`."""
        return is_told_by_content(self[self._default_key])

    def _key(self, name: str, attributes: Mapping[str, str]) -> FormatKey:
        """A format, made when it is needed, with the option that the attributes of a message choose.

        Raises:
          RejectedError: no format has that name, or the options do not fit it.
        """
        attribute, option = VARIANTS.get(name, ("", ""))
        variant = attributes.get(attribute, "").lower()
        if (name, variant) not in self._formats:
            options = self._options | ({option: variant} if variant else {})
            try:
                self._formats[name, variant] = message_format(name, options)
            except ValueError as error:
                raise RejectedError(Reason.UNKNOWN_FORMAT, f"attributes of the message: {error}") from error
        return name, variant

    def __getitem__(self, key: FormatKey) -> MessageFormat:
        return self._formats[key]


class _Pool:
    """Idle formats, with their caches; one pool per process."""

    def __init__(self) -> None:
        self.free: list[Formats] = []


class ParseMessagesFn(beam.DoFn):
    """Lists of `Message` in; `PointBatch` out, rejected records to `REJECTED`, edits to `ANNOTATIONS`."""

    def __init__(
        self, format_name: str, options: Mapping[str, Any], selectable: Collection[str] = ()
    ) -> None:
        """See `message_format`; `selectable` are the formats that a message may choose by attribute."""
        self._format_name, self._options, self._selectable = format_name, dict(options), tuple(selectable)
        self._shared = shared.Shared()
        self._pool: _Pool | None = None
        self._formats: Formats | None = None

    def hold(self) -> _Pool:
        """The caches of this process, which live as long as they are referenced, between runs too."""
        pool: _Pool = self._shared.acquire(_Pool)
        return pool

    def setup(self) -> None:
        """Takes formats, with their caches, from the pool of the process."""
        self._pool = self.hold()
        try:
            self._formats = self._pool.free.pop()
        except IndexError:
            self._formats = Formats(self._format_name, self._options, self._selectable)

    def teardown(self) -> None:
        """Returns the formats to the pool."""
        if self._pool is not None and self._formats is not None:
            self._pool.free.append(self._formats)
            self._formats = None

    def process(
        self, messages: Sequence[Message]
    ) -> Iterable[PointBatch | RejectedOutput | AnnotationsOutput]:
        assert self._formats is not None
        return parse_gathered(messages, self._framing_of, self._parse, self._formats.open)

    def _framing_of(self, message: Message) -> Framing:
        """How the text of a message may be cut; raises RejectedError."""
        assert self._formats is not None
        return self._formats[self._formats.key(message)].framing

    def _parse(
        self, messages: Sequence[Message]
    ) -> Iterator[PointBatch | RejectedOutput | AnnotationsOutput]:
        assert self._formats is not None
        by_format: dict[FormatKey, list[Message]] = {}
        contents: dict[str, list[Parsed]] = {}
        for message in messages:
            if isinstance(message, ReadMessage):
                contents.setdefault(message.form, []).extend(message.content)
                continue
            try:
                by_format.setdefault(self._formats.key(message), []).append(message)
            except RejectedError as error:
                metrics.count("points_read")
                yield reject(rejected_message(message, error))
        read = [joined_contents(of_format) for of_format in contents.values()]
        parsed_now = [self._formats[key].parse_all(group) for key, group in by_format.items()]
        for parsed in itertools.chain(*read, *parsed_now):
            for rejected in parsed.rejected:
                yield reject(rejected)
            yield from parsed_points(parsed)


def pubsub_message(
    data: bytes, message_id: str, publish_ms: int, attributes: Mapping[str, str], source: str
) -> Message:
    """A message of a subscription; its publish time is the arrival of its points."""
    return Message(data, publish_ms, source, 0, Envelope(message_id, publish_ms, attributes))


class ReadMessages(beam.PTransform):  # type: ignore[type-arg]
    """A subscription, or a topic through a subscription that the runner makes, as `Message`.

    Args:
      subscription, topic: `projects/P/subscriptions/S` or `projects/P/topics/T`; one of them.
    """

    def __init__(self, subscription: str | None, topic: str | None) -> None:
        super().__init__()
        self._subscription, self._topic = subscription, topic

    def expand(self, root: PBegin) -> PCollection[Message]:
        source = self._subscription or self._topic
        assert source is not None
        return (
            root
            | "ReadFromPubSub"
            >> ReadFromPubSub(topic=self._topic, subscription=self._subscription, with_attributes=True)
            | "AsMessages" >> beam.Map(_message, source).with_output_types(Message)
        )


def _message(message: PubsubMessage, source: str) -> Message:
    publish_ms = int(message.publish_time.timestamp() * 1000)
    return pubsub_message(message.data, message.message_id, publish_ms, message.attributes, source)
