"""The commands that take points out of the store, or move them in it: delete, export, seal."""

from __future__ import annotations

import argparse
import dataclasses

from timebeam.pipelines.commands.query import SELECTION
from timebeam.pipelines.options.command_line import Argument, Command
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    BUCKET_PATH,
    CENTURY_DAYS,
    LAYOUT,
    LETTERS,
    MAX_REFUSED,
    ROLLUP_CONFIG,
    SUMMARY,
    TABLES,
    TIME,
    Parameter,
    TemplateType,
    boolean,
    not_negative,
)
from timebeam.pipelines.options.period import range_parameters
from timebeam.schema.series.retention_rules import RULES, parse_rules


def _rules_text(text: str) -> str:
    try:
        parse_rules([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


_SELECTED = {parameter.name: parameter for parameter in SELECTION}

DELETE_COMMAND = Command(
    "delete",
    "Deletes points, after a dry run that shows what would be deleted.",
    job="timebeam.pipelines.store.delete:job_of",
    takes_archive=True,
    arguments=(Argument("metric", nargs="?", metavar="METRIC", help="name of the metric; not with --tsuid"),),
    parameters=(
        Parameter(
            "start",
            "first time: 2026-11-21T08:00:00Z, 30d-ago, seconds or ms since 1970; required with METRIC",
            "Delete",
            regex=TIME,
            example="2026-11-20T08:00:00Z",
        ),
        Parameter("end", "last time, in the forms of --start", "Delete", default="now", regex=TIME),
        *(
            dataclasses.replace(_SELECTED[name], group="Delete")
            for name in ("tag", "explicit_tags", "tsuid", "full_scan")
        ),
        Parameter(
            "keep_days",
            "instead of METRIC: delete points older than so many UTC days, DAYS or PATTERN=DAYS, or "
            "DAYS/DAYS of points and rollups; the first that matches applies; table [retention] of the "
            "settings file",
            "Retention",
            _rules_text,
            default=[],
            many=True,
            template=TemplateType.TEXT,
            regex=RULES,
            example="debug.*=7,sys.*=30/400,400",
            setting=True,
        ),
        dataclasses.replace(
            _SELECTED["rollup_config"],
            help="opentsdb: rollup configuration, which names the tables of rollups; needed with DAYS/DAYS",
            group="Retention",
            template=TemplateType.READ_FILE,
            regex=BUCKET_PATH,
            example="gs://my-bucket/rollups.json",
        ),
        Parameter(
            "unattended",
            "with --keep_days: delete without a token, for scheduled runs",
            "Retention",
            boolean,
            False,
        ),
        Parameter(
            "token",
            "token of a dry run: delete what it showed; without it, this is a dry run",
            "Delete",
            regex=r"[0-9a-f]+-[0-9a-f]+-[0-9a-f]+",
            example="19aa2b3c4d5-1f2e3d4c-5b6a79",
        ),
        Parameter(
            "log",
            "log of deleted rows: files PREFIX-TOKEN-*.jsonl",
            "Delete",
            default="deleted",
            regex=BUCKET_PATH,
            example="gs://my-bucket/deleted/run",
            setting=True,
        ),
        Parameter(
            "series",
            "also delete annotations of the range, and index rows, metadata and tree leaves of series that "
            "then have no points",
            "Delete",
            boolean,
            False,
            local="the program deletes by itself what refers to the series",
        ),
        Parameter(
            "annotations",
            "opentsdb: delete annotations of series instead of points",
            "Delete",
            boolean,
            False,
        ),
        Parameter(
            "keep_rollups",
            "do not mark the hours for `rollup --touched`, so that rollups stay as they are",
            "Delete",
            boolean,
            False,
        ),
        *LAYOUT,
        TABLES,
        *BIGTABLE,
        Parameter("dry_run", "count what would be deleted, also with --token", "Run", boolean, False),
        SUMMARY,
    ),
    examples="""\
  timebeam delete sys.load --layout opentsdb --start 2026-11-01 --end 2026-11-02
  timebeam delete sys.load --layout opentsdb --start 2026-11-01 --end 2026-11-02 --token TOKEN
  timebeam delete sys.load --layout opentsdb --start 30d-ago --end 1d-ago --tag 'host=web*' dc=lga
  timebeam delete --layout opentsdb --keep_days 'debug.*=7' 400 --keep_rollups

both ends of the time range are inclusive; a repeated run with the same token and log completes one that was
interrupted; Beam's own options can be given too""",
)

EXPORT_COMMAND = Command(
    "export",
    "Writes the points of whole days as Parquet files; safe to repeat.",
    job="timebeam.pipelines.store.export:job_of",
    takes_archive=True,
    parameters=(
        Parameter(
            "output",
            "folder of the files, local or on any file system that Beam knows; each day has a folder in it",
            "Export",
            required=True,
            regex=BUCKET_PATH,
            example="gs://my-bucket/points",
        ),
        *range_parameters(
            "Export",
            "day in UTC, such as 2026-11-20; by default the last complete day",
            "end of the range, exclusive; every day that the range touches is exported whole",
            "1d-ago",
        ),
        Parameter("by_metric", "a folder for each metric in the folder of a day", "Export", boolean, False),
        Parameter(
            "tags",
            "columns: a column tag_KEY for each tag key; map: one column tags, a map",
            "Export",
            default="columns",
            choices=("columns", "map"),
        ),
        dataclasses.replace(ROLLUP_CONFIG, group="Export"),
        Parameter(
            "interval",
            "opentsdb: export the rollups of this interval of --rollup_config, such as 1h, instead of points",
            "Export",
            regex=r"[0-9]+[smhdwny]",
            example="1h",
        ),
        Parameter(
            "verify",
            "export nothing; compare every column of the files with the manifests",
            "Export",
            boolean,
            False,
            local="the program compares by itself and starts no job",
        ),
        Parameter(
            "dead_letters",
            "destination of rows that cannot be read: files PREFIX-TIME-*.jsonl, or a topic",
            "Export",
            default="dead-letters",
            regex=LETTERS,
            example="gs://my-bucket/dead-letters/export",
            setting=True,
        ),
        *LAYOUT,
        TABLES,
        *BIGTABLE,
        Parameter("dry_run", "read and count; write nothing but dead letters", "Run", boolean, False),
        SUMMARY,
        MAX_REFUSED,
    ),
    examples="""\
  timebeam export --layout opentsdb --output points --day 2026-11-20
  timebeam export --layout opentsdb --output gs://my-bucket/points --start 30d-ago --end now --by_metric
  timebeam export --layout table --tables market.toml --output points --day 2026-11-20 --tags map
  timebeam export --layout opentsdb --output points --day 2026-11-20 --verify
  timebeam export --layout opentsdb --output rollups --rollup_config rollups.json --interval 1h

a repeated run replaces the files of its days; Beam's own options can be given too""",
)

SEAL_COMMAND = Command(
    "seal",
    "Moves closed hours into the archive, in compressed columns; safe to repeat.",
    job="timebeam.pipelines.store.seal:job_of",
    takes_archive=True,
    parameters=(
        Parameter(
            "older_than",
            "seal hours whose end is older than this, such as 30d or 12h",
            "Seal",
            default="30d",
            regex="[0-9]+[hdwny]",
        ),
        Parameter(
            "start",
            "seal from this time on, as in queries; by default from the first point",
            "Seal",
            regex=TIME,
            example="2026-11-20",
        ),
        Parameter(
            "quiet_hours",
            "skip hours that were written less than this many hours ago",
            "Seal",
            not_negative,
            1.0,
            most=24 * CENTURY_DAYS,
        ),
        Parameter(
            "delete_source",
            "delete sealed points from the data table, after they were compared with the archive",
            "Seal",
            boolean,
            False,
        ),
        Parameter(
            "reader_hours",
            "with --delete_source: delete only hours sealed at least this many hours ago, longer than any "
            "query or rollup runs; 0 deletes at once: use it only while nothing reads",
            "Seal",
            not_negative,
            1.0,
            most=24 * CENTURY_DAYS,
        ),
        *LAYOUT,
        *BIGTABLE,
        Parameter("dry_run", "read and count; write nothing", "Run", boolean, False),
        SUMMARY,
    ),
    examples="""\
  timebeam tables create --layout opentsdb --archive true
  timebeam seal --layout opentsdb --dry_run
  timebeam seal --layout opentsdb --older_than 30d
  timebeam seal --layout opentsdb --older_than 30d --delete_source

with --delete_source run it daily: each run deletes what an earlier one has sealed;
see docs/how-to/store/archive.md

Beam's own options can be given too""",
)
