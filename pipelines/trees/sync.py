"""`timebeam trees sync`: places all series in the trees."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Job, Run
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.progress_and_summary import TallySummary
from timebeam.pipelines.trees.actions import TreesOptions, open_trees, reject_arguments, stored_trees
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.schema.stores.opentsdb.trees.definitions import Tree, warnings_of
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter_files import letter_files
from timebeam.transforms.opentsdb.stored_series import has_rows
from timebeam.transforms.opentsdb.trees.place_in_trees import COUNTERS, SyncTrees, TreeSyncJob
from timebeam.transforms.opentsdb.trees.tree_table import TreeTable, tree_table

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


@dataclasses.dataclass(frozen=True, slots=True)
class TreesSync(Job):
    """Places all series; exit code 0 also if some are rejected, 1 if a stored tree cannot be used.

    Attributes:
      all_used: whether all stored trees that are to be synced can be.
    """

    work: TreeSyncJob
    all_used: bool

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        return [root | SyncTrees(self.work)]

    def summarize(self, result: PipelineResult, run: Run) -> TallySummary:
        assert run.dead_letters is not None
        tally, letters = COUNTERS.tally(result), letter_files(run.dead_letters)
        done = "to write" if self.work.dry_run else "written"
        return TallySummary(
            tally=tally._asdict() | {"source": self.work.source, "dead_letters": letters},
            rows=[
                ("series", f"{tally.series:,} in table {self.work.source}"),
                (f"leaves {done}", f"{tally.leaves_written:,}"),
                ("leaves unchanged", f"{tally.leaves_there:,}"),
                (f"branches {done}", f"{tally.branches_written:,}"),
                ("collisions", f"{tally.collisions:,}"),
                ("series without match", f"{tally.not_matched:,}"),
                (f"failure records {done}", f"{tally.failures_written:,}"),
                ("rejected", f"{tally.rejected:,}"),
            ],
            rejected=tally.rejected,
            read=tally.series,
            seconds=run.seconds,
            dry_run=self.work.dry_run,
            dead_letters=letters,
            failed=not self.all_used,
        )


def job_of(place: Place, options: TreesOptions) -> TreesSync:
    """The job that the options describe.

    Raises:
      UsageError: there is no such tree, or none that is enabled.
    """
    reject_arguments(options)
    layout, target, table = open_trees(place)
    trees, all_used = _trees(options, table)
    work = TreeSyncJob(target, layout, tuple(trees), _source(options, layout, target), options.dry_run)
    return TreesSync(target, [*layout.tables(), tree_table(layout.options.table_prefix)], work, all_used)


def _trees(options: TreesOptions, table: TreeTable) -> tuple[list[Tree], bool]:
    """(the trees to sync, whether these are all); what is odd about them goes to standard error."""
    trees, complete = stored_trees(table, options.tree)
    if options.tree is None:
        trees = [tree for tree in trees if tree.enabled]
        if not trees:
            raise UsageError(
                f'no tree of table {table.name} is enabled: set "enabled": true in its file and run '
                "`timebeam trees create FILE`, or name the tree with --tree"
            )
    for tree in trees:
        for warning in warnings_of(tree):
            print(f"warning: {warning}", file=sys.stderr)
        if not tree.enabled:
            print(f"warning: tree {tree.tree_id} is not enabled: TSDs do not update it", file=sys.stderr)
    return trees, complete or options.tree is not None


def _source(options: TreesOptions, layout: OpenTsdb, target: Target) -> str:
    """The table that the series are read from; says so where it is not the usual one."""
    meta = meta_table(layout.options.table_prefix).name
    if options.series == "data":
        return layout.data_table
    if has_rows(target, meta):
        return meta
    if options.series == "meta":
        raise UsageError(f"table {meta} is missing or empty: fill it with `timebeam meta sync`")
    print(
        f"table {meta} is missing or empty: reading the series from table {layout.data_table}",
        file=sys.stderr,
    )
    return layout.data_table
