"""An ingest that runs for ever: on Dataflow by Beam's own source, on this machine in micro-batches."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from pipelines.graph import Flow, Job, Steps, build_from_messages
from pipelines.local import subscription as pubsub
from pipelines.local.micro_batches import Limits, Observer, Repeated, StoppedError, TakeBatch, drive
from pipelines.options import create_command
from pipelines.parameters import UsageError
from pipelines.run import LOCAL_RUNNERS, is_dataflow, submit
from pipelines.summary import Summary
from schema.layouts import Packing, TableSpec
from schema.messages import Message
from schema.points import Reason, Rejected, Stage
from transforms import metrics
from transforms.bigtable.tables import check_tables
from transforms.bigtable.target import Target
from transforms.dead_letters import TOPIC, write_letter
from transforms.pubsub import ReadMessages

_SUBSCRIPTION = re.compile(r"projects/[^/]+/subscriptions/[^/]+")

_HELD_MESSAGES = 150_000
_HELD_BYTES = 256 << 20
_POINTS_SECONDS = 1.0
"""How long `points` packing gathers messages locally: a run costs a tenth of a second."""
_STATUS_SECONDS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A subscription, or a topic, by its full name."""

    subscription: str | None
    topic: str | None = None

    def check(self) -> None:
        """Raises UsageError if a name cannot be one."""
        if self.subscription and not _SUBSCRIPTION.fullmatch(self.subscription):
            raise UsageError(f"{self.subscription!r} is not projects/PROJECT/subscriptions/NAME")
        if self.topic and not TOPIC.fullmatch(self.topic):
            raise UsageError(f"{self.topic!r} is not projects/PROJECT/topics/NAME")


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What is done with the messages.

    Attributes:
      tables: that must be there.
      dead_letters: a topic, or how names of files begin.
      waits: whether points are gathered for --flush_seconds.
      build: adds the graph to a pipeline, given what gives `Message`.
      held: what keeps the memory of the steps alive from run to run.
    """

    target: Target
    tables: Sequence[TableSpec]
    dead_letters: str
    dry_run: bool
    waits: bool
    build: Callable[[beam.Pipeline, beam.PTransform, Flow], None]
    held: object = None

    @classmethod
    def of(cls, job: Job, *, letters: bool = False) -> Work:
        """The work of storing points.

        Args:
          letters: whether the messages are dead letters, of which the payloads are to be ingested.
        """
        steps = Steps(job)

        def build(root: beam.Pipeline, read: beam.PTransform, flow: Flow) -> None:
            build_from_messages(root, job, read, flow, steps, letters=letters)

        waits = job.packing is not Packing.POINTS
        return cls(job.target, job.tables(), job.dead_letters, job.dry_run, waits, build, steps.hold())


def run(work: Work, source: Source, options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Works until it is told to stop, or hands the work to the runner; the exit code."""
    source.check()
    check_tables(work.target, work.tables, create_command(options))
    runner = PipelineOptions([*flags]).view_as(StandardOptions).runner or ""
    if runner in LOCAL_RUNNERS:
        return _run_here(work, source, options, flags)
    if options.stop_when_idle is not None:
        raise UsageError("--stop_when_idle is for local runners")
    pipeline = beam.Pipeline(options=PipelineOptions([*flags, "--streaming"]))
    flow = Flow(endless=True, flush_seconds=options.flush_seconds)
    read = ReadMessages(source.subscription, source.topic)
    work.build(pipeline, read, flow)
    if is_dataflow(flags):
        return submit(pipeline, work.dead_letters)
    pipeline.run().wait_until_finish()
    return 0


