"""Messages of Pub/Sub into points: unpacked, gathered, and parsed many at a time.

A parse, and each step behind it, costs about a millisecond however few points there are, so messages of
one point each go through in lists. What a message says of itself stands in its attributes:

| attribute | meaning |
|---|---|
| `format` | the message format, where it is another than `--format` |
| `content-encoding` | `gzip` or `zstd`: the payload is compressed |
| `method` | `opentsdb-annotations`: POST, PUT or DELETE, as of the HTTP request |
| `googclient_schemaencoding` | `BINARY` or `JSON`: set by topics with a schema: the encoding of `avro` |
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils import shared
from apache_beam.utils.windowed_value import WindowedValue

from schema.messages import Message, MessageFormat, message_format
from schema.points import Envelope, PointBatch, Reason, RefusedError, Rejected, Stage
from transforms import metrics
from transforms.decompress import DamagedError, TruncatedError, decompressed
from transforms.parse import AnnotationsOutput, found
from transforms.rejected import RejectedOutput, refuse

GATHERED_BYTES = 4 << 20
GATHERED_MESSAGES = 50_000
"""A list of messages is handed on as soon as it has as many, or as many bytes."""

UNPACKED_BYTES = 64 << 20
"""Longest payload after decompression; Pub/Sub takes 10 MB before."""

_SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}
_PLAIN = ("", "identity")

FormatKey = tuple[str, str]
"""Name of a format, and the encoding that its topic gives ('' for none)."""


class GatherFn(beam.DoFn):
    """`Message` in; lists of them out, of a bounded size, within a bundle."""

    def __init__(self) -> None:
        self._held: list[Message] = []
        self._bytes = 0

    def start_bundle(self) -> None:
        """Begins with nothing held."""
        self._held, self._bytes = [], 0

    def process(self, message: Message) -> Iterator[list[Message]]:
        """See the class."""
        self._held.append(message)
        self._bytes += len(message.text)
        if self._bytes >= GATHERED_BYTES or len(self._held) >= GATHERED_MESSAGES:
            yield self._held
            self._held, self._bytes = [], 0

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """The rest of the bundle."""
        if self._held:
            yield GlobalWindows.windowed_value(self._held)
            self._held, self._bytes = [], 0


class Formats:
    """The formats of one worker thread, made when a message needs them; their caches live as long."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """`name` and `options` are for messages that say nothing of their own."""
        self._name, self._options = name, dict(options)
        self._made: dict[FormatKey, MessageFormat] = {}

    def key(self, attributes: Mapping[str, str]) -> FormatKey:
        """Which format a message is to be read with.

        Raises:
          RefusedError: there is none of that name, or its options make no sense for it.
        """
        name = attributes.get("format") or self._name
        encoding = attributes.get("googclient_schemaencoding", "").lower() if name == "avro" else ""
        if (name, encoding) not in self._made:
            options = self._options | ({"avro_encoding": encoding} if encoding else {})
            try:
                self._made[name, encoding] = message_format(name, options)
            except ValueError as error:
                raise RefusedError(Reason.UNKNOWN_FORMAT, f"attributes of the message: {error}") from error
        return name, encoding

    def __getitem__(self, key: FormatKey) -> MessageFormat:
        return self._made[key]


def unpacked(message: Message) -> Message:
    """A message with its payload decompressed, and without the attribute that said so.

    Raises:
      RefusedError: the encoding is unknown, or the payload is damaged or too long.
    """
    attributes = message.envelope.attributes if message.envelope else {}
    encoding = attributes.get("content-encoding", "").lower()
    if encoding in _PLAIN:
        return message
    if encoding not in _SUFFIXES:
        raise RefusedError(
            Reason.CORRUPT_MESSAGE, f"content-encoding {encoding!r}: only gzip and zstd can be unpacked"
        )
    chunks, size = [], 0
    try:
        for chunk in decompressed(_SUFFIXES[encoding], io.BytesIO(message.text)):
            chunks.append(chunk)
            size += len(chunk)
            if size > UNPACKED_BYTES:
                raise RefusedError(
                    Reason.CORRUPT_MESSAGE, f"more than {UNPACKED_BYTES} bytes after decompression"
                )
    except (TruncatedError, DamagedError) as error:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"content-encoding {encoding}: {error}") from error
    assert message.envelope is not None
    rest = {key: value for key, value in attributes.items() if key != "content-encoding"}
    return dataclasses.replace(
        message, text=b"".join(chunks), envelope=message.envelope._replace(attributes=rest)
    )


class _Pool:
    """Formats that no thread uses at the moment, with their caches; one per process."""

    def __init__(self) -> None:
        self.free: list[Formats] = []


class ParseMessagesFn(beam.DoFn):
    """Lists of `Message` in; `PointBatch` out, refused records to `REJECTED`, edits to `ANNOTATIONS`."""

    def __init__(self, format_name: str, options: Mapping[str, Any]) -> None:
        """See `message_format` for the arguments."""
        self._format_name, self._options = format_name, dict(options)
        self._shared = shared.Shared()
        self._pool: _Pool | None = None
        self._formats: Formats | None = None

    def hold(self) -> object:
        """What keeps the caches of this process alive as long as it is held, between runs too."""
        return self._shared.acquire(_Pool)

    def setup(self) -> None:
        """Takes formats, with their caches, from those of the process."""
        self._pool = self._shared.acquire(_Pool)
        try:
            self._formats = self._pool.free.pop()
        except IndexError:
            self._formats = Formats(self._format_name, self._options)

    def teardown(self) -> None:
        """Gives them back."""
        if self._pool is not None and self._formats is not None:
            self._pool.free.append(self._formats)
            self._formats = None

    def process(
        self, messages: Sequence[Message]
    ) -> Iterable[PointBatch | RejectedOutput | AnnotationsOutput]:
        """See the class."""
        assert self._formats is not None
        metrics.count("messages_read", len(messages))
        by_format: dict[FormatKey, list[Message]] = {}
        refused = 0
        for message in messages:
            try:
                plain = unpacked(message)
                envelope = plain.envelope
                key = self._formats.key(envelope.attributes if envelope else {})
            except RefusedError as error:
                refused += 1
                yield refuse(refused_message(message, error))
                continue
            by_format.setdefault(key, []).append(plain)
        metrics.count("points_read", refused)
        metrics.count("bytes_read", sum(len(one.text) for group in by_format.values() for one in group))
        for key, group in by_format.items():
            for parsed in self._formats[key].parse_all(group):
                for rejected in parsed.rejected:
                    yield refuse(rejected)
                yield from found(parsed)


def refused_message(message: Message, error: RefusedError) -> Rejected:
    """The refusal of a message as a whole, before it is parsed."""
    return Rejected(
        message.text,
        error.reason,
        error.message,
        Stage.READ,
        message.source,
        0,
        message.arrival_ms,
        message.envelope,
    )


def pubsub_message(
    data: bytes, message_id: str, publish_ms: int, attributes: Mapping[str, str], source: str
) -> Message:
    """A message of a subscription; its publish time is the arrival of its points."""
    return Message(data, publish_ms, source, 0, Envelope(message_id, publish_ms, attributes))
