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

import dataclasses
import itertools
import struct
from collections.abc import Iterable, Sequence

import numpy as np

from schema.layouts.base import Cell, Packing
from schema.layouts.opentsdb import elements as el
from schema.layouts.opentsdb.merge import merge
from schema.points import Int64s

FAMILY = "t"
APPEND_QUALIFIER = b"\x05\x00\x00"

_HEADER = struct.Struct(">qIQIIBI")
_QUALIFIER_BYTES = 16 * 1024
_SECONDS, _MILLISECONDS, _MIXED = 1, 2, 3


@dataclasses.dataclass(frozen=True, slots=True)
class RowPiece:
    """One piece taken apart; see the module's table."""

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

    The cell timestamp is the newest arrival in the cell, in ms.
    """
    pieces = [RowPiece.of(piece) for piece in packed]
    if packing is Packing.POINTS:
        return _point_cells(pieces)
    newest = max(piece.arrival_ms for piece in pieces)
    joined = _joined(pieces)
    if packing is Packing.APPEND:
        return [Cell(FAMILY, APPEND_QUALIFIER, newest, el.append_bytes(joined.elements()))]
    return [_column(part, newest) for part in _in_columns(joined)]


def _column(piece: RowPiece, timestamp_ms: int) -> Cell:
    """One compacted column, or a plain point: a TSD misreads a compacted column of one point."""
    if piece.is_single:
        return Cell(FAMILY, piece.qualifiers, timestamp_ms, piece.values)
    trailer = b"\x01" if piece.forms == _MIXED else b"\x00"
    return Cell(FAMILY, piece.qualifiers, timestamp_ms, piece.values + trailer)


def _in_columns(piece: RowPiece) -> list[RowPiece]:
    """A piece in parts of which each fits a column: Bigtable's qualifiers hold 16 KiB."""
    if len(piece.qualifiers) <= _QUALIFIER_BYTES:
        return [piece]
    found = piece.elements()
    bounds = np.append(np.arange(0, len(found), _QUALIFIER_BYTES // 4), len(found))
    arrivals = np.full(len(bounds) - 1, piece.arrival_ms)
    return [RowPiece.of(packed) for packed in packed_rows(found, bounds, arrivals, 0, 0)]


def _joined(pieces: Sequence[RowPiece]) -> RowPiece:
    """One piece with the elements of all: joined if they follow each other in time, else merged."""
    if len(pieces) == 1:
        return pieces[0]
    by_time = sorted(pieces, key=lambda piece: piece.first_ms)
    if all(a.last_ms < b.first_ms for a, b in itertools.pairwise(by_time)):
        forms = 0
        for piece in by_time:
            forms |= piece.forms
        return dataclasses.replace(
            by_time[0],
            forms=forms,
            qualifiers=b"".join(piece.qualifiers for piece in by_time),
            values=b"".join(piece.values for piece in by_time),
        )
    by_arrival = sorted(pieces, key=lambda piece: piece.order)
    merged, _ = merge([piece.elements() for piece in by_arrival])
    bounds = np.array([0, len(merged)], np.int64)
    return RowPiece.of(packed_rows(merged, bounds, np.zeros(1, np.int64), 0, 0)[0])


def _point_cells(pieces: Sequence[RowPiece]) -> list[Cell]:
    """A cell for each point with its own arrival; of one instant the last piece's of equal arrival.

    Two values of one instant that arrived at different times and differ in their qualifier (an
    integer corrected to a decimal) both stay, as a TSD leaves them: the newer cell wins on reading.
    """
    by_arrival: dict[int, list[RowPiece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.order):
        by_arrival.setdefault(piece.arrival_ms, []).append(piece)
    newest: dict[bytes, Cell] = {}
    for arrival_ms, together in by_arrival.items():
        joined = _joined(together)
        found = joined.elements()
        qualifiers, qualifier_starts = el.qualifier_bytes(found.codes)
        values, value_starts = el.value_bytes(found)
        q, v = qualifier_starts.tolist(), value_starts.tolist()
        for i in range(len(found)):
            qualifier = qualifiers[q[i] : q[i + 1]]
            newest[qualifier] = Cell(FAMILY, qualifier, arrival_ms, values[v[i] : v[i + 1]])
    return [newest[qualifier] for qualifier in sorted(newest)]
