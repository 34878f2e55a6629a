"""What refers to series without data rows: index rows, metadata, leaves of trees; and leaves of old rules.

Cells are deleted up to the timestamp that was read, as those of points.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from google.api_core.exceptions import NotFound

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.row_deletion import deletions
from timebeam.schema.core.rows import Cell, Row, stored_bytes
from timebeam.schema.core.selection import Reader, Scan, Selection, prefix_range
from timebeam.schema.query.question import Question
from timebeam.schema.stores import find_opentsdb
from timebeam.schema.stores.opentsdb.keys import tsuid_of_key
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.schema.stores.opentsdb.trees import tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import Tree
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries, place
from timebeam.schema.stores.opentsdb.uids.uid_directory import UidDirectory, look_up_shown
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.opentsdb.stored_series import metric_keys
from timebeam.transforms.opentsdb.trees.tree_series import DescribedUids
from timebeam.transforms.opentsdb.trees.tree_table import TreeTable, tree_table
from timebeam.transforms.read.table_reader import TableReader, scan_rows

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

_ROWS_AT_ONCE = 1_000


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
    name = Name("metrics", question.metric)
    uid = look_up_shown(layout.options, [name], reader).get(name)
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
