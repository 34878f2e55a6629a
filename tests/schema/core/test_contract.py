"""What only some stores can do, and its errors; nothing outside of a store asks for its name or class."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

from timebeam.schema.core.contract import Store
from timebeam.schema.stores import (
    STORES,
    MissingAbilityError,
    as_opentsdb,
    find_opentsdb,
    make_store,
    missing,
)
from timebeam.schema.stores.declared.layout import DeclaredTables

ROOT = pathlib.Path(__file__).parents[3]
CLASSES = {type(make_store(name, {})).__name__ for name in STORES}
PRODUCT = [
    path
    for folder in ("schema", "transforms", "pipelines")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(path.is_relative_to(ROOT / "schema" / room) for room in ("core", "stores", "archive"))
]

ALL = {"heroic", "heroic-readable", "kairosdb", "opentsdb"}
ABILITIES = {
    "index tables": (lambda store: store.index, ALL - {"opentsdb"}),
    "rollups as series": (lambda store: store.rollup_names, ALL - {"opentsdb"}),
    "annotations": (find_opentsdb, {"opentsdb"}),
}
"""By the words of errors: what finds an ability, and the stores that have it."""


def test_what_only_some_stores_have():
    assert {*STORES} == ALL
    for find, able in ABILITIES.values():
        assert {name for name in STORES if find(make_store(name, {})) is not None} == able


@pytest.mark.parametrize("noun", ABILITIES)
def test_the_error_says_which_stores_can(noun):
    find, able = ABILITIES[noun]
    for name in {*ALL, "table"} - able:
        text = str(missing(name, noun, find))
        assert text.startswith(f"layout {name} has no {noun}; ")
        assert all(each in text for each in able)


@pytest.mark.parametrize("name", STORES)
def test_what_only_opentsdb_has_takes_an_opentsdb(name):
    store = make_store(name, {})
    if name == "opentsdb":
        assert as_opentsdb(store, "annotations") is find_opentsdb(store) is store
        return
    assert find_opentsdb(store) is None
    with pytest.raises(MissingAbilityError, match=rf"^layout {name} has no annotations; opentsdb has$"):
        as_opentsdb(store, "annotations")


def test_the_registry_imports_a_store_when_it_is_asked_for():
    program = (
        "import sys; from timebeam.schema.stores import STORES, make_store; assert len(STORES) == 4;"
        "make_store('kairosdb', {}); print(*sorted(name for name in sys.modules if name.endswith('.layout')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["timebeam.schema.stores.kairosdb.layout"]


def test_the_contract_has_at_most_twelve_methods_to_write_and_250_lines():
    assert len(Store.__abstractmethods__) <= 12
    assert len((ROOT / "schema/core/contract.py").read_text("utf-8").splitlines()) <= 250


MOST_MEMBERS = 25


def too_many(cls: type) -> list[str]:
    """The public members of a class and its bases, if they are more than `MOST_MEMBERS`; else none."""
    members = [name for name in dir(cls) if not name.startswith("_")]
    return members if len(members) > MOST_MEMBERS else []


def test_a_store_has_at_most_25_public_members():
    classes = {type(make_store(name, {})) for name in STORES} | {DeclaredTables}
    assert len(classes) == 4
    assert {cls.__name__: too_many(cls) for cls in classes} == {cls.__name__: [] for cls in classes}
    assert not too_many(type("Most", (), {f"member_{number}": None for number in range(25)}))
    assert len(too_many(type("More", (), {f"member_{number}": None for number in range(26)}))) == 26


def questions(tree: ast.AST) -> list[str]:
    """The expressions that ask a layout for its class or its name."""

    def is_layout(node: ast.expr) -> bool:
        """A class of a layout, its attribute `name`, or its name as a literal; or a tuple of such."""
        if isinstance(node, ast.Tuple | ast.Set | ast.List):
            return any(map(is_layout, node.elts))
        if isinstance(node, ast.Attribute):
            return node.attr in CLASSES or is_layout(node.value)
        if isinstance(node, ast.Constant):
            return node.value in STORES
        return isinstance(node, ast.Name) and node.id in CLASSES

    asked = []
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            operands = node.args[1:] if node.func.id in ("isinstance", "issubclass") else []
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            operands = [node.cls]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        if any(map(is_layout, operands)):
            asked.append(ast.unparse(node))
    return asked


def test_nothing_outside_asks_for_the_class_or_the_name_of_a_layout():
    asked = {str(path.relative_to(ROOT)): questions(ast.parse(path.read_text("utf-8"))) for path in PRODUCT}
    assert {path: texts for path, texts in asked.items() if texts} == {}


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(layout, OpenTsdb)",
        "isinstance(layout, (Heroic, KairosDb))",
        "options.layout != OpenTsdb.name",
        "layout.name == 'kairosdb'",
        "layout.name in ('heroic', 'heroic-readable')",
    ],
)
def test_such_questions_are_seen(text):
    assert questions(ast.parse(text)) == [text]
