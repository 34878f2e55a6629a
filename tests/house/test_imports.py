"""Packages import each other one way: pipelines → transforms → schema, inside of schema as in `EDGES`."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

_ROOT = Path(__file__).parents[2]
_LAYERS = ("pipelines", "transforms", "schema")

EDGES = {
    "bits": set(),
    "core": {"bits"},
    "formats": {"bits", "core"},
    "archive": {"bits", "core"},
    "rollup": {"bits", "core"},
    "query": {"bits", "core", "rollup"},
    "series": {"core"},
    "stores": {"archive", "bits", "core", "formats", "query", "rollup", "series"},
}
"""The packages of schema that each package of schema may import. To add an edge is a decision: no circles."""

OF_OPENTSDB = {
    "pipelines.serve",
    "pipelines.store.export",
    "pipelines.store.edit_names",
    "pipelines.store.rebuild",
    "pipelines.tables.tables",
    "pipelines.trees",
    "transforms.opentsdb",
    "transforms.query.read_rollups",
    "transforms.read.chunks",
    "transforms.rollup.rollups_in_tables",
    "transforms.rollup.rollup_job",
    "transforms.rollup.stale_cells",
}
"""Modules and packages for what only OpenTSDB has: its API, trees, metadata, names and rollup tables."""

_LIBRARIES = {
    "datasketches",
    "fastavro",
    "msgspec",
    "numpy",
    "pcodec",
    "pyarrow",
    "re2",
    "tomli",
    "zstandard",
}
_NETWORK = {
    "asyncio",
    "ftplib",
    "http",
    "multiprocessing",
    "smtplib",
    "socket",
    "socketserver",
    "ssl",
    "urllib",
}


class _Module(NamedTuple):
    """A module's dotted name below `timebeam`, the names that it imports anywhere in it, and its classes."""

    name: str
    imports: list[str]
    classes: list[str]


