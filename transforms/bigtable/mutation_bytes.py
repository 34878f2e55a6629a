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

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timebeam.schema.core.rows import Cell, Deletion, EncodedRow, Row, RowMutation
from timebeam.transforms.bigtable.protobuf_classes import DATA_API

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Strings = tuple[bytes, Int64s] | Bytes
"""n byte strings: concatenated, and int64[n + 1], the start of each, and the end; or uint8[n, size]."""

_MUTATIONS = DATA_API["Mutations"]
_SHORT = [bytes((number,)) for number in range(0x80)]
"""The varints of one byte."""
_CELLS_OF_A_FORM = 16
"""With fewer cells of a form it takes longer to encode them at once than one after the other."""
_MORE = np.frombuffer(b"".join((b"\x80" * max(0, size - 1)).ljust(8, b"\0") for size in range(10)), "<i8")
"""By size of a varint, the continuation bits of its first eight bytes."""


def set_cells(
    families: Sequence[str], family_of: Int64s, qualifiers: Strings, times_ms: Int64s, values: Strings
) -> tuple[bytes, Int64s]:
    """(the mutations that set n cells, concatenated; int64[n + 1] the start of each, and the end).

    Cells of one form, that is with one family and equal lengths, differ only in qualifier, timestamp and
    value: each form is encoded at once.

    Args:
      family_of: int64[n], the number of each cell's family.
      times_ms: int64[n], timestamps in ms, not negative.
    """
    n = len(times_ms)
    qualifiers, values = _table_of(qualifiers), _table_of(values)
    micros, sizes = _varints(times_ms * 1000)
    if (
        n
        and isinstance(qualifiers, np.ndarray)
        and isinstance(values, np.ndarray)
        and (family_of == family_of[0]).all()
        and (sizes == sizes[0]).all()
    ):
        table = _mutations(families[int(family_of[0])], qualifiers, micros[:, : sizes[0]], values)
        return table.tobytes(), np.arange(n + 1) * table.dtype.itemsize
    sizes_of = [
        np.full(n, strings.shape[1]) if isinstance(strings, np.ndarray) else np.diff(strings[1])
        for strings in (qualifiers, values)
    ]
    forms = family_of
    for column in (sizes, *sizes_of):
        forms = forms * (int(column.max(initial=0)) + 1) + column
    _, where, form_of = np.unique(forms, return_index=True, return_inverse=True)
    firsts = where.tolist()
    if n < _CELLS_OF_A_FORM * len(firsts):
        return _each_cell(families, family_of, qualifiers, (micros, sizes), values)
    tables, widths = [], np.zeros(len(firsts), np.int64)
    for form, first in enumerate(firsts):
        cells = np.flatnonzero(form_of == form)
        columns = [
            _equal(strings, int(column[first]), cells)
            for strings, column in zip((qualifiers, values), sizes_of, strict=True)
        ]
        time = micros[cells, : sizes[first]]
        table = _mutations(families[int(family_of[first])], columns[0], time, columns[1])
        tables.append((cells, table))
        widths[form] = table.dtype.itemsize
    starts = _starts_of(widths[form_of])
    content = np.empty(int(starts[-1]), np.uint8)
    for cells, table in tables:
        _windows(content.data, table.dtype.itemsize)[starts[cells]] = table
    return content.tobytes(), starts


def _each_cell(
    families: Sequence[str],
    family_of: Int64s,
    qualifiers: Strings,
    micros: tuple[Bytes, Int64s],
    values: Strings,
) -> tuple[bytes, Int64s]:
    """As `set_cells`, one cell after the other: for large cells, nearly each of a form of its own.

    Args:
      micros: varints, and the size of each.
    """
    heads = [_field(1, family.encode()) + b"\x12" for family in families]
    encoded, sizes = list[bytes](), np.empty(len(family_of), np.int64)
    columns = (
        family_of.tolist(),
        _listed(qualifiers),
        _listed(micros[0]),
        micros[1].tolist(),
        _listed(values),
    )
    for number, (family, qualifier, micro, size, value) in enumerate(zip(*columns, strict=True)):
        time = micro[:size]
        cell = (
            heads[family],
            _varint(len(qualifier)),
            qualifier,
            b"\x18",
            time,
            b'"',
            _varint(len(value)),
            value,
        )
        length = sum(map(len, cell))
        head = _head(1, length)
        head = _head(2, len(head) + length) + head
        encoded += (head, *cell)
        sizes[number] = len(head) + length
    return b"".join(encoded), _starts_of(sizes)


def _listed(strings: Strings) -> list[bytes]:
    if isinstance(strings, np.ndarray):
        content, starts = strings.tobytes(), range(0, strings.size + 1, strings.shape[1])
        return [content[start:end] for start, end in itertools.pairwise(starts)]
    content, bounds = strings
    return [content[start:end] for start, end in itertools.pairwise(bounds.tolist())]


