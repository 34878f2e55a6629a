"""Heroic's tables with an archive: what is sealed of a row, and which rows a query reads in both tables.

Format: docs/spec/archive.md. A row holds 49.7 days, so it is read day by day.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from timebeam.schema.archive import keys as archive_keys
from timebeam.schema.archive.archive_rows import PARTS
from timebeam.schema.archive.select_archived import ReadRow, SealedSourceWithSeries, cell_pieces
from timebeam.schema.bits.bounded import batched
from timebeam.schema.bits.times import DAY_MS, floor_to
from timebeam.schema.core.points import Series
from timebeam.schema.core.reading import Finding, Reader, Scan, Selected, Selection, UnknownNameError
from timebeam.schema.core.rows import Row
from timebeam.schema.core.writing import SeriesKey
from timebeam.schema.stores.heroic.decode import cell_times
from timebeam.schema.stores.heroic.keys import LAST_BASE_MS, PERIOD_MS, KeyForm, base_of
from timebeam.schema.stores.heroic.select import ResourceNames, find_bases, scans

_HEADS_AT_ONCE = 200  # each head has one key range in the archive for each span

Bases = Mapping[bytes, tuple[int, int]]
"""First and last base, by the bytes before the base."""


class _HeroicSource(SealedSourceWithSeries):
    """See `SealedSourceWithSeries`; reads some series."""

    window_ms = DAY_MS

    def __init__(
        self, form: KeyForm, data: str, archive: str, bases: Bases, names: ResourceNames, reader: Reader
    ) -> None:
        self.heads = form
        self._form, self._data, self._archive = form, data, archive
        self._bases, self._names, self._reader = bases, names, reader

    def data_rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        for scan in scans(self._form, self._data, self._bases, start_ms, end_ms):
            yield from self._reader.scan(scan)

    def archive_rows(self, start_ms: int, end_ms: int, *, keys_only: bool) -> Iterator[Row]:
        ranges = [span for head in self._bases for span in archive_keys.ranges(head, start_ms, end_ms)]
        scan = Scan(self._archive, sorted(ranges), columns=PARTS, keys_only=keys_only)
        yield from self._reader.scan(scan) if ranges else ()

    def pieces(self, row: Row, span_s: int) -> Iterator[tuple[SeriesKey, int, Row]]:
        try:
            key = self._form.parse(row.key)
        except ValueError:  # `series_of` says so
            yield SeriesKey(row.key, b""), 0, row
            return
        times_ms = cell_times(row.cells, key.base_ms, self._form)
        for time_s, piece in cell_pieces(row, times_ms, span_s):
            yield SeriesKey(key.head, key.tail), time_s, piece

    def series_of(self, read: ReadRow) -> Series:
        key = read.row.key if read.key is None else self._form.row_key(read.key.series, 0)
        return self._names.series_of(self._form.parse(key))


def select(
    form: KeyForm, tables: tuple[str, str, str], selection: Selection, reader: Reader
) -> Iterator[Selected | Finding]:
    """As `timebeam.schema.stores.heroic.select.select`, of the data table and the archive.

    Args:
      tables: names of the data table, the series table and the archive.

    Raises:
      UnknownNameError: the series table does not know the metric.
    """
    data, table, archive = tables
    names, bases = ResourceNames(form), dict[bytes, tuple[int, int]]()
    yield from find_bases(table, selection, reader, names, bases)
    start_ms, end_ms = max(selection.start_ms, 0), min(selection.end_ms, LAST_BASE_MS + PERIOD_MS - 1)
    heads = sorted(bases) if start_ms <= end_ms else []
    for some in batched(heads, _HEADS_AT_ONCE):
        of_heads = {head: bases[head] for head in some}
        yield from _HeroicSource(form, data, archive, of_heads, names, reader).selected(start_ms, end_ms)


def closed(
    form: KeyForm, tables: tuple[str, str], metric: str, start_ms: int, end_ms: int, reader: Reader
) -> Iterator[Scan]:
    """See `Archive.closed`: each reads some rows of a day.

    Args:
      tables: names of the data table and of the series table.
    """
    data, table = tables
    bases = dict[bytes, tuple[int, int]]()
    try:
        list(find_bases(table, Selection(metric, {}, start_ms, end_ms), reader, ResourceNames(form), bases))
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
            for scan in scans(form, data, bases, period[0], period[1] - 1)
            for _ in reader.scan(dataclasses.replace(scan, keys_only=True))
        ):
            continue
        for day_ms in range(floor_to(period[0], DAY_MS), period[1], DAY_MS):
            day = max(day_ms, period[0]), min(day_ms + DAY_MS, period[1]) - 1
            yield from scans(form, data, bases, *day)
