"""What a rollup does, and the names that its steps share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schema.layouts import Reader, TableSpec
from schema.layouts.opentsdb.keys import SPAN_S
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.points import Series
from schema.rollup.buckets import Buckets
from schema.rollup.config import OF_GROUP, RollupConfig, RollupInterval, matches
from schema.rollup.opentsdb_rollup import EncodedRollups, encode_points, encode_rollups
from schema.rollup.plan import IntervalPlan, Plan
from schema.rollup.qualifiers import FAMILY, Form
from transforms.bigtable.splits import WHOLE
from transforms.bigtable.target import Target
from transforms.chunks import Chunk
from transforms.rollup.touched import touched_table
from transforms.series_keys import UidOptions

SINGLE = ""
"""Stands for the aggregator of a group where rollups are those of single series."""

RollupRowKey = tuple[str, bytes]
"""(table without prefix, row key)."""


class Output(NamedTuple):
    """A table, without prefix, and whether it is written to of groups, or of single series."""

    table: str
    of_groups: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RollupJob:
    """A configuration, a range of time, and where the tables are.

    Attributes:
      plan: what of each interval is written.
      metrics: UIDs of the only metrics to be rolled up; None for all that the configuration names.
    """

    target: Target
    layout: OpenTsdb
    config: RollupConfig
    plan: Plan
    uids: UidOptions
    dry_run: bool = False
    metrics: frozenset[bytes] | None = None

    def metric_uids(self, reader: Reader) -> dict[str, bytes]:
        """The metrics to be looked at, and their UIDs."""
        found = self.layout.metric_uids(reader)
        if self.metrics is None:
            return found
        return {name: uid for name, uid in found.items() if uid in self.metrics}

    def is_single(self, metric: str) -> bool:
        """Whether the series of a metric are rolled up."""
        return self.config.takes(Series(metric, ()))

    def is_grouped(self, metric: str) -> bool:
        """Whether a metric has groups."""
        return any(matches(one.metrics, metric) for one in self.config.pre_aggregates)

    def kind(self, metric: str) -> tuple[bool, bool]:
        """Whether a metric's series are rolled up, and whether it has groups."""
        return self.is_single(metric), self.is_grouped(metric)

    def tables(self, interval: RollupInterval, metric: str) -> list[Output]:
        """What the intervals of a metric go to."""
        found = []
        if not interval.is_default and self.is_single(metric):
            found.append(Output(interval.table, of_groups=False))
        if self.is_grouped(metric):
            found.append(Output(interval.pre_aggregation_table, of_groups=True))
        return found

    def in_place(self, plan: IntervalPlan, output: Output, chunk: Chunk) -> IntervalPlan:
        """Of the intervals of a plan those that the worker that reads a chunk writes alone: no shuffle.

        They are those that the chunk has all points of. So a part of an hour has none of groups, and of
        single series those that divide the hour. And the keys in the table must say whether a row is of a
        series or of a group, and of which series.
        """
        interval, length = plan.interval, plan.interval.seconds
        both = bool(self.config.pre_aggregates) and interval.table == interval.pre_aggregation_table
        is_whole = chunk.keys == WHOLE or (not output.of_groups and SPAN_S % length == 0)
        if both or not is_whole or (self.config.tag_raw and not output.of_groups):
            return plan.within(0, 0)
        return plan.within(-(-chunk.start_s // length) * length, chunk.end_s // length * length)

    def table(self, name: str) -> str:
        """A table of the configuration, with the layout's prefix."""
        return self.layout.options.table_prefix + name

    def stored(self, aggregator: str) -> Mapping[int, str]:
        """By aggregation id the number that rows of single series (or of a group) hold."""
        ids = self.config.aggregation_ids
        if aggregator == SINGLE:
            return {ids[name]: name for name in self.config.computed}
        return {ids[name]: number for name, number in OF_GROUP[aggregator].items()}


def encode(job: RollupJob, interval: RollupInterval, aggregator: str, buckets: Buckets) -> EncodedRollups:
    """What is stored of accumulators of single series (SINGLE), or of groups with an aggregator."""
    if not interval.is_default:
        return encode_rollups(buckets, interval, job.stored(aggregator), Form.FIXED)
    number = OF_GROUP[aggregator].get(aggregator, OF_GROUP[aggregator].get("sum"))
    assert number is not None
    return encode_points(buckets, number, Form.FIXED)


def outputs(config: RollupConfig, interval: RollupInterval) -> list[str]:
    """The tables, without prefix, that the buckets of an interval go to."""
    tables = [] if interval.is_default else [interval.table]
    return tables + ([interval.pre_aggregation_table] if config.pre_aggregates else [])


def rollup_tables(config: RollupConfig, layout: OpenTsdb) -> Sequence[TableSpec]:
    """The tables that rollups are written to, and that of the hours to be rolled up again."""
    names = dict.fromkeys(name for interval in config.intervals for name in outputs(config, interval))
    prefix, starts = layout.options.table_prefix, "the start of the interval that is rolled up"
    specs = [TableSpec(prefix + name, {FAMILY: 1}, holds_points=True, cell_time=starts) for name in names]
    return [*specs, touched_table(layout)]
