"""Selects the rows of a query: series by the series table, then rows by series and base.

Format: docs/spec/heroic.md §5.

Unlike in Heroic, both ends of the time range are inclusive, and so are points exactly at a base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.batches import distinct
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import (
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    SeriesIndex,
    Severity,
)
from timebeam.schema.stores.heroic import series_table
from timebeam.schema.stores.heroic.encode import POINTS, storable
from timebeam.schema.stores.heroic.keys import LAST_BASE_MS, PERIOD_MS, HeroicRowKey, KeyForm, base_of

_RANGES_AT_ONCE = 1000


class ResourceNames:
    """Finds the names of resources for row keys that hold only their values, from the series table."""

    def __init__(self, form: KeyForm) -> None:
        self._form = form
        self._series: dict[tuple[bytes, bytes], Series] = {}
        self._several: dict[tuple[bytes, bytes], Series] = {}

    def add(self, series: Series) -> bytes:
        """Adds a series; returns the bytes of its keys before the base."""
        key = self._form.nameless_key(series)
        if series.resources and self._series.setdefault(key, series) != series:
            self._several[key] = series
        return key.head

    def series_of(self, row_key: HeroicRowKey) -> Series:
        """The series of a row.

        Raises:
          ValueError: the names of its resources are unknown, or two series have this key.
        """
        if row_key.is_whole:
            return row_key.series
        key = row_key.head, row_key.tail
        series = self._series.get(key)
        if series is None:
            raise ValueError("the names of its resources are not in the series table")
        if key in self._several:
            raise ValueError(f"{series} and {self._several[key]} have the same row keys")
        return series


def select(
    form: KeyForm, data: str, table: str, selection: Selection, reader: Reader
) -> Iterator[Selected | Finding]:
    """See `Store.select`; only the family of doubles is read.

    Args:
      data, table: names of the data table and of the series table.

    Raises:
      UnknownNameError: the series table does not know the metric.
    """
    names, bases = ResourceNames(form), dict[bytes, tuple[int, int]]()
    yield from find_bases(table, selection, reader, names, bases)
    for scan in scans(form, data, bases, selection.start_ms, selection.end_ms):
        for row in reader.scan(scan):
            try:
                yield Selected(row, names.series_of(form.parse(row.key)))
            except ValueError as error:
                yield Finding(Severity.CORRUPT, data, row.key, str(error))


def find_bases(
    table: str,
    selection: Selection,
    reader: Reader,
    names: ResourceNames,
    bases: dict[bytes, tuple[int, int]],
) -> Iterator[Finding]:
    """Finds the selected series; yields the rows of the series table that cannot be read.

    Args:
      names: takes the series.
      bases: takes the first and last base, by the bytes before the base: for all series that differ only in
        resources.

    Raises:
      UnknownNameError: the series table does not know the metric.
    """
    for entry in series_table.find(table, selection, reader):
        if isinstance(entry, tuple):
            yield Finding(Severity.CORRUPT, table, entry[0].key, str(entry[1]))
            continue
        head = names.add(entry.series)
        first, last = bases.get(head, (entry.first_ms, entry.last_ms))
        bases[head] = min(first, entry.first_ms), max(last, entry.last_ms)


def scans(
    form: KeyForm, data: str, bases: Mapping[bytes, tuple[int, int]], start_ms: int, end_ms: int
) -> Iterator[Scan]:
    """The rows of some series in a time range, both ends inclusive.

    First the rows of the first period, then the rows that are read whole, then those of the last period.

    Args:
      bases: first and last base by the bytes before the base.
    """
    start_ms, end_ms = max(start_ms, 0), min(end_ms, LAST_BASE_MS + PERIOD_MS - 1)
    if start_ms > end_ms:
        return
    first, last = base_of(start_ms), base_of(end_ms)
    if first == last:
        yield from _scans(form, data, bases, first, last, _columns(form, start_ms - first, end_ms - last))
        return
    last_offset = PERIOD_MS - 1
    yield from _scans(form, data, bases, first, first, _columns(form, start_ms - first, last_offset))
    yield from _scans(form, data, bases, first + PERIOD_MS, last - PERIOD_MS, _columns(form, 0, last_offset))
    yield from _scans(form, data, bases, last, last, _columns(form, 0, end_ms - last))


def _scans(
    form: KeyForm,
    data: str,
    bases: Mapping[bytes, tuple[int, int]],
    first_ms: int,
    last_ms: int,
    columns: ColumnRange,
) -> Iterator[Scan]:
    """The rows from one base to another that exist according to the series table."""
    ranges = (
        key_range
        for head, (low, high) in bases.items()
        if max(low, first_ms) <= min(high, last_ms)
        for key_range in form.ranges(head, max(low, first_ms), min(high, last_ms))
    )
    for batch in batched(ranges, _RANGES_AT_ONCE):
        yield Scan(data, sorted(batch), columns=columns)


def _columns(form: KeyForm, first: int, last: int) -> ColumnRange:
    """The columns from one offset to another, both inclusive."""
    start = form.qualifiers(np.array([first], np.uint32)) if first else b""
    end = form.qualifiers(np.array([last + 1], np.uint32)) if last < PERIOD_MS - 1 else b""
    return ColumnRange(POINTS, start, end)


@dataclasses.dataclass(frozen=True)
class HeroicIndex(SeriesIndex):
    """The series table as an index; see `SeriesIndex`."""

    form: KeyForm
    data_table: str
    series_table: str

    def entries(self, batch: PointBatch) -> Sequence[tuple[int, int]]:
        has_time, has_value = storable(batch)
        is_storable = has_time & has_value
        bases, base = np.unique(batch.times_ms[is_storable] & -PERIOD_MS, return_inverse=True)
        pairs = distinct(batch.index[is_storable].astype(np.int64) * len(bases) + base)
        count = max(1, len(bases))
        return list(zip((pairs // count).tolist(), bases[pairs % count].tolist(), strict=True))

    def rows(self, series: Series, base_ms: int) -> Sequence[Row]:
        return series_table.index_rows(self.series_table, series, base_ms)

    def entry_of(self, key: bytes) -> tuple[Series, int]:
        """See `SeriesIndex.entry_of`; raises for a key that holds resources without their names."""
        row_key = self.form.parse(key)
        if not row_key.is_whole:
            raise ValueError(f"row key {key[:80]!r} holds resources without their names")
        return row_key.series, row_key.base_ms

    def keys(self, series: Series, base_ms: int) -> tuple[str, Sequence[bytes]]:
        return self.series_table, [series_table.series_row(series)]

    def series(self, metric: str | None, reader: Reader) -> Iterator[tuple[Series, int]]:
        """See `SeriesIndex.series`; the base of the first row."""
        return series_table.indexed(self.series_table, metric, reader)

    def stale(self, selection: Selection, reader: Reader) -> Iterator[Selected]:
        """See `SeriesIndex.stale`: series without any row; the name of the metric stays."""
        for entry in series_table.find(self.series_table, selection, reader):
            if isinstance(entry, tuple):
                continue  # `timebeam check` reports it
            key = self.form.nameless_key(entry.series)
            ranges = [*self.form.ranges(key.head, entry.first_ms, entry.last_ms)]
            tails = (key.tail, self.form.series_key(entry.series).tail)
            rows = reader.scan(Scan(self.data_table, ranges, keys_only=True))
            if not any(self.form.parse(row.key).tail in tails for row in rows):
                index_keys = [
                    row.key
                    for row in series_table.index_rows(self.series_table, entry.series, entry.first_ms)[1:]
                ]
                for row in reader.rows(self.series_table, index_keys).values():
                    yield Selected(row, entry.series)
