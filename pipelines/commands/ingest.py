"""The commands that store points: ingest, replay, copy."""

from __future__ import annotations

import argparse
import dataclasses
import functools

from timebeam.pipelines.options.command_line import Argument, Command
from timebeam.pipelines.options.formats import FORMAT, FORMATS_OF_MESSAGES, RECORDS
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    BUCKET_PATH,
    CENTURY_DAYS,
    DECLARED,
    LAYOUT,
    LETTERS,
    MAX_REFUSED,
    PREFLIGHT,
    ROLLUP_CONFIG,
    SUMMARY,
    TABLES,
    TIME,
    Parameter,
    TemplateType,
    boolean,
    names,
    not_negative,
    positive,
    whole,
)
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.formats import AUTO, FORMATS
from timebeam.schema.series.series_limits import MOST_VALUES, parse_limits
from timebeam.schema.stores import STORES

SOURCE = (
    Parameter(
        "input",
        "files or patterns, local or on any file system that Beam knows (gs://bucket/*.json.gz); "
        "plain, .gz, .bz2 or .zst",
        "Input",
        default=[],
        many=True,
        label="Input files",
        template=TemplateType.READ_FILE,
        regex=BUCKET_PATH,
        example="gs://my-bucket/metrics/*.json.gz",
    ),
    Parameter(
        "input_subscription",
        "Pub/Sub subscription to read until stopped: projects/P/subscriptions/S",
        "Input",
        template=TemplateType.SUBSCRIPTION,
        regex=r"projects/[^/]+/subscriptions/[^/]+",
        example="projects/my-project/subscriptions/points",
    ),
    Parameter(
        "input_topic",
        "Pub/Sub topic to read until stopped, through a temporary subscription: projects/P/topics/T",
        "Input",
        local="its temporary subscription ends with the job, and messages between two jobs are lost",
    ),
)

DEAD_LETTERS = Parameter(
    "dead_letters",
    "destination of refused input: files PREFIX-TIME-*.jsonl, or a topic projects/P/topics/T",
    "Input",
    default="dead-letters",
    regex=LETTERS,
    example="gs://my-bucket/dead-letters/points",
    setting=True,
)

WRITING = (
    Parameter(
        "packing",
        "compacted: one column per row and arrival; points: one cell per point; append: appended "
        "to the append column, as a TSD with enable_appends does. By default the layout's first "
        "packing for files, points for messages",
        "Layout",
        choices=names(Packing),
        setting=True,
    ),
    Parameter("auto_create_metrics", "assign UIDs to unknown metrics", "UIDs", boolean, False, setting=True),
    Parameter("auto_create_tagks", "assign UIDs to unknown tag keys", "UIDs", boolean, True, setting=True),
    Parameter("auto_create_tagvs", "assign UIDs to unknown tag values", "UIDs", boolean, True, setting=True),
    Parameter(
        "random_metrics",
        "assign random UIDs to new metrics, which spreads writes",
        "UIDs",
        boolean,
        False,
        setting=True,
    ),
    Parameter(
        "uid_cache_size",
        "names and series cached by each worker process",
        "UIDs",
        positive,
        1_000_000,
        setting=True,
    ),
    Parameter(
        "uid_snapshot_size",
        "names read from the UID table at the start",
        "UIDs",
        whole,
        1_000_000,
        setting=True,
    ),
    Parameter(
        "uid_negative_seconds",
        "seconds before a name that has no UID is looked up again",
        "UIDs",
        not_negative,
        60.0,
        setting=True,
    ),
    *BIGTABLE,
    Parameter(
        "bigtable_writer",
        "direct: refused rows become dead letters, more errors are retried, --app_profile works; "
        "beam: Beam's WriteToBigTable",
        "Bigtable",
        default="direct",
        choices=("direct", "beam"),
        setting=True,
    ),
    Parameter(
        "mark_touched",
        "mark hours that receive points, for rollup --touched",
        "Bigtable",
        boolean,
        False,
        setting=True,
    ),
    Parameter(
        "meta",
        "opentsdb: metadata to write for new series: off, track (ts_ctr), or full (also ts_meta "
        "and the metadata of UIDs); see docs/how-to/meta.md",
        "Bigtable",
        default="off",
        choices=("off", "track", "full"),
    ),
    Parameter("dry_run", "parse, pack and count; write nothing but dead letters", "Run", boolean, False),
    SUMMARY,
    MAX_REFUSED,
)
"How points are stored; the same for all inputs."


