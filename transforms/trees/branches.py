"""One row of a tree completed: its branch, and the leaves that series have in it."""

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
    """What one series wants of a branch row: the branch and, in the last one of its path, a leaf."""

    tsuid: bytes
    path: tuple[str, ...]
    leaf: str


class SeriesRefusal(NamedTuple):
    """A series that is not, or not wholly, where its tree wants it."""

    tsuid: bytes
    error: RefusedError


class ColumnValue(NamedTuple):
    """A column of a row, and the value that it is to have."""

    qualifier: bytes
    value: bytes


@dataclasses.dataclass(slots=True)
class CompletedRow:
    """What became of a row.

    Attributes:
      counts: leaves_written, leaves_there, branches_written, branches_there, collisions.
      collisions: (TSUID, TSUID of the leaf that is there, hex).
    """

    counts: collections.Counter[str]
    collisions: list[tuple[bytes, str]]
    refused: list[SeriesRefusal]


def complete_row(
    target: Target,
    table: str,
    key: bytes,
    entries: Sequence[BranchEntry],
    standing: Row | None,
    *,
    dry_run: bool,
) -> CompletedRow:
    """Sets what a branch row lacks of the entries, and says what of them it cannot hold.

    A branch whose display name has the same hash as that of another one has no row of its own: the
    TSDs would put its leaves under the other name; here they are refused.

    Args:
      entries: ascending by TSUID.
      standing: the row as it was read before.
    """
    done = CompletedRow(collections.Counter(), [], [])
    there = {cell.qualifier: cell.value for cell in standing.cells} if standing else {}
    try:
        path = cells.read_branch(there[cells.BRANCH]) if cells.BRANCH in there else entries[0].path
        wanted = _missing(entries, path, there)
        if dry_run:
            found = there | dict(wanted)
            written = {column.qualifier for column in wanted}
        else:
            # No clock comes in: the timestamp of a new cell is 0.
            new_cells = [Cell(cells.FAMILY, qualifier, 0, value) for qualifier, value in sorted(wanted)]
            existing = {} if standing is None else {key: standing}
            result = create_cells(target, table, [Row(table, key, new_cells)], existing)
            found = {column.qualifier: value for column, value in result.values.items()}
            written = {column.qualifier for column in result.created | result.uncertain}
        path = cells.read_branch(found[cells.BRANCH])
        _judge(done, key, entries, path, found, written)
    except TreeError as error:
        why = RefusedError(Reason.BAD_SYNTAX, f"row {key.hex()} of table {table} cannot be read: {error}")
        done.refused = [SeriesRefusal(entry.tsuid, why) for entry in entries]
    return done


def _missing(
    entries: Sequence[BranchEntry], path: tuple[str, ...], there: dict[bytes, bytes]
) -> list[ColumnValue]:
    """The columns that the row lacks: its branch, and a leaf for the first entry of each name."""
    found = {}
    if cells.BRANCH not in there:
        found[cells.BRANCH] = ColumnValue(cells.BRANCH, cells.branch_json(path))
    for entry in entries:
        if entry.leaf and entry.path == path:
            qualifier = cells.leaf_qualifier(entry.leaf)
            if qualifier not in there and qualifier not in found:
                leaf = Leaf(entry.leaf, cells.hex_text(entry.tsuid))
                found[qualifier] = ColumnValue(qualifier, cells.leaf_json(leaf))
    return list(found.values())


def _judge(
    done: CompletedRow,
    key: bytes,
    entries: Sequence[BranchEntry],
    path: tuple[str, ...],
    found: dict[bytes, bytes],
    written: set[bytes],
) -> None:
    """Counts what was written, was there, or is in the way."""
    done.counts["branches_written" if cells.BRANCH in written else "branches_there"] += 1
    for entry in entries:
        if entry.path != path:
            done.refused.append(SeriesRefusal(entry.tsuid, _same_hash(key, entry, path)))
        elif entry.leaf:
            qualifier = cells.leaf_qualifier(entry.leaf)
            first = cells.read_leaf(found[qualifier]).tsuid.upper()
            if first != cells.hex_text(entry.tsuid):
                done.collisions.append((entry.tsuid, first))
                done.counts["collisions"] += 1
            else:
                done.counts["leaves_written" if qualifier in written else "leaves_there"] += 1


def _same_hash(key: bytes, entry: BranchEntry, path: tuple[str, ...]) -> RefusedError:
    mine, theirs = "/".join(entry.path), "/".join(path)
    what = f"leaf {entry.leaf!r} is not stored" if entry.leaf else "what is below it appears there"
    return RefusedError(
        Reason.SERIES_NOT_STORABLE,
        f"branch {mine!r} has the same hash as {theirs!r}, which has row {key.hex()}: {what}",
    )
