"""The job of a rollup into OpenTSDB's tables: its rows and their ranges, mutations, and keys of series."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from timebeam.schema.archive import archive_rows
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.bits.times import ceil_to, floor_to
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import WHOLE_TABLE, Deletion, EncodedRow, KeyRange, TableSpec, stored_bytes_of
from timebeam.schema.core.selection import Finding, Selected
from timebeam.schema.rollup.buckets import Buckets, Grouping
from timebeam.schema.rollup.day_plan import IntervalPlan, RollupPart, RollupPlan
from timebeam.schema.rollup.rollup_config import OF_GROUP, RollupConfig, RollupInterval
from timebeam.schema.stores.opentsdb import keys as row_keys
from timebeam.schema.stores.opentsdb.keys import SPAN_S
from timebeam.schema.stores.opentsdb.options import BASE_BYTES
from timebeam.schema.stores.opentsdb.rollup_tables import (
    FAMILY,
    EncodedRollups,
    Form,
    encode_points,
    encode_rollups,
)
from timebeam.transforms.bigtable.mutation_bytes import encoded_mutations, set_cells
from timebeam.transforms.bigtable.read_ranges import common_range
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.series_keys import SeriesKeys, UidOptions
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.rollup.changed_hours import changed_hours_table
from timebeam.transforms.rollup.rollup_graph import SINGLE, ExistingRange

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


class OutputTable(NamedTuple):
    """A table, without prefix, and whether it holds rollups of groups or of single series."""

    table: str
    of_groups: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RollupJob:
    """A configuration, a range of time, and where the tables are.

    Attributes:
      parts: the intervals to write, without overlap for any metric.
    """

    target: Target
    layout: OpenTsdb
    config: RollupConfig
    parts: Sequence[RollupPart]
    uids: UidOptions
    dry_run: bool = False

    def is_single(self, metric: str) -> bool:
        """Whether the series of a metric are rolled up."""
        return self.config.takes(Series(metric, ()))

    def kind(self, metric: str) -> tuple[bool, tuple[str, ...]]:
        """Whether a metric's series are rolled up, and the aggregators of its groups."""
        return self.is_single(metric), self.config.aggregators(metric)

    def tables(self, interval: RollupInterval, metric: str) -> list[OutputTable]:
        """The tables that the intervals of a metric are written to."""
        outputs = []
        if not interval.is_default and self.is_single(metric):
            outputs.append(OutputTable(interval.table, of_groups=False))
        if self.config.aggregators(metric):
            outputs.append(OutputTable(interval.pre_aggregation_table, of_groups=True))
        return outputs

    def in_place(self, plan: IntervalPlan, output: OutputTable, chunk: Chunk) -> IntervalPlan:
        """Intervals that the worker reading `chunk` can write without a shuffle.

        These are the intervals whose points are all in the chunk. A chunk of part of an hour has no complete
        interval of groups; of single series it has those that divide the hour. And the keys in the table must
        say whether a row is of a series or of a group, and of which series.
        """
        interval, length = plan.interval, plan.interval.seconds
        is_mixed = bool(self.config.pre_aggregates) and interval.table == interval.pre_aggregation_table
        has_all_points = chunk.keys == WHOLE_TABLE or (not output.of_groups and SPAN_S % length == 0)
        if is_mixed or not has_all_points or (self.config.tag_raw and not output.of_groups):
            return plan.within(0, 0)
        return plan.within(ceil_to(chunk.start_s, length), floor_to(chunk.end_s, length))

    def table(self, name: str) -> str:
        """A table of the configuration, with the layout's prefix."""
        return self.layout.options.table_prefix + name

    def data_ranges(self, metrics: Iterable[bytes], part: RollupPart) -> list[KeyRange]:
        """The ranges of data rows that a part reads of metrics, given by their UIDs."""
        period = part.plan.start_ms, part.plan.end_ms - 1
        return [keys for uid in metrics for keys in row_keys.ranges(self.layout.options, uid, *period)]

    def stored(self, aggregator: str) -> Mapping[int, str]:
        """The number stored under each aggregation id, in rows of single series or of a group."""
        ids = self.config.aggregation_ids
        if aggregator == SINGLE:
            return {ids[name]: name for name in self.config.computed}
        return {ids[name]: number for name, number in OF_GROUP[aggregator].items()}


def rollup_tables(config: RollupConfig, layout: OpenTsdb) -> Sequence[TableSpec]:
    """The tables of rollups, and the table of marks."""
    names = dict.fromkeys(name for interval in config.intervals for name in config.outputs(interval))
    prefix, starts = layout.options.table_prefix, "the start of the interval that is rolled up"
    specs = [TableSpec(prefix + name, {FAMILY: 1}, holds_points=True, cell_time=starts) for name in names]
    return [*specs, changed_hours_table(layout)]


