"""Encodes accumulators as cells, and cells as mutations, for many rows together.

If all points of an interval are in one chunk, the worker that reads it encodes it, without a shuffle
(`TableInPlace`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor

import numpy as np

from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.rows import Deletion, EncodedRow, stored_bytes_of
from timebeam.schema.core.selection import Reader
from timebeam.schema.rollup.buckets import Buckets, merge
from timebeam.schema.rollup.day_plan import IntervalPlan
from timebeam.schema.rollup.rollup_config import OF_GROUP, RollupInterval
from timebeam.schema.stores.opentsdb.keys import row_keys
from timebeam.schema.stores.opentsdb.rollup_tables import (
    FAMILY,
    EncodedRollups,
    Form,
    encode_points,
    encode_rollups,
)
from timebeam.transforms.bigtable.mutation_bytes import encoded_mutations, set_cells
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, reject
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.rollup.rollup_job import RollupJob
from timebeam.transforms.rollup.stale_cells import ChunkExisting


def encode(job: RollupJob, interval: RollupInterval, aggregator: str, buckets: Buckets) -> EncodedRollups:
    """The cells of accumulators of single series (SINGLE), or of groups with an aggregator."""
    if not interval.is_default:
        return encode_rollups(buckets, interval, job.stored(aggregator), Form.FIXED)
    number = OF_GROUP[aggregator].get(aggregator, OF_GROUP[aggregator].get("sum"))
    assert number is not None
    return encode_points(buckets, number, Form.FIXED)


def row_mutations(encoded: EncodedRollups) -> list[bytes]:
    """The mutations that set the cells of each row, encoded."""
    one_family = np.zeros(len(encoded.times_ms), np.int64)
    values = encoded.raws.astype(">u8").view(np.uint8).reshape(-1, 8)
    content, starts = set_cells([FAMILY], one_family, encoded.qualifiers, encoded.times_ms, values)
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


_MOST_WAITING = 64
_ENCODED_AT_ONCE = 10_000
"""About the number of accumulators. Their mutations then take less than `reading._MAPPED_BYTES`: pages that
are new take most of the time."""


class TableInPlace:
    """The rows of one table and interval that a chunk writes alone.

    Args:
      plan: the intervals that the chunk writes.
      name: of the table, without prefix.
      reader: of the UID table.
      pool: reads the existing cells, while others read the points.
    """

    def __init__(
        self,
        job: RollupJob,
        plan: IntervalPlan,
        name: str,
        chunk: Chunk,
        reader: Reader,
        pool: Executor,
    ) -> None:
        self._plan, self._table = plan, job.table(name)
        self._reading = pool.submit(ChunkExisting, job, plan, name, chunk, reader)
        self._waiting: list[Buckets] = []

    def split(self, buckets: Buckets) -> tuple[Buckets, Buckets]:
        """(the buckets that this chunk writes, other buckets)."""
        return buckets.parted(self._plan.start_s * 1000, self._plan.end_s * 1000)

    def hold(self, buckets: Buckets) -> None:
        """Adds incomplete accumulators."""
        self._waiting.append(buckets)
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting = [merge(self._waiting)]

    def merged(self) -> Buckets | None:
        """All incomplete accumulators, merged by series (or group) and interval; None if there are none."""
        return merge(self._waiting) if self._waiting else None

    def rows(
        self,
        buckets: Buckets,
        keys: Sequence[SeriesKey | None],
        encode: Callable[[Buckets], EncodedRollups],
    ) -> Iterator[EncodedRow | RejectedOutput]:
        """The mutations of complete buckets, of the series that have a key."""
        has_key = np.array([key is not None for key in keys], np.bool_)
        if not has_key.all():
            buckets = buckets.take(np.flatnonzero(has_key[buckets.index]))
        metrics.count_rollup(f"buckets_{self._plan.interval.interval}", len(buckets))
        for block in buckets.by_series(_ENCODED_AT_ONCE):
            yield from self._written(encode(block), keys)

    def _written(
        self, encoded: EncodedRollups, keys: Sequence[SeriesKey | None]
    ) -> Iterator[EncodedRow | RejectedOutput]:
        yield from map(reject, encoded.rejected)
        row_series_keys = [
            key for key in (keys[number] for number in encoded.series.tolist()) if key is not None
        ]
        encoded_keys = row_keys(row_series_keys, encoded.bases_s)
        sizes = np.diff(encoded.firsts)
        changed: Sequence[int] = range(len(sizes))
        stale: dict[int, list[bytes]] = {}
        existing = self._reading.result()
        if len(existing) and len(sizes):
            numbers = [existing.number(key) for key in encoded_keys]
            rows, columns = np.array(numbers, np.int64), (encoded.codes, encoded.raws, encoded.times_ms)
            stale, is_equal = existing.replaced(rows, encoded.firsts, *columns)
            stale = {row: stale[number] for row, number in enumerate(numbers) if number in stale}
            changed = [row for row in range(len(sizes)) if not is_equal[row] or row in stale]
        content = row_mutations(encoded) if changed else []
        table, counts = self._table, sizes.tolist()
        for row in changed:
            key, sets = encoded_keys[row], content[row]
            if row in stale:
                yield over(key, table, sets, counts[row], stale[row])
            else:
                yield EncodedRow(table, key, sets, counts[row])
        key_bytes = sum([len(encoded_keys[row]) * counts[row] for row in changed])
        cells = sum([counts[row] for row in changed])
        count_written(len(changed), cells, key_bytes, encoded.qualifier_bytes)

    def unwritten(self) -> Iterator[EncodedRow]:
        """The mutations that delete existing intervals that were not written."""
        for key, qualifiers in self._reading.result().unwritten():
            yield over(key, self._table, b"", 0, qualifiers)
