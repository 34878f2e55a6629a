"""Raw points into rollups: the large part of the work, by chunk of the raw table.

| what | of which intervals | goes |
|---|---|---|
| rollups of single series | those that divide an hour | to the writer, as mutations |
| rollups of single series | longer ones | as accumulators, to where those of a row meet |
| rollups of groups | all | the same |

A row of points has all points of an interval that divides an hour, so that nothing is left to add to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection, TaggedOutput

from schema.layouts import SeriesKey
from schema.layouts.opentsdb.keys import row_key
from schema.points import RefusedError, Rejected, Series, Stage
from schema.rollup.buckets import Buckets, Grouping
from schema.rollup.opentsdb_rollup import encode_rollups
from schema.rollup.pieces import packed_rows
from schema.rollup.plan import IntervalPlan
from schema.rollup.qualifiers import ROLLUP_BYTES, Form
from transforms import metrics
from transforms.bigtable.reader import TableReader
from transforms.bigtable.remember import RememberingReader
from transforms.bigtable.wire import EncodedRow
from transforms.chunks import Chunk, hour_chunks
from transforms.rejected import REJECTED, RejectedOutput, refuse
from transforms.rollup.job import SINGLE, RollupJob, RollupRowKey
from transforms.rollup.mutations import count_written, over, row_mutations
from transforms.rollup.reading import Accumulator, read_chunk
from transforms.rollup.standing import ChunkStanding
from transforms.series_keys import SeriesKeys

Piece = tuple[str, bytes]
"""(aggregator of the group, or SINGLE, and the packed accumulators)."""

PIECES: Final = "pieces"
"""The output of accumulators that have to meet others."""


def accumulating(fn: beam.DoFn, *side_inputs: Any) -> Any:
    """A ParDo with the outputs `main`, of mutations, `PIECES` and `REJECTED`."""
    step = beam.ParDo(fn, *side_inputs).with_output_types(EncodedRow)
    return step.with_outputs(PIECES, REJECTED, main="main")


def pieces_of(outputs: Any) -> PCollection[tuple[RollupRowKey, Piece]]:
    """The pieces among the outputs of such a ParDo, with their type, which Beam does not find out."""
    pieces: PCollection[tuple[RollupRowKey, Piece]] = outputs[PIECES]
    pieces.element_type = tuple[RollupRowKey, Piece]
    return pieces


class ChunksFn(beam.DoFn):
    """Anything in; the chunks of all metrics that are rolled up out."""

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Chunk]:
        """See the class."""
        job = self._job
        found = job.metric_uids(TableReader(job.target))
        wanted = {metric: uid for metric, uid in found.items() if self._wanted(metric)}
        start_s, end_s = job.plan.start_ms // 1000, -(-job.plan.end_ms // 1000)
        yield from hour_chunks(job.target, job.layout, wanted, start_s, end_s)

    def _wanted(self, metric: str) -> bool:
        config = self._job.config
        return config.takes(Series(metric, ())) or any(
            one.group(Series(metric, tuple((key, "") for key in one.keep))) for one in config.pre_aggregates
        )


class AccumulateFn(beam.DoFn):
    """`Chunk` in; `EncodedRow` of its series out, ((table, row key), `Piece`) to `PIECES`, and refusals.

    The accumulators of a chunk are merged before they go out, so that a group of many series, too,
    is few pieces for each chunk.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job
        self._keys = SeriesKeys(job.target, job.layout, job.uids, dry_run=job.dry_run)
        self._reader: RememberingReader | None = None

    def setup(self) -> None:
        """Opens the UID table."""
        self._keys.open()

    def start_bundle(self) -> None:
        """Remembers names for as long as a bundle takes: metrics have many tags in common."""
        self._reader = RememberingReader(TableReader(self._job.target), self._job.layout.uid_table)

    def process(self, chunk: Chunk) -> Iterator[Any]:
        """See the class."""
        job = self._job
        standing = {
            plan.interval.interval: ChunkStanding(job, plan, chunk)
            for plan in job.plan.intervals
            if job.in_place(plan.interval)
        }
        assert self._reader is not None
        names = _Names(job, self._keys)
        held = Accumulator(job.plan)
        for batch in read_chunk(job.layout, self._reader, job.plan, chunk):
            if isinstance(batch, Rejected):
                yield refuse(batch)
                continue
            metrics.count("points_packed", len(batch))
            held.add(batch)
            if held.is_full:
                yield from self._taken(held, names, standing)
        yield from self._taken(held, names, standing)
        for plan in job.plan.intervals:
            if job.in_place(plan.interval):
                table = job.table(plan.interval.table)
                for key, gone in standing[plan.interval.interval].left():
                    yield over(key, table, b"", 0, gone)

    def _taken(self, held: Accumulator, names: _Names, standing: dict[str, ChunkStanding]) -> Iterator[Any]:
        for buckets, plan in zip(held.take(), self._job.plan.intervals, strict=False):
            interval = plan.interval
            if not interval.is_default:
                keys, refused = names.single(buckets)
                yield from map(refuse, refused)
                if self._job.in_place(interval):
                    yield from _rows_in_place(self._job, buckets, keys, plan, standing[interval.interval])
                else:
                    yield from _pieces(buckets, keys, interval.table, SINGLE, plan)
            if self._job.config.pre_aggregates:
                yield from _groups(buckets, names, plan)


class _Layer(NamedTuple):
    """Groups of series, and the aggregators of each."""

    grouping: Grouping
    wanted: dict[Series, tuple[str, ...]]


