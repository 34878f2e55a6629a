"""Parses messages of any format into points, rejections, and edits of annotations.

Messages of Pub/Sub are decompressed, and cut into blocks like files if they are long: this bounds memory.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from timebeam.schema.bits.compression import LARGEST, CorruptDataError, TruncatedError, decompressed, unpack
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.annotations import AnnotationEdit
from timebeam.schema.core.batches import follows, join_texts
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Framing, Message, MessageFormat, Parsed, message_format
from timebeam.transforms.dead_letters.rejected_rows import REJECTED, RejectedOutput, reject
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.buffered import windowed
from timebeam.transforms.input.cut_json import JsonCutter
from timebeam.transforms.input.cut_lines import LINES, LineCutter, count_newlines, rejection
from timebeam.transforms.input.unpack_messages import ReadMessage

Output = TypeVar("Output")

GATHERED_BYTES = 4 << 20
"""Unpacked bytes that are parsed together; a longer message of lines or JSON is cut."""

_SMALL_BYTES = 2 * LINES
"""A text of this size has at most `LINES` lines that are not empty."""

_STREAMED = ("gzip", "zstd")
_PLAIN = ("", "identity")


def parse_gathered(
    messages: Sequence[Message],
    framing_of: Callable[[Message], Framing],
    parse: Callable[[list[Message]], Iterator[Output]],
    opened: Callable[[Message], Message] = lambda message: message,
) -> Iterator[Output | RejectedOutput]:
    """Unpacks messages and parses them in lists of about `GATHERED_BYTES` or `LINES`; counts all of it.

    Args:
      framing_of, opened: see `portions`.
    """
    metrics.count("messages_read", len(messages))
    for gathered in gather(messages, framing_of, opened):
        if isinstance(gathered, Rejected):
            metrics.count("points_read")
            yield reject(gathered)
        else:
            metrics.count("bytes_read", sum(len(message.text) for message in gathered))
            yield from parse(gathered)


def gather(
    messages: Sequence[Message],
    framing_of: Callable[[Message], Framing],
    opened: Callable[[Message], Message] = lambda message: message,
) -> Iterator[list[Message] | Rejected]:
    """The unpacked messages in lists of about `GATHERED_BYTES` or `LINES`, and the rejections of others.

    Args:
      framing_of: how the text of a message may be cut; may raise RejectedError.
      opened: a message without the encodings that its content tells; may raise RejectedError. One message is
        opened at a time: a thousand of them can hold 64 MiB each.
    """
    gathered = _MessageList()
    for packed in messages:
        try:
            message = opened(packed)
        except RejectedError as error:
            yield rejected_message(packed, error)
            continue
        if isinstance(message, ReadMessage) or _is_small(message):
            gathered.add(message)
        else:
            try:
                for block in _blocks(message, framing_of):
                    if gathered.is_full:
                        yield gathered.take()
                    if isinstance(block, Rejected):
                        yield block
                    else:
                        gathered.add(block)
            except RejectedError as error:
                yield rejected_message(message, error)
        if gathered.is_full:
            yield gathered.take()
    if gathered.messages:
        yield gathered.take()


class _MessageList:
    """Messages to be parsed together.

    Attributes:
      is_full: whether they have `GATHERED_BYTES` or `LINES`.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_full = False
        self._size = self._lines = 0

    def add(self, message: Message) -> None:
        text = message.text
        self.messages.append(message)
        self._size += len(text)
        self._lines += count_newlines(text)
        if self._size >= GATHERED_BYTES or self._lines >= LINES:
            self.is_full = True

    def take(self) -> list[Message]:
        """Removes and returns the messages."""
        messages, self.messages = self.messages, []
        self.is_full, self._size, self._lines = False, 0, 0
        return messages


def rejected_message(message: Message, error: RejectedError) -> Rejected:
    """The rejection of a whole message, before it is parsed."""
    return rejection(message, error.reason, error.message, message.text, 0)


def _is_small(message: Message) -> bool:
    """Whether a message is neither compressed nor long enough to be cut."""
    packed = message.envelope is not None and "content-encoding" in message.envelope.attributes
    return not packed and len(message.text) <= _SMALL_BYTES


def _blocks(message: Message, framing_of: Callable[[Message], Framing]) -> Iterable[Message | Rejected]:
    """An unpacked message, in blocks if it is long and can be cut.

    Raises:
      RejectedError: the message is rejected as a whole; raised before the first block.
    """
    attributes = message.envelope.attributes if message.envelope else {}
    encoding = attributes.get("content-encoding", "").lower()
    framing = framing_of(message)
    may_be_cut = framing in (Framing.LINES, Framing.JSON)
    if encoding in _PLAIN:
        plain = message
        is_short = not may_be_cut or len(message.text) <= GATHERED_BYTES
        stream: Iterable[bytes] = (message.text,)
    else:
        text = _unpacked(message.text, encoding, GATHERED_BYTES if may_be_cut else LARGEST)
        is_short = text is not None
        assert message.envelope is not None
        rest = {key: value for key, value in attributes.items() if key != "content-encoding"}
        envelope = message.envelope._replace(attributes=rest)
        plain = dataclasses.replace(message, text=text or b"", envelope=envelope)
        stream = (plain.text,) if is_short else _stream(message.text, encoding)
    if is_short and (not may_be_cut or count_newlines(plain.text) <= LINES):
        return (plain,)
    return _cut(dataclasses.replace(plain, text=b""), framing, stream)


def _cut(origin: Message, framing: Framing, stream: Iterable[bytes]) -> Iterator[Message | Rejected]:
    """The blocks of a long message."""
    cutter = JsonCutter(origin, GATHERED_BYTES) if framing is Framing.JSON else LineCutter(origin)
    for chunk in stream:
        for start in range(0, len(chunk), GATHERED_BYTES):
            yield from cutter.add(chunk[start : start + GATHERED_BYTES])
    yield from cutter.finish()


def _stream(payload: bytes, encoding: str) -> Iterable[bytes]:
    if encoding not in _STREAMED:
        return (unpack(encoding, payload, LARGEST),)
    return decompressed(encoding, io.BytesIO(payload))


def _unpacked(payload: bytes, encoding: str, most: int) -> bytes | None:
    """A payload decompressed; None if it is readable and has more than `most` bytes.

    Raises:
      RejectedError: the encoding is unknown, or the payload is corrupt or too long.
    """
    if encoding not in _STREAMED:
        text = unpack(encoding, payload, LARGEST)
        return text if len(text) <= most else None
    chunks: list[bytes] = []
    size = 0
    try:
        for chunk in _stream(payload, encoding):
            size += len(chunk)
            if size > LARGEST:
                why = f"more than {LARGEST} bytes after decompression"
                raise RejectedError(Reason.CORRUPT_MESSAGE, why)
            if size <= most:
                chunks.append(chunk)
            else:
                chunks.clear()
    except (TruncatedError, CorruptDataError) as error:
        raise RejectedError(Reason.CORRUPT_MESSAGE, f"content-encoding {encoding}: {error}") from error
    return b"".join(chunks) if size <= most else None


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
        return batches[0] if len(batches) == 1 else join_texts(batches)


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
            yield reject(dataclasses.replace(rejected, arrival_ms=message.arrival_ms))
        yield from parsed_points(parsed)
