"""The jobs of `timebeam ingest` and `timebeam replay`: files, messages, dead letters."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.pvalue import PCollection

from timebeam.pipelines.ingest.ingest_points import PointsGraph, Steps
from timebeam.pipelines.jobs.job import Flow, Job, Needs, PortionedJob, Source, StreamJob
from timebeam.pipelines.options.formats import format_of, formats_of
from timebeam.pipelines.options.parameters import DECLARED, UsageError
from timebeam.pipelines.options.store_settings import NewSettings, settle_names
from timebeam.pipelines.options.values import (
    check_writer,
    layout_of,
    opentsdb_of,
    required_opentsdb,
    target_of,
)
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import FORMATS, Framing, Message
from timebeam.schema.series.series_limits import SeriesLimits, parse_limits
from timebeam.schema.stores.opentsdb.meta_documents import MetaMode
from timebeam.transforms.dead_letters.replay import ReadLetters
from timebeam.transforms.ingest.assign_keys import UidOptions
from timebeam.transforms.input.files import ReadBlocks, blocks_by_arrival, match
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

if TYPE_CHECKING:
    from timebeam.pipelines.ingest.ingest_records import RecordsGraph

    Graph = PointsGraph | RecordsGraph
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
    steps: Steps | None

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
    steps: Steps | None

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
    steps = Steps(graph, portions=True) if isinstance(graph, PointsGraph) else None
    settings = NewSettings(options)
    return IngestFiles(
        graph.target, graph.tables(), graph, options.input, framing, steps, new_settings=settings
    )


def _messages_job(
    options: argparse.Namespace, graph: Graph, source: Source, *, letters: bool = False
) -> IngestMessages:
    flush_seconds, idle_seconds = options.flush_seconds, options.stop_when_idle
    steps = Steps(graph) if isinstance(graph, PointsGraph) else None
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


def points_graph(options: argparse.Namespace, *, endless: bool) -> tuple[PointsGraph, Framing]:
    """The graph that the options describe, and how files of its format are cut.

    Raises:
      UsageError: options that cannot go together.
    """
    formats = formats_of(options)
    format_options, framing = format_of(options)
    names = (options.format, *formats)
    settle_names(options, escape=any(FORMATS[name].escapes_names for name in names if name in FORMATS))
    graph = storing_graph(options, layout_of(options), endless=endless)
    if options.format in FORMATS and FORMATS[options.format].edits_annotations:
        opentsdb_of(options, "annotations")
    graph = dataclasses.replace(
        graph,
        format_name=options.format,
        format_options=format_options,
        formats=formats,
        limits=_limits_of(options),
    )
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


def storing_graph(options: argparse.Namespace, layout: Store, *, endless: bool) -> PointsGraph:
    """The graph of storing points in a layout; with no format, for points that are read as such.

    Raises:
      UsageError: options that cannot go together.
    """
    if layout.writing.read_only:
        raise UsageError(f"layout {layout.name}: {layout.writing.read_only}")
    default = Packing.POINTS if endless else layout.writing.packings[0]
    packing = Packing(options.packing) if options.packing else default
    if packing not in layout.writing.packings:
        raise UsageError(
            f"layout {layout.name} has no packing {packing.value}"
            f"{' (' + layout.writing.packing_limit + ')' if layout.writing.packing_limit else ''}: "
            f"choose {' or '.join(choice.value for choice in layout.writing.packings)}"
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
        _hours_writer_of(options, layout),
        _meta_of(options, layout),
        table_prefix=options.table_prefix,
    )


def _hours_writer_of(options: argparse.Namespace, layout: Store) -> ChangedHoursWriter | None:
    """What marks the hours that receive points, if that is asked for or all writers of the tables do it."""
    is_marked = options.mark_touched or layout.writing.marked_since_s is not None
    return ChangedHoursWriter(layout) if is_marked else None


def _meta_of(options: argparse.Namespace, layout: Store) -> MetaMode:
    """What is written of new series; raises UsageError if the layout has no metadata."""
    mode = MetaMode(options.meta)
    if mode is not MetaMode.OFF:
        required_opentsdb(layout, "metadata")
    return mode


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
