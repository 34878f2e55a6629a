"""Encodes a batch of points into fragments of rows, and merges fragments into cells: the hot path, in numpy.

In packing `points` fragments are those of `timebeam.schema.layouts.slots`. In the others a fragment holds
the points of one batch and arrival in one row. Qualifiers and values are in their stored form, so the usual
case (one fragment, or fragments that follow each other in time) is packed without decoding.

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

from timebeam.schema.common.batches import run_starts
from timebeam.schema.layouts import slots
from timebeam.schema.layouts.opentsdb import elements as el
from timebeam.schema.layouts.opentsdb import histogram_cells
from timebeam.schema.layouts.opentsdb.keys import SPAN_S, Decimals, OpenTsdbOptions, row_key
from timebeam.schema.layouts.opentsdb.rows import merge
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.layouts.writing import Encoded, Packing, RowFragment, SeriesKey
from timebeam.schema.points import Int64s, Kind, PointBatch, Reason, Rejected, Stage

FAMILY = "t"
APPEND_QUALIFIER = b"\x05\x00\x00"

_HEADER = struct.Struct(">qIQIIBI")
_QUALIFIER_BYTES = 16 * 1024
_SECONDS, _MILLISECONDS, _MIXED = 1, 2, 3


class UnpackedFragment(NamedTuple):
    """The fields of a fragment; see the module's table."""

    arrival_ms: int
    checksum: int
    offset: int
    first_ms: int
    last_ms: int
    forms: int
    qualifiers: bytes
    values: bytes

    @classmethod
    def of(cls, packed: bytes) -> UnpackedFragment:
        """Splits a fragment into its fields."""
        arrival_ms, checksum, offset, first_ms, last_ms, forms, size = _HEADER.unpack_from(packed)
        start = _HEADER.size
        qualifiers, values = packed[start : start + size], packed[start + size :]
        return cls(arrival_ms, checksum, offset, first_ms, last_ms, forms, qualifiers, values)

    @property
    def order(self) -> tuple[int, int, int, bytes, bytes]:
        """Sort key: a later fragment of a row wins over an earlier one; equal keys mean equal fragments."""
        return self.arrival_ms, self.checksum, self.offset, self.qualifiers, self.values

    @property
    def is_single(self) -> bool:
        """Whether the fragment holds exactly one element."""
        return len(self.qualifiers) == (4 if self.forms == _MILLISECONDS else 2)

    def elements(self) -> el.Elements:
        """Its elements."""
        return el.split_columns(self.qualifiers, self.values)


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
    if packing is Packing.POINTS:
        points = slots.SlotPoints.of([numbers])
        arrivals_ms |= set(points.arrivals_ms.tolist())
        offsets_ms += el.offsets_ms(points.slots.astype(np.uint32)).tolist()
    for arrival_ms, _, _, first_ms, last_ms, _, _ in (
        map(_HEADER.unpack_from, numbers) if packing is not Packing.POINTS else ()
    ):
        arrivals_ms.add(arrival_ms)
        offsets_ms += (first_ms, last_ms)
    return arrivals_ms, min(offsets_ms), max(offsets_ms)


def cells(packed: Iterable[bytes], packing: Packing) -> list[Cell]:
    """The cells of one row in packing `compacted` or `append`, whatever the order of its fragments.

    The cell timestamp is the arrival of the cell's points, in ms. So a compacted column holds points
    of one arrival only: an old point in a newer column would win over corrections between the two.
    """
    numbers, histograms = histogram_cells.split(packed, packing)
    histogram_columns = histogram_cells.cells(histograms, FAMILY)
    fragments = [UnpackedFragment.of(fragment) for fragment in numbers]
    if not fragments:
        return histogram_columns
    if packing is Packing.APPEND:
        newest = max(fragment.arrival_ms for fragment in fragments)
        appended = el.append_bytes(_joined(fragments).elements())
        return [Cell(FAMILY, APPEND_QUALIFIER, newest, appended), *histogram_columns]
    if not _ascend(fragments):
        fragments = _without_superseded(_by_arrival(fragments))
    number_columns = [_column(column) for fragment in fragments for column in _in_columns(fragment)]
    return number_columns + histogram_columns


def columns(elements: el.Elements, timestamp_ms: int) -> list[Cell]:
    """Compacted columns that hold these elements; a plain point for a single element.

    Args:
      elements: one or more, one per instant, ascending.
      timestamp_ms: of the cells.
    """
    (fragment,) = _packed(elements, np.array([0, len(elements)]), timestamp_ms)
    return [_column(column) for column in _in_columns(fragment)]


def _by_arrival(fragments: Sequence[UnpackedFragment]) -> list[UnpackedFragment]:
    """One fragment for each arrival, ascending."""
    by_arrival: dict[int, list[UnpackedFragment]] = {}
    for fragment in fragments:
        by_arrival.setdefault(fragment.arrival_ms, []).append(fragment)
    return [_joined(by_arrival[arrival_ms]) for arrival_ms in sorted(by_arrival)]


def _ascend(fragments: Sequence[UnpackedFragment]) -> bool:
    """Whether each fragment has a later arrival and later points than the one before, as most of a stream."""
    return all(
        a.arrival_ms < b.arrival_ms and a.last_ms < b.first_ms for a, b in itertools.pairwise(fragments)
    )


