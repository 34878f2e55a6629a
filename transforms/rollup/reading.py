"""The points of a chunk."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from schema.layouts import DecodedRows, Finding, Layout, Row, Selected
from schema.points import PointBatch, Reason, Rejected, Series, Stage
from schema.rollup.accumulate import aggregatable
from schema.rollup.plan import Plan
from transforms import metrics
from transforms.ahead import ahead
from transforms.bigtable.limits import refused_row
from transforms.bigtable.reader import read_ahead
from transforms.chunks import Chunk

_READS_AHEAD = 1


class _Read(NamedTuple):
    """Rows that were decoded together.

    Attributes:
      rows: how many they are.
      outside: those of them that were left out: they have points of another time than their own.
    """

    rows: int
    decoded: DecodedRows
    outside: Sequence[Row]


class Span(NamedTuple):
    """[start_ms, end_ms)."""

    start_ms: int
    end_ms: int


def span_of(plan: Plan, chunk: Chunk) -> Span:
    """The time of a chunk, as far as the plan wants it."""
    return Span(max(plan.start_ms, chunk.start_s * 1000), min(plan.end_ms, chunk.end_s * 1000))


def read_numbers(
    layout: Layout,
    select: Callable[[], Iterable[Selected | Finding]],
    span: Span,
    several_rows: Callable[[], frozenset[Series]] = frozenset,
) -> Iterator[PointBatch | Rejected]:
    """The finite numbers of rows, each instant once, in large batches, and the refusal of the rest.

    A thread reads and decodes, while the caller adds up what came before.

    Args:
      select: gives the rows, which may have points of other times too.
      several_rows: see `Layout.several_rows`; both are called by that thread.
    """
    reads = functools.partial(_reads, layout, select, span, several_rows)
    for found in ahead(reads, _READS_AHEAD):
        if isinstance(found, Finding):
            yield Rejected(found.key, Reason.CORRUPT_FILE, found.text, Stage.READ, found.table)
            continue
        batch, damage, skipped = found.decoded.batch, found.decoded.damage, found.decoded.skipped
        metrics.count("messages_read", found.rows)
        metrics.count("points_read", len(batch))
        metrics.count_rollup("cells_skipped", skipped)
        for row, text in damage:
            yield refused_row(row, Reason.CORRUPT_FILE, text, Stage.READ)
        for row in found.outside:
            yield refused_row(row, Reason.CORRUPT_FILE, "points of another hour than the row's", Stage.READ)
        good, rejected = aggregatable(batch)
        yield from rejected
        if len(good):
            yield good


def _reads(
    layout: Layout,
    select: Callable[[], Iterable[Selected | Finding]],
    span: Span,
    several_rows: Callable[[], frozenset[Series]],
) -> Iterator[_Read | Finding]:
    """The rows, with those of their points that are in the span."""
    apart: dict[Series, list[Selected]] = {one: [] for one in several_rows()}
    for found in read_ahead(select()):
        if isinstance(found, Finding):
            yield found
            continue
        for one in found:
            if one.series in apart:
                apart[one.series].append(one)
        yield _decoded(layout, [one for one in found if one.series not in apart], *span)
    for rows in apart.values():
        read = _decoded(layout, rows, *span)
        batch = _each_instant_once(read.decoded.batch)
        yield read._replace(decoded=dataclasses.replace(read.decoded, batch=batch))


def _decoded(layout: Layout, rows: Sequence[Selected], start_ms: int, end_ms: int) -> _Read:
    """Rows, with their points in [start_ms, end_ms)."""
    decoded, outside = layout.decode_rows(rows), frozenset[int]()
    if decoded.outside:  # intervals of theirs may lie in other rows too, and would be written twice
        outside = frozenset(decoded.outside)
        decoded = layout.decode_rows([one for at, one in enumerate(rows) if at not in outside])
    return _Read(len(rows), decoded.within(start_ms, end_ms), [rows[at].row for at in sorted(outside)])


def _each_instant_once(batch: PointBatch) -> PointBatch:
    """The points of one series, of each instant the one that arrived last."""
    order = np.lexsort((batch.arrivals_ms, batch.times_ms))
    times_ms = batch.times_ms[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = times_ms[1:] != times_ms[:-1]
    return batch.take(order[is_last])
