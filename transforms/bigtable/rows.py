"""Rows to be written and rows read: plain tuples, with timestamps in ms.

Functions that write take any tuple of the same shape, so that a pipeline can have its own named tuples;
functions that read make `BigtableRow` and `BigtableCell`, or named tuples of the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

KeyRange = tuple[bytes, bytes]
"""[start, end) of row keys; an empty end is the end of the table."""

WHOLE_TABLE: KeyRange = (b"", b"")

KEY_BYTES = 4 * 1024
QUALIFIER_BYTES = 16 * 1024
CELL_BYTES = 100_000_000
MUTATIONS = 100_000
"""Bigtable's limits (cloud.google.com/bigtable/quotas); the last is per request. The emulator has none."""


class BigtableCell(NamedTuple):
    """One cell of a row.

    Attributes:
      timestamp_ms: not negative when written. The service never sets it, so a repeated write is the same.
    """

    family: str
    qualifier: bytes
    timestamp_ms: int
    value: bytes


class BigtableDeletion(NamedTuple):
    """The versions of one column that are older than `before_ms`; None for all of them."""

    family: str
    qualifier: bytes
    before_ms: int | None = None


class BigtableRow(NamedTuple):
    """Cells of one row: to be written in one mutation, or read.

    Attributes:
      table: its name, without project and instance.
      deleted: columns that the mutation deletes before it sets the cells.
    """

    table: str
    key: bytes
    cells: Sequence[BigtableCell]
    deleted: Sequence[BigtableDeletion] = ()


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


CellTuple = tuple[str, bytes, int, bytes]
"""(family, qualifier, timestamp in ms, value): a `BigtableCell`, or any tuple like it."""

DeletionTuple = tuple[str, bytes, int | None]
"""(family, qualifier, before ms): a `BigtableDeletion`, or any tuple like it."""

RowTuple = tuple[str, bytes, Sequence[CellTuple], Sequence[DeletionTuple]]
"""(table, key, cells, deleted): a `BigtableRow`, or any tuple like it."""

RowMutation = RowTuple | EncodedRow
"""A row to be written."""

RowType = TypeVar("RowType", bound=RowTuple)
