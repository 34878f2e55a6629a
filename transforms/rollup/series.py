"""Rollups of layouts without rollup tables: ordinary points of ordinary series, in tables of their own.

An interval has a layout of its own, the same with another table prefix. Accumulators travel by series, their
numbers then take the way of all points (index, encode, pack); what stands in the range and is not written
again is deleted in the mutation that writes the rest of the row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
from apache_beam.pvalue import PCollection, TaggedOutput

from schema.layouts import Cell, Finding, Layout, Packing, RollupNames, Row, Selected, Selection
from schema.layouts.base import SeriesKey, UnknownNameError
from schema.points import PointBatch, RefusedError, Rejected, Series, Stage
from schema.rollup.accumulator import Accumulator
from schema.rollup.as_series import rollup_points
from schema.rollup.config import RollupConfig
from schema.rollup.pieces import packed_series, unpacked
from schema.rollup.plan import IntervalPlan, Plan
from transforms import metrics
from transforms.assign import KeyedBatch
from transforms.bigtable.reader import TableReader
from transforms.bigtable.splits import WHOLE, layout_splits, within
from transforms.bigtable.target import Target
from transforms.chunks import Chunk
from transforms.index import IndexFn
from transforms.memory import give_back_memory
from transforms.pack import EncodeFn, RowKey, mutations, over_standing
from transforms.rejected import REJECTED, RejectedOutput, refuse, refusing, windowed
from transforms.rollup.reading import read_numbers, span_of
from transforms.write import WriteRows, data_tables

SeriesText = bytes
"""A series as JSON: a key that is the same bytes wherever it is made."""

_MERGED_BYTES = 8 << 20
"""Of accumulators that are turned into points together."""

_CACHE = 1_000_000

_DATA, _STANDING = "data", "standing"


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesRollupJob:
    """A configuration, a range of time, and where the tables are.

    Attributes:
      layout: of the points.
      plan: what of each interval is written.
      layouts: by interval the layout that its rollups are written in.
      metrics: the only ones to be rolled up; None for all that the configuration names.
    """

    target: Target
    layout: Layout
    config: RollupConfig
    plan: Plan
    layouts: Mapping[str, Layout]
    metrics: frozenset[str] | None = None

    @property
    def names(self) -> RollupNames:
        """How rollups are named."""
        assert self.layout.rollup_names is not None
        return self.layout.rollup_names

    @property
    def data_table(self) -> str:
        """The table of the points."""
        return data_tables(self.layout)[0]

    def stored_metrics(self, interval: str) -> Sequence[str | None]:
        """The metrics that hold the rollups of an interval; None stands for every one."""
        if self.metrics is None:
            return [None]
        wanted = ((Series(metric, ()), name) for metric in self.metrics for name in self.config.computed)
        return sorted({self.names.stored(series, interval, name).metric for series, name in wanted})


class SeriesChunksFn(beam.DoFn):
    """Anything in; the chunks of the data table out: ranges of its keys, or one for each metric."""

    def __init__(self, job: SeriesRollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Chunk]:
        """See the class."""
        job = self._job
        start, end = job.plan.start_ms // 1000, -(-job.plan.end_ms // 1000)
        if job.metrics is not None:
            for metric in sorted(job.metrics):
                yield Chunk((metric,), (), start, end, WHOLE)
            return
        for keys in layout_splits(job.target, job.layout):
            yield Chunk((), (), start, end, keys)


class AccumulateSeriesFn(beam.DoFn):
    """`Chunk` in; (series, packed accumulators) out, an output for each interval; refusals to `REJECTED`."""

    def __init__(self, job: SeriesRollupJob) -> None:
        self._job = job

    def setup(self) -> None:
        """Makes the process give back memory."""
        give_back_memory()

    def process(self, chunk: Chunk) -> Iterator[TaggedOutput[Any, Any]]:
        """See the class."""
        job = self._job
        lengths = [one.interval.seconds for one in job.plan.intervals]
        held = Accumulator(lengths, ends=job.config.has_ends)
        span = span_of(job.plan, chunk)
        metric = chunk.metrics[0] if chunk.metrics else None
        own = Selection(metric, {}, span.start_ms, span.end_ms - 1)
        reader = within(TableReader(job.target), job.layout, chunk.keys)
        select = functools.partial(job.layout.select, own, reader)
        several_rows = functools.partial(job.layout.several_rows, own, reader)
        for batch in read_numbers(job.layout, select, span, several_rows):
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            wanted = np.array([job.config.takes(series) for series in batch.series], np.bool_)[batch.index]
            if wanted.any():
                held.add(batch if wanted.all() else batch.take(np.flatnonzero(wanted)))
            if held.is_full:
                yield from self._taken(held)
        yield from self._taken(held)

    def _taken(self, held: Accumulator) -> Iterator[TaggedOutput[Any, Any]]:
        found = held.take()
        if found is None:
            return
        by_length = found.by_length()
        for one in self._job.plan.intervals:
            buckets = by_length[one.interval.seconds].within(one.start_s * 1000, one.end_s * 1000)
            for number, packed in packed_series(buckets):
                element = text_of(buckets.series[number]), packed
                yield TaggedOutput(one.interval.interval, element)


def text_of(series: Series) -> SeriesText:
    """A series as bytes."""
    return msgspec.json.encode((series.metric, series.tags, series.resources))


def series_of(text: SeriesText) -> Series:
    """The series of `text_of`."""
    metric, tags, resources = msgspec.json.decode(text)
    return Series(metric, tuple(map(tuple, tags)), tuple(map(tuple, resources)))


class RollupPointsFn(beam.DoFn):
    """(series, packed accumulators of all chunks) in; `KeyedBatch` of their rollups out."""

    def __init__(self, job: SeriesRollupJob, plan: IntervalPlan) -> None:
        self._job, self._plan = job, plan
        self._layout = job.layouts[plan.interval.interval]
        self._held: list[tuple[Series, list[bytes]]] = []
        self._size = 0

    def start_bundle(self) -> None:
        """Forgets what a bundle that failed has left."""
        self._held, self._size = [], 0

    def process(self, group: tuple[SeriesText, Iterable[bytes]]) -> Iterator[KeyedBatch | RejectedOutput]:
        """See the class."""
        text, pieces = group
        found = list(pieces)
        self._held.append((series_of(text), found))
        self._size += sum(map(len, found))
        if self._size >= _MERGED_BYTES:
            yield from self._points()

    def finish_bundle(self) -> Iterator[Any]:
        """What is left."""
        yield from windowed(self._points())

    def _points(self) -> Iterator[KeyedBatch | RejectedOutput]:
        if not self._held:
            return
        interval, config = self._plan.interval.interval, self._job.config
        buckets = unpacked(self._held, self._plan.interval.seconds, ends=config.has_ends)
        self._held, self._size = [], 0
        metrics.count_rollup(f"buckets_{interval}", len(buckets))
        batch, rejected = rollup_points(buckets, interval, config.computed, self._job.names)
        for one in rejected:
            yield refuse(one)
        if batch is not None:
            keys, batch, rejected = _keys(self._layout, batch)
            for one in rejected:
                yield refuse(one)
            yield KeyedBatch(batch, keys)


def _keys(layout: Layout, batch: PointBatch) -> tuple[list[SeriesKey | None], PointBatch, list[Rejected]]:
    """(the keys of a batch's series, the points of those that have one, refusals of the other series)."""
    keys: list[SeriesKey | None] = []
    rejected = []
    for series in batch.series:
        error: RefusedError | None = layout.refuse(series)
        keys.append(layout.series_key(series, {}) if error is None else None)
        if error is not None:
            rejected.append(Rejected(str(series).encode(), error.reason, error.message, Stage.ENCODE))
    if rejected:
        good = np.array([key is not None for key in keys], np.bool_)
        batch = batch.take(np.flatnonzero(good[batch.index]))
    return keys, batch, rejected


class StandingSeriesFn(beam.DoFn):
    """Key ranges in; ((table, row key), its cells that are rollups of the range) out."""

    def __init__(self, job: SeriesRollupJob, plan: IntervalPlan) -> None:
        self._job, self._plan = job, plan
        self._layout = job.layouts[plan.interval.interval]

    def process(self, _: object) -> Iterator[tuple[RowKey, list[Cell]]]:
        """See the class."""
        start_ms, end_ms = self._plan.start_s * 1000, self._plan.end_s * 1000
        for found in self._selected(start_ms, end_ms):
            if isinstance(found, Finding) or not self._is_ours(found.series):
                continue
            times_ms = self._layout.decode(found.row, found.series).batch.times_ms
            cells = found.row.cells
            if len(times_ms) < len(cells) or not ((times_ms >= start_ms) & (times_ms < end_ms)).all():
                cells = [cell for cell in cells if self._is_inside(found.row, cell, found.series)]
            yield (found.row.table, found.row.key), list(cells)

    def _selected(self, start_ms: int, end_ms: int) -> Iterator[Selected | Finding]:
        """The rows of the job's metrics."""
        reader = TableReader(self._job.target)
        for metric in self._job.stored_metrics(self._plan.interval.interval):
            with contextlib.suppress(UnknownNameError):  # nothing of it stands there
                yield from self._layout.select(Selection(metric, {}, start_ms, end_ms - 1), reader)

    def _is_ours(self, stored: Series) -> bool:
        source = self._job.names.source(stored, self._plan.interval.interval)
        config = self._job.config
        return source is not None and config.takes(source[0]) and source[1] in config.computed

    def _is_inside(self, row: Row, cell: Cell, series: Series) -> bool:
        times_ms = self._layout.decode(row._replace(cells=[cell]), series).batch.times_ms
        return bool(len(times_ms)) and self._plan.start_s * 1000 <= times_ms[0] < self._plan.end_s * 1000


class PackOverFn(beam.DoFn):
    """((table, row key), pieces and standing cells) in; a `Row` out that leaves nothing else."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def process(self, group: tuple[RowKey, Mapping[str, Iterable[Any]]]) -> Iterator[Row | RejectedOutput]:
        """See the class."""
        (table, key), found = group
        pieces: Sequence[bytes] = list(found[_DATA])
        row = self._layout.pack(table, key, pieces, Packing.POINTS) if pieces else Row(table, key, [])
        standing = [cell for cells in found[_STANDING] for cell in cells]
        yield from mutations([over_standing(row, standing)])


def store_interval(
    root: beam.Pipeline,
    job: SeriesRollupJob,
    plan: IntervalPlan,
    accumulated: PCollection[Any],
    *,
    write: bool,
) -> list[PCollection[Rejected]]:
    """Adds the steps that store the rollups of one interval; gives what they refuse."""
    name = plan.interval.interval
    layout = job.layouts[name]
    batches = (
        accumulated
        | f"GroupPerSeries[{name}]" >> beam.GroupByKey()
        | f"Points[{name}]" >> refusing(RollupPointsFn(job, plan), KeyedBatch)
    )
    index = IndexFn(job.target, layout, _CACHE, dry_run=not write)
    indexed = batches.main | f"Index[{name}]" >> refusing(index, KeyedBatch)
    encoded = indexed.main | f"Encode[{name}]" >> refusing(EncodeFn(layout), tuple[RowKey, bytes])
    standing_fn = beam.ParDo(StandingSeriesFn(job, plan)).with_output_types(tuple[RowKey, list[Cell]])
    standing = (
        root | f"Once[{name}]" >> beam.Create([None], reshuffle=False) | f"Standing[{name}]" >> standing_fn
    )
    rows = (
        {_DATA: encoded.main, _STANDING: standing}
        | f"GroupPerRow[{name}]" >> beam.CoGroupByKey()
        | f"Pack[{name}]" >> refusing(PackOverFn(layout), Row)
    )
    refused = [batches[REJECTED], indexed[REJECTED], encoded[REJECTED], rows[REJECTED]]
    if write:
        writer = WriteRows(job.target, data_tables(layout), "direct", Packing.POINTS)
        refused.append(rows.main | f"Write[{name}]" >> writer)
    return refused


def accumulate_series(root: beam.Pipeline, job: SeriesRollupJob) -> Any:
    """Adds the steps that read; gives an output for each interval, and `REJECTED`."""
    intervals = [one.interval.interval for one in job.plan.intervals]
    return (
        root
        | "Once" >> beam.Create([None], reshuffle=False)
        | "Chunks" >> beam.ParDo(SeriesChunksFn(job)).with_output_types(Chunk)
        | "SpreadChunks" >> beam.Reshuffle()
        | "Accumulate" >> beam.ParDo(AccumulateSeriesFn(job)).with_outputs(REJECTED, *intervals)
    )
