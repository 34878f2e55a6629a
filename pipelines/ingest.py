"""`timebeam ingest`: points out of files, or out of Pub/Sub for ever, into the tables of a layout."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import cli, records, stream
from pipelines.bounded import run_bounded
from pipelines.graph import Job, build_from_blocks
from pipelines.options import check_writer, create_command, format_of, layout_of, letters_of, target_of
from pipelines.parameters import (
    BIGTABLE,
    BUCKET_PATH,
    DECLARED,
    FORMAT,
    LAYOUT,
    LETTERS,
    RECORDS,
    SUMMARY,
    TABLES,
    Parameter,
    TemplateType,
    UsageError,
    boolean,
    names,
    not_negative,
    parser_of,
    positive,
)
from pipelines.preflight import PREFLIGHT, Needs, preflight
from pipelines.run import beam_options
from schema.layouts import Layout, Packing
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.messages import FORMATS, Framing
from schema.messages.opentsdb_annotations import OpenTsdbAnnotations
from schema.meta.rows import MetaMode
from transforms.bigtable.tables import check_tables
from transforms.files import ReadBlocks, match
from transforms.rollup.touched import Marker
from transforms.series_keys import UidOptions
from transforms.uids import UidPolicy

SOURCE = (
    Parameter(
        "input",
        "files or patterns: local or of any file system that Beam knows (gs://bucket/*.json.gz); plain, "
        ".gz, .bz2, .zst",
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
        "a subscription, for ever: projects/P/subscriptions/S",
        "Input",
        template=TemplateType.SUBSCRIPTION,
        regex=r"projects/[^/]+/subscriptions/[^/]+",
        example="projects/my-project/subscriptions/points",
    ),
    Parameter(
        "input_topic",
        "a topic, for ever, through a subscription of its own: projects/P/topics/T",
        "Input",
        local="a subscription of its own ends with the job, and what comes between two jobs is lost",
    ),
)

DEAD_LETTERS = Parameter(
    "dead_letters",
    "where refused input goes: files PREFIX-TIME-*.jsonl, of the given prefix; or projects/P/topics/T",
    "Input",
    default="dead-letters",
    regex=LETTERS,
    example="gs://my-bucket/dead-letters/points",
)

WRITING = (
    Parameter(
        "packing",
        "compacted (one column per row and arrival), points (one cell per point), append (added to the "
        "append column, as a TSD with enable_appends); without it the layout's first for files, points "
        "for messages",
        "Layout",
        choices=names(Packing),
    ),
    Parameter("auto_create_metrics", "give unknown metrics a UID", "UIDs", boolean, False),
    Parameter("auto_create_tagks", "give unknown tag keys a UID", "UIDs", boolean, True),
    Parameter("auto_create_tagvs", "give unknown tag values a UID", "UIDs", boolean, True),
    Parameter("random_metrics", "give new metrics random UIDs, which spreads writes", "UIDs", boolean, False),
    Parameter(
        "uid_cache_size", "names and series that a worker process remembers", "UIDs", positive, 1_000_000
    ),
    Parameter("uid_snapshot_size", "names read ahead from the UID table", "UIDs", int, 1_000_000),
    Parameter(
        "uid_negative_seconds",
        "how long a name without a UID, which gets none, is not looked up again",
        "UIDs",
        not_negative,
        60.0,
    ),
    *BIGTABLE,
    Parameter(
        "bigtable_writer",
        "beam (Beam's WriteToBigTable) or direct (a result for each row: rows refused for good become "
        "dead letters, more errors are retried, --app_profile works)",
        "Bigtable",
        default="beam",
        choices=("beam", "direct"),
    ),
    Parameter(
        "mark_touched",
        "writer direct: note the hours of complete days that receive points, for rollup --touched",
        "Bigtable",
        boolean,
        False,
    ),
    Parameter(
        "meta",
        "opentsdb: what is written of new series into tsdb-meta: off, track (ts_ctr), full (ts_meta and the "
        "meta data of UIDs too); docs/meta.md",
        "Bigtable",
        default=MetaMode.OFF.value,
        choices=names(MetaMode),
    ),
    Parameter("dry_run", "parse, assign, pack and count, and write nothing", "Run", boolean, False),
    SUMMARY,
)
"""How points are stored, whatever they are read from."""

STORING = (
    Parameter(
        "format",
        "format of the files, and of messages without the attribute `format`",
        "Input",
        choices=(*FORMATS, RECORDS),
        required=True,
    ),
    DEAD_LETTERS,
    Parameter(
        "flush_seconds",
        "messages: how long points are gathered to be packed together; `points` packing does not wait",
        "Input",
        not_negative,
        30.0,
    ),
    Parameter(
        "stop_when_idle",
        "messages, on a local runner: end when there was nothing to do for so many seconds (more than 30 to "
        "wait for what a killed process still holds); without it, for ever",
        "Input",
        not_negative,
        local="it is for local runners",
    ),
    *FORMAT,
    *LAYOUT,
    TABLES,
    *WRITING,
)

PARAMETERS = (*SOURCE, *STORING, PREFLIGHT)

EXAMPLES = """\
  timebeam ingest --layout opentsdb --format opentsdb-json --input 'metrics/*.json.gz' \\
      --auto_create_metrics --project my-project --instance my-instance
  timebeam ingest --layout opentsdb --format opentsdb-text --input put.txt --dry_run
  timebeam ingest --layout opentsdb --format influx --input telegraf.lp.zst --auto_create_metrics
  timebeam ingest --layout opentsdb --format opentsdb-annotations --input annotations.json
  timebeam ingest --layout table --tables market.toml --format records --input 'market-*.jsonl.gz'
  timebeam ingest --layout opentsdb --format opentsdb-json --bigtable_writer direct \\
      --input_subscription projects/my-project/subscriptions/points
  timebeam ingest ... --preflight
  timebeam ingest ... --runner DataflowRunner --region europe-west1 --temp_location gs://bucket/tmp

