"""The archive of a store, as a view over it: what is read from both tables, and which hours can be archived.

Rows are selected so that each time of a series comes from one row. Points of the data table in the span of
an archive row are late, or were archived and are not deleted yet: they are decoded with that row. The spans
are those of the archive rows when the read began. A row that is archived meanwhile still has its points in
the data table: `timebeam archive` deletes them only after `--reader-hours`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from timebeam.schema.archive.archive_rows import (
    BLOCK_S,
    PARTS,
    SPANS_S,
    ArchiveKey,
    SeriesHeads,
    archive_key,
    archive_table,
    count_points,
    decode_archive_rows,
    merged,
    parse_key,
    within_parts,
)
from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import DAY_MS
from timebeam.schema.core.batches import run_starts
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.core.selection import (
    ArchiveRead,
    DecodedRows,
    Finding,
    Reader,
    Scan,
    Selected,
    Severity,
    row_findings,
)

_BLOCK_MS = BLOCK_S * 1000


class DataRow(NamedTuple):
    """The content of a data row's key: the series, and the period [start, end) of its points, in ms."""

    series: SeriesKey
    start_ms: int
    end_ms: int


class ReadRow(NamedTuple):
    """A row that a query reads.

    Attributes:
      key: the parsed key of an archive row; None for a data row.
      archived: see `Selected`.
    """

    row: Row
    key: ArchiveKey | None = None
    archived: ArchiveRead | None = None


P = TypeVar("P")
"""What is read together: a metric, or some series, and the reader."""
M = TypeVar("M", str, bytes)


