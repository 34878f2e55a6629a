"""Mutations as serialized bytes: columns of cells become MutateRows entries without an object for each cell.

google/bigtable/v2/bigtable.proto (MutateRowsRequest.Entry) and data.proto (Mutation, SetCell), in protobuf's
wire format: a field is its number and type, then a varint, or a length and so many bytes.

| message | field | here |
|---|---|---|
| MutateRowsRequest | 1 table_name, 2 entries, 3 app_profile_id | `request_bytes` |
| Entry | 1 row_key, 2 mutations | `request_bytes` |
| Mutation | 1 set_cell, 2 delete_from_column | `set_cells`, `encoded_mutations` |
| SetCell | 1 family_name, 2 column_qualifier, 3 timestamp_micros, 4 value | `set_cells` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from google.cloud.bigtable_v2.types import MutateRowsRequest

from timebeam.transforms.bigtable.rows import (
    Cell,
    CellTuple,
    Deletion,
    DeletionTuple,
    EncodedRow,
    Row,
    RowMutation,
)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_ENTRY = MutateRowsRequest.Entry.pb()
_MORE = np.array([0] + [int.from_bytes(b"\x80" * (size - 1), "little") for size in range(1, 9)], np.int64)
"""By size of a varint, its continuation bits."""


def set_cells(family: str, qualifiers: Bytes, times_ms: Int64s, values: Bytes) -> tuple[bytes, Int64s]:
    """(the mutations that set n cells, concatenated; int64[n + 1] the start of each, and the end).

    Args:
      qualifiers: uint8[n, q].
      times_ms: int64[n], timestamps in ms, not negative.
      values: uint8[n, v].

    Raises:
      ValueError: cells of more than about a hundred bytes, whose lengths take more than one byte.
    """
    n = len(times_ms)
    name = family.encode()
    micros, sizes = _varints(times_ms * 1000)
    q, v, used = qualifiers.shape[1], values.shape[1], micros.shape[1]
    head = bytes([0x0A, len(name)]) + name + bytes([0x12, q])
    inner = len(head) + q + 1 + 2 + v  # of a SetCell, without its timestamp
    if inner + used + 2 > 0x7F:
        raise ValueError(f"cells with qualifiers of {q} bytes and values of {v} bytes are too large")
    form = np.dtype(
        [
            *(
                ("before", "V1"),
                ("mutation", "u1"),
                ("set_cell", "V1"),
                ("cell", "u1"),
                ("head", f"V{len(head)}"),
            ),
            *(("qualifier", f"V{q}"), ("time_of", "V1"), ("micros", f"V{used}"), ("value_of", "V2")),
            ("value", f"V{v}"),
        ]
    )
    table = np.empty(n, form)
    tags = (b"\x12", b"\x0a", head, b"\x18", bytes([0x22, v]))
    for field, tag in zip(("before", "set_cell", "head", "time_of", "value_of"), tags, strict=True):
        table[field] = np.void(tag)
    table["cell"] = inner + sizes
    table["mutation"] = inner + 2 + sizes
    for field, columns in (("qualifier", qualifiers), ("micros", micros), ("value", values)):
        table[field] = np.ascontiguousarray(columns).view(form[field]).reshape(n)
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(inner + 4 + sizes, out=starts[1:])
    if not n or int(sizes.min()) == used:
        return table.tobytes(), starts
    raw = table.view(np.uint8).reshape(n, form.itemsize)
    is_used = np.ones(raw.shape, np.bool_)  # shorter timestamps do not use all bytes
    micros_start = 4 + len(head) + q + 1
    is_used[:, micros_start : micros_start + used] = np.arange(used) < sizes[:, None]
    return raw[is_used].tobytes(), starts


def _varints(numbers: Int64s) -> tuple[Bytes, Int64s]:
    """(uint8[n, w] varints of numbers below 2**56, w the size of the longest; int64[n] the size of each)."""
    sizes = np.ones(len(numbers), np.int64)
    most = int(numbers.max()) if len(numbers) else 0
    for size in range(1, 8):
        if most >> (7 * size):
            sizes += numbers >= 1 << (7 * size)
    # Spreads the number to seven bits of each byte: in halves, then quarters, then eighths.
    spread = (numbers & 0xFFFFFFF0000000) << 4 | numbers & 0xFFFFFFF
    spread = (spread & 0xFFFC0000FFFC000) << 2 | spread & 0x3FFF00003FFF
    spread = (spread & 0x3F803F803F803F80) << 1 | spread & 0x7F007F007F007F
    spread |= _MORE[sizes]
    width = int(sizes.max()) if len(numbers) else 1
    return spread.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width], sizes


def encoded_mutations(cells: Iterable[CellTuple], deleted: Iterable[DeletionTuple]) -> bytes:
    """The mutations that delete columns, then set cells, concatenated."""
    entry = _ENTRY()
    add_mutations(entry.mutations, cells, deleted)
    encoded: bytes = entry.SerializeToString()
    return encoded


def add_mutations(mutations: Any, cells: Iterable[CellTuple], deleted: Iterable[DeletionTuple]) -> None:
    """Adds mutations that delete columns, then those that set cells, to a repeated field of messages."""
    new_mutation: Callable[[], Any] = mutations.add
    for family, qualifier, before_ms in deleted:
        column = new_mutation().delete_from_column
        column.family_name = family
        column.column_qualifier = qualifier
        if before_ms is not None:
            column.time_range.end_timestamp_micros = before_ms * 1000
    for family, qualifier, timestamp_ms, value in cells:
        cell = new_mutation().set_cell
        cell.family_name = family
        cell.column_qualifier = qualifier
        cell.timestamp_micros = timestamp_ms * 1000
        cell.value = value


def decoded_row(row: EncodedRow) -> Row:
    """The cells and deletions of an encoded row: slow, for refused rows and marks."""
    cells, deleted = [], []
    for mutation in _ENTRY.FromString(row.mutations).mutations:
        if mutation.HasField("set_cell"):
            cell = mutation.set_cell
            timestamp_ms = cell.timestamp_micros // 1000
            cells.append(Cell(cell.family_name, cell.column_qualifier, timestamp_ms, cell.value))
        else:
            column = mutation.delete_from_column
            end = column.time_range.end_timestamp_micros
            deleted.append(Deletion(column.family_name, column.column_qualifier, end // 1000 or None))
    return Row(row.table, row.key, cells, deleted)


def request_bytes(table_name: str, app_profile: str, rows: Iterable[RowMutation]) -> bytes:
    """A MutateRowsRequest."""
    fields = [_field(1, table_name.encode())]
    for row in rows:
        mutations = row.mutations if isinstance(row, EncodedRow) else encoded_mutations(row[2], row[3])
        key = _field(1, row[1])
        fields += (b"\x12", _varint(len(key) + len(mutations)), key, mutations)
    if app_profile:
        fields.append(_field(3, app_profile.encode()))
    return b"".join(fields)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
