"""A query computed in plain Python from the points that were sent: grouping, buckets, interpolation.

docs/spec/opentsdb.md §8.1, §8.3 and §8.4, by loops over lists.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.support.model import Point
from tests.support.points import BASE_S, FIRST_MS

HOUR_MS = 3_600_000
START_MS = BASE_S * 1000 + HOUR_MS // 2
END_MS = BASE_S * 1000 + 5 * HOUR_MS // 2

Tags = tuple[tuple[str, str], ...]
Points = list[tuple[int, float]]
"""(time in ms, value), ascending."""


def points_of_metric(metric: str) -> Iterable[Point]:
    """Decimals at odd times, in seconds and ms; some series lack a tag, some an hour; one is outside."""
    for number, (host, core) in enumerate(itertools.product("abc", ("0", "1", None))):
        tags = [("host", host)] + ([("core", core)] if core else [])
        series = (metric, tuple(sorted(tags)))
        step = 97 + 31 * number
        for at in range(0, 3 * 3600, step):
            if number == 4 and at < 3600:
                continue
            time = BASE_S + at
            time = time * 1000 + at % 999 + 1 if number % 2 else time
            yield Point(series, time, (at * 7919 % 10_007) / 8, FIRST_MS)
    yield Point((metric, (("host", "z"),)), BASE_S + 5 * 3600, 1.5, FIRST_MS)


SENT = [*points_of_metric("sys.cpu"), *points_of_metric("sys.load")]


@dataclasses.dataclass(frozen=True)
class Query:
    """A query: allowed values by tag key (none: any), tag keys to group by, and what to compute."""

    filters: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    group_by: Sequence[str] = ()
    aggregator: str = "sum"
    downsample: tuple[int, str] | None = None

    def flags(self) -> list[str]:
        """The options of the command."""
        tags = [f"{key}={'|'.join(sorted(values)) or '*'}" for key, values in self.filters.items()]
        flags = [f"--aggregator={self.aggregator}"]
        flags += [f"--tag={tag}" for tag in tags]
        flags += [f"--group-by={key}" for key in self.group_by]
        if self.downsample:
            flags.append(f"--downsample={self.downsample[0] // 1000}s-{self.downsample[1]}")
        return flags


FOLDS: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "count": len,
}


def found_series(query: Query) -> dict[Tags, Points]:
    """The points of the series that pass the filters, of all hours that the range touches."""
    found: dict[Tags, Points] = {}
    for point in SENT:
        metric, tags = point.series
        first, end = START_MS // HOUR_MS * HOUR_MS, END_MS // HOUR_MS * HOUR_MS + HOUR_MS
        passes = all(
            key in dict(tags) and (not values or dict(tags)[key] in values)
            for key, values in query.filters.items()
        )
        if metric == "sys.cpu" and first <= point.time_ms < end and passes:
            found.setdefault(tags, []).append((point.time_ms, float(point.value)))
    if query.downsample:
        found = {tags: buckets(points, *query.downsample) for tags, points in found.items()}
    return {tags: sorted(points) for tags, points in found.items()}


def buckets(points: Points, interval_ms: int, function: str) -> Points:
    """One value per interval."""
    values: dict[int, list[float]] = {}
    for time_ms, value in points:
        values.setdefault(time_ms // interval_ms * interval_ms, []).append(value)
    return [(time_ms, FOLDS[function](found)) for time_ms, found in values.items()]


def at_time(points: Points, time_ms: int) -> float | None:
    """The value of a series at a time: its own, or on the line between its neighbours."""
    before = [point for point in points if point[0] <= time_ms]
    after = [point for point in points if point[0] >= time_ms]
    if not before or not after:
        return None
    (t0, v0), (t1, v1) = before[-1], after[0]
    return v0 if t0 == t1 else v0 + (v1 - v0) * (time_ms - t0) / (t1 - t0)


def expected(query: Query) -> list[tuple[dict[str, str], list[str], dict[str, float]]]:
    """(tags, aggregated tags, value by time) of each result."""
    groups: dict[tuple[Any, ...], list[tuple[Tags, Points]]] = {}
    for tags, points in sorted(found_series(query).items()):
        values = dict(tags)
        if query.aggregator == "none":
            groups.setdefault(tags, []).append((tags, points))
        elif all(key in values for key in query.group_by):
            groups.setdefault(tuple(values[key] for key in query.group_by), []).append((tags, points))
    results = []
    for _, members in sorted(groups.items()):
        keys = {key for tags, _ in members for key, _ in tags}
        seen = {key: {dict(tags)[key] for tags, _ in members if key in dict(tags)} for key in keys}
        common = {key: min(values) for key, values in seen.items() if len(values) == 1}
        times = {time_ms for _, points in members for time_ms, _ in points if START_MS <= time_ms <= END_MS}
        dps = {}
        for time_ms in times:
            values_there = [at_time(points, time_ms) for _, points in members]
            there = [value for value in values_there if value is not None]
            fold = sum if query.aggregator == "none" else FOLDS[query.aggregator]
            dps[str(time_ms)] = fold(there)
        results.append((common, sorted(keys - common.keys()), dps))
    return [result for result in results if result[2]]
