"""Rollups written down a second time, as plain loops over Python numbers: what the tests compare with.

From docs/spec/opentsdb.md §7; slow, and without numpy on purpose.
"""

from __future__ import annotations

import calendar
import datetime
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from tests.schema.stores.plain_opentsdb import Number, number
from timebeam.schema.core.points import Series

Point = tuple[Series, int, float]
"""Series, time in ms, an int or a float."""
Summary = Mapping[str, Number]
"""The number of each aggregator."""


def plain_sum(values: Iterable[float]) -> float:
    """The exact sum, rounded once; an int if all are and 64 bits hold it."""
    values = list(values)
    if all(isinstance(value, float) for value in values):
        return math.fsum(values) + 0.0
    if any(isinstance(value, float) for value in values):
        return float(sum(map(Fraction, values)))
    whole = sum(values)
    return whole if -(2**63) <= whole < 2**63 else float(whole)


def plain_summaries(points: Iterable[Point], interval_s: int) -> dict[tuple[Series, int], Summary]:
    """By series and start of the interval, in ms, what there is to know of its points."""
    members: dict[tuple[Series, int], list[tuple[int, float]]] = defaultdict(list)
    for series, time_ms, value in points:
        members[series, time_ms - time_ms % (interval_s * 1000)].append((time_ms, value))
    return {bucket: plain_summary(found) for bucket, found in members.items()}


def plain_summary(found: list[tuple[int, float]]) -> Summary:
    """The summary of points (time in ms, value) of one interval."""
    values = [value for _, value in found]
    return {
        "sum": number(plain_sum(values)),
        "count": number(len(values)),
        "min": plain_extreme(values, min),
        "max": plain_extreme(values, max),
        "first": number(min(found, key=lambda point: point[0])[1]),
        "last": number(max(found, key=lambda point: point[0])[1]),
    }


def plain_extreme(values, choose) -> Number:
    """Least or greatest (Python compares ints and floats exactly); of equal ones an int, and never -0.0."""
    best = choose(values)
    whole = [value for value in values if value == best and isinstance(value, int)]
    return number(whole[0] if whole else best + 0.0)


def plain_base(time_s: int, count: int, unit: str) -> int:
    """The base time of the row that a time is in."""
    if unit == "h":
        return time_s // (3600 * count) * (3600 * count)
    moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    month = moment.month if unit in "nd" else 1
    day = moment.day if unit == "d" else 1
    return calendar.timegm((moment.year, month, day, 0, 0, 0))
