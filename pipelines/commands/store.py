"""The commands that take care of the store: delete, seal."""

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
    SUMMARY,
    TABLES,
    TIME,
    Parameter,
    TemplateType,
    boolean,
    not_negative,
)
from timebeam.schema.store.retention import RULES, parse_rules


def _rules_text(text: str) -> str:
    """The text of rules."""
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
