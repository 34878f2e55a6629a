"""The configuration of rollups: OpenTSDB 2.4's JSON, and a section `timebeam` that TSDs ignore.

docs/spec/opentsdb.md §7.1; rollup/RollupConfig and rollup/RollupInterval of OpenTSDB 2.4.1. TSDs ignore
unknown fields, so they can share a file with this project. Configurations that OpenTSDB accepts and then
fails on are rejected. Parsed by `timebeam.schema.rollup.config_json`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.bits.times import parse_duration
from timebeam.schema.core.points import Series
from timebeam.schema.rollup.day_plan import RowSpan

FEWEST_INTERVALS, MOST_INTERVALS = 12, 3840
"""Intervals of a row. OpenTSDB allows 7774, but from 3840 on it reads qualifiers as milliseconds."""

APPEND_ID = 0x05
"""With this id, a qualifier has the width and the first byte of an append column. TSDs run with it, and read
no rollups under it (docs/spec/opentsdb.md §7.3): a file may have it, nothing is written or asked there."""

COMPUTED = ("sum", "count", "min", "max", "first", "last")
"""The aggregators whose rollups are computed here."""

OF_GROUP: Mapping[str, Mapping[str, str]] = {
    "sum": {"sum": "sum", "count": "count"},
    "count": {"sum": "count"},
    "min": {"min": "min"},
    "max": {"max": "max"},
}
"""For each group-by aggregator of a pre-aggregate, the rollups of its rows and the number in each.

