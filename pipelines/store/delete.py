"""`timebeam delete`: the points of a selection; first a dry run, which gives the token of the real one.

A token is the cut-off, a digest of the options, and the checksum of all cells that the dry run saw.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import AnyJob, Job, Needs, Run, check_place
from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.period import SETTLED_MS, time_of
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.output.progress_and_summary import Summary
from timebeam.pipelines.query.selection_options import tag_filters
from timebeam.pipelines.store.retention import DeleteOptions, old_points
from timebeam.schema.archive.view import find_archive
from timebeam.schema.bits.times import utc_text
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.selection import Finding, Reader, Selection, UnknownNameError
from timebeam.schema.query.question import NONE, Question, literals_of
from timebeam.transforms.bigtable.existing_tables import check_tables, table_exists
from timebeam.transforms.care.delete_from_tables import (
    COUNTERS,
    DeleteFigures,
    DeleteTally,
    figures_by_table,
    interrupted_logs,
    used_s,
    write_done,
)
from timebeam.transforms.care.delete_points import DeleteJob, DeletePoints, DeleteTask
from timebeam.transforms.care.range_leases import Leases
from timebeam.transforms.opentsdb.delete_rows import StaleFigures, delete_rows, stale_rows
from timebeam.transforms.opentsdb.stored_series import question_of_tsuids
from timebeam.transforms.read.find_series import why_nothing
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

_SELECTING = (
    "metric",
    "tag",
    "explicit_tags",
    "tsuid",
    "start",
    "end",
    "keep_rollups",
    "annotations",
    "keep_days",
    "rollup_config",
    "series",
)


class Token(NamedTuple):
    """What a dry run hands to the real one.

    Attributes:
      newest_ms: cells with a later timestamp stay; also the time that `1h-ago` counts from.
      options: a digest of the options.
      checksum: of all cells that the dry run saw.
    """

    newest_ms: int
    options: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.newest_ms:x}-{self.options:08x}-{self.checksum:x}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """The token of a text; raises UsageError."""
        try:
            return cls(*(int(part, 16) for part in text.split("-")))
        except (ValueError, TypeError) as error:
            raise UsageError(f"--token {text!r} is not a token that a dry run prints") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeleteSummary(Summary):
    """What a deletion did, or would do.

    Attributes:
      by_rule: what it did by rule of `--keep-days` and table; without rules under an empty one.
      token: for the real run; empty after one.
    """

    by_rule: dict[tuple[str, str], DeleteFigures]
    tally: DeleteTally
    token: str

    @property
    def tables(self) -> dict[str, DeleteFigures]:
        """What it did by table."""
        tables: dict[str, DeleteFigures] = {}
        for (_, table), figures in self.by_rule.items():
            before = tables.get(table, DeleteFigures(0, 0, 0, 0))
            tables[table] = DeleteFigures._make(map(operator.add, before, figures))
        return tables

    def figures(self) -> dict[str, Any]:
        rules: dict[str, dict[str, Any]] = {}
        for (rule, table), figures in self.by_rule.items():
            if rule:
                rules.setdefault(rule, {})[table] = figures._asdict()
        return {
            "tables": {table: figures._asdict() for table, figures in self.tables.items()},
            **({"rules": rules} if rules else {}),
            "unreadable": self.tally.unreadable,
            "rejected": self.tally.rejected,
            "changed": self.tally.changed > 0,
            "token": self.token,
            "seconds": self.seconds,
            "dry_run": self.dry_run,
        }

    def lines(self) -> list[tuple[str, str]]:
        verb = "to delete" if self.dry_run else "deleted"
        lines = []
        for (rule, table), figures in self.by_rule.items():
            counts = (f"{figure:,} {field}" for field, figure in figures._asdict().items())
            lines.append((f"{rule}, {verb} from {table}".removeprefix(", "), ", ".join(counts)))
        if self.tally.unreadable:
            lines.append(("rows not read", f"{self.tally.unreadable:,}"))
        if self.tally.rejected:
            lines.append(("rows rejected", f"{self.tally.rejected:,}"))
        if self.tally.changed:
            lines.append(("nothing deleted", "cells have changed since the dry run: get a new token"))
        lines.append(("seconds", f"{self.seconds:.1f}"))
        if self.token:
            lines += [("token", self.token), ("to delete", f"the same command with --token {self.token}")]
        return lines


@dataclasses.dataclass(frozen=True, slots=True)
class Delete(Job):
    """Deletes the points of a selection.

    Attributes:
      token: without its checksum in a dry run.
    """

    work: DeleteJob
    token: Token

    def needs(self) -> Needs:
        why = ""
        if not self.work.dry_run and "://" not in self.work.log:
            why = f"--log {self.work.log} would be on the workers' own disks: give gs://BUCKET/PREFIX"
        if self.work.series:
            why = "--series reads and deletes what refers to the series on this machine: leave --runner out"
        return Needs(local_only=why)

    def planned(self, run: Run) -> AnyJob | int:
        """See `AnyJob.planned`: looks for interrupted runs in the log, and for marks.

        Raises:
          UsageError: the token is used, no table knows a name, or the log cannot be written.
        """
        work = self.work
        if not work.dry_run:
            check_place("--log", work.log)
        used = None if work.dry_run or work.checksum is None else used_s(work.log)
        if used is not None:
            raise UsageError(f"--token {self.token} was used at {utc_text(used)}: do a dry run again")
        interrupted = [] if work.dry_run else interrupted_logs(*work.killed)
        hours_writer = work.hours_writer
        if hours_writer is not None and not table_exists(work.target, hours_writer.table.name):
            hours_writer = None
        moved = None if work.dry_run else work.leases.last_moved()
        work = dataclasses.replace(work, interrupted=interrupted, hours_writer=hours_writer, moved=moved)
        if not work.is_begun and len(work.tasks) == 1:
            _check_names(work, work.tasks[0].question)
        return dataclasses.replace(self, work=work)

    def prepare(self, run: Run) -> None:
        """See `Job.prepare`: creates the table of leases.

        Waits until no append can have the timestamp of one that the dry run saw.
        """
        for line in () if run.dry_run else self.work.leases.open():
            note(line)
        layout = self.work.layout
        wait_ms = self.work.newest_ms + SETTLED_MS - int(time.time() * 1000)
        appends = isinstance(layout, Store) and Packing.APPEND in layout.writing.packings
        if appends and not run.dry_run and wait_ms > 0:
            note(f"waiting {wait_ms / 1000:.0f} s, until a minute has passed since the dry run")
            time.sleep(wait_ms / 1000)

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        root | DeletePoints(self.work)
        return ()

    def _delete_stale(self, tally: DeleteTally) -> Mapping[str, StaleFigures]:
        """With `--series`, deletes what refers to series, and ends the log; the figures by table."""
        work = self.work
        if not work.series or work.dry_run or tally.changed:
            return {}
        stale = itertools.chain.from_iterable(
            stale_rows(work.target, work.layout, task.question) for task in work.tasks if not task.rolled
        )
        figures_of = delete_rows(work.target, stale, dry_run=False)
        if not tally.rejected:
            write_done(work.log, work.interrupted)
        return figures_of

    def summarize(self, result: PipelineResult, run: Run) -> DeleteSummary:
        tally, by_rule = COUNTERS.tally(result), figures_by_table(result)
        work = self.work
        for table, figures in self._delete_stale(tally).items():
            by_rule["", table] = DeleteFigures(figures.rows, figures.cells, 0, figures.bytes)
        token = str(self.token._replace(checksum=tally.checksum)) if work.dry_run else ""
        return DeleteSummary(
            by_rule=by_rule,
            tally=tally,
            token=token if by_rule or work.series else "",
            seconds=run.seconds,
            dry_run=work.dry_run,
            why_nothing="" if by_rule or tally.changed else why_nothing(work.target, work.layout),
            failed=bool(tally.unreadable or tally.rejected or tally.changed),
        )


def _check_names(work: DeleteJob, question: Question) -> None:
    """Raises UsageError if no table knows a name of a selection."""
    try:
        next(iter(work.layout.select(_selection(question), TableReader(work.target))), Finding)
    except UnknownNameError as error:
        raise UsageError(printable(error.told())) from error


def job_of(place: Place, options: DeleteOptions, now_ms: int) -> Delete:
    """The job that the options describe; without a token it is a dry run.

    Raises:
      UsageError: they make no sense together, or are not those of the token.
      BigtableError: a table is missing.
    """
    layout, target = place.readable(apart=True), place.target
    if (options.metric or options.tsuid) and options.origins["keep_days"] != "--keep-days":
        # Rules of the settings file are for runs without a metric.
        options = dataclasses.replace(options, keep_days=[])
    if options.series and find_archive(layout) is not None:
        raise UsageError("--series does not read the archive of these tables: leave it out")
    if options.annotations:
        place.opentsdb("annotations")
        if options.series:
            raise UsageError("--series deletes annotations too: leave out --annotations")
    token = Token.parse(options.token) if options.token else Token(now_ms, 0, 0)
    if options.unattended:
        if options.token or not options.keep_days:
            raise UsageError("--unattended is for --keep-days, without --token")
        token = token._replace(newest_ms=now_ms - SETTLED_MS, options=_digest(place, options, ()))
    digest = _digest(place, options, _SELECTING)
    if token.newest_ms > now_ms + SETTLED_MS:
        raise UsageError(
            f"--token {token} is from a dry run in the future: compare the clocks of the machines"
        )
    if options.token and token.options != digest:
        raise UsageError(f"--token {token} is from a dry run with other options: give the same ones")
    dry_run = options.dry_run or not (options.token or options.unattended)
    if options.keep_days or options.tsuid:  # names are read here
        check_tables(target, layout.tables(), place.create_command())
    if options.keep_days:
        tasks = old_points(place, options, layout, TableReader(target), token.newest_ms)
    else:
        tasks = [DeleteTask(_selected(options, layout, TableReader(target), token.newest_ms))]
    log = f"{options.log}-{token}"
    work = DeleteJob(
        target,
        layout,
        tasks,
        token.newest_ms,
        log,
        None if options.keep_rollups else _hours_writer_of(layout),
        # Each unattended run completes the last one on these tables, whatever its rules.
        (options.log, f"-*-{token.options:08x}-0") if options.unattended else (log, ""),
        Leases(target, settings_table(place.table_prefix), "delete"),
        token.checksum if options.token else None,
        points=not options.annotations,
        annotations=options.annotations or options.series,
        series=options.series,
        dry_run=dry_run,
    )
    rolled = sorted({task.rolled for task in tasks if task.rolled})
    tables = [*layout.tables(), *(table.spec for table in rolled)]
    return Delete(target, tables, work, token._replace(options=digest))


def _hours_writer_of(layout: ReadableStore) -> ChangedHoursWriter | None:
    """What marks the hours that a deletion changes; None if the layout has no such marks."""
    return ChangedHoursWriter(layout) if isinstance(layout, Store) else None


def _selected(options: DeleteOptions, layout: ReadableStore, reader: Reader, now_ms: int) -> Question:
    """The question of the options.

    Raises:
      UsageError: an option is wrong, or it is a full scan and `full_scan` does not say so.
    """
    question = _question(options, now_ms)
    if options.tsuid:
        with usage_errors():
            question = question_of_tsuids(question, layout, options.tsuid, reader)
    full = layout.full_scan(_selection(question))
    if full and not options.full_scan:
        raise UsageError(f"{full}: give --tag for these, or --full-scan")
    return question


def _selection(question: Question) -> Selection:
    return Selection(question.metric, question.tags, question.start_ms, question.end_ms)


def _question(options: DeleteOptions, now_ms: int) -> Question:
    """What the options select; raises UsageError if an option is wrong."""
    if (options.metric is None) == (not options.tsuid):
        raise UsageError("give METRIC, --tsuid or --keep-days")
    if options.start is None:
        raise UsageError("the following options are required: --start")
    if options.tsuid and (options.tag or options.explicit_tags):
        raise UsageError("--tsuid names the series: leave out --tag and --explicit-tags")
    start_ms, end_ms = time_of(options.start, now_ms), time_of(options.end, now_ms)
    with usage_errors():
        filters = tag_filters(options.tag)
        return Question(
            options.metric or "",
            literals_of(filters),
            (),
            NONE,
            None,
            start_ms,
            end_ms,
            filters=filters,
            explicit_tags=options.explicit_tags,
        )


def _digest(place: Place, options: DeleteOptions, selecting: Sequence[str]) -> int:
    """A digest of options that select, and of the tables that they select from."""
    of_layout = {**place.settings, "layout": place.layout, "table_prefix": place.table_prefix}
    selected = [(name, getattr(options, name)) for name in selecting]
    selected += [(each.name, of_layout[each.name]) for each in layout_parameters()]
    selected += [(name, getattr(place, name)) for name in ("tables", "project", "instance")]
    values = repr(selected)
    return int.from_bytes(hashlib.blake2b(values.encode(), digest_size=4).digest(), "big")
