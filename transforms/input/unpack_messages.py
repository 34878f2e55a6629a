"""Opens messages: unpacked, gathered in lists, and long ones cut into blocks like files, which bounds memory.

What is announced by attributes is believed; else the content decides, also of which format a message is
(`--format auto`). Telegraf announces neither its base64 nor its gzip.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from timebeam.schema.bits.compression import (
    COMPRESSED,
    LARGEST,
    CorruptDataError,
    TruncatedError,
    compression,
    decompressed,
    is_snappy,
    unpack,
)
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.batches import join_joined
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Origins, Rejected
from timebeam.schema.formats import Framing, Message, MessageFormat, Parsed
from timebeam.schema.formats.whole_format import WholeFormat
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, reject
from timebeam.transforms.input.cut_json import JsonCutter
from timebeam.transforms.input.cut_lines import LINES, LineCutter, count_newlines, rejection

Output = TypeVar("Output")

GATHERED_BYTES = 4 << 20
"""Unpacked bytes that are parsed together; a longer message of lines or JSON is cut."""

_SMALL_BYTES = 2 * LINES
"""A text of this size has at most `LINES` lines that are not empty."""

_STREAMED = ("gzip", "zstd")
_PLAIN = ("", "identity")

_WRAPPINGS = 2
"""Most content encodings of a message that are decoded."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{8,}={0,2}\s*")
_CONTENTS = (*COMPRESSED, b"{", b"[", b"\n", b"\xff\xff\xff\xff", b"PAR1")
JSON = (b"{", b"[")
"""The first bytes of JSON: no content encoding begins with one."""

_SHOWN = 40

_REMOTE_WRITE = "application/x-protobuf;proto="

ATTRIBUTES = {
    ("ce-type", "org.opentelemetry.otlp.metrics.v1"): "otlp",
    ("content-type", _REMOTE_WRITE + "io.prometheus.write.v2.Request"): "prometheus-remote-write",
    ("content-type", _REMOTE_WRITE + "prometheus.WriteRequest"): "prometheus-remote-write",
}
"""Attributes that name a format, and its name."""


