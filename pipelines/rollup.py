"""`timebeam rollup`: rollups and pre-aggregates of a day, out of the raw rows into OpenTSDB's tables.

           ┌─► what has all its points, encoded, over what stands there ──────────► write
raw rows ──┴─► accumulators by series and row ─┐
                                               ├─► group per row ─► merge, encode ─► write
rollup rows ─► what stands there ──────────────┘
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import time
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import cli
from pipelines.bounded import run_bounded
from pipelines.options import create_command, layout_of, letters_of, target_of, text_of
from pipelines.parameters import (
    BIGTABLE,
    BUCKET_PATH,
    DAY,
    DECLARED,
    LAYOUT,
    LETTERS,
    SUMMARY,
    TABLES,
    TIME,
    Parameter,
    TemplateType,
    UsageError,
    boolean,
    not_negative,
    parser_of,
)
from pipelines.preflight import PREFLIGHT, Needs, preflight
from pipelines.rollup_declared import DeclaredWork
from pipelines.rollup_series import build_series, described_series, series_job, series_tables
from pipelines.run import beam_options, is_dataflow
from schema.layouts import Layout, Packing, TableSpec
from schema.layouts.opentsdb.keys import ranges as key_ranges
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.query.times import parse_time, utc_text
from schema.rollup.config import RollupConfig, RollupConfigError
from schema.rollup.config_json import parse_config
from schema.rollup.plan import day_range, last_complete_day, plan
from transforms import coders
from transforms.bigtable.reader import TableReader
from transforms.bigtable.splits import sampled_bytes
from transforms.bigtable.tables import check_tables
from transforms.bigtable.target import Target
from transforms.dead_letters import WriteDeadLetters
from transforms.rollup.job import RollupJob, rollup_tables
from transforms.rollup.series import SeriesRollupJob
from transforms.rollup.steps import add_steps
from transforms.rollup.touched import Touched, clear_marks, read_marks, touched_ranges
from transforms.series_keys import UidOptions
from transforms.uids import UidPolicy
from transforms.write import WriteRows

ROLLUP_CONFIG = Parameter(
    "rollup_config",
    "OpenTSDB's rollup configuration, a JSON file (docs/rollups.md); for declared tables: see --tables",
    "Rollup",
    template=TemplateType.READ_FILE,
    regex=BUCKET_PATH,
    example="gs://my-bucket/rollups.json",
)

_Build = Callable[[beam.Pipeline, str, int], None]
"""Adds the graph of a job, with its dead letters and the time of the run in ms."""

_Job = RollupJob | SeriesRollupJob
"""A rollup of a layout with rollup tables, or of one without."""

PARAMETERS = (
    ROLLUP_CONFIG,
    Parameter(
        "day",
        "the day to roll up, 2026-11-20; without it the last complete one",
        "Rollup",
        regex=DAY,
        example="2026-11-20",
    ),
    Parameter(
        "start",
        "first time of a range in place of a day: 2026-11-20T08:00:00Z, 2d-ago",
        "Rollup",
        regex=TIME,
        example="2026-11-20T08:00:00Z",
    ),
    Parameter("end", "end of the range, not included", "Rollup", regex=TIME, example="1h-ago"),
    Parameter(
        "zone",
        "time zone in which days are counted, as Europe/Berlin",
        "Rollup",
        default="UTC",
        regex=r"[A-Za-z][-+_/A-Za-z0-9]*",
        example="Europe/Berlin",
    ),
    Parameter("delay_hours", "a day is complete so many hours after its end", "Rollup", not_negative, 0.0),
    Parameter(
        "touched",
        "the hours and metrics whose points came after their day was complete (--mark_touched of ingest)",
        "Rollup",
        boolean,
        False,
        local="its marks are cleared by the program that has seen the job end",
    ),
    Parameter("lookback_days", "days before that one to do again, for late points", "Rollup", int, 0),
    Parameter(
        "dead_letters",
        "where what cannot be rolled up goes: files PREFIX-TIME-*.jsonl, or a topic",
        "Rollup",
        default="dead-letters",
        regex=LETTERS,
        example="gs://my-bucket/dead-letters/rollup",
    ),
    *LAYOUT,
    TABLES,
    *BIGTABLE,
    Parameter(
        "dry_run",
        "say what would be read and written, and do nothing",
        "Run",
        boolean,
        False,
        local="it starts no job",
    ),
    PREFLIGHT,
    SUMMARY,
)

EXAMPLES = """\
  timebeam tables create --layout opentsdb --rollup_config rollups.json
  timebeam rollup --layout opentsdb --rollup_config rollups.json
  timebeam rollup --layout opentsdb --rollup_config rollups.json --day 2026-11-20 --lookback_days 2
  timebeam rollup --layout opentsdb --rollup_config rollups.json --start 6h-ago --end 1h-ago
  timebeam rollup --layout opentsdb --rollup_config rollups.json --touched

