"""The points of a copy: reads them from a layout in batches, and checks that another layout has them all."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import DoOutputsTuple, PBegin

from timebeam.schema.bits.arrays import Bools, Bytes, Floats, Int64s, Kind
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.batches import join, latest_points
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import KeyRange
from timebeam.schema.core.selection import Finding, Reader, Selection
from timebeam.transforms.bigtable.beam_steps import reading
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter import rejected_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, reject, rejecting
from timebeam.transforms.ingest.row_mutations import data_tables
from timebeam.transforms.read.chunks import spread_chunks, table_ranges
from timebeam.transforms.read.table_reader import ParallelReader, read_decoded, within

BATCH_POINTS = 100_000


class ReadBatches(beam.PTransform):  # type: ignore[type-arg]
    """Reads all points of a time range: a pipeline in, `PointBatch` out, corruption to `REJECTED`.

    The arrivals of the points are their cell timestamps. So the newest point wins in the other layout too.

    Args:
      start_ms, end_ms: first and last time, in ms, both inclusive.
    """

    def __init__(self, target: Target, layout: ReadableStore, start_ms: int, end_ms: int) -> None:
        super().__init__()
        self._fn = _ReadPointsFn(target, layout, start_ms, end_ms)

    def expand(self, root: PBegin) -> DoOutputsTuple:
        layout = self._fn.layout
        table = data_tables(layout)[0]
        plan = functools.partial(table_ranges, self._fn.target, table, layout.cut_at)
        ranges = spread_chunks(root, "Splits", plan, KeyRange)
        read: DoOutputsTuple = ranges | "Rows" >> rejecting(self._fn, PointBatch)
        return read


class _ReadPointsFn(beam.DoFn):
    """Key ranges in; `PointBatch` out, corruption to `REJECTED`."""

    def __init__(self, target: Target, layout: ReadableStore, start_ms: int, end_ms: int) -> None:
        self.target, self.layout, self._range = target, layout, (start_ms, end_ms)

    def process(self, keys: KeyRange) -> Iterator[PointBatch | RejectedOutput]:
        reader = within(ParallelReader(self.target), self.layout, keys)
        with reading(self.target, data_tables(self.layout)[0]):
            for batch in read_points(self.layout, reader, *self._range):
                if isinstance(batch, Rejected):
                    metrics.count("points_read")
                    yield reject(batch)
                else:
                    metrics.count("points_read", len(batch))
                    yield batch
        metrics.work_done()


def read_points(
    layout: ReadableStore, reader: Reader, start_ms: int, end_ms: int
) -> Iterator[PointBatch | Rejected]:
    """The points of a time range in batches of about `BATCH_POINTS`, and rejections of unreadable rows.

    The readable cells of a corrupt row are read. Each time of a series comes once. If a layout stores one
    time in several rows, the latest arrival wins, as in a query; the points of such series stay in memory
    until all rows are read, and come last.
    """
    selection = Selection(None, {}, start_ms, end_ms)
    several = layout.several_rows(selection, reader)
    waiting: list[PointBatch] = []
    for batch in read_batches(layout, selection, reader):
        if isinstance(batch, PointBatch) and several and len(batch):
            may_repeat = np.array([series in several for series in batch.series], np.bool_)[batch.index]
            waiting.append(batch.take(np.flatnonzero(may_repeat)))
            batch = batch.take(np.flatnonzero(~may_repeat))
        if isinstance(batch, Rejected) or len(batch):
            yield batch
    yield from _latest(waiting)


def read_batches(
    layout: ReadableStore, selection: Selection, reader: Reader
) -> Iterator[PointBatch | Rejected]:
    """As `read_points`, for a selection, in the order of `read_decoded`: a time may come repeatedly."""
    for decoded in read_decoded(layout, selection, reader, BATCH_POINTS):
        if isinstance(decoded, Finding):
            source = f"row of table {decoded.table}"
            yield Rejected(decoded.key, Reason.CORRUPT_FILE, decoded.text, Stage.READ, source)
            continue
        for row, text in decoded.corruption:
            yield rejected_row(row, Reason.CORRUPT_FILE, text, Stage.READ)
        yield decoded.batch


def _latest(batches: Sequence[PointBatch]) -> Iterator[PointBatch]:
    """The points of some batches, each time of a series once (`latest_points`)."""
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return
    batch = join(batches)
    order = latest_points(batch.index, batch.times_ms, batch.arrivals_ms)
    for start in range(0, len(order), BATCH_POINTS):
        yield batch.take(order[start : start + BATCH_POINTS])


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison.

    Attributes:
      points: times of the first layout that the second one has, with this value or a newer one.
      series: the number of series of these times.
      newer: times whose value in the second layout arrived later.
      missing: by series, the number of times that the second layout lacks.
      different: by series, the number of times with another value that did not arrive later.
    """

    points: int
    series: int
    newer: int
    missing: dict[Series, int]
    different: dict[Series, int]


