"""Rollups of declared tables: numbers to accumulators by group, and groups to rows over what stands there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np

from schema.declared.model import DeclaredRollup, TableLayout
from schema.declared.rollups import rollup_rows, start_of, values_of
from schema.layouts import Cell, Row, Scan
from schema.points import PointBatch, join
from schema.rollup.accumulate import accumulate
from schema.rollup.buckets import Buckets, merge
from schema.rollup.pieces import packed_series, unpacked
from transforms import metrics
from transforms.bigtable.reader import TableReader
from transforms.bigtable.splits import Range
from transforms.bigtable.target import Target
from transforms.pack import mutations, over_standing
from transforms.rejected import RejectedOutput, refuse
from transforms.rollup.series import SeriesText, series_of, text_of

_ROWS_AT_ONCE = 5_000
_MOST_BUCKETS = 200_000
_SECOND = 1
"""Accumulators are kept by the second in which their interval starts: local days differ in length."""

PIECES, STANDING = "pieces", "standing"


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredRollupJob:
    """One rollup: of its intervals those that start in [start_ms, end_ms)."""

    target: Target
    rollup: DeclaredRollup
    source: TableLayout
    start_ms: int
    end_ms: int


class AccumulateValuesFn(beam.DoFn):
    """Ranges of the source's keys in; (group, packed accumulators) out, what is no number to `REJECTED`."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._job = job

    def process(self, keys: Range) -> Iterator[tuple[SeriesText, bytes] | RejectedOutput]:
        """See the class."""
        job = self._job
        held: list[PointBatch] = []
        buckets: Buckets | None = None
        for row in TableReader(job.target).scan(Scan(job.source.table, (keys,))):
            metrics.count("messages_read")
            batch, rejected = values_of(job.rollup, job.source, row)
            for one in rejected:
                yield refuse(one)
            if batch is None:
                continue
            inside = np.flatnonzero((batch.times_ms >= job.start_ms) & (batch.times_ms < job.end_ms))
            if len(inside):
                metrics.count("points_read", len(inside))
                held.append(batch.take(inside))
            if len(held) >= _ROWS_AT_ONCE:
                buckets, held = _added(buckets, held), []
                if len(buckets) >= _MOST_BUCKETS:
                    yield from _packed(buckets)
                    buckets = None
        if held:
            buckets = _added(buckets, held)
        if buckets is not None:
            yield from _packed(buckets)


def _added(buckets: Buckets | None, held: list[PointBatch]) -> Buckets:
    found = accumulate(join(held), _SECOND, ties=True, ends=False)
    return found if buckets is None else merge([buckets, found])


def _packed(buckets: Buckets) -> Iterator[tuple[SeriesText, bytes]]:
    for number, packed in packed_series(buckets):
        yield text_of(buckets.series[number]), packed


class RollupRowsFn(beam.DoFn):
    """(group, packed accumulators) in; (row key, `Row`) out, what the table cannot hold to `REJECTED`."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._job = job

    def process(
        self, group: tuple[SeriesText, Iterable[bytes]]
    ) -> Iterator[tuple[bytes, Row] | RejectedOutput]:
        """See the class."""
        text, pieces = group
        buckets = unpacked([(series_of(text), list(pieces))], _SECOND, ends=False)
        rows, rejected = rollup_rows(self._job.rollup, buckets)
        for one in rejected:
            yield refuse(one)
        metrics.count("points_packed", len(rows))
        metrics.count_rollup(f"buckets_{self._job.rollup.interval}", len(rows))
        for row in rows:
            yield row.key, row


class StandingRowsFn(beam.DoFn):
    """Ranges of the rollup table's keys in; (row key, its cells) of the rows of the range of time out."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._job = job

    def process(self, keys: Range) -> Iterator[tuple[bytes, list[Cell]]]:
        """See the class."""
        job = self._job
        for row in TableReader(job.target).scan(Scan(job.rollup.target.table, (keys,))):
            try:
                start_ms = start_of(job.rollup, row)
            except ValueError:
                continue  # not written by us
            if job.start_ms <= start_ms < job.end_ms:
                yield row.key, list(row.cells)


class OverwriteFn(beam.DoFn):
    """(row key, new rows and standing cells) in; the `Row` mutation out."""

    def __init__(self, job: DeclaredRollupJob) -> None:
        self._table = job.rollup.target.table

    def process(self, group: tuple[bytes, Mapping[str, Iterable[Any]]]) -> Iterator[Row | RejectedOutput]:
        """See the class."""
        key, found = group
        new = next(iter(found[PIECES]), Row(self._table, key, []))
        standing = [cell for cells in found[STANDING] for cell in cells]
        yield from mutations([over_standing(new, standing)])