def _without_superseded(fragments: list[UnpackedFragment]) -> list[UnpackedFragment]:
    """Fragments in the order of their arrival, without the points that a later fragment replaces."""
    if len(fragments) == 1 or _follow_each_other(sorted(fragments, key=_first_ms)):
        return fragments
    merged, column = merge([fragment.elements() for fragment in fragments])
    remaining = []
    for number, fragment in enumerate(fragments):
        winners = merged.take(np.flatnonzero(column == number))
        if len(winners):
            remaining += _packed(winners, np.array([0, len(winners)]), fragment.arrival_ms)
    return remaining


def _column(fragment: UnpackedFragment) -> Cell:
    """One compacted column, or a plain point: a TSD misreads a compacted column of one point."""
    if fragment.is_single:
        return Cell(FAMILY, fragment.qualifiers, fragment.arrival_ms, fragment.values)
    trailer = b"\x01" if fragment.forms == _MIXED else b"\x00"
    return Cell(FAMILY, fragment.qualifiers, fragment.arrival_ms, fragment.values + trailer)


def _in_columns(fragment: UnpackedFragment) -> list[UnpackedFragment]:
    """A fragment split so that each result fits a column: Bigtable's qualifiers hold 16 KiB."""
    if len(fragment.qualifiers) <= _QUALIFIER_BYTES:
        return [fragment]
    elements = fragment.elements()
    bounds = np.append(np.arange(0, len(elements), _QUALIFIER_BYTES // 4), len(elements))
    return _packed(elements, bounds, fragment.arrival_ms)


def _packed(elements: el.Elements, bounds: Int64s, arrival_ms: int) -> list[UnpackedFragment]:
    """Slices of elements as fragments of one arrival."""
    arrivals = np.full(len(bounds) - 1, arrival_ms)
    return [UnpackedFragment.of(packed) for packed in packed_rows(elements, bounds, arrivals, 0, 0)]


def _first_ms(fragment: UnpackedFragment) -> int:
    return fragment.first_ms


def _follow_each_other(by_time: Sequence[UnpackedFragment]) -> bool:
    """Whether each fragment ends before the next one starts."""
    return all(a.last_ms < b.first_ms for a, b in itertools.pairwise(by_time))


def _joined(fragments: Sequence[UnpackedFragment]) -> UnpackedFragment:
    """All elements as one fragment: concatenated if the fragments follow each other in time, else merged."""
    if len(fragments) == 1:
        return fragments[0]
    by_time = sorted(fragments, key=_first_ms)
    if _follow_each_other(by_time):
        forms = 0
        for fragment in by_time:
            forms |= fragment.forms
        return by_time[0]._replace(
            last_ms=by_time[-1].last_ms,
            forms=forms,
            qualifiers=b"".join(fragment.qualifiers for fragment in by_time),
            values=b"".join(fragment.values for fragment in by_time),
        )
    by_arrival = sorted(fragments, key=lambda fragment: fragment.order)
    merged, _ = merge([fragment.elements() for fragment in by_arrival])
    return _packed(merged, np.array([0, len(merged)]), by_arrival[0].arrival_ms)[0]


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
    """The fragments of a batch: one for each row, or for each row and arrival if columns are packed.

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
    order, columns = _sorted_rows(_columns_of(rows, batch.arrivals_ms), instants, bits)
    elements = elements.take(order)
    rows = rows[order] if packing is Packing.POINTS else columns
    bounds = np.append(run_starts(rows), len(rows))
    first = order[bounds[:-1]]
    if packing is Packing.POINTS:
        codes = elements.codes.astype(np.int64)
        values = el.value_bytes(elements)
        points = slots.SlotPoints(bounds, codes, batch.arrivals_ms[order], values).newest()
        packed = points.fragments(batch.origins)
    else:
        packed = packed_rows(elements, bounds, batch.arrivals_ms[first], *slots.origin_of(batch.origins))
    base_s = (hours[first] * SPAN_S).tolist()
    row_fragments = []
    for series, base, packed_row in zip(batch.index[first].tolist(), base_s, packed, strict=True):
        key = keys[series]
        assert key is not None
        row_fragments.append(RowFragment(table, row_key(key, base), packed_row))
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def point_cells(rows: Iterable[Iterable[bytes]], bases_ms: Int64s | None) -> slots.CellColumns:
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
        return slots.CellColumns.of(
            [
                numbers.cells(row) + histogram_cells.cells(histograms, FAMILY)
                for row, (_, histograms) in enumerate(separate)
            ]
        )
    points = slots.SlotPoints.of(packed for packed, _ in separate)
    if bases_ms is None:
        points = _one_per_instant(points)
    points = points.newest()
    times_ms = points.arrivals_ms
    if bases_ms is not None:
        times_ms = bases_ms[points.rows] + el.offsets_ms(points.slots.astype(np.uint32))
    qualifiers = el.qualifier_bytes(points.slots.astype(np.uint32))
    one_family = np.zeros(len(times_ms), np.int64)
    return slots.CellColumns(points.bounds, (FAMILY,), one_family, qualifiers, times_ms, points.values)


def _one_per_instant(points: slots.SlotPoints) -> slots.SlotPoints:
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
    rejected = []
    for point in np.flatnonzero(bad).tolist():
        if bad_time[point]:
            reason, message = Reason.TIMESTAMP_OUT_OF_RANGE, "base times are unsigned 32-bit seconds"
        elif no_number[point]:
            reason, message = Reason.VALUE_NOT_STORABLE, "OpenTSDB stores numbers and histograms only"
        else:
            reason, message = Reason.NUMBER_OUT_OF_RANGE, "value is NaN or Infinite"
        rejected.append(batch.refuse(point, reason, message, Stage.ENCODE))
    return batch.take(np.flatnonzero(~bad)), rejected


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
