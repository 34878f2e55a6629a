"""Rollups into OpenTSDB's tables, or as ordinary series into tables of their own."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping

from timebeam.pipelines.options.parameters import DECLARED, UsageError
from timebeam.pipelines.options.period import Period, delay_ms, period_of
from timebeam.pipelines.options.values import (
    layout_named,
    layout_of,
    layout_with,
    read_config,
    rollups_of,
    target_of,
)
from timebeam.pipelines.rollup.declared import DeclaredRollups, declared_rollups
from timebeam.pipelines.rollup.follow import FollowedRollup, Rounds
from timebeam.pipelines.rollup.layout import LayoutRollup
from timebeam.schema.bits.times import DAY_S, hours_between, utc_text
from timebeam.schema.core.contract import Store
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.rollup.day_plan import RollupPart
from timebeam.schema.rollup.rollup_config import RollupConfig, RollupConfigError
from timebeam.schema.stores import find_opentsdb, missing
from timebeam.transforms.bigtable.read_ranges import ranges_between, sampled_bytes, split_keys
from timebeam.transforms.ingest.assign_keys import UidOptions
from timebeam.transforms.ingest.write_packed_rows import data_tables
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.changed_hours import changed_hours_table
from timebeam.transforms.rollup.rollup_graph import RollupEncoder
from timebeam.transforms.rollup.rollup_job import RollupJob, rollup_tables
from timebeam.transforms.rollup.rollups_as_series import SeriesRollupJob
from timebeam.transforms.rollup.rollups_in_tables import TablesEncoder


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTsdbRollup(LayoutRollup):
    """A rollup into OpenTSDB's rollup tables."""

    work: RollupJob

    def describe(self) -> list[str]:
        uids = self.work.layout.metric_uids(TableReader(self.target))
        return [line for part in self.work.parts for line in self._described(part, uids)]

    def _described(self, part: RollupPart, uids: Mapping[str, bytes]) -> list[str]:
        job, metrics = self.work, part.only(uids)
        hours = len(part.plan.raw_bases())
        ranges = job.data_ranges(metrics.values(), part)
        size, table_size = sampled_bytes(job.target, job.layout.data_table, ranges)
        lines = [
            f"would read {len(metrics):,} metrics, {hours:,} hours each, from {job.layout.data_table}: "
            f"about {size / 1e6:,.1f} of {table_size / 1e6:,.1f} MB (sampled)"
        ]
        for plan in part.plan.intervals:
            interval, rows = plan.interval, len(plan.bases_s)
            tables = job.config.outputs(interval)
            lines.append(
                f"would write {interval.interval} from {utc_text(plan.start_s)} to {utc_text(plan.end_s)}, "
                f"{rows:,} rows per series: {', '.join(job.table(name) for name in tables)}"
            )
        return lines

    @property
    def encoder(self) -> RollupEncoder:
        return TablesEncoder(self.work)


def opentsdb_rollup(options: argparse.Namespace, period: Period) -> OpenTsdbRollup:
    """The job that the options describe, for a range of time.

    Raises:
      UsageError: they make no sense together.
    """
    layout, config = rollups_of(options)
    try:
        config.check_written()
    except RollupConfigError as error:
        raise UsageError(f"rollup configuration {options.rollup_config}: {error}") from error
    # Names that rollups need and no raw point has: the tags of aggregates.
    policy = UidPolicy(auto_create_metrics=False, auto_create_tagks=True, auto_create_tagvs=True)
    target = target_of(options)
    parts = [RollupPart(period.plan(config))]
    work = RollupJob(target, layout, config, parts, UidOptions(policy), options.dry_run)
    return OpenTsdbRollup(target, [*layout.tables(), *rollup_tables(config, layout)], work)


def interval_layouts(options: argparse.Namespace, layout: Store, config: RollupConfig) -> dict[str, Store]:
    """By interval the layout of its rollups: `table` of the configuration stands before its tables' names.

    Raises:
      UsageError: the configuration is not for such a layout.
    """
    if config.pre_aggregates:
        raise UsageError(f"timebeam.preAggregates: {missing(layout.name, 'rollup tables', find_opentsdb)}")
    raw = options.table_prefix + config.default.table
    if raw != data_tables(layout)[0]:
        raise UsageError(
            f"intervals: the default interval's table is {config.default.table}, with --table_prefix {raw}; "
            f"the points are in {data_tables(layout)[0]}"
        )
    return {
        interval.interval: layout_named(
            layout.name,
            {**vars(options), "table_prefix": options.table_prefix + interval.table, "archive": False},
        )
        for interval in config.rollups
    }


def series_tables(options: argparse.Namespace, config: RollupConfig) -> list[TableSpec]:
    """The tables that the rollups are written to, and that of the hours to be rolled up again.

    Raises:
      UsageError: see `interval_layouts`.
    """
    layout = layout_with(options, "rollups as series", lambda store: store if store.rollup_names else None)
    return _tables_of(layout, interval_layouts(options, layout, config))


