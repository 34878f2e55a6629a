"""Page headers of a Parquet file: what its pages take in memory, before a reader allocates it.

A header is a struct in Thrift's compact protocol, before each page: field 2 is the size of the page in
memory, field 3 its size in the file (apache/parquet-format, parquet.thrift; apache/thrift,
doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import pyarrow.parquet as pq

_STOP, _I32, _I64, _BINARY, _STRUCT = 0, 5, 6, 8, 12
_FIXED_BYTES = {1: 0, 2: 0, 3: 1, 7: 8}  # true, false, byte, double
_INTEGERS = (4, _I32, _I64)
_DEEPEST = 4
_MOST_PAGES = 100_000
_WINDOW_BYTES = 256  # most headers have less


def page_bytes(source: BinaryIO, groups: Iterable[pq.RowGroupMetaData]) -> int:
    """What all pages of row groups take in memory, as their headers say.

    Args:
      source: the file, of which little more than the headers is read.

    Raises:
      OSError: a header is damaged, or the pages are too many.
    """
    total = 0
    pages = itertools.chain.from_iterable(
        _pages(source, group.column(column)) for group in groups for column in range(group.num_columns)
    )
    for number, size in enumerate(pages):
        if number == _MOST_PAGES:
            raise OSError(f"it has more than {_MOST_PAGES:,} pages")
        total += size
    return total


def _pages(source: BinaryIO, column: pq.ColumnChunkMetaData) -> Iterator[int]:
    """The size in memory of each page of a column."""
    position = column.data_page_offset
    if column.dictionary_page_offset:  # some writers say 0 for none
        position = min(position, column.dictionary_page_offset)
    end = position + column.total_compressed_size
    while position < end:
        header = _PageHeader(source, position)
        fields = header.struct()
        size, stored = fields.get(2, -1), fields.get(3, -1)
        if min(position, size, stored) < 0:
            raise OSError(f"its page at byte {position:,} has no sizes")
        yield size
        position = header.position + stored


class _PageHeader:
    """Reads a struct from a position on; after it, `position` is its end."""

    def __init__(self, source: BinaryIO, position: int) -> None:
        self._source, self._start, self.position = source, position, position
        self._window, self._window_start = b"", position

    def struct(self, depth: int = 0) -> dict[int, int]:
        """The integers of a struct, by field; those of structs in it are skipped.

        Raises:
          OSError: it is damaged.
        """
        fields: dict[int, int] = {}
        field = 0
        while (head := self._byte()) != _STOP:
            kind, delta = head & 0xF, head >> 4
            field = field + delta if delta else self._integer()
            if kind in _INTEGERS:
                fields[field] = self._integer()
            elif kind == _BINARY:
                size = self._varint()
                self.position += size
            elif kind == _STRUCT and depth < _DEEPEST:
                self.struct(depth + 1)
            elif kind in _FIXED_BYTES:
                self.position += _FIXED_BYTES[kind]
            else:  # lists, sets and maps, which no header has
                raise self._damaged()
        return fields

    def _byte(self) -> int:
        if self.position >= self._window_start + len(self._window):
            if not 0 <= self.position < 1 << 63:
                raise self._damaged()
            self._source.seek(self.position)
            self._window, self._window_start = self._source.read(_WINDOW_BYTES), self.position
            if not self._window:
                raise self._damaged()
        self.position += 1
        return self._window[self.position - 1 - self._window_start]

    def _varint(self) -> int:
        number = shift = 0
        while shift < 64:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise self._damaged()

    def _integer(self) -> int:
        """A number in zigzag encoding."""
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _damaged(self) -> OSError:
        return OSError(f"its page header at byte {self._start:,} is damaged")
