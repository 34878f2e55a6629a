"""The jobs of `timebeam ingest` and `timebeam replay`: files, messages, dead letters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.ingest.points import PointsGraph, Steps
from timebeam.pipelines.ingest.records import RecordsGraph
from timebeam.pipelines.jobs.job import AnyJob, Flow, Job, Needs, PortionedJob, Run, Source, StreamJob
from timebeam.pipelines.output.summary import PointsSummary
from timebeam.schema.layouts import TableSpec
from timebeam.schema.messages import Framing, Message
from timebeam.schema.points import Rejected
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.replay import ReadLetters
from timebeam.transforms.input.files import ReadBlocks, blocks_by_arrival, match

Graph = PointsGraph | RecordsGraph
"""How input is stored: in a layout, or in declared tables."""


class _StoringJob(AnyJob):
    """What the jobs of this module have in common: a graph that stores points or records."""

    __slots__ = ()

    graph: Graph

    @property
    def target(self) -> Target:
        """See `AnyJob.target`."""
        return self.graph.target

    def tables(self) -> Sequence[TableSpec]:
        """See `AnyJob.tables`."""
        return self.graph.tables()


class _BoundedJob(_StoringJob, Job):
    """The same, of input that ends."""

    __slots__ = ()

    def summarize(self, result: PipelineResult, run: Run) -> PointsSummary:
        """See `Job.summarize`."""
        assert run.dead_letters is not None
        return PointsSummary.of(result, run.seconds, run.dry_run, run.dead_letters)


@dataclasses.dataclass(frozen=True, slots=True)
class IngestFiles(_BoundedJob, PortionedJob):
    """Stores the points or records of files.

    Attributes:
      patterns: of the files.
      framing: how they are cut into blocks.
      steps: what remembers names from portion to portion; None if nothing does.
    """

    graph: Graph
    patterns: Sequence[str]
    framing: Framing
    steps: Steps | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        steps = Steps(self.graph, portions=True) if isinstance(self.graph, PointsGraph) else None
        object.__setattr__(self, "steps", steps)

    def needs(self) -> Needs:
        """See `AnyJob.needs`."""
        return dataclasses.replace(self.graph.needs(), inputs=self.patterns)

    def check(self) -> None:
        """See `Job.check`."""
        match(self.patterns)

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        """See `Job.build`."""
        return self.graph.from_blocks(root, ReadBlocks(self.patterns, self.framing))

    def blocks(self) -> Iterator[Message | Rejected]:
        """See `PortionedJob.blocks`."""
        return blocks_by_arrival(match(self.patterns), self.framing)

    def build_portion(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], *, snapshot: bool
    ) -> Sequence[PCollection[Rejected]]:
        """See `PortionedJob.build_portion`."""
        if isinstance(self.graph, PointsGraph):
            return self.graph.from_blocks(root, read, self.steps, snapshot=snapshot)
        return self.graph.from_blocks(root, read)

    def summarize_portions(self, run: Run) -> PointsSummary:
        """See `PortionedJob.summarize_portions`."""
        assert run.dead_letters is not None
        return PointsSummary.of_totals(run.seconds, run.dry_run, run.dead_letters, {})

    def hold(self) -> object:
        """See `PortionedJob.hold`."""
        return None if self.steps is None else self.steps.hold()


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayFiles(_BoundedJob):
    """Stores the payloads of dead letters.

    Attributes:
      paths: of the files, which are there already: letters of this run are not read.
    """

    graph: Graph
    paths: Sequence[str]

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        """See `Job.build`."""
        return self.graph.from_messages(root, ReadLetters(self.paths), None, letters=True)


@dataclasses.dataclass(frozen=True, slots=True)
class IngestMessages(_StoringJob, StreamJob):
    """Stores the points or records of messages.

    Attributes:
      letters: whether the messages are dead letters, of which the payloads are stored.
      steps: what remembers names from graph to graph; None if nothing does.
    """

    graph: Graph
    source: Source
    flush_seconds: float
    idle_seconds: float | None
    letters: bool = False
    steps: Steps | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        steps = Steps(self.graph) if isinstance(self.graph, PointsGraph) else None
        object.__setattr__(self, "steps", steps)

    def needs(self) -> Needs:
        """See `AnyJob.needs`."""
        return dataclasses.replace(self.graph.needs(), source=self.source)

    @property
    def packs(self) -> bool:
        """See `StreamJob.packs`."""
        return self.graph.packs

    @property
    def exactly_once(self) -> bool:
        """See `StreamJob.exactly_once`."""
        return self.graph.exactly_once

    def build_stream(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], flow: Flow
    ) -> Sequence[PCollection[Rejected]]:
        """See `StreamJob.build_stream`."""
        return self.graph.from_messages(root, read, flow, self.steps, letters=self.letters)

    def hold(self) -> object:
        """See `StreamJob.hold`."""
        return None if self.steps is None else self.steps.hold()
