"""`timebeam rollup` of a layout without rollup tables: rollups as ordinary series in tables of their own."""

from __future__ import annotations

import argparse
import dataclasses

import apache_beam as beam

from pipelines.options import layout_named, layout_of, target_of
from pipelines.parameters import UsageError
from schema.layouts import Layout, TableSpec
from schema.rollup.config import RollupConfig
from schema.rollup.plan import plan
from transforms import coders
from transforms.bigtable.splits import layout_splits, sampled_bytes
from transforms.dead_letters import WriteDeadLetters
from transforms.rejected import REJECTED
from transforms.rollup.series import SeriesRollupJob, accumulate_series, store_interval
from transforms.rollup.touched import touched_table
from transforms.write import data_tables


def interval_layouts(options: argparse.Namespace, layout: Layout, config: RollupConfig) -> dict[str, Layout]:
    """By interval the layout of its rollups: `table` of the configuration stands before its tables' names.

    Raises:
      UsageError: the configuration is not for such a layout.
    """
    if layout.rollup_names is None:
        raise UsageError(f"layout {layout.name} has no rollups")
    if config.pre_aggregates:
        raise UsageError(
            f"timebeam.preAggregates: groups are for layout opentsdb; {layout.name} has no place"
        )
    raw = options.table_prefix + config.default.table
    if raw != data_tables(layout)[0]:
        raise UsageError(
            f"intervals: the default interval's table is {config.default.table}, with --table_prefix {raw}; "
            f"the points are in {data_tables(layout)[0]}"
        )
    return {
        one.interval: layout_named(
            layout.name, {**vars(options), "table_prefix": options.table_prefix + one.table}
        )
        for one in config.rollups
    }


def series_tables(options: argparse.Namespace, config: RollupConfig) -> list[TableSpec]:
    """The tables that the rollups are written to, and that of the hours to be rolled up again.

    Raises:
      UsageError: see `interval_layouts`.
    """
    starts = "the start of the interval that is rolled up"
    points = layout_of(options)
    found = [
        dataclasses.replace(spec, cell_time=starts) if spec.holds_points else spec
        for layout in interval_layouts(options, points, config).values()
        for spec in layout.tables()
    ]
    return [*found, touched_table(points)]


def series_job(options: argparse.Namespace, config: RollupConfig, period: tuple[int, int]) -> SeriesRollupJob:
    """The job that the options describe, for a range of time.

    Raises:
      UsageError: they make no sense together.
    """
    layout = layout_of(options)
    layouts = interval_layouts(options, layout, config)
    if layout.read_only:
        raise UsageError(layout.read_only)
    try:
        planned = plan(config, *period)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return SeriesRollupJob(target_of(options), layout, config, planned, layouts)


def build_series(
    root: beam.Pipeline, job: SeriesRollupJob, dead_letters: str, run_ms: int, *, write: bool = True
) -> None:
    """Adds the graph of such a rollup to a pipeline; without `write` it ends before the tables."""
    coders.register()
    accumulated = accumulate_series(root, job)
    refused = [accumulated[REJECTED]]
    for one in job.plan.intervals:
        refused += store_interval(root, job, one, accumulated[one.interval.interval], write=write)
    (
        refused
        | "AllRefused" >> beam.Flatten()
        | "DeadLetters" >> WriteDeadLetters(dead_letters, run_ms, bounded=True)
    )


def described_series(job: SeriesRollupJob) -> list[str]:
    """What a job would read and write, in lines."""
    if job.metrics is None:
        splits = layout_splits(job.target, job.layout)
        size, _ = sampled_bytes(job.target, job.data_table, splits)
        lines = [
            f"would read all series of {job.data_table}, in ranges of keys: {len(splits):,}; "
            f"the table has by sample about {size / 1e6:,.1f} MB"
        ]
    else:
        lines = [f"would read of {job.data_table} the metrics {', '.join(sorted(job.metrics))}"]
    for one in job.plan.intervals:
        table = data_tables(job.layouts[one.interval.interval])[0]
        count = (one.end_s - one.start_s) // one.interval.seconds
        lines.append(
            f"would write {one.interval.interval}, {count:,} intervals of each series and of "
            f"{', '.join(job.config.computed)}: {table}"
        )
    return lines
