"""`timebeam export`: the points of whole days as Parquet files; `--verify` checks them.

days ─► read, sort ─► Parquet files and a manifest for each day
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import AnyJob, Job, Needs, Run, check_place
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.period import RangeOptions, named_day, named_range, range_of_day
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.progress_and_summary import PointsSummary, TallySummary
from timebeam.schema.bits.times import DAY_MS, ceil_to, ends_before, floor_to
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.stores.opentsdb.rollup_tables import FAMILY
from timebeam.transforms.copy.export_days import COUNTERS, ExportPoints, ExportWork, verify_day
from timebeam.transforms.opentsdb.exported_rollups import RollupReader
from timebeam.transforms.read.find_series import why_nothing

_SHOWN = 20  # differences


@dataclasses.dataclass(frozen=True, slots=True)
class Export(Job):
    """Exports whole days.

    Attributes:
      verify: export nothing; compare the files with their manifests.
    """

    work: ExportWork
    verify: bool = False

    def needs(self) -> Needs:
        if "://" in self.work.folder:
            return Needs()
        why = f"--output {self.work.folder} would be on the workers' own disks: give gs://BUCKET/FOLDER"
        return Needs(local_only=why)

    def planned(self, run: Run) -> AnyJob | int:
        """See `AnyJob.planned`: verifies; raises UsageError if no files can be written."""
        if self.verify:
            return self._verified(as_json=run.as_json)
        if not self.work.dry_run:
            check_place("--output", self.work.folder)
        return self

    def _verified(self, *, as_json: bool) -> int:
        """Compares the files with their manifests; returns 1 if one is not as its manifest says."""
        of_days = [verify_day(self.work.folder_of(day_ms)) for day_ms in self.work.days_ms()]
        points = sum(day.points for day in of_days)
        without_digest = sum(day.without_digest for day in of_days)
        problems = [text for day in of_days for text in day.problems]
        for text in problems[:_SHOWN]:
            print(f"timebeam export: {text}", file=sys.stderr)
        if without_digest:
            print(
                f"timebeam export: an earlier version wrote manifests without digests of {without_digest:,} "
                "files: only their points and statistics are compared. Export their days again",
                file=sys.stderr,
            )
        days = len(of_days)
        if as_json:
            figures = {"points": points, "days": days, "without_digest": without_digest}
            print(json.dumps(figures | {"problems": problems}))
        else:
            print(f"verified {points:,} points of {days:,} days: {len(problems):,} differences")
        return 1 if problems else 0

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        return (root | ExportPoints(self.work),)

    def summarize(self, result: PipelineResult, run: Run) -> TallySummary:
        assert run.dead_letters is not None
        read = PointsSummary.of(result, run.seconds, run.dry_run, run.dead_letters, adds_up=False)
        tally, rejected = COUNTERS.tally(result), sum(read.rejected.values())
        return TallySummary(
            tally=tally._asdict()
            | {"points_read": read.points_read, "rejected": read.rejected, "dead_letters": read.dead_letters},
            rows=[
                ("points read", f"{read.points_read:,}"),
                ("points to export" if run.dry_run else "points exported", f"{tally.points_exported:,}"),
                ("rejected", f"{rejected:,}"),
                *((f"  {reason}", f"{count:,}") for reason, count in read.rejected.items()),
                ("files, bytes", f"{tally.files_written:,}, {tally.file_bytes:,}"),
            ],
            rejected=rejected,
            read=read.points_read,
            seconds=run.seconds,
            dry_run=run.dry_run,
            dead_letters=read.dead_letters,
            why_nothing="" if read.points_read else why_nothing(self.work.target, self.work.layout),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ExportOptions(RangeOptions):
    """What is exported, and how its files are laid out."""

    output: str
    by_metric: bool
    tags: str
    verify: bool
    interval: str | None
    rollup_config: str | None
    dry_run: bool


def job_of(place: Place, options: ExportOptions, now_ms: int) -> Export:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    start_ms, end_ms = named_range(options, now_ms) or range_of_day(named_day(options, now_ms))
    if start_ms >= end_ms:
        raise UsageError(ends_before(start_ms, end_ms))
    target, layout = place.target, place.readable()
    rollups = _rollups_of(place, options)
    work = ExportWork(
        target,
        layout,
        floor_to(start_ms, DAY_MS),
        ceil_to(end_ms, DAY_MS),
        options.output if rollups is None else f"{options.output}/interval={rollups.interval.interval}",
        by_metric=options.by_metric,
        tag_map=options.tags == "map",
        dry_run=options.dry_run,
        rollups=rollups,
    )
    tables = [*layout.tables()]
    if rollups is not None:
        tables.append(TableSpec(rollups.table, {FAMILY: 1}, holds_points=True))
    return Export(target, () if options.verify else tables, work, options.verify)


def _rollups_of(place: Place, options: ExportOptions) -> RollupReader | None:
    """What reads the rollups of the interval that is asked for; None for points.

    Raises:
      UsageError: there is no such interval, or the layout has no rollup tables.
    """
    if options.interval is None:
        return None
    if not options.rollup_config:
        raise UsageError("--interval needs --rollup-config")
    layout, config = place.rollups(options.rollup_config)
    for interval in config.rollups:
        if interval.interval == options.interval:
            return RollupReader(layout, config, interval)
    intervals = ", ".join(interval.interval for interval in config.rollups)
    raise UsageError(f"--interval {options.interval}: {options.rollup_config} has rollups of {intervals}")
