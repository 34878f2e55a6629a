"""`timebeam query`: points back out of the tables, aggregated as OpenTSDB's /api/query does.

With a rollup configuration what is rolled up comes from there; the answer is the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence

from pipelines import cli
from pipelines.parameters import (
    BIGTABLE,
    LAYOUT,
    Parameter,
    UsageError,
    boolean,
    create_command,
    layout_of,
    parser_of,
    target_of,
)
from pipelines.render import OUTPUTS, render
from pipelines.rollup import rollups_of
from schema.layouts import UnknownNameError
from schema.query.answer import answer
from schema.query.downsample import Downsampling
from schema.query.rollups import Question
from schema.query.times import parse_time
from transforms.bigtable.tables import check_tables
from transforms.rollup.lookup import find_points, find_rolled_up

PARAMETERS = (
    Parameter(
        "start", "first time: 1h-ago, 2026-11-21T08:00:00Z, seconds or ms since 1970", "Query", required=True
    ),
    Parameter("end", "last time, as --start", "Query", default="now"),
    Parameter("tag", "k=v, k=v|w or k=*: only series that have this tag", "Query", default=[], many=True),
    Parameter(
        "aggregator", "of the series of a group: sum, min, max, avg, count, none ...", "Query", default="sum"
    ),
    Parameter("downsample", "one value per interval: 1m-avg, 1h-max-zero, 0all-sum", "Query"),
    Parameter("group_by", "tag keys: one result for each of their values", "Query", default=[], many=True),
    Parameter("output", f"one of {OUTPUTS}", "Query", default="table"),
    Parameter(
        "rollup_config",
        "opentsdb: the rollup configuration; what is rolled up is not read point by point (docs/rollups.md)",
        "Query",
    ),
    Parameter("no_rollup", "read points only, whatever is rolled up", "Query", boolean, False),
    Parameter("explain", "say on standard error which tables served which part", "Query", boolean, False),
    *LAYOUT,
    *BIGTABLE,
)

EXAMPLES = """\
  timebeam query sys.cpu.percent --layout opentsdb --start 1h-ago --tag mode=user --group_by core
  timebeam query sys.load --layout opentsdb --start 2026-11-21 --downsample 1m-avg --output load.png
  timebeam query sys.net.bytes --layout opentsdb --start 1d-ago --aggregator none --output json
  timebeam query sys.load --layout opentsdb --start 90d-ago --downsample 1d-avg --rollup_config r.json"""


def tag_filters(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """The tags that a query asks for: allowed values by key, none for `*`.

    Raises:
      UsageError: a text is not k=v.
    """
    filters: dict[str, frozenset[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not key or not equals or not values or key in filters:
            raise UsageError(f"--tag {text}: give each key once, as k=v, k=v|w or k=*")
        filters[key] = frozenset() if values == "*" else frozenset(values.split("|"))
    return filters


def main(argv: Sequence[str] | None = None) -> int:
    """Prints or plots the answer; exit code 1 if a name is unknown."""
    parser = parser_of("query", "Reads points back.", EXAMPLES, PARAMETERS)
    parser.add_argument("metric", metavar="METRIC", help="name of the metric")
    return run(parser.parse_args(argv))


def run(options: argparse.Namespace) -> int:
    """Answers the query that the options describe."""
    layout, target = layout_of(options), target_of(options)
    now_ms = int(time.time() * 1000)
    try:
        start_ms, end_ms = parse_time(options.start, now_ms), parse_time(options.end, now_ms)
        downsampling = Downsampling.parse(options.downsample) if options.downsample else None
        answer(options.metric, [], options.group_by, options.aggregator, downsampling, start_ms, end_ms)
    except ValueError as error:
        raise UsageError(str(error)) from error
    asked = Question(
        options.metric,
        tag_filters(options.tag),
        options.group_by,
        options.aggregator,
        downsampling,
        start_ms,
        end_ms,
    )
    rollups = rollups_of(options) if options.rollup_config and not options.no_rollup else None
    check_tables(target, layout.tables(), create_command(options))
    try:
        if rollups is None:
            answered = find_points(target, layout, asked)
        else:
            answered = find_rolled_up(target, *rollups, asked, now_ms)
    except UnknownNameError as error:
        print(f"timebeam query: {error.args[0]}", file=sys.stderr)
        return 1
    for line in answered.explained if options.explain else ():
        print(line, file=sys.stderr)
    for line in answered.damage:
        print(f"skipped: {line}", file=sys.stderr)
    results = answer(
        options.metric, answered.found, options.group_by, options.aggregator, downsampling, start_ms, end_ms
    )
    title = f"{options.aggregator} {options.downsample or ''} {options.metric}"
    try:
        text = render(results, options.output, " ".join(title.split()))
    except ValueError as error:
        raise UsageError(str(error)) from error
    print(text if text is not None else f"wrote {options.output}", end="" if text else "\n")
    return 0


if __name__ == "__main__":
    sys.exit(cli.main(["query", *sys.argv[1:]]))
