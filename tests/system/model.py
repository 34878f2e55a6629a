"""What the tables must hold after each step: a dict of points, and their aggregates, in plain Python.

The latest arrival of an instant wins; within one arrival the last point. Appends have no arrival: they win
over all before them (docs/reference/layouts.md).
"""

from __future__ import annotations

import collections
import dataclasses
import fractions
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from tests.support.model import SeriesName
from tests.system.files import HISTOGRAMS
from tests.system.steps import DAY_S, HOUR_S, METRICS, SERIES, File, Point, Value

_DOUBLES = ("heroic", "heroic-readable")
_AFTER_ALL_FILES = 10**14
_KEPT_TAG = "host"
PLAIN_GROUPS = "preagg"
"""The table of groups of the default interval, of a minute."""
STATS = ("sum", "count", "min", "max", "first", "last")
STAT_IDS = dict(zip(STATS, (0, 1, 2, 3, 4, 6), strict=True))
"""Their aggregation ids; no TSD can read cells of id 5."""
STAT_OF_ID = {number: stat for stat, number in STAT_IDS.items()}

Instant: TypeAlias = "tuple[int, int]"
"""(number of the series, time in ms)."""
Column: TypeAlias = "tuple[int, int, bool]"
"""(number of the series, time in ms, whether it is sent in ms): a histogram's own column."""
RollupKey: TypeAlias = "tuple[str, SeriesName, str, int]"
"""(table, series, aggregator, start of the interval in s)."""


_Key = TypeVar("_Key", Instant, Column)


class Version(NamedTuple):
    """A value, and how new it is: its arrival in ms, or a greater number if it was appended."""

    rank: int
    value: Value


class Number(NamedTuple):
    """A number of a rollup, and by how much a sum of decimals may differ from it."""

    value: int | float
    tolerance: float

    def agrees(self, other: float) -> bool:
        """Whether a stored number is this one."""
        return self.value == other or abs(self.value - other) <= self.tolerance


