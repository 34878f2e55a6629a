"""Row groups of Parquet files from anyone, as Arrow's rows: what they take is known before they are read.

The headers of pages tell what the strings of their values take in memory, one by one: a page of dictionary
numbers, or of deltas, can hold a long string a million times in a few bytes. Source: PageHeader in
parquet.thrift of apache/parquet-format, and its Encodings.md.

Strings and bytes are dictionaries, with equal values once in memory, as in most files. Arrow reads such a
column as a dictionary unless its pages have deltas; then its values are in memory one by one at first.

Statistics of columns are compared with their values, since engines leave out rows by them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timebeam.schema.formats.parquet.footer import BYTE_ARRAY, ColumnChunk, Footer, RowGroup
from timebeam.schema.formats.parquet.thrift import FLAG, I32, StructEndError, Table, ThriftError, ThriftReader

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
      OSError: a header is corrupt, a column has not as many values as its footer says, or the pages are too
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
                raise OSError(f"its page header at byte {position:,} is corrupt") from error
            window *= 16
        except ThriftError as error:
            raise OSError(f"its page header at byte {position:,} is corrupt: {error}") from error
    kind, size, stored = (fields.get(field, -1) for field in (1, 2, 3))
    described = fields.get(_OF_TYPE.get(kind, 0), {})
    values = described.get(_VALUES, -1) if kind in _OF_TYPE else 0
    start = position + reader.position
    if min(kind, size, stored, values) < 0 or start + stored > end:
        raise OSError(f"its page at byte {position:,} has no sizes, or ends after the pages")
    return Page(kind, start, size, stored, values, described.get(_ENCODING.get(kind, 0), -1), described)


PLAIN, _RLE, _DELTA_LENGTHS, _DELTA = 0, 3, 6, 7
BY_DICTIONARY = (2, 8)
"""Encodings of pages of numbers of a dictionary."""

_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_MOST_MINIBLOCKS = 1 << 10
_MOST_STRINGS = 1 << 20  # of a dictionary; what is behind them counts as one


def value_bytes(source: BinaryIO, chunk: ColumnChunk, pages: Sequence[Page]) -> int:
    """The bytes of all values of a column of byte arrays; at most so many, where a dictionary has them.

    Raises:
      OSError, pyarrow.ArrowException: a page is corrupt, or has an encoding that is not read.
    """
    total = longest = 0
    for page in pages:
        if page.kind == DICTIONARY:
            longest = _longest(_content(source, chunk, page))
        elif page.kind not in (DATA, DATA_2):
            continue
        elif page.encoding in (PLAIN, _DELTA_LENGTHS):
            total += page.size
        elif page.encoding in BY_DICTIONARY:
            total += page.values * longest
        elif page.encoding == _DELTA:
            try:
                total += page.size + _prefix_bytes(_content(source, chunk, page), page.values)
            except (ThriftError, IndexError) as error:
                raise OSError(f"its page at byte {page.start:,} has corrupt deltas: {error}") from error
        else:
            name = chunk.leaf.name[:80]
            raise OSError(f"its column {name!r} has encoding {page.encoding}, which is not read")
    return total


def _content(source: BinaryIO, chunk: ColumnChunk, page: Page) -> bytes:
    """The values of a page, decompressed."""
    source.seek(page.start)
    text = source.read(page.stored)
    levels = 0
    is_compressed = chunk.codec != 0
    if page.kind == DATA_2:
        levels = page.fields.get(5, 0) + page.fields.get(6, 0)
        is_compressed &= bool(page.fields.get(7, 1))
    if not 0 <= levels <= min(page.stored, page.size):
        raise OSError(f"its page at byte {page.start:,} has {levels:,} bytes of levels")
    values = text[levels:]
    if is_compressed and values:
        if chunk.codec not in _CODECS:
            raise OSError(
                f"its column {chunk.leaf.name[:80]!r} is compressed by {chunk.codec}, which is not read"
            )
        values = pa.decompress(values, page.size - levels, _CODECS[chunk.codec], asbytes=True)
    if page.kind != DATA:
        return values
    start = 0
    for most, encoding in ((chunk.leaf.repetition, 4), (chunk.leaf.definition, 3)):
        if most:
            if page.fields.get(encoding) != _RLE:
                raise OSError(f"its page at byte {page.start:,} has levels that are not read")
            start += 4 + int.from_bytes(values[start : start + 4], "little")
    return values[start:]


def _longest(dictionary: bytes) -> int:
    """The bytes of the longest string of a dictionary, each behind its length in 4 bytes."""
    position = longest = 0
    for _ in range(_MOST_STRINGS):
        if position >= len(dictionary):
            break
        size = int.from_bytes(dictionary[position : position + 4], "little")
        longest = max(longest, size)
        position += 4 + size
    return min(max(longest, len(dictionary) - position), len(dictionary))


def _prefix_bytes(text: bytes, values: int) -> int:
    """The sum of the lengths of prefixes with which a page of DELTA_BYTE_ARRAY begins.

    They are in blocks of miniblocks, each of numbers of equal width: differences, less the smallest one.

    Raises:
      ThriftError, IndexError: they are corrupt.
    """
    reader = ThriftReader(text)
    block, miniblocks, count = reader.varint(), reader.varint(), reader.varint()
    first = reader.integer()
    if not (0 < miniblocks <= _MOST_MINIBLOCKS and count <= values and block % miniblocks == 0):
        raise ThriftError("sizes of blocks that make no sense")
    size = block // miniblocks
    if not 0 < size <= 1 << 31 or size % 32:
        raise ThriftError("a size of miniblocks that makes no sense")
    deltas = [np.array([first] if count else [], np.int64)]
    pending = count - 1
    while pending > 0:
        least = reader.integer()
        widths = reader.bytes(miniblocks)
        for width in widths:
            if pending <= 0:
                break
            if width > 64:
                raise ThriftError("numbers of more than 64 bits")
            numbers = min(size, pending)
            packed = reader.bytes(size * width // 8) if width else b""
            deltas.append(least + _unpacked(packed, width, numbers))
            pending -= numbers
    lengths = np.cumsum(np.concatenate(deltas)).astype(np.int32)  # as Arrow, modulo 2**32
    if lengths.min(initial=0) < 0:
        raise ThriftError("a length below 0")
    return int(lengths.astype(np.int64).sum())


def _unpacked(packed: bytes, width: int, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """int64[n]: the first n numbers of `width` bits each, the lowest bit first."""
    if not width:
        return np.zeros(n, np.int64)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")[: n * width].reshape(n, width)
    weights = np.left_shift(np.uint64(1), np.arange(width, dtype=np.uint64))
    return (bits * weights).sum(1, dtype=np.uint64).view(np.int64)


_MOST_GROUPS = 10_000


class RowGroups:
    """Some row groups of a file.

    Attributes:
      stored: their bytes in the file.
    """

    def __init__(self, source: BinaryIO, footer: Footer, numbers: Sequence[int], most_bytes: int) -> None:
        """
        Args:
          numbers: of the row groups.
          most_bytes: most that they may take, as the footer says, as their pages say, and in memory.

        Raises:
          OSError: they are corrupt, encrypted or too large.
          pyarrow.ArrowException: their schema makes no sense.
        """
        if len(numbers) > _MOST_GROUPS:
            raise OSError(f"{len(numbers):,} row groups together; at most {_MOST_GROUPS:,} are read")
        groups = [footer.group(number) for number in numbers]
        chunks = [chunk for group in groups for chunk in group.chunks]
        _limit(sum(group.size for group in groups), most_bytes)
        _limit(sum(max(8, chunk.leaf.length) * chunk.values for chunk in chunks), most_bytes)
        pages = pages_of(source, chunks)
        _limit(sum(page.size for each in pages for page in each), most_bytes, "pages of ")
        singly = {
            chunk.leaf.name
            for chunk, each in zip(chunks, pages, strict=True)
            if chunk.leaf.physical == BYTE_ARRAY and not (chunk.leaf.is_text and _is_by_dictionary(each))
        }
        size = 0
        for chunk, each in zip(chunks, pages, strict=True):
            if chunk.leaf.name in singly:
                size += value_bytes(source, chunk, each)
                _limit(size, most_bytes, "strings of ")
        self.stored = sum(chunk.stored for chunk in chunks)
        texts = {leaf.name for leaf in footer.leaves if leaf.is_text} - singly
        self._rows = [group.rows for group in groups]
        self._file = pq.ParquetFile(
            source,
            metadata=pq.read_metadata(pa.BufferReader(footer.only(groups))),
            read_dictionary=sorted(texts),
            page_checksum_verification=True,
        )

    def table(self) -> pa.Table:
        """All rows.

        Raises:
          pyarrow.ArrowException, OSError: they are corrupt.
        """
        # Arrow reads maps of dictionaries of one row group only. After an error its threads would go on.
        numbers = range(len(self._rows))
        tables = [self._checked(self._file.read_row_group(number, use_threads=False)) for number in numbers]
        return pa.concat_tables(tables) if tables else self._file.read(use_threads=False)

    def batches(self, most_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of the first row group in pieces; raises as `table`."""
        rows = 0
        for batch in self._file.iter_batches(most_rows, row_groups=[0], use_threads=False):
            rows += len(batch)
            yield from self._checked(pa.Table.from_batches([batch])).to_batches()
        if rows != self._rows[0]:  # Arrow ends with the shortest column
            raise OSError(f"it has {rows:,} of {self._rows[0]:,} rows")

    def _checked(self, rows: pa.Table) -> pa.Table:
        rows.validate(full=True)  # numbers of dictionaries may be beyond their end
        return _encoded(rows)


