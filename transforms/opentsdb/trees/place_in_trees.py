"""Places series in trees: a batch pipeline that creates missing cells by compare-and-set.

    key ranges ─► TSUIDs ─► rules ─► by row: branch, leaves ─► set missing cells
                              └─► series without match      └─► collisions ─► failures, if enabled

If several series map to one leaf, the smallest TSUID gets it, as with a single reader of the meta table.
Existing cells stay. Rows are read before they are written, so a second run writes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection, TaggedOutput

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import KEY_BYTES, Cell, KeyRange, Row
from timebeam.schema.core.selection import ColumnRange, Scan
from timebeam.schema.stores.opentsdb.trees import tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import Tree
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries, place
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.metrics import TallyCounters, work_done
from timebeam.transforms.flow.steps import REJECTED, BufferedDoFn, RejectedOutput, reject, rejecting
from timebeam.transforms.ingest.row_mutations import write_batch
from timebeam.transforms.opentsdb.trees.tree_series import DescribedUids, read_tsuids
from timebeam.transforms.opentsdb.trees.tree_table import (
    BranchEntry,
    ColumnValue,
    CompletedRow,
    SeriesRejection,
    complete_row,
    tree_table,
)
from timebeam.transforms.read.chunks import spread_chunks, table_ranges
from timebeam.transforms.read.table_reader import TableReader, read_rows, scan_rows

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

NAMESPACE = "timebeam-trees"
"""The namespace of this job's counters."""


class TreeSyncTally(NamedTuple):
    """The figures of a sync: `leaves_there` are existing cells, `failures_written` series without a leaf."""

    series: int
    leaves_written: int
    leaves_there: int
    branches_written: int
    branches_there: int
    collisions: int
    not_matched: int
    failures_written: int
    rejected: int


COUNTERS = TallyCounters(NAMESPACE, TreeSyncTally)


@dataclasses.dataclass(frozen=True, slots=True)
class TreeSyncJob:
    """Which series go into which trees.

    Attributes:
      source: the table of the series: the meta table, or the data table.
      dry_run: read and count, and write nothing.
    """

    target: Target
    layout: OpenTsdb
    trees: tuple[Tree, ...]
    source: str
    dry_run: bool = False

    @property
    def table(self) -> str:
        return tree_table(self.layout.options.table_prefix).name


FAILURES = "failures"

_SERIES_AT_ONCE = 1_000
_ROWS_AT_ONCE = 1_000
_CONNECTIONS = 16


