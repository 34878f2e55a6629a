"""A fragment: the points of one batch in one row, ready to become cells.

| bytes | content |
|---|---|
| 4 | number of points, n |
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
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


class ColumnPoints(NamedTuple):
    """n points, row by row; those of a row have one kind and ascend in time.

    Attributes:
      columns: int64[n], each once within a row.
      arrivals_ms: int64[n].
      values: for each kind, the concatenated values of its points.
      sizes: int64[n], the bytes of each point's value.
    """

    columns: Int64s
    arrivals_ms: Int64s
    values: Sequence[bytes]
    sizes: Int64s


def packed_rows(points: ColumnPoints, bounds: Int64s, kinds: Int64s, origin: tuple[int, int]) -> list[bytes]:
    """The fragments of r rows.

    Args:
      bounds: int64[r + 1], the start of each row, and n.
      kinds: int64[r], the kind of each row's values.
      origin: checksum of the source and offset in it.
    """
    columns, sizes = points.columns.astype(">u4").tobytes(), points.sizes.astype(">u4").tobytes()
    arrivals = points.arrivals_ms.astype(">i8").tobytes()
    row_sizes = np.add.reduceat(points.sizes, bounds[:-1])
    starts = np.zeros(len(kinds), np.int64)
    for kind in range(len(points.values)):
        sizes_of_kind = row_sizes[kinds == kind]
        starts[kinds == kind] = np.cumsum(sizes_of_kind) - sizes_of_kind
    row_starts = bounds.tolist()
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
            row_starts,
            row_starts[1:],
            kinds.tolist(),
            starts.tolist(),
            (starts + row_sizes).tolist(),
            strict=False,
        )
    ]


def cells(packed: Iterable[bytes], family: str) -> list[Cell]:
    """The cells of one row, whatever the order of its fragments.

    The latest arrival wins a column; within one arrival, the greater source checksum, then the greater
    offset in the source.
    """
    in_order = sorted(packed, key=_order)
    columns, arrivals, values = _read(in_order[0])
    if len(in_order) > 1:
        columns_of_all = [(columns, arrivals, values), *map(_read, in_order[1:])]
        columns, arrivals = (np.concatenate([fragment[i] for fragment in columns_of_all]) for i in (0, 1))
        order = np.lexsort((arrivals, columns))
        ascending = columns[order]
        order = order[np.append(ascending[1:] != ascending[:-1], True)]
        columns, arrivals = columns[order].astype(">u4"), arrivals[order]
        all_values = [value for fragment in columns_of_all for value in fragment[2]]
        values = [all_values[i] for i in order.tolist()]
    return list(map(Cell, repeat(family), columns.view("V4").tolist(), arrivals.tolist(), values))


def _order(fragment: bytes) -> tuple[int, int, bytes]:
    """Sort key: a later fragment of a row wins over an earlier one; equal keys mean equal fragments."""
    _, checksum, offset = _HEADER.unpack_from(fragment)
    return checksum, offset, fragment


def _read(fragment: bytes) -> tuple[Int64s, Int64s, list[bytes]]:
    """(columns big-endian uint32[n], arrivals big-endian int64[n], values) of a fragment."""
    n = _HEADER.unpack_from(fragment)[0]
    offset = _HEADER.size
    columns = np.frombuffer(fragment, ">u4", n, offset)
    arrivals = np.frombuffer(fragment, ">i8", n, offset + 4 * n)
    sizes = np.frombuffer(fragment, ">u4", n, offset + 12 * n).tolist()
    ends = list(accumulate(sizes, initial=offset + 16 * n))
    return columns, arrivals, list(map(fragment.__getitem__, map(slice, ends, ends[1:])))
