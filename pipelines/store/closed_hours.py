"""`timebeam compact`, `timebeam archive`: the rows of closed hours into one cell each, or into the archive.

compact: metrics and hours ─► read rows ─► those that gain by it ─► delete what went in, set a cell
archive: metrics ─► read closed rows ─► merge into archive rows ─► read back and compare ─► delete the source
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import AnyJob, Job, Run
from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.period import (
    SETTLED_MS,
    RangeOptions,
    named_day,
    named_range,
    range_of_day,
    time_of,
    whole_hours,
)
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.options.use_settings import read_rows, settings_table
from timebeam.pipelines.output.progress_and_summary import TallySummary
from timebeam.schema.archive.archive_cell import CodecMissingError, codec
from timebeam.schema.archive.view import find_archivable
from timebeam.schema.bits.times import HOUR_MS, parse_duration, utc_text
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.care import archive_hours
from timebeam.transforms.care.archive_hours import ArchiveRows
from timebeam.transforms.care.range_leases import Leases
from timebeam.transforms.care.rows_to_archive import ArchiveJob
from timebeam.transforms.opentsdb import compact_rows
from timebeam.transforms.opentsdb.compact_rows import CompactJob, CompactRows
from timebeam.transforms.read.find_series import why_nothing


@dataclasses.dataclass(frozen=True, slots=True)
class CompactOptions(RangeOptions):
    """Which hours are compacted, into columns of which form."""

    closed_hours: float
    form: str
    dry_run: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Which hours are archived, and when their rows are deleted."""

    older_than: str
    start: str | None
    quiet_hours: float
    delete_source: bool
    reader_hours: float
    dry_run: bool


def hours_of(options: CompactOptions, now_ms: int) -> tuple[int, int]:
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
            f"{options.closed_hours:g} h after their end (--closed-hours)"
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
        tally = compact_rows.COUNTERS.tally(result)
        return TallySummary(
            tally=tally._asdict(),
            rows=[
                ("rows read", f"{tally.rows_read:,}"),
                ("rows to rewrite" if self.work.dry_run else "rows rewritten", f"{tally.rows_rewritten:,}"),
                ("rows rejected", f"{tally.rows_rejected:,}"),
                ("cells before, after", f"{tally.cells_before:,}, {tally.cells_after:,}"),
                ("bytes before, after", f"{tally.bytes_before:,}, {tally.bytes_after:,}"),
            ],
            seconds=run.seconds,
            dry_run=self.work.dry_run,
            why_nothing="" if tally.rows_read else why_nothing(self.work.target, self.work.layout),
            failed=tally.rows_rejected > 0,
        )


def compact_job(place: Place, options: CompactOptions, now_ms: int) -> Compact:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    layout = place.opentsdb("compaction")
    if layout.options.is_event_time:
        raise UsageError(
            "cell_time is event: rows cannot be compacted, because a point written meanwhile could be "
            "deleted with the cells that are replaced"
        )
    start_s, end_s = hours_of(options, now_ms)
    target, form = place.target, Packing(options.form)
    leases = Leases(target, settings_table(place.table_prefix), "compact")
    work = CompactJob(target, layout, start_s, end_s, form, now_ms - SETTLED_MS, leases, options.dry_run)
    return Compact(target, layout.tables(), work)


@dataclasses.dataclass(frozen=True, slots=True)
class Archive(Job):
    """Archives one range of time; corrupt rows stay in the data table, and the exit code is 1.

    Attributes:
      older_than: the option.
      settings: the table of the stored settings.
    """

    work: ArchiveJob
    older_than: str
    settings: str

    def planned(self, run: Run) -> AnyJob | int:
        """See `AnyJob.planned`: the settings say which layout has the archive; only one can.

        Raises:
          UsageError: the archive is not stored as that of this layout.
        """
        name = self.work.layout.name
        texts = read_rows(self.work.target, self.settings).get(name, {})
        if texts.get("archive") != "true" and not self.work.dry_run:
            raise UsageError(
                f"table {self.settings} has no setting archive of layout {name}: store it "
                f"with `timebeam tables adopt --layout {name} --archive` and the tables' other options"
            )
        return self

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        root | ArchiveRows(self.work)
        return ()

    def summarize(self, result: PipelineResult, run: Run) -> TallySummary:
        tally = archive_hours.COUNTERS.tally(result)
        per_point = tally.bytes_archived / max(1, tally.points_archived)
        return TallySummary(
            tally=tally._asdict(),
            rows=[
                ("rows read", f"{tally.rows_read:,}"),
                ("skipped: written lately", f"{tally.rows_busy:,}"),
                ("skipped: corrupt", f"{tally.rows_corrupt:,}"),
                ("points read", f"{tally.points_read:,}"),
                ("archive rows written", f"{tally.rows_written:,}"),
                ("bytes per archived point", f"{per_point:.2f}"),
                ("rows deleted", f"{tally.rows_deleted:,}"),
                ("rows to be deleted later", self._waiting(tally.rows_waiting)),
            ],
            seconds=run.seconds,
            dry_run=self.work.dry_run,
            why_nothing="" if tally.rows_read else self._why_nothing(),
            failed=tally.rows_corrupt > 0,
        )

    def _waiting(self, rows: int) -> str:
        """How many rows wait for their deletion, and until when."""
        if not rows:
            return "0"
        hours = self.work.reader_ms / HOUR_MS
        return f"{rows:,}, by a run that begins {hours:g} h or more after this one (--reader-hours)"

    def _why_nothing(self) -> str:
        """Why no row was read."""
        target, archive = self.work.target, self.work.archive
        if not any(scan_keys(target, archive.data_table, limit=1)):
            is_archived = any(scan_keys(target, archive.table, limit=1))
            return f"table {archive.data_table} is empty" + (", all is archived" if is_archived else "")
        return (
            f"{why_nothing(target, self.work.layout)}: hours that ended by {utc_text(self.work.end_s)}, "
            f"--older-than {self.older_than}"
        )


def archive_job(place: Place, options: ArchiveOptions, now_ms: int) -> Archive:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together, or a package is missing.
    """
    layout = place.ability("archive", find_archivable)
    if not layout.archive_view.is_used:
        raise UsageError(
            "these tables have no archive: create one with `timebeam tables create --archive` and their "
            "other options; versions of timebeam without archives then reject the tables"
        )
    if layout.writing.read_only:
        raise UsageError(layout.writing.read_only)
    with_uids = find_opentsdb(layout)
    if with_uids is not None and with_uids.options.is_event_time:
        raise UsageError(
            "cell_time is event: rows cannot be archived, because cells do not show which of two values "
            "at one time arrived later"
        )
    with usage_errors(CodecMissingError):
        codec()
    start_ms = time_of(options.start, now_ms) if options.start else 0
    try:
        end_ms = now_ms - parse_duration(options.older_than)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}") from error
    start_s, end_s = whole_hours(start_ms, end_ms)
    if start_s >= end_s:
        raise UsageError(f"--start {options.start} is not before the end, --older-than {options.older_than}")
    target, settings = place.target, settings_table(place.table_prefix)
    work = ArchiveJob(
        target,
        layout,
        start_s,
        end_s,
        now_ms - max(int(options.quiet_hours * HOUR_MS), SETTLED_MS),
        Leases(target, settings, "archive"),
        options.delete_source,
        int(options.reader_hours * HOUR_MS),
        options.dry_run,
    )
    return Archive(target, layout.tables(), work, options.older_than, settings.name)
