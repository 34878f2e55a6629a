"""The commands that read: query, series, suggest."""

from __future__ import annotations

import dataclasses

from timebeam.pipelines.options.command_line import Argument, Command
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    CSV_GUARD,
    LAYOUT,
    OUTPUTS,
    TABLES,
    Parameter,
    boolean,
    not_negative,
    positive,
    time_zone,
)

SELECTION = (
    Parameter(
        "start",
        "first time: 1h-ago, 2026-11-21T08:00:00Z, seconds or ms since 1970; required for points",
        "Query",
    ),
    Parameter("end", "last time, in the forms of --start", "Query", default="now"),
    Parameter(
        "timezone",
        "time zone of days in --start, --end and --downsample 1dc-sum, and of times in tables and charts, as "
        "Europe/Berlin",
        "Query",
        time_zone,
        "UTC",
        setting=True,
    ),
    Parameter(
        "tag",
        "only series that have this tag: k=v, k=v|w, k=web* (ignores case), k=*, or a filter of OpenTSDB: "
        "k=regexp(web.*), k=not_literal_or(v|w), k=iliteral_or(v), k=wildcard(web*) ...; "
        "k=literal_or(v) for a value with * or (",
        "Query",
        default=[],
        many=True,
    ),
    Parameter(
        "explicit_tags", "only series without other tag keys than those of --tag", "Query", boolean, False
    ),
    Parameter(
        "tsuid",
        "opentsdb: only these series, by TSUIDs in hex; in place of METRIC",
        "Query",
        default=[],
        many=True,
    ),
    Parameter(
        "aggregator",
        "how to aggregate the series of a group: sum, min, max, avg, count, none ...",
        "Query",
        default="sum",
    ),
    Parameter(
        "rate",
        "change per second: rate, rate{counter[,MAX[,RESET]]}, or rate{dropcounter}, which leaves resets out",
        "Query",
    ),
    Parameter("downsample", "one value per interval: 1m-avg, 1h-max-zero, 0all-sum", "Query"),
    Parameter(
        "group_by", "tag keys: one result per combination of their values", "Query", default=[], many=True
    ),
    Parameter(
        "rollup_config",
        "opentsdb: rollup configuration, to answer from rollup tables (docs/how-to/rollups.md)",
        "Query",
        setting=True,
    ),
    Parameter(
        "max_seconds", "stop with an error after this time; by default never", "Query", positive, most=86_400
    ),
    Parameter("no_rollup", "ignore rollup tables; read points", "Query", boolean, False),
    Parameter(
        "full_scan",
        "table: read all rows of a table if no key range serves the query",
        "Query",
        boolean,
        False,
    ),
    *LAYOUT,
    TABLES,
    *BIGTABLE,
)
"""The parameters that say which points a query reads, and how it aggregates them."""

QUERY_COMMAND = Command(
    "query",
    "Reads and aggregates points.",
    runs="timebeam.pipelines.query.query_points:run",
    arguments=(
        Argument(
            "metric",
            nargs="?",
            metavar="METRIC",
            help="name of the metric; or of a declared table, whose records are read; not with --tsuid",
        ),
    ),
    takes_archive=True,
    parameters=(
        *SELECTION,
        Parameter(
            "where",
            "table: FIELD=V or FIELD=V|W: only records that have this value",
            "Query",
            default=[],
            many=True,
        ),
        Parameter("output", f"one of {OUTPUTS}", "Query", default="table"),
        CSV_GUARD,
        Parameter("no_annotations", "opentsdb: leave annotations out", "Query", boolean, False),
        Parameter("global_annotations", "opentsdb: include global annotations", "Query", boolean, False),
        Parameter(
            "histogram", "opentsdb: counts of histograms, one result per bucket", "Query", boolean, False
        ),
        Parameter(
            "percentiles",
            "opentsdb: percentiles of histograms, 1 to 100: 50 99.9",
            "Query",
            not_negative,
            default=[],
            most=100.0,
            many=True,
        ),
        Parameter(
            "explain", "print to standard error which tables served which part", "Query", boolean, False
        ),
    ),
    examples="""\
  timebeam query sys.cpu.percent --layout opentsdb --start 1h-ago --tag mode=user --group_by core
  timebeam query sys.load --layout opentsdb --start 2026-11-21 --downsample 1m-avg --output load.png
  timebeam query sys.net.bytes --layout opentsdb --start 1d-ago --aggregator none --output json
  timebeam query sys.load --layout opentsdb --start 90d-ago --downsample 1d-avg --rollup_config r.json
  timebeam query sys.load --layout opentsdb --start 2026-11-01 --downsample 1dc-max --timezone Europe/Berlin
  timebeam query sys.load --layout opentsdb --start 1d-ago --global_annotations --output load.html
  timebeam query web.latency --layout opentsdb --start 1h-ago --group_by host --percentiles 50 99
  timebeam query QUOTE --layout table --tables market.toml --where EXCHANGE=NYSE SYMBOL=F --start 1h-ago""",
)

SOURCE = Parameter(
    "source",
    "opentsdb: read the meta table or the keys of the data table; auto: the meta table unless it is empty",
    "Series",
    default="auto",
    choices=("auto", "meta", "data"),
)

SERIES_COMMAND = Command(
    "series",
    "Lists series.",
    runs="timebeam.pipelines.query.series:list_series",
    arguments=(Argument("metric", metavar="METRIC", help="name of the metric, or a pattern: 'sys.cpu.*'"),),
    takes_archive=True,
    parameters=(
        Parameter(
            "tag",
            "k=v, k=v|w, k=web* or k=*: only series that have this tag",
            "Series",
            default=[],
            many=True,
        ),
        SOURCE,
        Parameter("output", "form of the list", "Series", default="text", choices=("text", "json", "csv")),
        dataclasses.replace(CSV_GUARD, group="Series"),
        *LAYOUT,
        TABLES,
        *BIGTABLE,
    ),
    examples="""\
  timebeam series 'sys.cpu.*' --layout opentsdb
  timebeam series 'sys.*' --layout opentsdb --tag 'host=web*' 'dc=lga|sjc' --output csv
  timebeam series sys.load --layout opentsdb --source data
  timebeam series '*' --layout kairosdb --row_spec milliseconds --output json
  timebeam series '*' --layout table --tables market.toml

* in a pattern matches any text, including none; quote patterns to protect them from the shell""",
)

SUGGEST_COMMAND = Command(
    "suggest",
    "Lists names that begin with a prefix.",
    runs="timebeam.pipelines.query.series:list_names",
    arguments=(
        Argument("kind", choices=("metrics", "tagk", "tagv"), help="kind of names"),
        Argument(
            "prefix",
            nargs="?",
            default="",
            metavar="PREFIX",
            help="beginning of the names; by default all names",
        ),
    ),
    takes_archive=True,
    parameters=(
        Parameter("max", "names to list, in the order of their bytes", "Names", positive, 25),
        Parameter("output", "form of the list", "Names", default="text", choices=("text", "json")),
        *LAYOUT,
        *BIGTABLE,
    ),
    examples="""\
  timebeam suggest metrics sys. --layout opentsdb
  timebeam suggest tagv web --layout opentsdb --max 1000 --output json
  timebeam suggest tagk --layout opentsdb""",
)
