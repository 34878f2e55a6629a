"""`timebeam query` against the model: all points of each metric, and downsampled ones by groups.

Only aggregators that do not interpolate: `tests/support/plain/plain_query.py` has the others.
"""

from __future__ import annotations

import collections
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tests.support.commands import timebeam
from tests.system.disagreement import expect
from tests.system.model import Model
from tests.system.steps import DAY_S, HOUR_S, HOURS, METRICS, SERIES, START_S
from tests.system.tables import Tables

Tags: TypeAlias = "tuple[tuple[str, str], ...]"

_WRAPS = 2**62

_FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "count": len,
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
}
_AGGREGATORS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "none": sum,
    "zimsum": sum,
    "mimmin": min,
    "mimmax": max,
}


class Query(NamedTuple):
    """A query of whole hours [start, end) from START_S."""

    metric: str
    start: int
    end: int
    seconds: int
    function: str
    aggregator: str
    group_by: tuple[str, ...]
    tags: tuple[str, ...]

    def names_unknown_to(self, model: Model) -> bool:
        """Whether its filters name a tag key or value that no point has had."""
        for key, _, text in (text.partition("=") for text in self.tags):
            values = [] if text == "*" else text.split("|")
            if key not in model.tag_keys or not model.tag_values.issuperset(values):
                return True
        return False

    def flags(self) -> list[str]:
        """The options of the command."""
        start, end = (START_S + self.start * HOUR_S) * 1000, (START_S + self.end * HOUR_S) * 1000 - 1
        flags = [self.metric, f"--start={start}", f"--end={end}", f"--aggregator={self.aggregator}"]
        flags += [f"--downsample={self.seconds}s-{self.function}"] if self.seconds else []
        flags += [f"--group-by={key}" for key in self.group_by]
        return flags + [f"--tag={tag}" for tag in self.tags]


def check_queries(tables: Tables, model: Model, config: Path, chance: random.Random) -> None:
    """Asserts that queries answer as the model does, through rollups too where they are up to date."""
    for metric in METRICS:
        if not any(SERIES[series][0] == metric for series, _ in model.points):
            continue
        _check(tables, model, Query(metric, 0, HOURS, 0, "", "none", (), ()), [])
        _check(tables, model, _random_query(metric, chance), [])
        query = _random_query(metric, chance)
        if tables.layout == "opentsdb" and model.is_fresh():
            _check(tables, model, query, [f"--rollup-config={config}"])


def _random_query(metric: str, chance: random.Random) -> Query:
    seconds = chance.choice((60, 600, 1800, HOUR_S, 2 * HOUR_S, DAY_S))
    start, end = chance.choice([(0, HOURS), (0, 24), (24, HOURS)])
    return Query(
        metric,
        start,
        end,
        seconds,
        chance.choice(sorted(_FOLDS)),
        chance.choice(sorted(_AGGREGATORS)),
        chance.choice([(), ("host",), ("mode",), ("host", "mode")]),
        chance.choice([(), (), ("host=a",), ("mode=*",), ("host=a|b", "mode=user")]),
    )


def _check(tables: Tables, model: Model, query: Query, flags: list[str]) -> None:
    ran = timebeam("query", *tables.flags, *query.flags(), "--output=json-ms", *flags)
    if tables.has_uids and query.names_unknown_to(model):
        is_unknown = (ran.code, "No such name" in ran.err) == (1, True)
        expect(is_unknown, "query of an unknown name", f"{query.flags()}: {ran}")
        return
    expect(ran.code == 0, "exit code of query", ran)
    answer = {_label(result, query): result["dps"] for result in json.loads(ran.out)}
    expected, scale = expected_answer(model, query)
    for label in sorted({*answer, *expected}):
        numbers, wanted = answer.get(label, {}), expected.get(label, {})
        for time_text in sorted({*numbers, *wanted}):
            number, other = numbers.get(time_text), wanted.get(time_text)
            close = None not in (number, other) and abs(number - other) <= 1e-11 * scale
            if scale >= _WRAPS:  # sums of integers beyond 64 bits
                close = close or (time_text in numbers and time_text in wanted)
            expect(
                number == other or close,
                "query" if not flags else "query through rollups",
                f"{query.flags()} {label} at {time_text}: answered {number}, expected {other}",
            )


def expected_answer(model: Model, query: Query) -> tuple[dict[Any, dict[str, float]], float]:
    """(the numbers by label and time in ms, the largest sum of magnitudes in one of them)."""
    start_ms, end_ms = (START_S + query.start * HOUR_S) * 1000, (START_S + query.end * HOUR_S) * 1000
    series: dict[Tags, dict[int, list[float]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for (number, time_ms), version in model.points.items():
        metric, tags = SERIES[number]
        if metric == query.metric and start_ms <= time_ms < end_ms and _passes(dict(tags), query.tags):
            step = query.seconds * 1000 or 1
            series[tags][time_ms // step * step].append(version.value)
    groups: dict[Any, dict[str, list[float]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    scale = 0.0
    for tags, buckets in series.items():
        label = _group(dict(tags), query)
        if label is None:
            continue
        for time_ms, values in buckets.items():
            value = _FOLDS[query.function](values) if query.seconds else values[0]
            groups[label][str(time_ms)].append(value)
            scale = max(scale, sum(map(abs, values)))
    fold = _AGGREGATORS[query.aggregator]
    answer = {
        label: {time: fold(values) for time, values in times.items()} for label, times in groups.items()
    }
    return answer, scale * len(SERIES)


def _group(tags: Mapping[str, str], query: Query) -> Any:
    """What a series is grouped under; None if it is in no group."""
    if query.aggregator == "none":
        return tuple(sorted(tags.items()))
    if any(key not in tags for key in query.group_by):
        return None
    return tuple((key, tags[key]) for key in sorted(query.group_by))


def _label(result: Mapping[str, Any], query: Query) -> Any:
    """The same of an answer."""
    return _group(result["tags"], query)


def _passes(tags: Mapping[str, str], filters: Sequence[str]) -> bool:
    for text in filters:
        key, _, values = text.partition("=")
        if key not in tags or (values != "*" and tags[key] not in values.split("|")):
            return False
    return True
