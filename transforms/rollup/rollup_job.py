"""The job of a rollup, and the names and keys under which rollups of series and groups are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from timebeam.schema.archive import archive_rows
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.bits.times import ceil_to, floor_to
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import WHOLE_TABLE, KeyRange, TableSpec
from timebeam.schema.core.selection import Finding, Selected
from timebeam.schema.rollup.buckets import Grouping
from timebeam.schema.rollup.day_plan import IntervalPlan, RollupPart
from timebeam.schema.rollup.rollup_config import OF_GROUP, RollupConfig, RollupInterval
from timebeam.schema.stores.opentsdb.keys import BASE_BYTES, SPAN_S, ranges
from timebeam.schema.stores.opentsdb.rollup_tables import FAMILY
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.assign_keys import SeriesKeys, UidOptions
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.rollup.changed_hours import changed_hours_table
from timebeam.transforms.rollup.rollup_graph import SINGLE

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
        return [keys for uid in metrics for keys in ranges(self.layout.options, uid, *period)]

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
