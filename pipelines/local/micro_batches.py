"""A stream on a local runner: one bounded graph, built once and run for each batch of messages.

Messages are pulled for a moment, the graph runs over them, and they are acknowledged when the run has
returned, that is when Bigtable has answered. Messages in memory are not acknowledged, so a kill at any moment
loses nothing: they are delivered again and become the same cells.
"""

from __future__ import annotations

import functools
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import DoOutputsTuple, PBegin, PCollection
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import EmbeddedPythonEnvironment
from google.api_core import exceptions

from timebeam.pipelines.beam_patches.cached import CachedOptions
from timebeam.pipelines.local.trial import CrashedError, Trial, UnderWay
from timebeam.schema.formats import Message
from timebeam.transforms.bigtable.retry import writer_error
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, rejecting

_LOGGER = logging.getLogger(__name__)

_numbers = itertools.count()

handed_over: dict[int, Iterable[Message | RejectedOutput]] = {}
"""What each `TakeBatch` reads, by its number: the runner works in the process that hands it over."""

_PASSING = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.Aborted,
    exceptions.InternalServerError,
    exceptions.ResourceExhausted,
    exceptions.RetryError,
)
_LONGEST_PAUSE = 60.0


class TakeBatch(beam.PTransform):  # type: ignore[type-arg]
    """The latest batch of messages, as one list: the source of a graph that runs repeatedly."""

    def __init__(self) -> None:
        super().__init__()
        self.number = next(_numbers)

    def expand(self, root: PBegin) -> PCollection[list[Message]]:
        return root | beam.Impulse() | beam.ParDo(_TakeListFn(self.number)).with_output_types(list[Message])

    def hand_over(self, messages: Iterable[Message | RejectedOutput]) -> None:
        """Sets what the next run reads."""
        handed_over[self.number] = messages


class TakeBlocks(TakeBatch):
    """The latest portion of the blocks of files, as `ReadBlocks` gives them."""

    def expand(self, root: PBegin) -> DoOutputsTuple:  # type: ignore[override]
        return root | beam.Impulse() | rejecting(_TakeFn(self.number), Message)


class _TakeFn(beam.DoFn):
    def __init__(self, number: int) -> None:
        self._number = number

    def process(self, _: bytes) -> Iterable[Message | RejectedOutput]:
        return handed_over[self._number]


class _TakeListFn(_TakeFn):
    """All messages as one element: to hand each to the next step takes as long as to parse it."""

    def process(self, _: bytes) -> Iterable[Any]:
        messages = list(handed_over[self._number])
        return [messages] if messages else []


class Repeated:
    """A bounded graph, built once and run for each batch."""

    def __init__(
        self,
        build: Callable[[beam.Pipeline, TakeBatch], None],
        options: PipelineOptions | None = None,
        new_source: Callable[[], TakeBatch] = TakeBatch,
    ) -> None:
        self._source = new_source()
        pipeline = beam.Pipeline(runner=FnApiRunner(), options=options or CachedOptions())
        build(pipeline, self._source)
        self._options = pipeline.options
        in_process = EmbeddedPythonEnvironment.default()
        self._graph = pipeline.to_runner_api(default_environment=in_process)
        shutil.rmtree(pipeline.local_tempdir)  # Beam removes it when it runs the pipeline; nothing uses it

    def run(self, messages: Iterable[Message | RejectedOutput]) -> None:
        """Runs the graph over messages; the counts of a failed run are discarded."""
        self._source.hand_over(messages)
        before = metrics.totals.copy()
        try:
            FnApiRunner().run_via_runner_api(self._graph, self._options).wait_until_finish()
        except BaseException:
            metrics.totals.clear()
            metrics.totals.update(before)
            raise

    def trial(self) -> Trial:
        """Runs it in processes of their own."""
        return Trial(self._graph, self._options, self._source.number)


def repeated_graphs(
    build: Callable[[bool, beam.Pipeline, TakeBatch], None],
    options: PipelineOptions,
    new_source: Callable[[], TakeBatch] = TakeBatch,
) -> Iterator[Repeated]:
    """The graph of the first run, which reads the UID table ahead, and that of all others.

    Args:
      build: adds the graph to a pipeline; its first argument is whether the table is read.
    """
    for snapshot in (True, False):
        yield Repeated(functools.partial(build, snapshot), options, new_source)


