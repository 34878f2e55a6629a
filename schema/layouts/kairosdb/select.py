"""Selects the rows of a query: keys from `row_keys`, rows from `data_points` (docs/spec/kairosdb.md §6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timebeam.schema.layouts.kairosdb import index, keys
from timebeam.schema.layouts.kairosdb.options import KairosDbOptions
from timebeam.schema.layouts.reading import (
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    Severity,
    UnknownNameError,
)
from timebeam.schema.points import Series


class Tables(NamedTuple):
    """Names of the layout's tables."""

    data: str
    row_keys: str
    strings: str


class _IndexRun(NamedTuple):
    """Consecutive rows of the index that are all selected, with the same columns."""

    columns: ColumnRange | None
    first: bytes
    last: bytes


def select(
    options: KairosDbOptions, tables: Tables, selection: Selection, reader: Reader
) -> Iterator[Selected | Finding]:
    """See `Layout.select`. Rows before 1970 are not selected.

    Raises:
      UnknownNameError: the metric is not in `string_index`.
    """
    if selection.metric is not None and not _is_known(tables.strings, selection.metric, reader):
        raise UnknownNameError(
            f"no such metric: {selection.metric!r}",
            selection.metric,
            lambda start: _metrics_from(tables.strings, start, reader),
        )
    width = options.row_spec.width_ms
    first_ms = max(0, selection.start_ms) // width * width
    last_ms = min(selection.end_ms, keys.LAST_MS) // width * width
    if first_ms > last_ms:
        return
    ranges = (_index_range(selection, width),)
    runs: list[_IndexRun] = []
    is_open = False
    for row in reader.scan(Scan(tables.row_keys, ranges, keys_only=True)):
        try:
            row_key = keys.parse_key(row.key)
        except ValueError as error:
            yield Finding(Severity.DAMAGE, tables.row_keys, row.key, str(error))
            continue
        is_selected = first_ms <= row_key.row_ms <= last_ms and selection.takes(row_key.series)
        if is_selected:
            columns = _columns(options, selection, row_key.row_ms)
            if is_open and runs[-1].columns == columns:
                runs[-1] = runs[-1]._replace(last=row.key)
            else:
                runs.append(_IndexRun(columns, row.key, row.key))
        is_open = is_selected
    yield from _rows(tables.data, runs, selection, reader)


def of_several_types(
    options: KairosDbOptions, tables: Tables, selection: Selection, reader: Reader
) -> frozenset[Series]:
    """The series that have rows of several types for a selected row time, by the index."""
    width = options.row_spec.width_ms
    several: set[Series] = set()
    seen: set[Series] = set()
    head = b""
    for row in reader.scan(Scan(tables.row_keys, (_index_range(selection, width),), keys_only=True)):
        try:
            row_key = keys.parse_key(row.key)
        except ValueError:
            continue  # `select` reports it
        if not row.key.startswith(head) or not head:
            head, seen = keys.before_types(row.key), set()
        if selection.start_ms < row_key.row_ms + width and row_key.row_ms <= selection.end_ms:
            (several if row_key.series in seen else seen).add(row_key.series)
    return frozenset(several)


def _index_range(selection: Selection, width: int) -> tuple[bytes, bytes]:
    """The range of the index with the selected rows."""
    if selection.metric is None:
        return b"", b""
    first, last = (
        max(0, selection.start_ms) // width * width,
        min(selection.end_ms, keys.LAST_MS) // width * width,
    )
    return keys.metric_range(selection.metric, first, last)


def _is_known(strings: str, metric: str, reader: Reader) -> bool:
    """Whether a metric is in `string_index`."""
    name = metric.encode()
    columns = ColumnRange(index.NAMES_FAMILY, name, name + b"\0")
    ranges = ((index.METRICS, index.METRICS + b"\0"),)
    return any(row.cells for row in reader.scan(Scan(strings, ranges, columns=columns)))


def _metrics_from(strings: str, start: str, reader: Reader) -> Iterator[str]:
    """The metrics that begin with `start`, ascending by their bytes."""
    first = start.encode()
    columns = ColumnRange(index.NAMES_FAMILY, first, first + b"\xff")
    for row in reader.scan(Scan(strings, ((index.METRICS, index.METRICS + b"\0"),), columns=columns)):
        yield from (cell.qualifier.decode(errors="replace") for cell in row.cells)


def _columns(options: KairosDbOptions, selection: Selection, row_ms: int) -> ColumnRange | None:
    """The columns of a row to read; None for all.

    A range of columns has a single family, so with retention classes rows are read whole.
    """
    spec = options.row_spec
    first = max(0, selection.start_ms - row_ms)
    last = min(selection.end_ms - row_ms, spec.width_ms - 1)
    if len(options.families) > 1 or (first == 0 and last == spec.width_ms - 1):
        return None
    start, end = spec.columns(first), spec.columns(last + spec.unit_ms)
    return ColumnRange(options.families[0], start.to_bytes(4, "big"), end.to_bytes(4, "big"))


def _rows(
    data: str, runs: Iterable[_IndexRun], selection: Selection, reader: Reader
) -> Iterator[Selected | Finding]:
    """The rows of the runs, and selected rows between them that are in no index."""
    for run in runs:
        for row in reader.scan(Scan(data, ((run.first, run.last + b"\0"),), columns=run.columns)):
            try:
                row_key = keys.parse_key(row.key)
            except ValueError as error:
                yield Finding(Severity.DAMAGE, data, row.key, str(error))
                continue
            if selection.takes(row_key.series):
                yield Selected(row, row_key.series)
