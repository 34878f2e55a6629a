"""Rows and cells of Bigtable, as they are written and read; its limits; the tables of a layout.

Functions that write take any tuple of the same shape as a `Row`.
Sources of the limits: cloud.google.com/bigtable/quotas, /docs/schema-design (rows that stay fast to read).
The emulator has none of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

KeyRange = tuple[bytes, bytes]
"""[start, end) of row keys; an empty end is the end of the table."""

WHOLE_TABLE: KeyRange = (b"", b"")

KEY_BYTES = 4 * 1024
QUALIFIER_BYTES = 16 * 1024
CELL_BYTES = 100_000_000
MUTATIONS = 100_000
"""The most bytes of a key, a qualifier and a value, and mutations of a request."""
LAST_MS = ((1 << 63) - 1) // 1000
"""The last cell timestamp, in ms: Bigtable counts signed 64-bit microseconds."""
ROW_BYTES_ADVISED, ROW_BYTES_MOST = 100_000_000, 256 * 1024 * 1024
"""Bytes of a row: the recommended limit, and the limit above which it cannot be read."""
ROW_CELLS_ADVISED = 1_000_000
"""Cells of a row: a reader takes more than a few seconds for a row with more."""

_TIMESTAMP_BYTES = 8


class Cell(NamedTuple):
    """One cell of a row.

    Attributes:
      family: as Bigtable names it.
      timestamp_ms: not negative when written. The service never sets it, so a repeated write is the same.
    """

    family: str
    qualifier: bytes
    timestamp_ms: int
    value: bytes


class Deletion(NamedTuple):
    """The versions of one column that are older than `before_ms`; None for all of them."""

    family: str
    qualifier: bytes
    before_ms: int | None = None


class Row(NamedTuple):
    """Cells of one row: to write as one mutation, or as they were read (newest version only).

    Attributes:
      table: its name, without project and instance.
      deleted: columns that the mutation deletes before it sets the cells.
    """

    table: str
    key: bytes
    cells: Sequence[Cell]
    deleted: Sequence[Deletion] = ()


class EncodedRow(NamedTuple):
    """A row to be written, with serialized mutations (`timebeam.transforms.bigtable.mutation_bytes`).

    Attributes:
      mutations: fields 2 of a MutateRowsRequest.Entry, concatenated.
      mutation_count: their number.
      last_ms: the timestamp of the last cell, in ms; None if it is not noted.
      qualifiers: of the cells, concatenated; empty if they are not noted.
    """

    table: str
    key: bytes
    mutations: bytes
    mutation_count: int
    last_ms: int | None = None
    qualifiers: bytes = b""


RowMutation = Row | EncodedRow
"""A row to be written, its cells as objects or as bytes."""


def stored_bytes(key: bytes, cell: Cell) -> int:
    """Bytes that Bigtable stores for a cell before compression: key, family, qualifier, timestamp, value."""
    return stored_bytes_of(len(key), len(cell.family), len(cell.qualifier), len(cell.value))


def stored_bytes_of(key: int, family: int, qualifier: int, value: int) -> int:
    """Like `stored_bytes`, from lengths in bytes."""
    return key + family + qualifier + _TIMESTAMP_BYTES + value


@dataclasses.dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that a layout needs.

    Attributes:
      name: with prefix.
      families: the versions of a cell that garbage collection keeps, by family.
      holds_points: whether pipelines write points into it.
      is_index: whether pipelines write the rows of `SeriesIndex.rows` into it.
      same_keys: whether its rows have the keys of data rows, at least up to the bytes at which
        `ReadableStore.cut_at` cuts.
      cell_time: what its cell timestamps mean, in words, since the age of a cell counts from them. Empty if
        a maximum age would delete cells in use, such as names and index entries.
    """

    name: str
    families: Mapping[str, int]
    holds_points: bool
    is_index: bool = False
    same_keys: bool = False
    cell_time: str = dataclasses.field(default="", compare=False)


ARRIVAL = "the arrival of the data (modification time of its file, publish time of its message)"
"""The `cell_time` of tables whose cell timestamps are the arrival of their points."""
