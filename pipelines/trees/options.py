"""The options of `timebeam trees`, and what they name: files with trees, stored trees, tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    LAYOUT,
    MAX_REFUSED,
    SUMMARY,
    Parameter,
    UsageError,
    boolean,
    positive,
)
from timebeam.pipelines.options.values import create_command, layout_with, target_of, text_of
from timebeam.schema.layouts import Trees
from timebeam.schema.trees.definitions import Tree, TreeError
from timebeam.schema.trees.parsing import parse_trees
from timebeam.transforms.bigtable.tables import check_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.trees.table import TreeTable, tree_table

_LAYOUT_OPTIONS = (
    "table_prefix",
    "salt_width",
    "salt_buckets",
    "uid_width_metric",
    "uid_width_tagk",
    "uid_width_tagv",
    "max_tags",
)
OUTPUTS = "text, json, html, FILE.txt, FILE.json, FILE.html"

PARAMETERS = (
    Parameter(
        "tree",
        "show, test, sync: id or name of one tree; by default all trees, for sync all enabled ones",
        "Trees",
    ),
    Parameter("exact", "create: also delete stored rules that are not in the file", "Trees", boolean, False),
    Parameter("output", f"show: one of {OUTPUTS}; create, test: text, json", "Trees", default="text"),
    Parameter("depth", "show as text: number of branch levels", "Trees", positive),
    Parameter("definition", "test: use the trees in this file, not the stored ones", "Trees"),
    Parameter(
        "series",
        "sync: read series from the meta table or from the keys of the data table; by default "
        "from the meta table unless it is missing or empty",
        "Trees",
        choices=("meta", "data"),
    ),
    Parameter(
        "dead_letters",
        "sync: destination of series that cannot be placed: files PREFIX-TIME-*.jsonl, or a "
        "topic projects/P/topics/T",
        "Trees",
        default="dead-letters",
        setting=True,
    ),
    Parameter(
        "layout",
        "layout with trees",
        "Layout",
        default="opentsdb",
        choices=("opentsdb",),
        setting=True,
    ),
    *(parameter for parameter in LAYOUT if parameter.name in _LAYOUT_OPTIONS),
    *BIGTABLE,
    Parameter("dry_run", "create, sync: print what would be done; write nothing", "Run", boolean, False),
    SUMMARY,
    MAX_REFUSED,
)

EXAMPLES = """\
  timebeam tables create --layout opentsdb --meta --trees
  timebeam trees test --definition tree.json sys.cpu.0 host=web01 dc=lga
  timebeam trees create tree.json
  timebeam trees sync --dry_run
  timebeam trees sync
  timebeam trees show
  timebeam trees show --tree hosts --depth 2
  timebeam trees show --output trees.html
  timebeam trees test --tree 1 000001000001000001

a tree file has the fields of /api/tree, and in `rules` those of /api/tree/rule: see docs/how-to/trees.md;
sync also takes Beam's own options"""


def trees_in(path: str) -> list[Tree]:
    """The trees of a file.

    Raises:
      UsageError: it cannot be read, or used.
    """
    try:
        return parse_trees(text_of(path, "tree"))
    except TreeError as error:
        raise UsageError(f"{path}: {error}") from error


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
    trees, damage = table.trees()
    for text in damage:
        print(f"skipped: {text}", file=sys.stderr)
    return chosen(trees, id_or_name), not damage


def places_of(options: argparse.Namespace) -> tuple[Trees, Target, TreeTable]:
    """The layout, the instance, and the table of trees, which is there.

    Raises:
      BigtableError: a table is missing.
    """
    layout, target = layout_with(options, Trees), target_of(options)
    prefix = layout.options.table_prefix
    command = create_command(argparse.Namespace(**{**vars(options), "trees": True}))
    check_tables(target, [*layout.tables(), tree_table(prefix)], command)
    return layout, target, TreeTable(target, prefix)