class ArchiveView(abc.ABC, Generic[P]):
    """The archive of a store (docs/spec/archive.md).

    Attributes:
      is_used: whether these tables have an archive.
      table, data_table: names of the two tables, with prefix.
      heads: finds the heads of row keys.
      by_kind: whether an integer, a float and another value of one time are stored in different rows.
      window_ms: late points of this much time are in memory together; a block is a multiple of it.
    """

    by_kind: ClassVar[bool] = False
    window_ms: ClassVar[int] = DAY_MS

    def __init__(self, prefix: str, data_table: str, heads: SeriesHeads, *, is_used: bool) -> None:
        self._spec = archive_table(prefix)
        self.is_used, self.table, self.data_table, self.heads = is_used, self._spec.name, data_table, heads

    @abc.abstractmethod
    def metric_keys(self, reader: Reader) -> Mapping[str, bytes]:
        """The metrics by name: their UIDs, or their names as bytes."""

    @abc.abstractmethod
    def closed(self, metric: bytes, start_ms: int, end_ms: int, reader: Reader) -> Iterator[Scan]:
        """The scans of the data table that read the points of a metric in [start, end), in the order of time.

        Args:
          metric: as in `metric_keys`.
        """

    @abc.abstractmethod
    def data_row(self, key: bytes) -> DataRow:
        """Parses the key of a data row.

        Raises:
          ValueError: the key is not that of a data row.
        """

    @abc.abstractmethod
    def row_at(self, series: SeriesKey, time_s: int) -> Row:
        """A data row with one cell, without value, at a time in s; `Store.hours` finds its hour."""

    @abc.abstractmethod
    def numbers(self, row: Row) -> Sequence[Cell]:
        """The cells of a data row that can be archived: those that hold only numbers."""

    @abc.abstractmethod
    def times_ms(self, row: Row) -> Int64s:
        """int64[n]: a time of each cell of a data row, in ms; below 0 for a cell without a point.

        All points of a cell are in the hour of that time.
        """

    @abc.abstractmethod
    def read_data(self, source: P, start_ms: int, end_ms: int) -> Iterator[Row]:
        """The rows of the data table, with the cells of a period, both ends inclusive."""

    @abc.abstractmethod
    def read_archive(self, source: P, start_ms: int, end_ms: int, *, keys_only: bool) -> Iterator[Row]:
        """The rows of the archive whose span overlaps a period, both ends inclusive."""

    def tables(self) -> tuple[TableSpec, ...]:
        """The table of the archive; none without one."""
        return (self._spec,) if self.is_used else ()

    def data_key(self, key: ArchiveKey) -> bytes:
        """The key of a data row of the series of an archive row."""
        return self.row_at(key.series, key.base_s).key

    def find_metrics(
        self, period: tuple[int, int], reader: Reader, metric_of: Callable[[bytes], M], metrics: set[M]
    ) -> Iterator[Finding]:
        """Reads all keys of the archive, and yields those that no reader of a metric reaches.

        Args:
          period: first and last time, in ms, both inclusive.
          metric_of: the metric of the head of a key; raises ValueError if no reader of a metric reaches it.
          metrics: takes the metrics that have rows in the period.
        """
        for row in reader.scan(Scan(self.table, ((b"", b""),), columns=PARTS, keys_only=True)):
            try:
                key = parse_key(self.heads, row.key)
                metric = metric_of(key.series.head)
            except ValueError as error:
                yield Finding(Severity.CORRUPT, self.table, row.key, str(error))
                continue
            if key.base_s * 1000 <= period[1] and key.end_s * 1000 > period[0]:
                metrics.add(metric)

    def selected(
        self, source: P, period: tuple[int, int], series_of: Callable[[bytes], Series | None]
    ) -> Iterator[Selected | Finding]:
        """The selected rows of both tables with points of a period, in ms, both ends inclusive.

        Args:
          series_of: the series of the key of a data row, None if it is not selected; raises ValueError if the
            key does not name a series.
        """
        for read in self.rows(source, period):
            try:
                series = series_of(read.row.key if read.key is None else self.data_key(read.key))
            except ValueError as error:
                yield from row_findings(read.row, read.archived, str(error))
                continue
            if series is not None:
                yield Selected(read.row, series, read.archived)

    def rows(self, source: P, period: tuple[int, int]) -> Iterator[ReadRow]:
        """The rows of both tables; the late rows of one window at a time are in memory.

        Those of a series are in the order of time if its older hours are archived.

        Args:
          period: first and last time, in ms, both inclusive.
        """
        reached_ms, last_ms = period
        for block_ms in self._blocks(source, period):
            start_ms = max(block_ms, period[0])
            end_ms = min(block_ms + _BLOCK_MS - 1, last_ms)
            if next(self.read_data(source, start_ms, end_ms), None) is None:  # then nothing is late
                if reached_ms < start_ms:
                    yield from map(ReadRow, self.read_data(source, reached_ms, start_ms - 1))
                for row in self.read_archive(source, start_ms, end_ms, keys_only=False):
                    if (key := self._key(row.key)) is not None:
                        yield _archived(row, key, (start_ms, end_ms))
                reached_ms = end_ms + 1
                continue
            for window in self._windows(start_ms, end_ms):
                archived = self._keys(source, *window)
                if not archived:
                    continue
                if reached_ms < window[0]:
                    yield from map(ReadRow, self.read_data(source, reached_ms, window[0] - 1))
                archived_to_ms = min(max(key.end_s for key in archived.values()) * 1000 - 1, window[1])
                yield from self._merged(source, archived, window, archived_to_ms)
                reached_ms = max(archived_to_ms + 1, window[0])
        if reached_ms <= last_ms:
            yield from map(ReadRow, self.read_data(source, reached_ms, last_ms))

    def _merged(
        self, source: P, archived: dict[bytes, ArchiveKey], window: tuple[int, int], archived_to_ms: int
    ) -> Iterator[ReadRow]:
        """The rows of a window; see `rows`.

        Args:
          archived: the keys of the archive rows.
          archived_to_ms: the data rows are read up to this time, inclusive.
        """
        start_ms, end_ms = window
        codes = sorted({key.code for key in archived.values()})
        late_of: dict[bytes, list[Row]] = {}
        for data_row in self.read_data(source, start_ms, archived_to_ms):
            for series, time_s, row in self.cut_by_span(data_row, SPANS_S[codes[0]]):
                candidates = (archive_key(series, time_s, code) for code in codes)
                in_archive = next((candidate for candidate in candidates if candidate in archived), None)
                if in_archive is None:
                    yield ReadRow(row)
                else:
                    late_of.setdefault(in_archive, []).append(row)
        period = None if self.window_ms == _BLOCK_MS else (start_ms, end_ms + 1)
        for row in self.read_archive(source, start_ms, end_ms, keys_only=False):
            if (key := archived.pop(row.key, None)) is not None:
                yield _archived(row, key, window, late_of.pop(row.key, ()), period)
        for archive_row_key in archived:  # deleted meanwhile
            yield from map(ReadRow, late_of.pop(archive_row_key, ()))

    def cut_by_span(self, row: Row, span_s: int) -> Iterator[tuple[SeriesKey, int, Row]]:
        """A row of the data table cut by spans: (its series, a time in s of the span, its cells in it).

        A cell without a point goes into the latest span.
        """
        try:
            series = self.data_row(row.key).series
        except ValueError:  # `series_of` says so
            yield SeriesKey(row.key, b""), 0, row
            return
        times_ms = self.times_ms(row)
        if not len(times_ms):
            return
        spans = np.where(times_ms < 0, max(0, int(times_ms.max())), times_ms) // (span_s * 1000)
        order = np.argsort(spans, kind="stable")
        starts = run_starts(spans[order]).tolist()
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            cells = [row.cells[number] for number in order[start:end].tolist()]
            yield series, int(spans[order[start]]) * span_s, row._replace(cells=cells)

    def _windows(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
        """The windows in a source of a block: (first, last time in ms), both inclusive."""
        while start_ms <= end_ms:
            next_ms = start_ms - start_ms % self.window_ms + self.window_ms
            yield start_ms, min(next_ms - 1, end_ms)
            start_ms = next_ms

    def _blocks(self, source: P, period: tuple[int, int]) -> Sequence[int]:
        """The starts, in ms, of the blocks of a period that may have rows in the archive."""
        first_ms, last_ms = (time_ms - time_ms % _BLOCK_MS for time_ms in period)
        if first_ms == last_ms:
            return (first_ms,)
        bases_ms = {key.base_s * 1000 for key in self._keys(source, *period).values()}
        return sorted({base_ms - base_ms % _BLOCK_MS for base_ms in bases_ms})

    def _keys(self, source: P, start_ms: int, end_ms: int) -> dict[bytes, ArchiveKey]:
        """The parsed keys of the archive rows in a period; keys that do not parse are left out."""
        rows = self.read_archive(source, start_ms, end_ms, keys_only=True)
        return {row.key: key for row in rows if (key := self._key(row.key))}

    def _key(self, key: bytes) -> ArchiveKey | None:
        try:
            return parse_key(self.heads, key)
        except ValueError:
            return None

    def decode_rows(
        self, rows: Sequence[Selected], decode_data: Callable[[Sequence[Selected]], DecodedRows]
    ) -> DecodedRows:
        """The points of rows of both tables; archive rows are decoded with their late rows.

        Args:
          decode_data: decodes rows of the data table.
        """
        archived = [row for row in rows if row.archived is not None]
        merged_rows = [(row, row.archived) for row in archived if row.archived and row.archived.is_merged]
        if len(archived) == len(rows) and not merged_rows:
            return decode_archive_rows(self.heads, archived)
        alone = decode_archive_rows(
            self.heads, [row for row in archived if row.archived and not row.archived.is_merged]
        )
        beside = DecodedRows.joined(
            [
                decode_archive_rows(self.heads, [row for row, how in merged_rows if how.period is None]),
                *(
                    decode_archive_rows(self.heads, [row]).within(*how.period)
                    for row, how in merged_rows
                    if how.period is not None
                ),
            ]
        )
        late_rows = [Selected(late, row.series) for row, how in merged_rows for late in how.late]
        late = decode_data(late_rows)
        corruption = [*alone.corruption, *beside.corruption]
        if late.outside:  # points of other hours, whose rows are not decoded here
            text = "points of another hour than the row's"
            corruption += [(late_rows[number].row, text) for number in late.outside]
            sound = set(range(len(late_rows))).difference(late.outside)
            late = decode_data([late_rows[number] for number in sorted(sound)])
        points, _ = merged(late.batch, beside.batch, by_kind=self.by_kind)
        numbers = [number for number, row in enumerate(rows) if row.archived is None]
        rest = decode_data([rows[number] for number in numbers])
        joined = DecodedRows.joined([rest, alone, DecodedRows(points, (), late.skipped)])
        return DecodedRows(
            joined.batch,
            [*corruption, *late.corruption, *rest.corruption],
            joined.skipped,
            [numbers[number] for number in rest.outside],
        )

    def closed_cells(self, row: Row) -> tuple[Sequence[Cell], Int64s]:
        """(the cells of a data row that can be archived, int64[n] a time of each, as in `times_ms`)."""
        cells = self.numbers(row)
        return cells, self.times_ms(row._replace(cells=cells))


def _archived(
    row: Row,
    key: ArchiveKey,
    window: tuple[int, int],
    late: Sequence[Row] = (),
    period: tuple[int, int] | None = None,
) -> ReadRow:
    """A row of the archive, with the parts that have points of a window."""
    row = within_parts(row, key, *window)
    return ReadRow(row, key, ArchiveRead(late, count_points(row), period))


class Archivable(Store):
    """A store whose closed hours can be archived in a table of their own."""

    @property
    @abc.abstractmethod
    def archive_view(self) -> ArchiveView[Any]:
        """Its archive, even if these tables have none."""


def find_archivable(store: ReadableStore) -> Archivable | None:
    """The store, if its closed hours can be archived; else None."""
    return store if isinstance(store, Archivable) else None


def find_archive(store: ReadableStore) -> ArchiveView[Any] | None:
    """The archive of a store; None if its tables have none."""
    view = store.archive_view if isinstance(store, Archivable) else None
    return view if view is not None and view.is_used else None
