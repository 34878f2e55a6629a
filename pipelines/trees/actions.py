"""`timebeam trees`: OpenTSDB's trees: created, shown, tried on one series, and kept up with all series."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from timebeam.pipelines.options.parameters import UsageError, parsed_file, usage_errors
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.options.reading_options import TREE_OUTPUTS
from timebeam.pipelines.trees.show_trees import ShownTree, as_json, as_page, as_text
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.stores.opentsdb.trees import place_series, tree_cells
from timebeam.schema.stores.opentsdb.trees.definitions import Tree, TreeError, parse_trees, warnings_of
from timebeam.schema.stores.opentsdb.trees.explain_rules import placement_lines, tree_lines
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries
from timebeam.schema.stores.opentsdb.trees.tree_cells import Content
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.delete_rows import StaleFigures, delete_rows, misplaced
from timebeam.transforms.opentsdb.trees.tree_series import DescribedUids, find_series
from timebeam.transforms.opentsdb.trees.tree_table import TreeTable, tree_table
from timebeam.transforms.read.table_reader import TableReader, read_rows

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


@dataclasses.dataclass(frozen=True, slots=True)
class TreesOptions:
    """What is done to which trees, and how it is shown."""

    action: str
    argument: Sequence[str]
    tree: str | None
    yes: bool
    exact: bool
    output: str
    depth: int | None
    definition: str | None
    series: str
    dry_run: bool


def reject_arguments(options: TreesOptions) -> None:
    """Raises UsageError if an action that takes no argument has one."""
    if options.argument:
        raise UsageError(f"{options.action} takes no {options.argument[0]!r}; name a tree with --tree")


def chosen(trees: Sequence[Tree], id_or_name: str | None) -> list[Tree]:
    """The tree of an id or a name; all without one.

    Raises:
      UsageError: there is none, or several have the name.
    """
    if id_or_name is None:
        return list(trees)
    named = [tree for tree in trees if str(tree.tree_id) == id_or_name]
    named = named or [tree for tree in trees if tree.name == id_or_name]
    if len(named) != 1:
        existing = ", ".join(f"{tree.tree_id} ({tree.name})" for tree in trees) or "none"
        why = "several trees have the name" if named else "there is no tree"
        raise UsageError(f"{why} {id_or_name!r}; trees: {existing}")
    return named


def stored_trees(table: TreeTable, id_or_name: str | None) -> tuple[list[Tree], bool]:
    """(the tree of an id or a name, or all; whether all that are stored could be read).

    Those that could not are named on standard error.

    Raises:
      UsageError: see `chosen`.
    """
    trees, corruption = table.trees()
    for text in corruption:
        print(f"skipped: {text}", file=sys.stderr)
    return chosen(trees, id_or_name), not corruption


def open_trees(place: Place) -> tuple[OpenTsdb, Target, TreeTable]:
    """The layout, the instance, and the table of trees, which is there.

    Raises:
      BigtableError: a table is missing.
    """
    layout, target = place.opentsdb("trees"), place.target
    prefix = layout.options.table_prefix
    command = place.creating("--trees").create_command()
    check_tables(target, [*layout.tables(), tree_table(prefix)], command)
    return layout, target, TreeTable(target, prefix)


_SERIES_AT_ONCE = 2_000


def run(place: Place, options: TreesOptions) -> int:
    """Creates, shows or tests trees; exit code 1 if a tree in the table cannot be read whole."""
    with usage_errors(TreeError):
        if options.action == "show":
            reject_arguments(options)
            return _show(place, options)
        if options.output not in ("text", "json"):
            raise UsageError(f"--output {options.output}: {options.action} prints text or json")
        as_json = options.output == "json"
        with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
            figures = _ACTIONS[options.action](place, options)
        if as_json:
            print(json.dumps(figures, ensure_ascii=False))
        return 0


def _create(place: Place, options: TreesOptions) -> list[dict[str, Any]]:
    """Stores the trees of a file; returns what `--output json` prints."""
    if len(options.argument) != 1:
        raise UsageError("create takes one file: timebeam trees create tree.json")
    trees = parsed_file(options.argument[0], "tree", parse_trees)
    _, _, table = open_trees(place)
    figures = []
    for tree in trees:
        for warning in warnings_of(tree):
            print(f"warning: {warning}", file=sys.stderr)
        tree_id, lines = table.store(tree, exact=options.exact, dry_run=options.dry_run)
        figures.append({"treeId": tree_id, "name": tree.name, "enabled": tree.enabled, "changes": lines})
        for line in lines:
            print(("would store: " if options.dry_run else "") + line)
        if not lines:
            print(f"tree {tree_id}, {tree.name!r}: unchanged")
        if not tree.enabled:
            print(f"tree {tree_id} is not enabled: TSDs and a sync of all trees skip it")
    return figures


def _show(place: Place, options: TreesOptions) -> int:
    layout, target, table = open_trees(place)
    trees, complete = stored_trees(table, options.tree)
    names = DescribedUids(layout, TableReader(target))
    contents = [table.content(tree.tree_id) for tree in trees]
    shown = [
        ShownTree(tree, content, _series_of(content, names))
        for tree, content in zip(trees, contents, strict=True)
    ]
    _write(options, shown)
    if not trees:
        print(f"table {table.name} has no tree; store one with: timebeam trees create FILE", file=sys.stderr)
    return 1 if not complete or any(content.corruption for content in contents) else 0


def _write(options: TreesOptions, shown: Sequence[ShownTree]) -> None:
    """Prints the trees, or writes them to a file.

    Raises:
      UsageError: the output is none that there is, or cannot be written.
    """
    path = pathlib.Path(options.output)
    form = {"text": ".txt", "json": ".json", "html": ".html"}.get(options.output, path.suffix)
    title = "Trees" if len(shown) != 1 else f"Tree {shown[0].tree.name}"
    if form == ".txt":
        text = as_text(shown, options.depth, branches=len(shown) == 1 or options.output != "text")
    elif form == ".json":
        text = as_json(shown)
    elif form == ".html":
        text = as_page(shown, title)
    else:
        raise UsageError(f"unknown output {options.output!r}; give one of {TREE_OUTPUTS}")
    if options.output in ("text", "json", "html"):
        print(text)
        return
    try:
        path.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from error
    print(f"wrote {path}")


def _series_of(content: Content, names: DescribedUids) -> Mapping[str, TreeSeries]:
    """The series of the leaves and failures of a tree, as far as their UIDs have names."""
    tsuids = [leaf.tsuid for _, branch in content.root.walk() for leaf in branch.leaves]
    shown_tsuids = [*dict.fromkeys([*tsuids, *content.collisions, *content.not_matched])]
    shown_tsuids = [tsuid for tsuid in shown_tsuids if re.fullmatch(r"(?:[0-9A-Fa-f]{2})+", tsuid)]
    series_by_tsuid: dict[str, TreeSeries] = {}
    for batch in batched(shown_tsuids, _SERIES_AT_ONCE):
        series = names.series(list(map(bytes.fromhex, batch)))
        series_by_tsuid |= {
            key: tree_series
            for key, tree_series in zip(batch, series, strict=True)
            if isinstance(tree_series, TreeSeries)
        }
    return series_by_tsuid


def _test(place: Place, options: TreesOptions) -> dict[str, Any]:
    """Explains what the rules make of one series; writes nothing; returns what `--output json` prints."""
    if not options.argument:
        raise UsageError("test takes a series: timebeam trees test sys.cpu.0 host=web01, or a TSUID")
    trees = (
        chosen(parsed_file(options.definition, "tree", parse_trees), options.tree)
        if options.definition
        else []
    )
    layout, table = place.opentsdb("trees"), None
    target = _target(place, options)
    if target is not None:
        check_tables(target, layout.tables(), place.create_command())
    if not options.definition:
        _, _, table = open_trees(place)
        trees, _ = stored_trees(table, options.tree)
    try:
        reader = TableReader(target) if target else None
        series, missing = find_series(layout, options.argument, reader)
    except RejectedError as error:
        raise UsageError(f"{error.reason.value}: {error.message}") from error
    print(f"{series}" + (f"  TSUID {tree_cells.hex_text(series.tsuid)}" if series.tsuid else ""))
    if missing:
        reason = "not looked up" if target is None else "without UID"
        listed = ", ".join(f"{name.kind} {name.text}" for name in missing)
        print(f"{reason}: {listed}; custom fields and {{tsuid}} are empty")
    figures: list[dict[str, Any]] = []
    for tree in trees:
        figures.append({"treeId": tree.tree_id, "name": tree.name})
        print("\n" + next(tree_lines(tree)))
        try:
            placement = place_series.place(tree, series)
        except RejectedError as error:
            print(f"  rejected: {error.reason.value}: {error.message}")
            figures[-1] |= {"reason": error.reason.value, "message": error.message}
            continue
        branch = placement.path if placement.leaf else None
        figures[-1] |= {"path": branch, "leaf": placement.leaf, "notMatched": placement.not_matched}
        existing = _existing(table, target, tree, placement.path) if table and target else None
        for line in placement_lines(tree, series, placement, existing):
            print(line)
    if not trees:
        print("no trees; store one with: timebeam trees create FILE", file=sys.stderr)
    return {
        "series": str(series),
        "tsuid": tree_cells.hex_text(series.tsuid),
        "withoutUid": [{"kind": name.kind, "name": name.text} for name in missing],
        "trees": figures,
    }


def _target(place: Place, options: TreesOptions) -> Target | None:
    """The Bigtable instance; None if none is named, and rules of a file are tried without one."""
    try:
        return place.target
    except UsageError:
        if options.definition:
            return None
        raise


def _existing(
    table: TreeTable, target: Target, tree: Tree, path: Sequence[str]
) -> Mapping[bytes, Mapping[bytes, bytes]]:
    """The existing cells of the rows of a path."""
    keys = [tree_cells.branch_key(tree.tree_id, path[:depth]) for depth in range(len(path) + 1)]
    rows = read_rows(target, table.name, keys)
    return {key: {cell.qualifier: cell.value for cell in row.cells} for key, row in rows.items()}


def _purge(place: Place, options: TreesOptions) -> list[dict[str, Any]]:
    """Counts or deletes what the rules of trees would not make; returns what `--output json` prints."""
    reject_arguments(options)
    layout, target, table = open_trees(place)
    trees, _ = stored_trees(table, options.tree)
    figures = []
    for tree in trees:
        rows = misplaced(target, layout, tree)
        purged = delete_rows(target, rows, dry_run=not options.yes).get(table.name, StaleFigures(0, 0, 0))
        verb = "deleted" if options.yes else "would be deleted with --yes"
        print(f"tree {tree.tree_id}, {tree.name!r}: {purged.cells:,} leaves and branches {verb}")
        figures.append({"treeId": tree.tree_id, "name": tree.name, **purged._asdict()})
    if not trees:
        print(f"table {table.name} has no tree: nothing to purge", file=sys.stderr)
    return figures


_ACTIONS: Mapping[str, Callable[[Place, TreesOptions], object]] = {
    "create": _create,
    "test": _test,
    "purge": _purge,
}
