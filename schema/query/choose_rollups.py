"""Chooses the rollups that can answer a query.

docs/spec/opentsdb.md §7.5, §8.1 and §8.4. A TSD chooses by the downsampling alone; here pre-aggregates are
used automatically, but only if they cannot change the answer. This module reads no tables.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.times import HOUR_MS
from timebeam.schema.core.batches import distinct
from timebeam.schema.query.aggregate import AGGREGATORS, Gap
from timebeam.schema.query.aggregate_columns import Fold
from timebeam.schema.query.downsample import Downsampling, Fill
from timebeam.schema.query.merge_intervals import NUMBERS
from timebeam.schema.query.question import NONE, Question
from timebeam.schema.rollup.rollup_config import OF_GROUP, PreAggregate, RollupConfig, RollupInterval, matches


class SourceSpan(NamedTuple):
    """A range of time in ms, [start, end)."""

    start_ms: int
    end_ms: int


def gaps(covered: Int64s, interval_ms: int, start_ms: int, end_ms: int) -> list[SourceSpan]:
    """The parts of [start, end) outside of some intervals.

    >>> gaps(np.array([1, 2]), 60_000, 0, 240_000)  # minutes 1 and 2 have rollups
    [SourceSpan(start_ms=0, end_ms=60000), SourceSpan(start_ms=180000, end_ms=240000)]

    Args:
      covered: int64[n] k, ascending and distinct: intervals [k * interval, (k + 1) * interval) of the range.
    """
    lefts = np.append(start_ms, (covered + 1) * interval_ms)
    rights = np.append(covered * interval_ms, end_ms)
    open_ = lefts < rights
    return [SourceSpan(*pair) for pair in zip(lefts[open_].tolist(), rights[open_].tolist(), strict=True)]


def is_covered(times_ms: Int64s, covered: Int64s, interval_ms: int) -> Bools:
    """bool[n]: whether each time is in one of the intervals; see `gaps`."""
    covered_mask: Bools = np.isin(times_ms // interval_ms, covered)
    return covered_mask


def overlapping(hours_s: Int64s, interval_ms: int) -> Int64s:
    """The numbers (start / interval) of the intervals that overlap hours, ascending and distinct.

    Args:
      hours_s: int64[n] the starts of the hours, in s.
    """
    starts_ms = hours_s[:, None] * 1000
    numbers = starts_ms // interval_ms + np.arange(HOUR_MS // interval_ms + 2)
    return distinct(numbers[numbers * interval_ms < starts_ms + HOUR_MS])


def merged_spans(spans: Sequence[SourceSpan], near_ms: int, most: int) -> list[SourceSpan]:
    """Ascending spans, merged across gaps of up to `near_ms`, and until there are at most `most` spans."""
    if not spans:
        return []
    between = np.array([right.start_ms - earlier.end_ms for earlier, right in itertools.pairwise(spans)])
    longest = np.argsort(-between, kind="stable")[: most - 1]
    cuts = sorted(index for index in longest.tolist() if between[index] > near_ms)
    firsts = [0, *(index + 1 for index in cuts)]
    lasts = [*cuts, len(spans) - 1]
    return [SourceSpan(spans[a].start_ms, spans[b].end_ms) for a, b in zip(firsts, lasts, strict=True)]


_FOLDS = {"sum": Fold.SUM, "count": Fold.SUM, "min": Fold.MIN, "max": Fold.MAX}
"""The fold of a group's series that its pre-aggregates hold, by downsampling function."""


@dataclasses.dataclass(frozen=True, slots=True)
class RollupSource:
    """A table that can answer a part of a query.

    Attributes:
      table: its name without prefix.
      ids: aggregation id of each of `NUMBERS` of the downsampling function, in that order; none for the plain
        points of groups in the default interval's table.
      first_ms, until_ms: it can answer [first, until): whole intervals that are older than delaySla.
      group: the pre-aggregate; None for rollups of single series.
      aggregator: of the group, a key of `OF_GROUP`.
    """

    interval: RollupInterval
    table: str
    ids: tuple[int, ...]
    first_ms: int
    until_ms: int
    group: PreAggregate | None = None
    aggregator: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class QueryPlan:
    """How to answer a query.

    Attributes:
      start_ms, end_ms: the answer is made of the points in [start, end).
      sources: the best one first; the next one is for a table without data in this range.
      notes: why a kind of rollups cannot be used, for users.
    """

    start_ms: int
    end_ms: int
    sources: tuple[RollupSource, ...]
    notes: tuple[str, ...]


def choose(config: RollupConfig, question: Question, now_ms: int) -> QueryPlan:
    """The tables that can answer a query: of pre-aggregates, and of rollups of single series.

    For each kind, the longest interval that divides the interval of the downsampling and that is older than
    its delaySla in some part of the range.
    """
    range_ms = question.range.first_ms, question.range.until_ms
    downsampling = question.downsampling
    why = _no_rollups(config, question)
    if why or downsampling is None or downsampling.interval_ms is None:
        return QueryPlan(*range_ms, (), (f"no rollups: {why}",))
    notes: list[str] = []
    sources: list[RollupSource] = []
    group, why = _group(config, question, downsampling)
    if group is None:
        notes += [f"no pre-aggregates: {why}"] if config.pre_aggregates else []
    else:
        usable = [
            RollupSource(interval, interval.pre_aggregation_table, ids, *range_ms, group, aggregator)
            for interval in config.intervals
            for aggregator, ids in _of_groups(config, interval, downsampling.function)
            if aggregator in group.aggregators
        ]
        sources += _longest("pre-aggregates", usable, downsampling.interval_ms, now_ms, notes)
    if why := config.why_unasked(NUMBERS[downsampling.function]):
        notes.append(f"no rollups of series: {why}")
    elif not matches(config.metrics, question.metric):
        notes.append(f"no rollups of series: {question.metric} is not one of timebeam.metrics")
    else:
        ids = tuple(config.aggregation_ids[name] for name in NUMBERS[downsampling.function])
        usable = [RollupSource(interval, interval.table, ids, *range_ms) for interval in config.rollups]
        sources += _longest("rollups of series", usable, downsampling.interval_ms, now_ms, notes)
    return QueryPlan(*range_ms, tuple(sources), tuple(notes))


