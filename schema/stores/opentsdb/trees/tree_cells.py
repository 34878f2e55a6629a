"""The cells of the table `tsdb-tree`, family `t`, and a tree read from its rows (docs/spec/opentsdb.md §6.1).

| row key | qualifier | value |
|---|---|---|
| tree id, 2 bytes | `tree` | definition, JSON |
| tree id | `tree_rule:LEVEL:ORDER` | rule, JSON |
| tree id, 4 bytes for each branch of the path | `branch` | branch, JSON; the root has no bytes of its own |
| the same | `leaf:`, 4 bytes | leaf, JSON |
| tree id, 01 | `tree_collision:`, TSUID | TSUID of the existing leaf, hex text |
| tree id, 02 | `tree_not_matched:`, TSUID | the rules that failed, text |

The 4 bytes are the hash of the display name. A TSD compares JSON by its bytes, so the order of keys is fixed.
Sources: tree/Tree, TreeRule, Branch, Leaf (OpenTSDB 2.4.1).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from timebeam.schema.bits.java_text import hash_code, json_text
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.trees.definitions import (
    Rule,
    Tree,
    TreeError,
    check_rule,
    rule_of,
    tree_of,
)

TABLE = "tsdb-tree"
FAMILY = "t"
ID_BYTES = 2
HASH_BYTES = 4
TREE, BRANCH = b"tree", b"branch"
RULE, LEAF = b"tree_rule:", b"leaf:"
COLLISION, NOT_MATCHED = b"tree_collision:", b"tree_not_matched:"
ROOT = "ROOT"


class Leaf(NamedTuple):
    """A stored leaf: its display name, and the TSUID of its series in hex."""

    name: str
    tsuid: str


def tree_key(tree_id: int) -> bytes:
    """The row of a tree: its definition, its rules, and its root."""
    return tree_id.to_bytes(ID_BYTES, "big")


def tree_range(tree_id: int) -> tuple[bytes, bytes]:
    """The range [start, end) of all rows of a tree."""
    last = tree_id == (1 << 8 * ID_BYTES) - 1
    return tree_key(tree_id), b"" if last else tree_key(tree_id + 1)


def branch_key(tree_id: int, path: Sequence[str]) -> bytes:
    """The row of a branch, by the display names below the root (Branch.compileBranchId).

    >>> branch_key(1, ["sys", "cpu"]).hex().upper()
    '00010001BECD000181A8'
    """
    return tree_key(tree_id) + b"".join(map(hash_code, path))


def collision_key(tree_id: int) -> bytes:
    """The row of the series whose leaf belongs to another series."""
    return tree_key(tree_id) + b"\x01"


def not_matched_key(tree_id: int) -> bytes:
    """The row of the series that the rules do not match."""
    return tree_key(tree_id) + b"\x02"


def rule_qualifier(rule: Rule) -> bytes:
    """The column of a rule."""
    return RULE + f"{rule.level}:{rule.order}".encode()


def leaf_qualifier(name: str) -> bytes:
    """The column of a leaf."""
    return LEAF + hash_code(name)


def hex_text(raw: bytes) -> str:
    """A TSUID as in JSON."""
    return raw.hex().upper()


def tree_json(tree: Tree) -> bytes:
    """The definition (Tree.toStorageJson); the id is in the row key."""
    return (
        f'{{"name":{json_text(tree.name)},"description":{json_text(tree.description)},'
        f'"notes":{json_text(tree.notes)},"strictMatch":{_boolean(tree.strict_match)},'
        f'"created":{tree.created},"enabled":{_boolean(tree.enabled)},'
        f'"storeFailures":{_boolean(tree.store_failures)}}}'
    ).encode()


def rule_json(rule: Rule) -> bytes:
    """A rule, with keys in the order of a TSD's Jackson."""
    return (
        f'{{"type":"{rule.type.value}","field":{json_text(rule.field)},"regex":{json_text(rule.regex)},'
        f'"separator":{json_text(rule.separator)},"description":{json_text(rule.description)},'
        f'"notes":{json_text(rule.notes)},"level":{rule.level},"order":{rule.order},'
        f'"treeId":{rule.tree_id},"customField":{json_text(rule.custom_field)},'
        f'"regexGroupIdx":{rule.regex_group_idx},"displayFormat":{json_text(rule.display_format)}}}'
    ).encode()


def branch_json(path: Sequence[str]) -> bytes:
    """A branch, by the display names below the root; the root for an empty path."""
    names = (ROOT, *path)
    members = ",".join(f'"{depth}":{json_text(name)}' for depth, name in enumerate(names))
    return f'{{"path":{{{members}}},"displayName":{json_text(names[-1])}}}'.encode()


