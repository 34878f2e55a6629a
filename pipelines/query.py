"""`timebeam query`: points back out of the tables, aggregated as OpenTSDB's /api/query does."""

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
    create_command,
    layout_of,
    parser_of,
    target_of,
)
from pipelines.render import OUTPUTS, render
from schema.layouts import Selection, UnknownNameError
from schema.query.answer import answer, reach
from schema.query.downsample import Downsampling
from schema.query.times import parse_time
from transforms.bigtable.tables import check_tables
from transforms.lookup import find_series

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
    *LAYOUT,
    *BIGTABLE,
)

EXAMPLES = """\
  timebeam query sys.cpu.percent --layout opentsdb --start 1h-ago --tag mode=user --group_by core
  timebeam query sys.load --layout opentsdb --start 2026-11-21 --downsample 1m-avg --output load.png
  timebeam query sys.net.bytes --layout opentsdb --start 1d-ago --aggregator none --output json"""


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
    check_tables(target, layout.tables(), create_command(options))
    try:
        wanted = Selection(options.metric, tag_filters(options.tag), *reach(downsampling, start_ms, end_ms))
        found, damage = find_series(target, layout, wanted)
    except UnknownNameError as error:
        print(f"timebeam query: {error.args[0]}", file=sys.stderr)
        return 1
    for line in damage:
        print(f"skipped: {line}", file=sys.stderr)
    results = answer(
        options.metric, found, options.group_by, options.aggregator, downsampling, start_ms, end_ms
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