@functools.cache
def _modules(folder: str) -> list[_Module]:
    """Every module of a folder."""
    if folder.count("/"):
        parent = folder.rpartition("/")[0]
        prefix = folder.replace("/", ".")
        return [module for module in _modules(parent) if f"{module.name}.".startswith(f"{prefix}.")]
    modules = []
    for path in sorted((_ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = _Module(name, [], [])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                module.imports.extend(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, "imports are absolute"
                module.imports.extend(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.ClassDef):
                module.classes.append(node.name)
        modules.append(module)
    return modules


def _edges(package: str) -> dict[str, set[str]]:
    """Imports between the entries of a package: entry → the other entries that it imports."""
    prefix = package + "."
    edges: dict[str, set[str]] = {}
    for module in _modules(package.replace(".", "/")):
        if module.name == package:
            continue
        entry = module.name.removeprefix(prefix).split(".")[0]
        imported = edges.setdefault(entry, set())
        for name in module.imports:
            target = name.removeprefix("timebeam.")
            if target.startswith(prefix):
                imported.add(target.removeprefix(prefix).split(".")[0])
    return {entry: imported - {entry} for entry, imported in edges.items()}


@pytest.mark.parametrize("layer", _LAYERS)
def test_layers_import_downwards(layer: str) -> None:
    upper = _LAYERS[: _LAYERS.index(layer)]
    wrong = [
        (module.name, name)
        for module in _modules(layer)
        for name in module.imports
        if name.startswith(tuple(f"timebeam.{other}" for other in upper))
    ]
    assert wrong == []


def test_the_bigtable_connector_imports_of_timebeam_only_rows_and_cells() -> None:
    wrong = [
        (module.name, name)
        for module in _modules("transforms/bigtable")
        for name in module.imports
        if name.startswith("timebeam.")
        and not name.startswith(("timebeam.transforms.bigtable.", "timebeam.schema.core.rows."))
    ]
    assert wrong == []
    (rows,) = [module for module in _modules("schema/core") if module.name == "schema.core.rows"]
    assert [name for name in rows.imports if name.startswith("timebeam")] == []


def test_packages_of_schema_import_each_other_one_way() -> None:
    edges = _edges("schema")
    assert edges == {package: EDGES[package] for package in EDGES}
    tuple(graphlib.TopologicalSorter(EDGES).static_order())  # raises CycleError


def test_no_module_outside_a_store_imports_it() -> None:
    """But the registry, and those for what only OpenTSDB has."""
    outside = collections.defaultdict[str, set[str]](set)
    for module in (module for layer in _LAYERS for module in _modules(layer)):
        for store in ("heroic", "kairosdb", "opentsdb"):
            package = f"schema.stores.{store}"
            if not f"{module.name}.".startswith(f"{package}.") and any(
                f"{name}.".startswith(f"timebeam.{package}.") for name in module.imports
            ):
                outside[store].add(module.name)
    others = {
        name
        for name in outside.pop("opentsdb") - {"schema.stores"}
        if not any(f"{name}.".startswith(f"{each}.") for each in OF_OPENTSDB)
    }
    assert (others, dict(outside)) == (set(), {})


@pytest.mark.parametrize("package", ["pipelines", "pipelines.commands"])
def test_packages_have_no_circles(package: str) -> None:
    tuple(graphlib.TopologicalSorter(_edges(package)).static_order())  # raises CycleError


def test_message_formats_do_not_import_each_other() -> None:
    edges = _edges("schema.formats")
    formats = {
        path.name for path in (_ROOT / "schema" / "formats").iterdir() if (path / "__init__.py").exists()
    }
    assert len(formats) == 8
    assert {entry: imported & formats for entry, imported in edges.items() if imported & formats} == {}


def test_declared_tables_import_one_way() -> None:
    edges = _edges("schema.stores.declared")
    assert edges["parts"] == {"records", "read_section"}
    assert edges["declaration"] == {"columns", "parts", "read_section"}
    assert not {entry for entry, imported in edges.items() if imported & {"language", "layout"}}
    tuple(graphlib.TopologicalSorter(edges).static_order())  # raises CycleError


def test_schema_needs_no_beam_and_no_network() -> None:
    allowed = (set(sys.stdlib_module_names) - _NETWORK) | _LIBRARIES
    wrong = [
        (module.name, name)
        for module in _modules("schema")
        for name in module.imports
        if name.split(".")[0] not in allowed and not name.startswith("timebeam.schema.")
    ]
    assert wrong == []


def test_the_hot_path_does_not_import_the_capacity_planner() -> None:
    wrong = [
        module.name
        for module in _modules("transforms")
        if any(name.startswith("timebeam.pipelines.sizing") for name in module.imports)
    ]
    assert wrong == []


def test_parsed_options_end_at_the_commands() -> None:
    """What a function needs of its options is a dataclass, made in one place: no namespace is handed down."""
    doors = {"pipelines.cli", "pipelines.commands", "pipelines.options.command_line"}
    takers = {
        f"{name}:{node.lineno}"
        for name, tree in _trees(*_LAYERS)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "Namespace")
        or (isinstance(node, ast.Name) and node.id == "Namespace")
        if name not in doors
    }
    assert takers == set()


def _trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """(dotted name below `timebeam`, syntax tree) of each module."""
    for path in sorted(path for folder in folders for path in (_ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(path.read_text("utf-8"))


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for layer in _LAYERS:
        for module in _modules(layer):
            for name in module.classes:
                places.setdefault(name.lstrip("_"), []).append(module.name)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_test_modules_have_names_of_their_own() -> None:
    """Two of one name cannot be collected in one run."""
    names = collections.Counter(path.name for path in (_ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_module_imports_another() -> None:
    """What several of them use is in tests/support."""
    assert not [
        f"{module.name} imports {imported}"
        for module in _modules("tests")
        for imported in module.imports
        if any(part.startswith("test_") for part in imported.removeprefix("tests.").split(".")[:-1])
        and imported.startswith("tests.")
    ]


def test_programs_in_texts_import_what_exists() -> None:
    """Tests, benchmarks and documents hold programs as text, which no type checker reads."""
    statement = re.compile(r"\bfrom (timebeam(?:\.\w+)*) import (\([^)]*\)|[\w, ]+)")
    missing = set()
    for folder, suffix in itertools.product(("tests", "benchmarks", "examples", "docs"), ("py", "md")):
        for path in sorted((_ROOT / folder).rglob(f"*.{suffix}")):
            for module, names in statement.findall(path.read_text("utf-8")):
                for name in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", names)):
                    if not _exists(module, name):
                        missing.add((str(path.relative_to(_ROOT)), module, name))
    assert missing == set()


def _exists(module: str, name: str) -> bool:
    """Whether a module can be imported and has an attribute or a module of the name."""
    try:
        found = importlib.import_module(module)
        return hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError:
        return False
