"""Rows of the archive (docs/spec/archive.md §1 and §2): their keys; cells to points in columns, and back.

A key is the head of the series, a span code, the base time, and the tail of the series. A span is the time of
one row. Spans are nested: each divides the next one, and all divide a block. The rows of a series in one
block have one span, so they never overlap.

| family | qualifier | value |
|---|---|---|
| `t` | number of the part, 2 bytes | up to 20,000 points (`timebeam.schema.archive.archive_cell`) |
| `s` | `seal` | when the row was written last: ms since 1970, 8 bytes |
| `s` | `span`, in rows of 30 days | the span code of the series in this block, 1 byte |
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from timebeam.schema.archive import archive_cell
from timebeam.schema.archive.archive_cell import ArchiveError, PartHeader, PartPlace, PartPoints
from timebeam.schema.bits.arrays import Bools
from timebeam.schema.bits.times import DAY_S, HOUR_S
from timebeam.schema.core.batches import join, latest_points
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, deletions
from timebeam.schema.core.rows import Cell, Deletion, Row, TableSpec
from timebeam.schema.core.selection import ColumnRange, DecodedRows, Finding, Selected, Severity, prefix_range

SPANS_S = {1: HOUR_S, 2: 4 * HOUR_S, 3: DAY_S, 4: 5 * DAY_S, 5: 30 * DAY_S}
"""Seconds of the spans, by code."""

BLOCK_CODE = 5
BLOCK_S = SPANS_S[BLOCK_CODE]
"""The longest span, 30 days: for each block, a series has one span."""

BASE_BYTES = 4
LAST_S = 0xFFFFFFFF
"""The latest time that a row key can hold, in s."""

_ROW_POINTS = 20_000
"""Points of a row that a span is chosen for."""


class ArchiveKey(NamedTuple):
    """The fields of a row key; the base time in seconds."""

    series: SeriesKey
    code: int
    base_s: int

    @property
    def end_s(self) -> int:
        """The end of the row's span."""
        return self.base_s + SPANS_S[self.code]


class SeriesHeads(Protocol):
    """Finds the head of a row key: the bytes that data rows and archive rows of a series begin with."""

    def head_bytes(self, key: bytes) -> int:
        """The number of bytes before the time in a data row's key, or the span code in an archive row's.

        Raises:
          ValueError: the key is of neither kind.
        """


def span_for(points: int, hours: int) -> int:
    """The code of the longest span in which a series of this rate has at most 20,000 points; else an hour.

    >>> SPANS_S[span_for(360, hours=1)], SPANS_S[span_for(3600, hours=1)]  # a point each 10 s, each s
    (86400, 14400)

    Args:
      points: of the series, in this number of hours.
    """
    fitting = [code for code, span_s in SPANS_S.items() if points * span_s <= _ROW_POINTS * hours * HOUR_S]
    return max(fitting, default=min(SPANS_S))


def archive_key(series: SeriesKey, time_s: int, code: int) -> bytes:
    """The key of the archive row, with this span, that holds the points of a time.

    >>> series = SeriesKey(bytes.fromhex("000001"), bytes.fromhex("000001000002"))
    >>> archive_key(series, 1699488130, code=3).hex()  # metric, span of a day, its start, tag
    '00000103654c2100000001000002'
    """
    return series.head + bytes((code,)) + _base(time_s - time_s % SPANS_S[code]) + series.tail


def parse_key(heads: SeriesHeads, key: bytes) -> ArchiveKey:
    """Splits a row key of the archive.

    >>> from timebeam.schema.stores.opentsdb.keys import OpenTsdbOptions
    >>> key = parse_key(OpenTsdbOptions(), bytes.fromhex("00000103654c2100000001000002"))
    >>> SPANS_S[key.code], key.base_s, key.series.head.hex(), key.series.tail.hex()
    (86400, 1699488000, '000001', '000001000002')

    Raises:
      ValueError: its series, its span code or its base time cannot be that of an archive row.
    """
    code_at = heads.head_bytes(key)
    tail_at = code_at + 1 + BASE_BYTES
    if len(key) < tail_at:
        raise ValueError(f"archive row key {key[:80].hex()} ends before the tail of its series")
    code, base_s = key[code_at], int.from_bytes(key[code_at + 1 : tail_at], "big")
    if code not in SPANS_S:
        raise ValueError(f"archive row key {key[:80].hex()} has the unknown span code {code}")
    if base_s % SPANS_S[code]:
        raise ValueError(
            f"archive row key {key[:80].hex()} has the base time {base_s}: not a multiple of its span"
        )
    return ArchiveKey(SeriesKey(key[:code_at], key[tail_at:]), code, base_s)


