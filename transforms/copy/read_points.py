"""Reads the points of all series of a layout, in batches: the source of a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import DoOutputsTuple, PBegin

from timebeam.schema.common.batches import join, latest_points
from timebeam.schema.layouts import Finding, ReadableLayout, Reader, Selection
from timebeam.schema.points import PointBatch, Reason, Rejected, Stage
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import RejectedOutput, refuse, refused_row, refusing
from timebeam.transforms.ingest.write import data_tables
from timebeam.transforms.query.points import read_decoded
from timebeam.transforms.readers.chunks import RangesFn
from timebeam.transforms.readers.table_reader import TableReader, within

BATCH_POINTS = 100_000


class ReadPoints(beam.PTransform):  # type: ignore[type-arg]
    """Reads all points of a time range: a pipeline in, `PointBatch` out, damage to `REJECTED`.

    The arrivals of the points are their cell timestamps. So the newest point wins in the other layout too.

    Args:
      start_ms, end_ms: first and last time, in ms, both inclusive.
    """

    def __init__(self, target: Target, layout: ReadableLayout, start_ms: int, end_ms: int) -> None:
        super().__init__()
        self._fn = _ReadFn(target, layout, start_ms, end_ms)

    def expand(self, root: PBegin) -> DoOutputsTuple:
        """See the class."""
        layout = self._fn.layout
        split = RangesFn(self._fn.target, data_tables(layout)[0], cut_at=layout.cut_at)
        ranges = (
            root
            | "Once" >> beam.Create([None], reshuffle=False)
            | "Splits" >> beam.ParDo(split).with_output_types(KeyRange)
            | "SpreadSplits" >> beam.Reshuffle()
        )
        read: DoOutputsTuple = ranges | "Rows" >> refusing(self._fn, PointBatch)
        return read


class _ReadFn(beam.DoFn):
    """Key ranges in; `PointBatch` out, damage to `REJECTED`."""

    def __init__(self, target: Target, layout: ReadableLayout, start_ms: int, end_ms: int) -> None:
        self.target, self.layout, self._range = target, layout, (start_ms, end_ms)

    def process(self, keys: KeyRange) -> Iterator[PointBatch | RejectedOutput]:
        reader = within(TableReader(self.target), self.layout, keys)
        for batch in read_points(self.layout, reader, *self._range):
            if isinstance(batch, Rejected):
                metrics.count("points_read")
                yield refuse(batch)
            else:
                metrics.count("points_read", len(batch))
                yield batch
        metrics.work_done()


def read_points(
    layout: ReadableLayout, reader: Reader, start_ms: int, end_ms: int
) -> Iterator[PointBatch | Rejected]:
    """The points of a time range in batches of about `BATCH_POINTS`, and refusals of unreadable rows.

    The readable cells of a damaged row are read. Each instant of a series comes once. If a layout stores one
    instant in several rows, the latest arrival wins, as in a query; the points of such series stay in memory
    until all rows are read, and come last.
    """
    selection = Selection(None, {}, start_ms, end_ms)
    several = layout.several_rows(selection, reader)
    waiting: list[PointBatch] = []
    for decoded in read_decoded(layout, selection, reader, BATCH_POINTS):
        if isinstance(decoded, Finding):
            source = f"row of table {decoded.table}"
            yield Rejected(decoded.key, Reason.CORRUPT_FILE, decoded.text, Stage.READ, source)
            continue
        for row, text in decoded.damage:
            yield refused_row(row, Reason.CORRUPT_FILE, text, Stage.READ)
        batch = decoded.batch
        if several and len(batch):
            may_repeat = np.array([series in several for series in batch.series], np.bool_)[batch.index]
            waiting.append(batch.take(np.flatnonzero(may_repeat)))
            batch = batch.take(np.flatnonzero(~may_repeat))
        if len(batch):
            yield batch
    yield from _latest(waiting)


def _latest(batches: Sequence[PointBatch]) -> Iterator[PointBatch]:
    """The points of some batches, each instant of a series once (`latest_points`)."""
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return
    batch = join(batches)
    order = latest_points(batch.index, batch.times_ms, batch.arrivals_ms)
    for start in range(0, len(order), BATCH_POINTS):
        yield batch.take(order[start : start + BATCH_POINTS])
