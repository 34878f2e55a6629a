"""`timebeam trees sync`: series in, trees kept up, figures out."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import json
import sys
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.options import letters_of
from pipelines.parameters import UsageError
from pipelines.run import is_dataflow, run_with_progress, submit
from pipelines.trees_options import places_of, stored_trees
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.meta.ts_meta import meta_table
from schema.trees.definitions import Tree
from schema.trees.parsing import warnings_of
from transforms import coders
from transforms.bigtable.target import Target
from transforms.dead_letters import WriteDeadLetters
from transforms.trees.job import SyncJob, Tally, tally_of
from transforms.trees.series import has_rows
from transforms.trees.sync import SyncTrees
from transforms.trees.table import TreeTable


@dataclasses.dataclass(frozen=True, slots=True)
class SyncSummary:
    """What a sync did, in seconds from the start of the command's work."""

    tally: Tally
    source: str
    seconds: float
    dry_run: bool
    dead_letters: Sequence[str]

    def to_json(self) -> str:
        """One line of JSON."""
        own = {"source": self.source, "seconds": self.seconds, "dry_run": self.dry_run}
        return json.dumps(self.tally._asdict() | own | {"dead_letters": list(self.dead_letters)})

    def to_text(self) -> str:
        """A table for people."""
        found, done = self.tally, "to write" if self.dry_run else "written"
        lines = [
            ("series", f"{found.series:,} in table {self.source}"),
            (f"leaves {done}", f"{found.leaves_written:,}"),
            ("leaves there already", f"{found.leaves_there:,}"),
            (f"branches {done}", f"{found.branches_written:,}"),
            ("collisions", f"{found.collisions:,}"),
            ("series without match", f"{found.not_matched:,}"),
            (f"records of these {done}", f"{found.failures_written:,}"),
            ("refused", f"{found.refused:,}"),
            ("seconds", f"{self.seconds:.1f}"),
            *(("dead letters", path) for path in self.dead_letters),
        ]
        text = "\n".join(f"{name:26} {value}" for name, value in lines)
        return ("nothing was written (dry run)\n" if self.dry_run else "") + text


def run_sync(options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Places all series; exit code 0 also if some are refused, 1 if a stored tree cannot be used.

    Args:
      flags: Beam's options.

    Raises:
      UsageError: there is no such tree, or none that is enabled.
    """
    started_ms = int(time.time() * 1000)
    layout, target, table = places_of(options)
    trees, whole = _trees(options, table)
    job = SyncJob(target, layout, tuple(trees), _source(options, layout, target), options.dry_run)
    letters = letters_of(options, started_ms)
    coders.register()
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    pipeline | SyncTrees(job) | "DeadLetters" >> WriteDeadLetters(letters, started_ms, bounded=True)
    if is_dataflow(flags):
        return submit(pipeline, letters)
    tally = tally_of(run_with_progress(pipeline))
    seconds = time.time() - started_ms / 1000
    files = sorted(glob.glob(glob.escape(letters) + "-*.jsonl"))
    summary = SyncSummary(tally, job.source, seconds, job.dry_run, files)
    print(summary.to_json() if options.summary == "json" else summary.to_text())
    return 0 if whole else 1


def _trees(options: argparse.Namespace, table: TreeTable) -> tuple[list[Tree], bool]:
    """(the trees to sync, whether these are all); what is odd about them goes to standard error."""
    trees, whole = stored_trees(table, options.tree)
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
            print(f"warning: tree {tree.tree_id} is not enabled: TSDs do not keep it up", file=sys.stderr)
    return trees, whole or options.tree is not None


def _source(options: argparse.Namespace, layout: OpenTsdb, target: Target) -> str:
    """The table that the series are read from; says so where it is not the usual one."""
    meta = meta_table(layout.options.table_prefix).name
    if options.series == "data":
        return layout.data_table
    if has_rows(target, meta):
        return meta
    if options.series == "meta":
        raise UsageError(f"table {meta} is not there, or empty: fill it with `timebeam meta sync`")
    print(
        f"table {meta} is not there, or empty: the series are those of table {layout.data_table}",
        file=sys.stderr,
    )
    return layout.data_table
