"""Encodes a batch of points into fragments of rows: the hot path, in numpy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from timebeam.schema.layouts.opentsdb import elements as el
from timebeam.schema.layouts.opentsdb.fragments import packed_rows
from timebeam.schema.layouts.opentsdb.keys import SPAN_S, row_key
from timebeam.schema.layouts.opentsdb.options import Decimals, OpenTsdbOptions
from timebeam.schema.layouts.writing import Encoded, RowFragment, SeriesKey
from timebeam.schema.points import Int64s, Kind, PointBatch, Reason, Rejected, Stage

_SPAN_MS = SPAN_S * 1000
_OFFSET_BITS = 22
_LAST_MS = (1 << 32) * 1000 - 1


def encode(
    batch: PointBatch, keys: Sequence[SeriesKey | None], table: str, options: OpenTsdbOptions
) -> Encoded:
    """The fragments of a batch.

    Args:
      keys: the key of each series of the batch; None for a series without points in it.
      table: name of the data table.
      options: tell how decimals are stored and what cell timestamps are.
    """
    batch, rejected = _storable(batch)
    if len(batch) == 0:
        return Encoded([], rejected, 0)
    hours = batch.times_ms // _SPAN_MS
    offsets = batch.times_ms - hours * _SPAN_MS
    elements = _elements(batch, offsets, options.decimals)
    slots, bits = offsets, _OFFSET_BITS
    if options.is_event_time:  # keep all values of an instant whose columns differ: reading chooses
        flags = (elements.codes & 0xF).astype(np.int64)
        slots, bits = (offsets << 5) | (elements.in_ms.astype(np.int64) << 4) | flags, _OFFSET_BITS + 5
    order, rows = _sorted_rows(_row_numbers(batch, hours), slots, bits)
    elements = elements.take(order)
    change = np.flatnonzero(rows[1:] != rows[:-1]) + 1
    bounds = np.concatenate([[0], change, [len(rows)]])
    first = order[bounds[:-1]]
    origins = batch.origins
    checksum = zlib.crc32(origins.source.encode()) if origins else 0
    packed = packed_rows(
        elements, bounds, batch.arrivals_ms[first], checksum, max(0, origins.offset) if origins else 0
    )
    base_s = (hours[first] * SPAN_S).tolist()
    row_fragments = []
    for series, base, packed_row in zip(batch.index[first].tolist(), base_s, packed, strict=True):
        key = keys[series]
        assert key is not None
        row_fragments.append(RowFragment(table, row_key(key, base), packed_row))
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def _storable(batch: PointBatch) -> tuple[PointBatch, list[Rejected]]:
    """(the points that the layout can hold, the refusals of the others)."""
    bad_time = (batch.times_ms < 0) | (batch.times_ms > _LAST_MS)
    bad_value = (batch.kinds == Kind.FLOAT) & ~np.isfinite(batch.bits.view(np.float64))
    no_number = batch.kinds > Kind.FLOAT
    bad = bad_time | bad_value | no_number
    if not bad.any():
        return batch, []
    rejected = []
    for point in np.flatnonzero(bad).tolist():
        if bad_time[point]:
            reason, message = Reason.TIMESTAMP_OUT_OF_RANGE, "base times are unsigned 32-bit seconds"
        elif no_number[point]:
            reason, message = Reason.VALUE_NOT_STORABLE, "OpenTSDB stores numbers only"
        else:
            reason, message = Reason.NUMBER_OUT_OF_RANGE, "value is NaN or Infinite"
        rejected.append(batch.refuse(point, reason, message, Stage.ENCODE))
    return batch.take(np.flatnonzero(~bad)), rejected


def _row_numbers(batch: PointBatch, hours: Int64s) -> Int64s:
    """int64[n]: a number for the row (series, hour) and arrival of each point; small where possible."""
    low, high = int(hours.min()), int(hours.max())
    rows = batch.index.astype(np.int64) * (high - low + 1) + (hours - low)
    if (batch.arrivals_ms != batch.arrivals_ms[0]).any():
        arrivals, rank = np.unique(batch.arrivals_ms, return_inverse=True)
        rows = np.unique(rows, return_inverse=True)[1] * len(arrivals) + rank
    return rows


def _sorted_rows(rows: Int64s, slots: Int64s, bits: int) -> tuple[Int64s, Int64s]:
    """(order, rows), int64 each: the points sorted by row and slot, only the last one of each slot.

    Row, slot (of `bits` bits) and position are packed into one integer, since sorting integers is several
    times faster than sorting by keys.
    """
    n = len(rows)
    position_bits = max(1, (n - 1).bit_length())
    if int(rows.max()).bit_length() + bits + position_bits > 63:
        distinct, rows = np.unique(rows, return_inverse=True)
        assert len(distinct).bit_length() + bits + position_bits <= 63
    key = (((rows << bits) | slots) << position_bits) | np.arange(n)
    key.sort()
    row_slots = key >> position_bits
    last = np.append(row_slots[1:] != row_slots[:-1], True)
    if not last.all():
        key, row_slots = key[last], row_slots[last]
    return key & ((1 << position_bits) - 1), row_slots >> bits


def _elements(batch: PointBatch, offsets: Int64s, decimals: Decimals) -> el.Elements:
    """The elements of all points, in the order of the batch."""
    is_float = batch.kinds == Kind.FLOAT
    exact, short = decimals is Decimals.EXACT, decimals is Decimals.FLOAT
    if is_float.all():
        flags, raws = el.float_elements(batch.bits, exact=exact, short=short)
    elif not is_float.any():
        flags, raws = el.integer_elements(batch.bits)
    else:
        flags, raws = el.integer_elements(batch.bits)
        float_points = np.flatnonzero(is_float)
        flags[float_points], raws[float_points] = el.float_elements(
            batch.bits[float_points], exact=exact, short=short
        )
    return el.Elements(el.qualifier_codes(offsets, batch.in_ms, flags), raws)
