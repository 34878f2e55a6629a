"""Page headers of a Parquet file: what its pages take in memory, before a reader allocates it.

A header is a struct in Thrift's compact protocol, before each page (apache/parquet-format, parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from timebeam.schema.formats.parquet.footer import ColumnChunk
from timebeam.schema.formats.parquet.thrift import (
    FLAG,
    I32,
    StructEndError,
    Table,
    ThriftError,
    ThriftReader,
)

DATA, DICTIONARY, DATA_2 = 0, 2, 3
"""Types of pages with values."""

_OF_TYPE = {DATA: 5, DICTIONARY: 7, DATA_2: 8}  # the field that describes such a page
_VALUES, _ENCODING = 1, {DATA: 2, DICTIONARY: 2, DATA_2: 4}
_HEADER: Table = {
    **dict.fromkeys((1, 2, 3), I32),
    5: dict.fromkeys((1, 2, 3, 4), I32),
    7: dict.fromkeys((1, 2), I32),
    8: dict.fromkeys((1, 2, 3, 4, 5, 6), I32) | {7: FLAG},
}
_MOST_PAGES = 100_000
_WINDOW_BYTES, _LARGEST_WINDOW = 256, 1 << 24  # most headers have less; with long statistics they have more


class Page(NamedTuple):
    """A page, and where its content is.

    Attributes:
      kind: `DATA`, `DICTIONARY`, `DATA_2` or another.
      size, stored: its bytes in memory, and in the file.
      fields: of the struct that describes such a page, by number.
    """

    kind: int
    start: int
    size: int
    stored: int
    values: int
    encoding: int
    fields: dict[int, Any]


def pages_of(source: BinaryIO, chunks: Iterable[ColumnChunk]) -> list[list[Page]]:
    """The pages of some columns, by their headers: little more of the file is read.

    Raises:
      OSError: a header is damaged, a column has not as many values as its footer says, or the pages are too
        many.
    """
    room = _MOST_PAGES
    pages = []
    for chunk in chunks:
        of_chunk = []
        for page in _pages(source, chunk):
            if not room:
                raise OSError(f"it has more than {_MOST_PAGES:,} pages")
            room -= 1
            of_chunk.append(page)
        pages.append(of_chunk)
    return pages


def _pages(source: BinaryIO, chunk: ColumnChunk) -> Iterator[Page]:
    position, values = chunk.start, 0
    while values < chunk.values:
        if position >= chunk.start + chunk.stored:  # behind it are pages of other columns
            raise OSError(f"its column {chunk.leaf.name!r} has {values:,} of {chunk.values:,} values")
        page = _page(source, position, chunk.end)
        yield page
        position = page.start + page.stored
        values += page.values if page.kind in (DATA, DATA_2) else 0
    if values > chunk.values:
        raise OSError(f"its column {chunk.leaf.name!r} has {values:,} values, of {chunk.values:,}")


def _page(source: BinaryIO, position: int, end: int) -> Page:
    """The page whose header begins at a position."""
    window = _WINDOW_BYTES
    while True:
        source.seek(position)
        reader = ThriftReader(source.read(min(window, end - position)))
        try:
            fields = reader.struct(_HEADER)
            break
        except StructEndError as error:
            if window > end - position or window >= _LARGEST_WINDOW:
                raise OSError(f"its page header at byte {position:,} is damaged") from error
            window *= 16
        except ThriftError as error:
            raise OSError(f"its page header at byte {position:,} is damaged: {error}") from error
    kind, size, stored = (fields.get(field, -1) for field in (1, 2, 3))
    described = fields.get(_OF_TYPE.get(kind, 0), {})
    values = described.get(_VALUES, -1) if kind in _OF_TYPE else 0
    start = position + reader.position
    if min(kind, size, stored, values) < 0 or start + stored > end:
        raise OSError(f"its page at byte {position:,} has no sizes, or ends behind the pages")
    return Page(kind, start, size, stored, values, described.get(_ENCODING.get(kind, 0), -1), described)
