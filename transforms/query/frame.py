"""`timebeam.read_frame`: the answer to a query as a pandas DataFrame or a pyarrow Table, without Beam."""

from __future__ import annotations

import datetime
import difflib
import functools
import os
import pathlib
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.api_core import exceptions

from timebeam.schema.common.option import Option, OptionKind
from timebeam.schema.common.times import parse_time
from timebeam.schema.declared.language.loader import load
from timebeam.schema.declared.layout import NAME as DECLARED
from timebeam.schema.declared.layout import DeclaredTables
from timebeam.schema.layouts import LAYOUTS, ReadableLayout, Selection, UnknownNameError
from timebeam.schema.query.answer import Result, answer
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.numbers import to_floats
from timebeam.schema.query.question import Question
from timebeam.transforms.bigtable.tables import check_tables, recent_table_names
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, NoPermissionError, Target
from timebeam.transforms.query.points import why_nothing
from timebeam.transforms.query.rollups import find_points
from timebeam.transforms.readers.table_reader import read_rows

Time = str | int | datetime.datetime
"""As `timebeam query` takes it (`1h-ago`, `2026-11-21`, s or ms since 1970); or a datetime with a zone."""

_WARNED = 10
_COLUMNS = ("metric", "time", "value")
_SETTINGS_VERSION = b"1"


def read_frame(
    metric: str,
    *,
    layout: str,
    start: Time,
    end: Time = "now",
    tags: Mapping[str, str | Sequence[str]] | None = None,
    aggregator: str = "none",
    downsample: str | None = None,
    group_by: str | Sequence[str] = (),
    tables: str | os.PathLike[str] | None = None,
    full_scan: bool = False,
    arrow: bool = False,
    project: str | None = None,
    instance: str | None = None,
    app_profile: str | None = None,
    **options: object,
) -> Any:
    """The points of a metric in a time range, selected and aggregated as by `timebeam query`.

    Args:
      layout: its name, as `opentsdb`; `table` for declared tables.
      start, end: first and last time, both inclusive.
      tags: tag keys that a series must have; for each a value, several, or `*` for any.
      aggregator: of the series of a group, as `sum`; `none` keeps all series.
      downsample: one value per interval, as `1m-avg`.
      group_by: a tag key, or several; one group per combination of their values.
      tables: the file that declares the tables, for layout `table`.
      full_scan: read all rows of a declared table if no key range serves the query.
      arrow: return a pyarrow Table, which needs no pandas.
      project, instance, app_profile: the Bigtable instance; not needed with an emulator.
      options: of the layout, as `table_prefix` or `salt_width`. What is not given is taken from the
        stored settings of the tables.

    Returns:
      A DataFrame, or Table, with the columns `metric`, one per tag key, `time` (UTC, in ms) and `value`
      (int64 if all values are integers, else float64); a row per point, the points of a series together, in
      order of time. A tag key `metric`, `time` or `value` gets `tag:` before it. Rows that cannot be decoded
      are left out, with a warning.

    Raises:
      ValueError: an argument is wrong, or contradicts the stored settings.
      LookupError: a metric, tag key or tag value is unknown; the message has similar names.
      BigtableError: a table does not exist.
      ImportError: pandas is not installed, and `arrow` is false.
    """
    if not arrow:
        _need_pandas()
    target = _target(project, instance, app_profile)
    readable = _layout(target, layout, tables, options)
    now_ms = int(time.time() * 1000)
    start_ms, end_ms = _time_ms(start, now_ms), _time_ms(end, now_ms)
    downsampling = Downsampling.parse(downsample) if downsample else None
    keys = (group_by,) if isinstance(group_by, str) else tuple(group_by)
    question = Question(metric, _filters(tags or {}), keys, aggregator, downsampling, start_ms, end_ms)
    scanned = readable.full_scan(Selection(metric, question.tags, start_ms, end_ms))
    if scanned and not full_scan:
        raise ValueError(f"{scanned}: give tags for these, or full_scan=True")
    check_tables(target, readable.tables(), f"timebeam tables create --layout {layout}")
    try:
        result = find_points(target, readable, question)
    except UnknownNameError as error:
        near = " or ".join(map(repr, error.near()))
        raise LookupError(f"{error.args[0]}{f'; did you mean {near}?' if near else ''}") from None
    for line in result.damage[:_WARNED]:
        warnings.warn(f"skipped: {line}", stacklevel=2)
    if not result.series:
        warnings.warn(f"nothing found: {why_nothing(target, readable)}", stacklevel=2)
    table = _table(answer(question, result.series))
    return table if arrow else table.to_pandas()


