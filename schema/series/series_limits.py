"""Limits on new series, the counts that they are compared with, and what has the most series.

Of each metric: the number of its series, as a HyperLogLog sketch (Apache DataSketches: exact up to a few
hundred series, then with a standard error of 1.6 %), and hashes of the values of each tag key (exact).

| table | row key | family | qualifier | value |
|---|---|---|---|---|
| `PREFIXtimebeam-series` | `all` | `count` | `series` | sketch of the series of all metrics |
| | `m` metric | `count` | `series` | sketch of the metric's series |
| | `m` metric | `count` | `v` tag key | BLAKE2b-64 of each of its values, ascending |

Cell timestamps are revisions, 1 ms each: workers add to a cell by compare-and-set.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, TableSpec
from timebeam.schema.series.series_patterns import MetricLimit

FAMILY = "count"
ALL_ROW = b"all"

SHOWN_VALUES = 256
"""The tag values of a key that are counted where they have no limit: messages name the key with the most."""

MOST_KEYS = 100
"""The tag keys of a metric whose values are counted; a limit of values rejects new series with more."""

_SERIES, _VALUES = b"series", b"v"
_LOG_REGISTERS = 12
_HASH_BYTES = 8
_LONGEST_METRIC = 4000


def counts_table(prefix: str) -> TableSpec:
    """The table of counts."""
    return TableSpec(f"{prefix}timebeam-series", {FAMILY: 1}, holds_points=False)


def metric_row(metric: str) -> bytes:
    """The row key of a metric; of a very long one a hash, which Bigtable's limit on keys demands."""
    raw = metric.encode(errors="surrogatepass")
    return b"m" + (raw if len(raw) <= _LONGEST_METRIC else hashlib.blake2b(raw).digest())


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesLimits:
    """The limits of an ingest; of a list of limits the first whose pattern matches the metric applies.

    Attributes:
      new_series: new series of a metric in a minute of arrival, of each worker process.
      series: series of a metric.
      tag_values: values of a tag key in a metric.
      all_series: series of all metrics; None for no limit.
    """

    new_series: Sequence[MetricLimit] = ()
    series: Sequence[MetricLimit] = ()
    tag_values: Sequence[MetricLimit] = ()
    all_series: int | None = None

    def __bool__(self) -> bool:
        return bool(self.new_series or self.series or self.tag_values or self.all_series is not None)


def hash_of(text: str) -> int:
    """64 bits of a name."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "little")


class SeriesCount:
    """How many series a metric has, or all metrics have, and the values of its tag keys.

    Attributes:
      values: the hashes of the values of each tag key; of `MOST_KEYS` keys.
    """

    def __init__(self, most_values: int = SHOWN_VALUES) -> None:
        """`most_values`: of a tag key; more are not noted."""
        from datasketches import hll_sketch, tgt_hll_type  # takes 0.1 s, and is needed only with limits

        self._sketch: Any = hll_sketch(_LOG_REGISTERS, tgt_hll_type.HLL_8)
        self._most_values = most_values
        self.values: dict[str, set[int]] = {}

    @property
    def series(self) -> int:
        """The estimated number of series."""
        return round(self._sketch.get_estimate())

    def add(self, series: Series, *, values: bool = True) -> None:
        """Adds a series; adding it again changes nothing."""
        self._sketch.update(str(hash_of(str(series))))
        for key, value in series.tags + series.resources if values else ():
            noted = self._noted(key)
            if len(noted) < self._most_values:
                noted.add(hash_of(value))

    def merge(self, cells: Iterable[Cell]) -> None:
        """Adds what the cells of a row have counted.

        Raises:
          ValueError: a cell is corrupt.
        """
        from datasketches import hll_union, tgt_hll_type

        for cell in cells:
            if cell.qualifier == _SERIES:
                union = hll_union(_LOG_REGISTERS)
                union.update(_sketch(cell.value))
                union.update(self._sketch)
                self._sketch = union.get_result(tgt_hll_type.HLL_8)
            elif cell.qualifier.startswith(_VALUES):
                if len(cell.value) % _HASH_BYTES:
                    raise ValueError(f"corrupt count of tag values: {len(cell.value)} bytes")
                noted = self._noted(cell.qualifier[len(_VALUES) :].decode())
                noted.update(np.frombuffer(cell.value, "<u8").tolist())

    def _noted(self, key: str) -> set[int]:
        """The hashes of the values of a tag key, to be added to; beyond `MOST_KEYS` they are not kept."""
        return self.values.setdefault(key, set()) if self.counts_key(key) else set()

    def counts_key(self, key: str) -> bool:
        """Whether the values of a tag key are counted, or would be."""
        return key in self.values or len(self.values) < MOST_KEYS

    def cells(self, old: Iterable[Cell]) -> list[tuple[Cell | None, Cell]]:
        """(the cell of the row, what replaces it) of each cell that has changed; call it after `merge`."""
        columns = {_SERIES: bytes(self._sketch.serialize_compact())}
        for key, hashes in self.values.items():
            columns[_VALUES + key.encode()] = np.array(sorted(hashes), "<u8").tobytes()
        stored = {cell.qualifier: cell for cell in old if cell.family == FAMILY}
        changed = []
        for qualifier, value in columns.items():
            before = stored.get(qualifier)
            if qualifier == _SERIES and before is not None:  # equal sketches may have other bytes
                is_same = _sketch(before.value).get_estimate() == self._sketch.get_estimate()
            else:
                is_same = before is not None and before.value == value
            if not is_same:
                revision = 1 if before is None else before.timestamp_ms + 1
                changed.append((before, Cell(FAMILY, qualifier, revision, value)))
        return changed

    def largest_key(self) -> str:
        """The tag key with the most values, as a text for messages; empty without tags."""
        if not self.values:
            return ""
        key, hashes = max(self.values.items(), key=lambda pair: len(pair[1]))
        more = " or more" if len(hashes) >= self._most_values else ""
        return f"tag key {key} has {len(hashes):,}{more} values"


def _sketch(raw: bytes) -> Any:
    """A stored sketch; raises ValueError if it is corrupt."""
    from datasketches import hll_sketch

    try:
        return hll_sketch.deserialize(raw)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"corrupt count of series: {error}") from error


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
    count = counts.setdefault(name, [0, 0])
    count[0] += series
    count[1] += new


def _top(ranks: list[Rank], most: int, *, by_new: bool) -> list[Rank]:
    """The first ranks: by new series or by series, then by name."""
    ranks.sort(key=lambda rank: (-rank.new, -rank.series, rank.name) if by_new else (-rank.series, rank.name))
    return ranks[:most]
