"""`timebeam cardinality`: what has the most series."""

from __future__ import annotations

from timebeam.pipelines.commands.query import SOURCE
from timebeam.pipelines.options.command_line import Command
from timebeam.pipelines.options.parameters import BIGTABLE, LAYOUT, TABLES, TIME, Parameter, positive

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
