"""Encodes a batch of points into fragments of rows, and those into cells: the hot path, in numpy.

The cells are plain, compacted or append columns, and those of histograms. A slot
(`timebeam.schema.core.point_fragments`) is the qualifier of a number; of a histogram it is that of a number
at the same time, without flags, and `HIGH`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core import point_fragments
from timebeam.schema.core.batches import run_starts
from timebeam.schema.core.point_fragments import HIGH, CellColumns, Encoded, Packing, SlotPoints, Strings
from timebeam.schema.core.points import PointBatch, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import QUALIFIER_BYTES, Cell
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.columns.decode_row import HISTOGRAM
from timebeam.schema.stores.opentsdb.keys import SPAN_S, row_keys
from timebeam.schema.stores.opentsdb.options import Decimals, OpenTsdbOptions

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

    >>> from timebeam.schema.core.points import Series
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
        slots = np.where(is_histogram, qualifiers | HIGH, slots)
        times = np.where(is_histogram, (offsets << 1) | batch.in_ms | (1 << bits + 1), times)
        bits += 2
    rows = point_fragments.row_numbers(batch.index, hours)
    order = _sorted_columns(_columns_of(rows, batch.arrivals_ms), times, bits)
    rows = rows[order]
    bounds = np.append(run_starts(rows), len(rows))
    values = el.value_bytes(elements.take(order))
    if is_histogram.any():
        values = _with_payloads(values, batch, order, is_histogram)
    points = SlotPoints(bounds, slots[order], batch.arrivals_ms[order], values).newest()
    first = order[bounds[:-1]]
    series = [key for number in batch.index[first].tolist() if (key := keys[number]) is not None]
    row_fragments = points.row_fragments(table, row_keys(series, hours[first] * SPAN_S), batch.origins)
    return Encoded(row_fragments, rejected, len(batch) - len(order))


def _with_payloads(numbers: Strings, batch: PointBatch, order: Int64s, is_histogram: Bools) -> Strings:
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


FAMILY = "t"
APPEND_QUALIFIER = b"\x05\x00\x00"


def offsets_of(points: SlotPoints) -> Int64s:
    """int64[n]: milliseconds of each point since the base time of its row."""
    return el.offsets_ms(points.slots.astype(np.uint32))


def cell_columns(points: SlotPoints, packing: Packing, bases_ms: Int64s | None = None) -> CellColumns:
    """The cells of rows.

    | packing | cells of a row | timestamp, ms |
    |---|---|---|
    | `points` | one for each time and arrival | the arrival |
    | `points`, with times | one for each time and qualifier | the time of the point |
    | `compacted` | one for each arrival, or several with qualifiers of at most 16 KiB | the arrival |
    | `append` | one | the newest arrival |
    | any | besides, one for each qualifier of a histogram, whose latest arrival wins | the arrival |

    The latest arrival of a time wins; within one arrival, the last point. Packing `points` keeps two
    values of one time with different arrivals and qualifiers (an integer corrected to a decimal), as a
    TSD does: the newer cell wins on reading. A compacted column holds points of one arrival only: an old
    point in a newer column would win over corrections between the two.

    Args:
      points: in the order of their sources, as `SlotPoints.of` gives them.
      bases_ms: int64[r], the base time of each row in ms, if cell timestamps are the times of points, in
        packing `points`. Reading chooses among their qualifiers: docs/spec/opentsdb.md §2.2, rule 6.
    """
    is_histogram = points.slots >= HIGH
    if is_histogram.any():
        return _with_histograms(points, is_histogram, packing, bases_ms)
    if packing is Packing.POINTS:
        return _point_columns(points, bases_ms)
    points = points.newest_of(offsets_of(points), _OFFSET_BITS)
    return _append_columns(points) if packing is Packing.APPEND else _compacted_columns(points)


def columns(elements: el.Elements, timestamp_ms: int) -> list[Cell]:
    """Compacted columns that hold these elements; a plain point for a single element.

    >>> elements = el.split_append(bytes.fromhex("0000 01 0010 02 0021 012c 003f 3ff8000000000000"))
    >>> [(cell.qualifier.hex(), cell.value.hex()) for cell in columns(elements, 9000)]
    [('000000100021003f', '0102012c3ff800000000000000')]

    Args:
      elements: one or more, one per time, ascending.
      timestamp_ms: of the cells.
    """
    n = len(elements)
    arrivals_ms, codes = np.full(n, timestamp_ms), elements.codes.astype(np.int64)
    points = SlotPoints(np.array([0, n]), codes, arrivals_ms, el.value_bytes(elements))
    return _compacted_columns(points).cells(0)


def _with_histograms(
    points: SlotPoints, is_histogram: Bools, packing: Packing, bases_ms: Int64s | None
) -> CellColumns:
    """As `cell_columns`, row by row, each with the cells of its histograms last."""
    rows = []
    for row, (first, end) in enumerate(
        zip(points.bounds[:-1].tolist(), points.bounds[1:].tolist(), strict=True)
    ):
        cells = list[Cell]()
        of_row = np.arange(first, end)
        numbers, histograms = of_row[~is_histogram[first:end]], of_row[is_histogram[first:end]]
        if len(numbers):
            base_ms = None if bases_ms is None else bases_ms[row : row + 1]
            cells += cell_columns(points.part(numbers), packing, base_ms).cells(0)
        if len(histograms):
            cells += _histograms(points.part(histograms)).cells(0)
        rows.append(cells)
    return CellColumns.of(rows)


def _point_columns(points: SlotPoints, bases_ms: Int64s | None) -> CellColumns:
    if bases_ms is None:
        points = _one_per_arrival(points)
    points = points.newest()
    times_ms = points.arrivals_ms if bases_ms is None else bases_ms[points.rows] + offsets_of(points)
    qualifiers = el.qualifier_bytes(points.slots.astype(np.uint32))
    one_family = np.zeros(len(times_ms), np.int64)
    return CellColumns(points.bounds, (FAMILY,), one_family, qualifiers, times_ms, points.values)


def _one_per_arrival(points: SlotPoints) -> SlotPoints:
    """The points without those whose time has a later point of the same arrival."""
    offsets = offsets_of(points)
    if point_fragments.is_ascending(offsets, points.bounds):
        return points
    times = points.rows << _OFFSET_BITS | offsets
    arrivals = np.unique(points.arrivals_ms, return_inverse=True)[1]
    order = np.lexsort((arrivals, times))
    times, arrivals = times[order], arrivals[order]
    is_last = np.append((times[1:] != times[:-1]) | (arrivals[1:] != arrivals[:-1]), True)
    return points.take(np.sort(order[is_last]))


def _append_columns(points: SlotPoints) -> CellColumns:
    """A cell for each row, with the newest of its arrivals."""
    elements = el.of_strings(points.slots.astype(np.uint32), points.values)
    starts = point_fragments.starts_of(elements.widths + np.where(elements.in_ms, 4, 2))
    n = len(points.bounds) - 1
    return CellColumns(
        np.arange(n + 1),
        (FAMILY,),
        np.zeros(n, np.int64),
        (APPEND_QUALIFIER * n, np.arange(n + 1) * len(APPEND_QUALIFIER)),
        np.maximum.reduceat(points.arrivals_ms, points.bounds[:-1]),
        (el.append_bytes(elements), starts[points.bounds]),
    )


def _compacted_columns(points: SlotPoints) -> CellColumns:
    """A cell for each row and arrival, or several cells if its qualifiers have more than 16 KiB.

    Args:
      points: one of each time of a row, ascending.
    """
    arrivals_ms = points.arrivals_ms
    falls = arrivals_ms[1:] < arrivals_ms[:-1]
    falls[points.bounds[1:-1] - 1] = False
    if falls.any():
        points = points.take(np.lexsort((arrivals_ms, points.rows)))  # stable: by time within an arrival
        arrivals_ms = points.arrivals_ms
    codes = points.slots.astype(np.uint32)
    qualifiers, qualifier_starts = el.qualifier_bytes(codes)
    is_new = np.append(True, arrivals_ms[1:] != arrivals_ms[:-1])
    is_new[points.bounds[:-1]] = True
    bounds = np.append(np.flatnonzero(is_new), len(codes))
    for column in np.flatnonzero(np.diff(qualifier_starts[bounds]) > QUALIFIER_BYTES).tolist():
        is_new[bounds[column] : bounds[column + 1] : QUALIFIER_BYTES // 4] = True
    firsts = np.flatnonzero(is_new)
    bounds = np.append(firsts, len(codes))
    in_ms = np.add.reduceat(codes >= el.MS_FLAG, firsts, dtype=np.int64)
    return CellColumns(
        np.searchsorted(firsts, points.bounds),
        (FAMILY,),
        np.zeros(len(firsts), np.int64),
        (qualifiers, qualifier_starts[bounds]),
        arrivals_ms[firsts],
        _ended(points.values, bounds, (in_ms > 0) & (in_ms < np.diff(bounds))),
    )


def _ended(values: Strings, bounds: Int64s, is_mixed: Bools) -> Strings:
    """The values of compacted columns, each with its last byte; a plain point has none."""
    content, starts = values
    is_compacted = np.diff(bounds) > 1
    ends = starts[bounds[1:]]
    ended = np.insert(np.frombuffer(content, np.uint8), ends[is_compacted], is_mixed[is_compacted])
    return ended.tobytes(), starts[bounds] + np.append(0, np.cumsum(is_compacted))


def _histograms(points: SlotPoints) -> CellColumns:
    """A cell for each qualifier: docs/spec/opentsdb.md §4.2."""
    points = points.newest()
    codes = points.slots.astype(np.uint32)
    names = [
        bytes([HISTOGRAM])
        + (offset_ms.to_bytes(4, "big") if in_ms else (offset_ms // 1000).to_bytes(2, "big"))
        for offset_ms, in_ms in zip(offsets_of(points).tolist(), (codes >= el.MS_FLAG).tolist(), strict=True)
    ]
    starts = point_fragments.starts_of(np.array([len(name) for name in names], np.int64))
    one_family, qualifiers = np.zeros(len(names), np.int64), (b"".join(names), starts)
    return CellColumns(points.bounds, (FAMILY,), one_family, qualifiers, points.arrivals_ms, points.values)
