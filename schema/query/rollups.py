"""Which rollups can answer a query, so that the answer is the one that the points give.

Sections 7.5, 8.1 and 8.4 of the format notes. A TSD chooses by the downsampling alone; here pre-aggregates
serve only where they cannot change the answer, without being asked for. Nothing is read here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from schema.query.aggregate import AGGREGATORS, Fold, Gap
from schema.query.answer import NONE, reach
from schema.query.downsample import Downsampling, Fill
from schema.query.joined import NUMBERS
from schema.rollup.config import OF_GROUP, PreAggregate, RollupConfig, RollupInterval, matches

_FOLDS = {"sum": Fold.SUM, "count": Fold.SUM, "min": Fold.MIN, "max": Fold.MAX}
"""How the series of a group become what its pre-aggregates hold, by downsampling function."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A query; see `schema.query.answer.answer`. `tags` as in `Selection`."""

    metric: str
    tags: Mapping[str, frozenset[str]]
    group_by: Sequence[str]
    aggregator: str
    downsampling: Downsampling | None
    start_ms: int
    end_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A table that can answer a part of a query.

    Attributes:
      table: its name without prefix.
      ids: aggregation id of each of `NUMBERS` of the downsampling function, in that order; none for the plain
        points of groups in the default interval's table.
      first_ms, until_ms: it may serve [first, until): whole intervals that are no younger than delaySla.
      group: what was pre-aggregated; None for rollups of single series.
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
class Plan:
    """How to answer a query.

    Attributes:
      start_ms, end_ms: the points that the answer is made of are those in [start, end).
      sources: the best one first; the next is for when nothing of this range stands in it.
      notes: why a kind of rollups cannot serve, for a reader.
    """

    start_ms: int
    end_ms: int
    sources: tuple[Source, ...]
    notes: tuple[str, ...]


def choose(config: RollupConfig, asked: Question, now_ms: int) -> Plan:
    """The tables that can answer a query: of pre-aggregates, and of rollups of single series.

    Of each kind the longest interval that divides that of the downsampling, and of which the range has
    some that are no younger than its delaySla.
    """
    start_ms, last_ms = reach(asked.downsampling, asked.start_ms, asked.end_ms)
    range_ms = start_ms, last_ms + 1
    how = asked.downsampling
    why = _no_rollups(config, asked)
    if why or how is None or how.interval_ms is None:
        return Plan(*range_ms, (), (f"no rollups: {why}",))
    notes: list[str] = []
    sources: list[Source] = []
    group, why = _group(config, asked, how)
    if group is None:
        notes += [f"no pre-aggregates: {why}"] if config.pre_aggregates else []
    else:
        found = [
            Source(one, one.pre_aggregation_table, ids, *range_ms, group, aggregator)
            for one in config.intervals
            for aggregator, ids in _of_groups(config, one, how.function)
            if aggregator in group.aggregators
        ]
        sources += _longest("pre-aggregates", found, how.interval_ms, now_ms, notes)
    lacking = [name for name in NUMBERS[how.function] if name not in config.aggregation_ids]
    if lacking:
        notes.append(f"no rollups of series: {lacking[0]} has no aggregation id")
    elif not matches(config.metrics, asked.metric):
        notes.append(f"no rollups of series: {asked.metric} is none of timebeam.metrics")
    else:
        ids = tuple(config.aggregation_ids[name] for name in NUMBERS[how.function])
        found = [Source(one, one.table, ids, *range_ms) for one in config.rollups]
        sources += _longest("rollups of series", found, how.interval_ms, now_ms, notes)
    return Plan(*range_ms, tuple(sources), tuple(notes))


def _no_rollups(config: RollupConfig, asked: Question) -> str:
    """Why no rollups of any kind serve a query; empty if some may."""
    how = asked.downsampling
    if how is None:
        return "the query has no downsampling"
    if how.interval_ms is None:
        return "0all has no intervals"
    if how.function not in NUMBERS:
        return f"{how.function} cannot be computed from them"
    if config.agg_tag_key in asked.tags or config.agg_tag_key in asked.group_by:
        return f"the query asks for the tag {config.agg_tag_key}, which says something else there"
    return ""


def _longest(
    kind: str, found: Sequence[Source], wanted_ms: int, now_ms: int, notes: list[str]
) -> Sequence[Source]:
    """The source with the longest interval that serves, if there is one; else a note."""
    dividing = [one for one in found if wanted_ms % (one.interval.seconds * 1000) == 0]
    if not dividing:
        notes.append(f"no {kind}: {wanted_ms} ms are no multiple of one of their intervals")
    for one in sorted(dividing, key=lambda one: -one.interval.seconds):
        length_ms = one.interval.seconds * 1000
        newest_ms = now_ms - (one.interval.delay_s or 0) * 1000
        first_ms = -(-one.first_ms // length_ms) * length_ms
        until_ms = min(one.until_ms, newest_ms) // length_ms * length_ms
        if first_ms < until_ms:
            return [dataclasses.replace(one, first_ms=first_ms, until_ms=until_ms)]
        notes.append(f"no {kind} of {one.interval.interval}: none of the range is old enough")
    return []


def _group(config: RollupConfig, asked: Question, how: Downsampling) -> tuple[PreAggregate | None, str]:
    """(the pre-aggregates whose groups can stand for the series of a query, else why there are none)."""
    why = _changes(asked.aggregator, how)
    if why:
        return None, why
    # A series that lacks a kept tag is in no group, so the query must leave it out too.
    asked_keys = tuple(sorted({*asked.group_by, *asked.tags}))
    named = [one for one in config.pre_aggregates if matches(one.metrics, asked.metric)]
    for one in named:
        if one.keep == asked_keys and any(
            aggregator in one.aggregators
            for interval in config.intervals
            for aggregator, _ in _of_groups(config, interval, how.function)
        ):
            return one, ""
    keys = ", ".join(asked_keys) or "no tags"
    return None, f"none of {how.function} keeps what the query groups by and filters, {keys}"


def _changes(aggregator: str, how: Downsampling) -> str:
    """Why groups give another answer than the aggregation of their series; empty if they do not.

    A query interpolates a series that has no point in an interval, where a group has nothing; unless the
    aggregator does not interpolate, or a fill puts something there that counts for nothing.
    """
    fold = _FOLDS.get(how.function)
    if fold is None:
        return f"{how.function} of a group is not that of its series"
    if aggregator == NONE or AGGREGATORS[aggregator].fold is not fold:
        return f"{aggregator} of the series is not what groups of {how.function} hold"
    nothing = Gap.ZERO if fold is Fold.SUM else Gap.IGNORED
    if how.fill is Fill.NONE and AGGREGATORS[aggregator].gap is not nothing:
        other = next(name for name, one in AGGREGATORS.items() if one.fold is fold and one.gap is nothing)
        return f"{aggregator} interpolates where a series has no point; {other} does not, nor does fill nan"
    if how.fill is Fill.ZERO and fold is not Fold.SUM:
        return f"fill zero changes the {aggregator} of the series"
    return ""


def _of_groups(
    config: RollupConfig, interval: RollupInterval, function: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(group-by aggregator, aggregation id) of what holds a number of groups; no id in plain points."""
    for aggregator, cells in OF_GROUP.items():
        if interval.is_default:
            if aggregator == function:
                yield aggregator, ()
            continue
        for name, number in cells.items():
            if number == function and name in config.aggregation_ids:
                yield aggregator, (config.aggregation_ids[name],)
