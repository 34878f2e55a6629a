"""What a real TSD made of trees (tests/golden/opentsdb): requests, series and cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from timebeam.schema.core.rows import Cell, Row

_HERE = Path(__file__).parent / "opentsdb"

GROUPS = ("trees", "trees_strict")


class TreeCase(NamedTuple):
    """A case of one file: the requests, and the cells of each table as (row, family, qualifier, value)."""

    steps: list[dict[str, Any]]
    cells: dict[str, set[tuple[bytes, str, bytes, bytes]]]
    uids: dict[str, dict[str, str]]

    def rows(self, table: str) -> list[Row]:
        """The rows of a table, ascending by key."""
        found: dict[bytes, list[Cell]] = {}
        for key, family, qualifier, value in sorted(self.cells[table]):
            found.setdefault(key, []).append(Cell(family, qualifier, 0, value))
        return [Row(table, key, cells) for key, cells in found.items()]

    def definition(self) -> dict[str, Any]:
        """The tree as its requests describe it, in the form of a file."""
        bodies = [step["http"] for step in self.steps]
        (tree,) = (body for _, path, body in bodies if path == "/api/tree")
        rules = [body for _, path, body in bodies if path == "/api/tree/rule"]
        return {**tree, "treeId": 1, "enabled": True, "rules": rules}

    def points(self) -> list[dict[str, Any]]:
        """The points that were put, in their order."""
        return [point for _, path, body in self._puts() for point in body]

    def _puts(self) -> list[Any]:
        return [step["http"] for step in self.steps if step["http"][1].startswith("/api/put")]


def tree_case(group: str) -> TreeCase:
    """The case of a file."""
    (case,) = json.loads((_HERE / f"{group}.json").read_text())["cases"]
    cells: dict[str, set[tuple[bytes, str, bytes, bytes]]] = {}
    for table, key, family, qualifier, value in case["cells"]:
        cell = (bytes.fromhex(key), family, bytes.fromhex(qualifier), bytes.fromhex(value))
        cells.setdefault(table, set()).add(cell)
    return TreeCase(case["steps"], cells, case["uids"])


def java_vectors() -> list[list[Any]]:
    """[pattern, text, groups or None, pieces or None, hash] of a JVM."""
    vectors: list[list[Any]] = json.loads((_HERE / "java_regex.json").read_text())["vectors"]
    return vectors