def _need_pandas() -> None:
    """Raises ImportError with the way out if pandas is not installed."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise ImportError("read_frame needs pandas: pip install -e '.[pandas]', or give arrow=True") from None


def _target(project: str | None, instance: str | None, app_profile: str | None) -> Target:
    """The Bigtable instance; `local` with an emulator.

    Raises:
      ValueError: none is named.
    """
    local = "local" if os.environ.get(EMULATOR_VARIABLE) else None
    project, instance = project or local, instance or local
    if project is None or instance is None:
        raise ValueError(
            f"give project and instance, or set {EMULATOR_VARIABLE} as `timebeam emulator` prints"
        )
    return Target(project, instance, app_profile)


def _layout(
    target: Target, name: str, tables: str | os.PathLike[str] | None, options: Mapping[str, object]
) -> ReadableLayout:
    """The layout with its options, completed by the stored settings.

    Raises:
      ValueError: there is no such layout or option, or a value contradicts what is stored.
    """
    prefix = str(options.get("table_prefix", ""))
    if name == DECLARED:
        if tables is None:
            raise ValueError(f"layout {DECLARED} needs tables=FILE, the file that declares the tables")
        _check_options(options, {"table_prefix"}, name)
        declaration = load(pathlib.Path(tables).read_text(encoding="utf-8"), os.fspath(tables))
        layout = DeclaredTables(declaration.with_prefix(prefix))
        if not any(spec.holds_points for spec in layout.tables()):
            raise ValueError(f"{tables} declares no points: add a section [layout.NAME.points]")
        return layout.with_existing(functools.partial(recent_table_names, target))
    if name not in LAYOUTS:
        raise ValueError(f"no layout {name!r}: choose {', '.join((*LAYOUTS, DECLARED))}")
    declared = {option.name: option for option in LAYOUTS[name].declared_options}
    _check_options(options, {"table_prefix", *declared}, name)
    stored = _stored_settings(target, f"{prefix}timebeam", name, declared)
    for option, value in options.items():
        if option in stored and stored[option] != value:
            raise ValueError(f"{option}={value!r} contradicts the stored settings: {stored[option]!r}")
    return LAYOUTS[name].from_options({**stored, **options})


def _check_options(options: Mapping[str, object], known: set[str], layout: str) -> None:
    """Raises ValueError for an option that the layout does not have."""
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"layout {layout} has no option {name!r}{hint}")


def _stored_settings(
    target: Target, table: str, layout: str, declared: Mapping[str, Option]
) -> dict[str, object]:
    """The stored settings of a layout; none if there is no such table.

    Raises:
      ValueError: a newer timebeam stored them.
    """
    try:
        row = read_rows(target, table, [layout.encode()]).get(layout.encode())
    except exceptions.NotFound:
        return {}
    except exceptions.PermissionDenied as error:
        raise NoPermissionError(
            f"no permission to read the stored settings, table {table}: {error.message}"
        ) from error
    values = {cell.qualifier.decode(): cell.value for cell in row.cells} if row else {}
    if values.pop("version", _SETTINGS_VERSION) != _SETTINGS_VERSION:
        raise ValueError(f"a newer timebeam stored the settings in table {table}: upgrade this one")
    return {
        name: _setting(declared[name], value.decode()) for name, value in values.items() if name in declared
    }


def _setting(option: Option, text: str) -> object:
    """The value that a stored text means."""
    if option.kind is OptionKind.WHOLE:
        return int(text)
    return text == "true" if option.kind is OptionKind.FLAG else text


def _filters(tags: Mapping[str, str | Sequence[str]]) -> dict[str, frozenset[str]]:
    """For each tag key the values that a series may have; none for `*`.

    Raises:
      ValueError: a tag key has no value.
    """
    filters = {key: {values} if isinstance(values, str) else {*values} for key, values in tags.items()}
    for key, values in filters.items():
        if not values:
            raise ValueError(f"tags: no value for {key}: give one, several, or * for any")
    return {key: frozenset() if "*" in values else frozenset(values) for key, values in filters.items()}


def _time_ms(moment: Time, now_ms: int) -> int:
    """A time in ms since 1970.

    Raises:
      ValueError: it is none, or a datetime without a time zone.
    """
    if not isinstance(moment, datetime.datetime):
        return parse_time(str(moment), now_ms)
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: give one, as datetime.UTC")
    return int(moment.timestamp() * 1000)


def _table(results: Sequence[Result]) -> pa.Table:
    """The points of all results in columns."""
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
    columns["time"] = pa.array(times_ms).cast(pa.timestamp("ms", "UTC"))
    if results and all(isinstance(result.values, np.ndarray) for result in results):
        values = np.concatenate([np.asarray(result.values) for result in results])  # of integers alone: int64
    else:
        values = np.concatenate([np.zeros(0), *(to_floats(result.values) for result in results)])
    columns["value"] = pa.array(values)
    return pa.table(columns)
