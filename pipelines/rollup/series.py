"""`timebeam rollup` of a layout without rollup tables: rollups as ordinary series in tables of their own."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.period import Period
from timebeam.pipelines.options.values import layout_named, layout_with, target_of
from timebeam.pipelines.rollup.layout import LayoutRollup
from timebeam.schema.layouts import Layout, MissingCapabilityError, RollupSeries, RollupTables, TableSpec
from timebeam.schema.points import Rejected
from timebeam.schema.rollup.config import RollupConfig
from timebeam.schema.rollup.plan import RollupPlan
from timebeam.transforms.bigtable.reader import ranges_between, sampled_bytes, split_keys
from timebeam.transforms.dead_letters.rejected import REJECTED
from timebeam.transforms.ingest.write import data_tables
from timebeam.transforms.rollup.as_series import SeriesRollupJob, accumulate_series, store_interval
from timebeam.transforms.rollup.touched import touched_table


def interval_layouts(
    options: argparse.Namespace, layout: RollupSeries, config: RollupConfig
) -> dict[str, Layout]:
    """By interval the layout of its rollups: `table` of the configuration stands before its tables' names.

    Raises:
      UsageError: the configuration is not for such a layout.
    """
    if config.pre_aggregates:
        raise UsageError(f"timebeam.preAggregates: {MissingCapabilityError(layout.name, RollupTables)}")
    raw = options.table_prefix + config.default.table
    if raw != data_tables(layout)[0]:
        raise UsageError(
            f"intervals: the default interval's table is {config.default.table}, with --table_prefix {raw}; "
            f"the points are in {data_tables(layout)[0]}"
        )
    return {
        interval.interval: layout_named(
            layout.name, {**vars(options), "table_prefix": options.table_prefix + interval.table}
        )
        for interval in config.rollups
    }


def series_tables(options: argparse.Namespace, config: RollupConfig) -> list[TableSpec]:
    """The tables that the rollups are written to, and that of the hours to be rolled up again.

    Raises:
      UsageError: see `interval_layouts`.
    """
    layout = layout_with(options, RollupSeries)
    return _tables_of(layout, interval_layouts(options, layout, config))


def _tables_of(layout: Layout, layouts: Mapping[str, Layout]) -> list[TableSpec]:
    starts = "the start of the interval that is rolled up"
    specs = [
        dataclasses.replace(spec, cell_time=starts) if spec.holds_points else spec
        for interval_layout in layouts.values()
        for spec in interval_layout.tables()
    ]
    return [*specs, touched_table(layout)]


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesRollup(LayoutRollup):
    """A rollup into ordinary series, in tables of their own."""

    work: SeriesRollupJob

    def tables(self) -> Sequence[TableSpec]:
        """See `AnyJob.tables`."""
        return [*self.work.layout.tables(), *_tables_of(self.work.layout, self.work.layouts)]

    def with_plan(self, rollup_plan: RollupPlan, metrics: frozenset[bytes]) -> SeriesRollup:
        """See `LayoutRollup.with_plan`; the metrics are names in UTF-8."""
        names = frozenset(metric.decode() for metric in metrics)
        return SeriesRollup(dataclasses.replace(self.work, plan=rollup_plan, metrics=names))

    def describe(self) -> list[str]:
        """See `Job.describe`."""
        job = self.work
        if job.metrics is None:
            splits = ranges_between(split_keys(job.target, job.data_table, cut_at=job.layout.cut_at))
            size, _ = sampled_bytes(job.target, job.data_table, splits)
            lines = [
                f"would read all series of {job.data_table} in {len(splits):,} key ranges: "
                f"about {size / 1e6:,.1f} MB (sampled)"
            ]
        else:
            lines = [f"would read metrics {', '.join(sorted(job.metrics))} of {job.data_table}"]
        for plan in job.plan.intervals:
            interval = plan.interval
            table = data_tables(job.layouts[interval.interval])[0]
            count = (plan.end_s - plan.start_s) // interval.seconds
            lines.append(
                f"would write {interval.interval}, {count:,} intervals per series of "
                f"{', '.join(job.config.computed)}: {table}"
            )
        return lines

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        """See `Job.build`."""
        accumulated = accumulate_series(root, self.work)
        refused = [accumulated[REJECTED]]
        for interval in self.work.plan.intervals:
            name = interval.interval.interval
            refused += store_interval(root, self.work, interval, accumulated[name], write=True)
        return refused


def series_rollup(options: argparse.Namespace, config: RollupConfig, period: Period) -> SeriesRollup:
    """The job that the options describe, for a range of time.

    Raises:
      UsageError: they make no sense together.
    """
    layout = layout_with(options, RollupSeries)
    layouts = interval_layouts(options, layout, config)
    if layout.read_only:
        raise UsageError(layout.read_only)
    work = SeriesRollupJob(target_of(options), layout, config, period.plan(config), layouts)
    return SeriesRollup(work)
