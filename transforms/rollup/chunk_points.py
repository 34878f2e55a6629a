"""Reads the points of a chunk, in bounded memory."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.batches import latest_points
from timebeam.schema.core.contract import ReadableLayout
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.reading import DecodedRows, Finding, Selected
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Row
from timebeam.schema.rollup.accumulate import aggregatable
from timebeam.schema.rollup.day_plan import RollupPlan
from timebeam.transforms.dead_letters.rejected import refused_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.parallel import Ahead
from timebeam.transforms.read.table_reader import read_ahead

_POINTS_AT_ONCE = 200_000  # numpy takes most of the time then, not Python
_READS_AHEAD = 8  # lists of about two megabytes: while a chunk is encoded, the next one is read

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_MAPPED_BYTES, _KEPT_BYTES = 4 << 20, 32 << 20


class NumberedChunk(NamedTuple):
    """A chunk, and the number of the part of the job that it belongs to."""

    part: int
    chunk: Chunk


class _HourRows(NamedTuple):
    """Rows that were decoded together.

    Attributes:
      rows: their number.
      outside: rows that are left out: they hold points of another hour than that of their key.
    """

    rows: int
    decoded: DecodedRows
    outside: Sequence[Row]


def read_period(plan: RollupPlan, chunk: Chunk) -> tuple[int, int]:
    """[start, end) in ms of the period of a chunk that the plan rolls up."""
    return max(plan.start_ms, chunk.start_s * 1000), min(plan.end_ms, chunk.end_s * 1000)


class NumberReader:
    """The finite numbers of rows in large batches, each instant once, and refusals of other values.

    A thread starts to read rows at once, and stays some lists ahead. The caller's thread decodes them just
    before it accumulates them, so that columns are still in the processor's cache.

    Args:
      select: yields the rows, which may have points of other times too.
      period: [start, end) in ms.
      several_rows: see `ReadableLayout.several_rows`. The thread calls `select` and `several_rows`.
    """

    def __init__(
        self,
        layout: ReadableLayout,
        select: Callable[[], Iterable[Selected | Finding]],
        period: tuple[int, int],
        several_rows: Callable[[], frozenset[Series]] = frozenset,
    ) -> None:
        self._layout, self._period = layout, period
        self._reads = Ahead(functools.partial(_reads, select, several_rows), _READS_AHEAD)

    def __iter__(self) -> Iterator[PointBatch | Rejected]:
        for rows in self._reads:
            if isinstance(rows, Finding):
                yield Rejected(rows.key, Reason.CORRUPT_FILE, rows.text, Stage.READ, rows.table)
            else:
                yield from _numbers(_decoded(self._layout, rows, *self._period))

    def stop(self) -> None:
        """Ends the thread, at once or when the network answers."""
        self._reads.stop()
        self._reads.join()


def _numbers(read: _HourRows) -> Iterator[PointBatch | Rejected]:
    """The finite numbers of rows, counted, and refusals of the rest."""
    batch, damage, skipped = read.decoded.batch, read.decoded.damage, read.decoded.skipped
    metrics.count("messages_read", read.rows)
    metrics.count("points_read", len(batch))
    metrics.count_rollup("cells_skipped", skipped)
    for row, text in damage:
        yield refused_row(row, Reason.CORRUPT_FILE, text, Stage.READ)
    for row in read.outside:
        yield refused_row(row, Reason.CORRUPT_FILE, "points of another hour than the row's", Stage.READ)
    numbers, rejected = aggregatable(batch)
    yield from rejected
    if len(numbers):
        yield numbers


class _SeveralRows(list[Selected]):
    """Rows that may hold an instant twice."""


def _reads(
    select: Callable[[], Iterable[Selected | Finding]], several_rows: Callable[[], frozenset[Series]]
) -> Iterator[list[Selected] | Finding]:
    """The rows in lists that are decoded together."""
    apart = {series: _SeveralRows() for series in several_rows()}
    for rows in read_ahead(select(), _POINTS_AT_ONCE):
        if isinstance(rows, Finding) or not apart:
            yield rows
            continue
        for selected in rows:
            if selected.series in apart:
                apart[selected.series].append(selected)
        yield [selected for selected in rows if selected.series not in apart]
    yield from apart.values()


def _decoded(layout: ReadableLayout, rows: list[Selected], start_ms: int, end_ms: int) -> _HourRows:
    """Rows, with their points in [start_ms, end_ms), each instant once."""
    decoded, outside = layout.decode_rows(rows), frozenset[int]()
    if decoded.outside:  # other rows may have points of the same intervals, which would be written twice
        outside = frozenset(decoded.outside)
        decoded = layout.decode_rows(
            [selected for position, selected in enumerate(rows) if position not in outside]
        )
    decoded = decoded.within(start_ms, end_ms)
    if isinstance(rows, _SeveralRows):
        batch = decoded.batch
        batch = batch.take(latest_points(batch.index, batch.times_ms, batch.arrivals_ms))
        decoded = dataclasses.replace(decoded, batch=batch)
    return _HourRows(len(rows), decoded, [rows[position].row for position in sorted(outside)])


@functools.cache
def give_back_memory() -> None:
    """Makes this process return freed memory: blocks of 4 MiB or more, and all that is above 32 MiB.

    By default glibc raises the first limit to 32 MB when a block of that size is freed, and then keeps up to
    twice as much in each arena (about one per thread). Numpy's arrays are such blocks, so a worker would hold
    several times the memory that it uses. If the limits were a megabyte, the pages of most smaller
    arrays would be given back and asked for again, which takes a third of the time of decoding. Without glibc
    (musl, macOS) this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
