"""What the rollups of all layouts share, and `--touched`: rollups of hours that late points reached."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, Needs, Run
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.output.summary import PointsSummary
from timebeam.schema.common.times import utc_text
from timebeam.schema.points import Reason
from timebeam.schema.rollup.plan import RollupPart, plan
from timebeam.transforms import metrics
from timebeam.transforms.dead_letters.store import count_letters
from timebeam.transforms.query.points import why_nothing
from timebeam.transforms.rollup.as_series import SeriesRollupJob
from timebeam.transforms.rollup.job import RollupJob
from timebeam.transforms.rollup.touched import (
    HourMark,
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
      touched_until_ms: roll up only marked hours; all points before this time are there. None without
        `--touched`.
      marks: of the hours that are rolled up, which are cleared at the end.
    """

    work: RollupJob | SeriesRollupJob
    touched_until_ms: int | None = None
    marks: Sequence[HourMark] = ()

    @property
    def local_only(self) -> str:
        """See `AnyJob.local_only`."""
        if self.touched_until_ms is None:
            return ""
        return "--touched clears its marks when it is done: leave --runner out to run on this machine"

    def planned(self) -> LayoutRollup | None:
        """With `--touched`, the same job for all marked hours; see `Job.planned`."""
        if self.touched_until_ms is None:
            return self
        layout, config = self.work.layout, self.work.config
        lengths = [interval.seconds for interval in config.intervals]
        ranges = touched_ranges(read_marks(self.target, layout), lengths, self.touched_until_ms // 1000)
        parts = []
        for touched in ranges:
            start, end = utc_text(touched.start_s), utc_text(touched.end_s)
            metrics, hours = len(touched.metrics), len(touched.marks)
            note(f"{start} to {end}: late points in {hours:,} hours of {metrics:,} metrics")
            period_ms = touched.start_s * 1000, touched.end_s * 1000
            parts.append(
                RollupPart(plan(config, *period_ms, complete_ms=self.touched_until_ms), touched.metrics)
            )
        if not parts:
            note("no late points")
            return None
        marks = [mark for touched in ranges for mark in touched.marks]
        return dataclasses.replace(self, work=dataclasses.replace(self.work, parts=parts), marks=marks)

    def needs(self) -> Needs:
        """See `AnyJob.needs`."""
        return Needs(self.work.layout)

    def prepare(self, run: Run) -> None:
        """Notes which hours are rolled up: a later point in them is a touched one."""
        now_s = run.now_ms // 1000
        end_s = max(part.plan.complete_s(now_s) for part in self.work.parts)
        note_rolled_up(self.target, self.work.layout, end_s)

    def summarize(self, result: PipelineResult, run: Run) -> PointsSummary:
        """See `Job.summarize`."""
        summary = summary_of(result, run)
        if summary.points_read:
            return summary
        return dataclasses.replace(summary, why_nothing=why_nothing(self.target, self.work.layout))

    def finish(self, run: Run) -> int:
        """Clears the marks of the hours that are rolled up, if all rows are stored; see `Job.finish`."""
        assert run.dead_letters is not None
        refused = count_letters(run.dead_letters) or metrics.refused_by_reason()
        if self.marks and Reason.WRITE_REFUSED in refused:
            note("Bigtable refused rows of this run, so the marks of its hours stay: run --touched again")
        else:
            clear_marks(self.target, self.work.layout, self.marks)
        return 0
