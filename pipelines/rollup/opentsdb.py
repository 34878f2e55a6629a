"""Rollups and pre-aggregates out of the raw rows into OpenTSDB's tables.

           ┌─► what has all its points, encoded, over existing cells ─────────────► write
raw rows ──┴─► accumulators by series and row ─┐
                                               ├─► group per row ─► merge, encode ─► write
rollup rows ─► existing cells ─────────────────┘
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.pipelines.options.period import Period
from timebeam.pipelines.options.values import target_of
from timebeam.pipelines.rollup.config import rollups_of
from timebeam.pipelines.rollup.layout import LayoutRollup
from timebeam.schema.common.times import utc_text
from timebeam.schema.layouts import Packing, RollupTables, TableSpec
from timebeam.schema.layouts.opentsdb.keys import ranges as key_ranges
from timebeam.schema.points import Rejected
from timebeam.schema.rollup.config import RollupConfig
from timebeam.schema.rollup.plan import RollupPlan
from timebeam.transforms.bigtable.splits import sampled_bytes
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.ingest.uids import UidPolicy
from timebeam.transforms.readers.table_reader import TableReader
from timebeam.transforms.rollup.job import RollupJob, rollup_tables
from timebeam.transforms.rollup.steps import add_steps
from timebeam.transforms.write import StoreRows


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTsdbRollup(LayoutRollup):
    """A rollup into OpenTSDB's rollup tables."""

    work: RollupJob

    @property
    def target(self) -> Target:
        """See `AnyJob.target`."""
        return self.work.target

    @property
    def layout(self) -> RollupTables:
        """See `LayoutRollup.layout`."""
        return self.work.layout

    @property
    def config(self) -> RollupConfig:
        """See `LayoutRollup.config`."""
        return self.work.config

    @property
    def plan(self) -> RollupPlan:
        """See `LayoutRollup.plan`."""
        return self.work.plan

    def tables(self) -> Sequence[TableSpec]:
        """See `AnyJob.tables`."""
        return [*self.layout.tables(), *rollup_tables(self.config, self.layout)]

    def with_plan(self, touched: RollupPlan, metrics: frozenset[bytes]) -> OpenTsdbRollup:
        """See `LayoutRollup.with_plan`; the metrics are UIDs."""
        return OpenTsdbRollup(dataclasses.replace(self.work, plan=touched, metrics=metrics))

    def describe(self) -> list[str]:
        """See `Job.describe`."""
        return described(self.work)

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        """See `Job.build`."""
        return add_rollup(root, self.work)


def opentsdb_rollup(options: argparse.Namespace, period: Period) -> OpenTsdbRollup:
    """The job that the options describe, for a range of time.

    Raises:
      UsageError: they make no sense together.
    """
    layout, config = rollups_of(options)
    # Names that rollups need and no raw point has: the tags of aggregates.
    policy = UidPolicy(auto_create_metrics=False, auto_create_tagks=True, auto_create_tagvs=True)
    work = RollupJob(
        target_of(options), layout, config, period.plan(config), UidOptions(policy), options.dry_run
    )
    return OpenTsdbRollup(work)


def add_rollup(root: beam.Pipeline, job: RollupJob, *, write: bool = True) -> list[PCollection[Rejected]]:
    """Adds the graph of a rollup to a pipeline; returns what is refused.

    Args:
      write: without it the graph ends before the tables.
    """
    once = root | "Once" >> beam.Create([None], reshuffle=False)
    added = add_steps(once, job)
    tables = [spec.name for spec in rollup_tables(job.config, job.layout)]
    refused = [*added.refused]
    if write:
        for name, rows in added.rows.items():
            refused.append(rows | name >> StoreRows(job.target, tables, "direct", Packing.POINTS))
    return refused


def described(job: RollupJob) -> list[str]:
    """What a job would read and write, in lines."""
    metrics = job.metric_uids(TableReader(job.target))
    hours = len(job.plan.raw_bases())
    ranges = [
        one
        for uid in metrics.values()
        for one in key_ranges(job.layout.options, uid, job.plan.start_ms, job.plan.end_ms - 1)
    ]
    size, whole = sampled_bytes(job.target, job.layout.data_table, ranges)
    lines = [
        f"would read {len(metrics):,} metrics, {hours:,} hours each, of {job.layout.data_table}: "
        f"by sample about {size / 1e6:,.1f} of {whole / 1e6:,.1f} MB"
    ]
    for one in job.plan.intervals:
        rows = sum(1 for _ in one.rows())
        first, end = utc_text(one.start_s), utc_text(one.end_s)
        tables = [] if one.interval.is_default else [one.interval.table]
        tables += [one.interval.pre_aggregation_table] if job.config.pre_aggregates else []
        into = ", ".join(job.table(name) for name in tables)
        lines.append(
            f"would write {one.interval.interval} from {first} to {end}, {rows:,} rows each series: {into}"
        )
    return lines
