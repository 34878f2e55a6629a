"""What a deletion deletes beside points: rollups, annotations, and what refers to series without data rows.

Series without data rows are in index rows, metadata and leaves of trees; other leaves are of old rules. Cells
are deleted up to the timestamp that was read, as those of points.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from google.api_core.exceptions import NotFound

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, deletions
from timebeam.schema.core.rows import Cell, KeyRange, Row, TableSpec, stored_bytes
from timebeam.schema.core.selection import Finding, Reader, Scan, Selection, prefix_range
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.schema.stores import as_opentsdb, find_opentsdb
from timebeam.schema.stores.opentsdb import select
from timebeam.schema.stores.opentsdb.columns.annotation_cells import remove_annotations
from timebeam.schema.stores.opentsdb.keys import base_s_of, ranges, tsuid_of_key
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.schema.stores.opentsdb.rollup_tables import FAMILY, POINT_BYTES, ROLLUP_BYTES, remove_rollups
from timebeam.schema.stores.opentsdb.trees import tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import Tree
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries, place
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory, look_up_shown
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.opentsdb.stored_series import metric_keys
from timebeam.transforms.opentsdb.trees.tree_series import DescribedUids
from timebeam.transforms.opentsdb.trees.tree_table import TreeTable, tree_table
from timebeam.transforms.read.table_reader import TableReader, scan_rows

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

_ROWS_AT_ONCE = 1_000


class RolledTable(NamedTuple):
    """A table of rollups or pre-aggregates.

    Attributes:
      interval_ms: the length of an interval.
      step_ms: from one column to the next.
      qualifier_bytes: see `remove_rollups`.
    """

    name: str
    interval_ms: int
    step_ms: int
    qualifier_bytes: int

    @property
    def spec(self) -> TableSpec:
        return TableSpec(self.name, {FAMILY: 1}, holds_points=True)


def rolled_tables(layout: OpenTsdb, config: RollupConfig) -> list[RolledTable]:
    """The tables of rollups and pre-aggregates."""
    tables = []
    for interval in config.intervals:
        interval_ms = interval.seconds * 1000
        step_ms, qualifier_bytes = (1000, POINT_BYTES) if interval.is_default else (interval_ms, ROLLUP_BYTES)
        tables += [
            RolledTable(layout.options.table_prefix + name, interval_ms, step_ms, qualifier_bytes)
            for name in config.outputs(interval)
        ]
    return tables


def metric_uids(target: Target, layout: OpenTsdb, metric: str) -> list[bytes]:
    """The UID of a metric; none if it has lost its name."""
    names = [Name("metrics", metric)]
    return [*look_up_shown(layout.options, names, TableReader(target)).values()]


def metric_ranges(target: Target, layout: OpenTsdb, question: Question) -> Sequence[KeyRange]:
    """The ranges of data rows that a selection can be in."""
    period = question.start_ms, question.end_ms
    uids = metric_uids(target, layout, question.metric)
    return sorted(keys for uid in uids for keys in ranges(layout.options, uid, *period))


def annotation_deletion(layout: ReadableStore, row: Row, deleted: DeleteRange) -> RowDeletion | None:
    """The deletion of annotations of a data row; None if it has none of these."""
    annotated = find_opentsdb(layout)
    if annotated is None or row.table != annotated.data_table:
        return None
    notes = remove_annotations(annotated.options, row, deleted)
    return None if notes is None else notes._replace(points=0)


def rollup_deletions(
    layout: ReadableStore, table: RolledTable, metric: str, deleted: DeleteRange, reader: Reader
) -> Iterator[tuple[RowDeletion, Series] | Finding]:
    """What is deleted from each row of a table of rollups: the intervals that end in the range."""
    rolled_up = as_opentsdb(layout, "rollup tables")
    selection = Selection(metric, {}, deleted.first_ms, deleted.last_ms)
    deleted = deleted._replace(last_ms=deleted.last_ms - table.interval_ms + 1)
    for selected in select.select(rolled_up, table.name, selection, reader):
        if isinstance(selected, Finding):
            yield selected
            continue
        base_ms = base_s_of(rolled_up.options, selected.row.key) * 1000
        removal = remove_rollups(selected.row, base_ms, table.step_ms, table.qualifier_bytes, deleted)
        if removal is not None:
            yield removal, selected.series


class StaleFigures(NamedTuple):
    """What is stale in one table."""

    rows: int
    cells: int
    bytes: int


def stale_rows(target: Target, layout: ReadableStore, question: Question) -> Iterator[Row]:
    """The cells that refer to selected series without data rows, of all tables that have such cells."""
    reader = TableReader(target)
    indexed = layout.index
    if indexed is not None:
        selection = Selection(question.metric, question.tags, question.start_ms, question.end_ms)
        for row, series, _ in indexed.stale(selection, reader):
            if question.passes(series):
                yield row
    with_meta = find_opentsdb(layout)
    if with_meta is not None:
        yield from _stale_metadata(target, with_meta, question, reader)


def _stale_metadata(target: Target, layout: OpenTsdb, question: Question, reader: Reader) -> Iterator[Row]:
    """The metadata, and the leaves of trees, of selected series without data rows."""
    uid = next(iter(metric_uids(target, layout, question.metric)), None)
    if uid is None:
        return
    living = set()
    for key in metric_keys(target, layout, uid):
        with contextlib.suppress(ValueError):  # not the key of a series
            living.add(tsuid_of_key(layout.options, key)[0])
    names = UidDirectory(layout.options, reader)

    def is_stale(tsuid: bytes) -> bool:
        if not tsuid.startswith(uid) or tsuid in living:
            return False
        series = names.series([tsuid])[tsuid]
        selected = Selection(question.metric, question.tags, 0, 0)
        return isinstance(series, Series) and selected.takes(series) and question.passes(series)

    table = meta_table(layout.options.table_prefix).name
    with contextlib.suppress(NotFound):
        yield from (row for row in scan_rows(target, Scan(table, [prefix_range(uid)])) if is_stale(row.key))
    yield from _stale_leaves(target, tree_table(layout.options.table_prefix).name, is_stale)


def _stale_leaves(target: Target, table: str, is_stale: Callable[[bytes], bool]) -> Iterator[Row]:
    """The leaves of all trees whose series are stale."""
    with contextlib.suppress(NotFound):
        for row in scan_rows(target, Scan(table, [(b"", b"")])):
            stale = [cell for cell in row.cells if (tsuid := tree_cells.leaf_tsuid(cell)) and is_stale(tsuid)]
            if stale:
                yield row._replace(cells=stale)


def misplaced(target: Target, layout: OpenTsdb, tree: Tree) -> Iterator[Row]:
    """The leaves of a tree that its rules would not make, and the branches that are then without leaves.

    Memory for one tree's branches. Rows that cannot be read stay.
    """
    names = DescribedUids(layout, TableReader(target))
    table = TreeTable(target, layout.options.table_prefix).name
    rows = scan_rows(target, Scan(table, [tree_cells.tree_range(tree.tree_id)]))
    bare: dict[bytes, Row] = {}
    alive: set[bytes] = set()
    for row in rows:
        if (len(row.key) - tree_cells.ID_BYTES) % tree_cells.HASH_BYTES:
            continue  # records of failures
        leaves = [cell for cell in row.cells if cell.qualifier.startswith(tree_cells.LEAF)]
        readable = {cell: tsuid for cell in leaves if (tsuid := tree_cells.leaf_tsuid(cell))}
        series = zip(readable, names.series([*readable.values()]), strict=True)
        wrong = [cell for cell, each in series if not _is_placed(tree, row.key, cell, each)]
        if wrong:
            yield row._replace(cells=wrong)
        if len(wrong) < len(leaves):
            alive.update(
                row.key[:end] for end in range(tree_cells.ID_BYTES, len(row.key) + 1, tree_cells.HASH_BYTES)
            )
        bare[row.key] = row._replace(
            cells=[cell for cell in row.cells if cell.qualifier == tree_cells.BRANCH]
        )
    root = tree_cells.tree_key(tree.tree_id)
    yield from (row for key, row in bare.items() if key not in alive and key != root and row.cells)


def _is_placed(tree: Tree, key: bytes, cell: Cell, series: TreeSeries | RejectedError) -> bool:
    """Whether the rules place a series in this leaf; a series that cannot be read stays where it is."""
    if isinstance(series, RejectedError):
        return True
    placement = place(tree, series)
    return (
        bool(placement.leaf)
        and tree_cells.branch_key(tree.tree_id, placement.path) == key
        and tree_cells.leaf_qualifier(placement.leaf) == cell.qualifier
    )


def delete_rows(target: Target, rows: Iterable[Row], *, dry_run: bool) -> Mapping[str, StaleFigures]:
    """Deletes the cells of these rows, or counts them; the figures by table.

    Raises:
      GoogleAPICallError: cells could not be deleted; others may have been.
    """
    figures: dict[str, StaleFigures] = {}
    for table, of_table in itertools.groupby(rows, lambda row: row.table):
        for batch in batched(of_table, _ROWS_AT_ONCE):
            before = figures.get(table, StaleFigures(0, 0, 0))
            sizes = [stored_bytes(row.key, cell) for row in batch for cell in row.cells]
            figures[table] = StaleFigures(
                before.rows + len(batch), before.cells + len(sizes), before.bytes + sum(sizes)
            )
            if not dry_run:
                write_all(
                    target, table, [row._replace(cells=(), deleted=deletions(row.cells)) for row in batch]
                )
    return figures
