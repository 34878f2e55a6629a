"""Row groups of Parquet files from anyone, as Arrow's rows: what they take is known before they are read.

Strings and bytes are dictionaries, with equal values once in memory, as in most files. Arrow reads such a
column as a dictionary unless its pages have deltas; then its values are in memory one by one at first.

Statistics of columns are compared with their values, since engines leave out rows by them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timebeam.schema.formats.parquet.footer import BYTE_ARRAY, Footer, RowGroup
from timebeam.schema.formats.parquet.pages import (
    BY_DICTIONARY,
    DICTIONARY,
    PLAIN,
    Page,
    pages_of,
    value_bytes,
)

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
