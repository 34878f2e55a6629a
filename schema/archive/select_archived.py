"""Selects rows of the archive and of the data table, so that each instant of a series comes from one row.

Points of the data table in the span of an archive row are late, or were sealed and are not deleted yet: they
are decoded with that row. The spans are those of the archive rows when the read began. A row that is
sealed meanwhile still has its points in the data table: `timebeam seal` deletes them only after
`--reader_hours`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.archive.archive_rows import count_points, within_parts
from timebeam.schema.archive.keys import BLOCK_S, SPANS_S, ArchiveKey, archive_key, parse_key
from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.core.batches import run_starts
from timebeam.schema.core.contract import SeriesHeads
from timebeam.schema.core.points import Series
from timebeam.schema.core.reading import Archived, Finding, Selected, Severity
from timebeam.schema.core.rows import Row
from timebeam.schema.core.writing import SeriesKey

_BLOCK_MS = BLOCK_S * 1000


class ReadRow(NamedTuple):
    """A row that a query reads.

    Attributes:
      key: the parsed key of an archive row; None for a data row.
      period: as in `Archived`.
    """

    row: Row
    key: ArchiveKey | None = None
    period: tuple[int, int] | None = None


class SealedSource(abc.ABC):
    """The rows of one selection in both tables.

    Attributes:
      heads: the heads of the layout's row keys.
      window_ms: late points of this much time are in memory together; a block is a multiple of it.
    """

    heads: SeriesHeads
    window_ms: int

    @abc.abstractmethod
    def data_rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        """The rows of the data table, with the cells of a period, both ends inclusive."""

    @abc.abstractmethod
    def archive_rows(self, start_ms: int, end_ms: int, *, keys_only: bool) -> Iterator[Row]:
        """The rows of the archive whose span overlaps a period, both ends inclusive."""

    @abc.abstractmethod
    def pieces(self, row: Row, span_s: int) -> Iterator[tuple[SeriesKey, int, Row]]:
        """A row of the data table cut by spans: (its series, a time in s of the span, its cells in it)."""


class SealedSourceWithSeries(SealedSource):
    """A source that tells the series of a row from its key."""

    @abc.abstractmethod
    def series_of(self, read: ReadRow) -> Series | None:
        """The series of a row; None if it is not selected.

        Raises:
          ValueError: the key does not name a series.
        """

    def selected(self, start_ms: int, end_ms: int) -> Iterator[Selected | Finding]:
        """The selected rows of both tables with points of a period, both ends inclusive."""
        late_of: dict[bytes, list[Row]] = {}
        for read in archived_rows(self, (start_ms, end_ms), late_of):
            late = late_of.pop(read.row.key, ()) if read.key is not None else ()
            try:
                series = self.series_of(read)
            except ValueError as error:
                for row in (read.row, *late):
                    yield Finding(Severity.DAMAGE, row.table, row.key, str(error))
                continue
            if series is None:
                continue
            if read.key is None:
                yield Selected(read.row, series)
            else:
                yield archived_of(Selected(read.row, series), late, read.period)


def archived_of(selected: Selected, late: Sequence[Row], period: tuple[int, int] | None = None) -> Archived:
    """A row of the archive, with the late rows and the period of `Archived`."""
    archived = Archived(*selected)
    archived.late, archived.period = late, period
    archived.points = count_points(selected.row)
    return archived


def cell_pieces(row: Row, times_ms: Int64s, span_s: int) -> Iterator[tuple[int, Row]]:
    """A row cut by spans: (a time in s of the span, the row with its cells in it).

    Args:
      times_ms: the time of each cell; below 0 for a cell without a point, which goes into the latest span.
    """
    if not len(times_ms):
        return
    spans = np.where(times_ms < 0, max(0, int(times_ms.max())), times_ms) // (span_s * 1000)
    order = np.argsort(spans, kind="stable")
    starts = run_starts(spans[order]).tolist()
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        cells = [row.cells[number] for number in order[start:end].tolist()]
        yield int(spans[order[start]]) * span_s, row._replace(cells=cells)


def archived_rows(
    source: SealedSource, period: tuple[int, int], late_of: dict[bytes, list[Row]]
) -> Iterator[ReadRow]:
    """The rows of both tables; those of a series are in the order of time if its older points are sealed.

    Args:
      period: first and last time, in ms, both inclusive.
      late_of: takes, by the key of an archive row, the rows of the data table in its span, before the
        archive row is yielded. It holds the rows of one window at a time.
    """
    reached_ms, last_ms = period
    for block_ms in _blocks(source, period):
        start_ms = max(block_ms, period[0])
        end_ms = min(block_ms + _BLOCK_MS - 1, last_ms)
        if next(source.data_rows(start_ms, end_ms), None) is None:  # then nothing is late
            if reached_ms < start_ms:
                yield from map(ReadRow, source.data_rows(reached_ms, start_ms - 1))
            for row in source.archive_rows(start_ms, end_ms, keys_only=False):
                if (key := _key(source, row.key)) is not None:
                    yield ReadRow(within_parts(row, key, start_ms, end_ms), key)
            reached_ms = end_ms + 1
            continue
        for window in _windows(source, start_ms, end_ms):
            sealed = _keys(source, *window)
            if not sealed:
                continue
            if reached_ms < window[0]:
                yield from map(ReadRow, source.data_rows(reached_ms, window[0] - 1))
            sealed_to_ms = min(max(key.end_s for key in sealed.values()) * 1000 - 1, window[1])
            yield from _merged(source, sealed, window, sealed_to_ms, late_of)
            reached_ms = max(sealed_to_ms + 1, window[0])
    if reached_ms <= last_ms:
        yield from map(ReadRow, source.data_rows(reached_ms, last_ms))


def _merged(
    source: SealedSource,
    sealed: dict[bytes, ArchiveKey],
    window: tuple[int, int],
    sealed_to_ms: int,
    late_of: dict[bytes, list[Row]],
) -> Iterator[ReadRow]:
    """The rows of a window; see `archived_rows`.

    Args:
      sealed: the archive rows.
      sealed_to_ms: the data rows are read up to this time, inclusive.
    """
    start_ms, end_ms = window
    codes = sorted({key.code for key in sealed.values()})
    for data_row in source.data_rows(start_ms, sealed_to_ms):
        for series, time_s, row in source.pieces(data_row, SPANS_S[codes[0]]):
            candidates = (archive_key(series, time_s, code) for code in codes)
            in_archive = next((candidate for candidate in candidates if candidate in sealed), None)
            if in_archive is None:
                yield ReadRow(row)
            else:
                late_of.setdefault(in_archive, []).append(row)
    period = None if source.window_ms == _BLOCK_MS else (start_ms, end_ms + 1)
    for row in source.archive_rows(start_ms, end_ms, keys_only=False):
        if (key := sealed.pop(row.key, None)) is not None:
            yield ReadRow(within_parts(row, key, start_ms, end_ms), key, period)
    for archive_row_key in sealed:  # deleted meanwhile
        yield from map(ReadRow, late_of.pop(archive_row_key, ()))


def _windows(source: SealedSource, start_ms: int, end_ms: int) -> Iterator[tuple[int, int]]:
    """The windows in a part of a block: (first, last time in ms), both inclusive."""
    while start_ms <= end_ms:
        next_ms = start_ms - start_ms % source.window_ms + source.window_ms
        yield start_ms, min(next_ms - 1, end_ms)
        start_ms = next_ms


def _blocks(source: SealedSource, period: tuple[int, int]) -> Sequence[int]:
    """The starts, in ms, of the blocks of a period that may have rows in the archive."""
    first_ms, last_ms = (time_ms - time_ms % _BLOCK_MS for time_ms in period)
    if first_ms == last_ms:
        return (first_ms,)
    rows = source.archive_rows(*period, keys_only=True)
    bases_ms = {key.base_s * 1000 for row in rows if (key := _key(source, row.key))}
    return sorted({base_ms - base_ms % _BLOCK_MS for base_ms in bases_ms})


def _keys(source: SealedSource, start_ms: int, end_ms: int) -> dict[bytes, ArchiveKey]:
    """The parsed keys of the archive rows in a period; keys that do not parse are left out."""
    rows = source.archive_rows(start_ms, end_ms, keys_only=True)
    return {row.key: key for row in rows if (key := _key(source, row.key))}


def _key(source: SealedSource, key: bytes) -> ArchiveKey | None:
    try:
        return parse_key(source.heads, key)
    except ValueError:
        return None
