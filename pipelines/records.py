"""Ingest into tables that a user declares: records of named fields, or points, to rows.

source ─► rows ─► write
   └───────┴────────┴──► dead letters

There are no series here and nothing to pack: a record is at most one mutation in each table.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection

from pipelines import stream
from pipelines.bounded import run_bounded
from pipelines.graph import Flow
from pipelines.options import check_writer, create_command, declaration_of, format_of, letters_of, target_of
from pipelines.parameters import RECORDS, UsageError
from pipelines.preflight import Needs, preflight
from schema.declared.model import Declaration
from schema.declared.rows import tables
from schema.layouts import Packing, Row
from schema.messages import Framing, Message
from schema.meta.rows import MetaMode
from schema.points import PointBatch, Rejected
from transforms import coders
from transforms.bigtable.tables import check_tables
from transforms.bigtable.target import Target
from transforms.dead_letters import WriteDeadLetters
from transforms.files import ReadBlocks, match
from transforms.messages import GatherFn, ParseMessagesFn
from transforms.parse import ParseFn
from transforms.records import PointRowsFn, RecordEncoding, RecordMessagesFn, RecordRowsFn
from transforms.rejected import REJECTED, refusing
from transforms.write import WriteRows


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What an ingest into declared tables is to do.

    Attributes:
      encoding: of the records; None if the input is points.
      format_name, format_options: of points, see `message_format`.
      dead_letters: a topic, or how names of files begin.
      dry_run: make rows and count, and write nothing but dead letters.
    """

    declaration: Declaration
    encoding: RecordEncoding | None
    format_name: str
    format_options: Mapping[str, Any]
    target: Target
    writer: str
    dead_letters: str
    dry_run: bool = False


def build_from_blocks(root: beam.Pipeline, job: Job, read: beam.PTransform, run_ms: int) -> None:
    """Adds the graph of an ingest of files.

    Args:
      read: gives `main`, blocks of files as `Message`, and `REJECTED`.
    """
    coders.register()
    blocks = root | "Read" >> read
    refused = [blocks[REJECTED]]
    if job.encoding is not None:
        made = blocks.main | "Rows" >> refusing(RecordRowsFn(job.declaration, job.encoding), Row)
    else:
        parsed = blocks.main | "Parse" >> refusing(ParseFn(job.format_name, job.format_options), PointBatch)
        refused.append(parsed[REJECTED])
        made = parsed.main | "Rows" >> refusing(PointRowsFn(job.declaration), Row)
    refused.append(made[REJECTED])
    _write(job, made.main, refused, run_ms)


def build_from_messages(root: beam.Pipeline, job: Job, read: beam.PTransform) -> None:
    """Adds the graph of an ingest of messages.

    Args:
      read: gives `Message`.
    """
    coders.register()
    gathered = root | "Read" >> read | "Gather" >> beam.ParDo(GatherFn()).with_output_types(list[Message])
    refused = []
    if job.encoding is not None:
        made = gathered | "Rows" >> refusing(RecordMessagesFn(job.declaration, job.encoding), Row)
    else:
        parsed = gathered | "Parse" >> refusing(
            ParseMessagesFn(job.format_name, job.format_options), PointBatch
        )
        refused.append(parsed[REJECTED])
        made = parsed.main | "Rows" >> refusing(PointRowsFn(job.declaration), Row)
    refused.append(made[REJECTED])
    _write(job, made.main, refused, None)


def _work_of(job: Job) -> stream.Work:
    def build(root: beam.Pipeline, read: beam.PTransform, _: Flow) -> None:
        build_from_messages(root, job, read)

    return stream.Work(job.target, tables(job.declaration), job.dead_letters, job.dry_run, False, build)


def _write(
    job: Job, made: PCollection[Row], refused: list[PCollection[Rejected]], run_ms: int | None
) -> None:
    """The steps behind making rows; `run_ms` is None for a stream."""
    if not job.dry_run:
        names = [spec.name for spec in tables(job.declaration)]
        refused.append(made | "Write" >> WriteRows(job.target, names, job.writer, Packing.POINTS))
    letters = WriteDeadLetters(job.dead_letters, run_ms, bounded=run_ms is not None)
    refused | "AllRefused" >> beam.Flatten() | "DeadLetters" >> letters


def _needs(options: argparse.Namespace, job: Job) -> Needs:
    """What the job needs."""
    return Needs(
        job.target,
        None,
        None,
        tables(job.declaration),
        create_command(options),
        options.dead_letters,
        inputs=options.input,
        subscription=options.input_subscription,
        topic=options.input_topic,
    )


def ingest(options: argparse.Namespace, flags: Sequence[str], run_ms: int) -> int:
    """Runs the ingest that the options describe; its exit code.

    Raises:
      UsageError: options that cannot go together, or a declaration that is wrong.
    """
    if options.mark_touched:
        raise UsageError("--mark_touched is not for declared tables: leave it out")
    if options.meta != MetaMode.OFF.value:
        raise UsageError("--meta is for OpenTSDB's meta table: leave it out")
    if options.packing not in (None, Packing.POINTS.value):
        raise UsageError(f"declared tables have no packing {options.packing}: leave --packing out")
    check_writer(options, Packing.POINTS)
    declaration = declaration_of(options)
    encoding, format_options, framing = _format(options)
    job = Job(
        declaration,
        encoding,
        options.format,
        format_options,
        target_of(options),
        options.bigtable_writer,
        letters_of(options, run_ms),
        options.dry_run,
    )
    source = stream.Source(options.input_subscription, options.input_topic)
    if options.preflight:
        source.check()
        return preflight(_needs(options, job), flags)
    if not options.input:
        return stream.run(_work_of(job), source, options, flags)
    if framing is Framing.NONE:
        raise UsageError(f"--format {options.format}, with these options, is for messages and not for files")
    match(options.input)
    check_tables(job.target, tables(declaration), create_command(options))
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    build_from_blocks(pipeline, job, ReadBlocks(options.input, framing), run_ms)
    return run_bounded(pipeline, options, flags, run_ms, job.dead_letters)


def _format(options: argparse.Namespace) -> tuple[RecordEncoding | None, dict[str, Any], Framing]:
    """(encoding of records, None for points; options of the format of points; how files are cut)."""
    if options.format == RECORDS:
        encoding = RecordEncoding(options.records_encoding)
        return encoding, {}, encoding.framing
    format_options, framing = format_of(options)
    return None, format_options, framing
