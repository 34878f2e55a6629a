"""Opens messages: their content encodings are decoded, and `--format auto` finds out what they hold.

What is announced by attributes is believed; else the content decides. Telegraf announces neither its base64
nor its gzip.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Iterator, Sequence

from timebeam.schema.bits.compression import COMPRESSED, LARGEST, compression, is_snappy, unpack
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.batches import join_joined
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Origins
from timebeam.schema.formats import Framing, Message, MessageFormat, Parsed
from timebeam.schema.formats.whole_format import WholeFormat

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
