"""Series placed in trees: a batch pipeline that writes what is missing, by compare-and-set.

    key ranges ─► TSUIDs ─► rules ─► by row: branch, leaves ─► set what is absent
                              └─► series without match      └─► collisions ─► failures, if wanted

Of several series for one leaf the smallest TSUID gets it, as it would from one reader of the meta
table; what stands in the table stays. Reading before writing makes a second run write nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows

from schema.points import Reason, RefusedError, Rejected, Stage
from schema.trees import cells
from schema.trees.definitions import Tree
from schema.trees.evaluate import TreeSeries, place
from transforms import metrics
from transforms.bigtable.limits import KEY_BYTES
from transforms.bigtable.reader import TableReader, read_rows
from transforms.bigtable.splits import Range, ranges_between, split_keys
from transforms.rejected import REJECTED, RejectedOutput, refuse, refusing
from transforms.trees.branches import Completed, Entry, Refusal, complete_row
from transforms.trees.compare_set import Column
from transforms.trees.failures import StoreFailuresFn
from transforms.trees.job import COUNTERS, SyncJob
from transforms.trees.names import UidNames
from transforms.trees.series import read_tsuids

FAILURES = "failures"

_SERIES_AT_ONCE = 1_000
_ROWS_AT_ONCE = 1_000
_CONNECTIONS = 16


class SyncTrees(beam.PTransform):  # type: ignore[type-arg]
    """Places the series of a job; returns the PCollection of `Rejected` ones."""

    def __init__(self, job: SyncJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> PCollection[Rejected]:
        """See the class."""
        job = self._job
        read = (
            root
            | "Once" >> beam.Create([None], reshuffle=False)
            | "Ranges" >> beam.ParDo(_RangesFn(job)).with_output_types(tuple[bytes, bytes])
            | "SpreadRanges" >> beam.Reshuffle()
            | "Series" >> refusing(_SeriesFn(job), bytes)
        )
        batches = (
            read.main
            if job.source != job.layout.data_table
            else read.main | "DistinctSeries" >> beam.Distinct()
        ) | "Batch" >> beam.BatchElements(100, _SERIES_AT_ONCE)
        placed = batches | "Place" >> _with_failures(_PlaceFn(job), tuple[bytes, Entry])
        stored = (
            placed.main
            | "GroupPerBranch" >> beam.GroupByKey()
            | "Store" >> _with_failures(_StoreFn(job), type(None))
        )
        failures = (
            (placed[FAILURES], stored[FAILURES])
            | "Failures" >> beam.Flatten()
            | "GroupPerFailureRow" >> beam.GroupByKey()
            | "StoreFailures" >> refusing(StoreFailuresFn(job), type(None))
        )
        refused = (read[REJECTED], placed[REJECTED], stored[REJECTED], failures[REJECTED])
        return refused | "AllRefused" >> beam.Flatten() | "Count" >> beam.ParDo(_CountFn())


def _with_failures(fn: beam.DoFn, output_type: Any) -> Any:
    """A ParDo with the outputs `main`, of the given type, `FAILURES` and `REJECTED`."""
    return beam.ParDo(fn).with_output_types(output_type).with_outputs(FAILURES, REJECTED, main="main")


class _RangesFn(beam.DoFn):
    """Anything in; key ranges that together are the table of the series out."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Range]:
        yield from ranges_between(split_keys(self._job.target, self._job.source))