def encode(job: RollupJob, interval: RollupInterval, aggregator: str, buckets: Buckets) -> EncodedRollups:
    """The cells of accumulators of single series (SINGLE), or of groups with an aggregator."""
    if not interval.is_default:
        return encode_rollups(buckets, interval, job.stored(aggregator), Form.FIXED)
    number = OF_GROUP[aggregator].get(aggregator, OF_GROUP[aggregator].get("sum"))
    assert number is not None
    return encode_points(buckets, number, Form.FIXED)


def row_mutations(encoded: EncodedRollups) -> list[bytes]:
    """The mutations that set the cells of each row, encoded."""
    one_family = np.zeros(len(encoded.times_ms), np.int64)
    values = encoded.raws.astype(">u8").view(np.uint8).reshape(-1, 8)
    content, starts = set_cells([FAMILY], one_family, encoded.qualifiers, encoded.times_ms, values)
    return [content[start:end] for start, end in itertools.pairwise(starts[encoded.firsts].tolist())]


def over(key: bytes, table: str, sets: bytes, count: int, stale: Iterable[bytes]) -> EncodedRow:
    """The mutation of a row: deletes stale columns, then sets `count` cells."""
    deleted = [Deletion(FAMILY, qualifier) for qualifier in stale]
    return EncodedRow(
        table, key, encoded_mutations((), deleted) + sets if deleted else sets, len(deleted) + count
    )


def count_written(rows: int, cells: int, key_bytes: int, qualifier_bytes: int) -> None:
    """Counts written rows.

    Args:
      key_bytes: the sum of the sizes of the row keys, each times the cells of its row.
      qualifier_bytes: of each cell.
    """
    metrics.count("rows_written", rows)
    metrics.count("cells_written", cells)
    metrics.count("bytes_written", key_bytes + cells * stored_bytes_of(0, len(FAMILY), qualifier_bytes, 8))


def shared_intervals(job: RollupJob, rollup_plan: RollupPlan, chunks: Sequence[Chunk]) -> list[ExistingRange]:
    """The intervals of metrics that no chunk writes alone; `chunks` are all chunks of these metrics."""
    uids, metric = chunks[0].uids, chunks[0].metrics[0]
    shared: dict[ExistingRange, None] = {}  # without duplicates, if series and groups share a table
    for plan in rollup_plan.intervals:
        for output in job.tables(plan.interval, metric):
            between = functools.partial(ExistingRange, uids, metric, plan.interval.interval, output.table)
            reached_s = plan.start_s
            for start_s, end_s in sorted(
                (in_place.start_s, in_place.end_s)
                for in_place in (job.in_place(plan, output, chunk) for chunk in chunks)
                if not in_place.is_empty
            ):
                if reached_s < start_s:
                    shared[between(reached_s, start_s)] = None
                reached_s = max(reached_s, end_s)
            if reached_s < plan.end_s:
                shared[between(reached_s, plan.end_s)] = None
    return list(shared)


def metric_ranges(job: RollupJob, plan: IntervalPlan, metrics: Sequence[bytes]) -> list[KeyRange]:
    """The keys of the rows of metrics that hold intervals of a range, ascending."""
    if plan.is_empty:
        return []
    first_ms, last_ms = plan.bases_s[0] * 1000, plan.bases_s[-1] * 1000
    options = job.layout.options
    return sorted(
        key_range for metric in metrics for key_range in row_keys.ranges(options, metric, first_ms, last_ms)
    )


def chunk_ranges(job: RollupJob, plan: IntervalPlan, chunk: Chunk) -> list[KeyRange]:
    """The keys of the rows that hold the intervals of a chunk's series, of the range of a plan."""
    if plan.is_empty:
        return []
    if chunk.keys == WHOLE_TABLE:
        return metric_ranges(job, plan, chunk.uids)
    # Part of one hour of one metric: the rows of this hour with the same tags.
    base_s = plan.bases_s[0]
    hour_ms = floor_to(chunk.start_s, row_keys.SPAN_S) * 1000
    clipped = []
    for hour_range in row_keys.ranges(job.layout.options, chunk.uids[0], hour_ms, hour_ms):
        common = common_range(hour_range, chunk.keys)
        if common is not None:
            start, end = common
            base_end = len(hour_range[0])  # behind the base time
            head, behind = (
                hour_range[0][:-BASE_BYTES] + base.to_bytes(BASE_BYTES, "big")
                for base in (base_s, base_s + 1)
            )
            clipped.append(
                (head + start[base_end:], behind if end == hour_range[1] else head + end[base_end:])
            )
    return clipped