running it again gives what a computation from scratch gives; every option of Beam can be given too"""


def read_config(path: str) -> RollupConfig:
    """The configuration in a file.

    Raises:
      UsageError: it cannot be read, or used.
    """
    try:
        return parse_config(text_of(path, "rollup configuration"))
    except RollupConfigError as error:
        raise UsageError(f"{path}: {error}") from error


def rollups_of(options: argparse.Namespace) -> tuple[OpenTsdb, RollupConfig]:
    """The layout and the rollup configuration that the options name.

    Raises:
      UsageError: the layout has no rollups, or the configuration is not of its tables.
    """
    layout = layout_of(options)
    if not isinstance(layout, OpenTsdb):
        raise UsageError(f"rollups are OpenTSDB's: layout {layout.name} has none")
    config = read_config(options.rollup_config)
    raw = layout.options.table_prefix + config.default.table
    if raw != layout.data_table:
        raise UsageError(
            f"intervals: the default interval's table is {config.default.table}, with --table_prefix {raw}; "
            f"the raw points are in {layout.data_table}"
        )
    return layout, config


def tables_of_rollups(options: argparse.Namespace) -> list[TableSpec]:
    """The tables that the rollup configuration adds to those of the layout.

    Raises:
      UsageError: the layout has no rollups, or the configuration is wrong.
    """
    config = read_config(options.rollup_config)
    layout = layout_of(options)
    if isinstance(layout, OpenTsdb):
        return list(rollup_tables(config, layout))
    return series_tables(options, config)


def period_of(options: argparse.Namespace, now_ms: int) -> tuple[int, int]:
    """[start, end) in ms of what is to be rolled up.

    Raises:
      UsageError: the options name no range of time, or two.
    """
    try:
        if options.start or options.end:
            if options.day or not (options.start and options.end):
                raise UsageError("give --start and --end, or --day")
            return parse_time(options.start, now_ms), parse_time(options.end, now_ms)
        if options.day:
            day = datetime.date.fromisoformat(options.day)
        else:
            day = last_complete_day(now_ms - int(options.delay_hours * 3_600_000), options.zone)
        first, _ = day_range(day - datetime.timedelta(days=options.lookback_days), options.zone)
        return first, day_range(day, options.zone)[1]
    except (ValueError, KeyError) as error:
        raise UsageError(str(error)) from error


def job_of(options: argparse.Namespace, period: tuple[int, int]) -> RollupJob:
    """The job that the options describe, for a range of time.

    Raises:
      UsageError: they make no sense together.
    """
    layout, config = rollups_of(options)
    try:
        planned = plan(config, *period)
    except ValueError as error:
        raise UsageError(str(error)) from error
    # Names that rollups need and no raw point has: the tags of aggregates.
    policy = UidPolicy(auto_create_metrics=False, auto_create_tagks=True, auto_create_tagvs=True)
    return RollupJob(target_of(options), layout, config, planned, UidOptions(policy), options.dry_run)


def build(root: beam.Pipeline, job: RollupJob, dead_letters: str, run_ms: int, *, write: bool = True) -> None:
    """Adds the graph of a rollup to a pipeline; without `write` it ends before the tables."""
    coders.register()
    once = root | "Once" >> beam.Create([None], reshuffle=False)
    added = add_steps(once, lambda make: make(job))
    tables = [spec.name for spec in rollup_tables(job.config, job.layout)]
    refused = [*added.refused]
    if write:
        for name, rows in added.rows.items():
            refused.append(rows | name >> WriteRows(job.target, tables, "direct", Packing.POINTS))
    (
        refused
        | "AllRefused" >> beam.Flatten()
        | "DeadLetters" >> WriteDeadLetters(dead_letters, run_ms, bounded=True)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Rolls up one range of time, or the touched ones one after the other; the exit code."""
    parser = parser_of("rollup", "Makes the rollups of a day.", EXAMPLES, PARAMETERS)
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    run_ms = int(time.time() * 1000)
    if options.touched and (options.day or options.start or options.end or options.lookback_days):
        raise UsageError("--touched finds its own days: leave --day, --start, --end and --lookback_days out")
    if options.layout == DECLARED:
        return _declared(options, flags, run_ms)
    if not options.rollup_config:
        raise UsageError("give the rollup configuration: --rollup_config FILE")
    period = period_of(options, run_ms)
    job: _Job
    if isinstance(layout_of(options), OpenTsdb):
        job = job_of(options, period)
        tables = rollup_tables(job.config, job.layout)
    else:
        job = series_job(options, read_config(options.rollup_config), period)
        tables = series_tables(options, job.config)
    specs = [*job.layout.tables(), *tables]
    if options.preflight:
        return preflight(_needs(options, job.target, job.layout, specs), flags)
    check_tables(job.target, specs, _create_command(options))
    if options.touched:
        return _redo_touched(options, job, flags)
    return _do(options, job, flags)


