"""Structs in Thrift's compact protocol, read by a table of the fields that are wanted, and written by one.

A table is a dict from the number of a field to its shape; other fields are skipped. A shape is

| shape | is read as |
|---|---|
| `FLAG`, `BYTE`, `I32`, `I64` | int, of any width |
| `BINARY` | bytes |
| `PLACE` | the position where a struct begins, which is skipped |
| [shape] | list |
| a table | dict from numbers to values, of a struct |

(apache/thrift, doc/specs/thrift-compact-protocol.md)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

from timebeam.schema.bits.protobuf import encoded_varint

FLAG, BYTE, I32, I64, BINARY, PLACE = 1, 3, 5, 6, 8, -1
_STOP, _FALSE, _DOUBLE, _LIST, _SET, _MAP, _STRUCT = 0, 2, 7, 9, 10, 11, 12
_INTEGERS = (4, I32, I64)
_LIMITS = {I32: 1 << 31, I64: 1 << 63}
_DEEPEST = 16

Shape: TypeAlias = int | list[Any] | dict[int, Any]
Table: TypeAlias = dict[int, Any]


class ThriftError(ValueError):
    """Bytes that are no such struct."""


class StructEndError(ThriftError):
    """They end inside the struct."""


class ThriftReader:
    """Reads values of a text one after the other; `position` is the end of the last."""

    def __init__(self, text: bytes, position: int = 0) -> None:
        self._text, self.position = text, position

    def struct(self, table: Table, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct that a table names, those that it has.

        Raises:
          ThriftError: it is corrupt, too deep, or has a field of another kind.
        """
        values: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != _STOP:
            kind, delta = head & 0xF, head >> 4
            field = field + delta if delta else self.integer()
            shape = table.get(field)
            if shape is None:
                self._skip(kind, depth + 1)
            else:
                values[field] = self._value(shape, kind, depth + 1)
        return values

    def _value(self, shape: Shape, kind: int, depth: int) -> Any:
        if not _fits(shape, kind):
            raise ThriftError(f"a field of kind {kind}")
        if isinstance(shape, dict):
            if depth > _DEEPEST:
                raise ThriftError("structs inside each other")
            return self.struct(shape, depth)
        if isinstance(shape, list):
            item, size = self._list_head()
            if size and not _fits(shape[0], item):
                raise ThriftError(f"a list of values of kind {item}")
            return [self._item(shape[0], depth) for _ in range(size)]
        if shape == FLAG:
            return int(kind == FLAG)
        return self._item(shape, depth)

    def _item(self, shape: Shape, depth: int) -> Any:
        """A value of a list, or a number or text."""
        if isinstance(shape, (dict, list)):
            return self._value(shape, _STRUCT if isinstance(shape, dict) else _LIST, depth + 1)
        if shape == BINARY:
            return self.bytes(self.varint())
        if shape == PLACE:
            start = self.position
            self._skip(_STRUCT, depth)
            return start
        if shape in (FLAG, BYTE):
            return self._byte()
        number = self.integer()
        if shape in _LIMITS and not -_LIMITS[shape] <= number < _LIMITS[shape]:
            raise ThriftError(f"the number {number}, which has too many bits")
        return number

    def _skip(self, kind: int, depth: int, *, of_list: bool = False) -> None:
        if depth > _DEEPEST:
            raise ThriftError("structs inside each other")
        if kind in _INTEGERS:
            self.varint()
        elif kind == BINARY:
            self._forward(self.varint())
        elif kind in (FLAG, _FALSE, BYTE):
            self._forward(1 if of_list or kind == BYTE else 0)
        elif kind == _DOUBLE:
            self._forward(8)
        elif kind == _STRUCT:
            while (head := self._byte()) != _STOP:
                if not head >> 4:
                    self.varint()
                self._skip(head & 0xF, depth + 1)
        elif kind in (_LIST, _SET):
            item, size = self._list_head()
            for _ in range(size):
                self._skip(item, depth + 1, of_list=True)
        elif kind == _MAP:
            size = self._bounded(self.varint())
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip(kinds >> 4, depth + 1, of_list=True)
                self._skip(kinds & 0xF, depth + 1, of_list=True)
        else:
            raise ThriftError(f"a field of kind {kind}")

    def _list_head(self) -> tuple[int, int]:
        """(kind of the values, their number)."""
        head = self._byte()
        size = head >> 4
        return head & 0xF, self._bounded(self.varint() if size == 15 else size)

    def _bounded(self, size: int) -> int:
        """A number of values, each of which has at least a byte."""
        if size > len(self._text) - self.position:
            raise StructEndError("a list that ends behind its end")
        return size

    def _byte(self) -> int:
        try:
            byte = self._text[self.position]
        except IndexError:
            raise StructEndError("it ends inside a struct") from None
        self.position += 1
        return byte

    def _forward(self, size: int) -> None:
        self.position += size
        if self.position > len(self._text):
            raise StructEndError("it ends inside a value")

    def bytes(self, size: int) -> bytes:
        """The bytes that follow; raises StructEndError if they are fewer."""
        self._forward(size)
        return self._text[self.position - size : self.position]

    def varint(self) -> int:
        """A number without sign; raises ThriftError."""
        byte = self._byte()
        if byte < 0x80:
            return byte
        number, shift = byte & 0x7F, 7
        while shift < 64:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise ThriftError("a number of more than 64 bits")

    def integer(self) -> int:
        """A number in zigzag encoding; raises ThriftError."""
        number = self.varint()
        return number >> 1 ^ -(number & 1)


def _fits(shape: Shape, kind: int) -> bool:
    """Whether values of a kind have a shape."""
    if isinstance(shape, dict) or shape == PLACE:
        return kind == _STRUCT
    if isinstance(shape, list):
        return kind == _LIST
    if shape == FLAG:
        return kind in (FLAG, _FALSE)
    return kind in _INTEGERS if shape in _INTEGERS else kind == shape


def written(table: Table, values: Mapping[int, Any]) -> bytes:
    """A struct with some values of the fields of a table."""
    out = bytearray()
    before = 0
    for field in sorted(values):
        shape, value = table[field], values[field]
        kind = _FALSE if shape == FLAG and not value else _kind(shape)
        if 0 < field - before < 16:
            out.append((field - before) << 4 | kind)
        else:
            out += bytes([kind]) + _zigzag(field)
        if shape != FLAG:
            out += _written_value(shape, value)
        before = field
    return bytes(out) + b"\0"


def _written_value(shape: Shape, value: Any) -> bytes:
    if isinstance(shape, dict):
        return written(shape, value)
    if isinstance(shape, list):
        size, kind = len(value), _kind(shape[0])
        head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + encoded_varint(size)
        return head + b"".join(_written_value(shape[0], item) for item in value)
    if shape == BINARY:
        return encoded_varint(len(value)) + value
    return struct.pack("B", value) if shape in (FLAG, BYTE) else _zigzag(value)


def _kind(shape: Shape) -> int:
    return _STRUCT if isinstance(shape, dict) else _LIST if isinstance(shape, list) else shape


def _zigzag(number: int) -> bytes:
    return encoded_varint(number << 1 ^ number >> 63)
