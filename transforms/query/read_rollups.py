"""The downsampled series of a query, from rollups, or from points where there are no rollups."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from google.api_core.exceptions import NotFound

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.times import LATEST_MS, utc_text
from timebeam.schema.core.batches import distinct
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import AmbiguousNameError, Finding, Reader, Selected, UnknownNameError
from timebeam.schema.query.answer import QuerySeries
from timebeam.schema.query.choose_rollups import (
    QueryPlan,
    RollupSource,
    SourceSpan,
    choose,
    gaps,
    is_covered,
    merged_spans,
    overlapping,
)
from timebeam.schema.query.merge_intervals import Partials, joined, of_points
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.day_plan import LAST_MS
from timebeam.schema.rollup.rollup_config import PreAggregate, RollupConfig
from timebeam.schema.stores.opentsdb import keys as row_keys
from timebeam.schema.stores.opentsdb import select
from timebeam.schema.stores.opentsdb.rollup_tables import columns_of, decode_rollups
from timebeam.schema.stores.opentsdb.select import tag_pairs
from timebeam.schema.stores.opentsdb.uids.uid_table import look_up_shown
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.query.read_points import find_series

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

MOST_READS = 16
"""Reads of raw rows in one query; with more gaps, the periods between some gaps are read too."""

_MOST_LINES = 20


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesRead:
    """The series of a query.

    Attributes:
      corruption: a line for each unreadable row or value.
      explained: a line for each period: its table, and why.
      may_have_annotations: false if all rows of the range were read, and no cell was without points.
      group: the pre-aggregate whose groups are in place of series; None if there are series.
      interval: of the rollups that were read; empty for points alone.
    """

    series: list[QuerySeries]
    corruption: list[str]
    explained: list[str]
    may_have_annotations: bool = True
    group: PreAggregate | None = None
    interval: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _TableRollups:
    """The content of a rollup table.

    Attributes:
      covered: int64[n], ascending, the numbers (start / length) of the intervals that the table serves.
      changing: int64[m], ascending, those that it does not serve, since their points may have changed.
      tsuids: the TSUID of each series; empty for groups.
    """

    covered: Int64s
    changing: Int64s
    partials: dict[Series, list[Partials]]
    corruption: list[str]
    tsuids: dict[Series, bytes]


def find_points(
    target: Target, layout: ReadableStore, question: Question, notes: Sequence[str] = ()
) -> SeriesRead:
    """The series of a query, from points alone.

    Raises:
      UnknownNameError: a name is in no table.
    """
    span = SourceSpan(question.range.first_ms, question.range.until_ms)
    series, corruption, skipped = find_series(
        target, layout, question.selection(*span), question.passing, question.downsampling
    )
    return SeriesRead(series, corruption, [*notes, _line(span, layout.tables()[0].name)], skipped > 0)


def find_rolled_up(
    target: Target, layout: OpenTsdb, config: RollupConfig, question: Question, now_ms: int
) -> SeriesRead:
    """The series of a query, from rollups where they exist, else from points.

    The rollup table serves an interval for all series, or for none: if no series has the interval, or one
    lacks a number that the query needs, the points of all series are read. So each point counts once, also if
    only some periods are rolled up.

    Raises:
      UnknownNameError: a name is in no table.
    """
    plan = choose(config, question, now_ms)
    notes = list(plan.notes)
    query = _RollupQuery(target, layout, config, question)
    changing_s = query.changing_hours(plan)
    for source in plan.sources:
        try:
            rolled = query.read(source, changing_s)
        except NotFound:
            notes.append(f"no table {_table(layout, source)}")
            continue
        except UnknownNameError as error:
            # A tag of pre-aggregates, or a name of the query, which fails again with the points.
            notes.append(f"{_table(layout, source)}: {error.args[0]}")
            continue
        if len(rolled.covered):
            return query.completed(plan, source, rolled, notes)
        changed = ", but changed intervals" if len(rolled.changing) else ""
        notes.append(f"nothing in {_table(layout, source)}{changed}")
    return find_points(target, layout, question, notes)


@dataclasses.dataclass(frozen=True, slots=True)
class _RollupQuery:
    """A query of tables with rollups."""

    target: Target
    layout: OpenTsdb
    config: RollupConfig
    question: Question

    @property
    def reader(self) -> Reader:
        """Reads rows, which count for the meter."""
        return metered(self.target)

    def changing_hours(self, plan: QueryPlan) -> Int64s:
        """The starts, in s, of the hours in which rollups may differ from points, as marks and leases say.

        To be read before the rollups. An hour that is marked only later has rollups of the points until now.
        """
        if self.layout.options.marked_since_s is None or not plan.sources:
            return np.zeros(0, np.int64)
        # Imports Beam, which most queries do not need.
        from timebeam.transforms.rollup.changed_hours import read_days

        layout, reader, uid = self.layout, self.reader, self._metric_uid()
        hours_s = set[int]()
        if uid is not None:
            start_s, end_s = plan.start_ms // 1000, min(-(-plan.end_ms // 1000), LAST_MS // 1000 - 1)
            # Intervals that the range cuts are not served, so that no hour outside of its days matters.
            for day in read_days(reader, layout, uid, start_s, end_s):
                hours_s |= day.changing
        return np.array(sorted(hours_s), np.int64)

    def _metric_uid(self) -> bytes | None:
        """The UID of the metric; None if it has none."""
        if self.question.tsuids is not None:
            return next(iter(self.question.tsuids))[: self.layout.options.uid_width_metric]
        return self._uid(Name("metrics", self.question.metric))

    def _uid(self, name: Name) -> bytes | None:
        layout = self.layout
        return look_up_shown(layout.options, [name], self.reader).get(name)

    def read(self, source: RollupSource, changing_s: Int64s) -> _TableRollups:
        """Reads the rollups of one table for a query, but for the intervals of changing hours.

        Raises:
          NotFound: there is no such table.
          UnknownNameError: a name is in no table.
        """
        length_ms = source.interval.seconds * 1000
        partials: dict[Series, list[Partials]] = {}
        corruption: list[str] = []
        tsuids: dict[Series, bytes] = {}
        raw_key = self._uid(Name("tagk", self.config.agg_tag_key)) if self.config.tag_raw else None
        changing = overlapping(changing_s, length_ms)
        broken, meter = [changing * length_ms], Meter.of(self.target)
        for row, series in self._rows(source, corruption):
            if source.ids:
                partial, lacking, unread = _row_rollups(self.layout, self.config, source, row)
                broken.append(lacking)
            else:
                decoded = self.layout.decode_rows([Selected(row, series)])
                partial = Partials(decoded.batch.times_ms, decoded.batch.floats[None, :])
                unread = [text for _, text in decoded.corruption]
            corruption += [f"row {row.key.hex()}: {text}" for text in unread]
            meter.add_points(len(partial.times_ms))
            inside = (partial.times_ms >= source.first_ms) & (partial.times_ms < source.until_ms)
            if inside.any():
                partials.setdefault(series, []).append(partial.take(inside))
                if source.group is None and series not in tsuids:
                    tsuids[series] = self._tsuid(row.key, raw_key)
        times_ms = [partial.times_ms for series_partials in partials.values() for partial in series_partials]
        covered = distinct(np.concatenate([np.zeros(0, np.int64), *times_ms]) // length_ms)
        if any(map(len, broken)):
            covered = np.setdiff1d(covered, np.concatenate(broken) // length_ms)
            partials = {
                series: [
                    partial.take(is_covered(partial.times_ms, covered, length_ms))
                    for partial in series_partials
                ]
                for series, series_partials in partials.items()
            }
        return _TableRollups(covered, changing, partials, corruption, tsuids)

    def _tsuid(self, key: bytes, raw_key: bytes | None) -> bytes:
        """The TSUID of the series of a row: without the tag of `raw_key`, which rows of rollups may have."""
        options = self.layout.options
        tsuid = row_keys.tsuid_of_key(options, key)[0]
        pairs = (tag for tag in tag_pairs(options, tsuid) if tag[0] != raw_key)
        return tsuid[: options.uid_width_metric] + b"".join(itertools.chain.from_iterable(pairs))

    def _rows(self, source: RollupSource, corruption: list[str]) -> Iterator[tuple[Row, Series]]:
        """The rows of a rollup table, each with its series, or group, as a query names it."""
        layout, config, question = self.layout, self.config, self.question
        table, passes = _table(layout, source), question.passing

        def asked_for(stored: Series) -> bool:
            series = _named(config, source, stored)
            return series is not None and question.passes(series)

        selection = question.selection(source.first_ms, source.until_ms)
        selection = dataclasses.replace(selection, reject_ambiguous=asked_for)
        if source.group is not None:
            tags = {**question.tags, config.agg_tag_key: frozenset((source.aggregator.upper(),))}
            selection = dataclasses.replace(selection, tags=tags, tsuids=None)
        elif config.tag_raw:  # rows have one more tag
            selection = dataclasses.replace(selection, explicit_tags=False, tsuids=None)
        columns, bases_s = None, None
        if source.ids:
            first_s, last_s = selection.start_ms // 1000, selection.end_ms // 1000
            bases_s = source.interval.row_span.bases_between(first_s, last_s)
            selection = dataclasses.replace(selection, start_ms=bases_s[0] * 1000, end_ms=bases_s[-1] * 1000)
            ids = config.aggregation_ids
            # A sum beyond the floats is in no cell, where a count says that there are points.
            columns = columns_of([*source.ids, ids["count"]] if ids["sum"] in source.ids else source.ids)
        for selected in select.select(layout, table, selection, self.reader, columns, bases_s):
            if isinstance(selected, Finding):
                corruption.append(f"row {selected.key.hex()}: {selected.text}")
                continue
            series = _named(config, source, selected.series)
            if series is not None and (passes is None or passes(series)):
                yield selected.row, series

    def completed(
        self, plan: QueryPlan, source: RollupSource, rolled: _TableRollups, notes: Sequence[str]
    ) -> SeriesRead:
        """The rollups, completed by points for the periods that they do not cover.

        Raises:
          AmbiguousNameError: rows of two TSUIDs have the names of a series.
        """
        question = self.question
        how, length_ms = question.downsampling, source.interval.seconds * 1000
        assert how is not None
        assert how.interval_ms is not None
        corruption, tsuids = list(rolled.corruption), rolled.tsuids
        missing = gaps(rolled.covered, length_ms, plan.start_ms, plan.end_ms)
        for span in merged_spans(missing, row_keys.SPAN_S * 1000, MOST_READS):
            raw_series, unread, _ = find_series(
                self.target, self.layout, question.selection(*span), question.passing
            )
            corruption += unread
            for raw in raw_series:
                series = raw.series if source.group is None else source.group.group(raw.series)
                points = of_points(how.function, raw.times_ms, raw.values)
                points = points.take(~is_covered(points.times_ms, rolled.covered, length_ms))
                if series is not None and len(points.times_ms):
                    if (other := tsuids.setdefault(raw.series, raw.tsuid)) != raw.tsuid:
                        raise AmbiguousNameError.of(raw.series, (other, raw.tsuid))
                    rolled.partials.setdefault(series, []).append(points)
        complete = [
            QuerySeries(series, *joined(how.function, how.interval_ms, partials), downsampled=True)
            for series, partials in rolled.partials.items()
        ]
        explained = [*notes, *_explained(self.layout, plan, source, rolled, missing)]
        return SeriesRead(
            complete, corruption, explained, group=source.group, interval=source.interval.interval
        )


def _named(config: RollupConfig, source: RollupSource, stored: Series) -> Series | None:
    """The series or group of a row of a rollup table; None for a row of the other kind."""
    tags = dict(stored.tags)
    if source.group is not None:
        del tags[config.agg_tag_key]
        return Series.of(stored.metric, tags) if tuple(sorted(tags)) == source.group.keep else None
    if config.tag_raw:
        if tags.pop(config.agg_tag_key, "").upper() != config.raw_agg_tag_value.upper():
            return None
        return Series.of(stored.metric, tags)
    shared = source.interval.table == source.interval.pre_aggregation_table
    return None if shared and config.agg_tag_key in tags else stored


def _row_rollups(
    layout: OpenTsdb, config: RollupConfig, source: RollupSource, row: Row
) -> tuple[Partials, Int64s, Sequence[str]]:
    """(the rollups of a row, starts in ms of incomplete rollups, corruption)."""
    base_s = row_keys.parse_key(layout.options, row.key).base_s
    decoded = decode_rollups(row.cells, base_s, source.interval, config.aggregation_ids)
    starts_s = distinct(decoded.starts_s)
    numbers = np.zeros((len(source.ids), len(starts_s)))
    has = np.zeros(numbers.shape, np.bool_)
    is_float = decoded.kinds == Kind.FLOAT
    floats = np.where(is_float, decoded.bits.view(np.float64), decoded.bits.astype(np.float64))
    for i, number in enumerate(source.ids):
        has_id = decoded.ids == number
        columns = np.searchsorted(starts_s, decoded.starts_s[has_id])
        numbers[i, columns], has[i, columns] = floats[has_id], True
    is_complete = has.all(axis=0)
    rollups = Partials(starts_s[is_complete] * 1000, numbers[:, is_complete])
    return rollups, starts_s[~is_complete] * 1000, decoded.corruption


def _table(layout: OpenTsdb, source: RollupSource) -> str:
    return layout.options.table_prefix + source.table


def _explained(
    layout: OpenTsdb,
    plan: QueryPlan,
    source: RollupSource,
    rolled: _TableRollups,
    missing: Sequence[SourceSpan],
) -> list[str]:
    """Which table served which period, in order of time."""
    rollup_text = f"rollups of {source.interval.interval}"
    if source.group is not None:
        keys = ", ".join(source.group.keep) or "no tags"
        rollup_text = f"pre-aggregates of {source.interval.interval}, {source.aggregator} by {keys}"
    lines = []
    reached_ms = plan.start_ms
    for span in missing:
        if reached_ms < span.start_ms:
            lines.append(_line(SourceSpan(reached_ms, span.start_ms), _table(layout, source), rollup_text))
        why = "not in the other table"
        if span.start_ms >= source.until_ms:
            why = "the newest points" + (", by delaySla" if source.interval.delay_s else "")
        elif len(np.intersect1d(_numbers(span, source), rolled.changing)):
            why = "changed since the last rollup, or not in the other table"
        lines.append(_line(span, layout.data_table, why))
        reached_ms = span.end_ms
    if reached_ms < plan.end_ms:
        lines.append(_line(SourceSpan(reached_ms, plan.end_ms), _table(layout, source), rollup_text))
    since_s = layout.options.marked_since_s
    if since_s is None:
        lines.append("rollups are of the points of their last run: marked_since is not set")
    elif plan.start_ms < since_s * 1000:
        lines.append(f"before {utc_text(since_s)}, marked_since, rollups are of the points of their last run")
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more parts"]
    return lines


def _numbers(span: SourceSpan, source: RollupSource) -> Int64s:
    """The numbers of the intervals that begin in a span."""
    length_ms = source.interval.seconds * 1000
    return np.arange(-(-span.start_ms // length_ms), -(-span.end_ms // length_ms))


def _line(span: SourceSpan, table: str, why: str = "points") -> str:
    start, end = (utc_text(min(time_ms, LATEST_MS) // 1000) for time_ms in span)
    return f"{start} to {end}: {table} ({why})"
