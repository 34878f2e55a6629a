"""The series that a query asks for, downsampled: out of rollups, and out of points where there are none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from google.api_core.exceptions import NotFound

from schema.layouts import Finding, Layout, Row, Selection, UnknownNameError
from schema.layouts.opentsdb import keys as row_keys
from schema.layouts.opentsdb import select
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.points import Floats, Int64s, Kind, Series
from schema.query.answer import FoundSeries, reach
from schema.query.joined import Partials, Span, gaps, is_covered, joined, of_points, together
from schema.query.rollups import Plan, Question, Source, choose
from schema.query.times import utc_text
from schema.rollup.config import RollupConfig
from schema.rollup.opentsdb_rollup import DecodedRollups, decode_rollups
from schema.rollup.qualifiers import columns_of
from transforms.bigtable.reader import TableReader
from transforms.bigtable.target import Target
from transforms.lookup import find_series

MOST_READS = 16
"""Of raw rows in one query: what lies between is read too, if there are more gaps."""

_MOST_LINES = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """What was found.

    Attributes:
      damage: what could not be read, in words.
      explained: which tables served which part of the time, and why, in lines.
    """

    found: list[FoundSeries]
    damage: list[str]
    explained: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Rolled:
    """The content of a rollup table.

    Attributes:
      covered: int64[n], ascending, the numbers (start / length) of the intervals that it serves.
    """

    covered: Int64s
    partials: dict[Series, list[Partials]]
    damage: list[str]


def find_points(target: Target, layout: Layout, asked: Question, notes: Sequence[str] = ()) -> Answered:
    """The series of a query, out of points alone.

    Raises:
      UnknownNameError: a name is in no table.
    """
    start_ms, last_ms = reach(asked.downsampling, asked.start_ms, asked.end_ms)
    span = Span(start_ms, last_ms + 1)
    found, damage = find_series(target, layout, _selection(asked, span))
    return Answered(found, damage, [*notes, _line(span, layout.tables()[0].name)])


def find_rolled_up(
    target: Target, layout: OpenTsdb, config: RollupConfig, asked: Question, now_ms: int
) -> Answered:
    """The series of a query, out of rollups as far as they go.

    An interval is served by the rollup table for all series, or for none: if no series has it, or one has it
    without a number that is needed, the points of all series are read. So a range that is rolled up in parts
    has every point once.

    Raises:
      UnknownNameError: a name is in no table.
    """
    plan = choose(config, asked, now_ms)
    notes = list(plan.notes)
    for source in plan.sources:
        try:
            rolled = _read(target, layout, config, asked, source)
        except NotFound:
            notes.append(f"no table {_table(layout, source)}")
            continue
        except UnknownNameError as error:
            # The tag of pre-aggregates; a name of the query's own is looked up again, with the points.
            notes.append(f"{_table(layout, source)}: {error.args[0]}")
            continue
        if len(rolled.covered):
            return _completed(target, layout, asked, plan, source, rolled, notes)
        notes.append(f"nothing in {_table(layout, source)}")
    return find_points(target, layout, asked, notes)


def _completed(
    target: Target,
    layout: OpenTsdb,
    asked: Question,
    plan: Plan,
    source: Source,
    rolled: _Rolled,
    notes: list[str],
) -> Answered:
    """Rollups, and points for the rest of the time."""
    how, length_ms = asked.downsampling, source.interval.seconds * 1000
    assert how is not None
    assert how.interval_ms is not None
    damage = list(rolled.damage)
    missing = gaps(rolled.covered, length_ms, plan.start_ms, plan.end_ms)
    for span in together(missing, row_keys.SPAN_S * 1000, MOST_READS):
        found, unread = find_series(target, layout, _selection(asked, span))
        damage += unread
        for raw in found:
            series = raw.series if source.group is None else source.group.group(raw.series)
            points = of_points(how.function, raw.times_ms, raw.values)
            points = points.take(~is_covered(points.times_ms, rolled.covered, length_ms))
            if series is not None and len(points.times_ms):
                rolled.partials.setdefault(series, []).append(points)
    complete = [
        FoundSeries(one, *joined(how.function, how.interval_ms, parts), downsampled=True)
        for one, parts in rolled.partials.items()
    ]
    return Answered(complete, damage, [*notes, *_explained(layout, plan, source, missing)])


def _read(target: Target, layout: OpenTsdb, config: RollupConfig, asked: Question, source: Source) -> _Rolled:
    """What stands in a rollup table for a query.

    Raises:
      NotFound: there is no such table.
      UnknownNameError: a name is in no table.
    """
    length_ms = source.interval.seconds * 1000
    partials: dict[Series, list[Partials]] = {}
    damage: list[str] = []
    broken: list[Int64s] = []
    for row, series in _rows(target, layout, config, asked, source, damage):
        if source.ids:
            found, lacking, unread = _rollups(layout, config, source, row)
            broken.append(lacking)
        else:
            decoded = layout.decode(row, series)
            found, unread = Partials(decoded.batch.times_ms, decoded.batch.floats[None, :]), decoded.damage
        damage += [f"row {row.key.hex()}: {text}" for text in unread]
        inside = (found.times_ms >= source.first_ms) & (found.times_ms < source.until_ms)
        if inside.any():
            partials.setdefault(series, []).append(found.take(inside))
    times_ms = [part.times_ms for parts in partials.values() for part in parts]
    covered = np.unique(np.concatenate([np.zeros(0, np.int64), *times_ms]) // length_ms)
    if broken:
        covered = np.setdiff1d(covered, np.concatenate(broken) // length_ms)
        partials = {
            series: [part.take(is_covered(part.times_ms, covered, length_ms)) for part in parts]
            for series, parts in partials.items()
        }
    return _Rolled(covered, partials, damage)


def _rows(
    target: Target, layout: OpenTsdb, config: RollupConfig, asked: Question, source: Source, damage: list[str]
) -> Iterator[tuple[Row, Series]]:
    """The rows of a rollup table, each with its series, or group, as a query names it."""
    tags = dict(asked.tags)
    if source.group is not None:
        tags[config.agg_tag_key] = frozenset((source.aggregator.upper(),))
    first_ms, last_ms, columns = source.first_ms, source.until_ms - 1, None
    if source.ids:
        edges_s = np.array([first_ms, last_ms], np.int64) // 1000
        first_ms, last_ms = (source.interval.row_span.bases(edges_s) * 1000).tolist()
        ids = config.aggregation_ids
        # A sum beyond the floats is in no cell, where a count says that there are points.
        columns = columns_of([*source.ids, ids["count"]] if ids["sum"] in source.ids else source.ids)
    selection = Selection(asked.metric, tags, first_ms, last_ms)
    table, uids = _table(layout, source), layout.uid_table
    for one in select.select(layout.options, table, uids, selection, TableReader(target), columns):
        if isinstance(one, Finding):
            damage.append(f"row {one.key.hex()}: {one.text}")
            continue
        series = _named(config, source, one.series)
        if series is not None:
            yield one.row, series


def _named(config: RollupConfig, source: Source, stored: Series) -> Series | None:
    """The series, or the group, that a row of a rollup table is of; None if it is of another kind."""
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


def _rollups(
    layout: OpenTsdb, config: RollupConfig, source: Source, row: Row
) -> tuple[Partials, Int64s, Sequence[str]]:
    """(the rollups of a row, starts in ms of those that lack a number that is needed, damage)."""
    base_s = row_keys.parse_key(layout.options, row.key).base_s
    decoded = decode_rollups(row.cells, base_s, source.interval, config.aggregation_ids)
    starts_s = np.unique(decoded.starts_s)
    numbers = np.zeros((len(source.ids), len(starts_s)))
    has = np.zeros(numbers.shape, np.bool_)
    floats = _floats(decoded)
    for i, number in enumerate(source.ids):
        of_it = decoded.ids == number
        at = np.searchsorted(starts_s, decoded.starts_s[of_it])
        numbers[i, at], has[i, at] = floats[of_it], True
    whole = has.all(axis=0)
    rollups = Partials(starts_s[whole] * 1000, numbers[:, whole])
    return rollups, starts_s[~whole] * 1000, decoded.damage


def _floats(decoded: DecodedRollups) -> Floats:
    is_float = decoded.kinds == Kind.FLOAT
    return np.where(is_float, decoded.bits.view(np.float64), decoded.bits.astype(np.float64))


def _selection(asked: Question, span: Span) -> Selection:
    return Selection(asked.metric, asked.tags, span.start_ms, span.end_ms - 1)


def _table(layout: OpenTsdb, source: Source) -> str:
    return layout.options.table_prefix + source.table


def _explained(layout: OpenTsdb, plan: Plan, source: Source, missing: Sequence[Span]) -> list[str]:
    """Which table served which part of the time, in its order."""
    what = f"rollups of {source.interval.interval}"
    if source.group is not None:
        keys = ", ".join(source.group.keep) or "no tags"
        what = f"pre-aggregates of {source.interval.interval}, {source.aggregator} by {keys}"
    lines = []
    at = plan.start_ms
    for span in missing:
        if at < span.start_ms:
            lines.append(_line(Span(at, span.start_ms), _table(layout, source), what))
        why = "not in the other table"
        if span.start_ms >= source.until_ms:
            why = "the newest points" + (", by delaySla" if source.interval.delay_s else "")
        lines.append(_line(span, layout.data_table, why))
        at = span.end_ms
    if at < plan.end_ms:
        lines.append(_line(Span(at, plan.end_ms), _table(layout, source), what))
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more parts"]
    return lines


def _line(span: Span, table: str, why: str = "points") -> str:
    start, end = (utc_text(at // 1000) for at in span)
    return f"{start} to {end}: {table} ({why})"
