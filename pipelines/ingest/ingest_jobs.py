"""The jobs of `timebeam ingest` and `timebeam replay`: files, messages, dead letters."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.pvalue import PCollection

from timebeam.pipelines.ingest.ingest_points import IngestGraph, IngestSteps
from timebeam.pipelines.ingest.store_points import storing_graph
from timebeam.pipelines.jobs.job import Flow, Job, Needs, PortionedJob, Source, StreamJob
from timebeam.pipelines.options.formats import format_of, formats_of
from timebeam.pipelines.options.parameters import DECLARED, UsageError
from timebeam.pipelines.options.store_settings import NewSettings, settle_names
from timebeam.pipelines.options.values import (
    layout_of,
    opentsdb_of,
    target_of,
)
from timebeam.schema.core.contract import Store
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import FORMATS, Framing, Message, format_class
from timebeam.schema.series.series_limits import SeriesLimits, counts_table, parse_limits
from timebeam.transforms.dead_letters.replay import ReadLetters
from timebeam.transforms.ingest.limit_series import SeriesLimiter
from timebeam.transforms.input.files import ReadBlocks, blocks_by_arrival, match

if TYPE_CHECKING:
    from timebeam.pipelines.ingest.ingest_records import RecordsGraph

    Graph = IngestGraph | RecordsGraph
    """How input is stored: in a layout, or in declared tables."""


@dataclasses.dataclass(frozen=True, slots=True)
class IngestFiles(PortionedJob):
    """Stores the points or records of files.

    Attributes:
      patterns: of the files.
      framing: how they are cut into blocks.
      steps: what remembers names from portion to portion; None if nothing does.
    """

    graph: Graph
    patterns: Sequence[str]
    framing: Framing
    steps: IngestSteps | None

    def needs(self) -> Needs:
        return dataclasses.replace(self.graph.needs(), inputs=self.patterns)

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        return self.graph.from_blocks(root, ReadBlocks(self.patterns, self.framing))

    def blocks(self) -> Generator[Message | Rejected, None, None]:
        return blocks_by_arrival(match(self.patterns), self.framing)

    def build_portion(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], flow: Flow
    ) -> Sequence[PCollection[Rejected]]:
        return self.graph.from_blocks(root, read, flow, self.steps)

    def hold(self) -> object:
        return None if self.steps is None else self.steps.hold()


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayFiles(Job):
    """Stores the payloads of dead letters.

    Attributes:
      files: those that exist when the command starts, so that it does not read its own dead letters.
    """

    graph: Graph
    files: Sequence[FileMetadata]

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        return self.graph.from_messages(root, ReadLetters(self.files), Flow(), letters=True)


@dataclasses.dataclass(frozen=True, slots=True)
class IngestMessages(StreamJob):
    """Stores the points or records of messages.

    Attributes:
      letters: whether the messages are dead letters, of which the payloads are stored.
      steps: what remembers names from graph to graph; None if nothing does.
    """

    graph: Graph
    letters: bool
    steps: IngestSteps | None

    def needs(self) -> Needs:
        return dataclasses.replace(self.graph.needs(), source=self.source)

    @property
    def packs(self) -> bool:
        return self.graph.packs

    @property
    def reads_letters(self) -> bool:
        return self.letters

    @property
    def exactly_once(self) -> bool:
        return self.graph.exactly_once

    def build_stream(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], flow: Flow
    ) -> Sequence[PCollection[Rejected]]:
        return self.graph.from_messages(root, read, flow, self.steps, letters=self.letters)

    def hold(self) -> object:
        return None if self.steps is None else self.steps.hold()


def ingest_job(options: argparse.Namespace, now_ms: int) -> IngestFiles | IngestMessages:
    """The job of `timebeam ingest`.

    Raises:
      UsageError: options that cannot go together.
    """
    inputs = [name for name in ("input", "input_subscription", "input_topic") if getattr(options, name)]
    if len(inputs) != 1:
        raise UsageError("give one of --input, --input_subscription and --input_topic")
    graph: Graph
    if options.layout == DECLARED:
        graph, framing = _records_graph(options)
    else:
        graph, framing = points_graph(options, endless=not options.input)
    if not options.input:
        source = Source(options.input_subscription, options.input_topic)
        return _messages_job(options, graph, source)
    if framing is Framing.NONE and not options.preflight:
        raise UsageError(f"--format {options.format} with these options reads messages, not files")
    steps = IngestSteps(graph, portions=True) if isinstance(graph, IngestGraph) else None
    settings = NewSettings(options)
    return IngestFiles(
        graph.target, graph.tables(), graph, options.input, framing, steps, new_settings=settings
    )


def _messages_job(
    options: argparse.Namespace, graph: Graph, source: Source, *, letters: bool = False
) -> IngestMessages:
    flush_seconds, idle_seconds = options.flush_seconds, options.stop_when_idle
    steps = IngestSteps(graph) if isinstance(graph, IngestGraph) else None
    tables = graph.tables()
    return IngestMessages(
        graph.target,
        tables,
        source,
        flush_seconds,
        idle_seconds,
        graph,
        letters,
        steps,
        new_settings=NewSettings(options),
    )


def points_graph(options: argparse.Namespace, *, endless: bool) -> tuple[IngestGraph, Framing]:
    """The graph that the options describe, and how files of its format are cut.

    Raises:
      UsageError: options that cannot go together.
    """
    formats = formats_of(options)
    format_options, framing = format_of(options)
    names = (options.format, *formats)
    settle_names(options, escape=any(format_class(name).escapes_names for name in names if name in FORMATS))
    layout = layout_of(options)
    graph = storing_graph(
        options,
        layout,
        IngestGraph,
        endless=endless,
        limiter=_limiter_of(options, layout),
        format_name=options.format,
        format_options=format_options,
        formats=formats,
    )
    if options.format in FORMATS and format_class(options.format).edits_annotations:
        opentsdb_of(options, "annotations")
    return graph, framing


def _limits_of(options: argparse.Namespace) -> SeriesLimits | None:
    """The limits of new series; None for none."""
    limits = SeriesLimits(
        parse_limits(options.max_new_series),
        parse_limits(options.max_series),
        parse_limits(options.max_tag_values),
        options.max_all_series,
    )
    return limits if limits else None


def _limiter_of(options: argparse.Namespace, layout: Store) -> SeriesLimiter | None:
    """What limits new series; None for no limits."""
    limits = _limits_of(options)
    if limits is None:
        return None
    table, with_meta = counts_table(options.table_prefix), options.meta != "off"
    return SeriesLimiter(
        target_of(options), layout, limits, table, with_meta=with_meta, dry_run=options.dry_run
    )


def _records_graph(options: argparse.Namespace) -> tuple[RecordsGraph, Framing]:
    """How records are stored in declared tables, and how files are cut.

    Raises:
      UsageError: options that cannot go together, such as limits of series, which these tables do not have.
    """
    from timebeam.pipelines.ingest.ingest_records import (
        records_graph,  # other layouts need no declared tables
    )

    if _limits_of(options) is not None:
        raise UsageError(
            "--max_new_series, --max_series, --max_tag_values and --max_all_series need a layout of series; "
            "declared tables hold records"
        )
    return records_graph(options)


def replay_job(options: argparse.Namespace, now_ms: int) -> ReplayFiles | IngestMessages:
    """The job of `timebeam replay`.

    Raises:
      UsageError: options that cannot go together.
      OSError: there is no such file.
    """
    if options.source.startswith("projects/"):
        graph = _graph(options, endless=True)
        return _messages_job(options, graph, Source(options.source), letters=True)
    graph = _graph(options, endless=False)
    files = match([options.source])
    return ReplayFiles(graph.target, graph.tables(), graph, files, new_settings=NewSettings(options))


def _graph(options: argparse.Namespace, *, endless: bool) -> Graph:
    """How the payloads of the letters are stored; raises UsageError if options cannot go together."""
    if options.layout == DECLARED:
        return _records_graph(options)[0]
    return points_graph(options, endless=endless)[0]
