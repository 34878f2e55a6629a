"""Rollups in OpenTSDB's tables: points accumulated by chunk of the raw table, cells, existing cells.

| accumulators of | go |
|---|---|
| intervals that divide an hour, of single series: a row has all their points | to the writer, as mutations |
| intervals, of series or groups, whose points are all in the chunk | the same, at the end of the chunk |
| other intervals | to the shuffle, as fragments |

Only intervals that span several chunks are shuffled: long intervals and groups of large metrics.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from apache_beam.pvalue import TaggedOutput

from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow
from timebeam.schema.core.selection import Reader
from timebeam.schema.rollup.accumulate import Accumulated, Accumulator
from timebeam.schema.rollup.buckets import Buckets, merge, row_fragments, unpacked
from timebeam.schema.rollup.day_plan import IntervalPlan, RollupPlan
from timebeam.schema.rollup.rollup_config import RollupInterval
from timebeam.schema.stores.opentsdb.keys import SPAN_S, row_key, row_keys
from timebeam.schema.stores.opentsdb.rollup_tables import EncodedRollups, stale_qualifiers
from timebeam.schema.stores.opentsdb.select import select_metrics
from timebeam.transforms.bigtable.read_ranges import sampled
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, reject
from timebeam.transforms.ingest.encode_group_pack import RowKey, SharedSeriesKeys
from timebeam.transforms.read.chunks import Chunk, hour_chunks
from timebeam.transforms.read.table_reader import RememberingReader, TableReader, within
from timebeam.transforms.rollup.read_chunk import (
    AccumulateFn,
    ChunkWork,
    NumberedChunk,
    NumberReader,
    read_period,
)
from timebeam.transforms.rollup.rollup_graph import (
    FRAGMENTS,
    SINGLE,
    ExistingRange,
    Fragment,
    Group,
    RollupEncoder,
)
from timebeam.transforms.rollup.rollup_job import (
    OutputTable,
    RollupJob,
    RollupSeriesKeys,
    count_written,
    encode,
    over,
    rollup_tables,
    row_mutations,
    shared_intervals,
)
from timebeam.transforms.rollup.stale_cells import (
    LATER,
    STANDING,
    ChunkExisting,
    existing_fragments,
    qualifiers_of,
)

_TABLES_AT_ONCE = 2  # of existing cells that are read


@dataclasses.dataclass(frozen=True, slots=True)
class TablesEncoder(RollupEncoder):
    """A rollup into OpenTSDB's tables; keys of fragments have tables without prefix."""

    combines_rows: ClassVar[bool] = True
    encoded_bytes: ClassVar[int] = 4 << 20

    job: RollupJob

    @property
    def target(self) -> Target:  # type: ignore[override]
        return self.job.target

    @property
    def tables(self) -> Sequence[str]:
        return [spec.name for spec in rollup_tables(self.job.config, self.job.layout)]

    def chunks(self) -> Iterator[NumberedChunk | ExistingRange]:
        """The chunks of all metrics that are rolled up."""
        job = self.job
        metric_uids = job.layout.metric_uids(TableReader(job.target))
        rolled_up = {metric: uid for metric, uid in metric_uids.items() if any(job.kind(metric))}
        samples = sampled(job.target, job.layout.data_table)
        for number, part in enumerate(job.parts):
            start_s, end_s = part.plan.start_ms // 1000, -(-part.plan.end_ms // 1000)
            chunks = hour_chunks(samples, job.layout, part.only(rolled_up), start_s, end_s, job.kind)
            for _, group in itertools.groupby(chunks, key=lambda chunk: chunk.uids):
                metric_chunks = list(group)
                yield from [NumberedChunk(number, chunk) for chunk in metric_chunks]
                yield from shared_intervals(job, part.plan, metric_chunks)

    def accumulate(self) -> AccumulateFn:
        return AccumulateTablesFn(self.job)

    def existing(self, existing: ExistingRange) -> Iterator[tuple[RowKey, Fragment]]:
        return existing_fragments(self.job, existing)

    def encode(self, table: str, groups: list[Group]) -> Iterator[EncodedRow | RejectedOutput]:
        config = self.job.config
        (interval,) = [each for each in config.intervals if table in config.outputs(each)]
        existing: list[list[bytes]] = [[] for _ in groups]
        later: list[list[bytes]] = [[] for _ in groups]
        by_aggregator: dict[str, list[tuple[int, list[bytes]]]] = {}
        for number, (_, packed_pairs) in enumerate(groups):
            packed_by_aggregator: dict[str, list[bytes]] = {}
            for aggregator, packed in packed_pairs:
                packed_by_aggregator.setdefault(aggregator, []).append(packed)
            existing[number] = qualifiers_of(packed_by_aggregator.pop(STANDING, ()))
            later[number] = qualifiers_of(packed_by_aggregator.pop(LATER, ()))
            for aggregator, packed_groups in packed_by_aggregator.items():
                by_aggregator.setdefault(aggregator, []).append((number, packed_groups))
        sets: list[list[bytes]] = [[] for _ in groups]
        counts = np.zeros(len(groups), np.int64)
        qualifier_bytes = 0
        for aggregator, numbered in by_aggregator.items():
            encoded = self._encoded(interval, aggregator, numbered)
            qualifier_bytes = encoded.qualifier_bytes
            for rejected in encoded.rejected:
                yield reject(rejected)
            numbers = np.array([number for number, _ in numbered], np.int64)[encoded.series]
            counts[numbers] += np.diff(encoded.firsts)
            for position, (number, content) in enumerate(
                zip(numbers.tolist(), row_mutations(encoded), strict=True)
            ):
                sets[number].append(content)
                if existing[number]:
                    written = encoded.qualifiers[encoded.firsts[position] : encoded.firsts[position + 1]]
                    existing[number] = stale_qualifiers(existing[number], map(bytes, written))
        stored = self.job.table(table)
        for number, (key, _) in enumerate(groups):
            stale = existing[number] + later[number]
            if sets[number] or stale:
                yield over(key, stored, b"".join(sets[number]), int(counts[number]), stale)
        sizes = np.fromiter((len(key) for key, _ in groups), np.int64, len(groups))
        count_written(int(np.count_nonzero(counts)), int(counts.sum()), int(sizes @ counts), qualifier_bytes)

    def _encoded(
        self, interval: RollupInterval, aggregator: str, numbered: list[tuple[int, list[bytes]]]
    ) -> EncodedRollups:
        """The cells of the accumulators of an aggregator; rows are numbered by position."""
        rows = [
            (Series(str(position), ()), packed_groups) for position, (_, packed_groups) in enumerate(numbered)
        ]
        buckets = unpacked(rows, interval.seconds, ends=self.job.config.has_ends)
        metrics.count_rollup(f"buckets_{interval.interval}", len(buckets))
        return encode(self.job, interval, aggregator, buckets)


