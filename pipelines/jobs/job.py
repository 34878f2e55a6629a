"""A job: what a command does with a pipeline. `timebeam.pipelines.jobs.run.run_job` runs it.

To add a job is to add a frozen dataclass with these methods, and a command whose options describe it.
"""

from __future__ import annotations

import abc
import dataclasses
import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.runners import Runner
from timebeam.pipelines.options.parameters import Limit, UsageError
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.progress_and_summary import PointsSummary, Summary
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.formats import Framing
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter_files import (
    TOPIC,
    WriteDeadLetters,
    check_writable,
    has_project_id,
)

if TYPE_CHECKING:  # the steps that store points
    from timebeam.transforms.ingest.points_graph import Flow

_SUBSCRIPTION = re.compile(r"projects/[^/]+/subscriptions/[^/]+")


@dataclasses.dataclass(frozen=True, slots=True)
class RunOptions:
    """The options that all commands with a job share; those with a default are of some."""

    dry_run: bool
    summary: str
    dead_letters: str | None = None
    preflight: bool = False
    max_rejected: Limit | None = None
    packages: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """How a job is run: the options that all commands share.

    Attributes:
      run_ms: when the work began, in ms since 1970; it is in the names of the dead letters.
      now_ms: the time that the command takes for now, in ms since 1970; `run_ms`, except in tests.
      create_command: what a user runs to create the tables.
      dead_letters_option: the value of `--dead-letters`; None if the command has no dead letters.
      dead_letters: a topic, or how the names of this run's files begin.
      packages: other packages with the formats and stores that the job names; its workers need them.
    """

    runner: Runner
    run_ms: int
    now_ms: int
    create_command: str
    dead_letters_option: str | None = None
    dead_letters: str | None = None
    dry_run: bool = False
    preflight: bool = False
    as_json: bool = False
    max_rejected: Limit | None = None
    packages: Sequence[str] = ()

    @classmethod
    def of(cls, options: RunOptions, runner: Runner, create_command: str, run_ms: int, now_ms: int) -> Run:
        """The run that the options describe.

        Raises:
          UsageError: `--dead-letters` is not a topic and not a place for files.
        """
        place = options.dead_letters
        return cls(
            runner,
            run_ms,
            now_ms,
            create_command,
            place,
            None if place is None else dead_letters_of(place, run_ms),
            options.dry_run,
            options.preflight,
            options.summary == "json",
            options.max_rejected,
            options.packages,
        )

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return time.time() - self.run_ms / 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs beside its tables and a place for its dead letters.

    Attributes:
      layout: None for declared tables.
      packing: None if nothing is appended.
      creates_metrics: whether metrics without a UID get one; True where no metric is new.
      inputs: patterns of files; each matches some.
      source: the subscription or topic that is read; None for files.
      local_only: why Dataflow cannot run the job; empty if it can.
    """

    layout: Store | None = None
    packing: Packing | None = None
    creates_metrics: bool = True
    inputs: Sequence[str] = ()
    source: Source | None = None
    local_only: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A subscription, or a topic, by its full name.

    Raises:
      UsageError: a name cannot be one.
    """

    subscription: str | None
    topic: str | None = None

    def __post_init__(self) -> None:
        if self.subscription and not _SUBSCRIPTION.fullmatch(self.subscription):
            raise UsageError(f"{self.subscription!r} is not projects/PROJECT/subscriptions/NAME")
        if self.topic and not TOPIC.fullmatch(self.topic):
            raise UsageError(f"{self.topic!r} is not projects/PROJECT/topics/NAME")


@dataclasses.dataclass(frozen=True, slots=True)
class AnyJob(abc.ABC):
    """What all kinds of jobs have in common.

    Attributes:
      target: the Bigtable instance.
      tables: those that must exist.
      place: of the tables that are written, as the job knows it better than the options; None as they say.
      stores_settings: whether the settings of the place are stored once all is checked.
      dry_run: whether the job writes nothing, also without the option `--dry-run`.
    """

    target: Target
    tables: Sequence[TableSpec]
    place: Place | None = dataclasses.field(default=None, kw_only=True)
    stores_settings: bool = dataclasses.field(default=False, kw_only=True)
    dry_run: bool = dataclasses.field(default=False, kw_only=True)

    def needs(self) -> Needs:
        """What is checked beside the tables and the dead letters."""
        return Needs()

    def planned(self, run: Run) -> AnyJob | int:
        """The job with the work that its tables name, once they are checked.

        Or the exit code, if there is nothing to do, or all is done here and needs no pipeline of `run_job`.
        """
        return self