def _do(options: argparse.Namespace, job: _Job, flags: Sequence[str]) -> int:
    """Does a job, or says what it would do; the exit code."""
    if options.dry_run:
        print("\n".join(described(job) if isinstance(job, RollupJob) else described_series(job)))
        return 0
    if isinstance(job, RollupJob):
        return _run(options, flags, lambda root, letters, run_ms: build(root, job, letters, run_ms))
    return _run(options, flags, lambda root, letters, run_ms: build_series(root, job, letters, run_ms))


def _needs(options: argparse.Namespace, target: Target, layout: Layout, specs: Sequence[TableSpec]) -> Needs:
    """What a job needs."""
    return Needs(target, layout, None, specs, _create_command(options), options.dead_letters)


def _create_command(options: argparse.Namespace) -> str:
    return f"{create_command(options)} --rollup_config {options.rollup_config}"


def _declared(options: argparse.Namespace, flags: Sequence[str], now_ms: int) -> int:
    """Fills the tables per day, and makes the rollups, of a declaration."""
    work = DeclaredWork(options, now_ms)
    if options.dry_run:
        print("\n".join(work.described()))
        return 0
    for line in work.prepare():
        print(line)
    return _run(options, flags, work.build)


def _redo_touched(options: argparse.Namespace, job: _Job, flags: Sequence[str]) -> int:
    """Rolls up the marked metrics of one range of time after the other, and clears their marks."""
    if is_dataflow(flags):
        raise UsageError("--touched clears its marks when a range is done: run it on a local runner")
    lengths = [one.seconds for one in job.config.intervals]
    found = touched_ranges(read_marks(job.target, job.layout), lengths)
    for one in found:
        print(
            f"{utc_text(one.start_s)} to {utc_text(one.end_s)}: touched metrics {len(one.metrics):,}, "
            f"hours of them {len(one.marks):,}",
            file=sys.stderr,
        )
        _do(options, _only(job, one), flags)
        if not options.dry_run:
            clear_marks(job.target, job.layout, one.marks)
    if not found:
        print("no hour was touched", file=sys.stderr)
    return 0


def _only(job: _Job, touched: Touched) -> _Job:
    """The part of a job that was touched."""
    planned = plan(job.config, touched.start_s * 1000, touched.end_s * 1000)
    if isinstance(job, RollupJob):
        return dataclasses.replace(job, plan=planned, metrics=touched.metrics)
    names = frozenset(metric.decode() for metric in touched.metrics)
    return dataclasses.replace(job, plan=planned, metrics=names)


def _run(options: argparse.Namespace, flags: Sequence[str], build_job: _Build) -> int:
    """Runs one job and prints its summary; the exit code."""
    run_ms = int(time.time() * 1000)  # of this job: each of several days has dead letters of its own
    letters = letters_of(options, run_ms)
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    build_job(pipeline, letters, run_ms)
    return run_bounded(pipeline, options, flags, run_ms, letters)


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


if __name__ == "__main__":
    sys.exit(cli.main(["rollup", *sys.argv[1:]]))
