"""Rollups of the points of a layout: into OpenTSDB's tables, or as ordinary series into tables of their own.

`--changed` rolls up the hours that are marked as changed.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.pvalue import AsList, PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import AnyJob, Job, Needs, Run
from timebeam.pipelines.options.parameters import DECLARED, UsageError
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.period import Period, RollupRangeOptions, period_of
from timebeam.pipelines.options.place import Place, read_config
from timebeam.pipelines.output.progress_and_summary import PointsSummary
from timebeam.schema.bits.times import utc_text
from timebeam.schema.core.contract import Store
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.rollup.day_plan import RollupPart, plan
from timebeam.schema.rollup.rollup_config import RollupConfig, RollupConfigError
from timebeam.schema.stores import find_opentsdb, missing
from timebeam.transforms.bigtable.read_ranges import ranges_between, sampled_bytes, split_keys
from timebeam.transforms.ingest.row_mutations import data_tables
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.read.find_series import why_nothing
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.changed_hours import (
    ChangedHour,
    ChangedRange,
    changed_hours_table,
    changed_ranges,
    read_changed_hours,
)
from timebeam.transforms.rollup.rollup_graph import (
    ClearHoursFn,
    RollupEncoder,
    add_rollup,
    covered_hours,
    unwritten_metrics,
    when_complete,
)
from timebeam.transforms.rollup.rollup_job import RollupJob, rollup_tables
from timebeam.transforms.rollup.rollups_as_series import SeriesRollupJob
from timebeam.transforms.rollup.rollups_in_tables import TablesEncoder


def summary_of(result: PipelineResult, run: Run) -> PointsSummary:
    """The figures of a finished rollup: its points become buckets, and do not add up."""
    assert run.dead_letters is not None
    return PointsSummary.of(result, run.seconds, run.dry_run, run.dead_letters, adds_up=False)


class DescribedRollup(Job):
    """A rollup whose dry run only says what it would do."""

    __slots__ = ()

    @abc.abstractmethod
    def describe(self) -> list[str]:
        """What a dry run prints, in lines."""

    def planned(self, run: Run) -> AnyJob | int:
        """Describes what it would do, in a dry run; see `AnyJob.planned`."""
        if not run.dry_run:
            return self
        print("\n".join(self.describe()))
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class LayoutRollup(DescribedRollup):
    """A rollup of the points of a layout.

    Attributes:
      work: the layout of the points, the rollup configuration, and what is written of each interval.
      complete_ms: all points before this time are there.
      changed: roll up only marked hours.
      ending: ends a round of `--follow`, which has leased the hours: anything in, and the metrics with
        unwritten rows as a list. None if the job clears the marks that it covers.
    """

    work: RollupJob | SeriesRollupJob
    complete_ms: int = 0
    changed: bool = False
    ending: beam.DoFn | None = None

    def planned(self, run: Run) -> AnyJob | int:
        """With `--changed`, the same job for all marked hours; see `AnyJob.planned`."""
        if not self.changed:
            return DescribedRollup.planned(self, run)
        layout = self.work.layout
        lengths = [interval.seconds for interval in self.work.config.intervals]
        ranges = changed_ranges(read_changed_hours(self.target, layout), lengths, self.complete_ms // 1000)
        if not ranges:
            note("no late points")
            return 0
        return DescribedRollup.planned(self.of_ranges(ranges), run)

    def of_ranges(self, ranges: Sequence[ChangedRange]) -> LayoutRollup:
        """The same job for these ranges."""
        parts = []
        for changed in ranges:
            start, end = utc_text(changed.start_s), utc_text(changed.end_s)
            metrics, hours = len(changed.metrics), len(changed.hours)
            note(f"{start} to {end}: changes in {hours:,} hours of {metrics:,} metrics")
            period_ms = changed.start_s * 1000, changed.end_s * 1000
            planned = plan(self.work.config, *period_ms, complete_ms=self.complete_ms)
            parts.append(RollupPart(planned, changed.metrics))
        return dataclasses.replace(self, work=dataclasses.replace(self.work, parts=parts))

    def needs(self) -> Needs:
        why = "--changed runs on this machine: leave --runner out" if self.changed else ""
        return Needs(self.work.layout, local_only=why)

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        """See `Job.build`. Marks are read before the points, and cleared after all rows are written.

        Those of metrics with rows that Bigtable refused stay.
        """
        work, once = self.work, root | "OnceMarks" >> beam.Create([None], reshuffle=False)
        hours, clearing = once, self.ending
        if clearing is None:
            lengths = [interval.seconds for interval in work.config.written]
            covered = self.target, work.layout, work.parts, lengths, self.complete_ms // 1000
            hours = once | "Marks" >> beam.FlatMap(covered_hours, *covered).with_output_types(ChangedHour)
            clearing = ClearHoursFn(self.target, work.layout)
        once = root | "Once" >> beam.Create([None], reshuffle=False)
        rejected = add_rollup(when_complete(once, hours), self.encoder)
        hours | "ClearMarks" >> beam.ParDo(clearing, AsList(unwritten_metrics(rejected, work.layout)))
        return rejected

    @property
    @abc.abstractmethod
    def encoder(self) -> RollupEncoder:
        """The rollup, which reads points after the marks."""

    def summarize(self, result: PipelineResult, run: Run) -> PointsSummary:
        summary = summary_of(result, run)
        if summary.points_read:
            return summary
        return dataclasses.replace(summary, why_nothing=why_nothing(self.target, self.work.layout))


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
        for planned in part.plan.intervals:
            interval, rows = planned.interval, len(planned.bases_s)
            tables = job.config.outputs(interval)
            lines.append(
                f"would write {interval.interval} from {utc_text(planned.start_s)} to "
                f"{utc_text(planned.end_s)}, {rows:,} rows per series: {', '.join(map(job.table, tables))}"
            )
        return lines

    @property
    def encoder(self) -> RollupEncoder:
        return TablesEncoder(self.work)


def opentsdb_rollup(place: Place, path: str, period: Period, *, dry_run: bool) -> OpenTsdbRollup:
    """The job for a range of time.

    Args:
      path: of the rollup configuration.

    Raises:
      UsageError: they make no sense together.
    """
    layout, config = place.rollups(path)
    try:
        config.check_written()
    except RollupConfigError as error:
        raise UsageError(f"rollup configuration {path}: {error}") from error
    # Names that rollups need and no raw point has: the tags of aggregates.
    policy = UidPolicy(auto_create_metrics=False, auto_create_tagks=True, auto_create_tagvs=True)
    target, parts = place.target, [RollupPart(period.plan(config))]
    work = RollupJob(target, layout, config, parts, UidOptions(policy), dry_run)
    return OpenTsdbRollup(target, [*layout.tables(), *rollup_tables(config, layout)], work)


def interval_layouts(place: Place, layout: Store, config: RollupConfig) -> dict[str, Store]:
    """By interval the layout of its rollups: `table` of the configuration stands before its tables' names.

    Raises:
      UsageError: the configuration is not for such a layout.
    """
    if config.pre_aggregates:
        raise UsageError(f"timebeam.preAggregates: {missing(layout.name, 'rollup tables', find_opentsdb)}")
    raw = place.table_prefix + config.default.table
    if raw != data_tables(layout)[0]:
        raise UsageError(
            f"intervals: table {config.default.table} of the default interval, with --table-prefix {raw}, "
            f"is not the table of the points, {data_tables(layout)[0]}"
        )
    return {
        interval.interval: dataclasses.replace(
            place.with_settings(archive=False), table_prefix=place.table_prefix + interval.table
        ).store
        for interval in config.rollups
    }


def series_tables(place: Place, config: RollupConfig) -> list[TableSpec]:
    """The tables that the rollups are written to, and that of the hours to be rolled up again.

    Raises:
      UsageError: see `interval_layouts`.
    """
    layout = place.ability("rollups as series", lambda store: store if store.rollup_names else None)
    return _tables_of(layout, interval_layouts(place, layout, config))


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
        for planned in part.plan.intervals:
            interval = planned.interval
            table = data_tables(job.layouts[interval.interval])[0]
            count = (planned.end_s - planned.start_s) // interval.seconds
            lines.append(
                f"would write {interval.interval}, {count:,} intervals per series of "
                f"{', '.join(job.config.computed)}: {table}"
            )
        return lines

    @property
    def encoder(self) -> RollupEncoder:
        return self.work


def series_rollup(place: Place, config: RollupConfig, period: Period) -> SeriesRollup:
    """The job for a range of time.

    Raises:
      UsageError: they make no sense together.
    """
    layout = place.ability("rollups as series", lambda store: store if store.rollup_names else None)
    layouts = interval_layouts(place, layout, config)
    if layout.writing.read_only:
        raise UsageError(layout.writing.read_only)
    target = place.target
    work = SeriesRollupJob(target, layout, config, [RollupPart(period.plan(config))], layouts)
    return SeriesRollup(target, [*layout.tables(), *_tables_of(layout, layouts)], work)


@dataclasses.dataclass(frozen=True, slots=True)
class RollupRunOptions(RollupRangeOptions):
    """What is rolled up: a range of time, or the hours that are marked as changed."""

    rollup_config: str | None
    changed: bool
    follow: bool
    rounds: int | None
    every_seconds: float
    quiet_seconds: float
    lease_seconds: float
    most_hours: int
    dry_run: bool


def job_of(place: Place, options: RollupRunOptions, now_ms: int) -> AnyJob:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    has_range = bool(options.day or options.start or options.end or options.lookback_days)
    if options.changed and has_range:
        raise UsageError("--changed selects the days: leave out --day, --start, --end and --lookback-days")
    if options.follow and options.changed:
        raise UsageError("--follow and --changed: give one of them")
    if options.rounds and not options.follow:
        raise UsageError("--rounds is for --follow: give both, or leave it out")
    if place.layout == DECLARED:
        if options.follow:
            raise UsageError("--follow is not for declared tables: leave it out")
        from timebeam.pipelines.rollup.roll_up_declared import (
            declared_rollups,  # other layouts need no declared tables
        )

        return declared_rollups(place, options, now_ms)
    if not options.rollup_config:
        raise UsageError("give the rollup configuration: --rollup-config FILE")
    period = period_of(options, now_ms)
    rollup: LayoutRollup
    if find_opentsdb(place.store) is not None:
        rollup = opentsdb_rollup(place, options.rollup_config, period, dry_run=options.dry_run)
    else:
        rollup = series_rollup(place, read_config(options.rollup_config), period)
    rollup = dataclasses.replace(rollup, complete_ms=now_ms - options.delay_ms, changed=options.changed)
    since_s = rollup.work.layout.writing.marked_since_s
    if options.follow:
        from timebeam.pipelines.rollup.follow import followed_rollup  # it imports this module

        return followed_rollup(options, rollup, since_s, period if has_range else None)
    if since_s is not None and (options.changed or period.end_ms > since_s * 1000):
        raise UsageError(
            f"marked_since is {place.settings['marked_since']}: from then on only `timebeam rollup --follow` "
            "writes rollups of these tables, since it leases their hours; --rounds 1 ends it after one round"
        )
    return rollup
