"""`timebeam names`, the care of OpenTSDB's UIDs, and `timebeam cardinality`, what has the most series."""

from __future__ import annotations

import dataclasses

from timebeam.pipelines.commands.query import SOURCE
from timebeam.pipelines.options.command_line import Argument, Command
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    LAYOUT,
    ROLLUP_CONFIG,
    TABLES,
    TIME,
    Parameter,
    boolean,
    positive,
)

NAMES_COMMAND = Command(
    "names",
    "Lists, renames, merges, frees and fixes the names in OpenTSDB's UID table.",
    runs="timebeam.pipelines.store.edit_names:run",
    arguments=(
        Argument("action", choices=["list", "rename", "merge", "free", "fix"], help="what to do"),
        Argument("argument", nargs="*", help="list: KIND PREFIX, or nothing; rename, merge: KIND OLD NEW"),
    ),
    parameters=(
        Parameter(
            "use", "list: count the series and rows of each name; reads all row keys", "Names", boolean, False
        ),
        Parameter(
            "wait_hours",
            "free: hours that a UID waits between losing its name and being deleted; all writers must be "
            "restarted within this time",
            "Names",
            positive,
            168,
        ),
        Parameter(
            "yes",
            "rename, merge, free, fix: write; by default they print what would change",
            "Names",
            boolean,
            False,
        ),
        dataclasses.replace(
            ROLLUP_CONFIG, help="merge: also the rows of the tables that this rollup configuration names"
        ),
        Parameter("output", "form of the output", "Names", default="text", choices=("text", "json")),
        *LAYOUT,
        *BIGTABLE,
    ),
    examples="""\
  timebeam names list --layout opentsdb
  timebeam names list metrics sys. --layout opentsdb --use
  timebeam names rename metrics sys.cpu system.cpu --layout opentsdb --yes
  timebeam names merge metrics sys.load1 sys.load --layout opentsdb --yes
  timebeam names free --layout opentsdb            # prints; with --yes too: frees
  timebeam names fix --layout opentsdb --yes

KIND is metrics, tagk or tagv; OLD of merge may be a UID in hex
TSDs and other writers keep names in memory: see docs/how-to/store/names.md""",
)

CARDINALITY_COMMAND = Command(
    "cardinality",
    "Shows which metrics, tag keys and tag values have the most series, and the most new ones.",
    runs="timebeam.pipelines.store.cardinality:run",
    parameters=(
        Parameter(
            "metric", "only metrics that match: a name, or a pattern such as app.*", "Series", default="*"
        ),
        Parameter("top", "how many of each kind to show", "Series", positive, 10, most=10_000),
        Parameter(
            "by",
            "order by series, or by new series",
            "Series",
            default="series",
            choices=("series", "growth"),
        ),
        Parameter(
            "since",
            "series first seen from this time on are new: 7d-ago, 2026-11-21",
            "Series",
            default="1d-ago",
            regex=TIME,
        ),
        SOURCE,
        Parameter(
            "refused",
            "files of dead letters: also show which producers sent new series beyond limits, by the "
            "attributes of their messages",
            "Series",
            default=[],
            many=True,
        ),
        Parameter("output", "table, json, or FILE.png", "Series", default="table"),
        *LAYOUT,
        TABLES,
        *BIGTABLE,
    ),
    examples="""\
  timebeam cardinality --layout opentsdb
  timebeam cardinality --layout opentsdb --by growth --since 1h-ago --top 5
  timebeam cardinality --layout opentsdb --metric 'app.*' --output app.png
  timebeam cardinality --layout opentsdb --refused 'dead-letters-*.jsonl' --output json""",
)
