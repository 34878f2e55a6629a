"""The encoding of protobuf messages: fields of a number, a type and a value.

protobuf.dev/programming-guides/encoding. A field begins with `number << 3 | type`.
"""

from __future__ import annotations

from collections.abc import Iterator

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
