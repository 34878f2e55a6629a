"""Encodes a batch of points into fragments of rows (`pack_rows`): the hot path, in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core import point_fragments
from timebeam.schema.core.batches import run_starts
from timebeam.schema.core.point_fragments import Encoded, RowFragment
from timebeam.schema.core.points import PointBatch, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.keys import SPAN_S, Decimals, OpenTsdbOptions, row_keys

_SPAN_MS = SPAN_S * 1000
_OFFSET_BITS = 22
_LAST_MS = (1 << 32) * 1000 - 1


def encode(
    batch: PointBatch,
    keys: Sequence[SeriesKey | None],
    table: str,
    options: OpenTsdbOptions,
) -> Encoded:
    """The fragments of a batch: one for each row.

    >>> from timebeam.schema.core.point_fragments import SlotPoints
    >>> from timebeam.schema.core.points import Series
    >>> from timebeam.schema.core.point_fragments import Packing
    >>> from timebeam.schema.stores.opentsdb.columns.pack_rows import cell_columns
    >>> points = [(Series.of("m", {"host": "a"}), 1356998460_000, False, value) for value in (1, 127)]
    >>> key = SeriesKey(bytes.fromhex("000004"), bytes.fromhex("000001000001"))
    >>> options, batch = OpenTsdbOptions(), PointBatch.of(points, arrival_ms=9000)
    >>> (row,) = encode(batch, [key], "tsdb", options).fragments  # of one time the later point
    >>> (cell,) = cell_columns(SlotPoints.of([[row.packed]]), Packing.POINTS).cells(0)
    >>> row.key.hex(), cell.qualifier.hex(), cell.timestamp_ms, cell.value.hex()
    ('00000450e22700000001000001', '03c0', 9000, '7f')

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
    slots = elements.codes.astype(np.int64)
    times, bits = offsets, _OFFSET_BITS
    if options.is_event_time:  # keep all values of a time whose columns differ: reading chooses
        times, bits = (
            (offsets << 5) | (batch.in_ms.astype(np.int64) << 4) | (slots & 0xF),
            _OFFSET_BITS + 5,
        )
        # (1) By time: `offsets << 5`,
        # (2) within a time by the form of the qualifier, in s or in ms: bit 4,
        # (3) within a form by the type and length of the value, its flags: what makes another column.
    is_histogram = batch.kinds == Kind.HISTOGRAM
    if is_histogram.any():  # in columns of their own, one for each qualifier
        qualifiers = el.qualifier_codes(offsets, batch.in_ms, np.zeros(len(batch), np.uint32)).astype(
            np.int64
        )
        slots = np.where(is_histogram, qualifiers | point_fragments.HIGH, slots)
        times = np.where(is_histogram, (offsets << 1) | batch.in_ms | (1 << bits + 1), times)
        bits += 2
    rows = _row_numbers(batch, hours)
    order = _sorted_columns(_columns_of(rows, batch.arrivals_ms), times, bits)
    rows = rows[order]
    bounds = np.append(run_starts(rows), len(rows))
    values = el.value_bytes(elements.take(order))
    if is_histogram.any():
        values = _with_payloads(values, batch, order, is_histogram)
    points = point_fragments.SlotPoints(bounds, slots[order], batch.arrivals_ms[order], values).newest()
    first = order[bounds[:-1]]
    series = [key for number in batch.index[first].tolist() if (key := keys[number]) is not None]
    row_fragments = map(
        RowFragment,
        itertools.repeat(table),
        row_keys(series, hours[first] * SPAN_S),
        points.fragments(*point_fragments.origin_of(batch.origins)),
    )
    return Encoded(list(row_fragments), rejected, len(batch) - len(order))


def _with_payloads(
    numbers: point_fragments.Strings, batch: PointBatch, order: Int64s, is_histogram: Bools
) -> point_fragments.Strings:
    """The values of the points `order` of a batch, with the payloads of those that are histograms."""
    content, starts = numbers
    places = np.flatnonzero(is_histogram[order])
    payloads = [batch.payloads[number] for number in batch.bits[order[places]].tolist()]
    sizes = np.append(np.diff(starts), [len(payload) for payload in payloads])
    chosen = np.arange(len(order))
    chosen[places] = len(order) + np.arange(len(places))
    return point_fragments.take((content + b"".join(payloads), point_fragments.starts_of(sizes)), chosen)


def _storable(batch: PointBatch) -> tuple[PointBatch, list[Rejected]]:
    """(the points that the layout can hold, the rejections of the others)."""
    bad_time = (batch.times_ms < 0) | (batch.times_ms > _LAST_MS)
    bad_value = (batch.kinds == Kind.FLOAT) & ~np.isfinite(batch.bits.view(np.float64))
    no_number = (batch.kinds > Kind.FLOAT) & (batch.kinds != Kind.HISTOGRAM)
    bad = bad_time | bad_value | no_number
    if not bad.any():
        return batch, []

    def why(point: int) -> RejectedError:
        if bad_time[point]:
            return RejectedError(Reason.TIMESTAMP_OUT_OF_RANGE, "base times are unsigned 32-bit seconds")
        if no_number[point]:
            return RejectedError(Reason.VALUE_NOT_STORABLE, "OpenTSDB stores numbers and histograms only")
        return RejectedError(Reason.NUMBER_OUT_OF_RANGE, "value is NaN or Infinite")

    return batch.take(np.flatnonzero(~bad)), batch.reject(np.flatnonzero(bad), why, Stage.ENCODE)


def _row_numbers(batch: PointBatch, hours: Int64s) -> Int64s:
    """int64[n]: a number for the row (series, hour) of each point; small where possible."""
    low, high = int(hours.min()), int(hours.max())
    return batch.index.astype(np.int64) * (high - low + 1) + (hours - low)


def _columns_of(rows: Int64s, arrivals_ms: Int64s) -> Int64s:
    """int64[n]: a number for the row and arrival of each point; small where possible."""
    if (arrivals_ms == arrivals_ms[0]).all():
        return rows
    arrivals, rank = np.unique(arrivals_ms, return_inverse=True)
    return np.unique(rows, return_inverse=True)[1] * len(arrivals) + rank


def _sorted_columns(columns: Int64s, slots: Int64s, bits: int) -> Int64s:
    """int64[m]: the points sorted by column and slot, only the last one of each slot.

    Column, slot (of `bits` bits) and position are packed into one integer, since sorting integers is several
    times faster than sorting by keys.
    """
    n = len(columns)
    position_bits = max(1, (n - 1).bit_length())
    if int(columns.max()).bit_length() + bits + position_bits > 63:
        distinct, columns = np.unique(columns, return_inverse=True)
        assert len(distinct).bit_length() + bits + position_bits <= 63
    key = (((columns << bits) | slots) << position_bits) | np.arange(n)
    #        (1)                (2)                       (3)
    # (1) Column by column,
    # (2) within a column by slot,
    # (3) within a slot by position: the last one of a slot stays.
    key.sort()
    column_slots = key >> position_bits
    last = np.append(column_slots[1:] != column_slots[:-1], True)
    return key[last] & ((1 << position_bits) - 1)


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