def _tables_of(layout: Store, layouts: Mapping[str, Store]) -> list[TableSpec]:
    starts = "the start of the interval that is rolled up"
    specs = [
        dataclasses.replace(spec, cell_time=starts) if spec.holds_points else spec
        for interval_layout in layouts.values()
        for spec in interval_layout.tables()
    ]
    return [*specs, changed_hours_table(layout)]


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesRollup(LayoutRollup):
    """A rollup into ordinary series, in tables of their own."""

    work: SeriesRollupJob

    def describe(self) -> list[str]:
        return [line for part in self.work.parts for line in self._described(part)]

    def _described(self, part: RollupPart) -> list[str]:
        job = self.work
        if part.metrics is None:
            splits = ranges_between(split_keys(job.target, job.data_table, cut_at=job.layout.cut_at))
            size, _ = sampled_bytes(job.target, job.data_table, splits)
            lines = [
                f"would read all series of {job.data_table} in {len(splits):,} key ranges: "
                f"about {size / 1e6:,.1f} MB (sampled)"
            ]
        else:
            names = ", ".join(sorted(metric.decode() for metric in part.metrics))
            lines = [f"would read metrics {names} of {job.data_table}"]
        for plan in part.plan.intervals:
            interval = plan.interval
            table = data_tables(job.layouts[interval.interval])[0]
            count = (plan.end_s - plan.start_s) // interval.seconds
            lines.append(
                f"would write {interval.interval}, {count:,} intervals per series of "
                f"{', '.join(job.config.computed)}: {table}"
            )
        return lines

    @property
    def encoder(self) -> RollupEncoder:
        return self.work


def series_rollup(options: argparse.Namespace, config: RollupConfig, period: Period) -> SeriesRollup:
    """The job that the options describe, for a range of time.

    Raises:
      UsageError: they make no sense together.
    """
    layout = layout_with(options, "rollups as series", lambda store: store if store.rollup_names else None)
    layouts = interval_layouts(options, layout, config)
    if layout.writing.read_only:
        raise UsageError(layout.writing.read_only)
    target = target_of(options)
    work = SeriesRollupJob(target, layout, config, [RollupPart(period.plan(config))], layouts)
    return SeriesRollup(target, [*layout.tables(), *_tables_of(layout, layouts)], work)


def job_of(options: argparse.Namespace, now_ms: int) -> LayoutRollup | FollowedRollup | DeclaredRollups:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    has_range = bool(options.day or options.start or options.end or options.lookback_days)
    if options.touched and has_range:
        raise UsageError("--touched finds its own days: leave --day, --start, --end and --lookback_days out")
    if options.follow and options.touched:
        raise UsageError("--follow and --touched: give one of them")
    if options.rounds and not options.follow:
        raise UsageError("--rounds is for --follow: give both, or leave it out")
    if options.layout == DECLARED:
        if options.follow:
            raise UsageError("--follow is not for declared tables: leave it out")
        return declared_rollups(options, now_ms)
    if not options.rollup_config:
        raise UsageError("give the rollup configuration: --rollup_config FILE")
    period = period_of(options, now_ms)
    rollup: LayoutRollup
    if find_opentsdb(layout_of(options)) is not None:
        rollup = opentsdb_rollup(options, period)
    else:
        rollup = series_rollup(options, read_config(options.rollup_config), period)
    rollup = dataclasses.replace(rollup, complete_ms=now_ms - delay_ms(options), touched=options.touched)
    since_s = rollup.work.layout.writing.marked_since_s
    if options.follow:
        return _followed(options, rollup, since_s, period if has_range else None)
    if since_s is not None and (options.touched or period.end_ms > since_s * 1000):
        raise UsageError(
            f"--marked_since {options.marked_since}: from then on only `timebeam rollup --follow` writes "
            "rollups of these tables, since it leases their hours; --rounds 1 ends it after one round"
        )
    return rollup


def _followed(
    options: argparse.Namespace, rollup: LayoutRollup, since_s: int | None, marked: Period | None
) -> FollowedRollup:
    """The rounds that the options describe.

    Args:
      since_s: all writers mark from this time on; None if some may not.
      marked: the hours that are marked before the first round; None for none.

    Raises:
      UsageError: the options make no sense together.
    """
    layout = rollup.work.layout
    if find_opentsdb(layout) is None:
        raise UsageError(f"--follow is not for layout {layout.name}: run --touched now and then")
    if options.delay_hours:
        raise UsageError("--follow waits for --quiet_seconds: leave --delay_hours out")
    if since_s is None:
        raise UsageError(
            "--follow needs tables with --marked_since: store the day from which on all writers mark with "
            f"`timebeam tables adopt --layout {options.layout} --marked_since DAY` (docs/how-to/rollups.md)"
        )
    crossing = [each.interval for each in rollup.work.config.intervals if DAY_S % each.seconds]
    if crossing:
        raise UsageError(
            f"--follow: intervals of {crossing[0]} do not divide a day, but a lease is for a UTC day: two "
            "rounds could write one interval; leave it out of the configuration"
        )
    marked_first = range(0)
    if marked is not None:
        marked_first = hours_between(marked.start_ms, marked.end_ms)
    rounds = Rounds(rollup, int(options.quiet_seconds * 1000), options.lease_seconds, options.most_hours)
    return FollowedRollup(
        rollup.target, rollup.tables, rounds, options.every_seconds, options.rounds, marked_first
    )
