"""The commands around tables: create, adopt and check them, plan their size, declare them."""

from __future__ import annotations

import argparse
import dataclasses

from timebeam.pipelines.options.command_line import Argument, Command
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    CENTURY_DAYS,
    LAYOUT,
    SUMMARY,
    TABLES,
    Parameter,
    boolean,
    names,
    not_negative,
    positive,
    whole,
)
from timebeam.pipelines.options.period import ZONE
from timebeam.pipelines.sizing.estimate import NODES
from timebeam.pipelines.sizing.measure import Values
from timebeam.schema.bits.times import parse_duration

TABLES_COMMAND = Command(
    "tables",
    "Creates the tables of a layout, adopts those of another system, forgets their settings, or shows and "
    "sets retention; safe to repeat.",
    runs="timebeam.pipelines.tables.tables:run",
    layouts=(),
    arguments=(
        Argument(
            "action",
            choices=["create", "adopt", "forget", "retention"],
            help="create: create missing tables; adopt: store the settings of tables that another system "
            "made; forget: remove the stored settings of a layout, its tables stay; retention: show or set "
            "the maximum age of cells",
        ),
    ),
    takes_archive=True,
    parameters=(
        *LAYOUT,
        TABLES,
        dataclasses.replace(ZONE, group="Layout", help="of rollups: " + ZONE.help),
        Parameter("rollup_config", "also the tables of this rollup configuration", "Layout", setting=True),
        Parameter("meta", "opentsdb: also the meta table", "Layout", boolean, False),
        Parameter("trees", "opentsdb: also the tree table", "Layout", boolean, False),
        Parameter(
            "series_limits",
            "also the table of counts, for limits such as --max_series",
            "Layout",
            boolean,
            False,
        ),
        Parameter(
            "max_age_days",
            "retention: maximum age in days of the cells of data tables; 0 removes it; "
            "docs/how-to/store/compact.md explains age",
            "Retention",
            not_negative,
            most=CENTURY_DAYS,
        ),
        Parameter(
            "table",
            "retention, forget: only this table (forget: a declared one), with its prefix",
            "Retention",
        ),
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
    ),
    examples="""\
  timebeam tables create --layout opentsdb --project my-project --instance my-instance
  timebeam tables create --layout table --tables market.toml
  timebeam tables create --layout opentsdb --rollup_config rollups.json
  timebeam tables create --layout opentsdb --meta --trees
  timebeam tables create --layout opentsdb --table_prefix test- --dry_run   (with an emulator)
  timebeam tables adopt --layout opentsdb --salt_width 1   (tables that a TSD made)
  timebeam tables forget --layout kairosdb --dry_run
  timebeam tables retention --layout opentsdb
  timebeam tables retention --layout opentsdb --max_age_days 400 --dry_run
  timebeam tables retention --layout kairosdb --retention 7,90 --family d7 --max_age_days 7""",
)

CHECK_COMMAND = Command(
    "check",
    "Verifies that every row decodes, and that names and UIDs map one to one.",
    runs="timebeam.pipelines.tables.check:run",
    takes_archive=True,
    parameters=(
        *LAYOUT,
        TABLES,
        *BIGTABLE,
        Parameter("output", "form of the findings", "Run", default="text", choices=("text", "json")),
        Parameter("most", "findings to list; the rest are counted", "Run", positive, 100),
    ),
    examples="""\
  timebeam check --layout opentsdb --project my-project --instance my-instance
  timebeam check --layout opentsdb --salt_width 1 --most 1000
  timebeam check --layout table --tables market.toml""",
)

LAYOUT_COMMAND = Command(
    "layout",
    "Explains tables declared in TOML, or plots how writes spread over their keys.",
    runs="timebeam.pipelines.tables.layout:run",
    arguments=(
        Argument("action", choices=["check", "heat"], help="check: explain the tables; heat: plot key heat"),
        Argument("file", help="the declaration, a TOML file"),
    ),
    parameters=(
        Parameter(
            "input", "heat: sample of the records: .csv with a header, .avro, otherwise JSON lines", "Heat"
        ),
        Parameter("layout", "heat: layout to plot; by default all layouts of the file", "Heat"),
        Parameter("output", "heat: file of the plot, .png", "Heat", default="heat.png"),
        SUMMARY,
    ),
    examples="""\
  timebeam layout check examples/tables/market.toml
  timebeam layout heat examples/tables/battery_salted.toml --input examples/tables/battery.jsonl""",
)


def _duration(text: str) -> int:
    """A duration in ms, for argparse."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


RETENTION_CLASSES = ("retention", "retention_class")
"""Retention classes of kairosdb: nothing is larger or smaller by them, and `retention` is a time here."""


PLAN_COMMAND = Command(
    "plan",
    "Estimates what a load of points needs, for each packing.",
    runs="timebeam.pipelines.tables.plan:run",
    takes_archive=True,
    parameters=(
        Parameter("series", "number of series", "Load", positive, most=10**12, required=True),
        Parameter("interval", "time between points of a series: 10s, 1m, 500ms", "Load", _duration, "10s"),
        Parameter("retention", "how long points are kept: 30d, 1y", "Load", _duration, "30d"),
        Parameter(
            "metrics",
            "number of metrics, each with the same number of series",
            "Load",
            positive,
            100,
            most=10**12,
        ),
        Parameter("tags", "tags per series", "Load", positive, 4, most=100),
        Parameter(
            "tag_values",
            "number of tag values, all keys together; by default one per series of a metric",
            "Load",
            positive,
            most=10**12,
        ),
        Parameter(
            "name_length",
            "characters per name; layouts without UIDs have names in keys",
            "Load",
            positive,
            12,
            most=4096,
        ),
        Parameter("values", "kind of values", "Load", default=Values.MIXED.value, choices=names(Values)),
        Parameter(
            "points_per_message", "points of one series per message", "Load", positive, 1, most=100_000
        ),
        Parameter(
            "flush_seconds",
            "seconds that a stream gathers points, as in ingest",
            "Load",
            not_negative,
            30.0,
            most=86_400,
        ),
        *(parameter for parameter in LAYOUT if parameter.name not in RETENTION_CLASSES),
        Parameter("storage", "storage of the nodes", "Bigtable", default="ssd", choices=tuple(NODES)),
        Parameter(
            "node_price", "price per node and hour, to estimate the monthly cost", "Bigtable", not_negative
        ),
        Parameter("gb_price", "price per stored GB and month", "Bigtable", not_negative),
        Parameter("core_price", "price per core of workers and hour", "Dataflow", not_negative),
        Parameter("shuffle_price", "price per shuffled GB", "Dataflow", not_negative),
        Parameter("summary", "output form", "Run", default="text", choices=("text", "json")),
    ),
    examples="""\
  timebeam plan --series 1000000 --interval 10s --layout opentsdb --retention 30d
  timebeam plan --series 1000000 --layout opentsdb --salt_width 1 --salt_buckets 20 --points_per_message 6
  timebeam plan --series 50000 --interval 1s --layout heroic --name_length 20 --summary json
  timebeam plan --series 200000 --layout kairosdb --node_price 0.65 --gb_price 0.17

bytes are measured on a sample, before compression; docs/how-to/sizing.md explains the output""",
)
