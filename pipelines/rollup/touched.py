"""`timebeam rollup --touched`: the hours and metrics that received points after they were rolled up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from timebeam.pipelines.job import Job, JobSequence, Needs, Run
from timebeam.pipelines.options.verbosity import note
from timebeam.pipelines.rollup.layout import LayoutRollup
from timebeam.schema.common.times import utc_text
from timebeam.schema.layouts import TableSpec
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.rollup.touched import clear_marks, read_marks, touched_ranges


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
    def target(self) -> Target:
        """See `AnyJob.target`."""
        return self.rollup.target

    @property
    def local_only(self) -> str:
        """See `AnyJob.local_only`."""
        return "--touched clears its marks when a range is done: leave --runner out to run on this machine"

    def tables(self) -> Sequence[TableSpec]:
        """See `AnyJob.tables`."""
        return self.rollup.tables()

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
