"""`timebeam meta`: OpenTSDB's meta data of series and names, made from the data table."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import cli
from pipelines.options import create_command, layout_of, target_of
from pipelines.parameters import BIGTABLE, LAYOUT, SUMMARY, Parameter, UsageError, boolean, parser_of
from pipelines.run import beam_options, is_dataflow, run_with_progress, submit
from schema.layouts import Row
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.meta.search import Names, Wanted, listed
from schema.meta.ts_meta import DOCUMENT, TsMeta, meta_table
from transforms import coders
from transforms.bigtable.reader import TableReader
from transforms.bigtable.tables import check_tables
from transforms.meta.job import SyncJob, Tally, tally_of
from transforms.meta.purge import orphans, remove
from transforms.meta.sync import SyncMeta

_ROWS_AT_ONCE = 5_000

PARAMETERS = (
    Parameter(
        "count",
        "count the points of each series, which reads all of them, into ts_ctr",
        "Meta",
        boolean,
        False,
    ),
    Parameter(
        "purge", "then list the meta data of series that have no points any more", "Meta", boolean, False
    ),
    Parameter("yes", "with --purge: remove what it lists, for good", "Meta", boolean, False),
    *LAYOUT,
    *BIGTABLE,
    Parameter("dry_run", "count what would be written, and write nothing", "Run", boolean, False),
    SUMMARY,
)

EXAMPLES = """\
  timebeam meta sync --layout opentsdb --dry_run
  timebeam meta sync --layout opentsdb --salt_width 1 --project my-project --instance my-instance
  timebeam meta sync --layout opentsdb --count
  timebeam meta sync --layout opentsdb --purge           # lists; with --yes too: removes
  timebeam meta sync --layout opentsdb --runner DataflowRunner --region europe-west1 ...

nothing that exists is changed, but for ts_ctr with --count; every option of Beam can be given too"""


@dataclasses.dataclass(frozen=True, slots=True)
class MetaSummary:
    """What a synchronisation did, in seconds from the start of the command's work.

    Attributes:
      orphans: series in the meta table without points; None if they were not looked for.
      removed: of these.
    """

    tally: Tally
    seconds: float
    dry_run: bool
    orphans: int | None = None
    removed: int = 0

    def to_json(self) -> str:
        """One line of JSON."""
        own = {"orphans": self.orphans, "removed": self.removed}
        return json.dumps(self.tally._asdict() | own | {"seconds": self.seconds, "dry_run": self.dry_run})

    def to_text(self) -> str:
        """A table for people."""
        found, done = self.tally, "to create" if self.dry_run else "created"
        lines = [
            ("rows read", f"{found.rows_read:,}"),
            ("series", f"{found.series:,}"),
            *([("points", f"{found.points:,}")] if found.points else []),
            (f"cells of series {done}", f"{found.series_created:,}"),
            (f"cells of UIDs {done}", f"{found.uids_created:,}"),
            ("counters " + ("to set" if self.dry_run else "set"), f"{found.counters_set:,}"),
            ("counters changed meanwhile", f"{found.counters_lost:,}"),
            ("keys of no series", f"{found.keys_skipped:,}"),
            ("series without names", f"{found.series_skipped:,}"),
            ("damaged, left as it is", f"{found.damaged:,}"),
        ]
        if self.orphans is not None:
            lines += [("series without points", f"{self.orphans:,}"), ("  removed", f"{self.removed:,}")]
        lines.append(("seconds", f"{self.seconds:.1f}"))
        text = "\n".join(f"{name:26} {value}" for name, value in lines)
        return ("nothing was written (dry run)\n" if self.dry_run else "") + text


def job_of(options: argparse.Namespace) -> SyncJob:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    layout = layout_of(options)
    if not isinstance(layout, OpenTsdb):
        raise UsageError(f"meta data is OpenTSDB's: layout {layout.name} has none")
    if options.yes and not options.purge:
        raise UsageError("--yes is for --purge: give both, after --purge alone has shown what would go")
    if options.yes and options.dry_run:
        raise UsageError("--yes removes, --dry_run writes nothing: give one of them")
    return SyncJob(target_of(options), layout, options.count, options.dry_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Creates what is missing; exit code 1 if something of the tables could not be dealt with."""
    parser = parser_of(
        "meta",
        "Creates the meta data of series and names that is missing; safe to repeat.",
        EXAMPLES,
        PARAMETERS,
    )
    parser.add_argument("action", choices=["sync"], help="create what is missing, as `tsdb uid metasync`")
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    started = time.time()
    job = job_of(options)
    if options.purge and is_dataflow(flags):
        raise UsageError("--purge lists on this machine: run it with a local runner")
    tables = [*job.layout.tables(), meta_table(job.layout.options.table_prefix)]
    check_tables(job.target, tables, create_command(argparse.Namespace(**{**vars(options), "meta": True})))
    coders.register()
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    pipeline | SyncMeta(job)
    if is_dataflow(flags):
        return submit(pipeline)
    tally = tally_of(run_with_progress(pipeline))
    found, removed = _purge(job, yes=options.yes) if options.purge else (None, 0)
    summary = MetaSummary(tally, time.time() - started, job.dry_run, found, removed)
    print(summary.to_json() if options.summary == "json" else summary.to_text())
    return 1 if tally.trouble else 0


def _purge(job: SyncJob, *, yes: bool) -> tuple[int, int]:
    """Lists what has no points, on standard error, and removes it if that is wanted; (found, removed)."""
    names = Names(job.layout.uid_table, TableReader(job.target))
    found = removed = 0
    rows = orphans(job.target, job.layout)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        found += len(some)
        if yes:
            remove(job.target, some)
            removed += len(some)
        for line in _lines(job, some, names):
            print(f"{'removed' if yes else 'would be removed'}: {line}", file=sys.stderr)
    if found and not yes:
        print(
            "nothing was removed; --purge --yes removes it, with what people wrote into it", file=sys.stderr
        )
    return found, removed


def _lines(job: SyncJob, rows: Sequence[Row], names: Names) -> Iterable[str]:
    """One for each of these series: its TSUID, its name as far as it has one, and whether it was edited."""
    found = listed(job.layout.options, [row._replace(cells=()) for row in rows], names, Wanted("*", {}))
    series = {one.tsuid: str(one.series) for one in found if not isinstance(one, tuple)}
    for row in rows:
        text = f"{row.key.hex().upper()} {series.get(row.key, '(a UID of it has no name)')}"
        yield text + (", edited" if _is_edited(row) else "")


def _is_edited(row: Row) -> bool:
    """Whether somebody wrote into the meta data; damaged ones count."""
    for cell in row.cells:
        if cell.qualifier == DOCUMENT:
            try:
                return TsMeta.from_bytes(row.key, cell.value).is_edited
            except ValueError:
                return True
    return False


if __name__ == "__main__":
    sys.exit(cli.main(["meta", *sys.argv[1:]]))
