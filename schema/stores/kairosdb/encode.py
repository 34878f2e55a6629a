"""Encodes a batch of points into fragments of rows: the hot path, in numpy.

Format of values: docs/spec/kairosdb.md §4.

| type | bytes |
|---|---|
| kairos_long | zig-zag, then LEB128: 7 bits per byte, lowest first, bit 7 set in all but the last |
| kairos_double | big-endian double |
| kairos_string | length in 2 bytes, then Java's modified UTF-8: NUL as c080, above U+FFFF two surrogates |

Sources: Util.packLong, LongDataPointFactoryImpl, DoubleDataPointFactoryImpl, StringDataPoint of KairosDB
1.3.0; java.io.DataOutputStream.writeUTF.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core import point_fragments
from timebeam.schema.core.batches import run_starts
from timebeam.schema.core.point_fragments import Encoded
from timebeam.schema.core.points import PointBatch, SeriesKey
from timebeam.schema.core.rejections import Stage
from timebeam.schema.stores.kairosdb import keys as row_keys
from timebeam.schema.stores.kairosdb.options import RowSpec

KINDS = len(row_keys.TYPES)

STRING_BYTES = 65_535
"""The longest string, in bytes of modified UTF-8."""

LONGEST_LONG = 10
"""Bytes of the longest integer."""
_SEVEN_BITS = np.uint64(7)
_LIMITS = np.array([1 << (7 * k) for k in range(1, LONGEST_LONG)], np.uint64)
"""A number of at least the k-th limit takes more than k + 1 bytes."""
_ABOVE_FFFF = re.compile("[\U00010000-\U0010ffff]")


def encode(batch: PointBatch, keys: Sequence[SeriesKey | None], table: str, spec: RowSpec) -> Encoded:
    """The fragments of a batch: one row for each series, row time and kind of value.

    >>> from timebeam.schema.stores.kairosdb.keys import series_key
    >>> from timebeam.schema.core.points import Series
    >>> series = Series.of("cpu", {"host": "a"})
    >>> batch = PointBatch.of([(series, 1300000000000, True, 42)], arrival_ms=9000)
    >>> (row,) = encode(batch, [series_key(series)], "data_points", RowSpec.MILLISECONDS).fragments
    >>> row.key.hex()
    '637075000000012e79039000000b6b6169726f735f6c6f6e67686f73743d613a'
    >>> (cell,) = point_cells(point_fragments.SlotPoints.of([[row.packed]]), "d").cells(0)
    >>> cell.qualifier.hex(), cell.timestamp_ms, cell.value.hex()
    ('35063800', 9000, '54')

    Args:
      keys: the key of each series of the batch; None for a series without points in it.
      table: name of the data table.
    """
    good = storable(batch)
    rejected = batch.reject(np.flatnonzero(~good), functools.partial(_why, batch), Stage.ENCODE)
    if rejected:
        batch = batch.take(np.flatnonzero(good))
    if len(batch) == 0:
        return Encoded([], rejected, 0)
    width = spec.width_ms
    numbers = batch.times_ms // width
    offsets = batch.times_ms - numbers * width
    order, bounds = sorted_rows(batch, numbers, offsets)
    columns, arrivals_ms = spec.columns(offsets[order]), batch.arrivals_ms[order]
    points = point_fragments.SlotPoints(bounds, columns, arrivals_ms, _values(batch.take(order)))
    first = order[bounds[:-1]]
    series_keys = [key for number in batch.index[first].tolist() if (key := keys[number]) is not None]
    times_ms, kinds = (numbers[first] * width).tolist(), batch.kinds[first].tolist()
    row_fragments = points.row_fragments(
        table, map(row_keys.row_key, series_keys, times_ms, kinds), batch.origins
    )
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def point_cells(points: point_fragments.SlotPoints, family: str) -> point_fragments.CellColumns:
    """The cells of rows: one for each point, with its arrival as timestamp."""
    points = points.newest()
    n = len(points.slots)
    qualifiers = points.slots.astype(">u4").tobytes(), np.arange(n + 1) * 4
    one_family = np.zeros(n, np.int64)
    return point_fragments.CellColumns(
        points.bounds, (family,), one_family, qualifiers, points.arrivals_ms, points.values
    )


def storable(batch: PointBatch) -> Bools:
    """bool[n]: the points whose time and value the layout can hold."""
    good = (batch.times_ms >= 0) & (batch.times_ms <= row_keys.LAST_MS) & (batch.kinds < KINDS)
    good &= (batch.kinds != Kind.FLOAT) | np.isfinite(batch.bits.view(np.float64))
    string_points = np.flatnonzero(good & (batch.kinds == Kind.TEXT))
    good[string_points] = [_fits(batch.payloads[number]) for number in batch.bits[string_points].tolist()]
    return good


def _fits(text: bytes) -> bool:
    """Whether the length of a string fits two bytes; a byte of UTF-8 becomes at most two."""
    return 2 * len(text) <= STRING_BYTES or len(modified_utf8(text)) <= STRING_BYTES


def _why(batch: PointBatch, point: int) -> RejectedError:
    """Why a point cannot be stored."""
    time_ms, kind = int(batch.times_ms[point]), batch.kinds[point]
    if time_ms < 0:
        reason = Reason.TIMESTAMP_OUT_OF_RANGE
        message = f"time {time_ms} ms: times before 1970 are not stored"
    elif time_ms > row_keys.LAST_MS:
        reason = Reason.TIMESTAMP_OUT_OF_RANGE
        message = f"time {time_ms} ms: the last is {row_keys.LAST_MS} ms"
    elif kind == Kind.FLOAT:
        reason = Reason.NUMBER_OUT_OF_RANGE
        message = "value is NaN or Infinite: queries of KairosDB fail on it"
    elif kind == Kind.TEXT:
        message = f"a string of more than {STRING_BYTES} bytes in Java's modified UTF-8"
        reason = Reason.VALUE_NOT_STORABLE
    else:
        reason, message = Reason.VALUE_NOT_STORABLE, "KairosDB stores longs, doubles and strings"
    return RejectedError(reason, message)


def sorted_rows(batch: PointBatch, numbers: Int64s, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """As `slots.sorted_rows`, by row (series, row time, kind); of a time only the last of all kinds.

    Cells of two kinds are in two rows, where no reader could tell which of one arrival came later.

    Args:
      numbers: int64[n], row time divided by the width of a row.
      offsets: int64[n], of each point in its row.
    """
    rows = point_fragments.row_numbers(batch.index, numbers)
    order, bounds = point_fragments.sorted_rows(rows, offsets, batch.arrivals_ms)
    if (batch.kinds == batch.kinds[0]).all():
        return order, bounds
    rows = (rows * KINDS + batch.kinds)[order]
    if (rows[1:] < rows[:-1]).any():
        by_kind = np.argsort(rows, kind="stable")
        order, rows = order[by_kind], rows[by_kind]
    return order, np.append(run_starts(rows), len(rows))


def _values(batch: PointBatch) -> point_fragments.Strings:
    sizes = np.full(len(batch), 8)
    is_long, is_text = batch.kinds == Kind.INTEGER, batch.kinds == Kind.TEXT
    longs, sizes[is_long] = long_bytes(batch.bits[is_long])
    strings = [string_bytes(batch.payloads[number]) for number in batch.bits[is_text].tolist()]
    sizes[is_text] = [len(string) for string in strings]
    starts = point_fragments.starts_of(sizes)
    content = np.empty(starts[-1], np.uint8)
    kind_of = np.repeat(batch.kinds, sizes)
    content[kind_of == Kind.INTEGER] = np.frombuffer(longs, np.uint8)
    content[kind_of == Kind.FLOAT] = batch.bits[batch.kinds == Kind.FLOAT].astype(">i8").view(np.uint8)
    content[kind_of == Kind.TEXT] = np.frombuffer(b"".join(strings), np.uint8)
    return content.tobytes(), starts


def long_bytes(values: Int64s) -> tuple[bytes, Int64s]:
    """(the encoded integers concatenated, int64[n] bytes of each).

    >>> content, sizes = long_bytes(np.array([0, -1, 63, -127, 42]))
    >>> content.hex(" "), sizes.tolist()
    ('00 01 7e fd 01 54', [1, 1, 1, 2, 1])
    """
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    #          (1)            (2)
    # (1) Room for the sign in the last bit.
    # (2) All bits are turned if it is negative: 0, -1, 1, -2 become 0, 1, 2, 3.
    sizes = np.searchsorted(_LIMITS, zigzag, "right") + 1
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    pending = np.arange(len(values))
    for k in range(LONGEST_LONG):
        pending = pending[sizes[pending] > k]
        if len(pending) == 0:
            break
        continuation = (sizes[pending] > k + 1).astype(np.uint8) << np.uint8(7)
        out[starts[pending] + k] = (zigzag[pending] & np.uint64(0x7F)).astype(np.uint8) | continuation
        zigzag[pending] >>= _SEVEN_BITS
    return out.tobytes(), sizes


def modified_utf8(text: bytes) -> bytes:
    """A string in Java's modified UTF-8, from UTF-8."""
    if text and max(text) >= 0xF0:
        text = _ABOVE_FFFF.sub(_surrogates, text.decode()).encode("utf-8", "surrogatepass")
    return text.replace(b"\0", b"\xc0\x80")


def _surrogates(match: re.Match[str]) -> str:
    """The two surrogates of a character above U+FFFF."""
    number = ord(match[0]) - 0x10000
    return chr(0xD800 + (number >> 10)) + chr(0xDC00 + (number & 0x3FF))


def string_bytes(text: bytes) -> bytes:
    """A string as cell value, of at most `STRING_BYTES` in modified UTF-8."""
    modified = modified_utf8(text)
    return len(modified).to_bytes(2, "big") + modified
