"""Every metric of the pipelines, by name; docs/reference/reasons.md explains them.

A runner keeps each metric for each step and worker, so they are few: rejections are counted by kind here, and
by reason in the dead letters and in the output of a local run.
"""

from __future__ import annotations

import collections
import copy
import functools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected

if TYPE_CHECKING:
    from apache_beam.runners.runner import PipelineResult

Chunk = TypeVar("Chunk")

NAMESPACE = "timebeam"

COUNTERS = (
    "messages_read",
    "bytes_read",
    "points_read",
    "points_duplicate",
    "points_packed",
    "rows_written",
    "cells_written",
    "bytes_written",
    "index_rows_written",
    "uid_hits",
    "uid_misses",
    "uids_assigned",
    "rejected_input",
    "rejected_name",
    "rejected_time",
    "rejected_value",
    "rejected_uid",
    "rejected_limit",
    "rejected_bigtable",
)
META_NAMESPACE = "timebeam-meta"
META_CELLS = "meta_cells_written"
"""The counter of `timebeam ingest --meta`; `timebeam meta sync` has its own in this namespace."""

ANNOTATIONS_NAMESPACE = "timebeam-annotations"
"""Counters of a namespace of their own, which jobs without annotations and histograms do not have."""

SKIPPED_NAMESPACE = "timebeam-skipped"
"""Counters of what formats leave out on purpose, in a namespace of their own: most formats have none."""

NAMES_COLLIDED = "names_collided"
"""A counter of that namespace for names, of which nothing is left out."""

ROLLUP_NAMESPACE = "timebeam-rollup"
"""The namespace of counters of rollups: `buckets_1h` for each interval, and `cells_skipped`."""

DISTRIBUTIONS = ("flush_rows", "delay_ms")

OF_ROWS = "rejected_bigtable"
"""The kind of rejections of rows, not of records: they are not in `points_read`."""

_KINDS = {
    "rejected_name": (
        Reason.BAD_METRIC,
        Reason.BAD_TAG,
        Reason.DUPLICATE_TAG,
        Reason.NO_TAGS,
        Reason.TOO_MANY_TAGS,
        Reason.NAME_NOT_STORABLE,
        Reason.SERIES_NOT_STORABLE,
    ),
    "rejected_time": (Reason.BAD_TIMESTAMP, Reason.TIMESTAMP_OUT_OF_RANGE),
    "rejected_value": (
        Reason.EMPTY_VALUE,
        Reason.BAD_NUMBER,
        Reason.NUMBER_OUT_OF_RANGE,
        Reason.VALUE_NOT_STORABLE,
    ),
    "rejected_uid": (Reason.UNKNOWN_NAME, Reason.UIDS_EXHAUSTED),
    "rejected_limit": (Reason.SERIES_LIMIT,),
    OF_ROWS: (Reason.OVER_BIGTABLE_LIMIT, Reason.WRITE_REFUSED),
}
KIND_OF = dict.fromkeys(Reason, "rejected_input") | {
    reason: kind for kind, reasons in _KINDS.items() for reason in reasons
}
"""The counter of each reason."""

PROGRESS_NAMESPACE = "timebeam-progress"
WORK_PLANNED, WORK_DONE = "work_planned", "work_done"
"""Counters of that namespace, for the progress of a run: bytes of files, or ranges of a table."""

totals: collections.Counter[str] = collections.Counter()
"""The counts of this process, for its progress; rejections also by reason as `rejected/REASON`."""


@functools.lru_cache(maxsize=1000)
def _counter(namespace: str, name: str) -> Any:
    """A counter of Beam."""
    from apache_beam.metrics.metric import Metrics

    return Metrics.counter(namespace, name)


def _add(namespace: str, name: str, by: int) -> None:
    """Adds to a counter of Beam; a process that has not imported Beam runs no pipeline, and has none."""
    if "apache_beam" in sys.modules:
        _counter(namespace, name).inc(by)


def count(name: str, by: int = 1) -> None:
    """Adds to a counter."""
    _add(NAMESPACE, name, by)
    totals[name] += by


def count_meta(cells: int) -> None:
    """Adds to the counter of cells of metadata."""
    if cells:
        _add(META_NAMESPACE, META_CELLS, cells)
        totals[META_CELLS] += cells


def count_rollup(name: str, by: int) -> None:
    """Adds to a counter of rollups."""
    if by:
        _add(ROLLUP_NAMESPACE, name, by)


def count_annotations(name: str, by: int) -> None:
    """Adds to a counter of annotations and histograms."""
    if by:
        _add(ANNOTATIONS_NAMESPACE, name, by)
        totals[name] += by


