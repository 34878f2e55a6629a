"""Messages of Pub/Sub unpacked, and large ones cut into blocks as files are: memory is bounded by what is
unpacked, not by what was sent."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from timebeam.schema.messages import Framing, Message
from timebeam.schema.points import Reason, RefusedError, Rejected, Stage
from timebeam.transforms import metrics
from timebeam.transforms.input.decompress import DamagedError, TruncatedError, decompressed
from timebeam.transforms.input.json_cutter import JsonCutter
from timebeam.transforms.input.line_cutter import LINES, LineCutter

UNPACKED_BYTES = 64 << 20
"""Longest payload after decompression; Pub/Sub takes 10 MB before."""

PORTION_BYTES = 4 << 20
"""So many unpacked bytes are parsed together; a message of lines or JSON that is longer is cut."""

_SMALL_BYTES = 2 * LINES
"""No text of so many bytes has more than `LINES` lines that are not empty."""

_SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}
_PLAIN = ("", "identity")


def portions(
    messages: Sequence[Message], framing_of: Callable[[Message], Framing]
) -> Iterator[list[Message] | Rejected]:
    """The messages unpacked, in lists of about `PORTION_BYTES` or `LINES`, and refusals of the others.

    Args:
      framing_of: how the text of a message may be cut; may raise RefusedError.
    """
    portion = _Portion()
    for message in messages:
        if _is_small(message):
            portion.add(message)
        else:
            try:
                for piece in _pieces(message, framing_of):
                    if portion.is_full:
                        yield portion.take()
                    if isinstance(piece, Rejected):
                        yield piece
                    else:
                        portion.add(piece)
            except RefusedError as error:
                yield refused_message(message, error)
        if portion.is_full:
            yield portion.take()
    if portion.messages:
        yield portion.take()


class _Portion:
    """Messages to be parsed together.

    Attributes:
      is_full: whether they have `PORTION_BYTES` or `LINES`.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_full = False
        self._size = self._lines = 0

    def add(self, message: Message) -> None:
        """Adds one."""
        text = message.text
        self.messages.append(message)
        self._size += len(text)
        self._lines += text.count(b"\n")
        if self._size >= PORTION_BYTES or self._lines >= LINES:
            self.is_full = True

    def take(self) -> list[Message]:
        """The messages; begins again with none."""
        messages, self.messages = self.messages, []
        self.is_full, self._size, self._lines = False, 0, 0
        return messages


def count_portion(portion: Sequence[Message] | Rejected) -> None:
    """Counts what `portions` gives."""
    if isinstance(portion, Rejected):
        metrics.count("points_read")
    else:
        metrics.count("bytes_read", sum(len(message.text) for message in portion))


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


def _is_small(message: Message) -> bool:
    """Whether a message is neither compressed nor so long that it might have to be cut."""
    packed = message.envelope is not None and "content-encoding" in message.envelope.attributes
    return not packed and len(message.text) <= _SMALL_BYTES


def _pieces(message: Message, framing_of: Callable[[Message], Framing]) -> Iterable[Message | Rejected]:
    """A message unpacked, in blocks if it is long and can be cut.

    Raises:
      RefusedError: none of it is taken; raised before any block is handed on.
    """
    attributes = message.envelope.attributes if message.envelope else {}
    encoding = attributes.get("content-encoding", "").lower()
    framing = framing_of(message)
    may_be_cut = framing in (Framing.LINES, Framing.JSON)
    if encoding in _PLAIN:
        plain = message
        is_short = not may_be_cut or len(message.text) <= PORTION_BYTES
        stream: Iterable[bytes] = (message.text,)
    else:
        text = _unpacked(message.text, encoding, PORTION_BYTES if may_be_cut else UNPACKED_BYTES)
        is_short = text is not None
        assert message.envelope is not None
        rest = {key: value for key, value in attributes.items() if key != "content-encoding"}
        envelope = message.envelope._replace(attributes=rest)
        plain = dataclasses.replace(message, text=text or b"", envelope=envelope)
        stream = (plain.text,) if is_short else _stream(message.text, encoding)
    if is_short and (not may_be_cut or plain.text.count(b"\n") <= LINES):
        return (plain,)
    return _cut(dataclasses.replace(plain, text=b""), framing, stream)


def _cut(origin: Message, framing: Framing, stream: Iterable[bytes]) -> Iterator[Message | Rejected]:
    """The blocks of a long message."""
    cutter = JsonCutter(origin, PORTION_BYTES) if framing is Framing.JSON else LineCutter(origin)
    for chunk in stream:
        for start in range(0, len(chunk), PORTION_BYTES):
            yield from cutter.add(chunk[start : start + PORTION_BYTES])
    yield from cutter.finish()


def _stream(payload: bytes, encoding: str) -> Iterator[bytes]:
    return decompressed(_SUFFIXES[encoding], io.BytesIO(payload))


def _unpacked(payload: bytes, encoding: str, most: int) -> bytes | None:
    """A payload decompressed; None if that is longer than `most` bytes, and all of it is readable.

    Raises:
      RefusedError: the encoding is unknown, or the payload is damaged or too long.
    """
    if encoding not in _SUFFIXES:
        why = f"content-encoding {encoding!r}: only gzip and zstd can be unpacked"
        raise RefusedError(Reason.CORRUPT_MESSAGE, why)
    chunks: list[bytes] = []
    size = 0
    try:
        for chunk in _stream(payload, encoding):
            size += len(chunk)
            if size > UNPACKED_BYTES:
                why = f"more than {UNPACKED_BYTES} bytes after decompression"
                raise RefusedError(Reason.CORRUPT_MESSAGE, why)
            if size <= most:
                chunks.append(chunk)
            else:
                chunks.clear()
    except (TruncatedError, DamagedError) as error:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"content-encoding {encoding}: {error}") from error
    return b"".join(chunks) if size <= most else None
