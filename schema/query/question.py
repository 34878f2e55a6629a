"""What a query asks: which series, in which groups, and what of their points."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from timebeam.schema.points import Series
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.query.downsample import Downsampling, Fill, QueryRange
from timebeam.schema.query.filters import LITERAL_OR, TagFilter
from timebeam.schema.query.rate import RateOptions

NONE = "none"
"""The aggregator that keeps every series apart."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A query of one metric.

    Attributes:
      tags: for each tag key that a series must have, the values it may have; empty for any.
      group_by: tag keys; the series with equal values for them form a group, and a series that
        lacks one of them is in no group. Aggregator none ignores this.
      aggregator: a key of `AGGREGATORS`, or `none`.
      start_ms, end_ms: first and last time that is shown, both inclusive.
      rate: None for the values themselves.
      filters: of tag values, beside `tags`, which holds their keys too (`literals_of`).
      explicit_tags: whether a series may have no other tag keys than those of `tags`.
      series: the only series that pass; None for all of the metric.
    """

    metric: str
    tags: Mapping[str, frozenset[str]]
    group_by: Sequence[str]
    aggregator: str
    downsampling: Downsampling | None
    start_ms: int
    end_ms: int
    rate: RateOptions | None = None
    filters: Sequence[TagFilter] = ()
    explicit_tags: bool = False
    series: frozenset[Series] | None = None

    def __post_init__(self) -> None:
        """Checks the query.

        Raises:
          ValueError: unknown aggregator, or a range that ends before it starts.
        """
        if self.aggregator != NONE and self.aggregator not in AGGREGATORS:
            names = ", ".join([*AGGREGATORS, NONE])
            raise ValueError(f"no aggregator {self.aggregator!r}; choose from {names}")
        if self.end_ms < self.start_ms:
            raise ValueError(f"the range ends, at {self.end_ms} ms, before it starts, at {self.start_ms} ms")

    @property
    def range(self) -> QueryRange:
        """The points that the answer is made of."""
        return QueryRange.of(self.downsampling, self.start_ms, self.end_ms)

    @property
    def filled_count(self) -> int:
        """About how many intervals each series is filled to; 0 without a fill."""
        how = self.downsampling
        if how is None or how.fill is Fill.NONE or how.interval_ms is None:
            return 0
        return (self.range.until_ms - self.range.first_ms) // how.interval_ms

    @property
    def filters_by_name(self) -> bool:
        """Whether there is more to pass than `tags`, which a layout looks for by itself."""
        return bool(self.series is not None or self.explicit_tags or self._by_name)

    def passes(self, series: Series) -> bool:
        """Whether a series of the metric that has `tags` passes everything else."""
        if self.series is not None and series not in self.series:
            return False
        tags = dict(series.tags)
        if self.explicit_tags and tags.keys() != self.tags.keys():
            return False
        return all(item.key in tags and item.passes(tags[item.key]) for item in self._by_name)

    @property
    def _by_name(self) -> Sequence[TagFilter]:
        """The filters that `tags` does not stand for."""
        return [item for item in self.filters if item.kind != LITERAL_OR]
