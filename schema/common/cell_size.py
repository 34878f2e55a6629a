"""Bigtable's limits for rows, and the bytes that a cell takes.

Sources: cloud.google.com/bigtable/quotas (sizes of keys, qualifiers and rows), /docs/schema-design (rows that
stay fast to read).
"""

from __future__ import annotations

from typing import Protocol

KEY_BYTES = 4 * 1024
QUALIFIER_BYTES = 16 * 1024
ROW_BYTES_ADVISED, ROW_BYTES_MOST = 100_000_000, 256 * 1024 * 1024
"""Bytes of a row: the recommended limit, and the limit above which it cannot be read."""
ROW_CELLS_ADVISED = 1_000_000
"""Cells of a row: a reader takes more than a few seconds for a row with more."""

_TIMESTAMP_BYTES = 8


class _Cell(Protocol):
    @property
    def family(self) -> str: ...
    @property
    def qualifier(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...


def stored_bytes(key: bytes, cell: _Cell) -> int:
    """Bytes that Bigtable stores for a cell before compression: key, family, qualifier, timestamp, value."""
    return stored_bytes_of(len(key), len(cell.family), len(cell.qualifier), len(cell.value))


def stored_bytes_of(key: int, family: int, qualifier: int, value: int) -> int:
    """Like `stored_bytes`, from lengths in bytes."""
    return key + family + qualifier + _TIMESTAMP_BYTES + value