def _limit(size: int, most: int, counted: str = "") -> None:
    """Raises OSError if there are too many bytes; `counted`, of what, as `pages of `."""
    if size > most:
        raise OSError(f"it has {counted}{size:,} bytes; at most {most:,} are read")


def _is_by_dictionary(pages: Sequence[Page]) -> bool:
    """Whether Arrow can read a column of strings as a dictionary."""
    return all(page.kind == DICTIONARY or page.encoding in (PLAIN, *BY_DICTIONARY) for page in pages)


def _encoded(rows: pa.Table) -> pa.Table:
    """Rows with dictionaries in place of strings and bytes, also in maps."""
    for number, field in enumerate(rows.schema):
        if _is_text(field.type) or (
            pa.types.is_map(field.type) and (_is_text(field.type.key_type) or _is_text(field.type.item_type))
        ):
            chunks = [_encoded_array(chunk) for chunk in rows.column(number).chunks]
            if chunks:
                rows = rows.set_column(number, field.name, pa.chunked_array(chunks))
    return rows


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _encoded_array(values: pa.Array) -> pa.Array:
    """Strings or bytes as a dictionary, also in a map, of which null becomes empty; others as they are."""
    if pa.types.is_map(values.type):
        keys, items = (_encoded_array(each) for each in (values.keys, values.items))
        return pa.MapArray.from_arrays(values.offsets, keys, items)
    return values.dictionary_encode() if _is_text(values.type) else values


