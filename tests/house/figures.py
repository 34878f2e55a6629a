"""Figures of a tree: how large it is, how many names and modules a reader meets, what a command enters.

    python -m tests.house.figures                 this tree
    python -m tests.house.figures ../other .      others, side by side

Each command runs whole, with the example data, under a profiler, beside a Bigtable emulator. A module is
entered if a function of it runs while no module is being imported.
"""

from __future__ import annotations

import argparse
import ast
import collections
import doctest
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.house.references import unresolved
from timebeam.pipelines.local.emulator import Emulator

FOLDERS = ("schema", "transforms", "pipelines")
STORES = ("opentsdb", "heroic", "kairosdb", "declared")
FAMILIES = frozenset({"__init__", "keys", "encode", "decode", "layout", "options"})
"""Base names of modules that each store may have."""
CONTRACTS = ("schema/core/contract.py",)
OLD_CONTRACTS = tuple(
    f"schema/stores/{name}.py" for name in ("__init__", "capabilities", "reading", "writing", "layout")
)

LAYOUT = ("--layout", "opentsdb")
DAY = ("--start", "2026-11-21", "--end", "2026-11-22")
COMMANDS: dict[str, tuple[str, ...]] = {
    "tables": ("tables", "create", *LAYOUT, "--rollup_config", "examples/rollups.json"),
    "target": ("tables", "create", "--layout", "kairosdb", "--table_prefix", "copy-"),
    "ingest": (
        *("ingest", *LAYOUT, "--format", "opentsdb-json", "--input", "examples/metrics/cpu*.json.gz"),
        *("--auto_create_metrics", "--dead_letters", "{folder}/letters"),
    ),
    "query": ("query", "sys.load", *LAYOUT, *DAY, "--downsample", "10m-avg", "--group_by", "window"),
    "rollup": (
        *("rollup", *LAYOUT, "--rollup_config", "examples/rollups.json", "--day", "2026-11-21"),
        *("--allow_incomplete", "--dead_letters", "{folder}/letters"),
    ),
    "copy": (
        *("copy", "--from", "opentsdb", "--to", "kairosdb", "--to_table_prefix", "copy-", *DAY),
        *("--dead_letters", "{folder}/letters"),
    ),
}
"""The commands in the order in which they run; the first two only make tables. Options with underscores, as
older trees take them too."""

_PROFILED = """
import json, sys, threading
root, report, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
files = set()
importing = threading.local()  # how many modules of this thread are being imported
def profile(frame, event, argument, FUNCTION=3):
    code = frame.f_code
    if code.co_name == "<module>":
        depth = getattr(importing, "depth", 0)
        importing.depth = depth + (event == "call") - (event == "return")
    elif event == "call" and code.co_flags & FUNCTION == FUNCTION and not getattr(importing, "depth", 0):
        files.add(code.co_filename)
threading.setprofile(profile)
sys.setprofile(profile)
try:
    from timebeam.pipelines.cli import main
    code = main(arguments)
finally:
    sys.setprofile(None)
    threading.setprofile(None)
    import os
    folders = tuple(os.path.join(root, each, "") for each in ("schema", "transforms", "pipelines"))
    real = {os.path.realpath(each) for each in files}
    loaded = [(name, module) for name, module in sys.modules.items() if name.startswith("timebeam.")]
    imported = [name for name, module in loaded if not hasattr(module, "__path__")]
    entered = sorted(each for each in real if each.startswith(folders))
    with open(report, "w") as file:
        json.dump({"entered": entered, "imported": sorted(imported)}, file)
sys.exit(code)
"""


def modules(root: Path) -> list[Path]:
    """The modules of the product, without the files that only mark packages."""
    paths = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")))
    return [path for path in paths if path.name != "__init__.py" or path.read_text(encoding="utf-8").strip()]


def documents(root: Path) -> list[Path]:
    """What is written about the product and the systems whose tables it reads."""
    return sorted((root / "docs").rglob("*.md"))


def shared_names(root: Path) -> dict[str, list[str]]:
    """Base names that modules of several folders have, families apart."""
    folders = collections.defaultdict(list)
    for path in modules(root):
        if path.stem not in FAMILIES:
            folders[path.stem].append(str(path.parent.relative_to(root)))
    return {name: where for name, where in sorted(folders.items()) if len(where) > 1}


def imports_of_stores(root: Path) -> dict[str, list[str]]:
    """For each store the modules outside of it that import it, at their top or in a function."""
    outside = collections.defaultdict(list)
    for path in modules(root):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {name for node in ast.walk(tree) for name in _imported(node)}
        for store in STORES:
            packages = tuple(f"timebeam.schema.{place}{store}" for place in ("layouts.", "stores.", ""))
            inside = any(f"/{place}/{store}/" in f"{path}" for place in ("layouts", "stores", "schema"))
            if not inside and any(
                f"{name}.".startswith(f"{package}.") for name in names for package in packages
            ):
                outside[store].append(str(path.relative_to(root)))
    return dict(outside)


