"""Cuts a stream of protobuf messages, each behind its length as a varint, or of lines of JSON.

Source: `writeDelimitedTo` of protobuf's Java library, which OpenTelemetry's file exporter follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from timebeam.schema.common.decompress import DamagedError, TruncatedError
from timebeam.schema.common.encodings import LARGEST
from timebeam.schema.common.protobuf import ProtoError, varint
from timebeam.schema.messages import Message
from timebeam.schema.points import Rejected
from timebeam.transforms.input.line_cutter import LineCutter

_LENGTH_BYTES = 10


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
          DamagedError: a length makes no sense; all messages before have been yielded.
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
                raise DamagedError(why)
            first = position + length_bytes
            if first + size > len(self._pending):
                break
            text = bytes(self._pending[first : first + size])
            yield dataclasses.replace(self._origin, text=text, offset=self._offset + first)
            position = first + size
        self._drop(position)

    def settle(self) -> Iterator[Message | Rejected]:
        """Nothing: `add` yields all whole messages."""
        yield from ()

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
