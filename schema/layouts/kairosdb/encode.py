"""Encodes a batch of points into fragments of rows, and merges fragments into cells: the hot path, in numpy.

A fragment holds the points of one batch in one row, ready to become cells:

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
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np

from timebeam.schema.layouts.kairosdb import keys as row_keys
from timebeam.schema.layouts.kairosdb import values
from timebeam.schema.layouts.kairosdb.keys import RowSpec
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.layouts.writing import Encoded, RowFragment, SeriesKey
from timebeam.schema.points import Bools, Int64s, Kind, PointBatch, Reason, Rejected, Stage

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


KINDS = len(row_keys.TYPES)
_OFFSET_BITS = 31


def encode(batch: PointBatch, keys: Sequence[SeriesKey | None], table: str, spec: RowSpec) -> Encoded:
    """The fragments of a batch: one row for each series, row time and kind of value.

    Args:
      keys: the key of each series of the batch; None for a series without points in it.
      table: name of the data table.
    """
    good = storable(batch)
    rejected = [] if good.all() else [_refused(batch, point) for point in np.flatnonzero(~good).tolist()]
    if rejected:
        batch = batch.take(np.flatnonzero(good))
    if len(batch) == 0:
        return Encoded([], rejected, 0)
    width = spec.width_ms
    numbers = batch.times_ms // width
    offsets = batch.times_ms - numbers * width
    order, bounds = _sorted_rows(row_numbers(batch, numbers), offsets, batch.arrivals_ms)
    origins = batch.origins
    origin = (zlib.crc32(origins.source.encode()), max(0, origins.offset)) if origins else (0, 0)
    first = order[bounds[:-1]]
    kinds = batch.kinds[first].astype(np.int64)
    stored_values, sizes = _values(batch, order)
    packed = packed_rows(
        ColumnPoints(spec.columns(offsets[order]), batch.arrivals_ms[order], stored_values, sizes),
        bounds,
        kinds,
        origin,
    )
    row_fragments = []
    for series, number, kind, packed_row in zip(
        batch.index[first].tolist(), numbers[first].tolist(), kinds.tolist(), packed, strict=True
    ):
        key = keys[series]
        assert key is not None
        row_fragments.append(RowFragment(table, row_keys.row_key(key, number * width, kind), packed_row))
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def storable(batch: PointBatch) -> Bools:
    """bool[n]: the points whose time and value the layout can hold."""
    good = (batch.times_ms >= 0) & (batch.times_ms <= row_keys.LAST_MS) & (batch.kinds < KINDS)
    good &= (batch.kinds != Kind.FLOAT) | np.isfinite(batch.bits.view(np.float64))
    string_points = np.flatnonzero(good & (batch.kinds == Kind.TEXT))
    good[string_points] = [_fits(batch.payloads[number]) for number in batch.bits[string_points].tolist()]
    return good


def _fits(text: bytes) -> bool:
    """Whether the length of a string fits two bytes; a byte of UTF-8 becomes at most two."""
    return 2 * len(text) <= values.STRING_BYTES or len(values.modified_utf8(text)) <= values.STRING_BYTES


def _refused(batch: PointBatch, point: int) -> Rejected:
    """The refusal of a point that cannot be stored."""
    time_ms, kind = int(batch.times_ms[point]), batch.kinds[point]
    if time_ms < 0:
        reason, message = (
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"time {time_ms} ms: times before 1970 are not stored",
        )
    elif time_ms > row_keys.LAST_MS:
        reason, message = (
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"time {time_ms} ms: the last is {row_keys.LAST_MS} ms",
        )
    elif kind == Kind.FLOAT:
        reason, message = (
            Reason.NUMBER_OUT_OF_RANGE,
            "value is NaN or Infinite: queries of KairosDB fail on it",
        )
    elif kind == Kind.TEXT:
        message = f"a string of more than {values.STRING_BYTES} bytes in Java's modified UTF-8"
        reason = Reason.VALUE_NOT_STORABLE
    else:
        reason, message = Reason.VALUE_NOT_STORABLE, "KairosDB stores longs, doubles and strings"
    return batch.refuse(point, reason, message, Stage.ENCODE)


def row_numbers(batch: PointBatch, numbers: Int64s) -> Int64s:
    """int64[n]: a number for the row (series, row time, kind) of each point; small if possible.

    Args:
      numbers: int64[n], row time divided by the width of a row.
    """
    low, high = int(numbers.min()), int(numbers.max())
    return (batch.index.astype(np.int64) * (high - low + 1) + (numbers - low)) * KINDS + batch.kinds


def _sorted_rows(rows: Int64s, offsets: Int64s, arrivals_ms: Int64s) -> tuple[Int64s, Int64s]:
    """(order of the points by row and time, latest arrival of each instant only; starts of rows, and n).

    Row, offset and rank are packed into one integer if they fit, since sorting integers is several times
    faster than sorting by keys. The rank is the position, or the order by arrival and position.
    """
    n = len(rows)
    by_arrival = None
    if (arrivals_ms != arrivals_ms[0]).any():
        by_arrival = np.argsort(arrivals_ms, kind="stable")
        rows, offsets = rows[by_arrival], offsets[by_arrival]
    rank_bits = max(1, (n - 1).bit_length())
    if int(rows.max()).bit_length() + _OFFSET_BITS + rank_bits <= 63:
        key = (((rows << _OFFSET_BITS) | offsets) << rank_bits) | np.arange(n)
        key.sort()
        order = key & ((1 << rank_bits) - 1)
    else:
        order = np.lexsort((offsets, rows))  # stable
    rows, offsets = rows[order], offsets[order]
    change = rows[1:] != rows[:-1]
    last = np.append(change | (offsets[1:] != offsets[:-1]), True)
    if not last.all():
        order, rows = order[last], rows[last]
        change = rows[1:] != rows[:-1]
    bounds = np.concatenate([[0], np.flatnonzero(change) + 1, [len(rows)]])
    return (order if by_arrival is None else by_arrival[order]), bounds


def _values(batch: PointBatch, order: Int64s) -> tuple[list[bytes], Int64s]:
    """(the concatenated values of each kind, int64[n] bytes of each point's value), both in `order`."""
    kinds, bits = batch.kinds[order], batch.bits[order]
    sizes = np.full(len(order), 8)
    is_long, is_text = kinds == Kind.INTEGER, kinds == Kind.TEXT
    longs, sizes[is_long] = values.long_bytes(bits[is_long])
    strings = [values.string_bytes(batch.payloads[number]) for number in bits[is_text].tolist()]
    sizes[is_text] = [len(string) for string in strings]
    return [longs, values.double_bytes(bits[kinds == Kind.FLOAT]), b"".join(strings)], sizes
