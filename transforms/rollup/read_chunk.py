"""Reads and accumulates the points of chunks, in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.batches import latest_points
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.selection import Finding, Selected
from timebeam.schema.rollup.accumulate import Accumulated, Accumulator, aggregatable
from timebeam.schema.rollup.day_plan import RollupPlan
from timebeam.transforms.dead_letters.letter import rejected_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import give_back_memory, reject, windowed
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.table_reader import Ahead, read_ahead

_POINTS_AT_ONCE = 200_000  # numpy takes most of the time then, not Python
_READS_AHEAD = 8  # lists of about two megabytes: while a chunk is encoded, the next one is read


class NumberedChunk(NamedTuple):
    """A chunk, and the number of the part of the job that it belongs to."""

    part: int
    chunk: Chunk


def read_period(plan: RollupPlan, chunk: Chunk) -> tuple[int, int]:
    """[start, end) in ms of the period of a chunk that the plan rolls up."""
    return max(plan.start_ms, chunk.start_s * 1000), min(plan.end_ms, chunk.end_s * 1000)


class NumberReader:
    """The finite numbers of rows in large batches, each time once, and rejections of other values.

    A thread starts to read rows at once, and stays some lists ahead. The caller's thread decodes them just
    before it accumulates them, so that columns are still in the processor's cache.

    Args:
      select: yields the rows, which may have points of other times too.
      period: [start, end) in ms.
      several_rows: see `ReadableStore.several_rows`. The thread calls `select` and `several_rows`.
    """

    def __init__(
        self,
        layout: ReadableStore,
        select: Callable[[], Iterable[Selected | Finding]],
        period: tuple[int, int],
        several_rows: Callable[[], frozenset[Series]] = frozenset,
    ) -> None:
        self._layout, self._period = layout, period
        self._reads = Ahead(functools.partial(_reads, select, several_rows), _READS_AHEAD)

    def __iter__(self) -> Iterator[PointBatch | Rejected]:
        for rows, may_repeat in self._reads:
            if isinstance(rows, Finding):
                yield Rejected(rows.key, Reason.CORRUPT_FILE, rows.text, Stage.READ, rows.table)
            else:
                yield from self._numbers(rows, may_repeat=may_repeat)

    def _numbers(self, rows: list[Selected], *, may_repeat: bool) -> Iterator[PointBatch | Rejected]:
        """The finite numbers of rows, counted, and rejections of the rest.

        Args:
          may_repeat: a time may be in several rows.
        """
        decoded, outside = self._layout.decode_rows(rows), frozenset[int]()
        if decoded.outside:  # other rows may have points of the same intervals, which would be written twice
            outside = frozenset(decoded.outside)
            inside = [selected for position, selected in enumerate(rows) if position not in outside]
            decoded = self._layout.decode_rows(inside)
        decoded = decoded.within(*self._period)
        batch = decoded.batch
        if may_repeat:
            batch = batch.take(latest_points(batch.index, batch.times_ms, batch.arrivals_ms))
        metrics.count("messages_read", len(rows))
        metrics.count("points_read", len(batch))
        metrics.count_rollup("cells_skipped", decoded.skipped)
        for row, text in decoded.corruption:
            yield rejected_row(row, Reason.CORRUPT_FILE, text, Stage.READ)
        for position in sorted(outside):
            why = "points of another hour than the row's"
            yield rejected_row(rows[position].row, Reason.CORRUPT_FILE, why, Stage.READ)
        numbers, rejected = aggregatable(batch)
        yield from rejected
        if len(numbers):
            yield numbers

    def stop(self) -> None:
        """Ends the thread, at once or when the network answers."""
        self._reads.stop()
        self._reads.join()


def _reads(
    select: Callable[[], Iterable[Selected | Finding]], several_rows: Callable[[], frozenset[Series]]
) -> Iterator[tuple[list[Selected] | Finding, bool]]:
    """The rows in lists that are decoded together; whether a time may be in several of these rows."""
    apart: dict[Series, list[Selected]] = {series: [] for series in several_rows()}
    for rows in read_ahead(select(), _POINTS_AT_ONCE):
        if isinstance(rows, Finding) or not apart:
            yield rows, False
            continue
        for selected in rows:
            if selected.series in apart:
                apart[selected.series].append(selected)
        yield [selected for selected in rows if selected.series not in apart], False
    for rows in apart.values():
        yield rows, True


class ChunkWork(NamedTuple):
    """A chunk that is being read, and what becomes of its points.

    Attributes:
      points: finite numbers, each time of a series once, unless the accumulator counts ties.
      take: the output of the accumulators of some rows.
      end: the output at the end of the chunk.
      stop: ends reading.
    """

    points: Iterable[PointBatch | Rejected]
    accumulator: Accumulator
    take: Callable[[Accumulated], Iterable[Any]]
    end: Callable[[], Iterable[Any]] = tuple
    stop: Callable[[], object] = tuple

    def output(self) -> Iterator[Any]:
        """See `AccumulateFn`."""
        for batch in self.points:
            if isinstance(batch, Rejected):
                yield reject(batch)
                continue
            self.accumulator.add(batch)
            if self.accumulator.is_full:
                yield from self._taken()
        yield from self._taken()
        yield from self.end()
        metrics.work_done()

    def _taken(self) -> Iterable[Any]:
        accumulated = self.accumulator.take()
        return () if accumulated is None else self.take(accumulated)


class AccumulateFn(beam.DoFn):
    """`NumberedChunk` in; `EncodedRow` out, fragments of rows to `FRAGMENTS`, and rejections.

    The accumulators of a chunk are merged first, so that each key has few fragments for each chunk. A chunk
    is read while the chunk before it is accumulated and written.
    """

    def __init__(self) -> None:
        self._begun: ChunkWork | None = None

    def begin(self, numbered: NumberedChunk) -> ChunkWork:
        """Starts to read a chunk."""
        raise NotImplementedError

    def setup(self) -> None:
        """Makes the process give back memory."""
        give_back_memory()

    def teardown(self) -> None:
        """Ends reading."""
        self._stop()

    def start_bundle(self) -> None:
        """Ends what a bundle that failed may still read."""
        self._stop()

    def process(self, numbered: NumberedChunk) -> Iterator[Any]:
        work = self.begin(numbered)
        begun, self._begun = self._begun, work
        if begun is not None:
            yield from begun.output()

    def finish_bundle(self) -> Iterator[Any]:
        """The output of the last chunk."""
        begun, self._begun = self._begun, None
        if begun is not None:
            yield from windowed(begun.output())

    def _stop(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.stop()