class AccumulateTablesFn(AccumulateFn):
    """See `AccumulateFn`; existing cells of a chunk too are read while the chunk before it is accumulated."""

    def __init__(self, job: RollupJob) -> None:
        super().__init__()
        self._job = job
        self._keys = SharedSeriesKeys(job.target, job.layout, job.uids, dry_run=job.dry_run)
        self._reader: RememberingReader | None = None
        self._pool: ThreadPoolExecutor | None = None

    def setup(self) -> None:
        """Opens the UID table."""
        super().setup()
        self._keys.open()
        self._pool = ThreadPoolExecutor(_TABLES_AT_ONCE, "timebeam-existing")

    def teardown(self) -> None:
        """Ends the threads that read."""
        super().teardown()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        """Starts a cache of names for the bundle: metrics have many tags in common."""
        super().start_bundle()
        self._reader = RememberingReader(TableReader(self._job.target), self._job.layout.options.uid_table)

    def begin(self, numbered: NumberedChunk) -> ChunkWork:
        assert self._pool is not None
        assert self._reader is not None
        plan, names = self._job.parts[numbered.part].plan, RollupSeriesKeys(self._job, self._keys)
        return _TablesWork(self._job, plan, names, numbered.chunk, self._reader, self._pool).begun()


def _counted(points: Iterable[PointBatch | Rejected]) -> Iterator[PointBatch | Rejected]:
    """The same points, counted as those that rollups are made of."""
    for batch in points:
        if not isinstance(batch, Rejected):
            metrics.count("points_packed", len(batch))
        yield batch