class Job(AnyJob):
    """A job over input that ends, in one pipeline."""

    __slots__ = ()

    def prepare(self, run: Run) -> None:
        """What is done before the graph is built: by this program, also if Dataflow runs the graph."""

    @abc.abstractmethod
    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        """Adds the graph to a pipeline; returns what is written as dead letters."""

    def summarize(self, result: PipelineResult, run: Run) -> Summary:
        """The figures of a run, after the work that follows its pipeline; here of a job that stores points.

        A run that is ended here has no summary, and so does not look finished.
        """
        assert run.dead_letters is not None
        return PointsSummary.of(result, run.seconds, run.dry_run, run.dead_letters)

    def finish(self, run: Run) -> int:
        """What is done after the summary, on this machine only; returns an exit code."""
        return 0


class InputGraph(Protocol):
    """How input is stored: points in a layout, or records in declared tables."""

    target: Target
    dry_run: bool

    def tables(self) -> list[TableSpec]:
        """The tables that must exist."""

    def needs(self) -> Needs:
        """What storing needs beside the tables."""
        return Needs()

    @property
    def packs(self) -> bool:
        """Whether points of a stream are gathered to be packed together."""
        return False

    @property
    def exactly_once(self) -> bool:
        """Whether a repeated bundle of a stream would write more columns."""
        return False

    def hold(self, *, portions: bool) -> object:
        """What keeps the memory of the steps alive in this process, from run to run, while it is referenced.

        Args:
          portions: whether the runs are those of portions of files.
        """
        return None

    def from_blocks(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], flow: Flow = ...
    ) -> Sequence[PCollection[Rejected]]:
        """Adds the graph of files; returns what is rejected.

        Args:
          read: gives `main`, blocks of files as `Message`, and `REJECTED`.
        """

    def from_messages(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], flow: Flow, *, letters: bool = False
    ) -> Sequence[PCollection[Rejected]]:
        """Adds the graph of messages; returns what is rejected.

        Args:
          read: gives `Message`, or lists of them.
          letters: whether their lines are dead letters, of which the payloads are stored.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class FilesJob(Job):
    """Stores the points or records of files; a local runner does it in portions.

    Attributes:
      patterns: of the files.
      framing: how they are cut into blocks.
    """

    graph: InputGraph
    patterns: Sequence[str]
    framing: Framing

    def needs(self) -> Needs:
        return dataclasses.replace(self.graph.needs(), inputs=self.patterns)

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        from timebeam.transforms.input.files import ReadBlocks  # most jobs read no files

        return self.graph.from_blocks(root, ReadBlocks(self.patterns, self.framing))


@dataclasses.dataclass(frozen=True, slots=True)
class StreamJob(AnyJob):
    """Stores the points or records of messages, until it is stopped.

    Attributes:
      flush_seconds: how long points are gathered to be packed together.
      idle_seconds: a local run ends after so many seconds without work; None: it runs until it is stopped.
      letters: whether the messages are dead letters, of which the payloads are stored.
    """

    graph: InputGraph
    source: Source
    flush_seconds: float
    idle_seconds: float | None
    letters: bool

    def needs(self) -> Needs:
        return dataclasses.replace(self.graph.needs(), source=self.source)


def dead_letters_of(place: str, run_ms: int) -> str:
    """Where the dead letters of a run go: a topic, or how names of files begin, the run's time in them.

    Raises:
      UsageError: the name of a topic cannot be one.
    """
    if TOPIC.fullmatch(place):
        if not has_project_id(place) and not os.environ.get("PUBSUB_EMULATOR_HOST"):
            raise UsageError(
                f"--dead-letters {place}: Google Cloud has no project name of this form; for an emulator set "
                "PUBSUB_EMULATOR_HOST"
            )
        return place
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(run_ms / 1000))
    return f"{place}-{stamp}{run_ms % 1000:03d}"


def check_place(option: str, place: str) -> None:
    """Raises UsageError if no files can be created in the place that an option names."""
    try:
        check_writable(place)
    except OSError as error:
        raise UsageError(f"{option} {place}: cannot create files there: {error.strerror}") from error


def write_dead_letters(
    rejected: Sequence[PCollection[Rejected]],
    dead_letters: str | None,
    run_ms: int | None,
    *,
    in_process: bool = False,
) -> None:
    """Adds the last step of every graph.

    Args:
      dead_letters: a topic, or how the names of files begin.
      run_ms: time of the run in ms; None for a stream, whose dead letters have the time of each rejection.
      in_process: whether all steps run in this process.
    """
    if not rejected:
        return
    assert dead_letters is not None
    letters = WriteDeadLetters(dead_letters, run_ms, in_process=in_process)
    rejected | "AllRejected" >> beam.Flatten() | "DeadLetters" >> letters
