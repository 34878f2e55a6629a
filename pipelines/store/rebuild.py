"""`timebeam reindex` and `timebeam meta`: index tables, and OpenTSDB's metadata, from the rows of points."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, Needs, Run
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.progress_and_summary import TallySummary
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import Row
from timebeam.schema.series.series_patterns import SeriesQuery
from timebeam.schema.stores.opentsdb.meta_documents import DOCUMENT, TsMeta, listed, meta_table
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory
from timebeam.transforms.ingest import store_index
from timebeam.transforms.ingest.store_index import Reindex, ReindexJob
from timebeam.transforms.opentsdb import create_meta
from timebeam.transforms.opentsdb.create_meta import MetaSyncJob, SyncMeta
from timebeam.transforms.opentsdb.delete_rows import delete_rows
from timebeam.transforms.opentsdb.stored_series import orphans
from timebeam.transforms.read.table_reader import TableReader


@dataclasses.dataclass(frozen=True, slots=True)
class RebuildIndex(Job):
    """Writes every index row that the data keys ask for; exit code 1 if it cannot for a key or a row."""

    work: ReindexJob

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        root | Reindex(self.work)
        return ()

    def summarize(self, result: PipelineResult, run: Run) -> TallySummary:
        tally = store_index.COUNTERS.tally(result)
        stored = tally.index_rows - tally.rows_rejected
        return TallySummary(
            tally=tally._asdict(),
            rows=[
                ("data rows read", f"{tally.rows_read:,}"),
                ("index rows to write" if run.dry_run else "index rows written", f"{stored:,}"),
                ("data rows skipped", f"{tally.keys_skipped:,}"),
                ("index rows rejected", f"{tally.rows_rejected:,}"),
            ],
            seconds=run.seconds,
            dry_run=run.dry_run,
            failed=tally.keys_skipped + tally.rows_rejected > 0,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ReindexOptions:
    """Whether anything is written."""

    dry_run: bool


def reindex_job(place: Place, options: ReindexOptions) -> RebuildIndex:
    """The job that the options describe.

    Raises:
      UsageError: the layout has no index tables.
    """
    layout = place.ability("index tables", lambda store: store if store.index else None)
    target = place.target
    return RebuildIndex(target, layout.tables(), ReindexJob(target, layout, options.dry_run))


_ROWS_AT_ONCE = 5_000


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

    def needs(self) -> Needs:
        return Needs(local_only="--purge runs on this machine: leave --runner out" if self.purge else "")

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        root | SyncMeta(self.work)
        return ()

    def summarize(self, result: PipelineResult, run: Run) -> TallySummary:
        """See `Job.summarize`: purges, if that is asked for."""
        orphan_count, removed = _purge(self.work, yes=self.remove) if self.purge else (None, 0)
        tally = create_meta.COUNTERS.tally(result)
        done = "to create" if self.work.dry_run else "created"
        rows = [
            ("rows read", f"{tally.rows_read:,}"),
            ("series", f"{tally.series:,}"),
            *([("points", f"{tally.points:,}")] if tally.points else []),
            (f"cells of series {done}", f"{tally.series_created:,}"),
            (f"cells of UIDs {done}", f"{tally.uids_created:,}"),
            ("counters " + ("to set" if self.work.dry_run else "set"), f"{tally.counters_set:,}"),
            ("counters changed by others", f"{tally.counters_lost:,}"),
            ("unknown keys", f"{tally.keys_skipped:,}"),
            ("series without names", f"{tally.series_skipped:,}"),
            ("corrupt, not changed", f"{tally.corrupt:,}"),
        ]
        if orphan_count is not None:
            rows += [("series without points", f"{orphan_count:,}"), ("  removed", f"{removed:,}")]
        return TallySummary(
            tally=tally._asdict() | {"orphans": orphan_count, "removed": removed},
            rows=rows,
            seconds=run.seconds,
            dry_run=self.work.dry_run,
            failed=tally.failures > 0,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MetaOptions:
    """What is created, and whether what has no points is listed or removed."""

    count: bool
    purge: bool
    yes: bool
    dry_run: bool


def meta_job(place: Place, options: MetaOptions) -> MetaSync:
    """The job that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    layout = place.opentsdb("metadata")
    if options.yes and not options.purge:
        raise UsageError("--yes needs --purge: run --purge alone first to see what would be removed")
    if options.yes and options.dry_run:
        raise UsageError("--yes and --dry-run contradict each other: give only one of them")
    target = place.target
    tables = [*layout.tables(), meta_table(layout.options.table_prefix)]
    work = MetaSyncJob(target, layout, options.count, options.dry_run)
    return MetaSync(target, tables, work, options.purge, options.yes, place=place.creating("--meta"))


def _purge(job: MetaSyncJob, *, yes: bool) -> tuple[int, int]:
    """Lists what has no points, on standard error, and removes it if that is wanted; (found, removed)."""
    names = UidDirectory(job.layout.options, TableReader(job.target))
    orphan_count = 0
    rows = orphans(job.target, job.layout)
    for batch in batched(rows, _ROWS_AT_ONCE):
        orphan_count += len(batch)
        delete_rows(job.target, batch, dry_run=not yes)
        for line in _lines(job, batch, names):
            print(f"{'removed' if yes else 'would be removed'}: {line}", file=sys.stderr)
    if orphan_count and not yes:
        print("nothing was removed; --purge --yes removes it, including edited metadata", file=sys.stderr)
    return orphan_count, orphan_count if yes else 0


def _lines(job: MetaSyncJob, rows: Sequence[Row], names: UidDirectory) -> Iterable[str]:
    """One for each of these series: its TSUID, its name as far as it has one, and whether it was edited."""
    entries = listed([row._replace(cells=()) for row in rows], names, SeriesQuery("*", {}))
    series = {entry.tsuid: str(entry.series) for entry in entries if not isinstance(entry, tuple)}
    for row in rows:
        text = f"{row.key.hex().upper()} {series.get(row.key, '(a UID of it has no name)')}"
        yield text + (", edited" if _is_edited(row) else "")


def _is_edited(row: Row) -> bool:
    """Whether somebody wrote into the metadata; corrupt ones count."""
    for cell in row.cells:
        if cell.qualifier == DOCUMENT:
            try:
                return TsMeta.from_bytes(row.key, cell.value).is_edited
            except ValueError:
                return True
    return False
