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
from timebeam.schema.layouts import Packing, TableSpec
from timebeam.schema.layouts.opentsdb.keys import ranges as key_ranges
from timebeam.schema.points import Rejected
from timebeam.schema.rollup.plan import RollupPlan
from timebeam.transforms.bigtable.reader import sampled_bytes
from timebeam.transforms.ingest.assign import UidOptions
from timebeam.transforms.ingest.uids import UidPolicy
from timebeam.transforms.ingest.write import StoreRows
from timebeam.transforms.readers.table_reader import TableReader
from timebeam.transforms.rollup.job import RollupJob, rollup_tables
from timebeam.transforms.rollup.steps import add_steps


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTsdbRollup(LayoutRollup):
    """A rollup into OpenTSDB's rollup tables."""

    work: RollupJob

    def tables(self) -> Sequence[TableSpec]:
        """See `AnyJob.tables`."""
        return [*self.work.layout.tables(), *rollup_tables(self.work.config, self.work.layout)]

    def with_plan(self, rollup_plan: RollupPlan, metrics: frozenset[bytes]) -> OpenTsdbRollup:
        """See `LayoutRollup.with_plan`; the metrics are UIDs."""
        return OpenTsdbRollup(dataclasses.replace(self.work, plan=rollup_plan, metrics=metrics))

    def describe(self) -> list[str]:
        """See `Job.describe`."""
        job = self.work
        metrics = job.metric_uids(TableReader(job.target))
        hours = len(job.plan.raw_bases())
        ranges = [
            keys
            for uid in metrics.values()
            for keys in key_ranges(job.layout.options, uid, job.plan.start_ms, job.plan.end_ms - 1)
        ]
        size, table_size = sampled_bytes(job.target, job.layout.data_table, ranges)
        lines = [
            f"would read {len(metrics):,} metrics, {hours:,} hours each, from {job.layout.data_table}: "
            f"about {size / 1e6:,.1f} of {table_size / 1e6:,.1f} MB (sampled)"
        ]
        for plan in job.plan.intervals:
            interval, rows = plan.interval, sum(1 for _ in plan.rows())
            tables = [] if interval.is_default else [interval.table]
            tables += [interval.pre_aggregation_table] if job.config.pre_aggregates else []
            lines.append(
                f"would write {interval.interval} from {utc_text(plan.start_s)} to {utc_text(plan.end_s)}, "
                f"{rows:,} rows per series: {', '.join(job.table(name) for name in tables)}"
            )
        return lines

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
