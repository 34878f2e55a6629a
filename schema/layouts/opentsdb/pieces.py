"""Pieces: what one batch holds of one row, packed; and the merging of pieces into cells.

A piece is what travels between the workers: qualifiers and values in their stored form, so that
the usual case (one piece, or pieces one behind the other in time) needs no decoding to be packed.

| bytes | content |
|---|---|
| 8 | arrival in ms, the cell timestamp |
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
| 4, 4 | offset of the first and of the last element from the base time, in ms |
| 1 | forms: 1 qualifiers of two bytes, 2 of four, 3 both |
| 4 | bytes of the qualifiers, which follow; then the values |
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.layouts.opentsdb import elements as el
from timebeam.schema.layouts.opentsdb.merge import merge
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.layouts.writing import Packing
from timebeam.schema.points import Int64s

FAMILY = "t"
APPEND_QUALIFIER = b"\x05\x00\x00"

_HEADER = struct.Struct(">qIQIIBI")
_QUALIFIER_BYTES = 16 * 1024
_SECONDS, _MILLISECONDS, _MIXED = 1, 2, 3


class RowPiece(NamedTuple):
    """One piece taken apart; see the module's table. A tuple, since there may be one for each point."""

    arrival_ms: int
    checksum: int
    offset: int
    first_ms: int
    last_ms: int
    forms: int
    qualifiers: bytes
    values: bytes

    @classmethod
    def of(cls, packed: bytes) -> RowPiece:
        """The piece in these bytes."""
        arrival_ms, checksum, offset, first_ms, last_ms, forms, size = _HEADER.unpack_from(packed)
        at = _HEADER.size
        qualifiers, values = packed[at : at + size], packed[at + size :]
        return cls(arrival_ms, checksum, offset, first_ms, last_ms, forms, qualifiers, values)

    @property
    def order(self) -> tuple[int, int, int, bytes, bytes]:
        """Pieces of one row win over those before them in this order; equal ones are the same."""
        return self.arrival_ms, self.checksum, self.offset, self.qualifiers, self.values

    @property
    def is_single(self) -> bool:
        """Whether the piece holds one element only."""
        return len(self.qualifiers) == (4 if self.forms == _MILLISECONDS else 2)

    def elements(self) -> el.Elements:
        """Its elements."""
        return el.split_columns(self.qualifiers, self.values)