def _run_here(work: Work, source: Source, options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Micro-batches in this process until a signal, or until nothing comes any more."""
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs what it raises
    metrics.totals.clear()
    name = source.subscription or pubsub.subscribe(source.topic or "")
    try:
        subscription = pubsub.Subscription(name, _HELD_MESSAGES, _HELD_BYTES)
        seconds = options.flush_seconds if work.waits else min(options.flush_seconds, _POINTS_SECONDS)
        limits = Limits(seconds, options.stop_when_idle)
        stopping = threading.Event()
        status = Status(work.dead_letters)

        def stop() -> None:
            stopping.set()
            subscription.stop_pulling()

        with _Signals(stop), status:
            try:
                drive(subscription, _graphs(work, flags), limits, status, stopping)
            except StoppedError:
                print("stopped; what was not stored comes again", file=sys.stderr)
    finally:
        if source.topic:
            pubsub.unsubscribe(name)
    summary = Summary.of_totals(status.seconds, work.dry_run, work.dead_letters, status.delays.percentiles())
    print(summary.to_json() if options.summary == "json" else summary.to_text())
    return 0


def _graphs(work: Work, flags: Sequence[str]) -> Iterator[Repeated]:
    """The graph of the first batch, which reads the UID table ahead, and that of all others."""
    for snapshot in (True, False):
        flow = Flow(endless=True, snapshot=snapshot)

        def build(root: beam.Pipeline, read: TakeBatch, flow: Flow = flow) -> None:
            work.build(root, read, flow)

        yield Repeated(build, flags)


class Delays:
    """From publish to write, in ms: counts in bins that grow by a twentieth each."""

    _GROWTH = np.log(1.05)

    def __init__(self) -> None:
        self._counts = np.zeros(512, np.int64)

    def add(self, delays_ms: np.ndarray) -> None:
        """int64[n] delays."""
        bins = (np.log(np.maximum(delays_ms, 1)) / self._GROWTH).astype(np.int64)
        self._counts += np.bincount(np.minimum(bins, 511), minlength=512)

    def percentiles(self) -> dict[str, int]:
        """p50, p90, p99 and the longest; none if there were no messages."""
        total = int(self._counts.sum())
        if not total:
            return {}
        upto = np.cumsum(self._counts)
        wanted = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        at = {key: int(np.searchsorted(upto, share * total)) for key, share in wanted.items()}
        return {key: round(float(np.exp(self._GROWTH * (where + 0.5)))) for key, where in at.items()}


class Status(Observer):
    """Counts what happens, and tells it on standard error every few seconds."""

    def __init__(self, dead_letters: str) -> None:
        """`dead_letters`: a topic, or how names of files begin."""
        self._dead_letters = dead_letters
        self._started = time.monotonic()
        self.delays = Delays()
        self._latest = Delays()
        self._messages = 0
        self._ended: float | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> Status:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """How long the work has taken, until the last message was acknowledged."""
        return (self._ended or time.monotonic()) - self._started

    def refused(self, message: Message, error: Exception) -> None:
        """See `Observer.refused`."""
        why = f"the program failed on this message: {type(error).__name__}: {error}"
        write_letter(
            self._dead_letters,
            Rejected(
                message.text,
                Reason.INTERNAL_ERROR,
                why[:1000],
                Stage.PARSE,
                message.source,
                0,
                message.arrival_ms,
                message.envelope,
            ),
        )

    def stored(self, messages: Sequence[Message], seconds: float) -> None:
        """See `Observer.stored`."""
        published = np.fromiter((message.arrival_ms for message in messages), np.int64, len(messages))
        delays_ms = int(time.time() * 1000) - published
        self.delays.add(delays_ms)
        self._latest.add(delays_ms)
        self._messages += len(messages)

    def acknowledged(self, messages: Sequence[Message]) -> None:
        """See `Observer.acknowledged`."""
        self._ended = time.monotonic()

    def _report(self) -> None:
        before, then = 0, time.monotonic()
        while not self._done.wait(_STATUS_SECONDS):
            now = time.monotonic()
            totals = metrics.totals
            refused = sum(metrics.refused_by_reason().values())
            latest, self._latest = self._latest.percentiles(), Delays()
            delay = f", delay p50 {latest['p50']:,} ms p99 {latest['p99']:,} ms" if latest else ""
            print(
                f"{now - self._started:6.0f} s: {(self._messages - before) / (now - then):,.0f} messages/s, "
                f"{totals['points_packed']:,} points stored, {totals['rows_written']:,} rows, "
                f"{refused:,} refused{delay}",
                file=sys.stderr,
            )
            before, then = self._messages, now


class _Signals:
    """The first Ctrl-C or SIGTERM stops after what was pulled is stored; the second one at once."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print("stopping when what was pulled is stored; once more to stop at once", file=sys.stderr)
        self._stop()
