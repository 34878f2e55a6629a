"`timebeam tables`: creates the tables of a layout, shows and sets their retention."

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Sequence

from timebeam.pipelines.commands.check import audit_aloud
from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    CENTURY_DAYS,
    DECLARED,
    LAYOUT,
    TABLES,
    Parameter,
    UsageError,
    boolean,
    not_negative,
    whole,
)
from timebeam.pipelines.options.period import ZONE
from timebeam.pipelines.options.stored import store_again, store_new, use_stored
from timebeam.pipelines.options.values import create_command, layout_of, layout_with, tables_of, target_of
from timebeam.pipelines.rollup.config import tables_of_rollups
from timebeam.schema.layouts import SeriesMeta, TableSpec, Trees
from timebeam.schema.meta.ts_meta import meta_table
from timebeam.transforms.bigtable.tables import check_tables, create_tables, set_max_age, show_rules
from timebeam.transforms.trees.table import tree_table

PARAMETERS = (
    *LAYOUT,
    TABLES,
    dataclasses.replace(ZONE, group="Layout", help="of rollups: " + ZONE.help),
    Parameter("rollup_config", "also the tables of this rollup configuration", "Layout", setting=True),
    Parameter("meta", "opentsdb: also the meta table", "Layout", boolean, False),
    Parameter("trees", "opentsdb: also the tree table", "Layout", boolean, False),
    Parameter(
        "max_age_days",
        "retention: maximum age in days of the cells of data tables; 0 removes it; "
        "docs/how-to/compact.md explains age",
        "Retention",
        not_negative,
        most=CENTURY_DAYS,
    ),
    Parameter("table", "retention: only this table, with its prefix", "Retention"),
    Parameter("family", "retention: only this family, such as d7 of kairosdb", "Retention"),
    Parameter(
        "rows",
        "adopt: check about this many rows of points, from the first; 0 for all",
        "Adopt",
        whole,
        100_000,
    ),
    *BIGTABLE,
    Parameter("output", "form of the messages", "Run", default="text", choices=("text", "json")),
    Parameter("dry_run", "print what would be done; do nothing", "Run", boolean, False),
)

_FINDINGS = 10

EXAMPLES = """\
  timebeam tables create --layout opentsdb --project my-project --instance my-instance
  timebeam tables create --layout table --tables market.toml
  timebeam tables create --layout opentsdb --rollup_config rollups.json
  timebeam tables create --layout opentsdb --meta --trees
  timebeam tables create --layout opentsdb --table_prefix test- --dry_run   (with an emulator)
  timebeam tables adopt --layout opentsdb --salt_width 1   (tables that a TSD made)
  timebeam tables retention --layout opentsdb
  timebeam tables retention --layout opentsdb --max_age_days 400 --dry_run
  timebeam tables retention --layout kairosdb --retention 7,90 --family d7 --max_age_days 7"""


def command_parser() -> CommandParser:
    """The parser of the command."""
    parser = parser_of(
        "tables",
        "Creates the tables of a layout, adopts those of another system, or shows and sets "
        "retention; safe to repeat.",
        EXAMPLES,
        PARAMETERS,
    )
    parser.add_argument(
        "action",
        choices=["create", "adopt", "retention"],
        help=(
            "create: create missing tables; adopt: store the settings of tables that another system "
            "made; retention: show or set the maximum age of cells"
        ),
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Creates what is missing, or sets an age; says what it did; doing it again changes nothing."""
    parser = command_parser()
    options = parser.parse_args(argv)
    if options.action == "adopt":
        return _adopt(options)
    use_stored(options)
    specs = list(tables_of(options))
    if options.rollup_config:
        specs += tables_of_rollups(options)
    if options.meta:
        layout_with(options, SeriesMeta)
        specs.append(meta_table(options.table_prefix))
    if options.trees:
        layout_with(options, Trees)
        specs.append(tree_table(options.table_prefix))
    if options.action == "retention":
        return _retention(options, specs)
    settings = () if options.layout == DECLARED else store_new(options, dry_run=options.dry_run)
    _show(options, settings, create_tables(target_of(options), specs, dry_run=options.dry_run))
    return 0


def _show(options: argparse.Namespace, *messages: Iterable[str]) -> None:
    """Prints each line as what it says is done; or all of them as JSON."""
    lines = itertools.chain(*messages)
    if options.output == "json":
        print(json.dumps({"dry_run": options.dry_run, "messages": list(lines)}))
        return
    for line in lines:
        print(line)


def _adopt(options: argparse.Namespace) -> int:
    """Stores the settings of the options if the rows in the tables agree with them; 1 if they do not.

    Raises:
      UsageError: the layout is not given, or is that of declared tables.
    """
    if options.layout is None:
        raise UsageError("adopt needs the layout of the tables: --layout")
    layout, target = layout_of(options), target_of(options)
    check_tables(target, layout.tables(), create_command(options))
    with contextlib.redirect_stdout(sys.stderr if options.output == "json" else sys.stdout):
        result = audit_aloud(target, layout, _FINDINGS, options.rows or None)
    if result.damaged:
        print("these settings do not fit the rows; nothing was stored", file=sys.stderr)
        return 1
    fit = "these settings fit the rows; nothing was stored (dry run)"
    _show(options, [fit if options.dry_run else store_again(options)])
    return 0


def _retention(options: argparse.Namespace, specs: Sequence[TableSpec]) -> int:
    """Shows the rules of garbage collection, or sets a maximum age.

    Raises:
      UsageError: the options name no such table or family, or one whose cells must not expire.
    """
    target, days = target_of(options), options.max_age_days
    chosen = _chosen(options, specs)
    if days is None:
        ages = (
            f"table {spec.name}: age counts from {spec.cell_time}" if spec.cell_time else _no_age(spec)
            for spec in chosen
        )
        _show(options, show_rules(target, chosen), ages)
        return 0
    ageing = [spec for spec in chosen if spec.cell_time]
    if not ageing or (options.table and len(ageing) < len(chosen)):
        raise UsageError("; ".join(map(_no_age, chosen)))
    check_tables(target, ageing, create_command(options))
    _show(options, set_max_age(target, ageing, days, dry_run=options.dry_run))
    for spec in ageing if days else ():
        print(
            f"warning: table {spec.name}: Bigtable permanently deletes older cells; "
            f"age counts from {spec.cell_time}",
            file=sys.stderr,
        )
    return 0


def _chosen(options: argparse.Namespace, specs: Sequence[TableSpec]) -> list[TableSpec]:
    """The tables, and of them the families, that `--table` and `--family` name; all without them."""
    chosen = [
        dataclasses.replace(
            spec, families={name: n for name, n in spec.families.items() if options.family in (None, name)}
        )
        for spec in specs
        if options.table in (None, spec.name)
    ]
    chosen = [spec for spec in chosen if spec.families]
    if not chosen:
        existing = "; ".join(f"{spec.name}, families {', '.join(spec.families)}" for spec in specs)
        raise UsageError(f"no such table or family; choose from: {existing}")
    return chosen


def _no_age(spec: TableSpec) -> str:
    return (
        f"table {spec.name} cannot have a maximum age: its cells must not expire "
        "(names, index entries, marks) or carry no time"
    )