class SyncTrees(beam.PTransform):  # type: ignore[type-arg]
    """Places the series of a job in trees: a pipeline in, rejected series (`Rejected`) out."""

    def __init__(self, job: TreeSyncJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> PCollection[Rejected]:
        job = self._job
        plan = functools.partial(table_ranges, job.target, job.source)
        read = spread_chunks(root, "Ranges", plan, KeyRange) | "Series" >> rejecting(_tsuids, bytes, job)
        batches = (
            read.main
            if job.source != job.layout.data_table
            else read.main | "DistinctSeries" >> beam.Distinct()
        ) | "Batch" >> beam.BatchElements(100, _SERIES_AT_ONCE)
        placed = batches | "Place" >> _with_failures(_PlaceFn(job), tuple[bytes, BranchEntry])
        stored = (
            placed.main
            | "GroupPerBranch" >> beam.GroupByKey()
            | "Store" >> _with_failures(_StoreBranchesFn(job), type(None))
        )
        failures = (
            (placed[FAILURES], stored[FAILURES])
            | "Failures" >> beam.Flatten()
            | "GroupPerFailureRow" >> beam.GroupByKey()
            | "StoreFailures" >> rejecting(_store_failures, type(None), job)
        )
        rejected = (read[REJECTED], placed[REJECTED], stored[REJECTED], failures[REJECTED])
        return rejected | "AllRejected" >> beam.Flatten() | "Count" >> beam.Map(_counted)


def _with_failures(fn: beam.DoFn, output_type: Any) -> Any:
    """A ParDo with the outputs `main`, of the given type, `FAILURES` and `REJECTED`."""
    return beam.ParDo(fn).with_output_types(output_type).with_outputs(FAILURES, REJECTED, main="main")


def _tsuids(within: KeyRange, job: TreeSyncJob) -> Iterator[bytes | RejectedOutput]:
    """The TSUIDs in a key range; rows without a TSUID to `REJECTED`."""
    for tsuid in read_tsuids(job.target, job.layout, job.source, within):
        yield reject(tsuid) if isinstance(tsuid, Rejected) else tsuid
    work_done()


class _PlaceFn(beam.DoFn):
    """Lists of TSUIDs in; (row key, `BranchEntry`) of each leaf, and of each branch once per bundle, out."""

    def __init__(self, job: TreeSyncJob) -> None:
        self._job = job
        self._names: DescribedUids | None = None
        self._branches: set[tuple[int, tuple[str, ...]]] = set()

    def setup(self) -> None:
        self._names = DescribedUids(self._job.layout, TableReader(self._job.target))

    def start_bundle(self) -> None:
        self._branches = set()

    def process(self, tsuids: list[bytes]) -> Iterator[Any]:
        assert self._names is not None
        COUNTERS.count("series", len(tsuids))
        tsuids = sorted(tsuids)
        for tsuid, series in zip(tsuids, self._names.series(tsuids), strict=True):
            if isinstance(series, RejectedError):
                yield reject(_rejected(self._job, SeriesRejection(tsuid, series)))
                continue
            for tree in self._job.trees:
                try:
                    yield from self._placed(tree, series)
                except RejectedError as error:
                    yield reject(_rejected(self._job, SeriesRejection(tsuid, error), tree.tree_id))

    def _placed(self, tree: Tree, series: TreeSeries) -> Iterator[Any]:
        placement = place(tree, series)
        if not placement.leaf:
            COUNTERS.count("not_matched")
            if tree.store_failures:
                failure = ColumnValue(tree_cells.NOT_MATCHED + series.tsuid, placement.not_matched.encode())
                yield TaggedOutput(FAILURES, (tree_cells.not_matched_key(tree.tree_id), failure))
            return
        key = tree_cells.branch_key(tree.tree_id, placement.path)
        if len(key) > KEY_BYTES:
            raise RejectedError(
                Reason.OVER_BIGTABLE_LIMIT,
                f"{len(placement.path)} levels: a row key of {len(key)} bytes; Bigtable takes at most "
                f"{KEY_BYTES}",
            )
        for depth in range(len(placement.path)):
            branch = (tree.tree_id, placement.path[:depth])
            if branch not in self._branches:
                self._branches.add(branch)
                yield tree_cells.branch_key(*branch), BranchEntry(series.tsuid, branch[1], "")
        yield key, BranchEntry(series.tsuid, placement.path, placement.leaf)


class _StoreBranchesFn(BufferedDoFn[tuple[bytes, list[BranchEntry]]]):
    """(row key, `BranchEntry`s) in, missing cells are set; collisions to `FAILURES`."""

    most, most_weight = _ROWS_AT_ONCE, 50 * _ROWS_AT_ONCE

    def __init__(self, job: TreeSyncJob) -> None:
        self._job = job
        self._trees = {tree.tree_id: tree for tree in job.trees}
        self._pool: ThreadPoolExecutor | None = None

    def setup(self) -> None:
        self._pool = ThreadPoolExecutor(_CONNECTIONS)

    def teardown(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def process(self, group: tuple[bytes, Iterable[BranchEntry]]) -> Iterable[Any]:
        key, entries = group
        return self.add((key, sorted(entries)))

    def weight(self, group: tuple[bytes, list[BranchEntry]]) -> int:
        return len(group[1])

    def handle(self, groups: list[tuple[bytes, list[BranchEntry]]]) -> Iterator[TaggedOutput[Any, Any]]:
        """Reads the rows together, and completes several at a time."""
        assert self._pool is not None
        job = self._job
        existing = read_rows(job.target, job.table, [key for key, _ in groups])

        def complete(group: tuple[bytes, list[BranchEntry]]) -> CompletedRow:
            key, entries = group
            return complete_row(job.target, job.table, key, entries, existing.get(key), dry_run=job.dry_run)

        for (key, _), result in zip(groups, self._pool.map(complete, groups), strict=True):
            tree = self._trees[int.from_bytes(key[: tree_cells.ID_BYTES], "big")]
            for name, count in result.counts.items():
                COUNTERS.count(name, count)
            if result.counts["leaves_written"] or result.counts["branches_written"]:
                metrics.count("rows_written")
            for rejection in result.rejected:
                yield reject(_rejected(job, rejection, tree.tree_id))
            for tsuid, leaf_tsuid in result.collisions if tree.store_failures else ():
                failure = ColumnValue(
                    tree_cells.COLLISION + tsuid, leaf_tsuid.encode("iso-8859-1", "replace")
                )
                yield TaggedOutput(FAILURES, (tree_cells.collision_key(tree.tree_id), failure))


def _rejected(job: TreeSyncJob, rejection: SeriesRejection, tree_id: int | None = None) -> Rejected:
    """The rejection of a series, by all trees or by one tree."""
    payload = {"tsuid": tree_cells.hex_text(rejection.tsuid)} | (
        {} if tree_id is None else {"treeId": tree_id}
    )
    error = rejection.error
    source = f"row of table {job.source}"
    return Rejected(json.dumps(payload).encode(), error.reason, error.message, Stage.ENCODE, source)


def _counted(rejected: Rejected) -> Rejected:
    COUNTERS.count("rejected")
    return rejected


_COLUMNS_AT_ONCE = 1_000


def _store_failures(group: tuple[bytes, Iterable[ColumnValue]], job: TreeSyncJob) -> Iterator[RejectedOutput]:
    """Writes missing or changed columns of series without a leaf, by row key; rejections."""
    key, columns = group
    for batch in batched(sorted(set(columns)), _COLUMNS_AT_ONCE):
        within = ColumnRange(tree_cells.FAMILY, batch[0].qualifier, batch[-1].qualifier + b"\0")
        scan = Scan(job.table, ((key, key + b"\0"),), columns=within)
        existing = {cell.qualifier: cell for row in scan_rows(job.target, scan) for cell in row.cells}
        changed = []
        for column in batch:
            old = existing.get(column.qualifier)
            if old is None or old.value != column.value:
                time_ms = 0 if old is None else old.timestamp_ms + 1
                changed.append(Cell(tree_cells.FAMILY, column.qualifier, time_ms, column.value))
        COUNTERS.count("failures_written", len(changed))
        if changed and not job.dry_run:
            for rejected in write_batch(job.target, job.table, [Row(job.table, key, changed)]):
                yield reject(rejected)