class _TablesWork:
    """Starts to read a chunk, whose metrics are of one kind (`RollupJob.kind`), and makes its output."""

    def __init__(
        self,
        job: RollupJob,
        rollup_plan: RollupPlan,
        names: RollupSeriesKeys,
        chunk: Chunk,
        reader: Reader,
        pool: Executor,
    ) -> None:
        self._job, self._names, self._metric = job, names, chunk.metrics[0]
        self._in_place: dict[tuple[str, bool], TableInPlace] = {}  # by interval, and whether it is of groups
        self._outputs = [
            (plan, output)
            for plan in rollup_plan.intervals
            for output in job.tables(plan.interval, self._metric)
        ]
        for plan, output in self._outputs:
            in_place = job.in_place(plan, output, chunk)
            if not in_place.is_empty:
                table = TableInPlace(job, in_place, output.table, chunk, reader, pool)
                self._in_place[plan.interval.interval, output.of_groups] = table
        start_ms, end_ms = period = read_period(rollup_plan, chunk)
        chunk_reader = within(reader, job.layout, chunk.keys)
        select = functools.partial(
            select_metrics, job.layout, chunk.uids, (start_ms, end_ms - 1), chunk_reader
        )
        self._reader = NumberReader(job.layout, lambda: names.noted(select()), period)
        lengths = {plan.interval.seconds for plan, _ in self._outputs}
        self._accumulator = Accumulator(lengths, ends=job.config.has_ends)

    def begun(self) -> ChunkWork:
        """The work, whose reading has begun."""
        return ChunkWork(_counted(self._reader), self._accumulator, self._take, self._end, self._reader.stop)

    def _take(self, accumulated: Accumulated) -> Iterator[Any]:
        if self._job.is_single(self._metric):
            yield from self._by_interval(accumulated, of_groups=False)
        for grouping in self._names.groupings(accumulated.series):
            yield from self._by_interval(accumulated.of_groups(grouping), of_groups=True)

    def _end(self) -> Iterator[Any]:
        for plan, output in self._outputs:
            table = self._in_place.get((plan.interval.interval, output.of_groups))
            if table is None:
                continue
            merged = table.merged()
            if merged is not None:
                yield from self._out(merged, plan.interval, output, table)
            yield from table.unwritten()

    def _by_interval(self, accumulated: Accumulated, *, of_groups: bool) -> Iterator[Any]:
        """The output of the accumulators of series, or of groups."""
        by_length = accumulated.by_length()
        for plan, output in self._outputs:
            if output.of_groups == of_groups:
                buckets = by_length[plan.interval.seconds].within(plan.start_s * 1000, plan.end_s * 1000)
                yield from self._ready(buckets, plan.interval, output)

    def _ready(self, buckets: Buckets, interval: RollupInterval, output: OutputTable) -> Iterator[Any]:
        """Writes complete accumulators, keeps those that the chunk completes, shuffles others."""
        table = self._in_place.get((interval.interval, output.of_groups))
        if table is not None:
            in_place, buckets = table.split(buckets)
            if output.of_groups or SPAN_S % interval.seconds:
                table.hold(in_place)
            else:
                yield from self._out(in_place, interval, output, table)
        if len(buckets):
            yield from self._out(buckets, interval, output, None)

    def _out(
        self, buckets: Buckets, interval: RollupInterval, output: OutputTable, table: TableInPlace | None
    ) -> Iterator[Any]:
        """Accumulators as mutations, or packed for the shuffle."""
        aggregators = self._names.aggregators(buckets.series) if output.of_groups else [SINGLE]
        for aggregator in aggregators:
            if output.of_groups:
                keys, rejected = self._names.of_groups(buckets.series, aggregator)
            else:
                keys, rejected = self._names.single(buckets.series)
            yield from map(reject, rejected)
            if table is None:
                for number, base_s, packed in row_fragments(buckets, interval):
                    key = keys[number]
                    if key is not None:
                        row = output.table, row_key(key, base_s)
                        yield TaggedOutput(FRAGMENTS, (row, (aggregator, packed)))
            else:
                encoding = functools.partial(encode, self._job, interval, aggregator)
                yield from table.rows(buckets, keys, encoding)


