"""`timebeam compact`: the rows of closed hours into one cell each.

metrics and hours ─► read rows ─► those that gain by it ─► one mutation each: delete what went in, set a cell
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import cli
from pipelines.options import create_command, layout_of, target_of
from pipelines.parameters import (
    BIGTABLE,
    DAY,
    LAYOUT,
    SUMMARY,
    TIME,
    Parameter,
    UsageError,
    boolean,
    not_negative,
    parser_of,
)
from pipelines.run import beam_options, is_dataflow, run_with_progress, submit
from schema.layouts import Packing
from schema.layouts.opentsdb.keys import SPAN_S
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.query.times import parse_time
from schema.rollup.plan import day_range, last_complete_day
from transforms import coders
from transforms.bigtable.tables import check_tables
from transforms.compact import CompactJob, CompactRows, Tally, tally_of

_LAST_S = 1 << 32
_SETTLED_MS = 60_000  # more than the clocks of Bigtable and this machine differ

PARAMETERS = (
    Parameter(
        "day",
        "the day, in UTC, 2026-11-20; without it the last one that is closed",
        "Compact",
        regex=DAY,
        example="2026-11-20",
    ),
    Parameter(
        "start",
        "first time of a range in place of a day: 2026-11-20T08:00:00Z, 2d-ago",
        "Compact",
        regex=TIME,
        example="2026-11-20T08:00:00Z",
    ),
    Parameter(
        "end",
        "end of the range, not included; only whole hours in it are compacted",
        "Compact",
        regex=TIME,
        example="1d-ago",
    ),
    Parameter("closed_hours", "an hour is closed so many hours after its end", "Compact", not_negative, 1.0),
    Parameter(
        "form",
        "what is written: compacted columns, or the append column of tables that a TSD appends to",
        "Compact",
        default=Packing.COMPACTED.value,
        choices=(Packing.COMPACTED.value, Packing.APPEND.value),
    ),
    *LAYOUT,
    *BIGTABLE,
    Parameter("dry_run", "count what would change, and write nothing", "Run", boolean, False),
    SUMMARY,
)

EXAMPLES = """\
  timebeam compact --layout opentsdb --dry_run
  timebeam compact --layout opentsdb --day 2026-11-20
  timebeam compact --layout opentsdb --start 30d-ago --end 1d-ago --salt_width 1

queries give the same before and after; what the cells' timestamps mean changes: docs/compact.md;
every option of Beam can be given too"""


def hours_of(options: argparse.Namespace, now_ms: int) -> tuple[int, int]:
    """[start, end) in seconds: the closed hours that lie in the range of time.

    Raises:
      UsageError: the options name no range of time, or two, or none of its hours is closed.
    """
    closed_ms = now_ms - int(options.closed_hours * 3_600_000)
    try:
        if options.start or options.end:
            if options.day or not (options.start and options.end):
                raise UsageError("give --start and --end, or --day")
            start_ms, end_ms = parse_time(options.start, now_ms), parse_time(options.end, now_ms)
        else:
            day = datetime.date.fromisoformat(options.day) if options.day else last_complete_day(closed_ms)
            start_ms, end_ms = day_range(day)
    except ValueError as error:
        raise UsageError(str(error)) from error
    start_s = max(0, -(-start_ms // 1000) + SPAN_S - 1) // SPAN_S * SPAN_S
    end_s = min(end_ms // 1000, closed_ms // 1000, _LAST_S) // SPAN_S * SPAN_S
    if start_s >= end_s:
        raise UsageError(
            "no whole hour of this range of time is closed: hours are, "
            f"--closed_hours {options.closed_hours:g} after their end"
        )
    return start_s, end_s


def job_of(options: argparse.Namespace, now_ms: int) -> CompactJob:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    layout = layout_of(options)
    if not isinstance(layout, OpenTsdb):
        raise UsageError(f"compaction is OpenTSDB's: a row of layout {layout.name} has a cell for each point")
    if layout.options.is_event_time:
        raise UsageError(
            "with --cell_time event rows are not compacted: a value written meanwhile would have the column "
            "and the timestamp of the one that is deleted, and be lost with it"
        )
    start_s, end_s = hours_of(options, now_ms)
    target, form = target_of(options), Packing(options.form)
    return CompactJob(target, layout, start_s, end_s, form, now_ms - _SETTLED_MS, options.dry_run)


@dataclasses.dataclass(frozen=True, slots=True)
class CompactSummary:
    """What a compaction did, in seconds from the start of the command's work."""

    tally: Tally
    seconds: float
    dry_run: bool

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.tally._asdict() | {"seconds": self.seconds, "dry_run": self.dry_run})

    def to_text(self) -> str:
        """A table for people."""
        found = self.tally
        lines = [
            ("rows read", f"{found.rows_read:,}"),
            ("rows to rewrite" if self.dry_run else "rows rewritten", f"{found.rows_rewritten:,}"),
            ("rows refused", f"{found.rows_refused:,}"),
            ("cells before, after", f"{found.cells_before:,}, {found.cells_after:,}"),
            ("bytes before, after", f"{found.bytes_before:,}, {found.bytes_after:,}"),
            ("seconds", f"{self.seconds:.1f}"),
        ]
        text = "\n".join(f"{name:26} {value}" for name, value in lines)
        return ("nothing was written (dry run)\n" if self.dry_run else "") + text


def main(argv: Sequence[str] | None = None) -> int:
    """Compacts one range of time; exit code 1 if Bigtable refused a row, which is then as it was."""
    parser = parser_of("compact", "Makes one cell of each row of closed hours.", EXAMPLES, PARAMETERS)
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    run_ms = int(time.time() * 1000)
    job = job_of(options, run_ms)
    check_tables(job.target, job.layout.tables(), create_command(options))
    coders.register()
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    pipeline | CompactRows(job)
    if is_dataflow(flags):
        return submit(pipeline)
    tally = tally_of(run_with_progress(pipeline))
    summary = CompactSummary(tally, time.time() - run_ms / 1000, job.dry_run)
    print(summary.to_json() if options.summary == "json" else summary.to_text())
    return 1 if tally.rows_refused else 0


if __name__ == "__main__":
    sys.exit(cli.main(["compact", *sys.argv[1:]]))