def _imported(node: ast.AST) -> list[str]:
    """The dotted names that a statement imports."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str() as module, names=names):
            return [f"{module}.{alias.name}" for alias in names]
    return []


def doctests(root: Path) -> int:
    """How many examples docstrings have: each statement behind `>>>` is one."""
    parser = doctest.DocTestParser()
    count = 0
    for path in modules(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                count += len(parser.get_examples(ast.get_docstring(node) or ""))
    return count


def public_members(root: Path) -> dict[str, int]:
    """How many public members the class of each store has, those of its bases too."""
    program = (
        "import json\n"
        "from timebeam.schema import stores\n"
        "registry = stores.STORES if hasattr(stores, 'STORES') else stores.LAYOUTS\n"
        "if hasattr(stores, 'make_store'):\n"
        "    registry = {name: type(stores.make_store(name, {})) for name in registry}\n"
        "names = {name: registry[name] for name in registry}\n"
        "print(json.dumps({n: len([m for m in dir(c) if m[0] != '_']) for n, c in names.items()}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=root,
        env=_environment(root),
        capture_output=True,
        text=True,
    )
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def entered(root: Path) -> dict[str, dict[str, list[str]]]:
    """By command: the files whose functions ran, and the modules of timebeam that were imported.

    Raises:
      RuntimeError: a command failed.
    """
    reports = {}
    with tempfile.TemporaryDirectory() as folder, Emulator() as emulator:
        environment = {**_environment(root), "BIGTABLE_EMULATOR_HOST": emulator.host}
        for name, words in COMMANDS.items():
            path = Path(folder, f"{name}.json")
            arguments = [word.format(folder=folder) for word in words]
            command = [sys.executable, "-P", "-c", _PROFILED, str(root), str(path), json.dumps(arguments)]
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{root}: timebeam {' '.join(arguments)}: {done.stdout}{done.stderr}")
            reports[name] = json.loads(path.read_text())
    return reports


def _environment(root: Path) -> dict[str, str]:
    """The environment of a process that imports timebeam from a tree."""
    return {**os.environ, "PYTHONPATH": str(root)}


def figures(root: Path) -> dict[str, object]:
    """All figures of a tree, by their names, in the order in which they are printed."""
    paths = modules(root)
    reports = entered(root)
    outside = imports_of_stores(root)
    contracts = [root / name for name in CONTRACTS if (root / name).exists()]
    contracts = contracts or [root / name for name in OLD_CONTRACTS if (root / name).exists()]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (*paths, *contracts)}
    return {
        "product lines, Python": sum(lines[path] for path in paths),
        "modules": len(paths),
        "base names of several modules": len(shared_names(root)),
        **{f"modules entered by {name}": len(reports[name]["entered"]) for name in list(COMMANDS)[2:]},
        "modules imported by copy": len(reports["copy"]["imported"]),
        **{f"modules outside {store} that import it": len(outside.get(store, ())) for store in STORES},
        **{f"public members of {name}": count for name, count in public_members(root).items()},
        "lines of the contract": sum(lines[path] for path in contracts),
        "doctests": doctests(root),
        "references to nothing": len(unresolved(paths, documents(root))),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the figures of trees side by side."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.house.figures", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "trees", nargs="*", type=Path, default=[Path()], help="checkouts; this folder by default"
    )
    parser.add_argument("--names", action="store_true", help="print the names behind the figures instead")
    options = parser.parse_args(arguments)
    roots = [tree.resolve() for tree in options.trees]
    if options.names:
        for root in roots:
            _print_names(root)
        return 0
    columns = [figures(root) for root in roots]
    rows = list(dict.fromkeys(name for column in columns for name in column))
    for name in rows:
        print(f"{name:45}" + "".join(f"{column.get(name, '-'):>12}" for column in columns))
    return 0


def _print_names(root: Path) -> None:
    """The names behind some figures of a tree."""
    for name, folders in shared_names(root).items():
        print(f"several: {name}: {', '.join(folders)}")
    for store, paths in imports_of_stores(root).items():
        print(f"import {store}: {', '.join(paths)}")
    for name, report in entered(root).items():
        print(f"entered by {name}: {', '.join(_relative(report['entered'], root))}")
    for reference in unresolved(modules(root), documents(root)):
        print(f"to nothing: {reference.path.relative_to(root)}:{reference.line}: {reference.text}")


def _relative(paths: Iterable[str], root: Path) -> list[str]:
    return [str(Path(path).relative_to(root)) for path in paths]


if __name__ == "__main__":
    sys.exit(main())