every option of Beam and of its runners can be given too"""


def job_of(options: argparse.Namespace, *, endless: bool, run_ms: int) -> tuple[Job, Framing]:
    """The job that the options describe, and how files of its format are cut.

    Raises:
      UsageError: options that cannot go together.
    """
    job = storing_job(options, layout_of(options), endless=endless, run_ms=run_ms)
    format_options, framing = format_of(options)
    if options.format == OpenTsdbAnnotations.name and not isinstance(job.layout, OpenTsdb):
        raise UsageError(f"annotations are OpenTSDB's: layout {job.layout.name} has no place for them")
    return dataclasses.replace(job, format_name=options.format, format_options=format_options), framing


def storing_job(options: argparse.Namespace, layout: Layout, *, endless: bool, run_ms: int) -> Job:
    """The job of storing points in a layout; with no format, for points that are read as such.

    Raises:
      UsageError: options that cannot go together.
    """
    if layout.read_only:
        raise UsageError(f"layout {layout.name}: {layout.read_only}")
    default = Packing.POINTS if endless else layout.packings[0]
    packing = Packing(options.packing) if options.packing else default
    if packing not in layout.packings:
        raise UsageError(
            f"layout {layout.name} has no packing {packing.value}"
            f"{' (' + layout.packing_limit + ')' if layout.packing_limit else ''}: "
            f"choose {' or '.join(one.value for one in layout.packings)}"
        )
    check_writer(options, packing)
    policy = UidPolicy(
        options.auto_create_metrics,
        options.auto_create_tagks,
        options.auto_create_tagvs,
        options.random_metrics,
    )
    return Job(
        "",
        {},
        layout,
        packing,
        target_of(options),
        options.bigtable_writer,
        UidOptions(policy, options.uid_cache_size, options.uid_snapshot_size, options.uid_negative_seconds),
        letters_of(options, run_ms),
        options.dry_run,
        _marker_of(options, layout, packing),
        _meta_of(options, layout),
    )


def _marker_of(options: argparse.Namespace, layout: Layout, packing: Packing) -> Marker | None:
    """What notes the hours that are to be rolled up again, if that is asked for.

    Raises:
      UsageError: it cannot be had with these options.
    """
    if not options.mark_touched:
        return None
    if not isinstance(layout, OpenTsdb) and layout.rollup_names is None:
        raise UsageError(f"--mark_touched is for rollups: layout {layout.name} has none")
    if options.bigtable_writer != "direct" or packing is Packing.APPEND:
        raise UsageError("--mark_touched needs --bigtable_writer direct, and no appends")
    return Marker(layout)


def _meta_of(options: argparse.Namespace, layout: Layout) -> MetaMode:
    """What is written of new series.

    Raises:
      UsageError: the layout has no meta data.
    """
    mode = MetaMode(options.meta)
    if mode is not MetaMode.OFF and not isinstance(layout, OpenTsdb):
        raise UsageError(f"--meta {mode.value} is for OpenTSDB's meta table: layout {layout.name} has none")
    return mode


def _needs(options: argparse.Namespace, job: Job) -> Needs:
    """What the job needs."""
    return Needs(
        job.target,
        job.layout,
        job.packing,
        job.tables(),
        create_command(options),
        options.dead_letters,
        options.auto_create_metrics,
        options.input,
        options.input_subscription,
        options.input_topic,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Checks what can be checked before any work starts, runs the pipeline, prints the summary."""
    parser = parser_of(
        "ingest", "Stores the points of files, or of Pub/Sub messages, in Bigtable.", EXAMPLES, PARAMETERS
    )
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    given = [name for name in ("input", "input_subscription", "input_topic") if getattr(options, name)]
    if len(given) != 1:
        raise UsageError("give one of --input, --input_subscription and --input_topic")
    run_ms = int(time.time() * 1000)
    if options.layout == DECLARED:
        return records.ingest(options, flags, run_ms)
    job, framing = job_of(options, endless=not options.input, run_ms=run_ms)
    source = stream.Source(options.input_subscription, options.input_topic)
    if options.preflight:
        source.check()
        return preflight(_needs(options, job), flags)
    if not options.input:
        return stream.run(stream.Work.of(job), source, options, flags)
    if framing is Framing.NONE:
        raise UsageError(f"--format {options.format}, with these options, is for messages and not for files")
    match(options.input)
    check_tables(job.target, job.tables(), create_command(options))
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    build_from_blocks(pipeline, job, ReadBlocks(options.input, framing), run_ms)
    return run_bounded(pipeline, options, flags, run_ms, job.dead_letters)


if __name__ == "__main__":
    sys.exit(cli.main(["ingest", *sys.argv[1:]]))
