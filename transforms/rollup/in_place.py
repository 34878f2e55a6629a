"""Rollups that have all their points where they are read: encoded and written over what stands there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from schema.layouts import SeriesKey
from schema.layouts.opentsdb.keys import row_keys
from schema.rollup.buckets import Buckets, merge
from schema.rollup.opentsdb_rollup import EncodedRollups
from schema.rollup.plan import IntervalPlan
from transforms import metrics
from transforms.bigtable.wire import EncodedRow
from transforms.chunks import Chunk
from transforms.rejected import RejectedOutput, refuse
from transforms.rollup.job import RollupJob
from transforms.rollup.mutations import count_written, over, row_mutations
from transforms.rollup.standing import ChunkStanding

_MOST_PARTS = 64
_ENCODED_AT_ONCE = 20_000
"""Accumulators, roughly: the mutations of one are several times as large as itself."""


class TableInPlace:
    """The rows of one table, of one interval, that a chunk writes alone.

    Args:
      plan: the intervals that it writes.
      name: of the table, without prefix.
    """

    def __init__(self, job: RollupJob, plan: IntervalPlan, name: str, chunk: Chunk) -> None:
        self._plan, self._table = plan, job.table(name)
        self._standing = ChunkStanding(job, plan, name, chunk)
        self._held: list[Buckets] = []

    def parted(self, buckets: Buckets) -> tuple[Buckets, Buckets]:
        """(the buckets that are written here, the others)."""
        return buckets.parted(self._plan.start_s * 1000, self._plan.end_s * 1000)

    def hold(self, buckets: Buckets) -> None:
        """Keeps accumulators to which others are to be added."""
        self._held.append(buckets)
        if len(self._held) >= _MOST_PARTS:
            self._held = [merge(self._held)]

    def held(self) -> Buckets | None:
        """All that was held together, of each series, or group, and interval one; None if nothing was."""
        return merge(self._held) if self._held else None

    def rows(
        self,
        buckets: Buckets,
        keys: Sequence[SeriesKey | None],
        encode: Callable[[Buckets], EncodedRollups],
    ) -> Iterator[EncodedRow | RejectedOutput]:
        """The mutations of buckets that have all their points, of those series that have a key."""
        kept = np.array([key is not None for key in keys], np.bool_)
        if not kept.all():
            buckets = buckets.take(np.flatnonzero(kept[buckets.index]))
        metrics.count_rollup(f"buckets_{self._plan.interval.interval}", len(buckets))
        for part in buckets.by_series(_ENCODED_AT_ONCE):
            yield from self._written(encode(part), keys)

    def _written(
        self, encoded: EncodedRollups, keys: Sequence[SeriesKey | None]
    ) -> Iterator[EncodedRow | RejectedOutput]:
        yield from map(refuse, encoded.rejected)
        held = [key for key in (keys[number] for number in encoded.series.tolist()) if key is not None]
        of_rows = row_keys(held, encoded.bases_s)
        sizes = np.diff(encoded.firsts)
        numbers: Sequence[int] = []
        stale: dict[int, list[bytes]] = {}
        if len(self._standing):
            numbers = [self._standing.number(key) for key in of_rows]
            stale = self._standing.replaced(np.repeat(np.array(numbers, np.int64), sizes), encoded.codes)
        content = row_mutations(encoded)
        table = self._table
        for at, (key, sets, count) in enumerate(zip(of_rows, content, sizes.tolist(), strict=True)):
            gone = stale.get(numbers[at]) if stale else None
            yield over(key, table, sets, count, gone) if gone else EncodedRow(table, key, sets, count)
        key_bytes = int(np.fromiter(map(len, of_rows), np.int64, len(of_rows)) @ sizes)
        count_written(len(of_rows), len(encoded.codes), key_bytes, encoded.wide)

    def left(self) -> Iterator[EncodedRow]:
        """The mutations that delete what stands there of intervals that were not written."""
        for key, gone in self._standing.left():
            yield over(key, self._table, b"", 0, gone)