class _SeriesPoints(NamedTuple):
    """The points of one series, by time, each time once: int64[n], uint8[n], int64[n], int64[n]."""

    times_ms: Int64s
    kinds: Bytes
    bits: Int64s
    arrivals_ms: Int64s

    @property
    def floats(self) -> Floats:
        """float64[n]: the numbers; undefined for other values."""
        return np.where(self.kinds == Kind.FLOAT, self.bits.view(np.float64), self.bits.astype(np.float64))

    def take(self, indices: Int64s) -> _SeriesPoints:
        """Some of the points."""
        return _SeriesPoints(
            self.times_ms[indices], self.kinds[indices], self.bits[indices], self.arrivals_ms[indices]
        )


_NONE = _SeriesPoints(
    np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
)


def compare(target: Target, first: ReadableStore, second: Store, start_ms: int, end_ms: int) -> Compared:
    """Compares all series of two layouts in a time range, both ends inclusive.

    It holds all points in memory, in 25 bytes each.

    Values are the same if the second layout stores the first one's value so. A different value is right only
    if it arrived later: a copy does not replace it.
    """
    expected = _points_by_series(target, first, start_ms, end_ms)
    copied = _points_by_series(target, second, start_ms, end_ms)
    points = series_count = newer_count = 0
    missing, different = {}, {}
    for series, source in expected.items():
        sink = copied.get(series, _NONE)
        place = np.searchsorted(sink.times_ms, source.times_ms)
        is_there = place < len(sink.times_ms)
        is_there[is_there] = sink.times_ms[place[is_there]] == source.times_ms[is_there]
        pairs = source.take(np.flatnonzero(is_there)), sink.take(place[is_there])
        is_same = _same(*pairs, second)
        is_newer = ~is_same & (pairs[1].arrivals_ms > pairs[0].arrivals_ms)
        right = int((is_same | is_newer).sum())
        points += right
        series_count += bool(right)
        newer_count += int(is_newer.sum())
        missing[series] = int((~is_there).sum())
        different[series] = len(is_same) - right
    return Compared(points, series_count, newer_count, _positive(missing), _positive(different))


def _positive(counts: dict[Series, int]) -> dict[Series, int]:
    return {series: count for series, count in counts.items() if count}


def _same(source: _SeriesPoints, sink: _SeriesPoints, layout: Store) -> Bools:
    """bool[n]: whether the values of a layout are those of the source, as the layout stores them."""
    is_same = (source.kinds == sink.kinds) & (source.bits == sink.bits)
    are_numbers = (source.kinds <= Kind.FLOAT) & (sink.kinds <= Kind.FLOAT)
    both_integers = (source.kinds == Kind.INTEGER) & (sink.kinds == Kind.INTEGER)
    stored = layout.writing.stored_floats(source.floats)
    are_equal = (stored == sink.floats) | (np.isnan(stored) & np.isnan(sink.floats))
    # A double is the copy of an integer only if it is exactly that integer.
    rounded = np.zeros(len(is_same), np.bool_)
    for integers, floats in ((source, sink), (sink, source)):
        mixed = np.flatnonzero((integers.kinds == Kind.INTEGER) & (floats.kinds == Kind.FLOAT))
        numbers = floats.bits[mixed].view(np.float64)
        fits = (numbers >= -(2.0**63)) & (numbers < 2.0**63)
        rounded[mixed] = np.where(fits, numbers, 0).astype(np.int64) != integers.bits[mixed]
    return is_same | (are_numbers & ~both_integers & are_equal & ~rounded)


def _points_by_series(
    target: Target, layout: ReadableStore, start_ms: int, end_ms: int
) -> dict[Series, _SeriesPoints]:
    batches_by_series: dict[Series, list[_SeriesPoints]] = {}
    for batch in read_points(layout, ParallelReader(target), start_ms, end_ms):
        if isinstance(batch, Rejected):
            continue
        columns = _SeriesPoints(batch.times_ms, batch.kinds, _comparable(batch), batch.arrivals_ms)
        order = np.argsort(batch.index, kind="stable")
        bounds = np.searchsorted(batch.index[order], np.arange(len(batch.series) + 1))
        for series, low, high in zip(batch.series, bounds[:-1], bounds[1:], strict=True):
            if low < high:
                batches_by_series.setdefault(series, []).append(columns.take(order[low:high]))
    return {series: _by_time(of_series) for series, of_series in batches_by_series.items()}


def _by_time(batches: Sequence[_SeriesPoints]) -> _SeriesPoints:
    points = _SeriesPoints(*map(np.concatenate, zip(*batches, strict=True)))
    return points.take(np.argsort(points.times_ms, kind="stable"))


def _comparable(batch: PointBatch) -> Int64s:
    """int64[n]: the bits of numbers, and a digest of strings and other bytes."""
    strings = np.flatnonzero(batch.kinds > Kind.FLOAT).tolist()
    if not strings:
        return batch.bits
    bits = batch.bits.copy()
    for point in strings:
        digest = hashlib.blake2b(batch.payloads[bits[point]], digest_size=8).digest()
        bits[point] = int.from_bytes(digest, "big", signed=True)
    return bits
