"""Encodes accumulators as cells, and cells as mutations, for many rows together."""

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
from timebeam.transforms.bigtable.wire import encoded_mutations, set_cells
from timebeam.transforms.rollup.job import RollupJob


def encode(job: RollupJob, interval: RollupInterval, aggregator: str, buckets: Buckets) -> EncodedRollups:
    """The cells of accumulators of single series (SINGLE), or of groups with an aggregator."""
    if not interval.is_default:
        return encode_rollups(buckets, interval, job.stored(aggregator), Form.FIXED)
    number = OF_GROUP[aggregator].get(aggregator, OF_GROUP[aggregator].get("sum"))
    assert number is not None
    return encode_points(buckets, number, Form.FIXED)


def row_mutations(encoded: EncodedRollups) -> list[bytes]:
    """The mutations that set the cells of each row, encoded."""
    values = encoded.raws.astype(">u8").view("u1").reshape(-1, 8)
    content, starts = set_cells(FAMILY, encoded.qualifiers, encoded.times_ms, values)
    return [content[start:end] for start, end in itertools.pairwise(starts[encoded.firsts].tolist())]


def over(key: bytes, table: str, sets: bytes, count: int, stale: Iterable[bytes]) -> EncodedRow:
    """The mutation of a row: deletes stale columns, then sets `count` cells."""
    deleted = [Deletion(FAMILY, qualifier) for qualifier in stale]
    return EncodedRow(
        table, key, encoded_mutations((), deleted) + sets if deleted else sets, len(deleted) + count
    )


def count_written(rows: int, cells: int, key_bytes: int, qualifier_bytes: int) -> None:
    """Counts written rows.

    Args:
      key_bytes: the sum of the sizes of the row keys, each times the cells of its row.
      qualifier_bytes: of each cell.
    """
    metrics.count("rows_written", rows)
    metrics.count("cells_written", cells)
    metrics.count("bytes_written", key_bytes + cells * stored_bytes_of(0, len(FAMILY), qualifier_bytes, 8))
