"""`timebeam meta`: OpenTSDB's metadata of series and names, made from the data table."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, Run
from timebeam.pipelines.jobs.run import run_job
from timebeam.pipelines.jobs.runners import beam_options
from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import BIGTABLE, LAYOUT, SUMMARY, Parameter, UsageError, boolean
from timebeam.pipelines.options.stored import use_stored
from timebeam.pipelines.options.values import create_command, layout_with, target_of
from timebeam.pipelines.output.summary import Summary
from timebeam.schema.layouts import Row, SeriesMeta, TableSpec
from timebeam.schema.meta.search import CachedUidNames, SeriesQuery, listed
from timebeam.schema.meta.ts_meta import DOCUMENT, TsMeta, meta_table
from timebeam.schema.points import Rejected
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.meta.find import orphans, remove
from timebeam.transforms.meta.sync import COUNTERS, MetaSyncJob, MetaSyncTally, SyncMeta
from timebeam.transforms.readers.table_reader import TableReader

_ROWS_AT_ONCE = 5_000

PARAMETERS = (
    Parameter(
        "count",
        "count the points of each series into ts_ctr; reads all points",
        "Meta",
        boolean,
        False,
    ),
    Parameter("purge", "afterwards list the metadata of series without points", "Meta", boolean, False),
    Parameter("yes", "with --purge: delete the listed metadata", "Meta", boolean, False),
    *LAYOUT,
    *BIGTABLE,
    Parameter("dry_run", "count what would be written; write nothing", "Run", boolean, False),
    SUMMARY,
)

EXAMPLES = """\
  timebeam meta sync --layout opentsdb --dry_run
  timebeam meta sync --layout opentsdb --salt_width 1 --project my-project --instance my-instance
  timebeam meta sync --layout opentsdb --count
  timebeam meta sync --layout opentsdb --purge           # lists; with --yes too: removes
  timebeam meta sync --layout opentsdb --runner DataflowRunner --region europe-west1 ...

existing metadata is not changed, except ts_ctr with --count; Beam's own options can be given too"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetaSummary(Summary):
    """What a synchronisation did.

    Attributes:
      orphans: series in the meta table without points; None if they were not looked for.
      removed: of these.
    """

    tally: MetaSyncTally
    orphans: int | None = None
    removed: int = 0

    def figures(self) -> dict[str, Any]:
        """See `Summary.figures`."""
        purged = {"orphans": self.orphans, "removed": self.removed}
        return self.tally._asdict() | purged | {"seconds": self.seconds, "dry_run": self.dry_run}

    def lines(self) -> list[tuple[str, str]]:
        """See `Summary.lines`."""
        tally, done = self.tally, "to create" if self.dry_run else "created"
        lines = [
            ("rows read", f"{tally.rows_read:,}"),
            ("series", f"{tally.series:,}"),
            *([("points", f"{tally.points:,}")] if tally.points else []),
            (f"cells of series {done}", f"{tally.series_created:,}"),
            (f"cells of UIDs {done}", f"{tally.uids_created:,}"),
            ("counters " + ("to set" if self.dry_run else "set"), f"{tally.counters_set:,}"),
            ("counters changed by others", f"{tally.counters_lost:,}"),
            ("unknown keys", f"{tally.keys_skipped:,}"),
            ("series without names", f"{tally.series_skipped:,}"),
            ("damaged, not changed", f"{tally.damaged:,}"),
        ]
        if self.orphans is not None:
            lines += [("series without points", f"{self.orphans:,}"), ("  removed", f"{self.removed:,}")]
        return [*lines, ("seconds", f"{self.seconds:.1f}")]


