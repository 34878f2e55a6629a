"""What a job tells: how far it is, line by line on standard error, and its figures at the end."""

from __future__ import annotations

import abc
import collections
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.options.parameters import Limit
from timebeam.pipelines.options.parsing import VERBOSITY, Verbosity
from timebeam.pipelines.output.printable import PrintableStream
from timebeam.schema.core.rejections import Stage
from timebeam.transforms.dead_letters.letter import from_json
from timebeam.transforms.dead_letters.letter_files import count_letters, letter_files
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.metrics import KIND_OF, NAMESPACE, OF_ROWS

_TERMINAL_SECONDS, _LINES_SECONDS = 1.0, 10.0
_LEAST_SHARE = 0.01
"""Of the work: before it is done, the remaining time is a guess."""

_READ = {"points_read": "points", "messages_read": "rows", "rows_read": "rows", "series": "series"}
"""What jobs read, by the names of their counters; the first that a job counts is shown."""


def progress_text(counters: Mapping[str, int], rejected: int, seconds: float) -> str:
    """What a run has done so far, in one line.

    Args:
      counters: of the namespaces of all jobs, by name.
      rejected: records and rows.
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
        f"{counters.get('rows_written', 0):,} rows written, {rejected:,} rejected"
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
            counters, rejected = self.counters()
            text = progress_text(counters, rejected, time.monotonic() - started)
            if terminal:
                terminal.show_status(text)
            else:
                print(text, file=stream)
        if terminal:
            terminal.show_status("")

    def counters(self) -> tuple[Mapping[str, int], int]:
        """(counters by name, rejections): of this process; of the job if its workers are other processes."""
        counters: Mapping[str, int] = dict(metrics.totals)
        if counters or self.result is None:
            return counters, sum(metrics.rejected_by_reason().values())
        try:
            counters = metrics.counted(self.result)
        except (grpc.RpcError, RuntimeError, NotImplementedError):  # the job is not known yet, or over
            return {}, 0
        return counters, sum(count for name, count in counters.items() if name.startswith("rejected_"))


def _duration(seconds: float) -> str:
    """About how long, for people."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min"


