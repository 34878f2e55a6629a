"""Heroic's tables with an archive: what is archived of a row, and which rows a query reads in both tables.

Format: docs/spec/archive.md. A row holds 49.7 days, so it is read day by day.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.archive.archive_rows import PARTS, ranges
from timebeam.schema.archive.view import ArchiveView, DataRow
from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.times import DAY_MS, floor_to
from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Finding, Reader, Scan, Selected, Selection, UnknownNameError
from timebeam.schema.stores.heroic import series_table
from timebeam.schema.stores.heroic.decode import cell_times
from timebeam.schema.stores.heroic.encode import POINTS
from timebeam.schema.stores.heroic.keys import LAST_BASE_MS, PERIOD_MS, KeyForm, base_of
from timebeam.schema.stores.heroic.options import HeroicOptions
from timebeam.schema.stores.heroic.select import ResourceNames, find_bases, scans

_HEADS_AT_ONCE = 200  # each head has one key range in the archive for each span


class _SomeSeries(NamedTuple):
    """Series that are read together: first and last base by the bytes before the base."""

    bases: Mapping[bytes, tuple[int, int]]
    reader: Reader


class HeroicArchive(ArchiveView[_SomeSeries]):
    """See `ArchiveView`."""

    def __init__(self, options: HeroicOptions, form: KeyForm, data_table: str, series_table: str) -> None:
        super().__init__(options.table_prefix, data_table, form, is_used=options.archive)
        self._form, self._series_table = form, series_table

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """The selected rows of both tables.

        Raises:
          UnknownNameError: the series table does not know the metric.
        """
        names, bases = ResourceNames(self._form), dict[bytes, tuple[int, int]]()
        yield from find_bases(self._series_table, selection, reader, names, bases)
        period = max(selection.start_ms, 0), min(selection.end_ms, LAST_BASE_MS + PERIOD_MS - 1)
        heads = sorted(bases) if period[0] <= period[1] else []
        for chosen in batched(heads, _HEADS_AT_ONCE):
            source = _SomeSeries({head: bases[head] for head in chosen}, reader)
            yield from self.selected(source, period, lambda key: names.series_of(self._form.parse(key)))

    def read_data(self, source: _SomeSeries, start_ms: int, end_ms: int) -> Iterator[Row]:
        for scan in scans(self._form, self.data_table, source.bases, start_ms, end_ms):
            yield from source.reader.scan(scan)

    def read_archive(
        self, source: _SomeSeries, start_ms: int, end_ms: int, *, keys_only: bool
    ) -> Iterator[Row]:
        key_ranges = sorted(span for head in source.bases for span in ranges(head, start_ms, end_ms))
        scan = Scan(self.table, key_ranges, columns=PARTS, keys_only=keys_only)
        yield from source.reader.scan(scan) if key_ranges else ()

    def metric_keys(self, reader: Reader) -> dict[str, bytes]:
        return {name: name.encode() for name in series_table.metrics_from(self._series_table, "", reader)}

    def closed(self, metric: bytes, start_ms: int, end_ms: int, reader: Reader) -> Iterator[Scan]:
        """See `ArchiveView.closed`: each reads some rows of a day."""
        form, bases = self._form, dict[bytes, tuple[int, int]]()
        selection = Selection(metric.decode(), {}, start_ms, end_ms)
        try:
            list(find_bases(self._series_table, selection, reader, ResourceNames(form), bases))
        except UnknownNameError:  # deleted meanwhile
            return
        if not bases:
            return
        first_ms = max(base_of(start_ms), min(first for first, _ in bases.values()))
        last_ms = min(end_ms - 1, max(last for _, last in bases.values()))
        for base_ms in range(first_ms, last_ms + 1, PERIOD_MS):
            period = max(base_ms, start_ms), min(base_ms + PERIOD_MS, end_ms)
            if not any(
                True
                for scan in scans(form, self.data_table, bases, period[0], period[1] - 1)
                for _ in reader.scan(dataclasses.replace(scan, keys_only=True))
            ):
                continue
            for day_ms in range(floor_to(period[0], DAY_MS), period[1], DAY_MS):
                day = max(day_ms, period[0]), min(day_ms + DAY_MS, period[1]) - 1
                yield from scans(form, self.data_table, bases, *day)

    def data_row(self, key: bytes) -> DataRow:
        row_key = self._form.parse(key)
        series = SeriesKey(row_key.head, row_key.tail)
        return DataRow(series, row_key.base_ms, row_key.base_ms + PERIOD_MS)

    def row_at(self, series: SeriesKey, time_s: int) -> Row:
        base_ms = base_of(time_s * 1000)
        qualifier = self._form.qualifiers(np.array([time_s * 1000 - base_ms], np.uint32))
        return Row(self.data_table, self._form.row_key(series, base_ms), [Cell(POINTS, qualifier, 0, b"")])

    def numbers(self, row: Row) -> Sequence[Cell]:
        """See `ArchiveView.numbers`: the doubles."""
        return [cell for cell in row.cells if cell.family == POINTS]

    def times_ms(self, row: Row) -> Int64s:
        return cell_times(row.cells, self._form.parse(row.key).base_ms, self._form)