def packed_rows(
    elements: el.Elements, bounds: Int64s, arrivals_ms: Int64s, checksum: int, offset: int
) -> list[bytes]:
    """The pieces of consecutive slices of elements.

    Args:
      elements: n elements; those of one row stand together, ascending, one per instant.
      bounds: int64[r + 1], where each of the r rows starts, and n.
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


def cells(packed: Iterable[bytes], packing: Packing) -> list[Cell]:
    """The cells of one row from its pieces: the same whatever their order.

    The cell timestamp is the arrival of the cell's points, in ms. So a compacted column holds points
    of one arrival only: an old point in a newer column would beat corrections that came in between.
    """
    pieces = [RowPiece.of(piece) for piece in packed]
    if packing is Packing.APPEND:
        newest = max(piece.arrival_ms for piece in pieces)
        return [Cell(FAMILY, APPEND_QUALIFIER, newest, el.append_bytes(_joined(pieces).elements()))]
    by_arrival = _by_arrival(pieces)
    if packing is Packing.POINTS:
        return _point_cells(by_arrival)
    return [_column(part) for piece in _without_superseded(by_arrival) for part in _in_columns(piece)]


def event_cells(packed: Iterable[bytes], base_s: int) -> list[Cell]:
    """The cells of one row with the time of their points as timestamp, a cell each.

    Format: docs/spec/opentsdb.md §2.2, rule 6.

    Values of one instant that differ in their qualifiers all stay; of one column the last one does.

    Args:
      base_s: base time of the row in seconds.
    """
    pieces = sorted([RowPiece.of(piece) for piece in packed], key=lambda piece: piece.order)
    cells = _point_cells(pieces)
    codes = el.split_qualifiers(b"".join([cell.qualifier for cell in cells]))
    times_ms = base_s * 1000 + el.offsets_ms(codes)
    return [
        cell._replace(timestamp_ms=time_ms) for cell, time_ms in zip(cells, times_ms.tolist(), strict=True)
    ]


def columns(found: el.Elements, timestamp_ms: int) -> list[Cell]:
    """Compacted columns that hold these elements; a plain point if there is one only.

    Args:
      found: at least one element; one per instant, ascending.
      timestamp_ms: of the cells.
    """
    (whole,) = _packed(found, np.array([0, len(found)]), timestamp_ms)
    return [_column(part) for part in _in_columns(whole)]


def _by_arrival(pieces: Sequence[RowPiece]) -> list[RowPiece]:
    """One piece for each arrival, ascending."""
    together: dict[int, list[RowPiece]] = {}
    for piece in pieces:
        together.setdefault(piece.arrival_ms, []).append(piece)
    return [_joined(together[arrival_ms]) for arrival_ms in sorted(together)]


def _without_superseded(pieces: Sequence[RowPiece]) -> Sequence[RowPiece]:
    """The pieces, in the order of their arrival, less the points that a later one has too."""
    if len(pieces) == 1 or _follow_each_other(sorted(pieces, key=_first_ms)):
        return pieces
    merged, column = merge([piece.elements() for piece in pieces])
    left = []
    for number, piece in enumerate(pieces):
        own = merged.take(np.flatnonzero(column == number))
        if len(own):
            left += _packed(own, np.array([0, len(own)]), piece.arrival_ms)
    return left


def _column(piece: RowPiece) -> Cell:
    """One compacted column, or a plain point: a TSD misreads a compacted column of one point."""
    if piece.is_single:
        return Cell(FAMILY, piece.qualifiers, piece.arrival_ms, piece.values)
    trailer = b"\x01" if piece.forms == _MIXED else b"\x00"
    return Cell(FAMILY, piece.qualifiers, piece.arrival_ms, piece.values + trailer)


def _in_columns(piece: RowPiece) -> list[RowPiece]:
    """A piece in parts of which each fits a column: Bigtable's qualifiers hold 16 KiB."""
    if len(piece.qualifiers) <= _QUALIFIER_BYTES:
        return [piece]
    found = piece.elements()
    bounds = np.append(np.arange(0, len(found), _QUALIFIER_BYTES // 4), len(found))
    return _packed(found, bounds, piece.arrival_ms)


def _packed(found: el.Elements, bounds: Int64s, arrival_ms: int) -> list[RowPiece]:
    """Slices of elements as pieces of one arrival."""
    arrivals = np.full(len(bounds) - 1, arrival_ms)
    return [RowPiece.of(packed) for packed in packed_rows(found, bounds, arrivals, 0, 0)]


def _first_ms(piece: RowPiece) -> int:
    return piece.first_ms


def _follow_each_other(by_time: Sequence[RowPiece]) -> bool:
    """Whether each piece ends before the next one starts."""
    return all(a.last_ms < b.first_ms for a, b in itertools.pairwise(by_time))


def _joined(pieces: Sequence[RowPiece]) -> RowPiece:
    """One piece with the elements of all: joined if they follow each other in time, else merged."""
    if len(pieces) == 1:
        return pieces[0]
    by_time = sorted(pieces, key=_first_ms)
    if _follow_each_other(by_time):
        forms = 0
        for piece in by_time:
            forms |= piece.forms
        return by_time[0]._replace(
            forms=forms,
            qualifiers=b"".join(piece.qualifiers for piece in by_time),
            values=b"".join(piece.values for piece in by_time),
        )
    by_arrival = sorted(pieces, key=lambda piece: piece.order)
    merged, _ = merge([piece.elements() for piece in by_arrival])
    return _packed(merged, np.array([0, len(merged)]), by_arrival[0].arrival_ms)[0]


def _point_cells(by_arrival: Sequence[RowPiece]) -> list[Cell]:
    """A cell for each point, with its own arrival as timestamp.

    Two values of one instant that arrived at different times and differ in their qualifier (an
    integer corrected to a decimal) both stay, as a TSD leaves them: the newer cell wins on reading.
    """
    newest: dict[bytes, Cell] = {}
    for piece in by_arrival:
        qualifiers, values, arrival_ms = piece.qualifiers, piece.values, piece.arrival_ms
        at = value_at = 0
        while at < len(qualifiers):
            end = at + (4 if qualifiers[at] >= 0xF0 else 2)  # the first nibble F: milliseconds
            value_end = value_at + (qualifiers[end - 1] & 7) + 1
            qualifier = qualifiers[at:end]
            newest[qualifier] = Cell(FAMILY, qualifier, arrival_ms, values[value_at:value_end])
            at, value_at = end, value_end
    return [newest[qualifier] for qualifier in sorted(newest)]