_SHOWN = 3  # files of dead letters named in the text
_LOST = "this runner lost some counts, so other figures may be too low; tables and dead letters are complete"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(abc.ABC):
    """What a job did; time in seconds from the start of the command's work.

    Attributes:
      dead_letters: the files of dead letters.
      why_nothing: why nothing was read; empty if something was, or if the tables say nothing about it.
      failed: whether the exit code is 1, whatever `--max-rejected` allows.
    """

    seconds: float
    dry_run: bool
    dead_letters: list[str] = dataclasses.field(default_factory=list)
    why_nothing: str = ""
    failed: bool = False

    @abc.abstractmethod
    def figures(self) -> dict[str, Any]:
        """What `--summary json` prints."""

    @abc.abstractmethod
    def lines(self) -> list[tuple[str, str]]:
        """(name, figure) of each line of the text."""

    def share_rejected(self) -> tuple[int, int]:
        """(how much was rejected, how much was read); the first may be more, as whole files are."""
        return 0, 0

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.figures())

    def to_text(self) -> str:
        """A table for people."""
        lines = self.lines()
        width = max([26, *(len(name) for name, _ in lines)])
        text = "\n".join(f"{name:{width}} {figure}" for name, figure in lines)
        return ("nothing was written (dry run)\n" if self.dry_run else "") + text

    def stored_nothing(self) -> bool:
        """Whether nothing of what was read is stored, or would be; false if the summary cannot tell."""
        return False

    def code(self, max_rejected: Limit | None) -> int:
        """The exit code: 1, with a line on standard error, if more is rejected than is allowed.

        Without `--max-rejected` all but everything may be rejected.
        """
        rejected, total = self.share_rejected()
        total = max(rejected, total)
        if max_rejected is None and rejected and self.stored_nothing():
            print(
                f"nothing was stored: everything was rejected{_likely_format(self.dead_letters)}",
                file=sys.stderr,
            )
            return 1
        if max_rejected is None or not max_rejected.is_exceeded(rejected, total):
            return 1 if self.failed else 0
        print(
            f"rejected {rejected:,} of {total:,}, more than --max-rejected {max_rejected.text}: "
            "see the dead letters",
            file=sys.stderr,
        )
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TallySummary(Summary):
    """What a job did that counts a tally of its own.

    Attributes:
      tally: figures by name, for `--summary json`.
      rows: (name, figure) of each line of the text, but for seconds and dead letters.
      rejected: how much was rejected, of `read`.
    """

    tally: Mapping[str, Any]
    rows: Sequence[tuple[str, str]]
    rejected: int = 0
    read: int = 0

    def figures(self) -> dict[str, Any]:
        return {**self.tally, "seconds": self.seconds, "dry_run": self.dry_run}

    def lines(self) -> list[tuple[str, str]]:
        letters = (("dead letters", path) for path in self.dead_letters[:_SHOWN])
        return [*self.rows, ("seconds", f"{self.seconds:.1f}"), *letters]

    def share_rejected(self) -> tuple[int, int]:
        return self.rejected, self.read


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsSummary(Summary):
    """What a job did that stores points; sizes in bytes.

    points_read is the sum of stored, duplicate and rejected ones, but for rows that Bigtable refused; what is
    missing in that sum, since the runner lost figures, is `unaccounted` (negative if points_read lacks it).
    What formats leave out on purpose is `skipped`, by kind, and not in points_read.
    Only rollups have rows_read, and rollup: their own counters (`buckets_1h`, `cells_skipped`).
    """

    points_read: int
    points_duplicate: int
    points_stored: int
    rejected: dict[str, int]
    uids_assigned: int
    rows: int
    cells: int
    bytes_written: int
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    delay_ms: dict[str, int] = dataclasses.field(default_factory=dict)
    annotations_read: int = 0
    annotations_written: int = 0
    annotations_deleted: int = 0
    meta_cells: int = 0
    rows_read: int = 0
    rollup: dict[str, int] = dataclasses.field(default_factory=dict)
    unaccounted: int = 0

    @classmethod
    def of(
        cls, result: PipelineResult, seconds: float, dry_run: bool, dead_letters: str, *, adds_up: bool = True
    ) -> PointsSummary:
        """Reads the counters of a finished pipeline.

        Args:
          dead_letters: prefix of the files of dead letters.
          adds_up: whether each point that is read is stored, a duplicate, or rejected; not in rollups.
        """
        counters: collections.Counter[str] = collections.Counter()
        for namespace in (NAMESPACE, metrics.ANNOTATIONS_NAMESPACE, metrics.META_NAMESPACE):
            counters.update(metrics.counted(result, namespace))
        rejected = _rejected(counters, dead_letters)
        summary = cls._from_counters(counters, rejected, seconds, dry_run, dead_letters, {})
        skipped = metrics.without_names(metrics.counted(result, metrics.SKIPPED_NAMESPACE))
        summary = dataclasses.replace(summary, skipped=skipped)
        rollup = dict(sorted(metrics.counted(result, metrics.ROLLUP_NAMESPACE).items()))
        if rollup:
            return dataclasses.replace(summary, rollup=rollup, rows_read=counters["messages_read"])
        # An annotation that is rejected when it is stored is not in points_read.
        checked = adds_up and not summary.annotations_read
        return dataclasses.replace(summary, unaccounted=summary._missing() if checked else 0)

    @classmethod
    def of_totals(
        cls, seconds: float, dry_run: bool, dead_letters: str, delay_ms: dict[str, int]
    ) -> PointsSummary:
        """What this process has counted.

        Args:
          delay_ms: from publish to write, by percentile.
        """
        rejected = metrics.rejected_by_reason()
        summary = cls._from_counters(metrics.totals, rejected, seconds, dry_run, dead_letters, delay_ms)
        return dataclasses.replace(summary, skipped=metrics.skipped_by_kind())

    @classmethod
    def _from_counters(
        cls,
        counters: Mapping[str, int],
        rejected: dict[str, int],
        seconds: float,
        dry_run: bool,
        dead_letters: str,
        delay_ms: dict[str, int],
    ) -> PointsSummary:
        return cls(
            points_read=counters.get("points_read", 0),
            points_duplicate=counters.get("points_duplicate", 0),
            points_stored=counters.get("points_packed", 0),
            rejected=rejected,
            uids_assigned=counters.get("uids_assigned", 0),
            rows=counters.get("rows_written", 0),
            cells=counters.get("cells_written", 0),
            bytes_written=counters.get("bytes_written", 0),
            seconds=seconds,
            dry_run=dry_run,
            dead_letters=letter_files(dead_letters),
            delay_ms=delay_ms,
            annotations_read=counters.get("annotations_read", 0),
            annotations_written=counters.get("annotations_written", 0),
            annotations_deleted=counters.get("annotations_deleted", 0),
            meta_cells=counters.get(metrics.META_CELLS, 0),
        )

    def _missing(self) -> int:
        """Points that were read, and are in no other figure."""
        of_rows = {reason.value for reason, kind in KIND_OF.items() if kind == OF_ROWS} | {OF_ROWS}
        rejected = sum(n for name, n in self.rejected.items() if name not in of_rows)
        return self.points_read - self.points_stored - self.points_duplicate - rejected

    def share_rejected(self) -> tuple[int, int]:
        return sum(self.rejected.values()), max(self.points_read, self.rows_read)

    def stored_nothing(self) -> bool:
        stored = self.rows + self.points_stored + self.annotations_written + self.annotations_deleted
        return not self.rollup and stored + self.points_duplicate == 0

    @property
    def bytes_per_point(self) -> float:
        """Bytes that Bigtable stores, before compression, for each stored point."""
        return self.bytes_written / self.points_stored if self.points_stored else 0.0

    def figures(self) -> dict[str, Any]:
        figures = dataclasses.asdict(self)
        del figures["why_nothing"], figures["failed"]
        return figures | {
            "bytes_per_point": round(self.bytes_per_point, 3),
            "points_per_second": round(self.points_stored / self.seconds),
        }

    def lines(self) -> list[tuple[str, str]]:
        of_annotations = (
            ("annotations read", f"{self.annotations_read:,}"),
            ("annotations stored", f"{self.annotations_written:,}"),
            ("annotations deleted", f"{self.annotations_deleted:,}"),
        )
        lines = [
            *([("rows read", f"{self.rows_read:,}")] if self.rollup else []),
            ("points read", f"{self.points_read:,}"),
            ("points stored" if not self.dry_run else "points to store", f"{self.points_stored:,}"),
            ("duplicates", f"{self.points_duplicate:,}"),
            ("rejected", f"{sum(self.rejected.values()):,}"),
            *((f"  {reason}", f"{count:,}") for reason, count in self.rejected.items()),
            *((f"skipped {kind}", f"{count:,}") for kind, count in self.skipped.items()),
            *([("not accounted for", f"{self.unaccounted:,}: {_LOST}")] if self.unaccounted else []),
            ("UIDs assigned", f"{self.uids_assigned:,}"),
            *(of_annotations if self.annotations_read else ()),
            *([("metadata cells", f"{self.meta_cells:,}")] if self.meta_cells else []),
            *((name.replace("_", " "), f"{n:,}") for name, n in self.rollup.items()),
            ("rows, cells", f"{self.rows:,}, {self.cells:,}"),
            ("bytes per point", f"{self.bytes_per_point:.2f}"),
            ("seconds", f"{self.seconds:.1f}"),
            ("points per second", f"{self.points_stored / self.seconds:,.0f}"),
            *((f"delay {key}, ms", f"{value:,}") for key, value in self.delay_ms.items()),
            *(("dead letters", path) for path in self.dead_letters[:_SHOWN]),
        ]
        more = len(self.dead_letters) - _SHOWN
        if more > 0:
            lines.append(("", f"and {more} more files next to it"))
        return lines


