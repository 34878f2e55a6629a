"""Encodes a batch of points into fragments of rows: the hot path, in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Bools, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core import point_fragments
from timebeam.schema.core.point_fragments import Encoded
from timebeam.schema.core.points import PointBatch, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.stores.heroic.keys import PERIOD_MS, KeyForm

POINTS = "points"
DISTRIBUTIONS = "distributionPoints"
_NAN_BITS = 0x7FF8 << 48
_PERIOD_BITS = 32


def encode(batch: PointBatch, keys: Sequence[SeriesKey | None], table: str, form: KeyForm) -> Encoded:
    """The fragments of a batch, one for each row.

    >>> from timebeam.schema.stores.heroic.wire_key import WireKeys
    >>> from timebeam.schema.core.points import Series
    >>> series = Series.of("cpu", {"host": "a"})
    >>> batch = PointBatch.of([(series, 1300001000000, True, 127.0)], arrival_ms=9000)
    >>> (row,) = encode(batch, [WireKeys().series_key(series)], "metrics", WireKeys()).fragments
    >>> row.key.hex()
    '0303637075010404686f73740101610000012e00000000'
    >>> (cell,) = point_cells(point_fragments.SlotPoints.of([[row.packed]]), WireKeys()).cells(0)
    >>> cell.family, cell.qualifier.hex(), cell.timestamp_ms, cell.value.hex()
    ('points', 'ae190a40', 9000, '405fc00000000000')

    Args:
      keys: the key of each series of the batch; None for a series without points in it.
      table: name of the data table.
    """
    batch, rejected = _storable(batch)
    if len(batch) == 0:
        return Encoded([], rejected, 0)
    periods = batch.times_ms >> _PERIOD_BITS
    is_opaque = batch.kinds == Kind.OPAQUE
    all_slots = (batch.times_ms & (PERIOD_MS - 1)) + point_fragments.HIGH * is_opaque
    rows = point_fragments.row_numbers(batch.index, periods)
    order, bounds = point_fragments.sorted_rows(rows, all_slots, batch.arrivals_ms)
    values = _values(batch.take(order))
    points = point_fragments.SlotPoints(bounds, all_slots[order], batch.arrivals_ms[order], values)
    first = order[bounds[:-1]]
    series_keys = [key for number in batch.index[first].tolist() if (key := keys[number]) is not None]
    row_keys = map(form.row_key, series_keys, (periods[first] << _PERIOD_BITS).tolist())
    row_fragments = points.row_fragments(table, row_keys, batch.origins)
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def point_cells(points: point_fragments.SlotPoints, form: KeyForm) -> point_fragments.CellColumns:
    """The cells of rows: one for each point, with its arrival as timestamp."""
    points = points.newest()
    width = form.qualifier_bytes
    return point_fragments.CellColumns(
        points.bounds,
        (POINTS, DISTRIBUTIONS),
        points.slots >> _PERIOD_BITS,
        (form.qualifiers(points.slots.astype(np.uint32)), np.arange(len(points.slots) + 1) * width),
        points.arrivals_ms,
        points.values,
    )


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
    """(the points that the layout can hold, the rejections of the others)."""
    has_time, has_value = storable(batch)
    is_storable = has_time & has_value
    if is_storable.all():
        return batch, []

    def why(point: int) -> RejectedError:
        if not has_time[point]:
            message = f"time {batch.times_ms[point]} ms: Heroic reads times before 1970 back as other times"
            return RejectedError(Reason.TIMESTAMP_OUT_OF_RANGE, message)
        message = "a string or histogram: Heroic stores doubles and distributions"
        if batch.kinds[point] == Kind.INTEGER:
            message = f"the integer {batch.bits[point]} is not a double: send a decimal, which may be rounded"
        return RejectedError(Reason.VALUE_NOT_STORABLE, message)

    rejected = batch.reject(np.flatnonzero(~is_storable), why, Stage.ENCODE)
    return batch.take(np.flatnonzero(is_storable)), rejected


def _values(batch: PointBatch) -> point_fragments.Strings:
    """The stored values: a double on 8 bytes, with canonical NaN; or a payload."""
    doubles = np.where(
        batch.kinds == Kind.INTEGER, batch.bits.astype(np.float64), batch.bits.view(np.float64)
    )
    content = np.where(np.isnan(doubles), _NAN_BITS, doubles.view(np.int64)).astype(">i8").tobytes()
    starts = np.arange(len(batch) + 1) * 8
    opaque = np.flatnonzero(batch.kinds == Kind.OPAQUE)
    if not len(opaque):
        return content, starts
    values = [content[start : start + 8] for start in starts[:-1].tolist()]
    for point, number in zip(opaque.tolist(), batch.bits[opaque].tolist(), strict=True):
        values[point] = batch.payloads[number]
    return b"".join(values), point_fragments.starts_of(np.fromiter(map(len, values), np.int64, len(values)))
