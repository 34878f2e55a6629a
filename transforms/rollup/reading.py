"""Reads the points of a chunk, in bounded memory."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from timebeam.schema.common.batches import latest_points
from timebeam.schema.layouts import DecodedRows, Finding, ReadableLayout, Row, Selected
from timebeam.schema.points import PointBatch, Reason, Rejected, Series, Stage
from timebeam.schema.rollup.accumulate import aggregatable
from timebeam.schema.rollup.plan import RollupPlan
from timebeam.transforms import metrics
from timebeam.transforms.dead_letters.rejected import refused_row
from timebeam.transforms.readers.chunks import Chunk
from timebeam.transforms.readers.parallel import ahead
from timebeam.transforms.readers.table_reader import read_ahead

_READS_AHEAD = 1

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_MAPPED_BYTES, _KEPT_BYTES = 2 << 20, 32 << 20


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


def read_numbers(
    layout: ReadableLayout,
    select: Callable[[], Iterable[Selected | Finding]],
    period: tuple[int, int],
    several_rows: Callable[[], frozenset[Series]] = frozenset,
) -> Iterator[PointBatch | Rejected]:
    """The finite numbers of rows in large batches, each instant once, and refusals of other values.

    A thread reads and decodes while the caller accumulates the previous batch.

    Args:
      select: yields the rows, which may have points of other times too.
      period: [start, end) in ms.
      several_rows: see `ReadableLayout.several_rows`; both are called by that thread.
    """
    reads = functools.partial(_reads, layout, select, period, several_rows)
    for read in ahead(reads, _READS_AHEAD):
        if isinstance(read, Finding):
            yield Rejected(read.key, Reason.CORRUPT_FILE, read.text, Stage.READ, read.table)
            continue
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


def _reads(
    layout: ReadableLayout,
    select: Callable[[], Iterable[Selected | Finding]],
    period: tuple[int, int],
    several_rows: Callable[[], frozenset[Series]],
) -> Iterator[_HourRows | Finding]:
    """The rows, with their points in the period."""
    apart: dict[Series, list[Selected]] = {selected: [] for selected in several_rows()}
    for selected_rows in read_ahead(select()):
        if isinstance(selected_rows, Finding):
            yield selected_rows
            continue
        for selected in selected_rows:
            if selected.series in apart:
                apart[selected.series].append(selected)
        yield _decoded(
            layout, [selected for selected in selected_rows if selected.series not in apart], *period
        )
    for rows in apart.values():
        read = _decoded(layout, rows, *period)
        batch = read.decoded.batch
        batch = batch.take(latest_points(batch.index, batch.times_ms, batch.arrivals_ms))
        yield read._replace(decoded=dataclasses.replace(read.decoded, batch=batch))


def _decoded(layout: ReadableLayout, rows: Sequence[Selected], start_ms: int, end_ms: int) -> _HourRows:
    """Rows, with their points in [start_ms, end_ms)."""
    decoded, outside = layout.decode_rows(rows), frozenset[int]()
    if decoded.outside:  # other rows may have points of the same intervals, which would be written twice
        outside = frozenset(decoded.outside)
        decoded = layout.decode_rows(
            [selected for position, selected in enumerate(rows) if position not in outside]
        )
    return _HourRows(
        len(rows), decoded.within(start_ms, end_ms), [rows[position].row for position in sorted(outside)]
    )


@functools.cache
def give_back_memory() -> None:
    """Makes this process return freed memory: blocks of a megabyte or more, and all that is above 8 MB.

    By default glibc raises the first limit to 32 MB when a block of that size is freed, and then keeps up to
    twice as much in each arena (about one per thread). Numpy's arrays are such blocks, so a worker would hold
    several times the memory that it uses. If the second limit were a megabyte too, the pages of most smaller
    arrays would be given back and asked for again, which takes a third of the time of decoding. Without glibc
    (musl, macOS) this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