_MAX, _MIN, _NULLS, _MAX_VALUE, _MIN_VALUE = 1, 2, 3, 5, 6
_BOUNDS = {_MAX: "maximum", _MIN: "minimum", _MAX_VALUE: "maximum", _MIN_VALUE: "minimum"}
_NUMBERS = {2: "<q", 5: "<d"}  # by physical type: int64, double


def wrong_statistics(group: RowGroup, rows: pa.Table) -> Iterator[str]:
    """What the footer says wrongly of a row group, in words.

    Args:
      rows: of the group; strings and bytes are dictionaries. Statistics of maps are not compared.
    """
    for chunk in group.chunks:
        said = chunk.statistics
        if not said or len(chunk.leaf.path) > 1:
            continue
        name, column = chunk.leaf.name, rows[chunk.leaf.name]
        if said.get(_NULLS, column.null_count) != column.null_count:
            yield f"{said[_NULLS]:,} nulls in {name}, which has {column.null_count:,}"
        least, greatest = _extent(column)
        for field, bound_name in _BOUNDS.items():
            if field not in said:
                continue
            right = greatest if bound_name == "maximum" else least
            bound = _value(said[field], chunk.leaf.physical)
            if bound != right:
                yield f"{bound!r} as the {bound_name} of {name}, which is {right!r}"


def _extent(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """(minimum, maximum) of a column, as numbers or bytes; None if all are null."""
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        values: list[bytes] = []
        for chunk in column.chunks:
            used = np.unique(chunk.indices.drop_null().to_numpy())
            values += chunk.dictionary.take(pa.array(used)).cast(pa.binary()).to_pylist()
        return (min(values), max(values)) if values else (None, None)
    number = column if pa.types.is_floating(column.type) else column.cast(pa.int64())
    extent = pc.min_max(number).as_py()
    return extent["min"], extent["max"]


def _value(raw: bytes, physical: int) -> Any:
    """A bound: a number, or bytes as they are, also of a number that has not its size."""
    form = _NUMBERS.get(physical)
    return struct.unpack(form, raw)[0] if form and len(raw) == struct.calcsize(form) else raw
