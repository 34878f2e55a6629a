"""Cuts JSON text into blocks: lines, or the elements of a document over several lines.

A block of a document is an array of complete elements, at their offset in the source: its brackets replace a
bracket or a comma of the document. So no whole document is in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from timebeam.schema.bits.arrays import Bytes, Int64s
from timebeam.schema.bits.compression import LARGEST
from timebeam.schema.bits.json_text import starts_document
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Message
from timebeam.transforms.input import cut_lines
from timebeam.transforms.input.cut_lines import LineCutter, rejection

RECORD_BYTES = 16 << 20
"""Longest element of a document, and longest document that is one object: these are parsed at once."""

_STEP = 1 << 20
_FIRST, _FASTER = 4096, 8
"""Bytes of a document that are looked at first, and how many times as many then, if it goes on."""

_DEPTH = np.zeros(256, np.int8)
_DEPTH[[ord(byte) for byte in "[{"]] = 1
_DEPTH[[ord(byte) for byte in "]}"]] = -1
_COMMA, _QUOTE, _BACKSLASH = b',"\\'
_IS_MARK = _DEPTH != 0
_IS_MARK[_COMMA] = True


class _JsonScan:
    """Finds the commas between the elements of a JSON array, and the end of an array or object.

    Attributes:
      scanned: the number of bytes that have been scanned.
      comma: place of the last comma between two elements; 0 for none.
    """

    def __init__(self, *, is_array: bool) -> None:
        self.scanned = self.comma = 0
        self._is_array = is_array
        self._depth, self._size = 0, min(_FIRST, _STEP)
        self._in_string = self._escaped = False

    def end(self, text: memoryview) -> int:
        """Scans the new bytes of a text; the end of the value, 0 if it is not there yet."""
        while self.scanned < len(text):
            size = min(self._size, len(text) - self.scanned)
            end = self._step(np.frombuffer(text, np.uint8, size, self.scanned))
            self._size = min(_STEP, self._size * _FASTER)
            if end:
                return end
        return 0

    def drop(self, size: int) -> None:
        """Forgets the first bytes of the text."""
        self.scanned -= size
        self.comma = 0

    def _step(self, view: Bytes) -> int:
        quotes = self._quotes(view)
        marks = np.flatnonzero(_IS_MARK[view])
        outside = (np.searchsorted(quotes, marks) + self._in_string) % 2 == 0
        marks = marks[outside]
        start, self.scanned = self.scanned, self.scanned + len(view)
        self._in_string ^= len(quotes) % 2 == 1
        if len(marks) == 0:
            return 0
        depths = self._depth + np.cumsum(_DEPTH[view[marks]], dtype=np.int64)
        self._depth = int(depths[-1])
        ends = np.flatnonzero(depths <= 0)
        commas = marks[(depths == 1) & (view[marks] == _COMMA)]
        if len(ends):
            return start + int(marks[ends[0]]) + 1
        if self._is_array and len(commas):
            self.comma = start + int(commas[-1])
        return 0

    def _quotes(self, view: Bytes) -> Int64s:
        """Positions of the quotes that begin and end strings: those without an unescaped backslash before."""
        quotes = np.flatnonzero(view == _QUOTE)
        slashes = np.flatnonzero(view == _BACKSLASH)
        if len(slashes) == 0 and not self._escaped:
            return quotes
        is_escaped = np.zeros(len(view) + 1, np.bool_)
        is_escaped[0] = self._escaped
        if len(slashes):
            begins = np.append(True, np.diff(slashes) != 1)
            runs = slashes[begins]
            if self._escaped and runs[0] == 0:
                runs[0] = -1  # the first backslash is escaped itself
            is_escaped[slashes[(slashes - runs[np.cumsum(begins) - 1]) % 2 == 0] + 1] = True
        self._escaped = bool(is_escaped[-1])
        return quotes[~is_escaped[quotes]]


class JsonCutter:
    """Cuts JSON documents into arrays of about `size` bytes, other text into lines (`LineCutter`)."""

    def __init__(self, origin: Message, size: int) -> None:
        """`origin` describes the source and the offset of the first byte."""
        self._origin, self._size = origin, size
        self._text, self._offset = memoryview(b""), origin.offset
        self._lines: LineCutter | None = None
        self._scan: _JsonScan | None = (
            None  # of a document that has begun at the start of the text, or before
        )
        self._cut_bytes = 0  # of that document, in blocks
        self._dropping = False

    @property
    def rest(self) -> bytes:
        """The pending bytes."""
        return self._lines.rest if self._lines else bytes(self._text)

    @property
    def offset(self) -> int:
        """Where `rest` begins in the source."""
        return self._lines.offset if self._lines else self._offset

    def add(self, data: bytes) -> Iterator[Message | Rejected]:
        """The blocks that are complete with `data`."""
        if self._lines is not None:
            yield from self._lines.add(data)
        elif not self._dropping:
            self._text = memoryview(b"".join((self._text, data)))
            yield from self._cut(is_all=False)

    def settle(self) -> Iterator[Message | Rejected]:
        """The whole records of the pending bytes, when what follows cannot be read."""
        if self._lines is None:
            yield from self._cut(is_all=True)
            if self._scan is not None and self._scan.comma:
                yield self._elements(self._scan)

    def finish(self) -> Iterator[Message | Rejected]:
        """The last blocks; a rejection for a document that does not end."""
        yield from self.settle()
        if self._lines is not None:
            yield from self._lines.finish()
        elif self._text:
            yield self._rejection(Reason.BAD_SYNTAX, "the JSON document does not end")

    def _cut(self, *, is_all: bool) -> Iterator[Message | Rejected]:
        """Blocks of the text; `is_all` if nothing follows."""
        while self._text:
            if self._scan is None:
                self._skip_blanks()
                if not self._text or not (is_all or len(self._text) > cut_lines.LINE_BYTES):
                    return
                if not starts_document(self._text[: cut_lines.LINE_BYTES + 1], cut_lines.LINE_BYTES):
                    self._lines = LineCutter(dataclasses.replace(self._origin, offset=self._offset))
                    text, self._text = bytes(self._text), memoryview(b"")
                    yield from self._lines.add(text)
                    return
                self._scan, self._cut_bytes = _JsonScan(is_array=bytes(self._text[:1]) == b"["), 0
            end = self._scan.end(self._text)
            if self._cut_bytes + (end or len(self._text)) > LARGEST:
                yield self._too_long(f"document of more than {LARGEST} bytes")
                return
            if not end:
                yield from self._blocks(self._scan)
                return
            yield self._message(end, b"")
            self._scan = None

    def _blocks(self, scan: _JsonScan) -> Iterator[Message | Rejected]:
        """A block of a document that continues, if it is long enough; a rejection if a record is too long."""
        if len(self._text) >= self._size and scan.comma:
            yield self._elements(scan)
        if len(self._text) > RECORD_BYTES:
            yield self._too_long(f"record of more than {RECORD_BYTES} bytes in a document")

    def _elements(self, scan: _JsonScan) -> Message:
        """The elements up to the last comma."""
        size = scan.comma
        scan.drop(size)
        return self._message(size, b"]")

    def _message(self, size: int, closing: bytes) -> Message:
        """The first bytes of the text as a block."""
        first = bytes(self._text[:1])
        opening = b"[" if first == b"," else first
        text = b"".join((opening, self._text[1:size], closing))
        message = dataclasses.replace(self._origin, text=text, offset=self._offset)
        self._cut_bytes += size
        self._skip(size)
        return message

    def _skip_blanks(self) -> None:
        while self._text and not (head := bytes(self._text[:_FIRST])).strip():
            self._skip(len(head))
        self._skip(len(head) - len(head.lstrip()) if self._text else 0)

    def _skip(self, size: int) -> None:
        self._text = self._text[size:]
        self._offset += size

    def _too_long(self, rejected: str) -> Rejected:
        """One rejection for the rest of the source."""
        self._dropping, self._scan = True, None
        return self._rejection(Reason.LINE_TOO_LONG, rejected)

    def _rejection(self, reason: Reason, rejected: str) -> Rejected:
        message = (
            f"{rejected}: records before byte {self._offset} are stored, the rest is not: "
            "write one record per line"
        )
        payload, self._text = bytes(self._text), memoryview(b"")
        if reason is Reason.LINE_TOO_LONG:
            payload = payload[: cut_lines.LINE_BYTES]
        return rejection(self._origin, reason, message, payload, self._offset)
