"""The table `tsdb-tree`: definitions and rules, branch rows completed by compare-and-set, trees read back."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.core.selection import Scan
from timebeam.schema.stores.opentsdb.trees import tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import LAST_TREE_ID, Tree, TreeError
from timebeam.schema.stores.opentsdb.trees.tree_cells import Content, Leaf, read_content
from timebeam.transforms.bigtable.compare_and_set import Replacement, create_cells, replace_cells
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.read.table_reader import read_rows, scan_rows


def tree_table(prefix: str) -> TableSpec:
    return TableSpec(prefix + tree_cells.TABLE, {tree_cells.FAMILY: 1}, holds_points=False)


class TreeTable:
    """The trees of one table."""

    def __init__(self, target: Target, prefix: str) -> None:
        self._target = target
        self.name = tree_table(prefix).name
        """The name of the table."""

    def trees(self) -> tuple[list[Tree], list[str]]:
        """(all trees with their rules, by id; errors of trees that cannot be read or used)."""
        trees: list[Tree] = []
        corruption: list[str] = []
        for row in self._definitions():
            try:
                tree = tree_cells.read_tree(row)
            except TreeError as error:
                corruption.append(str(error))
            else:
                trees += [tree] if tree else []
        return trees, corruption

    def content(self, tree_id: int) -> Content:
        """The branches, leaves, collisions and series without match of a tree."""
        ranges = (tree_cells.tree_range(tree_id),)
        return read_content(tree_id, scan_rows(self._target, Scan(self.name, ranges)))

    def store(self, tree: Tree, *, exact: bool, dry_run: bool = False) -> tuple[int, list[str]]:
        """Stores a tree and its rules; (its id, a line for each change).

        A tree without id replaces the tree of the same name; without one, it is new and gets the id after the
        highest. A new tree is disabled until all its rules are stored, so that no TSD uses half of them.

        Args:
          exact: delete stored rules that the tree does not have.

        Raises:
          TreeError: several trees have this name, or all ids are taken.
          BigtableError: another writer changed the tree at the same time.
        """
        rows = {int.from_bytes(row.key, "big"): row for row in self._definitions()}
        tree_id = tree.tree_id or _id_of(tree.name, rows)
        is_new = tree_id not in rows
        if is_new:
            tree_id = self._claim(tree, tree_id or max(rows, default=0) + 1, dry_run=dry_run)
            rows = self._row(tree_id)
        tree = tree.with_id(tree_id)
        stored = _columns(rows[tree_id]) if tree_id in rows else {}
        lines = [f"tree {tree_id}, {tree.name!r}: new"] if is_new else []
        lines += self._store_rules(tree, stored, exact=exact, dry_run=dry_run)
        if lines and not is_new and tree_cells.BRANCH in stored:
            lines.append("existing branches and leaves stay: a sync only adds")
        lines += self._store_definition(tree, stored, dry_run=dry_run)
        return tree_id, lines

    def _store_rules(self, tree: Tree, stored: dict[bytes, Cell], *, exact: bool, dry_run: bool) -> list[str]:
        """Adds and changes rules, and deletes others if `exact`; a line for each change."""
        lines = []
        rules = {tree_cells.rule_qualifier(rule): rule for rule in tree.rules}
        for qualifier, rule in rules.items():
            old, new = stored.get(qualifier), tree_cells.rule_json(rule)
            if old is None or old.value != new:
                self._replace(tree, qualifier, old, new, dry_run)
                lines.append(f"rule {rule}: {'new' if old is None else 'changed'}")
        for qualifier, cell in stored.items():
            if qualifier.startswith(tree_cells.RULE) and qualifier not in rules:
                rule_text = qualifier.removeprefix(tree_cells.RULE).decode("iso-8859-1")
                if exact:
                    self._replace(tree, qualifier, cell, None, dry_run)
                lines.append(f"rule {rule_text}: {'deleted' if exact else 'not in the file, stays'}")
        return lines

    def _store_definition(self, tree: Tree, stored: dict[bytes, Cell], *, dry_run: bool) -> list[str]:
        """Stores the definition if it differs; a line for each change."""
        old = stored.get(tree_cells.TREE)
        new = tree_cells.tree_json(tree)
        if old is not None:
            before = _definition(old)
            if before is not None:
                new = tree_cells.tree_json(dataclasses.replace(tree, created=before.created))
            if old.value == new:
                return []
        self._replace(tree, tree_cells.TREE, old, new, dry_run)
        return [f"definition: {new.decode()}"]

    def _claim(self, tree: Tree, tree_id: int, *, dry_run: bool) -> int:
        """Takes an id for a new tree: `tree_id` or, if the tree names none, the next free one."""
        for number in range(tree_id, LAST_TREE_ID + 1):
            new = tree_cells.tree_json(dataclasses.replace(tree, enabled=False))
            key = tree_cells.tree_key(number)
            if dry_run or self._replaces(key, tree_cells.TREE, None, new):
                return number
            if tree.tree_id:
                return number  # another writer took it: its definition is changed like any other
        raise TreeError(f"all tree ids up to {LAST_TREE_ID} are taken")

    def _replace(
        self, tree: Tree, qualifier: bytes, old: Cell | None, new: bytes | None, dry_run: bool
    ) -> None:
        key = tree_cells.tree_key(tree.tree_id)
        if dry_run or self._replaces(key, qualifier, old, new):
            return
        raise BigtableError(f"tree {tree.tree_id} was changed by another writer just now: run it again")

    def _replaces(self, key: bytes, qualifier: bytes, old: Cell | None, new: bytes | None) -> bool:
        """Replaces a cell that has not changed since it was read; whether it was replaced.

        The timestamp depends on the old cell alone, so that no clock matters.
        """
        timestamp_ms = 0 if old is None else old.timestamp_ms + 1
        cell = None if new is None else Cell(tree_cells.FAMILY, qualifier, timestamp_ms, new)
        return replace_cells(self._target, self.name, [Replacement(key, old, cell)])[0]

    def _definitions(self) -> list[Row]:
        return list(scan_rows(self._target, Scan(self.name, ((b"", b""),), key_pattern=rb"^\C{2}$")))

    def _row(self, tree_id: int) -> dict[int, Row]:
        key = tree_cells.tree_key(tree_id)
        rows = read_rows(self._target, self.name, [key])
        return {tree_id: rows[key]} if key in rows else {}


def _columns(row: Row) -> dict[bytes, Cell]:
    return {cell.qualifier: cell for cell in row.cells}


def _definition(cell: Cell) -> Tree | None:
    """The tree of a definition, without rules and id; None if it cannot be read."""
    try:
        return tree_cells.read_tree(Row("", b"", [cell]))
    except TreeError:
        return None


def _id_of(name: str, rows: dict[int, Row]) -> int:
    """The id of the one tree of that name; 0 if there is none."""
    definitions = {number: _columns(row).get(tree_cells.TREE) for number, row in rows.items()}
    same_name = [
        number
        for number, cell in definitions.items()
        if cell and (tree := _definition(cell)) and tree.name == name
    ]
    if len(same_name) > 1:
        raise TreeError(
            f"trees {', '.join(map(str, same_name))} are all named {name!r}: set treeId in the file"
        )
    return same_name[0] if same_name else 0


class BranchEntry(NamedTuple):
    """What one series adds to a branch row: the branch and, in the last branch of its path, a leaf."""

    tsuid: bytes
    path: tuple[str, ...]
    leaf: str


class SeriesRejection(NamedTuple):
    """A series that a tree cannot hold, or not in all branches of its path."""

    tsuid: bytes
    error: RejectedError


class ColumnValue(NamedTuple):
    """A column of a row, and its new value."""

    qualifier: bytes
    value: bytes


@dataclasses.dataclass(slots=True)
class CompletedRow:
    """The result of `complete_row`.

    Attributes:
      counts: leaves_written, leaves_there, branches_written, branches_there, collisions.
      collisions: (TSUID, TSUID of the existing leaf, hex).
    """

    counts: collections.Counter[str]
    collisions: list[tuple[bytes, str]]
    rejected: list[SeriesRejection]


def complete_row(
    target: Target,
    table: str,
    key: bytes,
    entries: Sequence[BranchEntry],
    existing: Row | None,
    *,
    dry_run: bool,
) -> CompletedRow:
    """Sets the cells that a branch row lacks, and rejects entries that it cannot hold.

    A branch whose display name has the same hash as another one has no row of its own: TSDs would put its
    leaves under the other name; here they are rejected.

    Args:
      entries: ascending by TSUID.
      existing: the row as it was read before.
    """
    completed = CompletedRow(collections.Counter(), [], [])
    values = {cell.qualifier: cell.value for cell in existing.cells} if existing else {}
    try:
        path = (
            tree_cells.read_branch(values[tree_cells.BRANCH])
            if tree_cells.BRANCH in values
            else entries[0].path
        )
        missing = _missing(entries, path, values)
        if dry_run:
            values |= dict(missing)
            written = {column.qualifier for column in missing}
        else:
            # The timestamp of a new cell is 0, so that no clock matters.
            new_cells = [Cell(tree_cells.FAMILY, qualifier, 0, value) for qualifier, value in sorted(missing)]
            existing_rows = {} if existing is None else {key: existing}
            result = create_cells(target, table, [Row(table, key, new_cells)], existing_rows)
            values = {column.qualifier: value for column, value in result.values.items()}
            written = {column.qualifier for column in result.created | result.uncertain}
        path = tree_cells.read_branch(values[tree_cells.BRANCH])
        _count(completed, key, entries, path, values, written)
    except TreeError as error:
        why = RejectedError(Reason.BAD_SYNTAX, f"row {key.hex()} of table {table} cannot be read: {error}")
        completed.rejected = [SeriesRejection(entry.tsuid, why) for entry in entries]
    return completed


def _missing(
    entries: Sequence[BranchEntry], path: tuple[str, ...], values: dict[bytes, bytes]
) -> list[ColumnValue]:
    """The columns that the row lacks: its branch, and a leaf for the first entry of each name.

    Args:
      values: of the existing cells, by qualifier.
    """
    missing = {}
    if tree_cells.BRANCH not in values:
        missing[tree_cells.BRANCH] = ColumnValue(tree_cells.BRANCH, tree_cells.branch_json(path))
    for entry in entries:
        if entry.leaf and entry.path == path:
            qualifier = tree_cells.leaf_qualifier(entry.leaf)
            if qualifier not in values and qualifier not in missing:
                leaf = Leaf(entry.leaf, tree_cells.hex_text(entry.tsuid))
                missing[qualifier] = ColumnValue(qualifier, tree_cells.leaf_json(leaf))
    return list(missing.values())


def _count(
    completed: CompletedRow,
    key: bytes,
    entries: Sequence[BranchEntry],
    path: tuple[str, ...],
    values: dict[bytes, bytes],
    written: set[bytes],
) -> None:
    """Counts written and existing cells, and adds collisions and rejections.

    Args:
      values: of all cells of the row, by qualifier.
      written: the qualifiers of new cells.
    """
    completed.counts["branches_written" if tree_cells.BRANCH in written else "branches_there"] += 1
    for entry in entries:
        if entry.path != path:
            completed.rejected.append(SeriesRejection(entry.tsuid, _same_hash(key, entry, path)))
        elif entry.leaf:
            qualifier = tree_cells.leaf_qualifier(entry.leaf)
            leaf_tsuid = tree_cells.read_leaf(values[qualifier]).tsuid.upper()
            if leaf_tsuid != tree_cells.hex_text(entry.tsuid):
                completed.collisions.append((entry.tsuid, leaf_tsuid))
                completed.counts["collisions"] += 1
            else:
                completed.counts["leaves_written" if qualifier in written else "leaves_there"] += 1


def _same_hash(key: bytes, entry: BranchEntry, path: tuple[str, ...]) -> RejectedError:
    rejected_path, row_path = "/".join(entry.path), "/".join(path)
    effect = f"leaf {entry.leaf!r} is not stored" if entry.leaf else "its branches and leaves appear there"
    return RejectedError(
        Reason.SERIES_NOT_STORABLE,
        f"branch {rejected_path!r} has the same hash as {row_path!r}, which has row {key.hex()}: {effect}",
    )
