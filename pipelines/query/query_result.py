"""The answer to a query as a table: of pyarrow, pandas or polars, or a dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from timebeam.schema.bits.arrays import to_floats
from timebeam.schema.core.points import Series
from timebeam.schema.query.answer import Result

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

_COLUMNS = ("metric", "time", "value")


@dataclasses.dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a query: points of groups of series.

    A table has the columns `metric`, one per tag key, `time` (in ms) and `value` (int64 if all values are
    integers, else float64), and a row per point, the points of a series together, in order of time. A tag key
    `metric`, `time` or `value` gets `tag:` before it. A tag on which the series of a group do not agree is
    null. Points take about 100 bytes each.

    >>> import numpy as np
    >>> times_ms, values = np.array([1356998400000, 1356998460000]), np.array([1, 2])
    >>> result = QueryResult([Result("load", {"host": "a"}, [], times_ms, values)])
    >>> result.to_dict()
    {Series(metric='load', tags=(('host', 'a'),), resources=()): {1356998400000: 1, 1356998460000: 2}}
    >>> result.to_arrow().column_names, result.to_arrow()["value"].to_pylist()
    (['metric', 'host', 'time', 'value'], [1, 2])

    Attributes:
      groups: the answer for each group.
      timezone: of the times in tables.
    """

    groups: Sequence[Result]
    timezone: str = "UTC"

    def to_arrow(self) -> pa.Table:
        """A table of pyarrow; `time` is timestamp[ms] in the time zone."""
        return _table(self.groups, self.timezone)

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame of pandas; raises ImportError if it is not installed."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas, or use to_arrow") from None
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """A DataFrame of polars, out of the table of pyarrow; raises ImportError if it is not installed."""
        try:
            import polars
        except ImportError:
            raise ImportError("to_polars needs polars: pip install polars, or use to_arrow") from None
        return polars.DataFrame(self.to_arrow())

    def to_dict(self) -> dict[Series, dict[int, int | float]]:
        """The values by time in ms, by the metric and tags of each group."""
        return {
            Series.of(group.metric, group.tags): dict(
                zip(group.times_ms.tolist(), group.values.tolist(), strict=True)
            )
            for group in self.groups
        }


def _table(results: Sequence[Result], zone: str) -> pa.Table:
    """The points of all results in columns; times are shown in a time zone."""
    import pyarrow as pa

    lengths = [len(result.times_ms) for result in results]
    owners = pa.array(np.repeat(np.arange(len(results), dtype=np.int32), lengths))
    keys = sorted({key for result in results for key in result.tags})

    def column(texts: Sequence[str | None]) -> pa.Array:
        return pa.array(texts, pa.string()).take(owners)

    columns = {"metric": column([result.metric for result in results])}
    for key in keys:
        name = f"tag:{key}" if key in _COLUMNS else key
        columns[name] = column([result.tags.get(key) for result in results])
    times_ms = np.concatenate([np.zeros(0, np.int64), *(result.times_ms for result in results)])
    columns["time"] = pa.array(times_ms).cast(pa.timestamp("ms", zone))
    if results and all(isinstance(result.values, np.ndarray) for result in results):
        values = np.concatenate([np.asarray(result.values) for result in results])  # of integers alone: int64
    else:
        values = np.concatenate([np.zeros(0), *(to_floats(result.values) for result in results)])
    columns["value"] = pa.array(values)
    return pa.table(columns)