def parse_gathered(
    messages: Sequence[Message],
    framing_of: Callable[[Message], Framing],
    parse: Callable[[list[Message]], Iterator[Output]],
    opened: Callable[[Message], Message] = lambda message: message,
) -> Iterator[Output | RejectedOutput]:
    """Unpacks messages and parses them in lists of about `GATHERED_BYTES` or `LINES`; counts all of it.

    Args:
      framing_of, opened: see `gather`.
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
    messages: Iterable[Message],
    framing_of: Callable[[Message], Framing],
    opened: Callable[[Message], Message] = lambda message: message,
) -> Iterator[list[Message] | Rejected]:
    """The unpacked messages in lists of about `GATHERED_BYTES` or `LINES`, and the rejections of others.

    Args:
      framing_of: how the text of a message may be cut; may raise RejectedError.
      opened: a message without the encodings that its content tells; may raise RejectedError. One message is
        opened at a time: a thousand of them can hold 64 MiB each.
    """
    gathered: list[Message] = []
    size = lines = 0
    for message in _plain(messages, framing_of, opened):
        if isinstance(message, Rejected):
            yield message
            continue
        gathered.append(message)
        size += len(message.text)
        lines += count_newlines(message.text)
        if size >= GATHERED_BYTES or lines >= LINES:
            yield gathered
            gathered, size, lines = [], 0, 0
    if gathered:
        yield gathered


def _plain(
    messages: Iterable[Message],
    framing_of: Callable[[Message], Framing],
    opened: Callable[[Message], Message],
) -> Iterator[Message | Rejected]:
    """The unpacked messages, long ones in blocks, and the rejections of others; see `gather`."""
    for message in messages:
        try:
            message = opened(message)
            if isinstance(message, ReadMessage) or _is_small(message):
                yield message
            else:
                yield from _blocks(message, framing_of)
        except RejectedError as error:
            yield rejected_message(message, error)


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


def unwrapped(message: Message, *, is_whole: bool) -> Message:
    """A message without its content encodings, at most two and 64 MiB.

    Args:
      is_whole: whether a single encoding that attributes name is decoded too. Otherwise it is decoded while
        the message is read, in blocks if it is long.

    Raises:
      RejectedError: an encoding is corrupt, unknown, or of too many bytes.
    """
    attributes = message.envelope.attributes if message.envelope else {}
    if not attributes and not _encoding(message.text):
        return message
    announced = [name.strip() for name in attributes.get("content-encoding", "").lower().split(",")]
    announced = [name for name in announced if name not in ("", "identity")]
    if len(announced) > _WRAPPINGS:
        why = f"content-encoding {', '.join(announced)}: at most {_WRAPPINGS} can be undone"
        raise RejectedError(Reason.CORRUPT_MESSAGE, why)
    if len(announced) == 1 and not is_whole:
        return message
    text = message.text
    budget = LARGEST
    for name in reversed(announced):
        text = unpack(name, text, budget)
        budget -= len(text)
    for _ in range(0 if announced else _WRAPPINGS):
        encoding = _encoding(text)
        if not encoding:
            break
        text = unpack(encoding, text, budget)
        budget -= len(text)
    if text is message.text:
        return message
    return _with(dataclasses.replace(message, text=text), "content-encoding", None)


def _encoding(text: bytes) -> str:
    """The encoding that a text of lines, JSON or OTLP has by its content; empty for none."""
    if text[:1] in JSON:
        return ""
    if encoding := compression(text):
        return encoding
    # No line of a format is of these characters alone; protobuf begins with a control character.
    return "base64" if _BASE64.fullmatch(text) and _is_content(text) else ""


def _is_content(text: bytes) -> bool:
    """Whether base64 holds JSON, protobuf, compressed data, rows of Arrow or Parquet, or text with blanks."""
    try:
        content = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        return False
    return content.startswith(_CONTENTS) or (b" " in content and content.isascii()) or is_snappy(content)


def is_told_by_content(form: MessageFormat) -> bool:
    """Whether the encoding of messages of a format may be guessed: not if they are bytes of any kind."""
    return form.framing in (Framing.LINES, Framing.JSON) or isinstance(form, WholeFormat)


@dataclasses.dataclass(frozen=True, slots=True)
class ReadMessage(Message):
    """A message that has been read, since only this told its format.

    Attributes:
      form: the name of its format.
      content: what it holds.
    """

    form: str = ""
    content: Sequence[Parsed] = ()


def choose_format(message: Message, formats: Sequence[tuple[str, MessageFormat]]) -> Message:
    """A message with the name of its format: the first that reads it without rejections, or some of it.

    Raises:
      RejectedError: UNKNOWN_FORMAT; no format reads a point or an annotation of it.
    """
    attributes = message.envelope.attributes if message.envelope else {}
    names = [name for name, _ in formats]
    for (key, value), name in ATTRIBUTES.items():
        if attributes.get(key, "").replace(" ", "") == value and name in names:
            return _with(message, "format", name)
    partly: ReadMessage | None = None
    for name, form in formats:
        named = _with(message, "format", name)
        content = list(form.parse_all([named]))
        if any(len(parsed.batch) or parsed.annotations for parsed in content):
            origin = (named.text, named.arrival_ms, named.source, named.offset, named.envelope, named.records)
            read = ReadMessage(*origin, form=name, content=content)
            if not any(parsed.rejected for parsed in content):
                return read
            partly = partly or read
    if partly:
        return partly
    shown = repr(message.text[:_SHOWN])
    why = f"a message of {len(message.text)} bytes that begins with {shown}: none of {', '.join(names)}"
    raise RejectedError(Reason.UNKNOWN_FORMAT, why)


def joined_contents(contents: Sequence[Parsed]) -> Iterator[Parsed]:
    """What messages of one format hold, with the points of all in one batch where they come from text."""
    batches = [parsed.batch for parsed in contents if _can_be_joined(parsed.batch)]
    if len(batches) < 2:
        yield from contents
        return
    yield Parsed(join_joined(batches), ())
    for parsed in contents:
        joined = _can_be_joined(parsed.batch)
        yield dataclasses.replace(parsed, batch=PointBatch.of([], 0)) if joined else parsed


def _can_be_joined(batch: PointBatch) -> bool:
    """Whether a batch has points out of the texts of messages; rows of Parquet have none."""
    return len(batch) > 0 and type(batch.origins) is Origins and batch.origins.joined is not None


def _with(message: Message, attribute: str, value: str | None) -> Message:
    """A message with another value of an attribute, or without it."""
    if message.envelope is None:
        return message
    rest = {key: text for key, text in message.envelope.attributes.items() if key != attribute}
    attributes = rest if value is None else {**rest, attribute: value}
    return dataclasses.replace(message, envelope=message.envelope._replace(attributes=attributes))
