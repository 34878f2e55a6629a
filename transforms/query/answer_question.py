"""Evaluates a question over the tables of a layout: its points or histograms, with their annotations."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.query.answer import Result, annotated, answer, answer_histograms, check_percentiles
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.rollup_config import PreAggregate, RollupConfig
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.read_annotations import find_histograms, series_annotations
from timebeam.transforms.opentsdb.stored_series import tsuids_of, with_tsuids
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.query.read_rollups import find_points, find_rolled_up

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluated:
    """The answer to a question.

    Attributes:
      series: those that passed and have points near the range.
      tsuids: of the series of the answer; empty in a layout without UIDs.
      corruption: what could not be read, one line each.
      explained: a line for each period: its table, and why.
      stats: what the answer took, by the names of a TSD's statistics; times in ms.
      interval: of the rollups that were read; empty for points alone.
    """

    results: Sequence[Result]
    series: Sequence[Series]
    tsuids: Mapping[Series, bytes]
    corruption: Sequence[str]
    explained: Sequence[str]
    stats: Mapping[str, float]
    interval: str = ""


def evaluate(
    target: Target,
    layout: ReadableStore,
    question: Question,
    rollups: tuple[OpenTsdb, RollupConfig] | None,
    now_ms: int,
    *,
    with_annotations: bool = False,
) -> Evaluated:
    """The answer to a question, its series in the order of their TSUIDs.

    Args:
      rollups: the rollup tables that may serve; None for points alone.
      with_annotations: whether results have those of their series.

    Raises:
      UnknownNameError: a name is in no table.
      ValueError: too large a fill.
      StoppedError: by the meter of the target.
    """
    stats = _Stats(target)
    if rollups is None:
        read = find_points(target, layout, question)
    else:
        read = find_rolled_up(target, *rollups, question, now_ms)
    series, corruption = [item.series for item in read.series], read.corruption
    ordered = with_tsuids(layout, read.series, metered(target))
    tsuids = {item.series: item.tsuid for item in ordered if item.tsuid}
    stats.add_scan()
    meter = Meter.of(target)
    meter.add_points(question.filled_count * len(ordered))
    results = answer(question, ordered, meter.check)
    stats.add_results(results)
    if with_annotations and read.may_have_annotations:
        results, corruption = _annotated(target, layout, question, results, corruption, read.group)
    return Evaluated(results, series, tsuids, corruption, read.explained, stats.values, read.interval)


def evaluate_histograms(
    target: Target,
    layout: OpenTsdb,
    question: Question,
    percentiles: Sequence[float],
    *,
    has_buckets: bool,
    with_annotations: bool = False,
) -> Evaluated:
    """The answer to a question out of histograms; see `answer_histograms`.

    Raises:
      UnknownNameError: a name is in no table.
      ValueError: a percentile is out of its range.
      StoppedError: by the meter of the target.
    """
    check_percentiles(percentiles)
    stats = _Stats(target)
    histograms, corruption = find_histograms(target, layout, question)
    series = [*histograms]
    tsuids = tsuids_of(layout, series, metered(target))
    stats.add_scan()
    results = answer_histograms(
        question,
        histograms,
        percentiles,
        has_buckets=has_buckets,
        add_points=Meter.of(target).add_points,
    )
    stats.add_results(results)
    if with_annotations:
        results, corruption = _annotated(target, layout, question, results, corruption)
    return Evaluated(results, series, tsuids, corruption, [], stats.values)


class _Stats:
    """Measures the steps of an evaluation."""

    def __init__(self, target: Target) -> None:
        self.values: dict[str, float] = {}
        self._target, self._begun_s = target, time.perf_counter()
        self._read = Meter.of(target).read

    def add_scan(self) -> None:
        """The series are read."""
        if isinstance(meter := self._target.stop, Meter):
            names = ("rowsFromStorage", "bytesFromStorage", "dpsPostFilter")
            for name, before, after in zip(names, self._read, meter.read, strict=True):
                self.values[name] = after - before
        self.values["queryScanTime"] = self._lap_ms()

    def add_results(self, results: Sequence[Result]) -> None:
        """The results are computed."""
        self.values["aggregationTime"] = self._lap_ms()
        self.values["emittedDPs"] = sum(len(result.times_ms) for result in results)

    def _lap_ms(self) -> float:
        before_s, self._begun_s = self._begun_s, time.perf_counter()
        return (self._begun_s - before_s) * 1000


def _annotated(
    target: Target,
    layout: ReadableStore | OpenTsdb,
    question: Question,
    results: list[Result],
    corruption: Sequence[str],
    group: PreAggregate | None = None,
) -> tuple[list[Result], list[str]]:
    """(the results with the annotations of their series, a line for each problem).

    Args:
      group: the pre-aggregate whose groups the results have in place of series; None if they have series.
    """
    annotating = find_opentsdb(layout)
    if annotating is None:
        return results, [*corruption]
    notes, unread = series_annotations(target, annotating, question)
    if group is not None:
        of_groups: dict[Series, list[Annotation]] = {}
        for series, of_series in notes.items():
            if (key := group.group(series)) is not None:
                of_groups.setdefault(key, []).extend(of_series)
        notes = of_groups
    return annotated(results, notes), [*corruption, *unread]