def _no_rollups(config: RollupConfig, question: Question) -> str:
    """Why rollups of no kind can answer a query; empty if some may."""
    downsampling = question.downsampling
    if downsampling is None:
        return "the query has no downsampling"
    if downsampling.interval_ms is None:
        return "0all has no intervals"
    if downsampling.calendar is not None:
        return "intervals of the calendar are not those of rollups"
    if downsampling.function not in NUMBERS:
        return f"{downsampling.function} cannot be computed from them"
    if why := config.why_unasked(("count", "sum")):  # a TSD needs both for any answer from rollups
        return why
    if config.agg_tag_key in question.tags or config.agg_tag_key in question.group_by:
        return f"the query asks for the tag {config.agg_tag_key}, which has another meaning there"
    return ""


def _longest(
    kind: str, sources: Sequence[RollupSource], interval_ms: int, now_ms: int, notes: list[str]
) -> Sequence[RollupSource]:
    """[The usable source with the longest interval], or [] and a note."""
    dividing = [source for source in sources if interval_ms % (source.interval.seconds * 1000) == 0]
    if not dividing:
        notes.append(f"no {kind}: {interval_ms} ms are not a multiple of one of their intervals")
    for source in sorted(dividing, key=lambda source: -source.interval.seconds):
        length_ms = source.interval.seconds * 1000
        newest_ms = now_ms - (source.interval.delay_s or 0) * 1000
        first_ms = -(-source.first_ms // length_ms) * length_ms
        until_ms = min(source.until_ms, newest_ms) // length_ms * length_ms
        if first_ms < until_ms:
            return [dataclasses.replace(source, first_ms=first_ms, until_ms=until_ms)]
        notes.append(f"no {kind} of {source.interval.interval}: none of the range is old enough")
    return []


def _group(
    config: RollupConfig, question: Question, downsampling: Downsampling
) -> tuple[PreAggregate | None, str]:
    """(the pre-aggregate whose groups can replace the series of a query, or None; why there is none)."""
    why = _changes(question, downsampling)
    if why:
        return None, why
    # A series without a kept tag is in no group, so the query must exclude it too.
    asked_keys = tuple(sorted({*question.group_by, *question.tags}))
    named = [
        pre_aggregate
        for pre_aggregate in config.pre_aggregates
        if matches(pre_aggregate.metrics, question.metric)
    ]
    for pre_aggregate in named:
        if pre_aggregate.keep == asked_keys and any(
            aggregator in pre_aggregate.aggregators
            for interval in config.intervals
            for aggregator, _ in _of_groups(config, interval, downsampling.function)
        ):
            return pre_aggregate, ""
    keys = ", ".join(asked_keys) or "no tags"
    return None, f"none of {downsampling.function} keeps what the query groups by and filters, {keys}"


def _changes(question: Question, downsampling: Downsampling) -> str:
    """Why groups would give another answer than the aggregation of their series; empty if they do not.

    A query interpolates a series without a point in an interval; a group cannot. So the aggregator must not
    interpolate, or the fill must put a neutral value there.
    """
    aggregator = question.aggregator
    if question.rate is not None or question.explicit_tags or question.series is not None:
        return "rates, explicit tags and TSUIDs are of single series"
    fold = _FOLDS.get(downsampling.function)
    if fold is None:
        return f"{downsampling.function} of a group is not that of its series"
    if aggregator == NONE or AGGREGATORS[aggregator].fold is not fold:
        return f"{aggregator} of the series is not what groups of {downsampling.function} hold"
    neutral_gap = Gap.ZERO if fold is Fold.SUM else Gap.IGNORED
    if downsampling.fill is Fill.NONE and AGGREGATORS[aggregator].gap is not neutral_gap:
        alternate = next(
            name
            for name, candidate in AGGREGATORS.items()
            if candidate.fold is fold and candidate.gap is neutral_gap
        )
        return (
            f"{aggregator} interpolates where a series has no point; {alternate} does not, nor does fill nan"
        )
    if downsampling.fill is Fill.ZERO and fold is not Fold.SUM:
        return f"fill zero changes the {aggregator} of the series"
    return ""


def _of_groups(
    config: RollupConfig, interval: RollupInterval, function: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(group-by aggregator, aggregation ids) of cells with the function's number; no ids for plain points."""
    for aggregator, cells in OF_GROUP.items():
        if interval.is_default:
            if aggregator == function:
                yield aggregator, ()
            continue
        for name, number in cells.items():
            if number == function and not config.why_unasked([name]):
                yield aggregator, (config.aggregation_ids[name],)