class RollupSeriesKeys:
    """The keys of the series of a chunk, and of their groups, each made once."""

    def __init__(self, job: RollupJob, keys: SeriesKeys) -> None:
        self._job, self._keys = job, keys
        self._group_tag_keys = frozenset(
            key for pre_aggregate in job.config.pre_aggregates for key in pre_aggregate.keep
        )
        self._groups: dict[tuple[object, ...], list[tuple[Series, tuple[str, ...]]]] = {}
        self._named: dict[Series, SeriesKey | None] = {}
        self._grouped: Sequence[Series] = ()
        self._groupings: list[Grouping] = []
        self._aggregators: dict[Series, tuple[str, ...]] = {}  # by group
        self._stored: dict[Series, SeriesKey] = {}

    def noted(self, selection: Iterable[Selected | Finding]) -> Iterator[Selected | Finding]:
        """Yields the rows, and notes the key of each series, so that its names are not looked up.

        If two UIDs have one name, rows with different keys have the same series. Rows with the first key keep
        it. Rows with another key get a series with other resources, so that each key has rollups of its
        points alone. A thread may read ahead of `single`.
        """
        options = self._job.layout.options
        base_at = options.salt_width + options.uid_width_metric
        for selected in selection:
            if not isinstance(selected, Finding):
                row_key = selected.row.key
                key = SeriesKey(row_key[:base_at], row_key[base_at + BASE_BYTES :])
                if selected.archived:
                    key = archive_rows.parse_key(options, row_key).series
                if self._stored.setdefault(selected.series, key) != key:
                    uids = ("uids", b"".join(key).hex())
                    selected = selected._replace(series=selected.series._replace(resources=(uids,)))
                    self._stored[selected.series] = key
            yield selected

    def single(self, series: Sequence[Series]) -> tuple[list[SeriesKey | None], list[Rejected]]:
        """(the key of each series, None if it has none; rejections of new series).

        The key is that of the series' rows; with `tag_raw`, that of its names and the tag of raw series.
        """
        config = self._job.config
        if not config.tag_raw:
            return [self._stored[each] for each in series], []
        rejected = []
        named: dict[Series, Series] = {}
        for each in series:
            if each in self._named:
                continue
            self._named[each] = None
            try:
                named[each] = config.rollup_series(each._replace(resources=()))
            except RejectedError as error:
                rejected.append(_unnamed(str(each), error))
        for each, key in zip(named, self._keys.series_keys(list(named.values())), strict=True):
            if isinstance(key, RejectedError):
                rejected.append(_unnamed(str(each), key))
            else:
                self._named[each] = key
        return [self._named[each] for each in series], rejected

    def groupings(self, series: Sequence[Series]) -> list[Grouping]:
        """The groups of the series; a series is in at most one group of each grouping."""
        if series != self._grouped:
            listed = [self._groups_of(member) for member in series]
            self._groupings = []
            for depth in range(max(map(len, listed), default=0)):
                layer = [groups[depth] if depth < len(groups) else (None, ()) for groups in listed]
                self._aggregators |= {group: names for group, names in layer if group is not None}
                self._groupings.append(Grouping.of([group for group, _ in layer]))
            self._grouped = series
        return self._groupings

    def _groups_of(self, series: Series) -> list[tuple[Series, tuple[str, ...]]]:
        """The groups of a series, sorted; they depend on its metric and the tags that groups keep."""
        group_tags = (series.metric, *[tag for tag in series.tags if tag[0] in self._group_tag_keys])
        groups = self._groups.get(group_tags)
        if groups is None:
            groups = self._groups[group_tags] = sorted(self._job.config.groups(series).items())
        return groups

    def aggregators(self, groups: Sequence[Series]) -> list[str]:
        """All aggregators of some groups."""
        return sorted({name for group in groups for name in self._aggregators[group]})

    def of_groups(
        self, groups: Sequence[Series], aggregator: str
    ) -> tuple[list[SeriesKey | None], list[Rejected]]:
        """(the key of each group that has an aggregator, None of others; rejections)."""
        named = {
            group: self._job.config.group_series(group, aggregator)
            for group in groups
            if aggregator in self._aggregators[group]
        }
        key_by_group = dict(zip(named, self._keys.series_keys(list(named.values())), strict=True))
        rejected = [
            _unnamed(str(named[group]), key)
            for group, key in key_by_group.items()
            if isinstance(key, RejectedError)
        ]
        keys = [key_by_group.get(group) for group in groups]
        return [None if isinstance(key, RejectedError) else key for key in keys], rejected


def _unnamed(series: str, error: RejectedError) -> Rejected:
    return Rejected(series.encode(), error.reason, error.message, Stage.ASSIGN)
