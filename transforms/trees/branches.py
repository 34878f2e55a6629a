"""One branch row of a tree completed: its branch, and the leaves of its series."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from timebeam.schema.layouts import Cell, Row
from timebeam.schema.points import Reason, RefusedError
from timebeam.schema.trees import cells
from timebeam.schema.trees.cells import Leaf
from timebeam.schema.trees.definitions import TreeError
from timebeam.transforms.bigtable.conditional import create_cells
from timebeam.transforms.bigtable.target import Target


class BranchEntry(NamedTuple):
    """What one series adds to a branch row: the branch and, in the last branch of its path, a leaf."""

    tsuid: bytes
    path: tuple[str, ...]
    leaf: str


class SeriesRefusal(NamedTuple):
    """A series that a tree cannot hold, or not in all branches of its path."""

    tsuid: bytes
    error: RefusedError


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
    refused: list[SeriesRefusal]


def complete_row(
    target: Target,
    table: str,
    key: bytes,
    entries: Sequence[BranchEntry],
    existing: Row | None,
    *,
    dry_run: bool,
) -> CompletedRow:
    """Sets the cells that a branch row lacks, and refuses entries that it cannot hold.

    A branch whose display name has the same hash as another one has no row of its own: TSDs would put its
    leaves under the other name; here they are refused.

    Args:
      entries: ascending by TSUID.
      existing: the row as it was read before.
    """
    completed = CompletedRow(collections.Counter(), [], [])
    values = {cell.qualifier: cell.value for cell in existing.cells} if existing else {}
    try:
        path = cells.read_branch(values[cells.BRANCH]) if cells.BRANCH in values else entries[0].path
        missing = _missing(entries, path, values)
        if dry_run:
            values |= dict(missing)
            written = {column.qualifier for column in missing}
        else:
            # The timestamp of a new cell is 0, so that no clock matters.
            new_cells = [Cell(cells.FAMILY, qualifier, 0, value) for qualifier, value in sorted(missing)]
            existing_rows = {} if existing is None else {key: existing}
            result = create_cells(target, table, [Row(table, key, new_cells)], existing_rows)
            values = {column.qualifier: value for column, value in result.values.items()}
            written = {column.qualifier for column in result.created | result.uncertain}
        path = cells.read_branch(values[cells.BRANCH])
        _count(completed, key, entries, path, values, written)
    except TreeError as error:
        why = RefusedError(Reason.BAD_SYNTAX, f"row {key.hex()} of table {table} cannot be read: {error}")
        completed.refused = [SeriesRefusal(entry.tsuid, why) for entry in entries]
    return completed


def _missing(
    entries: Sequence[BranchEntry], path: tuple[str, ...], values: dict[bytes, bytes]
) -> list[ColumnValue]:
    """The columns that the row lacks: its branch, and a leaf for the first entry of each name.

    Args:
      values: of the existing cells, by qualifier.
    """
    missing = {}
    if cells.BRANCH not in values:
        missing[cells.BRANCH] = ColumnValue(cells.BRANCH, cells.branch_json(path))
    for entry in entries:
        if entry.leaf and entry.path == path:
            qualifier = cells.leaf_qualifier(entry.leaf)
            if qualifier not in values and qualifier not in missing:
                leaf = Leaf(entry.leaf, cells.hex_text(entry.tsuid))
                missing[qualifier] = ColumnValue(qualifier, cells.leaf_json(leaf))
    return list(missing.values())


def _count(
    completed: CompletedRow,
    key: bytes,
    entries: Sequence[BranchEntry],
    path: tuple[str, ...],
    values: dict[bytes, bytes],
    written: set[bytes],
) -> None:
    """Counts written and existing cells, and adds collisions and refusals.

    Args:
      values: of all cells of the row, by qualifier.
      written: the qualifiers of new cells.
    """
    completed.counts["branches_written" if cells.BRANCH in written else "branches_there"] += 1
    for entry in entries:
        if entry.path != path:
            completed.refused.append(SeriesRefusal(entry.tsuid, _same_hash(key, entry, path)))
        elif entry.leaf:
            qualifier = cells.leaf_qualifier(entry.leaf)
            leaf_tsuid = cells.read_leaf(values[qualifier]).tsuid.upper()
            if leaf_tsuid != cells.hex_text(entry.tsuid):
                completed.collisions.append((entry.tsuid, leaf_tsuid))
                completed.counts["collisions"] += 1
            else:
                completed.counts["leaves_written" if qualifier in written else "leaves_there"] += 1


def _same_hash(key: bytes, entry: BranchEntry, path: tuple[str, ...]) -> RefusedError:
    refused_path, row_path = "/".join(entry.path), "/".join(path)
    effect = f"leaf {entry.leaf!r} is not stored" if entry.leaf else "its branches and leaves appear there"
    return RefusedError(
        Reason.SERIES_NOT_STORABLE,
        f"branch {refused_path!r} has the same hash as {row_path!r}, which has row {key.hex()}: {effect}",
    )
