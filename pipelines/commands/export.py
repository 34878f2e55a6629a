"""The command that takes points out of Bigtable: export."""

from __future__ import annotations

import dataclasses

from timebeam.pipelines.options.command_line import Command
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    BUCKET_PATH,
    LAYOUT,
    LETTERS,
    MAX_REFUSED,
    ROLLUP_CONFIG,
    SUMMARY,
    TABLES,
    Parameter,
    boolean,
)
from timebeam.pipelines.options.period import range_parameters

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
