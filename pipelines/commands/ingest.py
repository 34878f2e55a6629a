"`timebeam ingest`: points from files or Pub/Sub into the tables of a layout."

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence

from timebeam.pipelines.ingest.jobs import IngestFiles, IngestMessages
from timebeam.pipelines.ingest.points import PointsGraph
from timebeam.pipelines.ingest.records import RecordsGraph, records_graph
from timebeam.pipelines.jobs.job import Run, Source
from timebeam.pipelines.jobs.preflight import PREFLIGHT
from timebeam.pipelines.jobs.run import run_job
from timebeam.pipelines.jobs.runners import beam_options
from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    BUCKET_PATH,
    CENTURY_DAYS,
    DECLARED,
    FORMAT,
    FORMATS_OF_MESSAGES,
    LAYOUT,
    LETTERS,
    MAX_REFUSED,
    RECORDS,
    SUMMARY,
    TABLES,
    Parameter,
    TemplateType,
    UsageError,
    boolean,
    names,
    not_negative,
    positive,
    whole,
)
from timebeam.pipelines.options.stored import use_stored
from timebeam.pipelines.options.values import (
    check_writer,
    format_of,
    formats_of,
    layout_of,
    layout_with,
    required,
    target_of,
)
from timebeam.schema.layouts import Annotations, HourMarks, Layout, Packing, SeriesMeta
from timebeam.schema.messages import FORMATS, Framing
from timebeam.schema.meta.rows import MetaMode
from timebeam.transforms.ingest.assign import UidOptions
from timebeam.transforms.ingest.uids import UidPolicy
from timebeam.transforms.rollup.touched import Marker

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
        "direct writer: mark hours of complete days that receive points, for rollup --touched",
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
        default=MetaMode.OFF.value,
        choices=names(MetaMode),
    ),
    Parameter("dry_run", "parse, pack and count; write nothing but dead letters", "Run", boolean, False),
    SUMMARY,
    MAX_REFUSED,
)
"How points are stored; the same for all inputs."

STORING = (
    Parameter(
        "format",
        "format of files, and of messages without a `format` attribute",
        "Input",
        choices=(*FORMATS, RECORDS),
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
    TABLES,
    *WRITING,
    FORMATS_OF_MESSAGES,
)

PARAMETERS = (*SOURCE, *STORING, PREFLIGHT)

EXAMPLES = """\
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

Beam's own options can be given too"""


def job_of(options: argparse.Namespace) -> IngestFiles | IngestMessages:
    """The job that the options describe.

    Raises:
      UsageError: options that cannot go together.
    """
    inputs = [name for name in ("input", "input_subscription", "input_topic") if getattr(options, name)]
    if len(inputs) != 1:
        raise UsageError("give one of --input, --input_subscription and --input_topic")
    graph: PointsGraph | RecordsGraph
    if options.layout == DECLARED:
        graph, framing = records_graph(options)
    else:
        graph, framing = points_graph(options, endless=not options.input)
    if not options.input:
        source = Source(options.input_subscription, options.input_topic)
        return IngestMessages(graph, source, options.flush_seconds, options.stop_when_idle)
    if framing is Framing.NONE and not options.preflight:
        raise UsageError(f"--format {options.format} with these options reads messages, not files")
    return IngestFiles(graph, options.input, framing)


def points_graph(options: argparse.Namespace, *, endless: bool) -> tuple[PointsGraph, Framing]:
    """The graph that the options describe, and how files of its format are cut.

    Raises:
      UsageError: options that cannot go together.
    """
    graph = storing_graph(options, layout_of(options), endless=endless)
    format_options, framing = format_of(options)
    if FORMATS[options.format].edits_annotations:
        layout_with(options, Annotations)
    graph = dataclasses.replace(
        graph, format_name=options.format, format_options=format_options, formats=formats_of(options)
    )
    return graph, framing


def storing_graph(options: argparse.Namespace, layout: Layout, *, endless: bool) -> PointsGraph:
    """The graph of storing points in a layout; with no format, for points that are read as such.

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
            f"choose {' or '.join(choice.value for choice in layout.packings)}"
        )
    check_writer(options, packing)
    policy = UidPolicy(
        options.auto_create_metrics,
        options.auto_create_tagks,
        options.auto_create_tagvs,
        options.random_metrics,
    )
    return PointsGraph(
        "",
        {},
        layout,
        packing,
        target_of(options),
        options.bigtable_writer,
        UidOptions(policy, options.uid_cache_size, options.uid_snapshot_size, options.uid_negative_seconds),
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
    if options.bigtable_writer != "direct" or packing is Packing.APPEND:
        raise UsageError("--mark_touched needs --bigtable_writer direct, and a packing other than append")
    return Marker(required(layout, HourMarks))


def _meta_of(options: argparse.Namespace, layout: Layout) -> MetaMode:
    """What is written of new series.

    Raises:
      UsageError: the layout has no metadata.
    """
    mode = MetaMode(options.meta)
    if mode is not MetaMode.OFF:
        required(layout, SeriesMeta)
    return mode


def command_parser() -> CommandParser:
    """The parser of the command."""
    return parser_of(
        "ingest", "Stores the points of files, or of Pub/Sub messages, in Bigtable.", EXAMPLES, PARAMETERS
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Stores points or records; returns the exit code."""
    parser = command_parser()
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project, check=not options.preflight)
    use_stored(options)
    run_ms = int(time.time() * 1000)
    return run_job(job_of(options), Run.of(options, flags, run_ms))
