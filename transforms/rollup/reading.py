"""The points of a chunk, and their accumulators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from schema.layouts import Finding, Layout, Reader, Selected, Selection
from schema.points import PointBatch, Reason, Rejected, Series, Stage
from schema.rollup.accumulate import accumulate, aggregatable
from schema.rollup.buckets import Buckets, merge
from schema.rollup.plan import Plan
from transforms import metrics
from transforms.bigtable.limits import refused_row
from transforms.bigtable.reader import read_ahead
from transforms.bigtable.splits import within
from transforms.chunks import Chunk

MOST_BUCKETS = 400_000
"""Accumulators of the finest intervals that are held at once, of some 150 bytes each."""

_MOST_PARTS = 8


def read_chunk(layout: Layout, reader: Reader, plan: Plan, chunk: Chunk) -> Iterator[PointBatch | Rejected]:
    """The finite numbers of a chunk, each instant once, in large batches, and the refusal of the rest."""
    for batch in _batches(layout, within(reader, layout, chunk.keys), plan, chunk):
        if isinstance(batch, Rejected):
            yield batch
            continue
        good, rejected = aggregatable(batch)
        yield from rejected
        if len(good):
            yield good


def _batches(layout: Layout, reader: Reader, plan: Plan, chunk: Chunk) -> Iterator[PointBatch | Rejected]:
    start_ms, end_ms = max(plan.start_ms, chunk.start_s * 1000), min(plan.end_ms, chunk.end_s * 1000)
    wanted = Selection(chunk.metric, {}, start_ms, end_ms - 1)
    apart: dict[Series, list[Selected]] = {one: [] for one in layout.several_rows(wanted, reader)}
    for found in read_ahead(layout.select(wanted, reader)):
        if isinstance(found, Finding):
            yield Rejected(found.key, Reason.CORRUPT_FILE, found.text, Stage.READ, found.table)
            continue
        for one in found:
            if one.series in apart:
                apart[one.series].append(one)
        rows = [one for one in found if one.series not in apart] if apart else found
        yield from _decoded(layout, rows, start_ms, end_ms)
    for rows in apart.values():
        for batch in _decoded(layout, rows, start_ms, end_ms):
            yield batch if isinstance(batch, Rejected) else _each_instant_once(batch)


def _decoded(
    layout: Layout, rows: Sequence[Selected], start_ms: int, end_ms: int
) -> Iterator[PointBatch | Rejected]:
    """The points of rows in [start_ms, end_ms), and what could not be read of them."""
    metrics.count("messages_read", len(rows))
    decoded = layout.decode_rows(rows)
    metrics.count_rollup("cells_skipped", decoded.skipped)
    for row, text in decoded.damage:
        yield refused_row(row, Reason.CORRUPT_FILE, text, Stage.READ)
    batch = decoded.batch
    inside = (batch.times_ms >= start_ms) & (batch.times_ms < end_ms)
    if not inside.all():
        batch = batch.take(np.flatnonzero(inside))
    metrics.count("points_read", len(batch))
    if len(batch):
        yield batch


def _each_instant_once(batch: PointBatch) -> PointBatch:
    """The points of one series, of each instant the one that arrived last."""
    order = np.lexsort((batch.arrivals_ms, batch.times_ms))
    times_ms = batch.times_ms[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = times_ms[1:] != times_ms[:-1]
    return batch.take(order[is_last])


class Accumulator:
    """The accumulators of all intervals of a plan, of the points added so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._finest = sorted({one.interval.seconds for one in plan.intervals if one.source is None})
        self._parts: dict[int, list[Buckets]] = {length: [] for length in self._finest}

    @property
    def is_full(self) -> bool:
        """Whether it is time to take what is there: memory is bounded, however many series there are."""
        return sum(len(part) for parts in self._parts.values() for part in parts) >= MOST_BUCKETS

    def add(self, batch: PointBatch) -> None:
        """Adds finite numbers."""
        for length, parts in self._parts.items():
            parts.append(accumulate(batch, length))
            if len(parts) > _MOST_PARTS:
                self._parts[length] = [merge(parts)]

    def take(self) -> list[Buckets]:
        """The accumulators of each interval of the plan, in its order; forgets them."""
        if not self._parts or not next(iter(self._parts.values())):
            return []
        found = {length: merge(parts) for length, parts in self._parts.items()}
        self._parts = {length: [] for length in self._finest}
        for one in self._plan.intervals:
            if one.source is not None:
                found[one.interval.seconds] = found[one.source.seconds].coarser(one.interval.seconds)
        return [
            found[one.interval.seconds].within(one.start_s * 1000, one.end_s * 1000)
            for one in self._plan.intervals
        ]
