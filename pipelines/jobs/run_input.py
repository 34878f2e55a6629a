"""Runs the jobs that read input: files, on a local runner in portions, and messages, there in micro-batches.

Portions and micro-batches are runs of one bounded graph in this process, which is built once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import apache_beam as beam
import numpy as np

from timebeam.pipelines.beam_patches.fork_server import stop_signals
from timebeam.pipelines.jobs.job import FilesJob, Run, StreamJob, write_dead_letters
from timebeam.pipelines.jobs.run import progress, show, start, submit
from timebeam.pipelines.local import pubsub
from timebeam.pipelines.local.letters import LetterSubscription
from timebeam.pipelines.local.micro_batches import (
    Repeated,
    StreamStoppedError,
    TakeBatch,
    TakeBlocks,
    repeated_graphs,
    store,
)
from timebeam.pipelines.local.subscription import Subscription
from timebeam.pipelines.local.trial import UnderWay
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.output.progress_and_summary import PointsSummary
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Message
from timebeam.transforms.dead_letters.letter_files import write_letter
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import register_coders
from timebeam.transforms.ingest.points_graph import Flow
from timebeam.transforms.input.files import blocks_by_arrival, counted, match
from timebeam.transforms.input.parse import ReadMessages
from timebeam.transforms.input.unpack_messages import rejected_message

_HELD_MESSAGES = 150_000
_HELD_BYTES = 256 << 20
_BATCH_MESSAGES = 50_000
_BATCH_BYTES = 64 << 20
_POINTS_SECONDS = 1.0
"""How long `points` packing gathers messages locally: a run costs a tenth of a second."""
_STATUS_SECONDS = 5


PORTION_POINTS = 2_000_000
PORTION_BYTES = 256 << 20
"""A portion ends with the block in which it reaches either limit; bytes are of decompressed text."""


def run_portions(job: FilesJob, run: Run) -> PointsSummary:
    """Stores files on a local runner, one portion of the input after the other; returns the figures.

    The rows of a portion are packed and written before the next one is read, so the memory of a run does not
    depend on the size of its input, and the first rows are stored early. Portions end where the input says,
    so a second run writes the same cells. A row with points in several portions gets cells from each
    (`timebeam.transforms.ingest.encode_group_pack.PackInPartsFn`).
    """
    assert run.dead_letters is not None
    register_coders()
    memory = job.graph.hold(portions=True)

    def build(snapshot: bool, root: beam.Pipeline, read: TakeBatch) -> None:
        rejected = job.graph.from_blocks(root, read, Flow(one_bundle=True, snapshot=snapshot))
        write_dead_letters(rejected, run.dead_letters, run.run_ms, in_process=True)

    graphs = repeated_graphs(build, run.runner.options, TakeBlocks)
    graph: Repeated | None = None
    with progress(), contextlib.closing(blocks_by_arrival(match(job.patterns), job.framing)) as blocks:
        for portion in portions(blocks):
            graph = next(graphs, graph)
            assert graph is not None
            graph.run(counted(portion))
    del memory
    return PointsSummary.of_totals(run.seconds, run.dry_run, run.dead_letters, {})


def portions(blocks: Iterator[Message | Rejected]) -> Iterator[Iterator[Message | Rejected]]:
    """Cuts blocks into portions, each of which must be stored before the next one is asked for."""
    for first in blocks:
        yield _portion(itertools.chain((first,), blocks))


def _portion(blocks: Iterator[Message | Rejected]) -> Iterator[Message | Rejected]:
    """The first blocks; a block is parsed when the next one is asked for, so its points are counted."""
    points, size = metrics.totals["points_read"], 0
    for block in blocks:
        yield block
        size += len(block.payload if isinstance(block, Rejected) else block.text)
        if size >= PORTION_BYTES or metrics.totals["points_read"] - points >= PORTION_POINTS:
            return


def run_stream(job: StreamJob, run: Run) -> int:
    """Runs a stream until it is stopped, or hands it to its runner; returns the exit code."""
    if run.runner.is_local:
        return show(run_micro_batches(job, run), run)
    if job.idle_seconds is not None:
        raise UsageError("--stop-when-idle is for local runners")
    flags = ["--streaming"]
    if run.runner.is_dataflow and not any("streaming_mode_" in flag for flag in run.runner.flags):
        mode = "exactly_once" if job.graph.exactly_once else "at_least_once"
        flags.append(f"--dataflow_service_options=streaming_mode_{mode}")
    pipeline = run.runner.pipeline(*flags)
    register_coders()
    read = ReadMessages(job.source.subscription, job.source.topic)
    flow = Flow(endless=True, flush_seconds=job.flush_seconds)
    rejected = job.graph.from_messages(pipeline, read, flow, letters=job.letters)
    write_dead_letters(rejected, run.dead_letters, None)
    if run.runner.is_dataflow:
        return submit(pipeline)
    start(pipeline).wait_until_finish()
    return 0


def run_micro_batches(job: StreamJob, run: Run) -> PointsSummary:
    """Stores what comes, until a signal, or until nothing comes any more; returns the figures."""
    assert run.dead_letters is not None
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs what it raises
    metrics.totals.clear()
    register_coders()
    memory = job.graph.hold(portions=False)
    name = job.source.subscription or pubsub.subscribe(job.source.topic or "")
    try:
        reader = LetterSubscription if job.letters else Subscription
        subscription = reader(name, _HELD_MESSAGES, _HELD_BYTES)
        tables = [table.name for table in job.tables]
        seconds = job.flush_seconds if job.graph.packs else min(job.flush_seconds, _POINTS_SECONDS)
        stopping = threading.Event()
        status = StreamStatus(run.dead_letters)

        def stop() -> None:
            stopping.set()
            subscription.stop_pulling()

        def build(snapshot: bool, root: beam.Pipeline, read: TakeBatch) -> None:
            flow = Flow(endless=True, one_bundle=True, snapshot=snapshot)
            rejected = job.graph.from_messages(root, read, flow, letters=job.letters)
            write_dead_letters(rejected, run.dead_letters, None)

        def store_batches() -> None:
            graphs, under_way = repeated_graphs(build, run.runner.options), UnderWay([name, *tables])
            graph = next(graphs)
            subscription.start(job.idle_seconds)
            try:
                while portions := subscription.take(_BATCH_MESSAGES, _BATCH_BYTES, seconds):
                    messages = [message for portion in portions for message in portion.messages]
                    for message, error in store(graph, messages, stopping, under_way):
                        status.reject(message, error)
                    status.note_stored(messages)
                    subscription.acknowledge(portions)
                    status.ended = time.monotonic()
                    graph = next(graphs, graph)
            finally:
                subscription.close()
                under_way.close()

        with Signals(stop, "after the pulled messages are stored"), status:
            try:
                store_batches()
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


class StreamStatus:
    """Counts what happens, and tells it on standard error every few seconds.

    Attributes:
      ended: when the last batch was acknowledged; None before.
    """

    def __init__(self, dead_letters: str) -> None:
        """`dead_letters`: a topic, or how names of files begin."""
        self._dead_letters = dead_letters
        self._started = time.monotonic()
        self.delays = Delays()
        self._latest = Delays()
        self._messages = 0
        self.ended: float | None = None
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
        return (self.ended or time.monotonic()) - self._started

    def reject(self, message: Message, error: Exception) -> None:
        """Makes a dead letter of a message that made the program fail; all others of its batch are stored."""
        why = f"the program failed on this message: {type(error).__name__}: {error}"
        rejected = rejected_message(message, RejectedError(Reason.INTERNAL_ERROR, why[:1000]))
        write_letter(self._dead_letters, dataclasses.replace(rejected, stage=Stage.PARSE))

    def note_stored(self, messages: Sequence[Message]) -> None:
        """Counts a batch that is stored."""
        published = np.fromiter((message.arrival_ms for message in messages), np.int64, len(messages))
        delays_ms = int(time.time() * 1000) - published
        self.delays.add(delays_ms)
        self._latest.add(delays_ms)
        self._messages += len(messages)

    def _report(self) -> None:
        before, then = 0, time.monotonic()
        while not self._done.wait(_STATUS_SECONDS):
            now = time.monotonic()
            totals = metrics.totals
            rejected = sum(metrics.rejected_by_reason().values())
            latest, self._latest = self._latest.percentiles(), Delays()
            delay = f", delay p50 {latest['p50']:,} ms p99 {latest['p99']:,} ms" if latest else ""
            print(
                f"{now - self._started:6.0f} s: {(self._messages - before) / (now - then):,.0f} messages/s, "
                f"{totals['points_packed']:,} points stored, {totals['rows_written']:,} rows, "
                f"{rejected:,} rejected{delay}",
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
