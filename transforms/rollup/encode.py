"""Accumulators encoded as cells, and cells as mutations: the bytes of all rows at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from timebeam.schema.common.cell_size import stored_bytes_of
from timebeam.schema.layouts import Deletion
from timebeam.schema.rollup.buckets import Buckets
from timebeam.schema.rollup.config import OF_GROUP, RollupInterval
from timebeam.schema.rollup.opentsdb_rollup import EncodedRollups, encode_points, encode_rollups
from timebeam.schema.rollup.qualifiers import FAMILY, Form
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.rows import EncodedRow
from timebeam.transforms.bigtable.wire import deletions, set_cells
from timebeam.transforms.rollup.job import RollupJob


def encode(job: RollupJob, interval: RollupInterval, aggregator: str, buckets: Buckets) -> EncodedRollups:
    """What is stored of accumulators of single series (SINGLE), or of groups with an aggregator."""
    if not interval.is_default:
        return encode_rollups(buckets, interval, job.stored(aggregator), Form.FIXED)
    number = OF_GROUP[aggregator].get(aggregator, OF_GROUP[aggregator].get("sum"))
    assert number is not None
    return encode_points(buckets, number, Form.FIXED)


def row_mutations(encoded: EncodedRollups) -> list[bytes]:
    """The mutations that set the cells of each row, encoded."""
    values = encoded.raws.astype(">u8").view("u1").reshape(-1, 8)
    content, starts = set_cells(FAMILY, encoded.names, encoded.times_ms, values)
    return [content[start:end] for start, end in itertools.pairwise(starts[encoded.firsts].tolist())]


def over(key: bytes, table: str, sets: bytes, count: int, stale: Iterable[bytes]) -> EncodedRow:
    """The mutation of a row: deletes stale columns, then sets `count` cells."""
    deleted = [Deletion(FAMILY, qualifier) for qualifier in stale]
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