class _SeriesFn(beam.DoFn):
    """A key range in; TSUIDs out."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job

    def process(self, within: Range) -> Iterator[bytes | RejectedOutput]:
        job = self._job
        for found in read_tsuids(job.target, job.layout, job.source, within):
            yield refuse(found) if isinstance(found, Rejected) else found


class _PlaceFn(beam.DoFn):
    """TSUIDs in; (row key, `Entry`) of leaves, and of each branch of a bundle once, out."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job
        self._names: UidNames | None = None
        self._branches: set[tuple[int, tuple[str, ...]]] = set()

    def setup(self) -> None:
        self._names = UidNames(self._job.layout, TableReader(self._job.target))

    def start_bundle(self) -> None:
        self._branches = set()

    def process(self, tsuids: list[bytes]) -> Iterator[Any]:
        assert self._names is not None
        COUNTERS["series"].inc(len(tsuids))
        tsuids = sorted(tsuids)
        for tsuid, series in zip(tsuids, self._names.series(tsuids), strict=True):
            if isinstance(series, RefusedError):
                yield refuse(_rejected(self._job, Refusal(tsuid, series)))
                continue
            for tree in self._job.trees:
                try:
                    yield from self._placed(tree, series)
                except RefusedError as error:
                    yield refuse(_rejected(self._job, Refusal(tsuid, error), tree.tree_id))

    def _placed(self, tree: Tree, series: TreeSeries) -> Iterator[Any]:
        found = place(tree, series)
        if not found.leaf:
            COUNTERS["not_matched"].inc()
            if tree.store_failures:
                failure = Column(cells.NOT_MATCHED + series.tsuid, found.not_matched.encode())
                yield TaggedOutput(FAILURES, (cells.not_matched_key(tree.tree_id), failure))
            return
        key = cells.branch_key(tree.tree_id, found.path)
        if len(key) > KEY_BYTES:
            raise RefusedError(
                Reason.OVER_BIGTABLE_LIMIT,
                f"{len(found.path)} levels make a row key of {len(key)} bytes; Bigtable takes {KEY_BYTES}",
            )
        for depth in range(len(found.path)):
            branch = (tree.tree_id, found.path[:depth])
            if branch not in self._branches:
                self._branches.add(branch)
                yield cells.branch_key(*branch), Entry(series.tsuid, branch[1], "")
        yield key, Entry(series.tsuid, found.path, found.leaf)


class _StoreFn(beam.DoFn):
    """(row key, `Entry`s) in; sets what is absent; collisions to `FAILURES`."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job
        self._trees = {tree.tree_id: tree for tree in job.trees}
        self._held: list[tuple[bytes, list[Entry]]] = []
        self._entries = 0
        self._pool: ThreadPoolExecutor | None = None

    def setup(self) -> None:
        self._pool = ThreadPoolExecutor(_CONNECTIONS)

    def teardown(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def start_bundle(self) -> None:
        self._held, self._entries = [], 0

    def process(self, group: tuple[bytes, Iterable[Entry]]) -> Iterator[Any]:
        key, entries = group
        self._held.append((key, sorted(entries)))
        self._entries += len(self._held[-1][1])
        if len(self._held) >= _ROWS_AT_ONCE or self._entries >= 50 * _ROWS_AT_ONCE:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[Any]:
        for found in self._flush():
            yield TaggedOutput(found.tag, GlobalWindows.windowed_value(found.value))

    def _flush(self) -> Iterator[TaggedOutput[Any, Any]]:
        """Reads the rows that are held, together, and completes them, several at a time."""
        assert self._pool is not None
        job, held = self._job, self._held
        self._held, self._entries = [], 0
        standing = read_rows(job.target, job.table, [key for key, _ in held])

        def complete(one: tuple[bytes, list[Entry]]) -> Completed:
            key, entries = one
            return complete_row(job.target, job.table, key, entries, standing.get(key), dry_run=job.dry_run)

        for (key, _), result in zip(held, self._pool.map(complete, held), strict=True):
            tree = self._trees[int.from_bytes(key[: cells.ID_BYTES], "big")]
            for name, count in result.counts.items():
                COUNTERS[name].inc(count)
            if result.counts["leaves_written"] or result.counts["branches_written"]:
                metrics.count("rows_written")
            for refusal in result.refused:
                yield refuse(_rejected(job, refusal, tree.tree_id))
            for tsuid, first in result.collisions if tree.store_failures else ():
                failure = Column(cells.COLLISION + tsuid, first.encode("iso-8859-1", "replace"))
                yield TaggedOutput(FAILURES, (cells.collision_key(tree.tree_id), failure))


def _rejected(job: SyncJob, refusal: Refusal, tree_id: int | None = None) -> Rejected:
    """The refusal of a series, by all trees or by one."""
    payload = {"tsuid": cells.hex_text(refusal.tsuid)} | ({} if tree_id is None else {"treeId": tree_id})
    error = refusal.error
    source = f"row of table {job.source}"
    return Rejected(json.dumps(payload).encode(), error.reason, error.message, Stage.ENCODE, source)


class _CountFn(beam.DoFn):
    """Counts what is refused; gives it on."""

    def process(self, rejected: Rejected) -> Iterator[Rejected]:
        COUNTERS["refused"].inc()
        yield rejected
