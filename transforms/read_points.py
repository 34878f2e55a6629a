"""Points of all series of a layout back out of its tables, in batches: the source of a copy."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.pvalue import DoOutputsTuple, PBegin

from schema.layouts import Finding, Layout, Reader, Selection
from schema.points import PointBatch, Reason, Rejected, Stage
from transforms import metrics
from transforms.bigtable.limits import refused_row
from transforms.bigtable.reader import TableReader
from transforms.bigtable.splits import Range, layout_splits, within
from transforms.bigtable.target import Target
from transforms.rejected import RejectedOutput, refuse, refusing
from transforms.source import read_decoded

BATCH_POINTS = 100_000


class ReadPoints(beam.PTransform):  # type: ignore[type-arg]
    """All points of a time range as `PointBatch`; damage to the output `REJECTED`.

    The arrivals of the points are their cell timestamps, so that where they are written, beside others
    that may be there, the newest one wins.

    Args:
      start_ms, end_ms: first and last time, in ms, both inclusive.
    """

    def __init__(self, target: Target, layout: Layout, start_ms: int, end_ms: int) -> None:
        super().__init__()
        self._fn = _ReadFn(target, layout, start_ms, end_ms)

    def expand(self, root: PBegin) -> DoOutputsTuple:
        """See the class."""
        ranges = (
            root
            | "Once" >> beam.Create([None], reshuffle=False)
            | "Splits" >> beam.ParDo(_SplitsFn(self._fn)).with_output_types(Range)
            | "SpreadSplits" >> beam.Reshuffle()
        )
        read: DoOutputsTuple = ranges | "Rows" >> refusing(self._fn, PointBatch)
        return read


class _SplitsFn(beam.DoFn):
    def __init__(self, reads: _ReadFn) -> None:
        self._reads = reads

    def process(self, _: None) -> Iterator[Range]:
        yield from layout_splits(self._reads.target, self._reads.layout)


class _ReadFn(beam.DoFn):
    def __init__(self, target: Target, layout: Layout, start_ms: int, end_ms: int) -> None:
        self.target, self.layout, self._range = target, layout, (start_ms, end_ms)

    def process(self, keys: Range) -> Iterator[PointBatch | RejectedOutput]:
        reader = within(TableReader(self.target), self.layout, keys)
        for found in read_points(self.layout, reader, *self._range):
            if isinstance(found, Rejected):
                metrics.count("points_read")
                yield refuse(found)
            else:
                metrics.count("points_read", len(found))
                yield found


def read_points(
    layout: Layout, reader: Reader, start_ms: int, end_ms: int
) -> Iterator[PointBatch | Rejected]:
    """The points of a time range in batches of about `BATCH_POINTS`; rows that cannot be read as refusals.

    Of a row that is damaged in part the rest is read. An instant may come twice, from two rows: the
    point that arrived last is the one that a query shows.
    """
    for found in read_decoded(layout, Selection(None, {}, start_ms, end_ms), reader, BATCH_POINTS):
        if isinstance(found, Finding):
            source = f"row of table {found.table}"
            yield Rejected(found.key, Reason.CORRUPT_FILE, found.text, Stage.READ, source)
            continue
        for row, text in found.damage:
            yield refused_row(row, Reason.CORRUPT_FILE, text, Stage.READ)
        if len(found.batch):
            yield found.batch