def _starts_of(sizes: Int64s) -> Int64s:
    """int64[n + 1]: the starts of consecutive strings of these sizes, and their end."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _mutations(family: str, qualifiers: Bytes, micros: Bytes, values: Bytes) -> npt.NDArray[np.void]:
    """The mutations that set n cells of one form, one item each; columns uint8[n, size]."""
    sizes = [column.shape[1] for column in (qualifiers, micros, values)]
    heads = [_field(1, family.encode()) + _head(2, sizes[0]), b"\x18", _head(4, sizes[2])]
    size = sum(map(len, heads)) + sum(sizes)
    heads[0] = _head(2, len(_head(1, size)) + size) + _head(1, size) + heads[0]
    item, fields = b"", list[tuple[int, Bytes]]()
    for head, column in zip(heads, (qualifiers, micros, values), strict=True):
        item += head
        fields.append((len(item), column))
        item += bytes(column.shape[1])
    table = np.empty(len(micros), f"V{len(item)}")
    table[:] = np.void(item)
    for start, column in fields:
        width = column.shape[1]
        if width:
            form: Any = {
                "names": ["column"],
                "formats": [f"V{width}"],
                "offsets": [start],
                "itemsize": len(item),
            }
            table.view(np.dtype(form))["column"] = column.view(f"V{width}").reshape(-1)
    return table


def _table_of(strings: Strings) -> Strings:
    if isinstance(strings, np.ndarray):
        return strings
    content, starts = strings
    sizes = np.diff(starts)
    if not len(sizes) or (sizes != sizes[0]).any():
        return strings
    n, size = len(sizes), int(sizes[0])
    return np.frombuffer(content, np.uint8, n * size, int(starts[0])).reshape(n, size)


def _equal(strings: Strings, size: int, numbers: Int64s) -> Bytes:
    """uint8[m, size]: strings of equal size, by their numbers int64[m]."""
    if isinstance(strings, np.ndarray):
        return strings[numbers]
    content, starts = strings
    return slices(content, starts[numbers], size)


def slices(content: bytes, starts: Int64s, size: int) -> Bytes:
    """uint8[n, size]: so many bytes of the content from each start, int64[n]."""
    if not size:
        return np.empty((len(starts), 0), np.uint8)
    return _windows(content, size)[starts].view(np.uint8).reshape(-1, size)


def _windows(content: bytes | memoryview, size: int) -> npt.NDArray[np.void]:
    """Every slice of so many bytes."""
    return np.ndarray((len(content) - size + 1,), f"V{size}", content, 0, (1,))


def _varints(numbers: Int64s) -> tuple[Bytes, Int64s]:
    """(uint8[n, 8 or 9] varints of numbers that are not negative, int64[n] the size of each)."""
    least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    least_size, most_size = (max(1, -(-number.bit_length() // 7)) for number in (least, most))
    sizes = np.full(len(numbers), least_size)
    for size in range(least_size, most_size):
        sizes += numbers >= 1 << (7 * size)
    # Spreads the number to seven bits of each byte: in halves, then quarters, then eighths.
    spread = (numbers & 0xFFFFFFF0000000) << 4 | numbers & 0xFFFFFFF  # (1)
    spread = (spread & 0xFFFC0000FFFC000) << 2 | spread & 0x3FFF00003FFF  # (2)
    spread = (spread & 0x3F803F803F803F80) << 1 | spread & 0x7F007F007F007F  # (3)
    # (1) 56 bits become twice 28 bits, in halves of 32,
    # (2) then four times 14, in 16 bits each,
    # (3) then eight times 7, in a byte each, whose highest bit is free for the continuation.
    spread |= _MORE[sizes]
    encoded = spread.astype("<i8").view(np.uint8).reshape(-1, 8)
    if most >> 56:
        encoded = np.column_stack([encoded, (numbers >> 56).astype(np.uint8)])
    return encoded, sizes


def encoded_mutations(cells: Iterable[Cell], deleted: Iterable[Deletion]) -> bytes:
    r"""The mutations that delete columns, then set cells, concatenated.

    >>> cell = Cell("t", b"\x03\xc0", 9000, b"\x01")  # after 60 s: 1
    >>> encoded_mutations([cell], []).hex(" ")  # one set_cell of 15 bytes: family, qualifier, time, value
    '12 11 0a 0f 0a 01 74 12 02 03 c0 18 c0 a8 a5 04 22 01 01'
    """
    entry = _MUTATIONS()
    add_mutations(entry.mutations, cells, deleted)
    encoded: bytes = entry.SerializeToString()
    return encoded


def add_mutations(mutations: Any, cells: Iterable[Cell], deleted: Iterable[Deletion]) -> None:
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


def encoded_row(row: Row) -> EncodedRow:
    """A row with its mutations as bytes."""
    table, key, cells, deleted = row
    last_ms = cells[-1].timestamp_ms if cells else None
    names = b"".join([cell.qualifier for cell in cells])
    count = len(cells) + len(deleted)
    return EncodedRow(table, key, encoded_mutations(cells, deleted), count, last_ms, names)


def plain_row(row: RowMutation) -> Row:
    """A row with cells and deletions as objects: slow for an encoded row, for rejected rows and marks."""
    if isinstance(row, Row):
        return row
    cells, deleted = [], []
    for mutation in _MUTATIONS.FromString(row.mutations).mutations:
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
    return _head(number, len(content)) + content


def _head(number: int, size: int) -> bytes:
    """What precedes the content of a field of bytes."""
    return _SHORT[number << 3 | 2] + _varint(size)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SHORT[number]
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
