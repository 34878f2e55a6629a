"""Rollups of layouts without rollup tables: ordinary points of ordinary series, in separate tables.

Each interval has its own layout: the same one with another table prefix. Accumulators are grouped by series;
their numbers are then stored like any points (index, encode, pack). Existing cells of the period that are not
written again are deleted in the mutation that writes the row.
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

from timebeam.schema.bits.reasons import RefusedError
from timebeam.schema.core.contract import Layout, RollupSeries, SeriesIndex
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.reading import Finding, Selected, Selection, UnknownNameError
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import WHOLE_TABLE, Cell, Row
from timebeam.schema.core.writing import Packing, SeriesKey
from timebeam.schema.rollup.accumulate import Accumulator
from timebeam.schema.rollup.accumulators import packed_series, unpacked
from timebeam.schema.rollup.as_series import rollup_points
from timebeam.schema.rollup.config import RollupConfig
from timebeam.schema.rollup.day_plan import IntervalPlan, RollupPart
from timebeam.schema.stores import capability
from timebeam.transforms.bigtable.reader import ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import REJECTED, RejectedOutput, refuse, refusing
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.buffered import BufferedDoFn
from timebeam.transforms.ingest.assign import KeyedBatch
from timebeam.transforms.ingest.group import RowKey
from timebeam.transforms.ingest.index import IndexFn
from timebeam.transforms.ingest.pack import EncodeFn, mutations, overwriting
from timebeam.transforms.ingest.write import StoreRows, data_tables
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.table_reader import TableReader, within
from timebeam.transforms.rollup.chunk_points import NumberedChunk, NumberReader, give_back_memory, read_period
from timebeam.transforms.rollup.clear_marks import when_complete

SeriesText = bytes
"""A series as JSON: a deterministic key."""

_MERGED_BYTES = 8 << 20
"""Bytes of accumulators that become points together."""

_CACHE = 1_000_000

_DATA, _EXISTING = "data", "standing"  # in step names


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesRollupJob:
    """A configuration, a range of time, and where the tables are.

    Attributes:
      layout: of the points.
      parts: the intervals to write, without overlap for any metric.
      layouts: by interval, the layout of its rollups.
    """

    target: Target
    layout: RollupSeries
    config: RollupConfig
    parts: Sequence[RollupPart]
    layouts: Mapping[str, Layout]

    @property
    def data_table(self) -> str:
        """The table of the points."""
        return data_tables(self.layout)[0]

    @property
    def intervals(self) -> Sequence[str]:
        """The intervals of all parts, shortest first."""
        names = {plan.interval.interval for part in self.parts for plan in part.plan.intervals}
        return [interval.interval for interval in self.config.rollups if interval.interval in names]

    def stored_metrics(self, part: RollupPart, interval: str) -> Sequence[str | None]:
        """The metrics that the rollups of an interval are stored under; None means all metrics."""
        if part.metrics is None:
            return [None]
        series_and_names = (
            (Series(metric.decode(), ()), name) for metric in part.metrics for name in self.config.computed
        )
        stored = self.layout.rollup_names.stored
        return sorted({stored(series, interval, name).metric for series, name in series_and_names})


class _SeriesChunksFn(beam.DoFn):
    """Anything in; `NumberedChunk` of the data table out: key ranges, or one chunk for each metric."""

    def __init__(self, job: SeriesRollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[NumberedChunk]:
        return metrics.planned(self._chunks())

    def _chunks(self) -> Iterator[NumberedChunk]:
        job = self._job
        for number, part in enumerate(job.parts):
            start, end = part.plan.start_ms // 1000, -(-part.plan.end_ms // 1000)
            if part.metrics is not None:
                for metric in sorted(part.metrics):
                    chunk = Chunk((metric.decode(),), (), start, end, WHOLE_TABLE)
                    yield NumberedChunk(number, chunk)
                continue
            cuts = split_keys(job.target, job.data_table, cut_at=job.layout.cut_at)
            for keys in ranges_between(cuts):
                yield NumberedChunk(number, Chunk((), (), start, end, keys))


class _AccumulateSeriesFn(beam.DoFn):
    """`NumberedChunk` in; (series, packed accumulators) out, an output for each interval, and refusals."""

    def __init__(self, job: SeriesRollupJob) -> None:
        self._job = job

    def setup(self) -> None:
        """Makes the process give back memory."""
        give_back_memory()

    def process(self, numbered: NumberedChunk) -> Iterator[TaggedOutput[Any, Any]]:
        job, chunk = self._job, numbered.chunk
        intervals = job.parts[numbered.part].plan.intervals
        accumulator = Accumulator((plan.interval.seconds for plan in intervals), ends=job.config.has_ends)
        period = read_period(job.parts[numbered.part].plan, chunk)
        metric = chunk.metrics[0] if chunk.metrics else None
        selection = Selection(metric, {}, period[0], period[1] - 1)
        reader = within(TableReader(job.target), job.layout, chunk.keys)
        select = functools.partial(job.layout.select, selection, reader)
        several_rows = functools.partial(job.layout.several_rows, selection, reader)
        for batch in NumberReader(job.layout, select, period, several_rows):
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            is_rolled_up = np.array([job.config.takes(series) for series in batch.series], np.bool_)[
                batch.index
            ]
            if is_rolled_up.any():
                accumulator.add(batch if is_rolled_up.all() else batch.take(np.flatnonzero(is_rolled_up)))
            if accumulator.is_full:
                yield from _packed(accumulator, intervals)
        yield from _packed(accumulator, intervals)
        metrics.work_done()


def _packed(
    accumulator: Accumulator, intervals: Sequence[IntervalPlan]
) -> Iterator[TaggedOutput[Any, tuple[SeriesText, bytes]]]:
    """The accumulators of the points so far, by series, to the outputs of their intervals."""
    accumulated = accumulator.take()
    if accumulated is None:
        return
    by_length = accumulated.by_length()
    for plan in intervals:
        buckets = by_length[plan.interval.seconds].within(plan.start_s * 1000, plan.end_s * 1000)
        for number, packed in packed_series(buckets):
            element = text_of(buckets.series[number]), packed
            yield TaggedOutput(plan.interval.interval, element)


def text_of(series: Series) -> SeriesText:
    """A series as bytes."""
    return msgspec.json.encode((series.metric, series.tags, series.resources))


def series_of(text: SeriesText) -> Series:
    """The series of `text_of`."""
    metric, tags, resources = msgspec.json.decode(text)
    return Series(metric, tuple(map(tuple, tags)), tuple(map(tuple, resources)))


class _RollupPointsFn(BufferedDoFn[tuple[Series, list[bytes]]]):
    """(series, packed accumulators of all chunks) in; `KeyedBatch` of their rollups out."""

    most_weight = _MERGED_BYTES

    def __init__(self, job: SeriesRollupJob, interval: str) -> None:
        self._job, self._interval = job, interval
        (self._seconds,) = (each.seconds for each in job.config.rollups if each.interval == interval)
        self._layout = job.layouts[interval]

    def process(self, group: tuple[SeriesText, Iterable[bytes]]) -> Iterable[Any]:
        text, packed = group
        return self.add((series_of(text), list(packed)))

    def weight(self, group: tuple[Series, list[bytes]]) -> int:
        return sum(map(len, group[1]))

    def handle(self, groups: list[tuple[Series, list[bytes]]]) -> Iterator[KeyedBatch | RejectedOutput]:
        interval, config = self._interval, self._job.config
        buckets = unpacked(groups, self._seconds, ends=config.has_ends)
        metrics.count_rollup(f"buckets_{interval}", len(buckets))
        batch, rejected = rollup_points(buckets, interval, config.computed, self._job.layout.rollup_names)
        for refusal in rejected:
            yield refuse(refusal)
        if batch is not None:
            keys, batch, rejected = _keys(self._layout, batch)
            for refusal in rejected:
                yield refuse(refusal)
            yield KeyedBatch(batch, keys)


def _keys(layout: Layout, batch: PointBatch) -> tuple[list[SeriesKey | None], PointBatch, list[Rejected]]:
    """(the key of each series of a batch, the points of series with a key, refusals of other series)."""
    keys: list[SeriesKey | None] = []
    rejected = []
    for series in batch.series:
        error: RefusedError | None = layout.refuse(series)
        keys.append(layout.series_key(series, {}) if error is None else None)
        if error is not None:
            rejected.append(Rejected(str(series).encode(), error.reason, error.message, Stage.ENCODE))
    if rejected:
        has_key = np.array([key is not None for key in keys], np.bool_)
        batch = batch.take(np.flatnonzero(has_key[batch.index]))
    return keys, batch, rejected


class _ExistingCellsFn(beam.DoFn):
    """Anything in; ((table, row key), its cells that are rollups of the range of a part) out."""

    def __init__(self, job: SeriesRollupJob, interval: str) -> None:
        self._job, self._interval = job, interval
        self._layout = job.layouts[interval]

    def process(self, _: object) -> Iterator[tuple[RowKey, list[Cell]]]:
        for part in self._job.parts:
            for plan in part.plan.intervals:
                if plan.interval.interval == self._interval:
                    yield from self._existing(part, plan.start_s * 1000, plan.end_s * 1000)

    def _existing(self, part: RollupPart, start_ms: int, end_ms: int) -> Iterator[tuple[RowKey, list[Cell]]]:
        for selected in self._selected(part, start_ms, end_ms):
            if isinstance(selected, Finding) or not self._is_ours(selected.series):
                continue
            times_ms = self._layout.decode_rows([selected]).batch.times_ms
            cells = selected.row.cells
            if len(times_ms) < len(cells) or not ((times_ms >= start_ms) & (times_ms < end_ms)).all():
                cells = [
                    cell
                    for cell in cells
                    if start_ms <= self._time_ms(selected.row, cell, selected.series) < end_ms
                ]
            yield (selected.row.table, selected.row.key), list(cells)

    def _selected(self, part: RollupPart, start_ms: int, end_ms: int) -> Iterator[Selected | Finding]:
        """The rows of the metrics of a part."""
        reader = TableReader(self._job.target)
        for metric in self._job.stored_metrics(part, self._interval):
            with contextlib.suppress(UnknownNameError):  # no row of it exists
                yield from self._layout.select(Selection(metric, {}, start_ms, end_ms - 1), reader)

    def _is_ours(self, stored: Series) -> bool:
        source = self._job.layout.rollup_names.source(stored, self._interval)
        config = self._job.config
        return source is not None and config.takes(source[0]) and source[1] in config.computed

    def _time_ms(self, row: Row, cell: Cell, series: Series) -> int:
        """The time of the point of a cell; -1 if it has none."""
        times_ms = self._layout.decode_rows([Selected(row._replace(cells=[cell]), series)]).batch.times_ms
        return int(times_ms[0]) if len(times_ms) else -1


class _PackOverFn(beam.DoFn):
    """((table, row key), packed points and existing cells) in; a `Row` out that replaces the row."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def process(self, group: tuple[RowKey, Mapping[str, Iterable[Any]]]) -> Iterator[Row | RejectedOutput]:
        (table, key), inputs = group
        packed: Sequence[bytes] = list(inputs[_DATA])
        row = self._layout.pack(table, key, packed, Packing.POINTS) if packed else Row(table, key, [])
        existing = [cell for cells in inputs[_EXISTING] for cell in cells]
        yield from mutations([overwriting(row, existing)])


