"""Fragments of rows, and the cells that they become: one batch's points in one row.

Qualifiers and values are in their stored form, so the usual case (one fragment, or fragments that follow
each other in time) is packed without decoding. In packing `points` fragments are those of
`timebeam.schema.core.cell_fragments` instead. In the other packings, these follow 28 zeros and the form 5
if the points of the batch have several arrivals, as those of messages do.

| bytes | content |
|---|---|
| 8 | arrival in ms, the cell timestamp |
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
| 4, 4 | offset of the first and of the last element from the base time, in ms |
| 1 | forms: 1 qualifiers of two bytes, 2 of four, 3 both |
| 4 | bytes of the qualifiers, which follow; then the values |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.core import cell_fragments
from timebeam.schema.core.cell_fragments import CellColumns, SlotPoints, Strings
from timebeam.schema.core.rejections import Origins
from timebeam.schema.core.rows import QUALIFIER_BYTES, Cell
from timebeam.schema.core.writing import Packing
from timebeam.schema.stores.opentsdb.columns import histogram_cells
from timebeam.schema.stores.opentsdb.columns import qualifiers as el

FAMILY = "t"
APPEND_QUALIFIER = b"\x05\x00\x00"

_HEADER = struct.Struct(">qIQIIBI")
_SECONDS, _MILLISECONDS, _MIXED, _SEVERAL_ARRIVALS = 1, 2, 3, 5
_FORM_AT = 28
_SEVERAL = bytes(_FORM_AT) + bytes([_SEVERAL_ARRIVALS])
_OFFSET_BITS = 22


def has_several_arrivals(packed: bytes) -> bool:
    """Whether a fragment of packing `compacted` or `append` may hold points of several arrivals."""
    return packed[_FORM_AT] == _SEVERAL_ARRIVALS


def point_rows(points: SlotPoints, origins: Origins | None, packing: Packing) -> list[bytes]:
    """The fragments of rows whose points may have several arrivals; see `SlotPoints.fragments`."""
    packed = points.fragments(*cell_fragments.origin_of(origins))
    return packed if packing is Packing.POINTS else [_SEVERAL + fragment for fragment in packed]


def packed_rows(
    elements: el.Elements, bounds: Int64s, arrivals_ms: Int64s, checksum: int, offset: int
) -> list[bytes]:
    """The fragments of consecutive slices of elements.

    Args:
      elements: n elements, row by row; within a row ascending, one per instant.
      bounds: int64[r + 1], the start of each of the r rows, and n.
      arrivals_ms: int64[r], the arrival of each row's points.
    """
    qualifiers, qualifier_starts = el.qualifier_bytes(elements.codes)
    values, value_starts = el.value_bytes(elements)
    offsets = elements.offsets_ms
    milliseconds = np.add.reduceat(elements.in_ms.astype(np.int64), bounds[:-1])
    sizes = np.diff(bounds)
    forms = np.where(milliseconds == 0, _SECONDS, np.where(milliseconds == sizes, _MILLISECONDS, _MIXED))
    qualifier_at = qualifier_starts[bounds].tolist()
    value_at = value_starts[bounds].tolist()
    pack = _HEADER.pack
    return [
        pack(arrival, checksum, offset, first, last, form, q_end - q_start)
        + qualifiers[q_start:q_end]
        + values[v_start:v_end]
        for arrival, first, last, form, q_start, q_end, v_start, v_end in zip(
            arrivals_ms.tolist(),
            offsets[bounds[:-1]].tolist(),
            offsets[bounds[1:] - 1].tolist(),
            forms.tolist(),
            qualifier_at,
            qualifier_at[1:],
            value_at,
            value_at[1:],
            strict=False,
        )
    ]


def extent(packed: Iterable[bytes], packing: Packing) -> tuple[set[int], int, int]:
    """(arrivals, offset of the first element and of the last one from the base time), in ms, of fragments."""
    numbers, histograms = histogram_cells.split(packed, packing)
    arrivals_ms, offsets_ms = histogram_cells.extent(histograms)
    without_extent = []
    for fragment in numbers:
        if packing is Packing.POINTS or has_several_arrivals(fragment):
            without_extent.append(fragment)
        else:  # as those of files, whose headers say it
            arrival_ms, _, _, first_ms, last_ms, _, _ = _HEADER.unpack_from(fragment)
            arrivals_ms.add(arrival_ms)
            offsets_ms += (first_ms, last_ms)
    if without_extent:
        points = _points([without_extent], packing)
        arrivals_ms |= set(points.arrivals_ms.tolist())
        offsets_ms += el.offsets_ms(points.slots.astype(np.uint32)).tolist()
    return arrivals_ms, min(offsets_ms), max(offsets_ms)


def cell_columns(rows: Iterable[Iterable[bytes]], packing: Packing) -> CellColumns:
    """The cells of rows in packing `compacted` or `append`, whatever the order of their fragments.

    The latest arrival of an instant wins; within one arrival, the last point. The cell timestamp is the
    arrival of the cell's points, in ms. So a compacted column holds points of one arrival only: an old point
    in a newer column would win over corrections between the two.
    """
    numbers, histograms = zip(*(histogram_cells.split(packed, packing) for packed in rows), strict=True)
    if not any(histograms):
        columns_of = _append_columns if packing is Packing.APPEND else _compacted_columns
        return columns_of(_one_per_instant(_points(numbers, packing)))
    return CellColumns.of(
        [
            (cell_columns([of_row], packing).cells(0) if of_row else [])
            + histogram_cells.cells(histograms_of_row, FAMILY)
            for of_row, histograms_of_row in zip(numbers, histograms, strict=True)
        ]
    )


def columns(elements: el.Elements, timestamp_ms: int) -> list[Cell]:
    """Compacted columns that hold these elements; a plain point for a single element.

    >>> elements = el.split_append(bytes.fromhex("0000 01 0010 02 0021 012c 003f 3ff8000000000000"))
    >>> [(cell.qualifier.hex(), cell.value.hex()) for cell in columns(elements, 9000)]
    [('000000100021003f', '0102012c3ff800000000000000')]

    Args:
      elements: one or more, one per instant, ascending.
      timestamp_ms: of the cells.
    """
    n = len(elements)
    arrivals_ms, codes = np.full(n, timestamp_ms), elements.codes.astype(np.int64)
    points = SlotPoints(np.array([0, n]), codes, arrivals_ms, el.value_bytes(elements))
    return _compacted_columns(points).cells(0)


def ascending_columns(fragments: Iterable[bytes]) -> list[Cell] | None:
    """The columns of fragments that follow each other in arrival and time, as in most files; else None.

    Also None for a column over Bigtable's limit.
    """
    unpack, start = _HEADER.unpack_from, _HEADER.size
    columns = list[tuple[int, int, bytes, bytes]]()
    newest_ms, end_ms = -(1 << 64), -1
    for packed in sorted(fragments, key=_arrival_and_first):
        if packed[_FORM_AT] > _MIXED:
            return None
        arrival_ms, _, _, first_ms, last_ms, forms, size = unpack(packed)
        if first_ms <= end_ms or arrival_ms < newest_ms:
            return None
        qualifiers, values = packed[start : start + size], packed[start + size :]
        if arrival_ms == newest_ms:
            _, earlier_forms, earlier_qualifiers, earlier_values = columns.pop()
            forms |= earlier_forms
            qualifiers, values = earlier_qualifiers + qualifiers, earlier_values + values
        if len(qualifiers) > QUALIFIER_BYTES:
            return None
        columns.append((arrival_ms, forms, qualifiers, values))
        newest_ms, end_ms = arrival_ms, last_ms
    return [_cell(*column) for column in columns]


def _arrival_and_first(packed: bytes) -> tuple[bytes, bytes]:
    """Sort key: the arrival of a fragment and its first offset."""
    return packed[:8], packed[20:24]


def _cell(arrival_ms: int, forms: int, qualifiers: bytes, values: bytes) -> Cell:
    """One compacted column, or a plain point: a TSD misreads a compacted column of one point."""
    if len(qualifiers) == (4 if forms == _MILLISECONDS else 2):
        return Cell(FAMILY, qualifiers, arrival_ms, values)
    return Cell(FAMILY, qualifiers, arrival_ms, values + (b"\x01" if forms == _MIXED else b"\x00"))


def _points(rows: Iterable[Iterable[bytes]], packing: Packing) -> SlotPoints:
    """The points of the fragments of each row."""
    if packing is Packing.POINTS:
        return SlotPoints.of(rows)
    return SlotPoints.of(map(_point_fragment, fragments) for fragments in rows)


def _point_fragment(packed: bytes) -> bytes:
    """A fragment of packing `compacted` or `append` as one of `cell_fragments`."""
    if has_several_arrivals(packed):
        return packed[len(_SEVERAL) :]
    arrival_ms, checksum, offset, _, _, _, size = _HEADER.unpack_from(packed)
    values_at = _HEADER.size + size
    codes = el.split_qualifiers(packed[_HEADER.size : values_at])
    origin = checksum, offset
    return cell_fragments.fragment_of(origin, arrival_ms, codes, el.widths_of(codes), packed[values_at:])


def _one_per_instant(points: SlotPoints) -> SlotPoints:
    """One point of each instant of a row, the latest arrival; within one arrival, the last point."""
    instants = points.rows << _OFFSET_BITS | el.offsets_ms(points.slots.astype(np.uint32))
    if (instants[1:] > instants[:-1]).all():
        return points
    return points.take(cell_fragments.newest(instants, points.arrivals_ms))


def _append_columns(points: SlotPoints) -> CellColumns:
    """A cell for each row, with the newest of its arrivals."""
    elements = el.of_strings(points.slots.astype(np.uint32), points.values)
    starts = cell_fragments.starts_of(elements.widths + np.where(elements.in_ms, 4, 2))
    n = len(points.bounds) - 1
    return CellColumns(
        np.arange(n + 1),
        (FAMILY,),
        np.zeros(n, np.int64),
        (APPEND_QUALIFIER * n, np.arange(n + 1) * len(APPEND_QUALIFIER)),
        np.maximum.reduceat(points.arrivals_ms, points.bounds[:-1]),
        (el.append_bytes(elements), starts[points.bounds]),
    )


def _compacted_columns(points: SlotPoints) -> CellColumns:
    """A cell for each row and arrival, or several cells if its qualifiers have more than 16 KiB.

    Args:
      points: one of each instant of a row, ascending.
    """
    rows, arrivals_ms = points.rows, points.arrivals_ms
    if ((arrivals_ms[1:] < arrivals_ms[:-1]) & (rows[1:] == rows[:-1])).any():
        points = points.take(np.lexsort((arrivals_ms, rows)))  # stable: by instant within an arrival
        rows, arrivals_ms = points.rows, points.arrivals_ms
    codes = points.slots.astype(np.uint32)
    qualifiers, qualifier_starts = el.qualifier_bytes(codes)
    is_new = np.append(True, (arrivals_ms[1:] != arrivals_ms[:-1]) | (rows[1:] != rows[:-1]))
    firsts = np.flatnonzero(is_new)
    bounds = np.append(firsts, len(rows))
    for column in np.flatnonzero(np.diff(qualifier_starts[bounds]) > QUALIFIER_BYTES).tolist():
        is_new[bounds[column] : bounds[column + 1] : QUALIFIER_BYTES // 4] = True
    firsts = np.flatnonzero(is_new)
    bounds = np.append(firsts, len(rows))
    in_ms = np.add.reduceat(codes >= el.MS_FLAG, firsts, dtype=np.int64)
    return CellColumns(
        np.searchsorted(rows[firsts], np.arange(len(points.bounds))),
        (FAMILY,),
        np.zeros(len(firsts), np.int64),
        (qualifiers, qualifier_starts[bounds]),
        arrivals_ms[firsts],
        _ended(points.values, bounds, (in_ms > 0) & (in_ms < np.diff(bounds))),
    )


def _ended(values: Strings, bounds: Int64s, is_mixed: Bools) -> Strings:
    """The values of compacted columns, each with its last byte; a plain point has none."""
    content, starts = values
    is_compacted = np.diff(bounds) > 1
    ends = starts[bounds[1:]]
    ended = np.insert(np.frombuffer(content, np.uint8), ends[is_compacted], is_mixed[is_compacted])
    return ended.tobytes(), starts[bounds] + np.append(0, np.cumsum(is_compacted))
