"""KairosDB's tables with an archive: what is sealed of a row, and which rows a query reads in both tables.

Format: docs/spec/archive.md. A row holds 21 days, so it is read day by day.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from timebeam.schema.archive import keys as archive_keys
from timebeam.schema.archive.archive_rows import PARTS
from timebeam.schema.archive.keys import parse_key
from timebeam.schema.archive.select_archived import ReadRow, SealedSourceWithSeries, cell_pieces
from timebeam.schema.bits.bounded import batched
from timebeam.schema.bits.times import DAY_MS, floor_to
from timebeam.schema.core.points import Series
from timebeam.schema.core.reading import ColumnRange, Finding, Reader, Scan, Selected, Selection, Severity
from timebeam.schema.core.rows import Row
from timebeam.schema.core.writing import SeriesKey
from timebeam.schema.stores.kairosdb import keys
from timebeam.schema.stores.kairosdb.decode import cell_times
from timebeam.schema.stores.kairosdb.keys import FAMILY, KairosDbOptions
from timebeam.schema.stores.kairosdb.select import Tables, check_metric, indexed, selected_rows

_ROWS_AT_ONCE = 1000


class _KairosDbSource(SealedSourceWithSeries):
    """See `SealedSourceWithSeries`; reads one metric.

    Attributes:
      findings: rows of the index and of the data table that cannot be read, by key.
    """

    window_ms = DAY_MS

    def __init__(
        self, options: KairosDbOptions, tables: Tables, archive: str, selection: Selection, reader: Reader
    ) -> None:
        assert selection.metric is not None
        self.heads = options
        self.findings: dict[tuple[str, bytes], Finding] = {}
        self._options, self._tables, self._archive = options, tables, archive
        self._selection, self._reader = selection, reader
        self._head = selection.metric.encode() + b"\0"

    def data_rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        period = dataclasses.replace(self._selection, start_ms=start_ms, end_ms=end_ms)
        for selected in selected_rows(self._options, self._tables, period, self._reader):
            if isinstance(selected, Finding):
                self.findings[selected.table, selected.key] = selected
            elif len(self._options.families) == 1:
                yield selected.row
            elif (row := self._within(selected.row, start_ms, end_ms)).cells:
                yield row

    def _within(self, row: Row, start_ms: int, end_ms: int) -> Row:
        """A row that was read with all columns, with the cells of a period; others come at its row time."""
        times_ms = cell_times(row, self._options.row_spec)
        times_ms = np.where(times_ms < 0, keys.parse_key(row.key).row_ms, times_ms)
        inside = np.flatnonzero((times_ms >= start_ms) & (times_ms <= end_ms)).tolist()
        return row._replace(cells=[row.cells[number] for number in inside])

    def archive_rows(self, start_ms: int, end_ms: int, *, keys_only: bool) -> Iterator[Row]:
        ranges = list(archive_keys.ranges(self._head, start_ms, end_ms))
        scan = Scan(self._archive, ranges, columns=PARTS, keys_only=keys_only or bool(self._selection.tags))
        rows = iter(self._reader.scan(scan)) if ranges else iter(())
        if keys_only or not self._selection.tags:
            yield from rows
            return
        selected = (row.key for row in rows if self._is_selected(row.key))
        for some in batched(selected, _ROWS_AT_ONCE):
            key_ranges = [(key, key + b"\0") for key in some]
            yield from self._reader.scan(Scan(self._archive, key_ranges, columns=PARTS))

    def _is_selected(self, key: bytes) -> bool:
        try:
            return self.series_of(ReadRow(Row("", key, ()), parse_key(self.heads, key))) is not None
        except ValueError:
            return True

    def pieces(self, row: Row, span_s: int) -> Iterator[tuple[SeriesKey, int, Row]]:
        series = keys.series_key_of(row.key)
        for time_s, piece in cell_pieces(row, cell_times(row, self._options.row_spec), span_s):
            yield series, time_s, piece

    def series_of(self, read: ReadRow) -> Series | None:
        key = read.row.key if read.key is None else keys.row_key(read.key.series, 0, 0)
        series = keys.parse_key(key).series
        return series if self._selection.takes(series) else None


def select(
    options: KairosDbOptions, tables: Tables, archive: str, selection: Selection, reader: Reader
) -> Iterator[Selected | Finding]:
    """The selected rows of the data table and the archive; see `Layout.select`.

    Of all metrics, those that the archive has in the period are read one by one, and the others together.

    Args:
      archive: name of the archive.

    Raises:
      UnknownNameError: the metric is not in `string_index`.
    """
    check_metric(tables.strings, selection, reader)
    start_ms, end_ms = max(selection.start_ms, 0), min(selection.end_ms, keys.LAST_MS)
    if start_ms > end_ms:
        return
    metrics: set[str] = set()
    if selection.metric is not None:
        metrics.add(selection.metric)
    else:
        yield from _sealed_metrics(options, archive, (start_ms, end_ms), reader, metrics)
        yield from selected_rows(options, tables, selection, reader, metrics)
    for metric in sorted(metrics):
        of_metric = dataclasses.replace(selection, metric=metric)
        source = _KairosDbSource(options, tables, archive, of_metric, reader)
        yield from source.selected(start_ms, end_ms)
        yield from source.findings.values()


def _sealed_metrics(
    options: KairosDbOptions, archive: str, period: tuple[int, int], reader: Reader, metrics: set[str]
) -> Iterator[Finding]:
    """Reads all keys of the archive, and yields those that no reader of a metric reaches.

    Args:
      period: first and last time, in ms, both inclusive.
      metrics: takes the metrics that have rows in the period.
    """
    for row in reader.scan(Scan(archive, ((b"", b""),), columns=PARTS, keys_only=True)):
        try:
            key = parse_key(options, row.key)
            if key.base_s * 1000 <= period[1] and key.end_s * 1000 > period[0]:
                metrics.add(key.series.head[:-1].decode())
        except ValueError as error:
            yield Finding(Severity.DAMAGE, archive, row.key, str(error))


def closed(
    options: KairosDbOptions, tables: Tables, metric: str, start_ms: int, end_ms: int, reader: Reader
) -> Iterator[Scan]:
    """See `Archive.closed`: each reads a day of the rows of a row time, without retention classes."""
    spec = options.row_spec
    for row_ms in sorted({row_ms for _, row_ms in indexed(tables.row_keys, metric, reader)}):
        ranges = (keys.metric_range(metric, row_ms, row_ms),)
        first_ms, last_ms = max(row_ms, start_ms), min(row_ms + spec.width_ms, end_ms)
        if first_ms >= last_ms or not any(
            True for _ in reader.scan(Scan(tables.data, ranges, keys_only=True))
        ):
            continue
        for day_ms in range(floor_to(first_ms, DAY_MS), last_ms, DAY_MS):
            start, end = (
                spec.columns(time_ms - row_ms).to_bytes(4, "big")
                for time_ms in (max(day_ms, first_ms), min(day_ms + DAY_MS, last_ms))
            )
            yield Scan(tables.data, ranges, columns=ColumnRange(FAMILY, start, end))
