"""Cells of annotations: rows by TSUID and time, columns 01 (docs/spec/opentsdb.md §4.1).

meta/Annotation.getRowKey and getQualifier of OpenTSDB 2.4.1.

| | bytes |
|---|---|
| row of a series | as for points: salt, metric, base time, tags |
| row of global annotations | zeros for salt and metric, base time; no tags |
| qualifier | 01, then 2 bytes of seconds, or 4 of milliseconds, since the base time: see `qualifier` |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.annotations import Annotation, NotAnAnnotationError, as_ms, parse_stored
from timebeam.schema.core.points import FIRST_MILLISECOND
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, remove_cells
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import ColumnRange, Scan
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.columns.decode_row import ANNOTATION
from timebeam.schema.stores.opentsdb.encode import FAMILY
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.select import key_of_tsuid

COLUMNS = ColumnRange(FAMILY, b"\x01", b"\x02")
"""The columns that can hold annotations; they include the points of seconds 16 to 31."""

_SPAN_MS = keys.SPAN_S * 1000


class CellAddress(NamedTuple):
    """A cell of the data table: annotations of one series and time share it."""

    key: bytes
    qualifier: bytes


def is_annotation(qualifier: bytes) -> bool:
    """Whether a column of a data row holds an annotation."""
    return len(qualifier) in (3, 5) and qualifier[0] == ANNOTATION


def qualifier(start: int) -> bytes:
    """The column of a start in s or, from 2**32 on, in ms; a whole second has the same column in both.

    But for seconds that are a multiple of 1,000: a TSD takes every such number for ms, so their column has
    another offset, which is also that of another second of the hour. Only the JSON tells the start.

    >>> qualifier(1356999001).hex()  # 601 s after the base time
    '010259'
    >>> qualifier(1356999000).hex()  # 1356999 % 3600 s
    '010d47'
    >>> qualifier(1356999000000).hex()
    '010258'
    """
    time = start if start % 1000 else start // 1000
    if time >= FIRST_MILLISECOND:
        return bytes((ANNOTATION,)) + (time % _SPAN_MS).to_bytes(4, "big")
    return bytes((ANNOTATION,)) + (time % keys.SPAN_S).to_bytes(2, "big")


def offset_ms(column: bytes) -> int:
    """The time in the column of an annotation or histogram, in ms since the base time.

    That of an annotation can be another one than its start: see `qualifier`.
    """
    offset = int.from_bytes(column[1:], "big")
    return offset * 1000 if len(column) == 3 else offset


def place(options: OpenTsdbOptions, tsuid: bytes, start: int) -> CellAddress:
    """The cell of an annotation that begins at `start`, in s or, from 2**32 on, in ms.

    Args:
      tsuid: of its series; empty for a global annotation.
    """
    base_s = as_ms(start) // _SPAN_MS * keys.SPAN_S
    if tsuid:
        key = keys.row_key(key_of_tsuid(options, tsuid), base_s)
    else:
        key = global_head(options) + base_s.to_bytes(4, "big")
    return CellAddress(key, qualifier(start))


def former_place(options: OpenTsdbOptions, tsuid: bytes, start: int) -> CellAddress:
    """Where earlier versions stored an annotation; but for seconds that are a multiple of 1,000, `place`."""
    return place(options, tsuid, start)._replace(qualifier=qualifier(as_ms(start)))


def tsuid_of(options: OpenTsdbOptions, key: bytes) -> bytes:
    """The TSUID of a data row; empty for a row of global annotations.

    Raises:
      ValueError: it is not the key of such a row.
    """
    if is_global(options, key):
        return b""
    return keys.parse_key(options, key).tsuid


def global_head(options: OpenTsdbOptions) -> bytes:
    """The first bytes of the keys of all rows of global annotations."""
    return bytes(options.salt_width + options.uid_width_metric)


def is_global(options: OpenTsdbOptions, key: bytes) -> bool:
    """Whether a row is for global annotations."""
    head = global_head(options)
    return key.startswith(head) and len(key) == len(head) + 4


def global_scan(options: OpenTsdbOptions, table: str, start_ms: int, end_ms: int) -> Scan:
    """The rows of global annotations that start in the hours from `start_ms` to `end_ms`, both inclusive."""
    first, last = (
        min(max(0, time_ms), (1 << 32) * 1000 - 1) // _SPAN_MS * keys.SPAN_S for time_ms in (start_ms, end_ms)
    )
    head = global_head(options)
    ends = (head + first.to_bytes(4, "big"), head + last.to_bytes(4, "big") + b"\x00")
    return Scan(table, (ends,), columns=COLUMNS)


def check_tsuid(options: OpenTsdbOptions, text: str) -> bytes:
    """The bytes of a TSUID in hex.

    Raises:
      RejectedError: BAD_TAG or BAD_METRIC; no series has this TSUID.
    """
    try:
        tsuid = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        tsuid = b""
    metric, pair = options.uid_width_metric, options.uid_width_tagk + options.uid_width_tagv
    if len(tsuid) <= metric or (len(tsuid) - metric) % pair:
        raise RejectedError(
            Reason.BAD_METRIC,
            f"no tsuid: {text[:80]!r}: give {metric} bytes of metric and {pair} of each tag, in hex",
        )
    if not any(tsuid[:metric]):
        raise RejectedError(Reason.BAD_METRIC, f"tsuid {text}: zero is not the UID of a metric")
    pairs = [tsuid[start : start + pair] for start in range(metric, len(tsuid), pair)]
    if pairs != sorted(set(pairs)):
        raise RejectedError(Reason.BAD_TAG, f"tsuid {text}: its tags are not in the order of their UIDs")
    return tsuid


class AnnotationCell(NamedTuple):
    """The cell of an annotation.

    Attributes:
      note: the annotation; None if it is corrupt.
      corruption: what is wrong with it.
      start_ms: when it starts; what its column says if it is corrupt.
    """

    cell: Cell
    note: Annotation | None
    corruption: str
    start_ms: int


def read_annotations(options: OpenTsdbOptions, row: Row) -> Iterator[AnnotationCell]:
    """The annotations of a data row or a row of global annotations; corrupt cells do not raise.

    An annotation whose time or series is not that of its cell is corrupt: a TSD that updates it would write
    another cell. Those that earlier versions stored in another column than a TSD are not.

    Raises:
      ValueError: the key is not that of such a row.
    """
    tsuid = tsuid_of(options, row.key)
    base_ms = keys.base_s_of(options, row.key) * 1000
    for cell in row.cells:
        if not is_annotation(cell.qualifier):
            continue
        column_ms = base_ms + offset_ms(cell.qualifier)
        try:
            note = parse_stored(cell.value)
        except NotAnAnnotationError as error:
            yield AnnotationCell(cell, None, f"annotation {cell.qualifier.hex()}: {error}", column_ms)
            continue
        corruption = ""
        if not belongs(options, tsuid, note, CellAddress(row.key, cell.qualifier)):
            corruption = (
                f"annotation {cell.qualifier.hex()}: its startTime {note.start} belongs to another cell"
            )
        elif note.tsuid.upper() != tsuid.hex().upper():
            corruption = f"annotation {cell.qualifier.hex()}: its tsuid {note.tsuid!r} is not that of its row"
        yield AnnotationCell(
            cell, None if corruption else note, corruption, column_ms if corruption else note.start_ms
        )


def belongs(options: OpenTsdbOptions, tsuid: bytes, note: Annotation, stored: CellAddress) -> bool:
    """Whether a TSD, or an earlier version, stores an annotation that starts then in this cell."""
    return note.start_ms < FIRST_MILLISECOND * 1000 and stored in (
        place(options, tsuid, note.start),
        former_place(options, tsuid, note.start),
    )


def starts_at(value: bytes, start: int) -> bool:
    """Whether a stored value is an annotation of exactly this start, in this unit."""
    try:
        return parse_stored(value).start == start
    except NotAnAnnotationError:
        return False


def remove_annotations(options: OpenTsdbOptions, row: Row, deleted: DeleteRange) -> RowDeletion | None:
    """The deletion of the annotations of a row that start in the range; None if it has none.

    Corrupt ones start where their columns say.

    Raises:
      ValueError: the key is not that of a row of the data table.
    """
    starts_ms = {note.cell: note.start_ms for note in read_annotations(options, row)}
    times_ms = [starts_ms.get(cell, -1) for cell in row.cells]
    return remove_cells(row, np.array(times_ms, np.int64), deleted)
