"""What the rollups of all layouts share, and `--touched`: rollups of hours that late points reached."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator

from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, JobSequence, Needs, Run
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.output.summary import PointsSummary
from timebeam.schema.common.times import utc_text
from timebeam.schema.rollup.plan import RollupPlan, plan
from timebeam.transforms.query.points import why_nothing
from timebeam.transforms.rollup.as_series import SeriesRollupJob
from timebeam.transforms.rollup.job import RollupJob
from timebeam.transforms.rollup.touched import (
    Touched,
    clear_marks,
    note_rolled_up,
    read_marks,
    touched_ranges,
)


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
        """Describes what it would do, in a dry run; see `Job.run_here`."""
        if not run.dry_run:
            return None
        print("\n".join(self.describe()))
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class LayoutRollup(DescribedRollup):
    """A rollup of the points of a layout.

    Attributes:
      work: the layout of the points, the rollup configuration, and what is written of each interval.
    """

    work: RollupJob | SeriesRollupJob

    def only(self, touched: Touched, complete_ms: int) -> LayoutRollup:
        """The same job, for the hours and metrics that late points touched."""
        start_ms, end_ms = touched.start_s * 1000, touched.end_s * 1000
        return self.with_plan(
            plan(self.work.config, start_ms, end_ms, complete_ms=complete_ms), touched.metrics
        )

    @abc.abstractmethod
    def with_plan(self, rollup_plan: RollupPlan, metrics: frozenset[bytes]) -> LayoutRollup:
        """The same job, for another plan and only some metrics, named as in their marks."""

    def needs(self) -> Needs:
        """See `AnyJob.needs`."""
        return Needs(self.work.layout)

    def prepare(self, run: Run) -> None:
        """Notes which hours are rolled up: a later point in them is a touched one."""
        note_rolled_up(self.target, self.work.layout, self.work.plan.complete_s(run.now_ms // 1000))

    def summarize(self, result: PipelineResult, run: Run) -> PointsSummary:
        """See `Job.summarize`."""
        summary = summary_of(result, run)
        if summary.points_read:
            return summary
        return dataclasses.replace(summary, why_nothing=why_nothing(self.target, self.work.layout))


@dataclasses.dataclass(frozen=True, slots=True)
class TouchedRollups(JobSequence):
    """Rolls up the marked metrics of one range of time after the other, and clears their marks.

    Attributes:
      rollup: the job of all metrics; its own range of time does not matter.
      complete_ms: the points before it are there.
    """

    rollup: LayoutRollup
    complete_ms: int

    @property
    def local_only(self) -> str:
        """See `AnyJob.local_only`."""
        return "--touched clears its marks when a range is done: leave --runner out to run on this machine"

    def needs(self) -> Needs:
        """See `AnyJob.needs`."""
        return self.rollup.needs()

    def jobs(self, run: Run) -> Iterator[Job]:
        """See `JobSequence.jobs`."""
        layout = self.rollup.work.layout
        lengths = [interval.seconds for interval in self.rollup.work.config.intervals]
        ranges = touched_ranges(read_marks(self.target, layout), lengths, self.complete_ms // 1000)
        for touched in ranges:
            start, end = utc_text(touched.start_s), utc_text(touched.end_s)
            metrics, hours = len(touched.metrics), len(touched.marks)
            note(f"{start} to {end}: late points in {hours:,} hours of {metrics:,} metrics")
            yield self.rollup.only(touched, self.complete_ms)
            if not run.dry_run:
                clear_marks(self.target, layout, touched.marks)
        if not ranges:
            note("no late points")
