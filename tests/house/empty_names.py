"""Bound names that say nothing about what they hold: `make lint` fails if there are too many.

`python -m tests.house.empty_names --list` prints each place. Bound names are those of variables,
attributes, parameters, functions and classes. `of` as a classmethod is an alternative constructor.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = ("schema", "transforms", "pipelines", "examples", "benchmarks", "templates")
LARGEST_SHARE = 0.005
"""Lower it as names are replaced; never raise it."""

EMPTY = frozenset(
    {
        *("found", "one", "some", "of", "at", "held", "made", "own", "wanted", "given", "known", "left"),
        *("many", "what", "kept", "taken", "told", "here", "whole", "again", "both", "others"),
        *("part", "parts", "pieces"),
    }
)


class BoundName(NamedTuple):
    """A name, where it is bound."""

    name: str
    path: Path
    line: int

    @property
    def is_empty(self) -> bool:
        """Whether the name is one of `EMPTY`; underscores in front do not count."""
        return self.name.strip("_") in EMPTY


def bound_names(path: Path) -> Iterator[BoundName]:
    """Every binding in a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        name = _bound(node)
        if name is not None:
            yield BoundName(name, path, getattr(node, "lineno", 1))


def all_bound_names() -> list[BoundName]:
    """Every binding in `FOLDERS`."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [name for path in paths for name in bound_names(path)]


def _bound(node: ast.AST) -> str | None:
    """The name that a node binds, or None."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name)
        ):
            return name
        case ast.FunctionDef(name="of", decorator_list=[ast.Name(id="classmethod")]):
            return None
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


def main(arguments: list[str]) -> int:
    """Prints the share, and the places if it is too large or they are asked for; 1 if it is too large."""
    names = all_bound_names()
    empty = [name for name in names if name.is_empty]
    share = len(empty) / len(names)
    if share > LARGEST_SHARE or "--list" in arguments:
        for name in empty:
            print(f"{name.path.relative_to(ROOT)}:{name.line}: {name.name}")
    print(
        f"{len(empty)} of {len(names)} bound names say nothing: {share:.2%}; the limit is {LARGEST_SHARE:.2%}"
    )
    return int(share > LARGEST_SHARE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
