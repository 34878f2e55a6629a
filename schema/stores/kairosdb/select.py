"""Selects the rows of a query: keys from the index tables, rows from `data_points`.

Format: docs/spec/kairosdb.md §1, §6 and §7. Of the index tables, `row_keys` has the key of each data row
with an empty cell: the old `row_key_index` with the metric moved into the key. `string_index` has three
rows, with a column for each name and one zero byte as value.

A row key holds the type of values, so an entry is a number that holds it too: row time + kind, 0 to 2. Row
times are multiples of the width of a row, so two entries never share a number.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import (
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    SeriesIndex,
    Severity,
    UnknownNameError,
)
from timebeam.schema.stores.kairosdb import keys
from timebeam.schema.stores.kairosdb.encode import KINDS, sorted_rows, storable
from timebeam.schema.stores.kairosdb.options import KairosDbOptions, RowSpec

ROW_KEYS_FAMILY, NAMES_FAMILY = "k", "s"

METRICS, TAG_NAMES, TAG_VALUES = b"metric_names", b"tag_names", b"tag_values"

_ROWS_AT_ONCE = 1000
_NAME_MS = 0
"""The cell timestamp of names: a constant, since they never change."""


def indexed(row_keys: str, metric: str | None, reader: Reader) -> Iterator[tuple[Series, int]]:
    """(series, row time in ms) of the rows of a metric, or of all for None; unreadable ones are left out."""
    ranges = ((b"", b"") if metric is None else keys.metric_range(metric, 0, keys.LAST_MS),)
    for row in reader.scan(Scan(row_keys, ranges, keys_only=True)):
        with contextlib.suppress(ValueError):  # `timebeam check` reports it
            row_key = keys.parse_key(row.key)
            yield row_key.series, row_key.row_ms


def _names(names: Iterable[str]) -> Sequence[Cell]:
    """The cells of some names, ascending."""
    return [Cell(NAMES_FAMILY, name, _NAME_MS, b"\0") for name in sorted(text.encode() for text in names)]


class _IndexRun(NamedTuple):
    """Consecutive rows of the index that are all selected, with the same columns."""

    columns: ColumnRange | None
    first: bytes
    last: bytes


def select(options: KairosDbOptions, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
    """See `Store.select`. Rows before 1970 are not selected.

    Raises:
      UnknownNameError: the metric is not in `string_index`.
    """
    check_metric(options.tables.strings, selection, reader)
    yield from selected_rows(options, selection, reader)


def check_metric(strings: str, selection: Selection, reader: Reader) -> None:
    """Checks that a selected metric is in `string_index`.

    Raises:
      UnknownNameError: it is not.
    """
    if selection.metric is not None and not _is_known(strings, selection.metric, reader):
        raise UnknownNameError(
            f"no such metric: {selection.metric!r}",
            selection.metric,
            lambda start: metrics_from(strings, start, reader),
        )


def selected_rows(
    options: KairosDbOptions,
    selection: Selection,
    reader: Reader,
    left_out: Container[str] = frozenset(),
) -> Iterator[Selected | Finding]:
    """Like `select`, but leaves out some metrics, and yields nothing for an unknown metric."""

    def takes(series: Series) -> bool:
        return selection.takes(series) and series.metric not in left_out

    width, tables = options.row_spec.width_ms, options.tables
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
            yield Finding(Severity.CORRUPT, tables.row_keys, row.key, str(error))
            continue
        is_selected = first_ms <= row_key.row_ms <= last_ms and takes(row_key.series)
        if is_selected:
            columns = _columns(options, selection, row_key.row_ms)
            if is_open and runs[-1].columns == columns:
                runs[-1] = runs[-1]._replace(last=row.key)
            else:
                runs.append(_IndexRun(columns, row.key, row.key))
        is_open = is_selected
    yield from _rows(tables.data, runs, takes, reader)


def of_several_types(options: KairosDbOptions, selection: Selection, reader: Reader) -> frozenset[Series]:
    """The series that have rows of several types for a selected row time, by the index."""
    width, table = options.row_spec.width_ms, options.tables.row_keys
    several: set[Series] = set()
    seen: set[Series] = set()
    head = b""
    for row in reader.scan(Scan(table, (_index_range(selection, width),), keys_only=True)):
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
    columns = ColumnRange(NAMES_FAMILY, name, name + b"\0")
    ranges = ((METRICS, METRICS + b"\0"),)
    return any(row.cells for row in reader.scan(Scan(strings, ranges, columns=columns)))


def metrics_from(strings: str, start: str, reader: Reader) -> Iterator[str]:
    """The metrics that begin with `start`, ascending by their bytes."""
    first = start.encode()
    columns = ColumnRange(NAMES_FAMILY, first, first + b"\xff")
    for row in reader.scan(Scan(strings, ((METRICS, METRICS + b"\0"),), columns=columns)):
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
    data: str, runs: Iterable[_IndexRun], takes: Callable[[Series], bool], reader: Reader
) -> Iterator[Selected | Finding]:
    """The rows of the runs, and selected rows between them that are in no index."""
    for run in runs:
        for row in reader.scan(Scan(data, ((run.first, run.last + b"\0"),), columns=run.columns)):
            try:
                row_key = keys.parse_key(row.key)
            except ValueError as error:
                yield Finding(Severity.CORRUPT, data, row.key, str(error))
                continue
            if takes(row_key.series):
                yield Selected(row, row_key.series)


@dataclasses.dataclass(frozen=True)
class KairosDbIndex(SeriesIndex):
    """The tables `row_keys` and `string_index`; see `SeriesIndex`. Entries are row time plus type."""

    options: KairosDbOptions

    @property
    def _spec(self) -> RowSpec:
        return self.options.row_spec

    def entries(self, batch: PointBatch) -> list[tuple[int, int]]:
        """See `SeriesIndex.entries`: (number of a series, entry) for each row with storable points."""
        good = storable(batch)
        if not good.all():
            batch = batch.take(np.flatnonzero(good))
        if len(batch) == 0:
            return []
        numbers = batch.times_ms // self._spec.width_ms
        order, bounds = sorted_rows(batch, numbers, batch.times_ms - numbers * self._spec.width_ms)
        first = np.sort(order[bounds[:-1]])
        entry_numbers = numbers[first] * self._spec.width_ms + batch.kinds[first]
        return list(zip(batch.index[first].tolist(), entry_numbers.tolist(), strict=True))

    def rows(self, series: Series, base_ms: int) -> list[Row]:
        """See `SeriesIndex.rows`; `base_ms` is one of the `entries`."""
        kind = base_ms % self._spec.width_ms
        assert kind < KINDS
        row_ms = base_ms - kind
        key = keys.row_key(keys.series_key(series), row_ms, kind)
        return [
            Row(self.options.tables.row_keys, key, [Cell(ROW_KEYS_FAMILY, b"", row_ms, b"")]),
            Row(self.options.tables.strings, METRICS, _names([series.metric])),
            Row(self.options.tables.strings, TAG_NAMES, _names(name for name, _ in series.tags)),
            Row(self.options.tables.strings, TAG_VALUES, _names({value for _, value in series.tags})),
        ]

    def check_row(self, row: Row) -> None:
        """Checks that `rows` makes these cells of an index table.

        Raises:
          ValueError: it does not.
        """
        if row.table == self.options.tables.strings:
            is_valid = row.key in (METRICS, TAG_NAMES, TAG_VALUES)
            is_valid &= list(row.cells) == _names(cell.qualifier.decode() for cell in row.cells)
            is_valid &= all(cell.qualifier for cell in row.cells)
        else:
            series, entry = self.entry_of(row.key)
            rejection = keys.reject_series(series)
            if rejection is not None:
                raise rejection
            row_ms = keys.parse_key(row.key).row_ms
            if not 0 <= row_ms <= keys.LAST_MS or row_ms % self._spec.width_ms:
                raise ValueError(f"row time {row_ms} does not fit row spec {self._spec.value}")
            is_valid = self.rows(series, entry)[0] == row._replace(cells=list(row.cells))
        if not is_valid or not row.cells:
            raise ValueError(f"row {row.key[:80]!r} is not of table {row.table}")

    def entry_of(self, key: bytes) -> tuple[Series, int]:
        """See `SeriesIndex.entry_of`; rows without a type, written by old KairosDBs, have no entry."""
        row_key = keys.parse_key(key)
        for kind, name in keys.TYPES.items():
            if row_key.data_type == name:
                return row_key.series, row_key.row_ms + kind
        raise ValueError(
            f"row key {key[:80].hex()} is of type {row_key.data_type!r}, which has no index entry"
        )

    def keys(self, series: Series, base_ms: int) -> tuple[str, list[bytes]]:
        """See `SeriesIndex.keys`: the row of the entry and the one before, of each type."""
        row_ms, key = base_ms // self._spec.width_ms * self._spec.width_ms, keys.series_key(series)
        times_ms = (row_ms, row_ms - self._spec.width_ms) if row_ms else (row_ms,)
        found = [keys.row_key(key, time_ms, kind) for time_ms in times_ms for kind in range(KINDS)]
        return self.options.tables.row_keys, found

    def series(self, metric: str | None, reader: Reader) -> Iterator[tuple[Series, int]]:
        return indexed(self.options.tables.row_keys, metric, reader)

    def stale(self, selection: Selection, reader: Reader) -> Iterator[Selected]:
        """See `SeriesIndex.stale`: entries of data rows that are gone; names stay."""
        width = self.options.row_spec.width_ms
        rows = reader.scan(
            Scan(self.options.tables.row_keys, (_index_range(selection, width),), keys_only=True)
        )
        for batch in batched(rows, _ROWS_AT_ONCE):
            existing = reader.rows(self.options.tables.data, [row.key for row in batch])
            for row in batch:
                if row.key not in existing:
                    with contextlib.suppress(ValueError):  # `timebeam check` reports it
                        row_key = keys.parse_key(row.key)
                        if selection.takes(row_key.series):
                            yield Selected(row, row_key.series)
