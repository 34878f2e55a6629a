"""`timebeam rollup`: rollups and pre-aggregates of a day, or of hours that late points touched."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from timebeam.pipelines.jobs.job import Run
from timebeam.pipelines.jobs.preflight import PREFLIGHT
from timebeam.pipelines.jobs.run import run_job
from timebeam.pipelines.jobs.runners import beam_options
from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    CENTURY_DAYS,
    DECLARED,
    LAYOUT,
    LETTERS,
    MAX_REFUSED,
    SUMMARY,
    TABLES,
    Parameter,
    UsageError,
    boolean,
    not_negative,
    whole,
)
from timebeam.pipelines.options.period import ZONE, delay_ms, period_of, range_parameters
from timebeam.pipelines.options.stored import use_stored
from timebeam.pipelines.options.values import create_command, layout_of
from timebeam.pipelines.rollup.config import ROLLUP_CONFIG, read_config
from timebeam.pipelines.rollup.declared import DeclaredRollups, declared_rollups
from timebeam.pipelines.rollup.jobs import opentsdb_rollup, series_rollup
from timebeam.pipelines.rollup.layout import LayoutRollup, TouchedRollups
from timebeam.schema.layouts import RollupTables, find_capability

PARAMETERS = (
    ROLLUP_CONFIG,
    *range_parameters(
        "Rollup",
        "day to roll up, such as 2026-11-20; by default the last complete day",
        "end of the range, exclusive",
        "1h-ago",
    ),
    ZONE,
    Parameter(
        "delay_hours",
        "hours after the end of a day until it is complete",
        "Rollup",
        not_negative,
        0.0,
        most=24 * CENTURY_DAYS,
        setting=True,
    ),
    Parameter(
        "allow_incomplete",
        "accept a day or range that is not over yet; run it again when it is",
        "Rollup",
        boolean,
        False,
    ),
    Parameter(
        "touched",
        "only hours and metrics that received points after their day was complete (ingest --mark_touched)",
        "Rollup",
        boolean,
        False,
        local="the program clears the marks when it has seen the job end",
    ),
    Parameter(
        "lookback_days",
        "also redo this many days before it, for late points",
        "Rollup",
        whole,
        0,
        most=CENTURY_DAYS,
        setting=True,
    ),
    Parameter(
        "dead_letters",
        "destination of rows that cannot be rolled up: files PREFIX-TIME-*.jsonl, or a topic",
        "Rollup",
        default="dead-letters",
        regex=LETTERS,
        example="gs://my-bucket/dead-letters/rollup",
        setting=True,
    ),
    *LAYOUT,
    TABLES,
    *BIGTABLE,
    Parameter(
        "dry_run",
        "print what would be read and written; do nothing",
        "Run",
        boolean,
        False,
        local="it starts no job",
    ),
    PREFLIGHT,
    SUMMARY,
    MAX_REFUSED,
)

EXAMPLES = """\
  timebeam tables create --layout opentsdb --rollup_config rollups.json
  timebeam rollup --layout opentsdb --rollup_config rollups.json
  timebeam rollup --layout opentsdb --rollup_config rollups.json --day 2026-11-20 --lookback_days 2
  timebeam rollup --layout opentsdb --rollup_config rollups.json --start 6h-ago --end 1h-ago
  timebeam rollup --layout opentsdb --rollup_config rollups.json --touched

a repeated run gives the same result; Beam's own options can be given too"""


def job_of(options: argparse.Namespace, now_ms: int) -> LayoutRollup | TouchedRollups | DeclaredRollups:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    if options.touched and (options.day or options.start or options.end or options.lookback_days):
        raise UsageError("--touched finds its own days: leave --day, --start, --end and --lookback_days out")
    if options.layout == DECLARED:
        return declared_rollups(options, now_ms)
    if not options.rollup_config:
        raise UsageError("give the rollup configuration: --rollup_config FILE")
    period = period_of(options, now_ms)
    rollup: LayoutRollup
    if find_capability(layout_of(options), RollupTables) is not None:
        rollup = opentsdb_rollup(options, period)
    else:
        rollup = series_rollup(options, read_config(options.rollup_config), period)
    return TouchedRollups(rollup, now_ms - delay_ms(options)) if options.touched else rollup


def command_parser() -> CommandParser:
    """The parser of the command."""
    return parser_of(
        "rollup", "Makes the rollups and pre-aggregates of a day or range.", EXAMPLES, PARAMETERS
    )


def main(argv: Sequence[str] | None = None, *, now_ms: int | None = None) -> int:
    """Rolls up one range of time, or the touched ones one after the other; returns the exit code.

    Args:
      now_ms: the time of the run in ms since 1970; without it that of the system's clock.
    """
    parser = command_parser()
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project, check=not options.preflight)
    use_stored(options)
    run_ms = int(time.time() * 1000)
    now_ms = run_ms if now_ms is None else now_ms
    job = job_of(options, now_ms)
    command = create_command(options)
    if options.rollup_config:
        command += f" --rollup_config {options.rollup_config}"
    run = Run.of(options, flags, run_ms, command, now_ms)
    return run_job(job, run)
