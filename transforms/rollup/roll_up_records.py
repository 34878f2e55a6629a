"""Rollups of declared tables, and copies of a day's rows into the table of the day.

Numbers are accumulated by group, and the rows of groups replaced.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.batches import join
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Cell, EncodedRow, KeyRange, Row, TableSpec
from timebeam.schema.core.selection import Scan
from timebeam.schema.rollup.accumulate import Accumulated, Accumulator
from timebeam.schema.rollup.buckets import unpacked
from timebeam.schema.stores.declared.declaration import DayTables, DeclaredRollup, TableLayout
from timebeam.schema.stores.declared.filled_tables import (
    day_pattern,
    day_piece,
    is_of_day,
    name_of,
    rollup_rows,
    start_of,
    values_of,
)
from timebeam.transforms.bigtable.read_ranges import ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter import rejected_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, outputs, reject
from timebeam.transforms.ingest.encode_group_pack import RowKey
from timebeam.transforms.ingest.row_mutations import mutations
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.read_chunk import AccumulateFn, ChunkWork, NumberedChunk
from timebeam.transforms.rollup.rollup_graph import (
    ExistingRange,
    Group,
    RollupEncoder,
    series_fragments,
    series_of,
)


@dataclasses.dataclass(frozen=True, slots=True)
class DayCopy:
    """One day of one source."""

    target: Target
    tables: DayTables
    source: TableLayout
    day: datetime.date

    @property
    def table(self) -> str:
        """The name of the day's table."""
        return name_of(self.tables.table, self.day)

    @property
    def spec(self) -> TableSpec:
        """The day's table, with the families of the source."""
        return TableSpec(self.table, {self.source.family: self.source.max_versions}, holds_points=True)


def copy_day(keys: KeyRange, copy: DayCopy) -> Iterator[EncodedRow | RejectedOutput]:
    """The `EncodedRow`s of the day's table of a key range; rows with invalid keys to `REJECTED`."""
    source, key_part = copy.source, day_piece(copy.source, copy.day)
    pattern = day_pattern(source, key_part)
    scan = Scan(source.table, (keys,), key_pattern=pattern, versions=source.max_versions)
    for row in TableReader(copy.target).scan(scan):
        metrics.count("messages_read")
        try:
            is_wanted = is_of_day(source, row.key, key_part)
        except ValueError as error:
            yield reject(rejected_row(row, Reason.CORRUPT_FILE, str(error), Stage.READ))
            continue
        if is_wanted:
            yield from outputs(mutations([row._replace(table=copy.table)]))
    metrics.work_done()


_ROWS_AT_ONCE = 5_000
_SECOND = 1
"""Accumulators have the second in which their interval starts: local days differ in length."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredRollupJob(RollupEncoder):
    """One rollup of the intervals that start in [start_ms, end_ms)."""

    target: Target
    rollup: DeclaredRollup
    source: TableLayout
    start_ms: int
    end_ms: int

    @property
    def tables(self) -> Sequence[str]:
        return [self.rollup.target.table]

    def chunks(self) -> Iterator[NumberedChunk | ExistingRange]:
        """Key ranges of the source, and of the rollup's table."""
        (table,), interval = self.tables, str(self.rollup.interval)
        period_s = self.start_ms // 1000, self.end_ms // 1000
        for keys in ranges_between(split_keys(self.target, self.source.table)):
            yield NumberedChunk(0, Chunk((), (), *period_s, keys))
        for keys in ranges_between(split_keys(self.target, table)):
            yield ExistingRange((), None, interval, table, *period_s, keys)

    def accumulate(self) -> AccumulateFn:
        return _AccumulateValuesFn(self)

    def existing(self, existing: ExistingRange) -> Iterator[tuple[RowKey, list[Cell]]]:
        for row in TableReader(self.target).scan(Scan(existing.table, (existing.keys,))):
            try:
                start_ms = start_of(self.rollup, row)
            except ValueError:
                continue  # not written by us
            if self.start_ms <= start_ms < self.end_ms:
                yield (existing.table, row.key), list(row.cells)

    def encode(self, table: str, groups: list[Group]) -> Iterator[Any]:
        series_packed = [(series_of(text), [packed for _, packed in fragments]) for text, fragments in groups]
        rows, rejected = rollup_rows(self.rollup, unpacked(series_packed, _SECOND, ends=False))
        yield from map(reject, rejected)
        metrics.count("points_packed", len(rows))
        metrics.count_rollup(f"buckets_{self.rollup.interval}", len(rows))
        for row in rows:
            yield (table, row.key), row

    def row(self, key: RowKey, encoded: Sequence[Row]) -> Row:
        (new,) = encoded or [Row(*key, [])]  # groups differ in their keys: see `problems`
        return new


class _AccumulateValuesFn(AccumulateFn):
    """See `AccumulateFn`; chunks are key ranges of the source, and all accumulators are shuffled."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        super().__init__()
        self._job = job

    def begin(self, numbered: NumberedChunk) -> ChunkWork:
        accumulator = Accumulator([_SECOND], ties=True, ends=False)
        return ChunkWork(self._points(numbered.chunk), accumulator, self._take)

    def _points(self, chunk: Chunk) -> Iterator[PointBatch | Rejected]:
        """The values of many rows together, and rejections."""
        job = self._job
        batches: list[PointBatch] = []
        for row in TableReader(job.target).scan(Scan(job.source.table, (chunk.keys,))):
            metrics.count("messages_read")
            batch, rejected = values_of(job.rollup, job.source, row)
            yield from rejected
            if batch is None:
                continue
            inside = np.flatnonzero((batch.times_ms >= job.start_ms) & (batch.times_ms < job.end_ms))
            if len(inside):
                metrics.count("points_read", len(inside))
                batches.append(batch.take(inside))
            if len(batches) >= _ROWS_AT_ONCE:
                yield join(batches)
                batches = []
        if batches:
            yield join(batches)

    def _take(self, accumulated: Accumulated) -> Iterator[Any]:
        return series_fragments(self._job.rollup.target.table, accumulated.by_length()[_SECOND])
