"""`timebeam.read_frame`: the answer to a query as a pandas DataFrame or a pyarrow Table, without Beam."""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timebeam.pipelines.commands.ingest_and_query import SELECTION
from timebeam.pipelines.options.catalogue import chosen
from timebeam.pipelines.options.command_line import CommandParser
from timebeam.pipelines.options.profiles import setting_text
from timebeam.pipelines.options.use_settings import use_stored
from timebeam.pipelines.options.values import readable_of, target_of
from timebeam.pipelines.query.query_points import PointQuery
from timebeam.schema.bits.arrays import to_floats
from timebeam.schema.core.selection import UnknownNameError
from timebeam.schema.query.answer import Result
from timebeam.transforms.read.find_series import why_nothing

Time = str | int | datetime.datetime
"""As `timebeam query` takes it (`1h-ago`, `2026-11-21`, s or ms since 1970); or a datetime with a zone."""

_WARNED = 10
_COLUMNS = ("metric", "time", "value")


def read_frame(
    metric: str,
    *,
    start: Time,
    end: Time = "now",
    tags: Mapping[str, str | Sequence[str]] | None = None,
    aggregator: str = "none",
    group_by: str | Sequence[str] = (),
    arrow: bool = False,
    **options: str | float | os.PathLike[str] | None,
) -> Any:
    """The points of a metric in a time range, selected and aggregated as by `timebeam query`.

    Args:
      start, end: first and last time, both inclusive.
      tags: tag keys that a series must have; for each a value, several, or `*` for any.
      aggregator: of the series of a group, as `sum`; `none` keeps all series.
      group_by: a tag key, or several; one group per combination of their values.
      arrow: return a pyarrow Table, which needs no pandas.
      options: other options of `timebeam query` that select points, by their names: `layout`, `tables`,
        `downsample`, `timezone`, `rollup_config`, `full_scan`, `table_prefix`, `project`, `profile`, `config`
        ... What is not given is taken from variables, from timebeam.toml, and from the stored settings of the
        tables.

    Returns:
      A DataFrame, or Table, with the columns `metric`, one per tag key, `time` (in ms) and `value`
      (int64 if all values are integers, else float64); a row per point, the points of a series together, in
      order of time. A tag key `metric`, `time` or `value` gets `tag:` before it. Rows that cannot be decoded
      are left out, with a warning. The times are in UTC, or in the zone of the option `timezone`.

    Raises:
      ValueError: an argument is wrong, or contradicts the stored settings.
      LookupError: a metric, tag key or tag value is unknown; the message has similar names.
      BigtableError: a table does not exist.
      StoppedError: `max_seconds` are over.
      ImportError: pandas is not installed, and `arrow` is false.
    """
    _check_types(metric, tags, group_by)
    if not arrow:
        _need_pandas()
    given = {"start": _text(start), "end": _text(end), "aggregator": aggregator, **options}
    words = [f"--{name}={_text(value)}" for name, value in given.items() if value is not None]
    words += [f"--tag={key}={_values(values)}" for key, values in (tags or {}).items()]
    words += [f"--group-by={key}" for key in ((group_by,) if isinstance(group_by, str) else group_by)]
    parsed = CommandParser(chosen("query", SELECTION)).parse_args(words)
    parsed.metric = metric
    use_stored(parsed)
    layout = readable_of(parsed)
    try:
        evaluated = PointQuery.of(parsed, layout).evaluate(full_scan=parsed.full_scan, with_annotations=False)
    except UnknownNameError as error:
        raise LookupError(error.told()) from None
    for line in evaluated.damage[:_WARNED]:
        warnings.warn(f"skipped: {line}", stacklevel=2)
    if not evaluated.series:
        warnings.warn(f"nothing found: {why_nothing(target_of(parsed), layout)}", stacklevel=2)
    table = _table(evaluated.results, parsed.timezone)
    return table if arrow else table.to_pandas()


def _check_types(metric: object, tags: object, group_by: object) -> None:
    """Raises ValueError for arguments that cannot be options."""
    if not isinstance(metric, str):
        raise ValueError(
            f"metric is {metric!r}: give the name of one metric; for several, "
            "pandas.concat([read_frame(name, ...) for name in names])"
        )
    if tags is not None and not isinstance(tags, Mapping):
        raise ValueError(f"tags is {tags!r}: give a dict, as {{'host': 'web01'}}")
    given = {f"tags[{key!r}]": values for key, values in (tags or {}).items()} | {"group_by": group_by}
    for name, texts in given.items():
        is_list = isinstance(texts, Iterable) and not isinstance(texts, bytes)
        if not is_list or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} is {texts!r}: give a text, or a list of texts")


def _need_pandas() -> None:
    """Raises ImportError with the way out if pandas is not installed."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise ImportError("read_frame needs pandas: pip install -e '.[pandas]', or give arrow=True") from None


def _text(value: object) -> str:
    """An argument as an option takes it; raises ValueError for a datetime without a time zone."""
    if not isinstance(value, datetime.datetime):
        return setting_text(value)
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone: give one, as datetime.UTC")
    return f"{int(value.timestamp() * 1000)}ms"


def _values(values: str | Sequence[str]) -> str:
    """The values that a tag may have, as `--tag` takes them."""
    texts = [values] if isinstance(values, str) else list(values)
    joined = "|".join(texts)
    if "*" in texts:
        return "*"
    return f"literal_or({joined})" if {"*", "("} & {*joined} else joined


def _table(results: Sequence[Result], zone: str) -> pa.Table:
    """The points of all results in columns; times are shown in a time zone."""
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
