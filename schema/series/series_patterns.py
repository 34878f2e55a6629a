"""Series and names by pattern, as /api/search/lookup and /api/suggest find them (docs/spec/opentsdb.md §8.5).

In a pattern, `*` matches any text, also none. Case matters. Limits of series are by pattern too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy
    from timebeam.schema.core.points import Series


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesQuery:
    """The series to list.

    Attributes:
      metric: a pattern.
      tags: for each tag key that a series must have, patterns; its value must match one.
    """

    metric: str
    tags: Mapping[str, Sequence[str]]

    @classmethod
    def parse(cls, text: str) -> SeriesQuery:
        """The query of `METRIC` or `METRIC{KEY=V|W,...}`, with patterns.

        >>> SeriesQuery.parse("sys.*{host=web*,dc=lga|sjc}")
        SeriesQuery(metric='sys.*', tags={'host': ('web*',), 'dc': ('lga', 'sjc')})

        Raises:
          ValueError: it is none.
        """
        metric, brace, rest = text.partition("{")
        if not metric or (brace and not rest.endswith("}")):
            raise ValueError(f"{text!r}: give METRIC or METRIC{{KEY=VALUE,...}}, as in sys.*{{host=web*}}")
        return cls(metric, tag_patterns(pair for pair in rest.removesuffix("}").split(",") if pair))

    def takes(self, series: Series) -> bool:
        """Whether a series is to be listed."""
        tags = dict(series.tags)
        return matches(series.metric, [self.metric]) and all(
            key in tags and matches(tags[key], patterns) for key, patterns in self.tags.items()
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A listed series.

    Attributes:
      tsuid: None in a layout without TSUIDs.
      created_s: when its metadata was created, in seconds; None without metadata.
      points: the value of `ts_ctr`; None without this cell.
      seen_ms: when it was first seen, in ms: `created_s`, else the timestamp of `ts_ctr`, or the time of its
        first row; None if that is unknown.
    """

    series: Series
    tsuid: bytes | None = None
    created_s: int | None = None
    points: int | None = None
    seen_ms: int | None = None


def tag_patterns(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The patterns of tag values, by key; raises ValueError if a text is not `k=v`, `k=v|w` or `k=*`."""
    tags: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not key or not equals or not values or key in tags:
            raise ValueError(f"--tag {text}: give each key once, as k=v, k=v|w or k=*")
        tags[key] = tuple(sorted(set(values.split("|"))))
    return tags


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns.

    >>> matches("sys.cpu.user", ["sys.*.user"]), matches("sys.cpu.user", ["cpu*", "sys"])
    (True, False)
    """
    return any(_is_match(name, pattern) for pattern in patterns)


def _is_match(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, in linear time: a regular expression would backtrack at each `*`."""
    start, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, end = rest
    position, until = len(start), len(name) - len(end)
    if position > until or not (name.startswith(start) and name.endswith(end)):
        return False
    for text in middle:
        position = name.find(text, position, until)
        if position < 0:
            return False
        position += len(text)
    return True


def fixed_start(pattern: str) -> str:
    """The text that every name matching a pattern begins with."""
    return pattern.partition("*")[0]


MOST_VALUES = 100_000
"""The tag values of a key that are counted where they have a limit, and the greatest such limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class MetricLimit:
    """A limit of the metrics that match a pattern, such as `app.*=1000`; `1000` is a limit of all metrics."""

    pattern: str
    number: int


def parse_limits(texts: Iterable[str]) -> tuple[MetricLimit, ...]:
    """Reads limits, each `[PATTERN=]N`, or several with commas between them.

    >>> parse_limits(["app.*=1000,5000"])
    (MetricLimit(pattern='app.*', number=1000), MetricLimit(pattern='*', number=5000))

    Raises:
      ValueError: a text is not that.
    """
    parsed = []
    for text in texts:
        for item in text.split(","):
            pattern, equals, number = item.rpartition("=")
            if bool(equals) != bool(pattern) or not (
                number.isascii() and number.isdigit() and len(number) < 19
            ):
                raise ValueError(f"{item[:80]!r} is neither a whole number nor PATTERN=NUMBER")
            parsed.append(MetricLimit(pattern or "*", int(number)))
    return tuple(parsed)


def limit_of(limits: Iterable[MetricLimit], metric: str) -> int | None:
    """The limit of a metric; None for none."""
    return next((limit.number for limit in limits if matches(metric, [limit.pattern])), None)