`sum` has the sum and the count of all points of the group, so that a TSD answers sum and avg. For the sum of
counts a TSD adds the cells of `sum`, which therefore hold the counts under `count`.
"""

_TABLE = re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}")
_PERCENTILES = ("50", "75", "90", "95", "99", "999")
_KNOWN = frozenset(
    (
        *("sum", "min", "max", "avg", "none", "median", "mult", "dev", "diff", "count"),
        *("zimsum", "mimmin", "mimmax", "pfsum", "first", "last"),
        *(f"p{rank}" for rank in _PERCENTILES),
        *(f"ep{rank}r{kind}" for rank in _PERCENTILES for kind in (3, 7)),
    )
)
"""The aggregators of core/Aggregators with lower-case names."""


class RollupConfigError(ValueError):
    """A configuration that cannot be used; the message begins with the name of the field."""


@dataclasses.dataclass(frozen=True, slots=True)
class RollupInterval:
    """One rollup interval and its tables.

    Attributes:
      interval: the name that writes and TSDs use ("60m" is not "1h").
      row_span: the time that a row holds.
      table: of rollups of single series; for the default interval, of raw points.
      pre_aggregation_table: of rollups of groups; for the default interval, of plain points of groups.
      is_default: whether it is the interval of the raw table.
      delay_s: the delay of the tables (delaySla), in seconds.
    """

    interval: str
    row_span: RowSpan
    table: str
    pre_aggregation_table: str
    is_default: bool = False
    delay_s: int | None = None

    def __post_init__(self) -> None:
        for field, name in (("table", self.table), ("preAggregationTable", self.pre_aggregation_table)):
            if not _TABLE.fullmatch(name):
                raise RollupConfigError(
                    f"{field}: {name!r} is not a name of a Bigtable table: give 1 to 50 of a-z A-Z 0-9 _ . -"
                )
        self._check_interval()
        if self.delay_s is not None and self.delay_s < 1:
            raise RollupConfigError("delaySla: give at least 1s")

    def _check_interval(self) -> None:
        """Rejects intervals that do not divide rows into 12 to 3840 equal parts counted from 1970."""
        try:
            length_ms = parse_duration(self.interval)
        except ValueError as error:
            raise RollupConfigError(f"interval: {error}") from None
        if self.interval != self.interval.strip() or length_ms % 1000 or self.interval.lower().endswith("ms"):
            raise RollupConfigError(f"interval: {self.interval!r}: give whole seconds, as 10s, 1m or 1h")
        span = self.row_span
        if self.seconds >= span.nominal_s:
            raise RollupConfigError(f"interval: {self.interval} is not shorter than the row span {span}")
        if not FEWEST_INTERVALS <= self.row_intervals <= MOST_INTERVALS:
            raise RollupConfigError(
                f"interval: a row of {span} would hold {self.row_intervals} intervals of {self.interval}: "
                f"choose a row span with {FEWEST_INTERVALS} to {MOST_INTERVALS} of them"
            )
        if span.step_s % self.seconds:
            raise RollupConfigError(
                f"interval: {self.interval} does not divide {'the span' if span.unit == 'h' else 'a day'}: "
                "its intervals would start over with each row, but queries count them from 1970"
            )

    @property
    def seconds(self) -> int:
        """The length of an interval in seconds; intervals are counted from 1970."""
        return parse_duration(self.interval) // 1000

    @property
    def row_intervals(self) -> int:
        """The number of intervals that OpenTSDB allows in a row."""
        return self.row_span.nominal_s // self.seconds


@dataclasses.dataclass(frozen=True, slots=True)
class PreAggregate:
    """Groups of series: those of one metric with equal values of the kept tags.

    >>> by_dc = PreAggregate(("rollup.*",), ("dc",), ("sum",))
    >>> str(by_dc.group(Series.of("rollup.m8", {"dc": "lga", "host": "a"})))
    'rollup.m8{dc=lga}'
    >>> by_dc.group(Series.of("rollup.m8", {"host": "a"})) is None
    True

    Attributes:
      metrics: patterns with * and ?; one must match.
      keep: tag keys, sorted. A series without one of them has no group, as in queries.
      aggregators: keys of `OF_GROUP`, sorted.
    """

    metrics: tuple[str, ...]
    keep: tuple[str, ...]
    aggregators: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_patterns(self.metrics)
        if len(set(self.keep)) < len(self.keep) or "" in self.keep:
            raise RollupConfigError("keepTags: give each tag key once")
        for name in self.aggregators:
            if name in ("avg", "dev"):
                raise RollupConfigError(
                    f"aggregators: {name} is derived (TSDs refuse it): sum also gives the average"
                )
            if name not in OF_GROUP:
                raise RollupConfigError(f"aggregators: {name!r}: choose from {', '.join(OF_GROUP)}")
        if not self.aggregators or len(set(self.aggregators)) < len(self.aggregators):
            raise RollupConfigError(f"aggregators: give one or more of {', '.join(OF_GROUP)}, each once")

    def group(self, series: Series) -> Series | None:
        """The group of a series, without the tag of the aggregator; None if it has none."""
        if not matches(self.metrics, series.metric):
            return None
        group_tags = tuple(tag for tag in series.tags if tag[0] in self.keep)
        return Series(series.metric, group_tags) if len(group_tags) == len(self.keep) else None


@dataclasses.dataclass(frozen=True, slots=True)
class RollupConfig:
    """What is rolled up, and into which tables.

    Attributes:
      aggregation_ids: by lower-case name of the aggregator; 0 to 127. `APPEND_ID` is for reading cells alone.
      intervals: at least one, exactly one of them the default.
      metrics: patterns of the metrics whose series are rolled up.
      tag_raw: whether rollups of single series get an extra tag (tsd.rollups.tag_raw).
      agg_tag_key: key of the tag that names the aggregation of points (tsd.rollups.agg_tag_key).
      raw_agg_tag_value: its value with tag_raw (tsd.rollups.raw_agg_tag_value).
    """

    aggregation_ids: Mapping[str, int]
    intervals: tuple[RollupInterval, ...]
    metrics: tuple[str, ...] = ("*",)
    pre_aggregates: tuple[PreAggregate, ...] = ()
    tag_raw: bool = False
    agg_tag_key: str = "_aggregate"
    raw_agg_tag_value: str = "RAW"

    def __post_init__(self) -> None:
        self._check_ids()
        self._check_intervals()
        _check_patterns(self.metrics)
        if not self.agg_tag_key or not self.raw_agg_tag_value:
            raise RollupConfigError("aggTagKey: the tag of aggregates needs a key and a value")
        for i, pre_aggregate in enumerate(self.pre_aggregates):
            where = f"timebeam.preAggregates[{i}]"
            if self.agg_tag_key in pre_aggregate.keep:
                raise RollupConfigError(f"{where}.keepTags: {self.agg_tag_key} is the tag of aggregates")
            for name in pre_aggregate.aggregators:
                lacking = sorted(OF_GROUP[name].keys() - self.aggregation_ids.keys())
                if lacking:
                    raise RollupConfigError(f"{where}.aggregators: {lacking[0]} has no aggregation id")

    def _check_ids(self) -> None:
        ids: dict[int, str] = {}
        for name, number in self.aggregation_ids.items():
            if name not in _KNOWN:
                raise RollupConfigError(f"aggregationIds: OpenTSDB has no aggregator {name!r}")
            if not 0 <= number <= 127:
                raise RollupConfigError(f"aggregationIds: {name}: {number} is not from 0 to 127")
            if number in ids:
                raise RollupConfigError(f"aggregationIds: {ids[number]} and {name} both have {number}")
            ids[number] = name
        for name in ("count", "sum"):
            if name not in self.aggregation_ids:
                raise RollupConfigError(
                    f"aggregationIds: {name} is missing; TSDs cannot answer from rollups without it"
                )

    def check_written(self) -> None:
        """Rejects aggregators whose numbers no TSD would read.

        Raises:
          RollupConfigError: an aggregator that is computed here has `APPEND_ID`.
        """
        for name in self.computed:
            if self.aggregation_ids[name] == APPEND_ID:
                raise RollupConfigError(
                    f"aggregationIds: {name} is not written under the id {APPEND_ID}: TSDs read a qualifier "
                    f"of 3 bytes that begins with 05 as appended points; give it another id here and in the "
                    f"TSDs, or leave {name} out of a copy of the file for this command"
                )

    def _check_intervals(self) -> None:
        defaults = sum(interval.is_default for interval in self.intervals)
        if defaults != 1:
            raise RollupConfigError(
                f"intervals: {defaults} have defaultInterval true: exactly one must, that of the raw table"
            )
        if self.pre_aggregates and self.default.table == self.default.pre_aggregation_table:
            raise RollupConfigError(
                f"intervals: the default interval's preAggregationTable is the table of raw points, "
                f"{self.default.table}: pre-aggregates would be read as points; name another table"
            )
        names: set[str] = set()
        owners: dict[str, str] = {}
        for interval in self.intervals:
            if interval.interval in names:
                raise RollupConfigError(f"intervals: duplicate {interval.interval}")
            names.add(interval.interval)
            for table in (interval.table, interval.pre_aggregation_table):
                owner = owners.setdefault(table, interval.interval)
                if owner != interval.interval:
                    raise RollupConfigError(
                        f"intervals: {owner} and {interval.interval} share the table {table}: "
                        "a cell does not record its interval"
                    )

    @property
    def default(self) -> RollupInterval:
        """The interval of the raw table."""
        return next(interval for interval in self.intervals if interval.is_default)

    def outputs(self, interval: RollupInterval) -> list[str]:
        """The tables, without prefix, that the buckets of an interval go to."""
        tables = [] if interval.is_default else [interval.table]
        return tables + ([interval.pre_aggregation_table] if self.pre_aggregates else [])

    @property
    def rollups(self) -> tuple[RollupInterval, ...]:
        """The intervals that have rollups, finest first: all but the default."""
        rollup_intervals = (interval for interval in self.intervals if not interval.is_default)
        return tuple(sorted(rollup_intervals, key=lambda interval: interval.seconds))

    @property
    def written(self) -> tuple[RollupInterval, ...]:
        """The intervals that a run writes, finest first: with the default one if there are pre-aggregates."""
        return (
            tuple(sorted(self.intervals, key=lambda interval: interval.seconds))
            if self.pre_aggregates
            else self.rollups
        )

    @property
    def computed(self) -> tuple[str, ...]:
        """The aggregators with an id that are computed here."""
        return tuple(name for name in COMPUTED if name in self.aggregation_ids)

    def why_unasked(self, names: Iterable[str]) -> str:
        """Why rollups of one of these aggregators answer no query; empty if those of all may."""
        for name in names:
            if name not in self.aggregation_ids:
                return f"{name} has no aggregation id"
            if self.aggregation_ids[name] == APPEND_ID:
                return f"{name} has the aggregation id {APPEND_ID}, under which no TSD reads rollups"
        return ""

    @property
    def has_ends(self) -> bool:
        """Whether first or last is computed."""
        return not {"first", "last"}.isdisjoint(self.aggregation_ids)

    def takes(self, series: Series) -> bool:
        """Whether a series is rolled up."""
        return matches(self.metrics, series.metric)

    def rollup_series(self, series: Series) -> Series:
        """The series under which the rollups of a series are stored.

        Raises:
          RejectedError: with `tag_raw`, the series already has this tag with another value.
        """
        if not self.tag_raw:
            return series
        tag_value = dict(series.tags).get(self.agg_tag_key, self.raw_agg_tag_value)
        if tag_value.upper() != self.raw_agg_tag_value.upper():
            raise RejectedError(
                Reason.SERIES_NOT_STORABLE,
                f"tag {self.agg_tag_key}={tag_value}: in rollups of single series it is "
                f"{self.raw_agg_tag_value}",
            )
        return self._tagged(series, self.raw_agg_tag_value)

    def aggregators(self, metric: str) -> tuple[str, ...]:
        """The group-by aggregators of a metric, sorted; none if it has no groups."""
        names = (entry.aggregators for entry in self.pre_aggregates if matches(entry.metrics, metric))
        return tuple(sorted(set().union(*names)))

    def groups(self, series: Series) -> dict[Series, tuple[str, ...]]:
        """The groups of a series, each with its group-by aggregators, sorted."""
        group_aggregators: dict[Series, tuple[str, ...]] = {}
        for pre_aggregate in self.pre_aggregates:
            group = pre_aggregate.group(series)
            if group is not None:
                names = set(pre_aggregate.aggregators).union(group_aggregators.get(group, ()))
                group_aggregators[group] = tuple(sorted(names))
        return group_aggregators

    def group_series(self, group: Series, aggregator: str) -> Series:
        """The series under which a group is stored, with the aggregator in upper case as a tag."""
        return self._tagged(group, aggregator.upper())

    def _tagged(self, series: Series, value: str) -> Series:
        return series._replace(tags=tuple(sorted({**dict(series.tags), self.agg_tag_key: value}.items())))


@functools.lru_cache(maxsize=10_000)
def matches(patterns: tuple[str, ...], metric: str) -> bool:
    """Whether a metric matches one of the patterns."""
    return any(fnmatchcase(metric, pattern) for pattern in patterns)


def _check_patterns(patterns: tuple[str, ...]) -> None:
    if not patterns or "" in patterns:
        raise RollupConfigError("metrics: give one or more patterns, as sys.*")
