"""`timebeam compact`: the rows of closed hours into one cell each.

metrics and hours ─► read rows ─► those that gain by it ─► one mutation each: delete what went in, set a cell
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, Run
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.period import (
    SETTLED_MS,
    named_day,
    named_range,
    range_of_day,
    whole_hours,
)
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.pipelines.options.values import opentsdb_of, target_of
from timebeam.pipelines.output.summary import TallySummary
from timebeam.schema.bits.times import HOUR_MS
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected
from timebeam.transforms.care.range_leases import Leases
from timebeam.transforms.opentsdb.compact_rows import COUNTERS, CompactJob, CompactRows
from timebeam.transforms.read.find_series import why_nothing


def hours_of(options: argparse.Namespace, now_ms: int) -> tuple[int, int]:
    """[start, end) in seconds: the closed hours that lie in the range of time.

    Raises:
      UsageError: the options name no range of time, or two, or none of its hours is closed.
    """
    closed_ms = now_ms - int(options.closed_hours * HOUR_MS)
    start_ms, end_ms = named_range(options, now_ms) or range_of_day(named_day(options, closed_ms))
    start_s, end_s = whole_hours(start_ms, min(end_ms, closed_ms))
    if start_s >= end_s:
        raise UsageError(
            "no hour of this time range is closed: hours close "
            f"{options.closed_hours:g} h after their end (--closed_hours)"
        )
    return start_s, end_s


@dataclasses.dataclass(frozen=True, slots=True)
class Compact(Job):
    """Compacts one range of time; a row that Bigtable refuses stays as it was, and the exit code is 1."""

    work: CompactJob

    def prepare(self, run: Run) -> None:
        """See `Job.prepare`: creates the table of leases."""
        for line in () if run.dry_run else self.work.leases.open():
            note(line)

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        root | CompactRows(self.work)
        return ()

    def summarize(self, result: PipelineResult, run: Run) -> TallySummary:
        tally = COUNTERS.tally(result)
        return TallySummary(
            tally=tally._asdict(),
            rows=[
                ("rows read", f"{tally.rows_read:,}"),
                ("rows to rewrite" if self.work.dry_run else "rows rewritten", f"{tally.rows_rewritten:,}"),
                ("rows refused", f"{tally.rows_refused:,}"),
                ("cells before, after", f"{tally.cells_before:,}, {tally.cells_after:,}"),
                ("bytes before, after", f"{tally.bytes_before:,}, {tally.bytes_after:,}"),
            ],
            seconds=run.seconds,
            dry_run=self.work.dry_run,
            why_nothing="" if tally.rows_read else why_nothing(self.work.target, self.work.layout),
            failed=tally.rows_refused > 0,
        )


def job_of(options: argparse.Namespace, now_ms: int) -> Compact:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    layout = opentsdb_of(options, "compaction")
    if layout.options.is_event_time:
        raise UsageError(
            "--cell_time event: rows cannot be compacted, because a point written meanwhile could be "
            "deleted with the cells that are replaced"
        )
    start_s, end_s = hours_of(options, now_ms)
    target, form = target_of(options), Packing(options.form)
    leases = Leases(target, settings_table(options.table_prefix), "compact")
    work = CompactJob(target, layout, start_s, end_s, form, now_ms - SETTLED_MS, leases, options.dry_run)
    return Compact(target, layout.tables(), work)
