"""The footer of a Parquet file from anyone: checked, and written again for Arrow with what it needs alone.

Arrow ends the process for some footers: an encrypted column, a histogram of sizes that does not fit. So it
gets neither statistics, sizes, indexes, filters, keys nor what others keep in a footer
(apache/parquet-format, parquet.thrift).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

from timebeam.schema.formats.parquet.thrift import (
    BINARY,
    BYTE,
    FLAG,
    I32,
    I64,
    PLACE,
    Table,
    ThriftError,
    ThriftReader,
    written,
)

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"

LARGEST_FOOTER = 1 << 24
"""Bytes of a footer that are read."""

_MOST_LEAVES = 10_000
_DEEPEST = 32
_LONGEST_WRITER = 256  # bytes of the name of the program that wrote a file

BYTE_ARRAY, FIXED_BYTES = 6, 7
"""Physical types."""

_REPEATED, _REQUIRED = 2, 0
_TEXT = (None, 0)  # converted types: of bytes, and of strings
_STRING = 1  # logical type

_UNIT: Table = {1: {}, 2: {}, 3: {}}
_TIME: Table = {1: FLAG, 2: _UNIT}
_LOGICAL: Table = {
    **{number: {} for number in (1, 2, 3, 4, 6, 11, 12, 13, 14, 15)},
    5: {1: I32, 2: I32},
    7: _TIME,
    8: _TIME,
    10: {1: BYTE, 2: FLAG},
}
_ELEMENT: Table = {1: I32, 2: I32, 3: I32, 4: BINARY, 5: I32, 6: I32, 7: I32, 8: I32, 9: I32, 10: _LOGICAL}
_STATISTICS: Table = {1: BINARY, 2: BINARY, 3: I64, 4: I64, 5: BINARY, 6: BINARY}
_META: Table = {
    1: I32,
    2: [I32],
    3: [BINARY],
    4: I32,
    5: I64,
    6: I64,
    7: I64,
    9: I64,
    11: I64,
    12: _STATISTICS,
}
_CHUNK: Table = {1: BINARY, 2: I64, 3: _META, 8: {}, 9: BINARY}
_GROUP: Table = {1: [_CHUNK], 2: I64, 3: I64}
_ROWS: Table = {3: I64}
_FILE: Table = {1: I32, 2: [_ELEMENT], 3: I64, 6: BINARY}
_FILE_READ: Table = _FILE | {4: [PLACE], 8: {}}
_FILE_WRITTEN: Table = _FILE | {4: [_GROUP]}


class FooterError(OSError):
    """A footer that is corrupt, or of a file that is not read."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeafColumn:
    """A column of values.

    Attributes:
      path: its names from the root on.
      physical: its physical type.
      length: bytes of each value, of type `FIXED_BYTES`.
      is_text: whether its values are strings or bytes.
      definition, repetition: the highest levels.
    """

    path: tuple[str, ...]
    physical: int
    length: int
    is_text: bool
    definition: int
    repetition: int

    @property
    def name(self) -> str:
        """As Arrow calls it."""
        return ".".join(self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of a column in a row group.

    Attributes:
      meta: the fields of ColumnMetaData in parquet.thrift, by number.
      start: of its first page in the file.
      end: of what can hold its pages: where the footer begins.
    """

    leaf: LeafColumn
    meta: dict[int, Any]
    start: int
    end: int

    @property
    def codec(self) -> int:
        """The number of its compression."""
        return int(self.meta[4])

    @property
    def values(self) -> int:
        """How many, with nulls."""
        return int(self.meta[5])

    @property
    def stored(self) -> int:
        """Its bytes in the file."""
        return int(self.meta[7])

    @property
    def statistics(self) -> dict[int, Any]:
        """The fields of Statistics in parquet.thrift, by number."""
        return dict(self.meta.get(12, {}))


@dataclasses.dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its rows, their bytes without compression as its writer says, and its columns."""

    rows: int
    size: int
    chunks: tuple[ColumnChunk, ...]


@dataclasses.dataclass(frozen=True)
class Footer:
    """A footer whose schema is checked; row groups are checked when they are read.

    Attributes:
      leaves: the columns of values, in the order of the file.
      group_rows: the rows of each row group.
    """

    leaves: tuple[LeafColumn, ...]
    group_rows: tuple[int, ...]
    _text: bytes
    _fields: dict[int, Any]
    _end: int

    def group(self, number: int) -> RowGroup:
        """A row group.

        Raises:
          FooterError: it is corrupt, or has an encrypted column.
        """
        try:
            fields = ThriftReader(self._text, self._fields[4][number]).struct(_GROUP)
        except ThriftError as error:
            raise FooterError(f"corrupt footer: {error}") from error
        columns, rows = fields.get(1, []), self.group_rows[number]
        if len(columns) != len(self.leaves):
            why = f"row group {number} has {len(columns)} columns, the schema {len(self.leaves)}"
            raise FooterError(f"corrupt footer: {why}")
        chunks = [self._chunk(leaf, column, rows) for leaf, column in zip(self.leaves, columns, strict=True)]
        return RowGroup(rows, fields.get(2, 0), tuple(chunks))

    def _chunk(self, leaf: LeafColumn, column: dict[int, Any], rows: int) -> ColumnChunk:
        if 8 in column or 9 in column:
            raise FooterError(f"its column {leaf.name!r} is encrypted: write the file without encryption")
        if 1 in column:
            raise FooterError(f"its column {leaf.name!r} is in another file, which is not read")
        meta = column.get(3, {})
        lacking = {1, 2, 3, 4, 5, 6, 7, 9} - meta.keys()
        if lacking or meta[1] != leaf.physical or not 0 <= meta[4] <= 7:
            raise _corrupt(leaf, "no type, codec, sizes or place")
        if any(not 0 <= encoding <= 15 for encoding in meta[2]) or min(meta[5], meta[6], meta[7]) < 0:
            raise _corrupt(leaf, "an encoding or a size that makes no sense")
        if not leaf.repetition and meta[5] != rows:
            raise _corrupt(leaf, f"{meta[5]:,} values in {rows:,} rows")
        start = meta[9]
        if meta.get(11):  # the dictionary; some writers say 0 for none
            start = min(start, meta[11])
        if meta[5] and not len(MAGIC) <= start <= max(start + meta[7], meta[9]) <= self._end:
            raise _corrupt(leaf, f"{meta[7]:,} bytes from byte {start:,} on, of {self._end:,}")
        return ColumnChunk(leaf, meta, start, self._end)

    def only(self, groups: Sequence[RowGroup]) -> bytes:
        """A file without pages that has some row groups, for Arrow."""
        schema = [
            {field: value for field, value in element.items() if value != {}} for element in self._fields[2]
        ]
        rows = sum(group.rows for group in groups)
        fields = {1: 2, 2: schema, 3: rows, 4: [_group_fields(group) for group in groups]}
        if writer := self._fields.get(6, b"")[:_LONGEST_WRITER]:  # Arrow repairs what old writers did wrong
            fields[6] = writer
        footer = written(_FILE_WRITTEN, fields)
        return MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC


def _corrupt(leaf: LeafColumn, why: str) -> FooterError:
    return FooterError(f"corrupt footer: its column {leaf.name[:80]!r} has {why}")


def _group_fields(group: RowGroup) -> dict[int, Any]:
    """A row group without what Arrow does not need."""
    chunks = []
    for chunk in group.chunks:
        meta = {field: value for field, value in chunk.meta.items() if field != 12}
        meta[3] = [name.encode() for name in chunk.leaf.path]
        chunks.append({2: 0, 3: meta})
    return {1: chunks, 2: group.size, 3: group.rows}


def read_footer(source: BinaryIO) -> Footer:
    """The footer of a file.

    Raises:
      FooterError: it is corrupt, or that of a file that is not read.
    """
    size = source.seek(0, os.SEEK_END)
    source.seek(max(size - 8, 0))
    tail = source.read(8)
    if tail[4:] == ENCRYPTED_MAGIC:
        raise FooterError("it is encrypted: write the file without encryption")
    if tail[4:] != MAGIC:
        raise FooterError("it does not end as a Parquet file: no PAR1")
    length = int.from_bytes(tail[:4], "little")
    end = size - 8 - length
    if end < len(MAGIC):
        raise FooterError(f"corrupt footer: it would have {length:,} of the {size:,} bytes of the file")
    if length > LARGEST_FOOTER:
        raise FooterError(f"a footer of {length:,} bytes; at most {LARGEST_FOOTER:,} are read")
    source.seek(end)
    return _footer(source.read(length), end)


@functools.lru_cache(maxsize=1)  # one file after the other, whose row groups are read one by one
def _footer(text: bytes, end: int) -> Footer:
    try:
        reader = ThriftReader(text)
        fields = reader.struct(_FILE_READ)
        if reader.position < len(text) and 8 not in fields:  # a signature is behind it
            raise ThriftError(f"{len(text) - reader.position:,} bytes behind it")
        if not {2, 3, 4} <= fields.keys():
            raise ThriftError("no schema, rows or row groups")
        group_rows = tuple(ThriftReader(text, place).struct(_ROWS).get(3, -1) for place in fields[4])
        leaves = _leaves(fields[2])
    except (ThriftError, UnicodeDecodeError) as error:
        raise FooterError(f"corrupt footer: {error}") from error
    rows = fields[3]
    if min(group_rows, default=0) < 0 or rows not in (0, sum(group_rows)):  # some writers say 0
        raise FooterError(f"corrupt footer: {rows:,} rows, {sum(group_rows):,} in its row groups")
    footer = Footer(leaves, group_rows, text, fields, end)
    if 8 in fields:  # its encryption: one rejection for all row groups
        for number in range(len(group_rows)):
            footer.group(number)
    return footer


def _leaves(elements: list[dict[int, Any]]) -> tuple[LeafColumn, ...]:
    """The columns of values of a schema, which is a tree: each element is before its children.

    Raises:
      ThriftError: it is no tree, too deep, or has an element that makes no sense.
    """
    leaves: list[LeafColumn] = []
    if not elements:
        raise ThriftError("no schema")
    parents = [_Parent(elements[0].get(5, 0))]
    for element in elements[1:]:
        while parents and not parents[-1].children:
            parents.pop()
        if not parents or len(parents) > _DEEPEST:
            raise ThriftError("a schema that is no tree, or too deep")
        parent = parents[-1]
        parent.children -= 1
        repeats, children = element.get(3), element.get(5, 0)
        if repeats not in (0, 1, 2) or children < 0 or 4 not in element:
            raise ThriftError("an element of the schema that makes no sense")
        below = _Parent(
            children,
            (*parent.path, element[4].decode()),
            parent.definition + (repeats != _REQUIRED),
            parent.repetition + (repeats == _REPEATED),
        )
        if children:
            parents.append(below)
        else:
            leaves.append(_leaf(element, below))
    if any(parent.children for parent in parents) or not 0 < len(leaves) <= _MOST_LEAVES:
        raise ThriftError(f"a schema that is no tree, or of more than {_MOST_LEAVES:,} columns")
    return tuple(leaves)


@dataclasses.dataclass(slots=True)
class _Parent:
    """An element of a schema: how many of its children follow; for others see `LeafColumn`."""

    children: int
    path: tuple[str, ...] = ()
    definition: int = 0
    repetition: int = 0


def _leaf(element: dict[int, Any], place: _Parent) -> LeafColumn:
    path = place.path
    physical = element.get(1, -1)
    if not 0 <= physical <= FIXED_BYTES or (physical == FIXED_BYTES and element.get(2, 0) <= 0):
        raise ThriftError(f"a column {'.'.join(path)[:80]!r} without a type")
    logical = element.get(10, {})
    is_text = physical == BYTE_ARRAY and (_STRING in logical or (not logical and element.get(6) in _TEXT))
    return LeafColumn(path, physical, element.get(2, 0), is_text, place.definition, place.repetition)
