"""Merges the cell chunks of ReadRows responses into columns: no object for each cell but its bytes.

Chunks of one length from the same table mostly differ only in row key, qualifier, timestamp and value, at
equal places. So the first chunk of a length is parsed, and the others are a table beside it. Rows with other
chunks (a value in fragments, a row that is sent again, labels, several families) are merged by `RowMerger`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.wrappers_pb2 import BytesValue

from timebeam.transforms.bigtable.chunk_rows import (
    InvalidChunkError,
    Merger,
    RowMerger,
    chunk_class,
    response_class,
)
from timebeam.transforms.bigtable.mutation_bytes import slices
from timebeam.transforms.bigtable.protobuf_classes import message_classes

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

CHUNKS = 20_000
"""Cells that are merged together, and so about the most in memory, but for a longer row."""

_COMMIT = b"\x48\x01"  # the field commit_row, which is the last one


class EqualCells(NamedTuple):
    """n cells with qualifiers of one length q and values of one length v, of any rows.

    Attributes:
      rows: int64[n], the number of each cell's row; ascending.
      qualifiers: uint8[n, q].
      times_ms: int64[n], timestamps.
      values: uint8[n, v].
    """

    rows: Int64s
    qualifiers: Bytes
    times_ms: Int64s
    values: Bytes


class MergedRows(NamedTuple):
    """Complete rows: their keys, ascending, and their cells by length."""

    keys: Sequence[bytes]
    cells: Sequence[EqualCells]


class _OtherChunksError(Exception):
    """Chunks that cannot be merged as a table."""


@functools.cache
def chunks_class() -> Any:
    """ReadRowsResponse whose chunks stay serialized; the wire format is the same."""
    proto = "message ReadRowsResponse { repeated bytes chunks = 1; bytes last_scanned_row_key = 2; }"
    return message_classes(proto)["ReadRowsResponse"]


class ColumnMerger(Merger[MergedRows]):
    """Merges chunks into `MergedRows`, many rows at once; for rows of one family, or for their keys.

    Args:
      most: so many chunks are merged the first time, then twice as many each time, up to `CHUNKS`.
    """

    def __init__(self, most: int = CHUNKS) -> None:
        super().__init__()
        self._most = most
        self._chunks: list[bytes] = []
        self._complete: list[MergedRows] = []

    @property
    def message(self) -> Any:
        return chunks_class()

    def take(self, response: Any) -> list[MergedRows]:
        """See `Merger.take`; the response is of `chunks_class`."""
        if response.last_scanned_row_key:
            self._merge()
            self._scanned(response.last_scanned_row_key)
        self._chunks += response.chunks
        if len(self._chunks) >= self._most:
            self._merge()
            self._most = min(2 * self._most, CHUNKS)
        complete, self._complete = self._complete, []
        return complete

    def end(self) -> list[MergedRows]:
        self._merge()
        super().end()
        complete, self._complete = self._complete, []
        return complete

    def forget(self) -> None:
        """See `Merger.forget`: complete rows stay."""
        self._merge()
        self._chunks = []
        super().forget()

    def _merge(self) -> None:
        """Merges the chunks of complete rows."""
        chunks, count = self._chunks, len(self._chunks)
        while count and not (chunks[count - 1].endswith(_COMMIT) and _parsed(chunks[count - 1]).commit_row):
            count -= 1
        complete, self._chunks = chunks[:count], chunks[count:]
        if complete:
            try:
                merged = _merged(complete)
            except _OtherChunksError:
                merged = self._by_row(complete)
            for before, key in zip([self.last, *merged.keys], merged.keys, strict=False):
                if key <= before:
                    raise InvalidChunkError("row keys do not ascend")
            self.last = merged.keys[-1] if merged.keys else self.last
            self.count += len(merged.keys)
            self._complete.append(merged)
        self._open = self._chunks or None

    def _by_row(self, chunks: Sequence[bytes]) -> MergedRows:
        """Merges the chunks of complete rows whatever they are."""
        response = response_class()()
        for chunk in chunks:
            response.chunks.add().MergeFromString(chunk)
        merger = RowMerger("")
        merger.last = self.last
        rows = merger.take(response)
        merger.end()
        by_length: dict[tuple[int, int], list[tuple[int, bytes, int, bytes]]] = {}
        for number, row in enumerate(rows):
            for _, qualifier, timestamp_ms, value in row.cells:
                cell = number, qualifier, timestamp_ms, value
                by_length.setdefault((len(qualifier), len(value)), []).append(cell)
        cells = []
        for lengths, group in by_length.items():
            numbers, qualifiers, times_ms, values = zip(*group, strict=True)
            tables = [
                np.frombuffer(b"".join(strings), np.uint8).reshape(len(group), length)
                for strings, length in zip((qualifiers, values), lengths, strict=True)
            ]
            cells.append(EqualCells(np.array(numbers), tables[0], np.array(times_ms), tables[1]))
        return MergedRows([row.key for row in rows], cells)


def _parsed(chunk: bytes) -> Any:
    return chunk_class().FromString(chunk)


def _merged(chunks: Sequence[bytes]) -> MergedRows:
    """The columns of complete rows; raises _OtherChunksError if they do not form tables."""
    lengths = np.fromiter(map(len, chunks), np.int64, len(chunks))
    content, starts = b"".join(chunks), np.cumsum(lengths) - lengths
    distinct = np.unique(lengths).tolist()
    numbers_by_length = [np.flatnonzero(lengths == length) for length in distinct]
    tables = [
        _Table(slices(content, starts[numbers], length))
        for numbers, length in zip(numbers_by_length, distinct, strict=True)
    ]
    is_last, has_key = np.zeros((2, len(chunks)), np.bool_)
    for table, numbers in zip(tables, numbers_by_length, strict=True):
        is_last[numbers], has_key[numbers] = table.chunk.commit_row, bool(table.chunk.row_key)
    if not (has_key[0] and has_key[1:][is_last[:-1]].all()):
        raise InvalidChunkError("the first chunk of a row has no key")
    rows: Int64s = np.cumsum(is_last) - is_last
    keys: dict[int, bytes] = {}
    for table, numbers in zip(tables, numbers_by_length, strict=True):
        for row, key in table.keys(rows[numbers]):
            if keys.setdefault(row, key) != key:
                raise InvalidChunkError("the row key changes within a row")
    cells = [table.cells(rows[numbers]) for table, numbers in zip(tables, numbers_by_length, strict=True)]
    return MergedRows([keys[row] for row in range(len(keys))], cells)


class _Table:
    """Chunks of one length, uint8[n, size], with the places of their fields.

    Attributes:
      chunk: the first chunk, parsed.

    Raises:
      _OtherChunksError: the chunks differ in more than row key, qualifier, timestamp and value, have fields
        that cells do not have, or have their fields in another order.
    """

    def __init__(self, chunks: Bytes) -> None:
        first = chunks[0].tobytes()
        self.chunk = chunk = _parsed(first)
        qualifier = BytesValue.FromString(chunk.qualifier).value
        is_cell = qualifier and chunk.timestamp_micros >= 0 and (chunk.family_name or not chunk.row_key)
        is_other = chunk.value_size or chunk.labels or chunk.reset_row
        if not is_cell or is_other or chunk.SerializeToString() != first:
            raise _OtherChunksError
        value_end = len(first) - (len(_COMMIT) if chunk.commit_row else 0)
        value_start = value_end - len(chunk.value)
        time_end = value_start - (1 + _varint_size(len(chunk.value)) if chunk.HasField("value") else 0)
        has_time = chunk.HasField("timestamp_micros")  # a zero is not sent
        time_start = time_end - (_varint_size(chunk.timestamp_micros) if has_time else 0)
        key_start = 1 + _varint_size(len(chunk.row_key)) if chunk.row_key else 0
        self._key = slice(key_start, key_start + len(chunk.row_key))
        self._qualifier = slice(time_start - has_time - len(qualifier), time_start - has_time)
        self._time, self._value = slice(time_start, time_end), slice(value_start, value_end)
        self._bytes = chunks
        fixed = np.full(len(first), 0xFF, np.uint8)
        for field in (self._key, self._qualifier, self._value):
            fixed[field] = 0
        fixed[self._time] = 0x80  # of a varint, whether more bytes follow
        if ((self._bytes ^ self._bytes[0]) & fixed).any():
            raise _OtherChunksError

    def cells(self, rows: Int64s) -> EqualCells:
        """The cells of the chunks; `rows` int64[n] are the numbers of their rows."""
        micros = np.zeros(len(rows), np.int64)
        for place, septets in enumerate(self._bytes[:, self._time].T & np.uint8(0x7F)):
            micros |= septets.astype(np.int64) << (7 * place)
        return EqualCells(rows, self._bytes[:, self._qualifier], micros // 1000, self._bytes[:, self._value])

    def keys(self, rows: Int64s) -> list[tuple[int, bytes]]:
        """(number, key) of the rows of the chunks, if these have keys; see `cells`.

        Raises:
          InvalidChunkError: chunks of one row have different keys.
        """
        if not self.chunk.row_key:
            return []
        keys = self._bytes[:, self._key]
        is_new = np.ones(len(rows), np.bool_)
        is_new[1:] = rows[1:] != rows[:-1]
        if (keys[1:] != keys[:-1])[~is_new[1:]].any():
            raise InvalidChunkError("the row key changes within a row")
        firsts = np.flatnonzero(is_new)
        content, size = keys[firsts].tobytes(), keys.shape[1]
        starts = range(0, len(content), size)
        numbered = zip(rows[firsts].tolist(), starts, strict=True)
        return [(row, content[start : start + size]) for row, start in numbered]


def _varint_size(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))