class StreamStoppedError(Exception):
    """Asked to stop while a service did not answer."""


def store(
    graph: Repeated, messages: Sequence[Message], stopping: threading.Event, under_way: UnderWay
) -> list[tuple[Message, Exception]]:
    """Runs a batch until it is stored; returns the messages that make the program fail, with their errors.

    An error of a service that may pass is waited out. Another error of a service, or of this machine, ends
    the work: nothing can be stored. Any other is a message's fault, or ours: the batch is halved until
    it stands alone. Messages that a dead process was working on are stored by a process of their own: what
    ends that too is searched for in the same way.

    Args:
      under_way: notes the batch while it is stored.

    Raises:
      StreamStoppedError: asked to stop while waiting.
      Exception: an error that neither a pause nor a smaller batch could fix.
    """
    search = _Search(graph, stopping)
    suspect, trusted = under_way.split(messages)
    poison = []
    if trusted:
        with under_way.noting(trusted):
            error = search.failure(trusted)
            poison += [] if error is None else search.poison(trusted, error)
    if suspect:
        with under_way.noting(suspect), graph.trial() as trial:
            poison += search.apart(suspect, trial)
    return poison


def cause_of(error: Exception) -> Exception:
    """The cause of a failed run, which Beam and its writer may hide behind other errors."""
    while isinstance(error, RuntimeError) and isinstance(error.__context__, Exception):
        error = error.__context__
    cause = writer_error(error)
    return cause if isinstance(cause, Exception) else error


class _Search:
    """Finds the messages of a batch that make the program fail, and stores all others.

    Few messages may do so, and not the first ones tried with nothing stored: else it is not theirs.
    """

    _MOST = 100
    _MOST_BEFORE_ANY_STORED = 3

    def __init__(self, graph: Repeated, stopping: threading.Event) -> None:
        self._graph, self._stopping = graph, stopping
        self._stored = self._poisoned = 0

    def failure(self, messages: Sequence[Message]) -> Exception | None:
        """Stores messages; the error if it is one of them that cannot be stored, None if all are."""
        pause = 1.0
        while True:
            try:
                self._graph.run(messages)
                self._stored += len(messages)
                return None
            except Exception as error:
                cause = cause_of(error)
                if not isinstance(cause, _PASSING):
                    if _of_setup(cause):
                        raise cause from error
                    return cause
                _LOGGER.warning("%s; retrying in %.0f s", str(cause)[:200], pause)
                if self._stopping.wait(pause):
                    raise StreamStoppedError from error
                pause = min(_LONGEST_PAUSE, pause * 2)

    def poison(self, messages: Sequence[Message], error: Exception) -> list[tuple[Message, Exception]]:
        """The messages at fault, among some of which an error is known."""
        if len(messages) == 1:
            return [self._alone(messages[0], error)]
        middle = len(messages) // 2
        poison = []
        for half in (messages[:middle], messages[middle:]):
            failed = self.failure(half)
            if failed is not None:
                poison += self.poison(half, failed)
        return poison

    def apart(self, messages: Sequence[Message], trial: Trial) -> list[tuple[Message, Exception]]:
        """The messages at fault, of some that are stored by processes of their own."""
        if self._stopping.is_set():
            raise StreamStoppedError
        try:
            counted = trial.run(messages)
        except CrashedError as error:
            if len(messages) == 1:
                return [self._alone(messages[0], error)]
            middle = len(messages) // 2
            return self.apart(messages[:middle], trial) + self.apart(messages[middle:], trial)
        if counted is not None:
            metrics.totals.update(counted)
            self._stored += len(messages)
            return []
        failed = self.failure(messages)  # an error and no crash: this process can tell which
        return [] if failed is None else self.poison(messages, failed)

    def _alone(self, message: Message, error: Exception) -> tuple[Message, Exception]:
        """A message that is at fault; raises its error if too many are."""
        self._poisoned += 1
        if self._poisoned > (self._MOST if self._stored else self._MOST_BEFORE_ANY_STORED):
            raise error
        return message, error


def _of_setup(error: Exception) -> bool:
    """Whether no message can be stored: a missing table or permission, a full disk."""
    rejected_row = isinstance(error, (exceptions.InvalidArgument, exceptions.FailedPrecondition))
    return isinstance(error, (exceptions.GoogleAPICallError, OSError)) and not rejected_row