@dataclasses.dataclass(frozen=True, slots=True)
class MetaSync(Job):
    """Creates the metadata that is missing; exit code 1 if some of the tables could not be dealt with.

    Attributes:
      purge: whether series without points are listed after that.
      remove: whether they are removed too.
    """

    work: MetaSyncJob
    purge: bool
    remove: bool

    @property
    def target(self) -> Target:
        """See `AnyJob.target`."""
        return self.work.target

    @property
    def local_only(self) -> str:
        """See `AnyJob.local_only`."""
        return "--purge runs on this machine: leave --runner out" if self.purge else ""

    def tables(self) -> Sequence[TableSpec]:
        """See `AnyJob.tables`."""
        return [*self.work.layout.tables(), meta_table(self.work.layout.options.table_prefix)]

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        """See `Job.build`."""
        root | SyncMeta(self.work)
        return ()

    def summarize(self, result: PipelineResult, run: Run) -> MetaSummary:
        """See `Job.summarize`; purges before, if that is asked for."""
        tally = COUNTERS.tally(result)
        orphan_count, removed = _purge(self.work, yes=self.remove) if self.purge else (None, 0)
        return MetaSummary(
            tally=tally,
            seconds=run.seconds,
            dry_run=self.work.dry_run,
            orphans=orphan_count,
            removed=removed,
            failed=tally.failures > 0,
        )


def job_of(options: argparse.Namespace) -> MetaSync:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    layout = layout_with(options, SeriesMeta)
    if options.yes and not options.purge:
        raise UsageError("--yes needs --purge: run --purge alone first to see what would be removed")
    if options.yes and options.dry_run:
        raise UsageError("--yes removes and --dry_run writes nothing: give only one of them")
    work = MetaSyncJob(target_of(options), layout, options.count, options.dry_run)
    return MetaSync(work, options.purge, options.yes)


def command_parser() -> CommandParser:
    """The parser of the command."""
    parser = parser_of(
        "meta",
        "Creates missing metadata of series and names; safe to repeat.",
        EXAMPLES,
        PARAMETERS,
    )
    parser.add_argument(
        "action", choices=["sync"], help="create missing metadata, as `tsdb uid metasync` does"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Creates what is missing; returns the exit code."""
    parser = command_parser()
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    use_stored(options)
    run_ms = int(time.time() * 1000)
    command = create_command(argparse.Namespace(**{**vars(options), "meta": True}))
    return run_job(job_of(options), Run.of(options, flags, run_ms, command))


def _purge(job: MetaSyncJob, *, yes: bool) -> tuple[int, int]:
    """Lists what has no points, on standard error, and removes it if that is wanted; (found, removed)."""
    names = CachedUidNames(job.layout.uid_table, TableReader(job.target))
    orphan_count = removed = 0
    rows = orphans(job.target, job.layout)
    while batch := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        orphan_count += len(batch)
        if yes:
            remove(job.target, batch)
            removed += len(batch)
        for line in _lines(job, batch, names):
            print(f"{'removed' if yes else 'would be removed'}: {line}", file=sys.stderr)
    if orphan_count and not yes:
        print("nothing was removed; --purge --yes removes it, including edited metadata", file=sys.stderr)
    return orphan_count, removed


def _lines(job: MetaSyncJob, rows: Sequence[Row], names: CachedUidNames) -> Iterable[str]:
    """One for each of these series: its TSUID, its name as far as it has one, and whether it was edited."""
    entries = listed(
        job.layout.options, [row._replace(cells=()) for row in rows], names, SeriesQuery("*", {})
    )
    series = {entry.tsuid: str(entry.series) for entry in entries if not isinstance(entry, tuple)}
    for row in rows:
        text = f"{row.key.hex().upper()} {series.get(row.key, '(a UID of it has no name)')}"
        yield text + (", edited" if _is_edited(row) else "")


def _is_edited(row: Row) -> bool:
    """Whether somebody wrote into the metadata; damaged ones count."""
    for cell in row.cells:
        if cell.qualifier == DOCUMENT:
            try:
                return TsMeta.from_bytes(row.key, cell.value).is_edited
            except ValueError:
                return True
    return False
