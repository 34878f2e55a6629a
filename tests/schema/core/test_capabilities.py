"""What a layout can do is a capability that it has or has not; nothing outside asks for its name or class."""

from __future__ import annotations

import ast
import pathlib

import pytest

from timebeam.schema.archive.view import Archivable
from timebeam.schema.core import contract
from timebeam.schema.core.contract import Capability, SeriesIndex
from timebeam.schema.stores import (
    LAYOUTS,
    MissingCapabilityError,
    as_opentsdb,
    capability,
    find_capability,
    find_opentsdb,
)

ROOT = pathlib.Path(__file__).parents[3]
CLASSES = {cls.__name__ for cls in LAYOUTS.values()}
PRODUCT = [
    path
    for folder in ("schema", "transforms", "pipelines")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(path.is_relative_to(ROOT / "schema" / room) for room in ("core", "stores", "archive"))
]

ABILITIES = {
    "Archivable": {"heroic", "heroic-readable", "kairosdb", "opentsdb"},
    "HourMarks": {"heroic", "heroic-readable", "kairosdb", "opentsdb"},
    "RefusedRows": {"heroic", "heroic-readable", "kairosdb", "opentsdb"},
    "Replacing": {"opentsdb"},
    "RollupSeries": {"heroic", "heroic-readable", "kairosdb"},
    "SeriesIndex": {"heroic", "heroic-readable", "kairosdb"},
}
"""By the name of each capability the layouts that have it."""


def all_capabilities() -> dict[str, type[Capability]]:
    """Every capability of the contract, and that of the archive, by its name."""
    return {
        name: cls
        for name, cls in {**vars(contract), "Archivable": Archivable}.items()
        if isinstance(cls, type) and issubclass(cls, Capability) and cls is not Capability
    }


def test_each_capability_has_its_layouts():
    assert {
        name: {layout for layout, cls in LAYOUTS.items() if find_capability(cls.from_options({}), kind)}
        for name, kind in all_capabilities().items()
    } == ABILITIES


@pytest.mark.parametrize("kind", all_capabilities().values(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_its_capability_or_the_error_says_which_layouts_have_it(kind, name):
    layout = LAYOUTS[name].from_options({})
    if name in ABILITIES[kind.__name__]:
        assert capability(layout, kind) is layout
        return
    assert find_capability(layout, kind) is None
    with pytest.raises(MissingCapabilityError) as raised:
        capability(layout, kind)
    assert str(raised.value).startswith(f"layout {name} has no {kind.noun}; ")
    assert all(able in str(raised.value) for able in ABILITIES[kind.__name__])


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_only_opentsdb_has_takes_an_opentsdb(name):
    layout = LAYOUTS[name].from_options({})
    if name == "opentsdb":
        assert as_opentsdb(layout, "annotations") is find_opentsdb(layout) is layout
        return
    assert find_opentsdb(layout) is None
    with pytest.raises(MissingCapabilityError, match=rf"^layout {name} has no annotations; opentsdb has$"):
        as_opentsdb(layout, "annotations")


def test_an_error_names_all_layouts_that_can():
    with pytest.raises(MissingCapabilityError) as raised:
        capability(LAYOUTS["opentsdb"].from_options({}), SeriesIndex)
    assert str(raised.value) == (
        "layout opentsdb has no index tables; heroic, heroic-readable and kairosdb have"
    )


def questions(tree: ast.AST) -> list[str]:
    """The expressions that ask a layout for its class or its name."""

    def is_layout(node: ast.expr) -> bool:
        """A class of a layout, its attribute `name`, or its name as a literal; or a tuple of such."""
        if isinstance(node, ast.Tuple | ast.Set | ast.List):
            return any(map(is_layout, node.elts))
        if isinstance(node, ast.Attribute):
            return node.attr in CLASSES or is_layout(node.value)
        if isinstance(node, ast.Constant):
            return node.value in LAYOUTS
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
