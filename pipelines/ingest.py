"""`timebeam ingest`: points out of files into the tables of a layout.

files ─► read ─► parse ─► assign UIDs ─► encode ─► group per row ─► pack ─► write
           └────────┴───────────┴──────────┴────────────────────────┴───────┴──► dead letters
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import cli
from pipelines.parameters import (
    BIGTABLE,
    FORMAT,
    LAYOUT,
    Parameter,
    UsageError,
    boolean,
    create_command,
    format_of,
    layout_of,
    names,
    parser_of,
    positive,
    target_of,
)
from pipelines.run import beam_options, run_with_progress
from pipelines.summary import Summary
from schema.layouts import Layout, Packing, Row
from schema.messages import FORMATS, Framing
from schema.points import PointBatch
from transforms import coders
from transforms.assign import AssignFn, KeyedBatch, UidOptions, UidSnapshot
from transforms.bigtable.tables import check_tables
from transforms.bigtable.target import Target
from transforms.dead_letters import WriteDeadLetters
from transforms.files import ReadBlocks, match
from transforms.pack import EncodeFn, PackFn, RowKey
from transforms.parse import ParseFn
from transforms.rejected import REJECTED, refusing
from transforms.uids import UidPolicy
from transforms.write import WriteRows, data_tables

PARAMETERS = (
    Parameter(
        "input",
        "files or patterns: local or of any file system that Beam knows (gs://bucket/*.json.gz); plain, "
        ".gz, .bz2, .zst",
        "Input",
        required=True,
        many=True,
    ),
    Parameter("format", "format of the files", "Input", choices=tuple(FORMATS), required=True),
    Parameter(
        "dead_letters",
        "where refused input goes: files PREFIX-TIME-*.jsonl, of the given prefix",
        "Input",
        default="dead-letters",
    ),
    *FORMAT,
    *LAYOUT,
    Parameter(
        "packing",
        "compacted (one column per row and run), points (one cell per point), append (added to the "
        "append column, as a TSD with enable_appends)",
        "Layout",
        default="compacted",
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
    *BIGTABLE,
    Parameter(
        "bigtable_writer",
        "beam (Beam's WriteToBigTable) or direct (a result for each row: rows refused for good become "
        "dead letters, more errors are retried, --app_profile works)",
        "Bigtable",
        default="beam",
        choices=("beam", "direct"),
    ),
    Parameter("dry_run", "parse, assign, pack and count, and write nothing", "Run", boolean, False),
    Parameter("summary", "form of the summary", "Run", default="text", choices=("text", "json")),
)

EXAMPLES = """\
  timebeam ingest --layout opentsdb --format opentsdb-json --input 'metrics/*.json.gz' \\
      --auto_create_metrics --project my-project --instance my-instance
  timebeam ingest --layout opentsdb --format opentsdb-text --input put.txt --dry_run
  timebeam ingest --layout opentsdb --format influx --input telegraf.lp.zst --auto_create_metrics
  timebeam ingest ... --runner DataflowRunner --region europe-west1 --temp_location gs://bucket/tmp

every option of Beam and of its runners can be given too"""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What one run of ingest is to do."""

    patterns: Sequence[str]
    format_name: str
    format_options: Mapping[str, Any]
    framing: Framing
    layout: Layout
    packing: Packing
    target: Target
    writer: str
    uids: UidOptions
    dead_letters: str
    dry_run: bool


def build(root: beam.Pipeline, job: Job, run_ms: int) -> None:
    """Adds the graph of a job to a pipeline.

    Args:
      run_ms: time of the run in ms, for the dead letters.
    """
    coders.register()
    snapshot = root | "UidSnapshot" >> UidSnapshot(job.target, job.layout, job.uids)
    read = root | "Read" >> ReadBlocks(job.patterns, job.framing)
    parsed = read.main | "Parse" >> refusing(ParseFn(job.format_name, job.format_options), PointBatch)
    assign = AssignFn(job.target, job.layout, job.uids, dry_run=job.dry_run)
    keyed = parsed.main | "AssignUids" >> refusing(assign, KeyedBatch, beam.pvalue.AsIter(snapshot))
    encoded = keyed.main | "Encode" >> refusing(EncodeFn(job.layout), tuple[RowKey, bytes])
    grouped = encoded.main | "GroupPerRow" >> beam.GroupByKey()
    packed = grouped | "Pack" >> refusing(PackFn(job.layout, job.packing), Row)
    steps = [read, parsed, keyed, encoded, packed]
    refused = [step[REJECTED] for step in steps]
    if not job.dry_run:
        write = WriteRows(job.target, data_tables(job.layout), job.writer, job.packing)
        refused.append(packed.main | "Write" >> write)
    letters = WriteDeadLetters(job.dead_letters, run_ms)
    refused | "AllRefused" >> beam.Flatten() | "DeadLetters" >> letters


def job_of(options: argparse.Namespace, run_ms: int) -> Job:
    """The job that the options describe.

    Raises:
      UsageError: options that cannot go together.
    """
    packing = Packing(options.packing)
    if options.app_profile and options.bigtable_writer == "beam" and packing is not Packing.APPEND:
        raise UsageError(
            "Beam's writer knows no app profile: add --bigtable_writer direct, or leave --app_profile out"
        )
    policy = UidPolicy(
        options.auto_create_metrics,
        options.auto_create_tagks,
        options.auto_create_tagvs,
        options.random_metrics,
    )
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(run_ms / 1000))
    return Job(
        options.input,
        options.format,
        *format_of(options),
        layout_of(options),
        packing,
        target_of(options),
        options.bigtable_writer,
        UidOptions(policy, options.uid_cache_size, options.uid_snapshot_size),
        f"{options.dead_letters}-{stamp}{run_ms % 1000:03d}",
        options.dry_run,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Checks what can be checked before any work starts, runs the pipeline, prints the summary."""
    parser = parser_of("ingest", "Stores the points of files in Bigtable.", EXAMPLES, PARAMETERS)
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest)
    started = time.time()
    job = job_of(options, int(started * 1000))
    match(job.patterns)
    check_tables(job.target, job.layout.tables(), create_command(options))
    pipeline = beam.Pipeline(options=PipelineOptions(flags))
    build(pipeline, job, int(started * 1000))
    result = run_with_progress(pipeline)
    summary = Summary.of(result, time.time() - started, job.dry_run, job.dead_letters)
    print(summary.to_json() if options.summary == "json" else summary.to_text())
    return 0


if __name__ == "__main__":
    sys.exit(cli.main(["ingest", *sys.argv[1:]]))
