"""Cuts a stream of bytes, of a file or a large message, into blocks of complete lines or delimited messages.

A delimited message is one of protobuf behind its length as a varint, as `writeDelimitedTo` of protobuf's Java
library writes it, and OpenTelemetry's file exporter.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from timebeam.schema.bits.compression import LARGEST, CorruptDataError, TruncatedError
from timebeam.schema.bits.protobuf import ProtoError, varint
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Message

LINE_BYTES = 1 << 20
"""Longest line; the rejection of a longer one holds its first `LINE_BYTES`."""

LINES = 200_000
"""Most lines of a block: each line may become a rejection of some 300 bytes. 4 MiB hold fewer records."""

_LENGTH_BYTES = 10


class Cutter(Protocol):
    """Cuts a stream of bytes into blocks of whole records; `rest`, which begins at `offset`, is pending."""

    @property
    def rest(self) -> bytes: ...

    @property
    def offset(self) -> int: ...

    def add(self, data: bytes) -> Iterator[Message | Rejected]: ...

    def finish(self) -> Iterator[Message | Rejected]: ...


def rejection(origin: Message, reason: Reason, message: str, payload: bytes, offset: int) -> Rejected:
    """The rejection of bytes at `offset` of a source."""
    return Rejected(
        payload, reason, message, Stage.READ, origin.source, offset, origin.arrival_ms, origin.envelope
    )


def count_newlines(text: bytes) -> int:
    """The newlines of a text; `bytes.count` takes six times as long for a long one with many."""
    if len(text) < 4096:
        return text.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == 10))


class LineCutter:
    r"""Cuts a stream of bytes into blocks of whole lines, and rejects lines that are too long.

    >>> cutter = LineCutter(Message(b"", 0, "points.txt"))
    >>> [(block.offset, block.text) for block in cutter.add(b"put a 1 1 x=y\nput b")]
    [(0, b'put a 1 1 x=y\n')]
    >>> [(block.offset, block.text) for block in (*cutter.add(b" 2 2 x=y"), *cutter.finish())]
    [(14, b'put b 2 2 x=y')]
    """

    def __init__(self, origin: Message) -> None:
        """`origin` describes the source and the offset of the first byte."""
        self._origin = origin
        self.offset = origin.offset
        """Where `rest` begins in the file."""
        self.rest = b""
        """The beginning of an incomplete line."""
        self._dropping = False

    @property
    def open_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self.rest) or self._dropping

    def add(self, data: bytes) -> Iterator[Message | Rejected]:
        """The block of the lines that end in `data`."""
        if self._dropping:
            end = data.find(b"\n") + 1
            self.offset += end or len(data)
            if not end:
                return
            self._dropping = False
            data = data[end:]
        text = self.rest + data if self.rest else data
        end = text.rfind(b"\n") + 1
        self.rest = text[end:]
        yield from self._block(text[:end] if end < len(text) else text)
        if len(self.rest) > LINE_BYTES:
            yield self._too_long(self.rest[:LINE_BYTES], self.offset)
            self.offset += len(self.rest)
            self.rest = b""
            self._dropping = True

    def finish(self) -> Iterator[Message | Rejected]:
        """The last line, if it has no newline."""
        text, self.rest = self.rest, b""
        yield from self._block(text)

    def _block(self, text: bytes) -> Iterator[Message | Rejected]:
        """Whole lines as a block, and rejections of lines that are too long."""
        if not text:
            return
        start, self.offset = self.offset, self.offset + len(text)
        position = 0
        for first, last in _long_lines(text):
            if first > position:
                yield from self._messages(text[position:first], start + position)
            yield self._too_long(text[first : first + LINE_BYTES], start + first)
            position = last
        if position < len(text):
            yield from self._messages(text[position:], start + position)

    def _messages(self, text: bytes, offset: int) -> Iterator[Message]:
        """Whole lines as one message, or as several of `LINES` each."""
        cuts = [0, len(text)]
        if count_newlines(text) > LINES:
            ends = np.flatnonzero(np.frombuffer(text, np.uint8) == 10)[LINES - 1 :: LINES] + 1
            cuts = [0, *ends.tolist()] + ([len(text)] if ends[-1] < len(text) else [])
        for start, end in itertools.pairwise(cuts):
            block = text if len(cuts) == 2 else text[start:end]
            yield dataclasses.replace(self._origin, text=block, offset=offset + start)

    def _too_long(self, beginning: bytes, offset: int) -> Rejected:
        message = (
            f"line of more than {LINE_BYTES} bytes; the payload holds its first {LINE_BYTES}: "
            "write one record per line"
        )
        return rejection(self._origin, Reason.LINE_TOO_LONG, message, beginning, offset)


def _long_lines(text: bytes) -> Iterator[tuple[int, int]]:
    """(start, end with newline) of the lines longer than LINE_BYTES.

    It looks for one newline in every LINE_BYTES: a longer line has none.
    """
    position = 0
    while len(text) - position > LINE_BYTES:
        newline = text.rfind(b"\n", position, position + LINE_BYTES + 1)
        if newline >= 0:
            position = newline + 1
            continue
        end = text.find(b"\n", position + LINE_BYTES) + 1 or len(text)
        yield position, end
        position = end


class DelimitedCutter:
    """Yields each message; the lines of a file of JSON as blocks."""

    def __init__(self, origin: Message, *, may_be_json: bool = True) -> None:
        """
        Args:
          origin: describes the source and the offset of the first byte.
          may_be_json: whether a file that begins with `{` is JSON, unless a request of OTLP follows it.
        """
        self._origin, self._may_be_json = origin, may_be_json
        self._lines: LineCutter | None = None
        self._pending = bytearray()
        self._offset = origin.offset

    @property
    def rest(self) -> bytes:
        """The pending bytes."""
        return bytes(self._pending) if self._lines is None else self._lines.rest

    @property
    def offset(self) -> int:
        """Where `rest` begins in the file."""
        return self._offset if self._lines is None else self._lines.offset

    def add(self, data: bytes) -> Iterator[Message | Rejected]:
        """The messages that are complete with `data`.

        Raises:
          CorruptDataError: a length makes no sense; all messages before have been yielded.
        """
        is_start = self._lines is None and not self._pending and self._offset == self._origin.offset
        if is_start and self._may_be_json and data.startswith(b"{") and not data.startswith(b"{\n"):
            self._lines = LineCutter(self._origin)
        if self._lines is not None:
            yield from self._lines.add(data)
            return
        self._pending += data
        position = 0
        while position < len(self._pending):
            head = bytes(self._pending[position : position + _LENGTH_BYTES])
            try:
                size, length_bytes = varint(head, 0)
            except IndexError:
                break
            except ProtoError as error:
                size, why = LARGEST + 1, str(error)
            else:
                why = f"a message of {size} bytes; at most {LARGEST} are read"
            if size > LARGEST:
                self._drop(position)
                raise CorruptDataError(why)
            first = position + length_bytes
            if first + size > len(self._pending):
                break
            text = bytes(self._pending[first : first + size])
            yield dataclasses.replace(self._origin, text=text, offset=self._offset + first)
            position = first + size
        self._drop(position)

    def finish(self) -> Iterator[Message | Rejected]:
        """The last line of JSON, if it has no newline.

        Raises:
          TruncatedError: the file ends inside a message.
        """
        if self._lines is not None:
            yield from self._lines.finish()
        elif self._pending:
            raise TruncatedError("the file ends inside a message")

    def _drop(self, size: int) -> None:
        """Forgets the first bytes of those that are pending."""
        del self._pending[:size]
        self._offset += size
