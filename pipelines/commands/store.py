"""The commands that take care of the store: delete."""

from __future__ import annotations

import dataclasses

from timebeam.pipelines.commands.query import SELECTION
from timebeam.pipelines.options.command_line import Argument, Command
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    BUCKET_PATH,
    LAYOUT,
    SUMMARY,
    TABLES,
    TIME,
    Parameter,
    boolean,
)

_SELECTED = {parameter.name: parameter for parameter in SELECTION}

DELETE_COMMAND = Command(
    "delete",
    "Deletes points, after a dry run that shows what would be deleted.",
    job="timebeam.pipelines.store.delete:job_of",
    arguments=(Argument("metric", nargs="?", metavar="METRIC", help="name of the metric; not with --tsuid"),),
    parameters=(
        Parameter(
            "start",
            "first time: 2026-11-21T08:00:00Z, 30d-ago, seconds or ms since 1970",
            "Delete",
            required=True,
            regex=TIME,
            example="2026-11-20T08:00:00Z",
        ),
        Parameter("end", "last time, in the forms of --start", "Delete", default="now", regex=TIME),
        *(
            dataclasses.replace(_SELECTED[name], group="Delete")
            for name in ("tag", "explicit_tags", "tsuid", "full_scan")
        ),
        Parameter(
            "token",
            "delete what the dry run that printed this token has seen; without it, only a dry run",
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
            "do not mark the hours for `rollup --touched`, so that rollups keep what is deleted",
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

both ends of the time range are inclusive; a repeated run with the same token and log completes one that was
interrupted; Beam's own options can be given too""",
)
