"""`timebeam reindex`: the index tables of a layout rebuilt from the keys of its data rows."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, Run
from timebeam.pipelines.options.values import layout_with, target_of
from timebeam.pipelines.output.summary import TallySummary
from timebeam.schema.core.rejections import Rejected
from timebeam.transforms.ingest.store_index import COUNTERS, Reindex, ReindexJob


@dataclasses.dataclass(frozen=True, slots=True)
class RebuildIndex(Job):
    """Writes every index row that the data keys ask for; exit code 1 if a key is unknown or a row refused."""

    work: ReindexJob

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        root | Reindex(self.work)
        return ()

    def summarize(self, result: PipelineResult, run: Run) -> TallySummary:
        tally = COUNTERS.tally(result)
        stored = tally.index_rows - tally.rows_refused
        return TallySummary(
            tally=tally._asdict(),
            rows=[
                ("data rows read", f"{tally.rows_read:,}"),
                ("index rows to write" if run.dry_run else "index rows written", f"{stored:,}"),
                ("data rows skipped", f"{tally.keys_skipped:,}"),
                ("index rows refused", f"{tally.rows_refused:,}"),
            ],
            seconds=run.seconds,
            dry_run=run.dry_run,
            failed=tally.keys_skipped + tally.rows_refused > 0,
        )


def job_of(options: argparse.Namespace, now_ms: int) -> RebuildIndex:
    """The job that the options describe.

    Raises:
      UsageError: the layout has no index tables.
    """
    layout = layout_with(options, "index tables", lambda store: store if store.index else None)
    target = target_of(options)
    return RebuildIndex(target, layout.tables(), ReindexJob(target, layout, options.dry_run))
