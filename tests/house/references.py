"""References in docstrings to names of code, as `Name`, `name()` or `Class.member`, and which lead nowhere.

A reference is text between single backticks that could be a name. It resolves if its last word is bound or
written somewhere in the product's code, and, where its first word is a class of the product, if that class or
a base of it has such a member. Words of other programs and of data resolve if strings of our code or
documents have them.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_REFERENCE = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`(?!`)")
_WORD = re.compile(r"\w+")


class Reference(NamedTuple):
    """A reference of a docstring, where it stands."""

    text: str
    path: Path
    line: int


def unresolved(paths: Iterable[Path], documents: Iterable[Path]) -> list[Reference]:
    """The references in the docstrings of modules that lead to nothing in these modules.

    Args:
      documents: what they say of other systems counts as known.
    """
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    words = {*dir(builtins), *sys.stdlib_module_names}
    words.update(word for path in documents for word in _WORD.findall(path.read_text(encoding="utf-8")))
    members: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path, tree in trees.items():
        words.update(path.with_suffix("").parts)
        docstrings = {id(node) for node in _docstring_nodes(tree)}
        for node in ast.walk(tree):
            words.update(_words(node, docstrings))
            if isinstance(node, ast.ClassDef):
                members.setdefault(node.name, set()).update(_members(node))
                bases.setdefault(node.name, set()).update(
                    _WORD.findall(" ".join(map(ast.unparse, node.bases)))
                )
    references = [each for path, tree in trees.items() for each in _references(path, tree)]
    return [each for each in references if not _resolves(each.text, words, members, bases)]


def _resolves(text: str, words: set[str], members: dict[str, set[str]], bases: dict[str, set[str]]) -> bool:
    """Whether a reference leads somewhere."""
    *owners, name = text.split(".")
    if not owners or owners[-1] not in members:
        return name in words
    classes, todo = set[str](), [owners[-1]]
    while todo:
        owner = todo.pop()
        if owner not in members:
            return name in words  # a base that is not ours may have it
        if owner not in classes:
            classes.add(owner)
            todo.extend(base for base in bases[owner] if base in members or base not in _PLAIN_BASES)
    return any(name in members[owner] for owner in classes)


_PLAIN_BASES = frozenset(
    {"object", "Protocol", "NamedTuple", "abc", "ABC", "enum", "Enum", "Generic", "T", "typing"}
)


def _references(path: Path, tree: ast.Module) -> Iterator[Reference]:
    """The references in the docstrings of a module."""
    for node in _docstring_nodes(tree):
        for match in _REFERENCE.finditer(node.value):
            yield Reference(match[1], path, node.lineno + node.value[: match.start()].count("\n"))


def _docstring_nodes(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings of a module: of itself, its classes and functions, and those below attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as docstring):
                    yield docstring


def _words(node: ast.AST, docstrings: set[int]) -> Iterator[str]:
    """The names and the words of strings in one node."""
    match node:
        case ast.Constant(value=str() | bytes() as value) if id(node) not in docstrings:
            yield from _WORD.findall(value if isinstance(value, str) else value.decode("latin-1"))
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case (
            ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=str() as name)
        ):
            yield name
        case ast.alias(name=name, asname=asname):
            yield from name.split(".")
            if asname:
                yield asname


def _members(node: ast.ClassDef) -> Iterator[str]:
    """What a class defines: methods, attributes of the class, and those that its methods set."""
    for each in ast.walk(node):
        match each:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
