"""How far a run is: on one line of a terminal, else in a line every ten seconds, on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType

import grpc
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.options.parsing import VERBOSITY, Verbosity
from timebeam.pipelines.output.printable import PrintableStream
from timebeam.transforms.flow import metrics

_TERMINAL_SECONDS, _LINES_SECONDS = 1.0, 10.0
_LEAST_SHARE = 0.01
"""Of the work: before it is done, the remaining time is a guess."""

_READ = {"points_read": "points", "messages_read": "rows", "rows_read": "rows", "series": "series"}
"""What jobs read, by the names of their counters; the first that a job counts is shown."""


def progress_text(counters: Mapping[str, int], refused: int, seconds: float) -> str:
    """What a run has done so far, in one line.

    Args:
      counters: of the namespaces of all jobs, by name.
      refused: records and rows.
      seconds: since it started.
    """
    if not any(counters.values()):
        return f"{seconds:5.0f} s: working"
    nouns = ((noun, counters.get(name, 0)) for name, noun in _READ.items())
    noun, amount = next((pair for pair in nouns if pair[1]), ("points", 0))
    planned = counters.get(metrics.WORK_PLANNED, 0)
    share = min(1.0, counters.get(metrics.WORK_DONE, 0) / planned) if planned else 0.0
    left = f", {share:.0%}, {_duration(seconds * (1 - share) / share)} left" if share >= _LEAST_SHARE else ""
    return (
        f"{seconds:5.0f} s{left}: {amount:,} {noun} read ({amount / max(seconds, 1e-3):,.0f}/s), "
        f"{counters.get('rows_written', 0):,} rows written, {refused:,} refused"
    )


class Progress:
    """Prints how far a run is while it is entered; nothing with --quiet.

    Attributes:
      result: of the running pipeline, if its runner gives it before the end: then the counts are those of the
        job where this process has none.
    """

    def __init__(self) -> None:
        self.result: PipelineResult | None = None
        self._done = threading.Event()
        self._stream = sys.stderr
        self._reporter = threading.Thread(target=self._report, daemon=True)
        self._is_quiet = VERBOSITY.get() is Verbosity.QUIET

    def __enter__(self) -> Progress:
        if not self._is_quiet:
            self._reporter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if not self._is_quiet:
            self._done.set()
            self._reporter.join()

    def _report(self) -> None:
        started = time.monotonic()
        stream = self._stream
        terminal = stream if isinstance(stream, PrintableStream) and stream.is_terminal else None
        while not self._done.wait(_TERMINAL_SECONDS if terminal else _LINES_SECONDS):
            counters, refused = self.counters()
            text = progress_text(counters, refused, time.monotonic() - started)
            if terminal:
                terminal.show_status(text)
            else:
                print(text, file=stream)
        if terminal:
            terminal.show_status("")

    def counters(self) -> tuple[Mapping[str, int], int]:
        """(counters by name, refusals): of this process, or of the job if its workers are other processes."""
        counters: Mapping[str, int] = dict(metrics.totals)
        if counters or self.result is None:
            return counters, sum(metrics.rejected_by_reason().values())
        try:
            counters = metrics.counted(self.result)
        except (grpc.RpcError, RuntimeError, NotImplementedError):  # the job is not known yet, or over
            return {}, 0
        return counters, sum(count for name, count in counters.items() if name.startswith("refused_"))


def _duration(seconds: float) -> str:
    """About how long, for people."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min"