def _likely_format(dead_letters: Sequence[str]) -> str:
    """The format that the first dead letter looks like, if it is not of the one that rejected it."""
    from timebeam.schema.formats import FORMATS, Message, message_format  # they take a tenth of a second

    for path in dead_letters[:1]:
        with open(path, "rb") as file:
            rejected = from_json(file.readline()).rejected
        if rejected.stage is Stage.PARSE:
            for name in FORMATS:
                parsed = message_format(name).parse(Message(rejected.payload, 0, ""))
                if len(parsed.batch) and not parsed.rejected:
                    return f"; the first dead letter looks like --format {name}"
    return ": see the dead letters"


def _rejected(counters: Mapping[str, int], dead_letters: str) -> dict[str, int]:
    """Rejections by reason; by kind where only the workers know the reasons.

    The letters themselves are counted where they are on this machine: Prism loses what a bundle counted when
    another one of its stage ends before it knows the names of the counters (metricsStore.contributeMetrics).
    """
    letters = count_letters(dead_letters)
    kinds = {name: n for name, n in sorted(counters.items()) if n and name.startswith("rejected_")}
    if sum(letters.values()) >= sum(kinds.values()):
        return letters
    reasons = metrics.rejected_by_reason()
    return reasons if sum(reasons.values()) == sum(kinds.values()) else kinds
