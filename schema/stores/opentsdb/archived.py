"""OpenTSDB's tables with an archive: what is archived of a row, and which rows a query reads in both tables.

Format: docs/spec/archive.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from timebeam.schema.archive.archive_rows import BLOCK_S, PARTS
from timebeam.schema.archive.archive_rows import bases as archive_bases
from timebeam.schema.archive.view import ArchiveView, DataRow, ReadRow
from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Finding, Reader, Scan, Selected, Selection, prefix_range
from timebeam.schema.stores.opentsdb import keys, select
from timebeam.schema.stores.opentsdb.columns.annotation_cells import is_annotation
from timebeam.schema.stores.opentsdb.columns.decode_row import is_histogram
from timebeam.schema.stores.opentsdb.options import BASE_BYTES
from timebeam.schema.stores.opentsdb.select import Wanted, key_ranges
from timebeam.schema.stores.opentsdb.uids.uid_table import SeriesResolver

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb


class _SomeMetrics(NamedTuple):
    """Series that are read together, of at least one metric."""

    wanted: Wanted
    reader: Reader


class OpenTsdbArchive(ArchiveView[_SomeMetrics]):
    """See `ArchiveView`."""

    window_ms = BLOCK_S * 1000

    def __init__(self, store: OpenTsdb) -> None:
        options = store.options
        super().__init__(options.table_prefix, store.data_table, options, is_used=options.archive)
        self._store, self._options = store, options

    def select(
        self, selection: Selection | Sequence[bytes], period: tuple[int, int], reader: Reader
    ) -> Iterator[Selected | Finding]:
        """The selected rows of both tables.

        Of all metrics, those that the archive has in the period are read one by one, and the rest of the data
        table in one scan.

        Args:
          selection: or the UIDs of metrics.
          period: first and last time, in ms, both inclusive.

        Raises:
          UnknownNameError: a name has no UID.
          AmbiguousNameError: see `Selection`.
        """
        store, options = self._store, self._options
        wanted, names = select.resolve(store, selection, reader)
        if wanted.metrics:
            yield from self._of_metrics(_SomeMetrics(wanted, reader), period, names)
            return
        archived: set[bytes] = set()
        yield from self.find_metrics(period, reader, self._metric_of, archived)
        rows = select.scan(options, self.data_table, wanted, keys.bases(*period), store.leading)
        rows = dataclasses.replace(rows, ranges=self._ranges_beside(archived, rows.ranges[0][0]))
        in_period = select.data_rows(options, rows, period, reader)
        yield from select.with_series(store, in_period, wanted, names)
        for metric in sorted(archived):
            of_metric = dataclasses.replace(wanted, metrics=[metric])
            yield from self._of_metrics(_SomeMetrics(of_metric, reader), period, names)

    def _of_metrics(
        self, source: _SomeMetrics, period: tuple[int, int], names: SeriesResolver
    ) -> Iterator[Selected | Finding]:
        """The selected rows of some metrics; names are looked up for many rows at once."""
        rows = ((read.row, self._data_key(read), read.archived) for read in self.rows(source, period))
        return select.with_series(self._store, rows, source.wanted, names)

    def _data_key(self, read: ReadRow) -> bytes:
        """The key of a data row of the series of a row."""
        return read.row.key if read.key is None else keys.row_key(read.key.series, read.key.base_s)

    def _metric_of(self, head: bytes) -> bytes:
        """The UID of the metric of the head of an archive row.

        Raises:
          ValueError: its salt is of no bucket.
        """
        salt, metric = head[: self._options.salt_width], head[self._options.salt_width :]
        if salt and int.from_bytes(salt, "big") >= self._options.salt_buckets:
            raise ValueError(f"salt {salt.hex()} is beyond {self._options.salt_buckets} salt buckets")
        return metric

    def _ranges_beside(self, metrics: Collection[bytes], start: bytes) -> Sequence[tuple[bytes, bytes]]:
        """The key ranges, from a key to the end of the data table, without those of some metrics."""
        options, ranges = self._options, []
        for bucket in range(options.salt_buckets if options.salt_width else 1):
            for metric in sorted(metrics):
                head = bucket.to_bytes(options.salt_width, "big") + metric
                if start < head:
                    ranges.append((start, head))
                start = prefix_range(head)[1]
        return [*ranges, (start, b"")] if start else ranges

    def archive_scan(self, wanted: Wanted, period: tuple[int, int], *, keys_only: bool) -> Scan:
        """The rows of the archive with points of a period, in ms, both ends inclusive."""
        bases_by_code = [(bytes((code,)), bases_s) for code, bases_s in archive_bases(*period)]
        ranges = key_ranges(self._options, wanted, bases_by_code, self._store.leading)
        return Scan(self.table, ranges, keys.key_pattern(wanted.tags), PARTS, keys_only)

    def read_data(self, source: _SomeMetrics, start_ms: int, end_ms: int) -> Iterator[Row]:
        period, leading = (start_ms, end_ms), self._store.leading
        rows = select.scan(self._options, self.data_table, source.wanted, keys.bases(*period), leading)
        return (row for row, _, _ in select.data_rows(self._options, rows, period, source.reader))

    def read_archive(
        self, source: _SomeMetrics, start_ms: int, end_ms: int, *, keys_only: bool
    ) -> Iterator[Row]:
        return iter(
            source.reader.scan(self.archive_scan(source.wanted, (start_ms, end_ms), keys_only=keys_only))
        )

    def cut_by_span(self, row: Row, span_s: int) -> Iterator[tuple[SeriesKey, int, Row]]:
        """See `ArchiveView.cut_by_span`: one, since a row is an hour."""
        yield self._series_key(row.key), keys.base_s_of(self._options, row.key), row

    def _series_key(self, key: bytes) -> SeriesKey:
        base_at = self._options.salt_width + self._options.uid_width_metric
        return SeriesKey(key[:base_at], key[base_at + BASE_BYTES :])

    def metric_keys(self, reader: Reader) -> dict[str, bytes]:
        return self._store.metric_uids(reader)

    def closed(self, metric: bytes, start_ms: int, end_ms: int, reader: Reader) -> Iterator[Scan]:
        """See `ArchiveView.closed`: all columns of whole hours."""
        bases_s = keys.bases(start_ms, end_ms - 1)
        yield select.scan(self._options, self.data_table, Wanted([metric]), bases_s, self._store.leading)

    def data_row(self, key: bytes) -> DataRow:
        if error := self._store.key_error(key):
            raise ValueError(error)
        start_ms = keys.base_s_of(self._options, key) * 1000
        return DataRow(self._series_key(key), start_ms, start_ms + keys.SPAN_S * 1000)

    def row_at(self, series: SeriesKey, time_s: int) -> Row:
        return Row(self.data_table, keys.row_key(series, time_s - time_s % keys.SPAN_S), ())

    def numbers(self, row: Row) -> Sequence[Cell]:
        """See `ArchiveView.numbers`: all but annotations and histograms."""
        return [
            cell for cell in row.cells if not (is_annotation(cell.qualifier) or is_histogram(cell.qualifier))
        ]

    def times_ms(self, row: Row) -> Int64s:
        """See `ArchiveView.times_ms`: the time of the row."""
        return np.full(len(row.cells), keys.base_s_of(self._options, row.key) * 1000, np.int64)