_TAGS = tuple(
    Parameter(
        name,
        text,
        "Layout",
        regex=r"[^,\n]+(,[^,\n]+)*" if name != "overflow_tag" else r"[^,\n]+",
        example=example,
        shown_for=("layout", ("opentsdb",)),
        setting=True,
    )
    for name, text, example in (
        (
            "overflow_tag",
            "opentsdb: series of more than --max_tags lose tags, and get this tag with a hash of them",
            "overflow",
        ),
        ("drop_tags", "opentsdb, with --overflow_tag: the tags that they lose, as a,b", "pod_uid,image_id"),
        (
            "keep_tags",
            "opentsdb, with --overflow_tag: the tags that they do not lose, as a,b",
            "job,instance",
        ),
    )
)


LIMITS_REGEX = r"([^=,]+=)?[0-9]{1,18}(,([^=,]+=)?[0-9]{1,18})*"


def limit_text(text: str, most: int | None = None) -> str:
    try:
        limits = parse_limits([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if most is not None and any(limit.number > most for limit in limits):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is more than {most:,}")
    return text


LIMITS = (
    *(
        Parameter(
            name,
            text,
            "Series",
            kind,
            default=[],
            many=True,
            template=TemplateType.TEXT,
            regex=LIMITS_REGEX,
            example="app.*=1000,50000",
            setting=True,
        )
        for name, text, kind in (
            (
                "max_new_series",
                "new series of a metric in a minute, of each worker process; more become dead letters: N, or "
                "PATTERN=N of metrics; the first that matches applies",
                limit_text,
            ),
            (
                "max_series",
                "series of a metric; new ones beyond it become dead letters: N, or PATTERN=N",
                limit_text,
            ),
            (
                "max_tag_values",
                "values of a tag key in a metric; new ones beyond it become dead letters: N, or PATTERN=N",
                functools.partial(limit_text, most=MOST_VALUES),
            ),
        )
    ),
    Parameter(
        "max_all_series",
        "series of all metrics; new ones beyond it become dead letters",
        "Series",
        whole,
        example="10000000",
        setting=True,
    ),
)

STORING = (
    Parameter(
        "format",
        "format of files, and of messages without a `format` attribute",
        "Input",
        choices=(*FORMATS, RECORDS, AUTO),
        required=True,
        setting=True,
    ),
    DEAD_LETTERS,
    Parameter(
        "flush_seconds",
        "messages: seconds to gather points that are packed together; `points` packing does not wait",
        "Input",
        not_negative,
        30.0,
        most=86_400,
        setting=True,
    ),
    Parameter(
        "stop_when_idle",
        "messages, on a local runner: stop after this many seconds without work (more than 30, "
        "to wait for messages that a killed process still holds); by default run until stopped",
        "Input",
        not_negative,
        most=86_400 * CENTURY_DAYS,
        local="local runners only",
    ),
    *FORMAT,
    *LAYOUT,
    *_TAGS,
    TABLES,
    *WRITING,
    *LIMITS,
    FORMATS_OF_MESSAGES,
)

INGEST_COMMAND = Command(
    "ingest",
    "Stores the points of files, or of Pub/Sub messages, in Bigtable.",
    job="timebeam.pipelines.ingest.ingest_jobs:ingest_job",
    takes_archive=True,
    parameters=(*SOURCE, *STORING, PREFLIGHT),
    examples="""\
  timebeam ingest --layout opentsdb --format opentsdb-json --input 'metrics/*.json.gz' \\
      --auto_create_metrics --project my-project --instance my-instance
  timebeam ingest --layout opentsdb --format opentsdb-text --input put.txt --dry_run
  timebeam ingest --layout opentsdb --format influx --input telegraf.lp.zst --auto_create_metrics
  timebeam ingest --layout opentsdb --format opentsdb-annotations --input annotations.json
  timebeam ingest --layout table --tables market.toml --format records --input 'market-*.jsonl.gz'
  timebeam ingest --layout opentsdb --format opentsdb-json \\
      --input_subscription projects/my-project/subscriptions/points
  timebeam ingest ... --preflight
  timebeam ingest ... --runner DataflowRunner --region europe-west1 --temp_location gs://bucket/tmp

Beam's own options can be given too""",
)

REPLAY_COMMAND = Command(
    "replay",
    "Ingests the payloads of dead letters.",
    job="timebeam.pipelines.ingest.ingest_jobs:replay_job",
    takes_archive=True,
    arguments=(Argument("source", metavar="SOURCE", help="files, a pattern, or projects/P/subscriptions/S"),),
    parameters=STORING,
    examples="""\
  timebeam replay 'dead-letters-*.jsonl' --layout opentsdb --format opentsdb-json --auto_create_metrics
  timebeam replay projects/my-project/subscriptions/dead --layout opentsdb --format influx \\
      --dead_letters projects/my-project/topics/dead-again --stop_when_idle 10
  timebeam replay 'dead-letters-*.jsonl' --layout table --tables market.toml --format records

takes the options of `timebeam ingest`; give the same --layout options as there""",
)

TO = "to_"

COPY_COMMAND = Command(
    "copy",
    "Copies the points of a time range, then verifies the copy.",
    job="timebeam.pipelines.store.copy:job_of",
    layouts=(("from", ""), ("to", TO)),
    takes_archive=True,
    parameters=(
        Parameter("from", "layout to read", "From", choices=(*STORES, DECLARED), required=True),
        *(dataclasses.replace(parameter, group="From") for parameter in (*LAYOUT[1:], TABLES)),
        Parameter("to", "layout to write", "To", choices=tuple(STORES), required=True),
        *(
            dataclasses.replace(
                parameter,
                name=TO + parameter.name,
                help=f"--{parameter.name} of the layout to write",
                group="To",
                shown_for=None,
                setting=False,
            )
            for parameter in LAYOUT[1:]
        ),
        Parameter(
            "start",
            "first time: 30d-ago, 2026-11-21T08:00:00Z, seconds or ms since 1970",
            "Points",
            required=True,
            regex=TIME,
            example="2026-11-01",
        ),
        Parameter(
            "end",
            "last time, in the forms of --start",
            "Points",
            default="now",
            regex=TIME,
            example="2026-11-21",
        ),
        Parameter(
            "also",
            "copy these too, from opentsdb to opentsdb: rollups (and pre-aggregates; --rollup_config names "
            "their tables), meta, trees",
            "Points",
            default=[],
            many=True,
            regex=r"(rollups|meta|trees)(,(rollups|meta|trees))*",
            example="rollups",
        ),
        dataclasses.replace(ROLLUP_CONFIG, group="Points"),
        DEAD_LETTERS,
        *WRITING,
        Parameter(
            "verify_only",
            "copy nothing; only compare both layouts",
            "Run",
            boolean,
            False,
            local="the program compares by itself and starts no job",
        ),
    ),
    examples="""\
  timebeam copy --from opentsdb --to heroic --start 2026-11-01 --end 2026-11-21
  timebeam copy --from kairosdb --row_spec milliseconds --to opentsdb --to_salt_width 1 \\
      --to_table_prefix new- --auto_create_metrics --start 2020-01-01
  timebeam copy --from heroic --to kairosdb --start 2026-11-01 --verify_only
  timebeam copy --from table --tables market.toml --to opentsdb --auto_create_metrics --start 2026-11-01
  timebeam copy --from opentsdb --to opentsdb --to_table_prefix wide- --to_uid_width_metric 4 --start 0 \\
      --auto_create_metrics --also rollups meta trees --rollup_config rollups.json

Beam's own options can be given too""",
)
