"""KairosDB's tables with an archive: what is archived of a row, and which rows a query reads in both tables.

Format: docs/spec/archive.md. A row holds 21 days, so it is read day by day.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.archive_rows import PARTS
from timebeam.schema.archive.view import ArchiveView, DataRow
from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.times import DAY_MS, floor_to
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import ColumnRange, Finding, Reader, Scan, Selected, Selection
from timebeam.schema.stores.kairosdb import keys
from timebeam.schema.stores.kairosdb.decode import cell_times, kind_of
from timebeam.schema.stores.kairosdb.options import FAMILY, KairosDbOptions
from timebeam.schema.stores.kairosdb.select import check_metric, indexed, metrics_from, selected_rows

_ROWS_AT_ONCE = 1000


class _OneMetric(NamedTuple):
    """What is read of a metric.

    Attributes:
      findings: takes the rows of the index and of the data table that cannot be read, by table and key.
    """

    selection: Selection
    reader: Reader
    findings: dict[tuple[str, bytes], Finding]

    def series_of(self, key: bytes) -> Series | None:
        """The series of a data row; None if it is not selected.

        Raises:
          ValueError: the key does not parse.
        """
        series = keys.parse_key(key).series
        return series if self.selection.takes(series) else None


class KairosDbArchive(ArchiveView[_OneMetric]):
    """See `ArchiveView`."""

    by_kind = True

    def __init__(self, options: KairosDbOptions) -> None:
        super().__init__(options.table_prefix, options.tables.data, options, is_used=options.archive)
        self._options, self._tables, self._row_spec = options, options.tables, options.row_spec

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """The selected rows of both tables.

        Of all metrics, those that the archive has in the period are read one by one, and the others together.

        Raises:
          UnknownNameError: the metric is not in `string_index`.
        """
        check_metric(self._tables.strings, selection, reader)
        period = max(selection.start_ms, 0), min(selection.end_ms, keys.LAST_MS)
        if period[0] > period[1]:
            return
        metrics: set[str] = set()
        if selection.metric is not None:
            metrics.add(selection.metric)
        else:
            yield from self.find_metrics(period, reader, lambda head: head[:-1].decode(), metrics)
            yield from selected_rows(self._options, selection, reader, metrics)
        for metric in sorted(metrics):
            source = _OneMetric(dataclasses.replace(selection, metric=metric), reader, {})
            yield from self.selected(source, period, source.series_of)
            yield from source.findings.values()

    def read_data(self, source: _OneMetric, start_ms: int, end_ms: int) -> Iterator[Row]:
        period = dataclasses.replace(source.selection, start_ms=start_ms, end_ms=end_ms)
        for selected in selected_rows(self._options, period, source.reader):
            if isinstance(selected, Finding):
                source.findings[selected.table, selected.key] = selected
            elif len(self._options.families) == 1:
                yield selected.row
            elif (row := self._within(selected.row, start_ms, end_ms)).cells:
                yield row

    def _within(self, row: Row, start_ms: int, end_ms: int) -> Row:
        """A row that was read with all columns, with the cells of a period; others come at its row time."""
        times_ms = self.times_ms(row)
        times_ms = np.where(times_ms < 0, keys.parse_key(row.key).row_ms, times_ms)
        inside = np.flatnonzero((times_ms >= start_ms) & (times_ms <= end_ms)).tolist()
        return row._replace(cells=[row.cells[number] for number in inside])

    def read_archive(
        self, source: _OneMetric, start_ms: int, end_ms: int, *, keys_only: bool
    ) -> Iterator[Row]:
        selection = source.selection
        assert selection.metric is not None
        ranges = list(archive_rows.ranges(selection.metric.encode() + b"\0", start_ms, end_ms))
        scan = Scan(self.table, ranges, columns=PARTS, keys_only=keys_only or bool(selection.tags))
        rows = iter(source.reader.scan(scan)) if ranges else iter(())
        if keys_only or not selection.tags:
            yield from rows
            return
        selected = (row.key for row in rows if self._is_selected(source, row.key))
        for chosen in batched(selected, _ROWS_AT_ONCE):
            key_ranges = [(key, key + b"\0") for key in chosen]
            yield from source.reader.scan(Scan(self.table, key_ranges, columns=PARTS))

    def _is_selected(self, source: _OneMetric, key: bytes) -> bool:
        try:
            return source.series_of(self.data_key(archive_rows.parse_key(self.heads, key))) is not None
        except ValueError:
            return True

    def metric_keys(self, reader: Reader) -> dict[str, bytes]:
        return {name: name.encode() for name in metrics_from(self._tables.strings, "", reader)}

    def closed(self, metric: bytes, start_ms: int, end_ms: int, reader: Reader) -> Iterator[Scan]:
        """See `ArchiveView.closed`: each reads a day of the rows of a row time, without retention classes."""
        spec, name = self._row_spec, metric.decode()
        for row_ms in sorted({row_ms for _, row_ms in indexed(self._tables.row_keys, name, reader)}):
            ranges = (keys.metric_range(name, row_ms, row_ms),)
            first_ms, last_ms = max(row_ms, start_ms), min(row_ms + spec.width_ms, end_ms)
            if first_ms >= last_ms or not any(
                True for _ in reader.scan(Scan(self.data_table, ranges, keys_only=True))
            ):
                continue
            for day_ms in range(floor_to(first_ms, DAY_MS), last_ms, DAY_MS):
                start, end = (
                    spec.columns(time_ms - row_ms).to_bytes(4, "big")
                    for time_ms in (max(day_ms, first_ms), min(day_ms + DAY_MS, last_ms))
                )
                yield Scan(self.data_table, ranges, columns=ColumnRange(FAMILY, start, end))

    def data_row(self, key: bytes) -> DataRow:
        row_ms = keys.parse_key(key).row_ms
        return DataRow(keys.series_key_of(key), row_ms, row_ms + self._row_spec.width_ms)

    def row_at(self, series: SeriesKey, time_s: int) -> Row:
        spec = self._row_spec
        row_ms = floor_to(time_s * 1000, spec.width_ms)
        qualifier = spec.columns(time_s * 1000 - row_ms).to_bytes(4, "big")
        return Row(
            self.data_table, keys.row_key(series, row_ms, Kind.INTEGER), [Cell(FAMILY, qualifier, 0, b"")]
        )

    def numbers(self, row: Row) -> Sequence[Cell]:
        """See `ArchiveView.numbers`: longs and doubles that are kept forever."""
        return [] if kind_of(row) is None else [cell for cell in row.cells if cell.family == FAMILY]

    def times_ms(self, row: Row) -> Int64s:
        return cell_times(row, self._row_spec)