def store_interval(
    root: beam.Pipeline,
    job: SeriesRollupJob,
    name: str,
    accumulated: PCollection[Any],
) -> list[PCollection[Rejected]]:
    """Adds the steps that store the rollups of an interval, by its name; returns their refusals."""
    layout = job.layouts[name]
    batches = (
        accumulated
        | f"GroupPerSeries[{name}]" >> beam.GroupByKey()
        | f"Points[{name}]" >> refusing(_RollupPointsFn(job, name), KeyedBatch)
    )
    index = IndexFn(job.target, capability(layout, SeriesIndex), _CACHE, dry_run=False)
    indexed = batches.main | f"Index[{name}]" >> refusing(index, KeyedBatch)
    encoded = indexed.main | f"Encode[{name}]" >> refusing(
        EncodeFn(layout, Packing.POINTS), tuple[RowKey, bytes]
    )
    existing_fn = beam.ParDo(_ExistingCellsFn(job, name)).with_output_types(tuple[RowKey, list[Cell]])
    existing = (
        root | f"Once[{name}]" >> beam.Create([None], reshuffle=False) | f"Standing[{name}]" >> existing_fn
    )
    rows = (
        {_DATA: encoded.main, _EXISTING: existing}
        | f"GroupPerRow[{name}]" >> beam.CoGroupByKey()
        | f"Pack[{name}]" >> refusing(_PackOverFn(layout), Row)
    )
    writer = StoreRows(job.target, data_tables(layout), "direct", Packing.POINTS)
    written = rows.main | f"Write[{name}]" >> writer
    return [batches[REJECTED], indexed[REJECTED], encoded[REJECTED], rows[REJECTED], written]


def accumulate_series(root: beam.Pipeline, job: SeriesRollupJob, after: PCollection[Any]) -> Any:
    """Adds the steps that read points, after another collection is complete.

    Returns:
      An output for each interval, and `REJECTED`.
    """
    return (
        when_complete(root | "Once" >> beam.Create([None], reshuffle=False), after)
        | "Chunks" >> beam.ParDo(_SeriesChunksFn(job)).with_output_types(NumberedChunk)
        | "SpreadChunks" >> beam.Reshuffle()
        | "Accumulate" >> beam.ParDo(_AccumulateSeriesFn(job)).with_outputs(REJECTED, *job.intervals)
    )