_MOST_WAITING = 64
_ENCODED_AT_ONCE = 10_000
"""About the number of accumulators. Their mutations then take less than `reading._MAPPED_BYTES`: pages that
are new take most of the time."""


class TableInPlace:
    """The rows of one table and interval that a chunk writes alone.

    Args:
      plan: the intervals that the chunk writes.
      name: of the table, without prefix.
      reader: of the UID table.
      pool: reads the existing cells, while others read the points.
    """

    def __init__(
        self,
        job: RollupJob,
        plan: IntervalPlan,
        name: str,
        chunk: Chunk,
        reader: Reader,
        pool: Executor,
    ) -> None:
        self._plan, self._table = plan, job.table(name)
        self._reading = pool.submit(ChunkExisting, job, plan, name, chunk, reader)
        self._waiting: list[Buckets] = []

    def split(self, buckets: Buckets) -> tuple[Buckets, Buckets]:
        """(the buckets that this chunk writes, other buckets)."""
        return buckets.parted(self._plan.start_s * 1000, self._plan.end_s * 1000)

    def hold(self, buckets: Buckets) -> None:
        """Adds incomplete accumulators."""
        self._waiting.append(buckets)
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting = [merge(self._waiting)]

    def merged(self) -> Buckets | None:
        """All incomplete accumulators, merged by series (or group) and interval; None if there are none."""
        return merge(self._waiting) if self._waiting else None

    def rows(
        self,
        buckets: Buckets,
        keys: Sequence[SeriesKey | None],
        encode: Callable[[Buckets], EncodedRollups],
    ) -> Iterator[EncodedRow | RejectedOutput]:
        """The mutations of complete buckets, of the series that have a key."""
        has_key = np.array([key is not None for key in keys], np.bool_)
        if not has_key.all():
            buckets = buckets.take(np.flatnonzero(has_key[buckets.index]))
        metrics.count_rollup(f"buckets_{self._plan.interval.interval}", len(buckets))
        for block in buckets.by_series(_ENCODED_AT_ONCE):
            yield from self._written(encode(block), keys)

    def _written(
        self, encoded: EncodedRollups, keys: Sequence[SeriesKey | None]
    ) -> Iterator[EncodedRow | RejectedOutput]:
        yield from map(reject, encoded.rejected)
        row_series_keys = [
            key for key in (keys[number] for number in encoded.series.tolist()) if key is not None
        ]
        encoded_keys = row_keys(row_series_keys, encoded.bases_s)
        sizes = np.diff(encoded.firsts)
        changed: Sequence[int] = range(len(sizes))
        stale: dict[int, list[bytes]] = {}
        existing = self._reading.result()
        if len(existing) and len(sizes):
            numbers = [existing.number(key) for key in encoded_keys]
            rows, columns = np.array(numbers, np.int64), (encoded.codes, encoded.raws, encoded.times_ms)
            stale, is_equal = existing.replaced(rows, encoded.firsts, *columns)
            stale = {row: stale[number] for row, number in enumerate(numbers) if number in stale}
            changed = [row for row in range(len(sizes)) if not is_equal[row] or row in stale]
        content = row_mutations(encoded) if changed else []
        table, counts = self._table, sizes.tolist()
        for row in changed:
            key, sets = encoded_keys[row], content[row]
            if row in stale:
                yield over(key, table, sets, counts[row], stale[row])
            else:
                yield EncodedRow(table, key, sets, counts[row])
        key_bytes = sum([len(encoded_keys[row]) * counts[row] for row in changed])
        cells = sum([counts[row] for row in changed])
        count_written(len(changed), cells, key_bytes, encoded.qualifier_bytes)

    def unwritten(self) -> Iterator[EncodedRow]:
        """The mutations that delete existing intervals that were not written."""
        for key, qualifiers in self._reading.result().unwritten():
            yield over(key, self._table, b"", 0, qualifiers)
