"""The encoding of protobuf messages, fields of a number, a type and a value, and fields read one by one.

protobuf.dev/programming-guides/encoding. A field begins with `number << 3 | type`. `SingleMessages` reads the
fields of few messages, and those of messages of an unusual form.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.memory_limit import VALUE_BYTES, charge, room

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Types of values."""


class ProtoError(ValueError):
    """The bytes are not protobuf."""


def varint(data: bytes, position: int) -> tuple[int, int]:
    """(the unsigned number that begins at `position`, where it ends).

    >>> varint(bytes.fromhex("ac02"), 0)  # 300, which ends at byte 2
    (300, 2)

    Raises:
      ProtoError: it has more than 10 bytes.
      IndexError: the bytes end inside it.
    """
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    number = shift = 0
    while byte > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise ProtoError("a number of more than 64 bits")
        position += 1
        byte = data[position]
    return number | byte << shift, position + 1


def end_of(text: bytes, field: int, position: int, limit: int) -> tuple[int, int]:
    """(where the content of a field begins, where it ends); `field` is its number and type.

    Raises:
      ProtoError: it ends after `limit`, or has an unknown type.
    """
    wire_type = field & 7
    if wire_type == BYTES:
        size, position = varint(text, position)
        end = position + size
    elif wire_type == FIXED64:
        end = position + 8
    elif wire_type == FIXED32:
        end = position + 4
    elif wire_type == VARINT:
        _, end = varint(text, position)
    else:
        raise ProtoError(f"a field of type {wire_type}")
    if end > limit or field < 8:
        raise ProtoError("a field ends after it" if field >= 8 else "a field of number 0")
    return position, end


def field_contents(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number and type, content) of each field, in order; the content of bytes is without their length.

    Raises:
      ProtoError: the bytes are no message.
    """
    position = 0
    try:
        while position < len(message):
            field, position = varint(message, position)
            start, position = end_of(message, field, position, len(message))
            yield field, message[start:position]
    except IndexError as error:
        raise ProtoError("it ends inside a number") from error


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number and type, value) of each field that is a number or bytes, in order.

    Raises:
      ProtoError: the bytes are no message.
    """
    for field, content in field_contents(message):
        if field & 7 == VARINT:
            yield field, varint(content, 0)[0]
        elif field & 7 == BYTES:
            yield field, content


def unpacked_varints(content: bytes) -> Iterator[int]:
    """The unsigned numbers of a packed field.

    Raises:
      ProtoError: the last one is cut off, or one has more than 10 bytes.
    """
    position = 0
    try:
        while position < len(content):
            number, position = varint(content, position)
            yield number
    except IndexError as error:
        raise ProtoError("it ends inside a number") from error


def signed(zigzag: int) -> int:
    """The number that a field of type sint32 or sint64 holds."""
    return (zigzag >> 1) ^ -(zigzag & 1)


def encoded_varint(number: int) -> bytes:
    """The bytes of a number that is not negative."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def encoded_bytes(number: int, content: bytes) -> bytes:
    """A field of bytes, a text or a message."""
    return encoded_varint(number << 3 | BYTES) + encoded_varint(len(content)) + content


_LIST_BYTES = 1 << 22
"""Of adjacent fields that are read before it is looked whether there is room for them."""

_REPEATS, _ALIKE = 8, 1024
"""After so many fields of one length so many are compared with it at once, as data points of one metric.

Where this finds no more of them, twice as many are needed before the next time.
"""


class SingleMessages:
    """The fields of messages that are read one by one.

    Attributes:
      corrupt: the numbers of corrupt messages.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._runs: list[tuple[int, int, int]] = []
        """(message, tag, number of the first field) of adjacent fields with one tag."""
        self._firsts, self._ends = array("q"), array("q")
        self._needed = _REPEATS
        self._most = room() // VALUE_BYTES
        self.corrupt: list[int] = []

    def charge(self) -> None:
        """Charges all fields; a new tag takes about as much as two more.

        Raises:
          NoRoomError: they are too many.
        """
        charge((len(self._ends) + 2 * len(self._runs)) * VALUE_BYTES)

    def read(self, message: int, position: int, end: int) -> None:
        """Reads the fields of a message from a position on.

        Raises:
          NoRoomError: they are too many, with those before.
        """
        text, runs, firsts, ends = self._text, self._runs, self._firsts, self._ends
        most = self._most
        try:
            while position < end:
                tag, position = varint(text, position)
                first, position = end_of(text, tag, position, end)
                if tag >> 3 > 0x1FFFFFFF:
                    raise ProtoError("a field number of more than 29 bits")
                runs.append((message, tag, len(ends)))
                firsts.append(first)
                ends.append(position)
                if position >= end:
                    break
                if len(ends) + 2 * len(runs) > most:
                    self.charge()
                if text[position] == tag and tag & 7 == BYTES and tag <= 0x7F:
                    position = self._read_list(tag, position, min(end, position + _LIST_BYTES))
        except (ProtoError, IndexError):
            self.corrupt.append(message)
        else:
            if position != end:
                self.corrupt.append(message)

    def _read_list(self, tag: int, position: int, until: int) -> int:
        """Reads adjacent messages that all have one tag and a length of at most two bytes; where they end."""
        text, append_first, append_end = self._text, self._firsts.append, self._ends.append
        last_size = repeats = 0
        while position < until and text[position] == tag:
            start = position
            size = text[position + 1]
            first = position + 2
            if size > 0x7F:
                high = text[first]
                if high > 0x7F:
                    break
                first += 1
                size += (high << 7) - 0x80
            position = first + size
            append_first(first)
            append_end(position)
            if size != last_size:
                last_size, repeats = size, 0
            elif repeats < self._needed:
                repeats += 1
            else:
                firsts = _alike(text, start, first, position, until)
                self._firsts.frombytes(firsts.tobytes())
                self._ends.frombytes((firsts + size).tobytes())
                position += len(firsts) * (position - start)
                repeats, self._needed = 0, _REPEATS if len(firsts) > _REPEATS else 2 * self._needed
        return position

    def columns(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """(message, tag, where the content begins, where it ends) int64[k] of the fields."""
        owners, tags, first_fields = np.array(self._runs, np.int64).reshape(-1, 3).T
        counts = np.diff(np.append(first_fields, len(self._ends)))
        spans = np.frombuffer(self._firsts, np.int64), np.frombuffer(self._ends, np.int64)
        return np.repeat(owners, counts), np.repeat(tags, counts), *spans


def _alike(text: bytes, start: int, first: int, end: int, until: int) -> Int64s:
    """int64[k]: where the contents begin of fields that follow one and have its tag and length.

    Args:
      start, first, end: where the field, and its content, begin, and where both end.
      until: where the last of them ends at the latest.
    """
    stride = end - start
    n = min((until - end) // stride, _ALIKE)
    if n < 1:  # it may even end after the text
        return np.zeros(0, np.int64)
    heads = np.ndarray((n, first - start), np.uint8, text, end, (stride, 1))
    differs = (heads != np.frombuffer(text, np.uint8, first - start, start)).any(axis=1)
    count = int(np.argmax(differs)) if differs.any() else n
    return first + stride * np.arange(1, count + 1)
