"""A TSD's evaluation of a query in plain Python: one point at a time, as core/AggregationIterator goes.

docs/spec/opentsdb.md §8.1, §8.3 and §8.4. Integers are Python's, wrapped to 64 bits; there is no numpy here.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import zoneinfo
from collections.abc import Sequence

HOUR_S = 3600
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Number = int | float
Dps = list[tuple[int, Number]]
"""(time in ms, value), ascending."""
Tags = dict[str, str]


@dataclasses.dataclass(frozen=True)
class PlainQuery:
    """A query. `downsample` is (count, unit, function, fill, zone); a zone makes it one of the calendar."""

    start_ms: int
    end_ms: int
    aggregator: str = "sum"
    group_by: Sequence[str] = ()
    downsample: tuple[int, str, str, str, str | None] | None = None
    is_rate: bool = False
    is_counter: bool = False
    counter_max: int = 2**63 - 1
    reset_value: int = 0
    drops_resets: bool = False

    @property
    def interval_ms(self) -> int:
        """The nominal length of an interval; 0 for none."""
        return self.downsample[0] * UNIT_MS[self.downsample[1]] if self.downsample else 0


def evaluate(query: PlainQuery, series: Sequence[tuple[Tags, Dps]]) -> list[tuple[Tags, list[str], Dps]]:
    """(tags, aggregated tags, points) of each group, by the values that it is grouped by."""
    first_s, until_s = _scanned(query)
    groups: dict[tuple[str, ...], list[tuple[Tags, Dps]]] = {}
    for tags, points in sorted(series, key=lambda member: sorted(member[0].items())):
        read = [point for point in points if first_s * 1000 <= point[0] < until_s * 1000]
        if not read:
            continue
        if query.aggregator == "none":
            key = tuple(text for pair in sorted(tags.items()) for text in pair)
        elif all(name in tags for name in query.group_by):
            key = tuple(tags[name] for name in query.group_by)
        else:
            continue
        groups.setdefault(key, []).append((tags, read))
    results = []
    for _, members in sorted(groups.items()):
        keys = sorted({name for tags, _ in members for name in tags})
        values = {name: {tags[name] for tags, _ in members if name in tags} for name in keys}
        common = {name: min(values[name]) for name in keys if len(values[name]) == 1}
        views = [_view(query, points, first_s * 1000, until_s * 1000) for _, points in members]
        dps = _aggregated(query, views)
        shown = [point for point in dps if query.start_ms <= point[0] <= query.end_ms]
        results.append((common, [name for name in keys if name not in common], shown))
    return results


def _scanned(query: PlainQuery) -> tuple[int, int]:
    """The hours that are read, in s."""
    start, end = query.start_ms // 1000, query.end_ms // 1000 + 1
    length = query.interval_ms
    if length:
        start -= (start * 1000 % length) // 1000
        end += (length - end * 1000 % length) // 1000
    elif end % HOUR_S == 0:
        end += HOUR_S
    while start % HOUR_S:
        start -= 1
    while end % HOUR_S:
        end += 1
    return start, end


def _view(query: PlainQuery, points: Dps, first_ms: int, until_ms: int) -> tuple[Number | None, Dps]:
    """(the rate before the first point, the points) of a series as they are aggregated."""
    if query.downsample:
        points = _downsampled(query, points, first_ms, until_ms)
    if not query.is_rate:
        return None, [point for point in points if point[0] >= first_ms]
    rates: Dps = []
    before: tuple[int, Number] = (0, 0)
    for time, value in points:
        difference: Number = value - before[1]
        if isinstance(value, int) and isinstance(before[1], int):
            difference = _long(value - before[1])
        if query.is_counter and difference < 0:
            if not query.drops_resets:
                rolled: Number = float(query.counter_max) - before[1] + value
                if isinstance(value, int) and isinstance(before[1], int):
                    rolled = _long(query.counter_max - before[1] + value)
                rate = rolled / ((time - before[0]) / 1000)
                rates.append((time, 0.0 if 0 < query.reset_value < rate else rate))
        else:
            rates.append((time, difference / ((time - before[0]) / 1000)))
        before = time, value
    rates = [rate for rate in rates if rate[0] >= first_ms]
    return (rates[0][1] if rates else None), rates[1:]


def _downsampled(query: PlainQuery, points: Dps, first_ms: int, until_ms: int) -> Dps:
    assert query.downsample
    count, unit, function, fill, zone = query.downsample
    starts = []
    if zone is None:
        length = query.interval_ms
        start = first_ms // length * length
        while start < until_ms + length:
            starts.append(start)
            start += length
    else:
        starts = _calendar(count, unit, zone, first_ms, until_ms)
    values: dict[int, list[float]] = {}
    whole = [start for start in starts if start >= first_ms]
    for time, value in points:
        reached = [start for start in whole if start <= time]
        if reached:
            values.setdefault(reached[-1], []).append(float(value))
    found = {start: fold_floats(function, numbers) for start, numbers in values.items()}
    if fill == "none":
        return sorted(found.items())
    end = max(start for start in starts if start <= until_ms)
    empty = 0.0 if fill == "zero" else math.nan
    return [(start, found.get(start, empty)) for start in starts if start < end]


def _calendar(count: int, unit: str, zone: str, first_ms: int, until_ms: int) -> list[int]:
    """The starts of intervals around a range: by hours from midnight, or by days."""
    where = zoneinfo.ZoneInfo(zone)
    day = datetime.datetime.fromtimestamp(first_ms / 1000, where).date() - datetime.timedelta(days=40)
    starts = []
    while True:
        midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=where).timestamp() * 1000
        if midnight > until_ms + 90_000_000:
            break
        day += datetime.timedelta(days=1)
        if unit == "d":
            assert count == 1
            starts.append(int(midnight))
            continue
        after = datetime.datetime(day.year, day.month, day.day, tzinfo=where).timestamp() * 1000
        starts += range(int(midnight), int(after), count * UNIT_MS[unit])
    before = [start for start in starts if start <= first_ms]
    return [start for start in starts if start >= before[-1]]


def _aggregated(query: PlainQuery, views: Sequence[tuple[Number | None, Dps]]) -> Dps:
    """One value for each time of any member."""
    if query.aggregator == "none":
        return views[0][1]
    dps: Dps = []
    for time in sorted({time for _, points in views for time, _ in points}):
        sampled = []
        is_integer = True
        for before, points in views:
            past = [point for point in points if point[0] <= time]
            coming = [point for point in points if point[0] > time]
            near = past[-1:] + coming[:1]
            if not points or time > points[-1][0]:
                continue
            is_integer = is_integer and all(isinstance(value, int) for _, value in near)
            if past:
                sampled.append((past[-1], coming[0] if coming else None))
            elif before is not None:
                sampled.append(((time, before), None))
        is_integer = is_integer and not query.is_rate
        samples = [_sample(query, time, current, following, is_integer) for current, following in sampled]
        there = [sample for sample in samples if sample is not None]
        fold = fold_integers if is_integer else fold_floats
        dps.append((time, fold(query.aggregator, there)))
    return dps


def _sample(
    query: PlainQuery,
    time: int,
    current: tuple[int, Number],
    following: tuple[int, Number] | None,
    is_integer: bool,
) -> Number | None:
    """What a series gives at a time; None if its gaps are ignored."""
    y0 = current[1] if is_integer else float(current[1])
    if current[0] == time or query.is_rate or query.aggregator == "pfsum":
        return y0
    assert following
    if query.aggregator in ("zimsum", "count", "first", "last", "squareSum"):
        return 0 if is_integer else 0.0
    if query.aggregator in ("mimmin", "mimmax"):
        return None
    elapsed, run = time - current[0], following[0] - current[0]
    if is_integer:
        assert isinstance(y0, int)
        assert isinstance(following[1], int)
        return _long(y0 + _truncated(_long(elapsed * _long(following[1] - y0)), run))
    return y0 + elapsed * (float(following[1]) - y0) / run


def fold_integers(name: str, values: Sequence[Number]) -> int:
    """Integers of one time folded as Java's longs."""
    longs = [int(value) for value in values]
    match name:
        case "sum" | "zimsum" | "pfsum":
            return _long(sum(longs))
        case "squareSum":
            return _long(sum(value * value for value in longs))
        case "avg":
            return _truncated(_long(sum(longs)), len(longs))
        case "mult":
            return _long(math.prod(longs))
        case "diff":
            return _long(longs[-1] - longs[0]) if len(longs) > 1 else 0
        case "first" | "last" | "count":
            return {"first": longs[0], "last": longs[-1], "count": len(longs)}[name]
        case "dev":
            return int(_deviation([float(value) for value in longs]))
        case _:
            if name in ("min", "mimmin", "max", "mimmax"):
                return min(longs) if name.endswith("min") else max(longs)
            if name == "median":
                return sorted(longs)[len(longs) // 2]
            return int(_percentile(name, [float(value) for value in longs], name[-2:]))


def fold_floats(name: str, values: Sequence[Number]) -> float:
    """Floats of one time, or of one interval, folded; NaN is no value where a TSD takes it for none."""
    floats = [float(value) for value in values]
    valid = [value for value in floats if not math.isnan(value)]
    match name:
        case "first" | "last":
            return floats[0] if name == "first" else floats[-1]
        case "mult":
            return math.prod(floats)
        case "count":
            return float(len(valid))
    if not valid:
        return math.nan
    match name:
        case "sum" | "zimsum" | "pfsum":
            return sum(valid)
        case "squareSum":
            return sum(value * value for value in valid)
        case "avg":
            return sum(valid) / len(valid)
        case "diff":
            at = next(number for number, value in enumerate(floats) if not math.isnan(value))
            return 0.0 if at == len(floats) - 1 else floats[-1] - floats[at]
        case "dev":
            return _deviation(valid)
        case "min" | "mimmin" | "max" | "mimmax":
            return min(valid) if name.endswith("min") else max(valid)
        case "median":
            return sorted(valid)[len(valid) // 2]
    return _percentile(name, valid, "")


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _percentile(name: str, values: Sequence[float], kind: str) -> float:
    """By R's types: 3 takes the nearest value, 7 lies between; else as Excel's PERCENTILE.EXC."""
    digits = "".join(character for character in name.partition("r")[0] if character.isdigit())
    share = float(digits[:2] + "." + (digits[2:] or "0")) / 100
    ordered, count = sorted(values), len(values)
    if kind == "r3":
        position = 0.0 if share <= 0.5 / count else float(round(count * share))
    elif kind == "r7":
        position = 1 + (count - 1) * share
    else:
        position = (count + 1) * share
    if position < 1:
        return ordered[0]
    if position >= count:
        return ordered[-1]
    lower = math.floor(position)
    return ordered[lower - 1] + (position - lower) * (ordered[lower] - ordered[lower - 1])


def _long(value: int) -> int:
    """A number as a long of Java holds it."""
    return (value + 2**63) % 2**64 - 2**63


def _truncated(numerator: int, divisor: int) -> int:
    return abs(numerator) // divisor * (1 if numerator >= 0 else -1)
