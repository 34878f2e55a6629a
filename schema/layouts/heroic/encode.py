"""Encodes a batch of points into fragments of rows, and merges fragments into cells: the hot path, in numpy.

A fragment holds the points of one batch in one row, packed.

| bytes | content |
|---|---|
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
| 4, 4 | number of points n; number of distributions, which come last |
| 4 | number of arrivals a: n, or 1 if all are the same |
| 8a | arrivals in ms, the cell timestamps |
| 8n | the bits of a double, or the length of a distribution's payload |
| 4n | offsets from the base in ms, ascending among doubles and among distributions |
| rest | the payloads of the distributions, concatenated |

All numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from timebeam.schema.layouts.heroic.keys import PERIOD_MS, KeyForm
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.layouts.writing import Encoded, RowFragment, SeriesKey
from timebeam.schema.points import Bools, Int64s, Kind, PointBatch, Reason, Rejected, Stage

POINTS = "points"
DISTRIBUTIONS = "distributionPoints"
DISTRIBUTION = PERIOD_MS
"""Added to the offset of a distribution, so that its slot differs from that of a double."""

_HEADER = struct.Struct("<IQIII")


@dataclasses.dataclass(frozen=True, slots=True)
class SlotPoints:
    """n points of one or several rows, in columns int64[n].

    Attributes:
      slots: offset from the base in ms, plus `DISTRIBUTION` for a distribution: one point in each.
      values: the bits of a double, or the number of a payload.
    """

    slots: Int64s
    arrivals_ms: Int64s
    values: Int64s

    def take(self, indices: Int64s | slice) -> SlotPoints:
        """A selection."""
        return SlotPoints(self.slots[indices], self.arrivals_ms[indices], self.values[indices])


def packed_rows(
    points: SlotPoints, bounds: Int64s, payloads: Sequence[bytes], checksum: int, offset: int
) -> Iterator[bytes]:
    """The fragments of consecutive slices of points.

    Args:
      points: row by row; within a row ascending by slot, one of each.
      bounds: int64[r + 1], the start of each of the r rows, and n.
      payloads: of distributions, whose values are their numbers.
    """
    is_opaque = points.slots >= DISTRIBUTION
    values = points.values
    if is_opaque.any():
        values = values.copy()
        values[is_opaque] = [len(payloads[number]) for number in points.values[is_opaque].tolist()]
    raw_values = values.astype("<i8").tobytes()
    raw_offsets = points.slots.astype("<u4").tobytes()
    raw_arrivals = points.arrivals_ms.astype("<i8").tobytes()
    distributions = np.add.reduceat(is_opaque.astype(np.int64), bounds[:-1]).tolist()
    varied = np.append(points.arrivals_ms[1:] != points.arrivals_ms[:-1], False)
    varied[bounds[1:] - 1] = False
    has_several_arrivals = np.logical_or.reduceat(varied, bounds[:-1]).tolist()
    for row, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
        arrivals = end - start if has_several_arrivals[row] else 1
        numbers = points.values[end - distributions[row] : end].tolist() if distributions[row] else ()
        chunks = [
            _HEADER.pack(checksum, offset, end - start, distributions[row], arrivals),
            raw_arrivals[8 * start : 8 * (start + arrivals)],
            raw_values[8 * start : 8 * end],
            raw_offsets[4 * start : 4 * end],
            *(payloads[number] for number in numbers),
        ]
        yield b"".join(chunks)


def cells(packed: Iterable[bytes], form: KeyForm) -> list[Cell]:
    """The cells of one row, whatever the order of its fragments.

    One cell for each point, with its arrival as timestamp. The latest arrival wins a slot; within one
    arrival, the point that is later in its source, and sources are ordered by their checksum.
    """
    # Fragments of one origin are ordered by their bytes, so that the result does not depend on their order.
    in_order = sorted((*_HEADER.unpack_from(fragment)[:2], fragment) for fragment in packed)
    payloads: list[bytes] = []
    points = _joined([_unpacked(fragment, payloads) for _, _, fragment in in_order])
    doubles = int(np.searchsorted(points.slots, DISTRIBUTION))
    row_cells = _cells(points.take(slice(0, doubles)), POINTS, form, None)
    if doubles < len(points.slots):
        row_cells += _cells(points.take(slice(doubles, None)), DISTRIBUTIONS, form, payloads)
    return row_cells


def _unpacked(fragment: bytes, payloads: list[bytes]) -> SlotPoints:
    """The points of a fragment; its payloads are appended to `payloads`."""
    _, _, n, distributions, arrivals = _HEADER.unpack_from(fragment)
    offset = _HEADER.size
    arrivals_ms = np.frombuffer(fragment, "<i8", arrivals, offset).astype(np.int64)
    offset += 8 * arrivals
    values = np.frombuffer(fragment, "<i8", n, offset).astype(np.int64)
    slots = np.frombuffer(fragment, "<u4", n, offset + 8 * n).astype(np.int64)
    if distributions:
        slots[n - distributions :] += DISTRIBUTION
        offset += 12 * n
        sizes = values[n - distributions :].tolist()
        values[n - distributions :] = np.arange(len(payloads), len(payloads) + distributions)
        for size in sizes:
            payloads.append(fragment[offset : offset + size])
            offset += size
    return SlotPoints(slots, np.broadcast_to(arrivals_ms, n), values)


def _joined(fragments: Sequence[SlotPoints]) -> SlotPoints:
    """The points of all fragments by slot, the newest of each."""
    if len(fragments) == 1:
        return fragments[0]
    points = SlotPoints(
        np.concatenate([fragment.slots for fragment in fragments]),
        np.concatenate([fragment.arrivals_ms for fragment in fragments]),
        np.concatenate([fragment.values for fragment in fragments]),
    )
    order = np.lexsort((points.arrivals_ms, points.slots))
    slots = points.slots[order]
    return points.take(order[np.append(slots[1:] != slots[:-1], True)])


def _cells(points: SlotPoints, family: str, form: KeyForm, payloads: Sequence[bytes] | None) -> list[Cell]:
    """The cells of the points of one family; values are doubles if `payloads` is None."""
    width = form.qualifier_bytes
    qualifiers = np.frombuffer(form.qualifiers(points.slots.astype(np.uint32)), f"V{width}").tolist()
    if payloads is None:
        values = np.frombuffer(points.values.astype(">i8").tobytes(), "V8").tolist()
    else:
        values = [payloads[number] for number in points.values.tolist()]
    fields = zip(itertools.repeat(family), qualifiers, points.arrivals_ms.tolist(), values, strict=False)
    return list(map(partial(tuple.__new__, Cell), fields))


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