def count_rejected(rejected: Rejected) -> None:
    """Counts a rejection: the points that it stands for."""
    count(KIND_OF[rejected.reason], rejected.points)
    totals[f"rejected/{rejected.reason.value}"] += rejected.points


def count_rejected_again(rejected: Rejected) -> None:
    """Counts a record of a dead letter that is rejected again as read; a row was counted when parsed."""
    if KIND_OF[rejected.reason] != OF_ROWS:
        count("points_read", rejected.points)


def count_skipped(skipped: Mapping[str, int]) -> None:
    """Counts what a format leaves out on purpose, by kind: see `Parsed.skipped`."""
    for name, number in skipped.items():
        if number:
            _add(SKIPPED_NAMESPACE, name, number)
            totals[f"skipped/{name}"] += number


def counted(result: PipelineResult, namespace: str = "") -> collections.Counter[str]:
    """The counters of a namespace of a pipeline, of all workers, by name; of all of ours without one.

    Committed figures, or those of all attempts where a runner has no committed ones.
    """
    from apache_beam.metrics.metric import MetricsFilter

    counters: collections.Counter[str] = collections.Counter()
    chosen = MetricsFilter().with_namespace(namespace) if namespace else None
    # A job server's result repeats its first answer, which may be of the middle of the run; a copy has none.
    for metric in copy.copy(result).metrics().query(chosen)["counters"]:
        if not metric.key.metric.namespace.startswith(NAMESPACE):
            continue  # of Beam's own steps
        figure = metric.attempted if metric.committed is None else metric.committed
        counters[metric.key.metric.name] += figure or 0
    return counters


Tally = TypeVar("Tally", bound=NamedTuple)


class TallyCounters(Generic[Tally]):
    """The counters of one job: one for each field of its tally, a named tuple of numbers.

    Args:
      namespace: of counters that only this job has.
    """

    def __init__(self, namespace: str, tally_type: type[Tally]) -> None:
        self._namespace, self._tally_type = namespace, tally_type

    def count(self, name: str, by: int = 1) -> None:
        """Adds to a counter."""
        _add(self._namespace, name, by)
        totals[name] += by

    def add(self, tally: Tally) -> None:
        for name, by in zip(tally._fields, tally, strict=True):
            self.count(name, by)

    def tally(self, result: PipelineResult) -> Tally:
        """The figures of a finished pipeline."""
        figures = counted(result, self._namespace)
        return self._tally_type._make(figures[name] for name in self._tally_type._fields)


class SkipLog:
    """Counts what a bundle skips or rejects, and logs the first items."""

    def __init__(self, counters: TallyCounters[Any], most: int = 10) -> None:
        self._counters, self._remaining = counters, most

    def skip(self, counter: str, why: str) -> None:
        """Counts one item."""
        self._counters.count(counter)
        if self._remaining:
            self._remaining -= 1
            logging.getLogger(__name__).warning("skipped: %s", why)


def planned(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same chunks, each counted as planned work."""
    for chunk in chunks:
        plan_work(1)
        yield chunk


def plan_work(amount: int) -> None:
    """Counts work that will be done."""
    _add(PROGRESS_NAMESPACE, WORK_PLANNED, amount)
    totals[WORK_PLANNED] += amount


def work_done(amount: int = 1) -> None:
    """Counts planned work that is done."""
    _add(PROGRESS_NAMESPACE, WORK_DONE, amount)
    totals[WORK_DONE] += amount


@functools.cache
def _distributions() -> dict[str, Any]:
    from apache_beam.metrics.metric import Metrics

    return {name: Metrics.distribution(NAMESPACE, name) for name in DISTRIBUTIONS}


def observe(name: str, value: int) -> None:
    """Adds a value to a distribution."""
    _distributions()[name].update(value)


def rejected_by_reason() -> dict[str, int]:
    """The rejections of this process by reason, sorted."""
    return _totals_of("rejected/")


def skipped_by_kind() -> dict[str, int]:
    """What formats have left out in this process, by kind, sorted."""
    return without_names(_totals_of("skipped/"))


def without_names(skipped: Mapping[str, int]) -> dict[str, int]:
    """The counters of `SKIPPED_NAMESPACE` that count what is left out, sorted."""
    return {kind: number for kind, number in sorted(skipped.items()) if number and kind != NAMES_COLLIDED}


def _totals_of(prefix: str) -> dict[str, int]:
    """The counts whose names begin with a prefix, by the rest of the name, sorted."""
    return {
        name.removeprefix(prefix): number
        for name, number in sorted(totals.items())
        if name.startswith(prefix) and number
    }
