"""Reads a tree from its rows: branches, leaves, collisions and series that did not match."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from timebeam.schema.layouts import Row
from timebeam.schema.trees import cells
from timebeam.schema.trees.cells import Leaf
from timebeam.schema.trees.definitions import TreeError


@dataclasses.dataclass(slots=True)
class Branch:
    """A branch: its row key, its display name, and the branches and leaves below it."""

    key: bytes
    name: str
    branches: list[Branch] = dataclasses.field(default_factory=list)
    leaves: list[Leaf] = dataclasses.field(default_factory=list)

    def walk(self) -> Iterator[tuple[int, Branch]]:
        """(depth, branch) of this branch, with depth 0, and of all branches below it, parents first."""
        stack = [(0, self)]
        while stack:
            depth, branch = stack.pop()
            yield depth, branch
            stack += ((depth + 1, child) for child in reversed(branch.branches))


@dataclasses.dataclass(slots=True)
class Content:
    """The content of a tree in the table.

    Attributes:
      collisions: the TSUID of the existing leaf, by TSUID; both in hex.
      not_matched: the rules that failed, by TSUID in hex.
      damage: what could not be read, in words.
    """

    root: Branch
    collisions: dict[str, str] = dataclasses.field(default_factory=dict)
    not_matched: dict[str, str] = dataclasses.field(default_factory=dict)
    damage: list[str] = dataclasses.field(default_factory=list)

    def counts(self) -> tuple[int, int, int]:
        """(branches without the root, leaves, depth of the deepest branch)."""
        branches = leaves = deepest = 0
        for depth, branch in self.root.walk():
            branches += 1
            leaves += len(branch.leaves)
            deepest = max(deepest, depth)
        return branches - 1, leaves, deepest


def read_content(tree_id: int, rows: Iterable[Row]) -> Content:
    """The content of a tree from its rows, ascending by key.

    Branches and leaves are sorted by display name, first ignoring case; names that differ only in case, of
    which a TSD shows one, are all kept. A branch without its own cell is named by its hash.
    """
    key = cells.tree_key(tree_id)
    content = Content(Branch(key, cells.ROOT))
    branches = {key: content.root}
    for row in rows:
        if len(row.key) == cells.ID_BYTES + 1:
            _read_failures(content, row)
        elif (len(row.key) - cells.ID_BYTES) % cells.HASH_BYTES:
            content.damage.append(f"row {row.key.hex()} of {len(row.key)} bytes is not of a tree")
        else:
            _read_branch(content, branches, row)
    for _, branch in content.root.walk():
        branch.branches.sort(key=lambda child: (child.name.lower(), child.name))
        branch.leaves.sort(key=lambda child: (child.name.lower(), child.name))
    return content


def _read_branch(content: Content, branches: dict[bytes, Branch], row: Row) -> None:
    """Adds a branch and its leaves; its parent was read before, since its key is shorter."""
    branch = _branch(branches, row.key)
    named = False
    for cell in row.cells:
        try:
            if cell.qualifier == cells.BRANCH:
                path = cells.read_branch(cell.value)
                named = True
                branch.name = path[-1] if path else cells.ROOT
            elif cell.qualifier.startswith(cells.LEAF):
                branch.leaves.append(cells.read_leaf(cell.value))
        except TreeError as error:
            content.damage.append(f"row {row.key.hex()}, column {cell.qualifier!r}: {error}")
    if not named and (branch.leaves or branch is not content.root):
        content.damage.append(f"row {row.key.hex()} has no column 'branch'")


def _branch(branches: dict[bytes, Branch], key: bytes) -> Branch:
    """The branch of a row; adds it and missing branches above it."""
    branch = branches.get(key)
    if branch is None:
        branch = branches[key] = Branch(key, key[-cells.HASH_BYTES :].hex())
        _branch(branches, key[: -cells.HASH_BYTES]).branches.append(branch)
    return branch


def _read_failures(content: Content, row: Row) -> None:
    """Adds collisions and series that did not match."""
    for cell in row.cells:
        for prefix, failures in (
            (cells.COLLISION, content.collisions),
            (cells.NOT_MATCHED, content.not_matched),
        ):
            if cell.qualifier.startswith(prefix):
                tsuid = cells.hex_text(cell.qualifier.removeprefix(prefix))
                failures[tsuid] = cell.value.decode("iso-8859-1")