def bases(start_ms: int, end_ms: int) -> Iterator[tuple[int, range]]:
    """(span code, base times in s) of the rows with times from start_ms to end_ms, both inclusive."""
    first_s, last_s = max(0, start_ms // 1000), min(end_ms // 1000, LAST_S)
    for code, span_s in SPANS_S.items():
        yield code, range(first_s - first_s % span_s, last_s + 1, span_s) if first_s <= last_s else range(0)


def ranges(head: bytes, start_ms: int, end_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """The key ranges [start, end) of archive rows with times from start_ms to end_ms, both inclusive.

    One range for each span; none if there are no such times.

    Args:
      head: the bytes before the span code.
    """
    for code, bases_s in bases(start_ms, end_ms):
        if bases_s:
            before = head + bytes((code,))
            yield before + _base(bases_s[0]), prefix_range(before + _base(bases_s[-1]))[1]


def _base(base_s: int) -> bytes:
    return base_s.to_bytes(BASE_BYTES, "big")


FAMILY, SEAL_FAMILY = "t", "s"
SEAL, SPAN = b"seal", b"span"

PARTS = ColumnRange(FAMILY, b"", b"")
"""The columns with points."""

_QUALIFIER = struct.Struct(">H")
_WRITTEN = struct.Struct(">q")


def archive_table(prefix: str) -> TableSpec:
    families = {FAMILY: 1, SEAL_FAMILY: 1}
    return TableSpec(f"{prefix}archive", families, holds_points=False, same_keys=True)


def decode_archive_rows(heads: SeriesHeads, rows: Sequence[Selected]) -> DecodedRows:
    """The points of rows of the archive, by series in the order of `rows`; those of a row ascend in time.

    Corrupt cells are left out.
    """
    corruption: list[tuple[Row, str]] = []
    numbers: dict[Series, int] = {}
    cells: list[tuple[int, Row, PartPlace, PartHeader, bytes]] = []
    for row, series, _ in rows:
        try:
            key = parse_key(heads, row.key)
        except ValueError as error:
            corruption.append((row, str(error)))
            continue
        number = numbers.setdefault(series, len(numbers))
        for cell in row.cells:
            if cell.family == FAMILY:
                place = PartPlace(row.key, cell.qualifier, key.base_s * 1000, SPANS_S[key.code] * 1000)
                try:
                    cells.append((number, row, place, archive_cell.header_of(cell.value), cell.value))
                except ArchiveError as error:
                    corruption.append(_corrupt(row, cell.qualifier, error))
    cells.sort(key=operator.itemgetter(0))
    points = PartPoints.empty(sum(header.points for _, _, _, header, _ in cells))
    index, counts = list[int](), list[int]()
    start, row_before, last_ms = 0, None, 0
    for number, row, place, header, value in cells:
        cut = points.cut(start, start + header.points)
        try:
            archive_cell.decode_part(place, header, value, cut)
            if row is row_before and cut.times_ms[0] <= last_ms:
                raise ArchiveError("corrupt: its times overlap those of the part before it")
        except ArchiveError as error:
            corruption.append(_corrupt(row, place.qualifier, error))
            continue
        row_before, last_ms = row, cut.times_ms[-1]
        index.append(number)
        counts.append(header.points)
        start += header.points
    columns = points.cut(0, start)
    return DecodedRows(
        PointBatch(
            tuple(numbers), np.repeat(np.array(index, np.int32), np.array(counts, np.int64)), *columns
        ),
        corruption,
        0,
    )


def _corrupt(row: Row, qualifier: bytes, error: ArchiveError) -> tuple[Row, str]:
    return row, f"part {qualifier[:16].hex()}: {error}"


def archive_findings(
    heads: SeriesHeads, rows: Iterable[Row], of_series: Callable[[Row, ArchiveKey], Iterator[Finding]]
) -> Iterator[Finding]:
    """Rows of the archive that do not decode, or whose series has several spans in a block.

    Keeps one number in memory for each block of a series.

    Args:
      of_series: yields the findings about the series of a row.
    """
    code_of: dict[tuple[SeriesKey, int], int] = {}
    for row in rows:
        try:
            key = parse_key(heads, row.key)
        except ValueError as error:
            yield Finding(Severity.CORRUPT, row.table, row.key, str(error))
            continue
        yield from of_series(row, key)
        decoded = decode_archive_rows(heads, [Selected(row, Series("", ()))])
        yield from (Finding(Severity.CORRUPT, row.table, row.key, text) for _, text in decoded.corruption)
        codes = [cell.value[0] for cell in row.cells if cell.qualifier == SPAN and cell.value]
        codes += [key.code] if any(cell.family == FAMILY for cell in row.cells) else []
        for code in codes:
            first = code_of.setdefault((key.series, key.base_s // BLOCK_S), code)
            if code != first:
                text = f"the series has span codes {min(code, first)} and {max(code, first)} in one block"
                yield Finding(Severity.CORRUPT, row.table, row.key, f"{text}: its rows overlap")


def within_parts(row: Row, key: ArchiveKey, start_ms: int, end_ms: int) -> Row:
    """A row with those parts that can have points from start_ms to end_ms, both inclusive.

    Parts whose header cannot be read are left in, so that decoding reports them.
    """
    base_ms = key.base_s * 1000
    if start_ms <= base_ms and key.end_s * 1000 <= end_ms + 1:
        return row
    return row._replace(
        cells=[cell for cell in row.cells if _overlaps(cell, start_ms - base_ms, end_ms - base_ms)]
    )


def count_points(row: Row) -> int:
    """The points of a row, by the headers of its cells."""
    count = 0
    for cell in row.cells:
        with contextlib.suppress(ArchiveError):
            count += archive_cell.header_of(cell.value).points
    return count


def _overlaps(cell: Cell, first_ms: int, last_ms: int) -> bool:
    try:
        header = archive_cell.header_of(cell.value)
    except ArchiveError:
        return True
    return header.first_ms <= last_ms and header.last_ms >= first_ms


def merged(late: PointBatch, archived: PointBatch, *, by_kind: bool = False) -> tuple[PointBatch, Bools]:
    """Points of the source and of the archive, ascending by series and time, each time once.

    The later arrival wins; of equal arrivals the point of the archive.

    Args:
      by_kind: if arrivals are equal, the later `Kind` wins, then the archive: for layouts that store kinds in
        different rows.

    Returns:
      The points, and bool[n], true for those of the source.
    """
    batch = join([late, archived])
    from_source = np.arange(len(batch)) < len(late)
    if by_kind:
        numbers = np.argsort(batch.kinds, kind="stable")
        batch, from_source = batch.take(numbers), from_source[numbers]
    order = latest_points(batch.index, batch.times_ms, batch.arrivals_ms)
    return batch.take(order), from_source[order]


def archive_cells(heads: SeriesHeads, key: bytes, points: PointBatch) -> list[Cell]:
    """The cells of the row with this key for its points, of one series and ascending in time.

    Raises:
      ValueError: a point does not belong into the row, is not a number, or the points do not ascend.
    """
    key_fields = parse_key(heads, key)
    base_ms, span_ms = key_fields.base_s * 1000, SPANS_S[key_fields.code] * 1000
    columns = PartPoints(points.times_ms, points.in_ms, points.kinds, points.bits, points.arrivals_ms)
    n = len(points)
    cells, pieces = [], -(-n // archive_cell.POINTS)
    bounds = [n * number // pieces for number in range(pieces + 1)] if pieces else []
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        qualifier = _QUALIFIER.pack(number)
        value = archive_cell.encode_part(PartPlace(key, qualifier, base_ms, span_ms), columns.cut(start, end))
        cells.append(Cell(FAMILY, qualifier, int(points.arrivals_ms.max()), value))
    return cells


def remove_points(heads: SeriesHeads, row: Row, deleted: DeleteRange) -> RowDeletion | None:
    """The deletion of points of a row; None if it has none of these. The mutation needs a compare-and-set.

    Raises:
      ValueError: a cell is corrupt.
    """
    decoded = decode_archive_rows(heads, [Selected(row, Series("", ()))])
    if decoded.corruption:
        raise ValueError(decoded.corruption[0][1])
    batch = decoded.batch
    is_deleted = deleted.takes(batch.times_ms, batch.arrivals_ms)
    count = int(np.count_nonzero(is_deleted))
    if not count:
        return None
    old = [cell for cell in row.cells if cell.family == FAMILY]
    new = archive_cells(heads, row.key, batch.take(np.flatnonzero(~is_deleted)))
    return RowDeletion(row._replace(cells=new, deleted=deletions(old)), old, count)


def replacing_row(row: Row | None, new: Row, written_ms: int) -> tuple[Cell | None, Row]:
    """(the cell that says when the row was written, which guards it; the mutation that replaces the row).

    Args:
      row: as it was read; None if it does not exist.
      written_ms: the time of the mutation.
    """
    guard = seal_cell(row)
    if guard is not None:  # two writes never have the same time
        written_ms = max(written_ms, guard.timestamp_ms + 1)
    stale = [Deletion(FAMILY, cell.qualifier) for cell in (row.cells if row else ()) if cell.family == FAMILY]
    seal = Cell(SEAL_FAMILY, SEAL, written_ms, _WRITTEN.pack(written_ms))
    return guard, new._replace(cells=[*new.cells, seal], deleted=stale)


def seal_cell(row: Row | None) -> Cell | None:
    """The cell of a row that says when it was written last; None if it has none."""
    cells = row.cells if row else ()
    return next((cell for cell in cells if (cell.family, cell.qualifier) == (SEAL_FAMILY, SEAL)), None)


def span_row(table: str, series: SeriesKey, time_s: int, code: int) -> Row:
    """The row whose cell says which span a series has in the block of a time."""
    cell = Cell(SEAL_FAMILY, SPAN, 0, bytes((code,)))
    return Row(table, archive_key(series, time_s, BLOCK_CODE), [cell])
