"""What has the most series: metrics, tag keys and tag values, and how many of their series are new."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from timebeam.schema.core.points import Series


@dataclasses.dataclass(frozen=True, slots=True)
class Rank:
    """How much of one thing there is.

    Attributes:
      series: with it.
      new: those of them that were first seen since the time that is asked for.
      values: of a tag key; of a metric, of its tag key with the most; 1 of a tag value.
      largest_key: of a metric, that tag key; else empty.
    """

    name: str
    series: int
    new: int
    values: int
    largest_key: str = ""


class Cardinality:
    """Counts series; memory for all pairs of a metric and one of its tags, and for no series.

    Attributes:
      series, new: all of them, and those first seen since then.
      undated: series of which it is not known when they were first seen.
    """

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self.series = self.new = self.undated = 0
        self._tags: dict[tuple[str, str, str], list[int]] = {}
        self._metrics: dict[str, list[int]] = {}
        self._keys: dict[str, list[int]] = {}

    def add(self, series: Series, first_ms: int | None) -> None:
        """Counts a series, once; `first_ms`: when it was first seen; None if that is unknown."""
        new = int(first_ms is not None and first_ms >= self._since_ms)
        self.series += 1
        self.new += new
        self.undated += first_ms is None
        _add(self._metrics, series.metric, 1, new)
        for key, value in series.tags + series.resources:
            _add(self._tags, (series.metric, key, value), 1, new)
            _add(self._keys, key, 1, new)

    def metrics(self, most: int, *, by_new: bool = False) -> list[Rank]:
        """The metrics with the most series, or new series."""
        values: dict[str, collections.Counter[str]] = {}
        for metric, key, _ in self._tags:
            values.setdefault(metric, collections.Counter())[key] += 1
        ranks = []
        for metric, (series, new) in self._metrics.items():
            keys = values.get(metric, collections.Counter()).most_common(1)
            key, count = keys[0] if keys else ("", 0)
            ranks.append(Rank(metric, series, new, count, key))
        return _top(ranks, most, by_new=by_new)

    def tag_keys(self, most: int, *, by_new: bool = False) -> list[Rank]:
        """The tag keys with the most series, or new series."""
        values = collections.Counter(key for key, _ in self._pairs())
        return _top(
            [Rank(key, series, new, values[key]) for key, (series, new) in self._keys.items()],
            most,
            by_new=by_new,
        )

    def tag_values(self, most: int, *, by_new: bool = False) -> list[Rank]:
        """The tag values with the most series, or new series, as KEY=VALUE."""
        ranks = [Rank(f"{key}={value}", *counts, 1) for (key, value), counts in self._pairs().items()]
        return _top(ranks, most, by_new=by_new)

    def _pairs(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """(series, new series) of each tag of any metric."""
        pairs: dict[tuple[str, str], list[int]] = {}
        for (_, key, value), (series, new) in self._tags.items():
            _add(pairs, (key, value), series, new)
        return {pair: (series, new) for pair, (series, new) in pairs.items()}


def _add(counts: dict, name: object, series: int, new: int) -> None:  # type: ignore[type-arg]
    count = counts.get(name)
    if count is None:
        counts[name] = [series, new]
    else:
        count[0] += series
        count[1] += new


def _top(ranks: list[Rank], most: int, *, by_new: bool) -> list[Rank]:
    """The first ranks: by new series or by series, then by name."""
    ranks.sort(key=lambda rank: (-rank.new, -rank.series, rank.name) if by_new else (-rank.series, rank.name))
    return ranks[:most]
