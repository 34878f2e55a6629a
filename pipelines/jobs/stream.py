"""A stream on a local runner: micro-batches in this process until it is stopped."""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

import apache_beam as beam
import numpy as np

from timebeam.pipelines.jobs.fork_server import stop_signals
from timebeam.pipelines.jobs.job import Flow, Run, StreamJob, write_dead_letters
from timebeam.pipelines.local import pubsub
from timebeam.pipelines.local.letters import LetterSubscription
from timebeam.pipelines.local.micro_batches import (
    BatchLimits,
    Observer,
    StreamStoppedError,
    TakeBatch,
    drive,
    repeated_graphs,
)
from timebeam.pipelines.local.subscription import Subscription
from timebeam.pipelines.local.trial import UnderWay
from timebeam.pipelines.output.summary import PointsSummary
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Stage
from timebeam.schema.formats import Message
from timebeam.transforms.dead_letters.letter_files import write_letter
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import register_coders
from timebeam.transforms.input.unpack_messages import rejected_message

_HELD_MESSAGES = 150_000
_HELD_BYTES = 256 << 20
_POINTS_SECONDS = 1.0
"""How long `points` packing gathers messages locally: a run costs a tenth of a second."""
_STATUS_SECONDS = 5


def run_micro_batches(job: StreamJob, run: Run) -> PointsSummary:
    """Stores what comes, until a signal, or until nothing comes any more; returns the figures."""
    assert run.dead_letters is not None
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs what it raises
    metrics.totals.clear()
    register_coders()
    memory = job.hold()
    name = job.source.subscription or pubsub.subscribe(job.source.topic or "")
    try:
        reader = LetterSubscription if job.reads_letters else Subscription
        subscription = reader(name, _HELD_MESSAGES, _HELD_BYTES)
        seconds = job.flush_seconds if job.packs else min(job.flush_seconds, _POINTS_SECONDS)
        limits = BatchLimits(seconds, job.idle_seconds)
        stopping = threading.Event()
        status = StreamStatus(run.dead_letters)

        def stop() -> None:
            stopping.set()
            subscription.stop_pulling()

        def build(snapshot: bool, root: beam.Pipeline, read: TakeBatch) -> None:
            refused = job.build_stream(root, read, Flow(endless=True, one_bundle=True, snapshot=snapshot))
            write_dead_letters(refused, run.dead_letters, None)

        with Signals(stop, "after the pulled messages are stored"), status:
            try:
                under_way = UnderWay([name, *(table.name for table in job.tables)])
                drive(subscription, repeated_graphs(build, run.flags), limits, status, stopping, under_way)
            except StreamStoppedError:
                print("stopped; messages that were not stored are delivered again", file=sys.stderr)
    finally:
        if job.source.topic:
            pubsub.unsubscribe(name)
    del memory
    percentiles = status.delays.percentiles()
    return PointsSummary.of_totals(status.seconds, run.dry_run, run.dead_letters, percentiles)


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
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        bins = {key: int(np.searchsorted(upto, share * total)) for key, share in shares.items()}
        return {key: round(float(np.exp(self._GROWTH * (where + 0.5)))) for key, where in bins.items()}


class StreamStatus(Observer):
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

    def __enter__(self) -> StreamStatus:
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
        why = f"the program failed on this message: {type(error).__name__}: {error}"
        rejected = rejected_message(message, RejectedError(Reason.INTERNAL_ERROR, why[:1000]))
        write_letter(self._dead_letters, dataclasses.replace(rejected, stage=Stage.PARSE))

    def stored(self, messages: Sequence[Message]) -> None:
        published = np.fromiter((message.arrival_ms for message in messages), np.int64, len(messages))
        delays_ms = int(time.time() * 1000) - published
        self.delays.add(delays_ms)
        self._latest.add(delays_ms)
        self._messages += len(messages)

    def acknowledged(self, messages: Sequence[Message]) -> None:
        self._ended = time.monotonic()

    def _report(self) -> None:
        before, then = 0, time.monotonic()
        while not self._done.wait(_STATUS_SECONDS):
            now = time.monotonic()
            totals = metrics.totals
            refused = sum(metrics.rejected_by_reason().values())
            latest, self._latest = self._latest.percentiles(), Delays()
            delay = f", delay p50 {latest['p50']:,} ms p99 {latest['p99']:,} ms" if latest else ""
            print(
                f"{now - self._started:6.0f} s: {(self._messages - before) / (now - then):,.0f} messages/s, "
                f"{totals['points_packed']:,} points stored, {totals['rows_written']:,} rows, "
                f"{refused:,} refused{delay}",
                file=sys.stderr,
            )
            before, then = self._messages, now


class Signals:
    """The first Ctrl-C or SIGTERM stops when the work under way is done; the second one at once.

    Args:
      when: when it stops, in words.
    """

    def __init__(self, stop: Callable[[], None], when: str) -> None:
        self._stop, self._when = stop, when
        self._asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print(f"stopping {self._when}; press Ctrl-C again to stop at once", file=sys.stderr)
        self._stop()
