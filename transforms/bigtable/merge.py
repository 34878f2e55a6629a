"""Rows out of the cell chunks that ReadRows answers with (google/bigtable/v2/bigtable.proto, CellChunk).

A chunk is a cell or a part of its value; what is as in the chunk before is left out:

| field | sent |
|---|---|
| row_key | with the first chunk of a row; may be repeated |
| family_name | with the first cell of a row or a family, then with a qualifier; may be repeated |
| qualifier | with the first cell of a column; may be repeated |
| timestamp_micros, labels | with the first part of a cell; may be repeated |
| value_size > 0 | more parts of the value follow |
| reset_row | alone: what came of this row is void, it comes again |
| commit_row | with the last chunk of a row |

Rows ascend by key. `last_scanned_row_key` comes between rows: no row up to this key will come any more.
"""

from __future__ import annotations

import functools
import http.client
from typing import Any, Generic, TypeVar

from google.api_core import exceptions
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from timebeam.transforms.bigtable.rows import Cell, CellTuple, RowType

Merged = TypeVar("Merged")

_CHUNK_FIELDS = (
    ("row_key", 1, FieldDescriptorProto.TYPE_BYTES),
    ("family_name", 2, FieldDescriptorProto.TYPE_BYTES),  # a StringValue
    ("qualifier", 3, FieldDescriptorProto.TYPE_BYTES),  # a BytesValue
    ("timestamp_micros", 4, FieldDescriptorProto.TYPE_INT64),
    ("value", 6, FieldDescriptorProto.TYPE_BYTES),
    ("value_size", 7, FieldDescriptorProto.TYPE_INT32),
    ("reset_row", 8, FieldDescriptorProto.TYPE_BOOL),
    ("commit_row", 9, FieldDescriptorProto.TYPE_BOOL),
)
_LABELS = 5
_ONE_BYTE_OF_LENGTH = 2 + 128  # a wrapper shorter than this is a tag, one byte of length, and the content


class InvalidChunkError(exceptions.DataLoss):
    """An answer that breaks the contract of ReadRows: nothing can be trusted of it."""

    code = http.client.INTERNAL_SERVER_ERROR


