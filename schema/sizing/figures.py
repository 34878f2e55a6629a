"""Bigtable's published figures, and what a cell takes of them.

Sources: cloud.google.com/bigtable/docs/performance (a node's writes, of rows of 1 KB), /quotas (storage of a
node, sizes of keys, qualifiers and rows), /schema-design (rows that stay fast to read).
"""

from __future__ import annotations

import dataclasses

from schema.layouts.base import Cell

KEY_BYTES = 4 * 1024
QUALIFIER_BYTES = 16 * 1024
ROW_BYTES_ADVISED, ROW_BYTES_MOST = 100_000_000, 256 * 1024 * 1024
"""Bytes of a row: what it should stay below, and from where on it cannot be read."""
ROW_CELLS_ADVISED = 1_000_000
"""Cells of a row: with more, one row is more than a reader gets in a few seconds."""

HEADROOM = 0.7
"""Share of a node's figures to plan with: the rest is for peaks, reads, and the loss of a node."""

_TIMESTAMP_BYTES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFigures:
    """What one node does.

    Attributes:
      name: of the kind of disk.
      writes: row mutations a second, of rows of 1 KB.
      write_bytes: bytes of mutations a second: `writes` of 1 KB each.
      storage: bytes of tables, compressed.
    """

    name: str
    writes: int
    write_bytes: int
    storage: int


NODES = {
    "ssd": NodeFigures("ssd", 14_000, 14_000_000, 5 * 10**12),
    "hdd": NodeFigures("hdd", 10_000, 10_000_000, 16 * 10**12),
}


def stored_bytes(key: bytes, cell: Cell) -> int:
    """What Bigtable keeps for a cell, before compression: key, family, qualifier, timestamp, value."""
    return stored_bytes_of(len(key), len(cell.family), len(cell.qualifier), len(cell.value))


def stored_bytes_of(key: int, family: int, qualifier: int, value: int) -> int:
    """As `stored_bytes`, of their lengths."""
    return key + family + qualifier + _TIMESTAMP_BYTES + value
