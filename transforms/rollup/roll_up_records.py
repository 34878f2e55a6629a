"""Rollups of declared tables, and copies of a day's rows into the table of the day.

Numbers are accumulated by group, and the rows of groups replaced.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
from timebeam.schema.rollup.accumulator_bytes import packed_series, unpacked

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.batches import join
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.reading import Scan
from timebeam.schema.core.rejections import Stage
from timebeam.schema.core.rows import Cell, KeyRange, Row, TableSpec
from timebeam.schema.rollup.accumulate import accumulate
from timebeam.schema.rollup.accumulators import Buckets, merge
from timebeam.schema.stores.declared.filled_tables import (
    day_pattern,
    day_piece,
    is_of_day,
    rollup_rows,
    start_of,
    table_of,
    values_of,
)
from timebeam.schema.stores.declared.model import DayTables, DeclaredRollup, TableLayout
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import RejectedOutput, refuse, refused_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.pack import mutations, overwriting
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.rollup_series import SeriesText, series_of, text_of


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
        return table_of(self.tables, self.day)

    @property
    def spec(self) -> TableSpec:
        """The day's table, with the families of the source."""
        return TableSpec(self.table, {self.source.family: self.source.max_versions}, holds_points=True)


class CopyDayFn(beam.DoFn):
    """Key ranges in; `Row` mutations of the day's table out, rows with invalid keys to `REJECTED`."""

    def __init__(self, copy: DayCopy) -> None:
        self._copy = copy
        self._key_part = day_piece(copy.source, copy.day)

    def process(self, keys: KeyRange) -> Iterator[Row | RejectedOutput]:
        copy, source = self._copy, self._copy.source
        pattern = day_pattern(source, self._key_part)
        scan = Scan(source.table, (keys,), key_pattern=pattern, versions=source.max_versions)
        for row in TableReader(copy.target).scan(scan):
            metrics.count("messages_read")
            try:
                is_wanted = is_of_day(source, row.key, self._key_part)
            except ValueError as error:
                yield refuse(refused_row(row, Reason.CORRUPT_FILE, str(error), Stage.READ))
                continue
            if is_wanted:
                yield from mutations([row._replace(table=copy.table)])
        metrics.work_done()


_ROWS_AT_ONCE = 5_000
_MOST_BUCKETS = 200_000
_SECOND = 1
"""Accumulators have the second in which their interval starts: local days differ in length."""

PIECES, EXISTING = "pieces", "standing"
"""Inputs of `OverwriteFn`; their values are in step names."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredRollupJob:
    """One rollup of the intervals that start in [start_ms, end_ms)."""

    target: Target
    rollup: DeclaredRollup
    source: TableLayout
    start_ms: int
    end_ms: int


class AccumulateValuesFn(beam.DoFn):
    """Key ranges of the source in; (group, packed accumulators) out, other values to `REJECTED`."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._job = job

    def process(self, keys: KeyRange) -> Iterator[tuple[SeriesText, bytes] | RejectedOutput]:
        job = self._job
        batches: list[PointBatch] = []
        buckets: Buckets | None = None
        for row in TableReader(job.target).scan(Scan(job.source.table, (keys,))):
            metrics.count("messages_read")
            batch, rejected = values_of(job.rollup, job.source, row)
            for refusal in rejected:
                yield refuse(refusal)
            if batch is None:
                continue
            inside = np.flatnonzero((batch.times_ms >= job.start_ms) & (batch.times_ms < job.end_ms))
            if len(inside):
                metrics.count("points_read", len(inside))
                batches.append(batch.take(inside))
            if len(batches) >= _ROWS_AT_ONCE:
                buckets, batches = _added(buckets, batches), []
                if len(buckets) >= _MOST_BUCKETS:
                    yield from _packed(buckets)
                    buckets = None
        if batches:
            buckets = _added(buckets, batches)
        if buckets is not None:
            yield from _packed(buckets)
        metrics.work_done()


def _added(buckets: Buckets | None, batches: list[PointBatch]) -> Buckets:
    added = accumulate(join(batches), _SECOND, ties=True, ends=False)
    return added if buckets is None else merge([buckets, added])


def _packed(buckets: Buckets) -> Iterator[tuple[SeriesText, bytes]]:
    for number, packed in packed_series(buckets):
        yield text_of(buckets.series[number]), packed


class RollupRowsFn(beam.DoFn):
    """(group, packed accumulators) in; (row key, `Row`) out, unstorable rows to `REJECTED`."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._job = job

    def process(
        self, group: tuple[SeriesText, Iterable[bytes]]
    ) -> Iterator[tuple[bytes, Row] | RejectedOutput]:
        text, packed = group
        buckets = unpacked([(series_of(text), list(packed))], _SECOND, ends=False)
        rows, rejected = rollup_rows(self._job.rollup, buckets)
        for refusal in rejected:
            yield refuse(refusal)
        metrics.count("points_packed", len(rows))
        metrics.count_rollup(f"buckets_{self._job.rollup.interval}", len(rows))
        for row in rows:
            yield row.key, row


class ExistingRowsFn(beam.DoFn):
    """Key ranges of the rollup table in; (row key, cells) of the rows in the range of time out."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._job = job

    def process(self, keys: KeyRange) -> Iterator[tuple[bytes, list[Cell]]]:
        job = self._job
        for row in TableReader(job.target).scan(Scan(job.rollup.target.table, (keys,))):
            try:
                start_ms = start_of(job.rollup, row)
            except ValueError:
                continue  # not written by us
            if job.start_ms <= start_ms < job.end_ms:
                yield row.key, list(row.cells)
        metrics.work_done()


class OverwriteFn(beam.DoFn):
    """(row key, new rows and existing cells) in; the `Row` mutation out."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._table = job.rollup.target.table

    def process(self, group: tuple[bytes, Mapping[str, Iterable[Any]]]) -> Iterator[Row | RejectedOutput]:
        key, inputs = group
        (new,) = [*inputs[PIECES]] or [
            Row(self._table, key, [])
        ]  # groups differ in their keys: see `problems`
        existing = [cell for cells in inputs[EXISTING] for cell in cells]
        yield from mutations([overwriting(new, existing)])
