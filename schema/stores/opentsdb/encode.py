"""Encodes a batch of points into fragments of rows (`pack_rows`): the hot path, in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RefusedError
from timebeam.schema.core import cell_fragments
from timebeam.schema.core.batches import run_starts
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.writing import Encoded, Packing, RowFragment, SeriesKey
from timebeam.schema.stores.opentsdb.columns import histogram_cells
from timebeam.schema.stores.opentsdb.columns import qualifiers as el
from timebeam.schema.stores.opentsdb.columns.pack_rows import FAMILY, packed_rows, point_rows
from timebeam.schema.stores.opentsdb.keys import SPAN_S, Decimals, OpenTsdbOptions, row_keys

_SPAN_MS = SPAN_S * 1000
_OFFSET_BITS = 22
_LAST_MS = (1 << 32) * 1000 - 1


def encode(
    batch: PointBatch,
    keys: Sequence[SeriesKey | None],
    table: str,
    options: OpenTsdbOptions,
    packing: Packing,
) -> Encoded:
    """The fragments of a batch: one for each row.

    >>> from timebeam.schema.core.points import Series
    >>> points = [(Series.of("m", {"host": "a"}), 1356998460_000, False, value) for value in (1, 127)]
    >>> key = SeriesKey(bytes.fromhex("000004"), bytes.fromhex("000001000001"))
    >>> options, batch = OpenTsdbOptions(), PointBatch.of(points, arrival_ms=9000)
    >>> (row,) = encode(batch, [key], "tsdb", options, Packing.POINTS).fragments
    >>> (cell,) = point_cells([[row.packed]], None).cells(0)  # of one instant the later point
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
    is_histogram = batch.kinds == Kind.HISTOGRAM
    if is_histogram.any():
        histograms = batch.take(np.flatnonzero(is_histogram))
        separate = histogram_cells.fragments(histograms, keys, table)
        numbers = encode(batch.take(np.flatnonzero(~is_histogram)), keys, table, options, packing)
        duplicates = numbers.duplicates + len(histograms) - len(separate)
        return Encoded([*numbers.fragments, *separate], rejected, duplicates)
    hours = batch.times_ms // _SPAN_MS
    offsets = batch.times_ms - hours * _SPAN_MS
    elements = _elements(batch, offsets, options.decimals)
    instants, bits = offsets, _OFFSET_BITS
    if options.is_event_time:  # keep all values of an instant whose columns differ: reading chooses
        flags = (elements.codes & 0xF).astype(np.int64)
        instants, bits = (offsets << 5) | (elements.in_ms.astype(np.int64) << 4) | flags, _OFFSET_BITS + 5
    rows = _row_numbers(batch, hours)
    order = _sorted_columns(_columns_of(rows, batch.arrivals_ms), instants, bits)
    elements = elements.take(order)
    rows = rows[order]
    bounds = np.append(run_starts(rows), len(rows))
    first = order[bounds[:-1]]
    arrivals_ms = batch.arrivals_ms[order]
    if packing is Packing.POINTS or (arrivals_ms != arrivals_ms[0]).any():
        codes = elements.codes.astype(np.int64)
        points = cell_fragments.SlotPoints(bounds, codes, arrivals_ms, el.value_bytes(elements)).newest()
        packed = point_rows(points, batch.origins, packing)
    else:
        packed = packed_rows(
            elements, bounds, arrivals_ms[bounds[:-1]], *cell_fragments.origin_of(batch.origins)
        )
    series = [key for number in batch.index[first].tolist() if (key := keys[number]) is not None]
    stored_keys = row_keys(series, hours[first] * SPAN_S)
    row_fragments = list(map(RowFragment, itertools.repeat(table), stored_keys, packed))
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def point_cells(rows: Iterable[Iterable[bytes]], bases_ms: Int64s | None) -> cell_fragments.CellColumns:
    """The cells of the fragments of each row, one for each point.

    Of one arrival an instant has one cell. Two values of one instant with different arrivals and
    qualifiers (an integer corrected to a decimal) are both kept, as by a TSD: the newer cell wins on reading.

    Args:
      bases_ms: int64[r], the base time of each row in ms, if cell timestamps are the times of points. Then
        all values of an instant with different qualifiers are kept: docs/spec/opentsdb.md §2.2, rule 6.
    """
    separate = [histogram_cells.split(packed, Packing.POINTS) for packed in rows]
    if any(histograms for _, histograms in separate):
        numbers = point_cells((packed for packed, _ in separate), bases_ms)
        return cell_fragments.CellColumns.of(
            [
                numbers.cells(row) + histogram_cells.cells(histograms, FAMILY)
                for row, (_, histograms) in enumerate(separate)
            ]
        )
    points = cell_fragments.SlotPoints.of(packed for packed, _ in separate)
    if bases_ms is None:
        points = _one_per_instant(points)
    points = points.newest()
    times_ms = points.arrivals_ms
    if bases_ms is not None:
        times_ms = bases_ms[points.rows] + el.offsets_ms(points.slots.astype(np.uint32))
    qualifiers = el.qualifier_bytes(points.slots.astype(np.uint32))
    one_family = np.zeros(len(times_ms), np.int64)
    return cell_fragments.CellColumns(
        points.bounds, (FAMILY,), one_family, qualifiers, times_ms, points.values
    )


def _one_per_instant(points: cell_fragments.SlotPoints) -> cell_fragments.SlotPoints:
    """The points without those whose instant has a later point of the same arrival."""
    offsets = el.offsets_ms(points.slots.astype(np.uint32))
    instants = points.rows << _OFFSET_BITS | offsets
    if (instants[1:] > instants[:-1]).all():
        return points
    arrivals = np.unique(points.arrivals_ms, return_inverse=True)[1]
    order = np.lexsort((arrivals, instants))
    instants, arrivals = instants[order], arrivals[order]
    is_last = np.append((instants[1:] != instants[:-1]) | (arrivals[1:] != arrivals[:-1]), True)
    return points.take(np.sort(order[is_last]))


def _storable(batch: PointBatch) -> tuple[PointBatch, list[Rejected]]:
    """(the points that the layout can hold, the refusals of the others)."""
    bad_time = (batch.times_ms < 0) | (batch.times_ms > _LAST_MS)
    bad_value = (batch.kinds == Kind.FLOAT) & ~np.isfinite(batch.bits.view(np.float64))
    no_number = (batch.kinds > Kind.FLOAT) & (batch.kinds != Kind.HISTOGRAM)
    bad = bad_time | bad_value | no_number
    if not bad.any():
        return batch, []

    def why(point: int) -> RefusedError:
        if bad_time[point]:
            return RefusedError(Reason.TIMESTAMP_OUT_OF_RANGE, "base times are unsigned 32-bit seconds")
        if no_number[point]:
            return RefusedError(Reason.VALUE_NOT_STORABLE, "OpenTSDB stores numbers and histograms only")
        return RefusedError(Reason.NUMBER_OUT_OF_RANGE, "value is NaN or Infinite")

    return batch.take(np.flatnonzero(~bad)), batch.refuse(np.flatnonzero(bad), why, Stage.ENCODE)


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
