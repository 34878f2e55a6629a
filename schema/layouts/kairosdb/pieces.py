"""A piece: the points of one batch in one row, ready to become cells.

| bytes | what |
|---|---|
| 4 | number of points, n |
| 4, 8 | checksum of the source's name and offset in it: which of two pieces is the later one |
| 4 n | columns, ascending, each once |
| 8 n | arrivals in ms |
| 4 n | sizes of the values |
| rest | values |

All big-endian. Columns and values are those of the cells.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np

from timebeam.schema.layouts.tables import Cell
from timebeam.schema.points import Int64s

_HEADER = struct.Struct(">IIQ")


class Points(NamedTuple):
    """n points; those of one row stand together, of one kind, ascending in time.

    Attributes:
      columns: int64[n], each once within a row.
      arrivals_ms: int64[n].
      values: by kind, the values of its points one behind the other.
      sizes: int64[n], the bytes of each point's value.
    """

    columns: Int64s
    arrivals_ms: Int64s
    values: Sequence[bytes]
    sizes: Int64s


def packed_rows(points: Points, bounds: Int64s, kinds: Int64s, origin: tuple[int, int]) -> list[bytes]:
    """The pieces of r rows.

    Args:
      bounds: int64[r + 1], where each row starts, and n.
      kinds: int64[r], the kind of each row's values.
      origin: checksum of the source and offset in it.
    """
    columns, sizes = points.columns.astype(">u4").tobytes(), points.sizes.astype(">u4").tobytes()
    arrivals = points.arrivals_ms.astype(">i8").tobytes()
    row_sizes = np.add.reduceat(points.sizes, bounds[:-1])
    starts = np.zeros(len(kinds), np.int64)
    for kind in range(len(points.values)):
        of_kind = row_sizes[kinds == kind]
        starts[kinds == kind] = np.cumsum(of_kind) - of_kind
    at = bounds.tolist()
    pack = _HEADER.pack
    return [
        b"".join(
            (
                pack(last - first, *origin),
                columns[4 * first : 4 * last],
                arrivals[8 * first : 8 * last],
                sizes[4 * first : 4 * last],
                points.values[kind][start:end],
            )
        )
        for first, last, kind, start, end in zip(
            at, at[1:], kinds.tolist(), starts.tolist(), (starts + row_sizes).tolist(), strict=False
        )
    ]


def cells(packed: Iterable[bytes], family: str) -> list[Cell]:
    """The cells of one row from its pieces: the same whatever their order.

    Of several points of one column the newest arrival wins; of equal arrivals the one of the source and
    offset that come later in order, which within one file is the later one.
    """
    pieces = sorted(packed, key=_order)
    columns, arrivals, values = _read(pieces[0])
    if len(pieces) > 1:
        parts = [(columns, arrivals, values), *map(_read, pieces[1:])]
        columns, arrivals = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.lexsort((arrivals, columns))
        ascending = columns[order]
        order = order[np.append(ascending[1:] != ascending[:-1], True)]
        columns, arrivals = columns[order].astype(">u4"), arrivals[order]
        every = [value for part in parts for value in part[2]]
        values = [every[i] for i in order.tolist()]
    return list(map(Cell, repeat(family), columns.view("V4").tolist(), arrivals.tolist(), values))


def _order(piece: bytes) -> tuple[int, int, bytes]:
    """Pieces of one row win over those before them in this order; equal ones are the same."""
    _, checksum, offset = _HEADER.unpack_from(piece)
    return checksum, offset, piece


def _read(piece: bytes) -> tuple[Int64s, Int64s, list[bytes]]:
    """(columns, arrivals, values) of a piece; the numbers still big-endian, the columns in 4 bytes."""
    n = _HEADER.unpack_from(piece)[0]
    at = _HEADER.size
    columns = np.frombuffer(piece, ">u4", n, at)
    arrivals = np.frombuffer(piece, ">i8", n, at + 4 * n)
    sizes = np.frombuffer(piece, ">u4", n, at + 12 * n).tolist()
    ends = list(accumulate(sizes, initial=at + 16 * n))
    return columns, arrivals, list(map(piece.__getitem__, map(slice, ends, ends[1:])))