@dataclasses.dataclass
class Model:
    """The tables of one history."""

    layout: str
    copy_layout: str
    intervals: Sequence[int]
    points: dict[Instant, Version] = dataclasses.field(default_factory=dict)
    copied: dict[Instant, Version] = dataclasses.field(default_factory=dict)
    exported: dict[Instant, Version] = dataclasses.field(default_factory=dict)
    histograms: dict[Column, Version] = dataclasses.field(default_factory=dict)
    copied_histograms: dict[Column, Version] = dataclasses.field(default_factory=dict)
    metrics: set[str] = dataclasses.field(default_factory=set)
    tag_keys: set[str] = dataclasses.field(default_factory=set)
    tag_values: set[str] = dataclasses.field(default_factory=set)
    marks: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    rollups: dict[RollupKey, Number] = dataclasses.field(default_factory=dict)
    _appends: Iterable[int] = dataclasses.field(default_factory=lambda: itertools.count(_AFTER_ALL_FILES))

    def store(
        self, file: File, *, append: bool, create: bool, mark: bool, only: Collection[int] | None = None
    ) -> list[Point]:
        """Ingests a file; the points that must be rejected.

        Args:
          only: the series that a limit lets in; None for all.
        """
        takes = set(METRICS) if create or self.layout != "opentsdb" else self.metrics
        stored = [
            point
            for point in file.points
            if storable(self.layout, point.value)
            and SERIES[point.series][0] in takes
            and (only is None or point.series in only)
        ]
        if file.format == HISTOGRAMS:
            for point in stored:  # of one column the last
                column = point.series, point.time_ms, point.in_ms
                _replace(self.histograms, column, Version(file.arrival_ms, point.value))
        else:
            rank = next(iter(self._appends)) if append else file.arrival_ms
            for time, value in {(point.series, point.time_ms): point.value for point in stored}.items():
                _replace(self.points, time, Version(rank, as_stored(self.layout, value)))
        self.metrics |= {SERIES[point.series][0] for point in stored}
        named = file.points if only is None else stored  # tags get UIDs though their metric is rejected
        self.tag_keys |= {key for point in named for key, _ in SERIES[point.series][1]}
        self.tag_values |= {value for point in named for _, value in SERIES[point.series][1]}
        if mark:
            self.marks |= {(SERIES[point.series][0], hour_of(point.time_ms)) for point in stored}
        return [point for point in file.points if point not in stored]

    def candidates(self, files: Iterable[File]) -> dict[Instant | Column, set[Value]]:
        """What a run over these files that breaks off may leave for each instant and column of histograms."""
        values: dict[Instant | Column, set[Value]] = collections.defaultdict(set)
        for versions in (self.points, self.histograms):
            for key, version in versions.items():
                values[key].add(version.value)
        for file in files:
            for point in file.points:
                time = point.series, point.time_ms
                if file.format == HISTOGRAMS:
                    values[*time, point.in_ms].add(point.value)
                elif storable(self.layout, point.value):
                    values[time].add(as_stored(self.layout, point.value))
        return values

    def delete(self, series: int, hour_s: int) -> None:
        """Deletes the points and histograms of a series in an hour."""
        for versions in (self.points, self.histograms):
            _drop(versions, lambda key: key[0] == series and hour_of(key[1]) == hour_s)

    def remove(self, series: int, first_ms: int, last_ms: int) -> None:
        """Deletes the points and histograms of [first_ms, last_ms] of a series, and marks their hours."""
        for versions in (self.points, self.histograms):
            dropped = _drop(versions, lambda key: key[0] == series and first_ms <= key[1] <= last_ms)
            self.marks |= {(SERIES[series][0], hour_of(key[1])) for key in dropped}

    def expire(self, metric: str, end_s: int, rollups_end_s: int | None) -> None:
        """Deletes the points of a metric before a time, and its rollups of intervals that end before another.

        Args:
          rollups_end_s: None if rollups go with `rollup --changed`; their hours are marked.
        """
        for number, series in enumerate(SERIES):
            marks = set(self.marks)
            if series[0] == metric:
                self.remove(number, 0, end_s * 1000 - 1)
            if rollups_end_s is not None:
                self.marks = marks
        if rollups_end_s is not None:
            self.rollups = {
                key: number
                for key, number in self.rollups.items()
                if _metric_of(key) != metric or key[3] + _length(key) > rollups_end_s
            }

    def export(self, first_ms: int, end_ms: int) -> None:
        """Exports the points of [first_ms, end_ms), in place of what was exported of this time."""
        _drop(self.exported, lambda time: first_ms <= time[1] < end_ms)
        self.exported |= {
            time: version for time, version in self.points.items() if first_ms <= time[1] < end_ms
        }

    def copy(self, start_ms: int, end_ms: int) -> int:
        """Copies the points of a time range, both ends included; how many must be rejected."""
        rejected = 0
        for time, version in self.points.items():
            if not start_ms <= time[1] <= end_ms:
                continue
            if not storable(self.copy_layout, version.value):
                rejected += 1
            else:
                copied = Version(version.rank, as_stored(self.copy_layout, version.value))
                _replace(self.copied, time, copied)
        if self.copy_layout == "opentsdb":
            for column, version in self.histograms.items():
                if start_ms <= column[1] <= end_ms:
                    _replace(self.copied_histograms, column, version)
        return rejected

    def roll_up(self, start_s: int, end_s: int) -> None:
        """Makes all intervals that start in [start_s, end_s)."""
        self.rollups = {key: number for key, number in self.rollups.items() if not start_s <= key[3] < end_s}
        self.rollups |= {key: number for key, number in self.computed().items() if start_s <= key[3] < end_s}
        self.marks = {
            (metric, hour)
            for metric, hour in self.marks
            if any(
                hour // length * length < start_s or (hour + HOUR_S - 1) // length * length >= end_s
                for length in (60, *self.intervals)
            )
        }

    def must_be_redone(self, key: RollupKey) -> bool:
        """Whether an interval lies in the marked hours of its metric, or holds one of them."""
        lengths = [60, *self.intervals]
        for metric, hour in self.marks:
            start = min(hour // length * length for length in lengths)
            end = max((hour + HOUR_S - 1) // length * length + length for length in lengths)
            if _metric_of(key) == metric and start <= key[3] < end:
                return True
        return False

    def is_fresh(self) -> bool:
        """Whether a query through rollups must answer as one of points does.

        It must where each interval is rolled up for all series that have points in it, or for none.
        """
        computed = self.computed()
        rolled = {(table, start) for table, _, _, start in self.rollups}
        return self.rollups == {key: value for key, value in computed.items() if (key[0], key[3]) in rolled}

    def computed(self) -> dict[RollupKey, Number]:
        """All rollups of the points, from scratch."""
        values: dict[tuple[str, SeriesName, int, tuple[str, ...]], list[tuple[int, Value]]]
        values = collections.defaultdict(list)
        for (number, time_ms), version in self.points.items():
            series = SERIES[number]
            for table, name, stats, length in self._places(series):
                start = time_ms // 1000 // length * length
                values[table, name, start, stats].append((time_ms, version.value))
        numbers: dict[RollupKey, Number] = {}
        for (table, name, start, stats), members in values.items():
            ordered = [value for _, value in sorted(members, key=lambda member: member[0])]
            for stat in stats:
                result = _FOLDS[stat](ordered)
                key = (table, *_name(self.layout, table, name, stat), start)
                numbers[key] = result._replace(value=as_stored(self.layout, result.value))
        return numbers

    def _places(self, series: SeriesName) -> Iterable[tuple[str, SeriesName, tuple[str, ...], int]]:
        """(table, stored series, aggregators, length of the interval) of all that holds a point."""
        metric, tags = series
        for length in self.intervals:
            yield f"rollup-{length}", series, STATS, length
        if self.layout != "opentsdb":
            return
        host = dict(tags)[_KEPT_TAG]
        for aggregator, stats in (("SUM", ("sum", "count")), ("MAX", ("max",))):
            group = (metric, (("_aggregate", aggregator), (_KEPT_TAG, host)))
            yield PLAIN_GROUPS, group, stats[:1], 60
            for length in self.intervals:
                yield f"preagg-{length}", group, stats, length


def _replace(versions: dict[_Key, Version], key: _Key, version: Version) -> None:
    """Stores a version, unless a newer one is there."""
    if key not in versions or versions[key].rank <= version.rank:
        versions[key] = version


def _drop(versions: dict[_Key, Version], gone: Callable[[_Key], bool]) -> list[_Key]:
    """Deletes versions; their keys."""
    keys = [key for key in versions if gone(key)]
    for key in keys:
        del versions[key]
    return keys


def storable(layout: str, value: Value) -> bool:
    """Whether a layout holds a number exactly."""
    return layout not in _DOUBLES or float(value) == value


def as_stored(layout: str, value: Value) -> Value:
    """The number as a layout gives it back."""
    return float(value) if layout in _DOUBLES else value


def hour_of(time_ms: int) -> int:
    """The start of an instant's hour, in s."""
    return time_ms // 1000 // HOUR_S * HOUR_S


def interval_text(seconds: int) -> str:
    """A length as rollup configurations write it."""
    for unit, length in (("d", DAY_S), ("h", HOUR_S), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length}{unit}"
    raise ValueError(f"{seconds} s are no whole minutes")


def _name(layout: str, table: str, series: SeriesName, stat: str) -> tuple[SeriesName, str]:
    """The stored series of a rollup, and its aggregator: where layouts have no rollups, "" for it."""
    if layout == "opentsdb":
        return series, stat
    metric, tags = series
    text = interval_text(int(table.rpartition("-")[2]))
    if layout == "kairosdb":
        return (f"{metric}.{text}.{stat}", tuple(sorted((*tags, ("saved_from", metric))))), ""
    return (metric, tuple(sorted((*tags, ("rollup", text), ("stat", stat))))), ""


def _length(key: RollupKey) -> int:
    """The seconds of an interval."""
    return 60 if key[0] == PLAIN_GROUPS else int(key[0].rpartition("-")[2])


def _metric_of(key: RollupKey) -> str:
    """The metric that a rollup is made of."""
    metric, tags = key[1]
    return dict(tags).get("saved_from", metric)


def _sum(values: Sequence[Value]) -> Number:
    exact = sum(map(fractions.Fraction, values))
    if all(isinstance(value, int) for value in values) and -(2**63) <= exact < 2**63:
        return Number(int(exact), 0)
    return Number(float(exact), 1e-12 * sum(abs(float(value)) for value in values))


_FOLDS: Mapping[str, Callable[[Sequence[Value]], Number]] = {
    "sum": _sum,
    "count": lambda values: Number(len(values), 0),
    "min": lambda values: Number(min(values), 0),
    "max": lambda values: Number(max(values), 0),
    "first": lambda values: Number(values[0], 0),
    "last": lambda values: Number(values[-1], 0),
}