@functools.cache
def response_class() -> Any:
    """ReadRowsResponse with the wrappers around families and qualifiers left as bytes.

    On the wire it is the same. Python makes an object for each message that it looks into, and for these
    two that takes a third of the time of a cell.
    """
    kinds = FieldDescriptorProto
    file = FileDescriptorProto(name="timebeam/read_rows.proto", package="timebeam", syntax="proto2")
    response = file.message_type.add(name="ReadRowsResponse")
    chunk = response.nested_type.add(name="CellChunk")
    for name, number, kind in _CHUNK_FIELDS:
        chunk.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    chunk.field.add(name="labels", number=_LABELS, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    response.field.add(
        name="chunks",
        number=1,
        type=kinds.TYPE_MESSAGE,
        type_name=".timebeam.ReadRowsResponse.CellChunk",
        label=kinds.LABEL_REPEATED,
    )
    response.field.add(
        name="last_scanned_row_key", number=2, type=kinds.TYPE_BYTES, label=kinds.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("timebeam.ReadRowsResponse"))


class Merger(Generic[Merged]):
    """What the responses of one read so far came to.

    Attributes:
      last: the key of the last row that is complete, or behind the read; empty at the start.
    """

    def __init__(self) -> None:
        self.last = b""
        self._open: Any = None
        """The state within a row; None between two."""

    def take(self, response: Any) -> list[Merged]:
        """What a message of `response_class` completes.

        Raises:
          InvalidChunkError: it breaks the contract.
        """
        raise NotImplementedError

    def end(self) -> None:
        """The read has come to its end.

        Raises:
          InvalidChunkError: in the middle of a row.
        """
        if self._open is not None:
            raise InvalidChunkError("the answer ended before the row was complete")

    def forget(self) -> None:
        """The read broke off: a row that is not complete will come again as a whole."""
        self._open = None

    def _scanned(self, key: bytes) -> None:
        """Notes a `last_scanned_row_key`."""
        if self._open is not None:
            raise InvalidChunkError("last scanned row key before the row was complete")
        if key <= self.last:
            raise InvalidChunkError("last scanned row key out of order")
        self.last = key


class RowMerger(Merger[RowType]):
    """Merges into rows; cell timestamps in ms, labels left out.

    Args:
      row_type, cell_type: the named tuples to make; fields as those of `Row` and `Cell`.
    """

    def __init__(self, table: str, row_type: type[RowType], cell_type: type[CellTuple] = Cell) -> None:
        super().__init__()
        self._table, self._row_type, self._cell_type = table, row_type, cell_type

    def take(self, response: Any) -> list[RowType]:
        """See `Merger.take`."""
        if response.last_scanned_row_key:
            self._scanned(response.last_scanned_row_key)
        key: Any = None
        name, family, qualifier = None, "", None
        micros, labels = 0, []
        cells: list[CellTuple] = []
        parts: list[bytes] = []
        if self._open is not None:
            key, name, family, qualifier, micros, labels, cells, parts = self._open
        last, table, rows = self.last, self._table, []
        row_type, cell_type = self._row_type, self._cell_type
        new = tuple.__new__  # half the time of a named tuple's own
        for chunk in response.chunks:
            if chunk.reset_row:
                _check_reset(chunk, key is not None)
                key, name, family, qualifier, cells, parts = None, None, "", None, [], []
                continue
            if parts:
                _check_part(chunk, key, family, qualifier, micros, labels)
            else:
                sent = chunk.row_key
                if sent != key:
                    if sent:
                        if key is not None:
                            raise InvalidChunkError("a new row key before the row was complete")
                        if sent <= last:
                            raise InvalidChunkError("row keys do not ascend")
                        key = sent
                    elif key is None:
                        raise InvalidChunkError("the first chunk of a row has no key")
                wrapped, column = chunk.family_name, chunk.qualifier
                if column:
                    short = len(column) < _ONE_BYTE_OF_LENGTH
                    qualifier = column[2:] if short else BytesValue.FromString(column).value
                elif chunk.HasField("qualifier"):
                    qualifier = b""
                elif wrapped:
                    raise InvalidChunkError("a family without a qualifier")
                if wrapped != name:
                    if wrapped:
                        name, family = wrapped, _text(wrapped)
                    elif not family:
                        raise InvalidChunkError("the first cell of a row has no family")
                micros = chunk.timestamp_micros
            value = chunk.value
            if chunk.value_size:
                if chunk.commit_row:
                    raise InvalidChunkError("a row is complete before the value of its last cell")
                if not parts:
                    labels = list(chunk.labels)
                parts.append(value)
                continue
            if parts:
                value = b"".join([*parts, value])
                parts = []
            cells.append(new(cell_type, (family, qualifier, micros // 1000, value)))
            if chunk.commit_row:
                rows.append(new(row_type, (table, key, cells, ())))
                last = key
                key, name, family, qualifier, cells = None, None, "", None, []
        self.last = last
        self._open = None if key is None else (key, name, family, qualifier, micros, labels, cells, parts)
        return rows


class QualifierMerger(Merger[tuple[bytes, list[bytes]]]):
    """Merges into row keys and the qualifiers of their cells, of rows of one family without values.

    Looks at no more than it needs: a row key that changes is seen where the row is complete.
    """

    def take(self, response: Any) -> list[tuple[bytes, list[bytes]]]:
        """See `Merger.take`."""
        if response.last_scanned_row_key:
            self._scanned(response.last_scanned_row_key)
        key: Any = None
        qualifiers: list[bytes] = []
        if self._open is not None:
            key, qualifiers = self._open
        last, rows = self.last, []
        for chunk in response.chunks:
            if key is None:
                key = chunk.row_key
                if not key:
                    raise InvalidChunkError("the first chunk of a row has no key")
                if key <= last:
                    raise InvalidChunkError("row keys do not ascend")
            column = chunk.qualifier
            if column:
                short = len(column) < _ONE_BYTE_OF_LENGTH
                qualifiers.append(column[2:] if short else BytesValue.FromString(column).value)
            elif chunk.reset_row:
                _check_reset(chunk, bool(qualifiers))
                key, qualifiers = None, []
                continue
            elif chunk.HasField("qualifier"):
                qualifiers.append(b"")
            elif qualifiers:
                qualifiers.append(qualifiers[-1])  # another version
            else:
                raise InvalidChunkError("the first cell of a row has no qualifier")
            if chunk.commit_row:
                if chunk.row_key and chunk.row_key != key:
                    raise InvalidChunkError("a new row key before the row was complete")
                rows.append((key, qualifiers))
                last = key
                key, qualifiers = None, []
        self.last = last
        self._open = None if key is None else (key, qualifiers)
        return rows


def _check_reset(chunk: Any, within_row: bool) -> None:
    """Checks that a chunk which resets the row comes within one, and has nothing else."""
    if not within_row:
        raise InvalidChunkError("a reset outside of a row")
    if len(chunk.ListFields()) > 1:
        raise InvalidChunkError("a reset with data")


def _check_part(
    chunk: Any, key: bytes | None, family: str, qualifier: bytes | None, micros: int, labels: list[str]
) -> None:
    """Checks that a chunk goes on with the cell whose value is not complete."""
    if chunk.row_key and chunk.row_key != key:
        raise InvalidChunkError("the row key changes within a value")
    if chunk.HasField("family_name") and _text(chunk.family_name) != family:
        raise InvalidChunkError("the family changes within a value")
    if chunk.HasField("qualifier") and BytesValue.FromString(chunk.qualifier).value != qualifier:
        raise InvalidChunkError("the qualifier changes within a value")
    if chunk.timestamp_micros and chunk.timestamp_micros != micros:
        raise InvalidChunkError("the timestamp changes within a value")
    if chunk.labels and list(chunk.labels) != labels:
        raise InvalidChunkError("the labels change within a value")


@functools.lru_cache(maxsize=256)
def _text(wrapped: bytes) -> str:
    """The content of a StringValue."""
    return StringValue.FromString(wrapped).value
