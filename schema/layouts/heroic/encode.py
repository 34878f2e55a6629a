"""Encodes a batch of points into fragments of rows: the hot path, in numpy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from timebeam.schema.layouts.heroic.fragments import DISTRIBUTION, SlotPoints, packed_rows
from timebeam.schema.layouts.heroic.keys import PERIOD_MS, KeyForm
from timebeam.schema.layouts.writing import Encoded, RowFragment, SeriesKey
from timebeam.schema.points import Bools, Int64s, Kind, PointBatch, Reason, Rejected, Stage

_NAN_BITS = 0x7FF8 << 48
_PERIOD_BITS = 32


def encode(batch: PointBatch, keys: Sequence[SeriesKey | None], table: str, form: KeyForm) -> Encoded:
    """The fragments of a batch, one for each row.

    Args:
      keys: the key of each series of the batch; None for a series without points in it.
      table: name of the data table.
    """
    batch, rejected = _storable(batch)
    if len(batch) == 0:
        return Encoded([], rejected, 0)
    periods = batch.times_ms >> _PERIOD_BITS
    opaque = batch.kinds == Kind.OPAQUE
    slots = (batch.times_ms & (PERIOD_MS - 1)) + DISTRIBUTION * opaque
    order, bounds = _newest(_row_numbers(batch, periods), slots, batch.arrivals_ms)
    points = SlotPoints(slots[order], batch.arrivals_ms[order], _values(batch)[order])
    origins = batch.origins
    checksum = zlib.crc32(origins.source.encode()) if origins else 0
    packed = packed_rows(points, bounds, batch.payloads, checksum, max(0, origins.offset) if origins else 0)
    first = order[bounds[:-1]]
    bases = (periods[first] << _PERIOD_BITS).tolist()
    row_fragments = []
    for series, base_ms, packed_row in zip(batch.index[first].tolist(), bases, packed, strict=True):
        key = keys[series]
        assert key is not None
        row_fragments.append(RowFragment(table, form.row_key(key, base_ms), packed_row))
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def storable(batch: PointBatch) -> tuple[Bools, Bools]:
    """(bool[n], bool[n]): points whose time the layout can hold, points whose value it can hold."""
    kinds, bits = batch.kinds, batch.bits
    has_value = (kinds == Kind.FLOAT) | (kinds == Kind.OPAQUE)
    if not has_value.all():
        doubles = bits.astype(np.float64)
        is_below = doubles < 2.0**63  # 2^63 - 1 rounds up to what no int64 holds
        is_exact = is_below & (np.where(is_below, doubles, 0).astype(np.int64) == bits)
        has_value |= (kinds == Kind.INTEGER) & is_exact
    return batch.times_ms >= 0, has_value


def _storable(batch: PointBatch) -> tuple[PointBatch, list[Rejected]]:
    """(the points that the layout can hold, the refusals of the others)."""
    has_time, has_value = storable(batch)
    is_storable = has_time & has_value
    if is_storable.all():
        return batch, []
    rejected = []
    for point in np.flatnonzero(~is_storable).tolist():
        if not has_time[point]:
            reason = Reason.TIMESTAMP_OUT_OF_RANGE
            message = f"time {batch.times_ms[point]} ms: Heroic reads times before 1970 back as other times"
        elif batch.kinds[point] == Kind.INTEGER:
            reason = Reason.VALUE_NOT_STORABLE
            message = f"the integer {batch.bits[point]} is not a double: send a decimal, which may be rounded"
        else:
            reason, message = Reason.VALUE_NOT_STORABLE, "a string: Heroic stores doubles and distributions"
        rejected.append(batch.refuse(point, reason, message, Stage.ENCODE))
    return batch.take(np.flatnonzero(is_storable)), rejected


def _values(batch: PointBatch) -> Int64s:
    """int64[n]: the bits of a double, with canonical NaN; or the number of a payload."""
    doubles = np.where(
        batch.kinds == Kind.INTEGER, batch.bits.astype(np.float64), batch.bits.view(np.float64)
    )
    values = np.where(np.isnan(doubles), _NAN_BITS, doubles.view(np.int64))
    return np.where(batch.kinds == Kind.OPAQUE, batch.bits, values)


def _row_numbers(batch: PointBatch, periods: Int64s) -> Int64s:
    """int64[n]: a number for the row (series, period) of each point; small if possible."""
    low, high = int(periods.min()), int(periods.max())
    rows = batch.index.astype(np.int64)
    if low == high:
        return rows
    if (high - low + 1) * len(batch.series) < 1 << 31:
        return rows * (high - low + 1) + (periods - low)
    return rows * len(batch) + np.unique(periods, return_inverse=True)[1]


def _newest(rows: Int64s, slots: Int64s, arrivals_ms: Int64s) -> tuple[Int64s, Int64s]:
    """(order, bounds): the points by row and slot, one of each; the start of each row and the end.

    The latest arrival wins a slot; within one arrival, the last point. Row, slot and position are packed
    into one integer if they fit, since that sorts several times faster.
    """
    n = len(rows)
    by_arrival = None
    if (arrivals_ms != arrivals_ms[0]).any():
        by_arrival = np.argsort(arrivals_ms, kind="stable")
        rows, slots = rows[by_arrival], slots[by_arrival]
    lowest = int(slots.min())
    slot_bits, position_bits = (int(slots.max()) - lowest).bit_length(), (n - 1).bit_length()
    if int(rows.max()).bit_length() + slot_bits + position_bits <= 63:
        key = (((rows << slot_bits) | (slots - lowest)) << position_bits) | np.arange(n)
        key.sort()
        order = key & ((1 << position_bits) - 1)
    else:
        order = np.lexsort((slots, rows))
    rows, slots = rows[order], slots[order]
    new_row = rows[1:] != rows[:-1]
    last = np.append(new_row | (slots[1:] != slots[:-1]), True)
    if not last.all():
        order, rows = order[last], rows[last]
        new_row = rows[1:] != rows[:-1]
    bounds = np.concatenate([[0], np.flatnonzero(new_row) + 1, [len(rows)]])
    return (order if by_arrival is None else by_arrival[order]), bounds