class _Names:
    """Under which names the series of a chunk are stored, and their groups; each is looked at once."""

    def __init__(self, job: RollupJob, keys: SeriesKeys) -> None:
        self._job, self._keys = job, keys
        self._single: dict[Series, SeriesKey | None] = {}
        self._grouped: Sequence[Series] = ()
        self._layers: list[_Layer] = []

    def single(self, buckets: Buckets) -> tuple[list[SeriesKey | None], list[Rejected]]:
        """(the key of each series, None if it is not rolled up; refusals of series that are new here)."""
        config = self._job.config
        rejected = []
        named: dict[Series, Series] = {}
        for series in buckets.series:
            if series in self._single:
                continue
            self._single[series] = None
            try:
                if config.takes(series):
                    named[series] = config.rollup_series(series)
            except RefusedError as error:
                rejected.append(_unnamed(str(series), error))
        for series, key in zip(named, self._keys.of(list(named.values())), strict=True):
            if isinstance(key, RefusedError):
                rejected.append(_unnamed(str(series), key))
            else:
                self._single[series] = key
        return [self._single[series] for series in buckets.series], rejected

    def layers(self, buckets: Buckets) -> list[_Layer]:
        """The groups of the series; a series may be in several, of each layer it is in one at most."""
        if buckets.series != self._grouped:
            config = self._job.config
            listed = [sorted(config.groups(series).items()) for series in buckets.series]
            self._layers = []
            for at in range(max(map(len, listed), default=0)):
                layer = [found[at] if at < len(found) else (None, ()) for found in listed]
                wanted = {group: aggregators for group, aggregators in layer if group is not None}
                self._layers.append(_Layer(Grouping.of([group for group, _ in layer]), wanted))
            self._grouped = buckets.series
        return self._layers

    def of_groups(
        self, groups: Sequence[Series], wanted: dict[Series, tuple[str, ...]], aggregator: str
    ) -> tuple[list[SeriesKey | None], list[Rejected]]:
        """(the key of each group that has an aggregator, None of others; refusals)."""
        named = [
            self._job.config.group_series(group, aggregator) if aggregator in wanted[group] else None
            for group in groups
        ]
        stored = [one for one in named if one is not None]
        found = dict(zip(stored, self._keys.of(stored), strict=True))
        keys = [None if one is None else found[one] for one in named]
        refused = [_unnamed(str(one), key) for one, key in found.items() if isinstance(key, RefusedError)]
        return [None if isinstance(key, RefusedError) else key for key in keys], refused


def _unnamed(series: str, error: RefusedError) -> Rejected:
    return Rejected(series.encode(), error.reason, error.message, Stage.ASSIGN)


def _rows_in_place(
    job: RollupJob,
    buckets: Buckets,
    keys: Sequence[SeriesKey | None],
    plan: IntervalPlan,
    standing: ChunkStanding,
) -> Iterator[EncodedRow | RejectedOutput]:
    """The mutations of buckets that have all their points."""
    interval = plan.interval
    stored = np.array([key is not None for key in keys], np.bool_)
    if not stored.all():
        buckets = buckets.take(np.flatnonzero(stored[buckets.index]))
    metrics.count_rollup(f"buckets_{interval.interval}", len(buckets))
    encoded = encode_rollups(buckets, interval, job.stored(SINGLE), Form.FIXED)
    yield from map(refuse, encoded.rejected)
    table = job.table(interval.table)
    row_keys = []
    for series, base_s in zip(encoded.series.tolist(), encoded.bases_s.tolist(), strict=True):
        key = keys[series]
        assert key is not None
        row_keys.append(row_key(key, base_s))
    sizes = np.diff(encoded.firsts)
    numbers: Sequence[int] = []
    stale: dict[int, list[bytes]] = {}
    if len(standing):
        numbers = [standing.number(key) for key in row_keys]
        stale = standing.replaced(np.repeat(np.array(numbers, np.int64), sizes), encoded.codes)
    content = row_mutations(encoded)
    for at, (key, sets, count) in enumerate(zip(row_keys, content, sizes.tolist(), strict=True)):
        yield over(key, table, sets, count, stale.get(numbers[at], ()) if stale else ())
    key_bytes = int(np.fromiter(map(len, row_keys), np.int64, len(row_keys)) @ sizes)
    count_written(len(row_keys), len(encoded.codes), key_bytes, ROLLUP_BYTES)


def _groups(buckets: Buckets, names: _Names, plan: IntervalPlan) -> Iterator[Any]:
    """Pieces of the groups of series."""
    for layer in names.layers(buckets):
        of_groups = buckets.of_groups(layer.grouping)
        for aggregator in sorted({name for found in layer.wanted.values() for name in found}):
            keys, refused = names.of_groups(of_groups.series, layer.wanted, aggregator)
            yield from map(refuse, refused)
            yield from _pieces(of_groups, keys, plan.interval.pre_aggregation_table, aggregator, plan)


def _pieces(
    buckets: Buckets, keys: Sequence[SeriesKey | None], table: str, aggregator: str, plan: IntervalPlan
) -> Iterator[TaggedOutput[Any, tuple[RollupRowKey, Piece]]]:
    """Pieces of those series, or groups, that have a key."""
    for number, base_s, packed in packed_rows(buckets, plan.interval, hours=plan.interval.is_default):
        key = keys[number]
        if key is not None:
            yield TaggedOutput(PIECES, ((table, row_key(key, base_s)), (aggregator, packed)))