def leaf_json(leaf: Leaf) -> bytes:
    return f'{{"displayName":{json_text(leaf.name)},"tsuid":"{leaf.tsuid}"}}'.encode()


def read_tree(row: Row) -> Tree | None:
    """The tree in a row; None for a row without definition.

    Raises:
      TreeError: the definition or a rule cannot be read, or a rule cannot work.
    """
    tree: Tree | None = None
    rules: list[Rule] = []
    for cell in row.cells:
        try:
            if cell.qualifier == TREE:
                tree = tree_of(_object(cell.value))
            elif cell.qualifier.startswith(RULE):
                rules.append(rule_of(_object(cell.value)))
                check_rule(rules[-1])
        except TreeError as error:
            raise TreeError(f"row {row.key.hex()}, column {cell.qualifier!r}: {error}") from error
    if tree is None:
        return None
    # A rule keeps the tree id of its JSON, which a TSD writes in the cells of failures.
    return dataclasses.replace(tree, tree_id=int.from_bytes(row.key, "big")).with_rules(rules)


def read_branch(value: bytes) -> tuple[str, ...]:
    """The display names of a branch, without the root.

    Raises:
      TreeError: it cannot be read.
    """
    path = _object(value).get("path")
    if not isinstance(path, dict) or not all(key.isdecimal() for key in path):
        raise TreeError("a branch without path")
    names = [path[key] for key in sorted(path, key=int)]
    if not names or not all(isinstance(name, str) for name in names):
        raise TreeError("a branch whose path has no names")
    return tuple(names[1:])


def read_leaf(value: bytes) -> Leaf:
    """A leaf.

    Raises:
      TreeError: it cannot be read.
    """
    members = _object(value)
    name, tsuid = members.get("displayName"), members.get("tsuid")
    if not isinstance(name, str) or not isinstance(tsuid, str) or not tsuid:
        raise TreeError("a leaf without displayName or tsuid")
    return Leaf(name, tsuid)


def leaf_tsuid(cell: Cell) -> bytes:
    """The TSUID of a leaf; empty for another cell, and for a leaf that cannot be read."""
    if not cell.qualifier.startswith(LEAF):
        return b""
    try:
        return bytes.fromhex(read_leaf(cell.value).tsuid)
    except ValueError:
        return b""


def _object(value: bytes) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise TreeError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise TreeError("not a JSON object")
    return document


def _boolean(value: bool) -> str:
    return "true" if value else "false"


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
      corruption: what could not be read, in words.
    """

    root: Branch
    collisions: dict[str, str] = dataclasses.field(default_factory=dict)
    not_matched: dict[str, str] = dataclasses.field(default_factory=dict)
    corruption: list[str] = dataclasses.field(default_factory=list)

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
    key = tree_key(tree_id)
    content = Content(Branch(key, ROOT))
    branches = {key: content.root}
    for row in rows:
        if len(row.key) == ID_BYTES + 1:
            _read_failures(content, row)
        elif (len(row.key) - ID_BYTES) % HASH_BYTES:
            content.corruption.append(f"row {row.key.hex()} of {len(row.key)} bytes is not of a tree")
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
            if cell.qualifier == BRANCH:
                path = read_branch(cell.value)
                named = True
                branch.name = path[-1] if path else ROOT
            elif cell.qualifier.startswith(LEAF):
                branch.leaves.append(read_leaf(cell.value))
        except TreeError as error:
            content.corruption.append(f"row {row.key.hex()}, column {cell.qualifier!r}: {error}")
    if not named and (branch.leaves or branch is not content.root):
        content.corruption.append(f"row {row.key.hex()} has no column 'branch'")


def _branch(branches: dict[bytes, Branch], key: bytes) -> Branch:
    """The branch of a row; adds it and missing branches above it."""
    branch = branches.get(key)
    if branch is None:
        branch = branches[key] = Branch(key, key[-HASH_BYTES:].hex())
        _branch(branches, key[:-HASH_BYTES]).branches.append(branch)
    return branch


def _read_failures(content: Content, row: Row) -> None:
    """Adds collisions and series that did not match."""
    for cell in row.cells:
        for prefix, failures in ((COLLISION, content.collisions), (NOT_MATCHED, content.not_matched)):
            if cell.qualifier.startswith(prefix):
                tsuid = hex_text(cell.qualifier.removeprefix(prefix))
                failures[tsuid] = cell.value.decode("iso-8859-1")
