"""Rollups as the mutations that write them: bytes for all rows at once, cut by row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from schema.layouts import Deletion
from schema.rollup.opentsdb_rollup import EncodedRollups
from schema.rollup.qualifiers import FAMILY
from schema.sizing.figures import stored_bytes_of
from transforms import metrics
from transforms.bigtable.wire import EncodedRow, deletions, set_cells


def row_mutations(encoded: EncodedRollups) -> list[bytes]:
    """What sets the cells of each row."""
    values = encoded.raws.astype(">u8").view("u1").reshape(-1, 8)
    content, starts = set_cells(FAMILY, encoded.names, encoded.times_ms, values)
    return [content[start:end] for start, end in itertools.pairwise(starts[encoded.firsts].tolist())]


def over(key: bytes, table: str, sets: bytes, count: int, stale: Iterable[bytes]) -> EncodedRow:
    """The mutation of a row: deletes stale columns, then sets `count` cells."""
    deleted = [Deletion(FAMILY, one) for one in stale]
    return EncodedRow(table, key, deletions(deleted) + sets if deleted else sets, len(deleted) + count)


def count_written(rows: int, cells: int, key_bytes: int, wide: int) -> None:
    """Counts rows that are written.

    Args:
      key_bytes: those of the row keys, of each as often as its row has cells.
      wide: bytes of a qualifier.
    """
    metrics.count("rows_written", rows)
    metrics.count("cells_written", cells)
    metrics.count("bytes_written", key_bytes + cells * stored_bytes_of(0, len(FAMILY), wide, 8))
