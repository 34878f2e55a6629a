"""Rollups of all layouts: marks of changed hours, and `--touched`, the rollup of these hours."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pvalue import AsList, PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, Needs, Run
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.output.summary import PointsSummary
from timebeam.schema.bits.times import utc_text
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.rollup.day_plan import RollupPart, plan
from timebeam.transforms.read.find_series import why_nothing
from timebeam.transforms.rollup.changed_hours import (
    ChangedHour,
    ChangedRange,
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
from timebeam.transforms.rollup.rollup_job import RollupJob
from timebeam.transforms.rollup.rollups_as_series import SeriesRollupJob


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

    def run_here(self, run: Run) -> int | None:
        """Describes what it would do, in a dry run; see `AnyJob.run_here`."""
        if not run.dry_run:
            return None
        print("\n".join(self.describe()))
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class LayoutRollup(DescribedRollup):
    """A rollup of the points of a layout.

    Attributes:
      work: the layout of the points, the rollup configuration, and what is written of each interval.
      complete_ms: all points before this time are there.
      touched: roll up only marked hours.
      ending: ends a round of `--follow`, which has leased the hours: anything in, and the metrics with
        unwritten rows as a list. None if the job clears the marks that it covers.
    """

    work: RollupJob | SeriesRollupJob
    complete_ms: int = 0
    touched: bool = False
    ending: beam.DoFn | None = None

    @property
    def local_only(self) -> str:
        return "--touched runs on this machine: leave --runner out" if self.touched else ""

    def planned(self) -> LayoutRollup | None:
        """With `--touched`, the same job for all marked hours; see `AnyJob.planned`."""
        if not self.touched:
            return self
        layout = self.work.layout
        lengths = [interval.seconds for interval in self.work.config.intervals]
        ranges = changed_ranges(read_changed_hours(self.target, layout), lengths, self.complete_ms // 1000)
        if not ranges:
            note("no late points")
            return None
        return self.of_ranges(ranges)

    def of_ranges(self, ranges: Sequence[ChangedRange]) -> LayoutRollup:
        """The same job for these ranges."""
        parts = []
        for touched in ranges:
            start, end = utc_text(touched.start_s), utc_text(touched.end_s)
            metrics, hours = len(touched.metrics), len(touched.hours)
            note(f"{start} to {end}: changes in {hours:,} hours of {metrics:,} metrics")
            period_ms = touched.start_s * 1000, touched.end_s * 1000
            planned = plan(self.work.config, *period_ms, complete_ms=self.complete_ms)
            parts.append(RollupPart(planned, touched.metrics))
        return dataclasses.replace(self, work=dataclasses.replace(self.work, parts=parts))

    def needs(self) -> Needs:
        return Needs(self.work.layout)

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
        refused = add_rollup(when_complete(once, hours), self.encoder)
        hours | "ClearMarks" >> beam.ParDo(clearing, AsList(unwritten_metrics(refused, work.layout)))
        return refused

    @property
    @abc.abstractmethod
    def encoder(self) -> RollupEncoder:
        """The rollup, which reads points after the marks."""

    def summarize(self, result: PipelineResult, run: Run) -> PointsSummary:
        summary = summary_of(result, run)
        if summary.points_read:
            return summary
        return dataclasses.replace(summary, why_nothing=why_nothing(self.target, self.work.layout))
