"""Rows and cells of OpenTSDB's rollup and pre-aggregate tables (docs/spec/opentsdb.md §7.2 to §7.4).

rollup/RollupUtils.buildRollupQualifier, core/TSDB.addAggregatePointInternal and core/RollupSeq of
OpenTSDB 2.4.1. Row keys are those of the data table (`timebeam.schema.stores.opentsdb.keys`) with the base
time of the row span. Qualifiers:

| qualifier | bytes |
|---|---|
| rollup | aggregation id; then 12 bits: interval of the row, 4 bits: flags as in the data table |
| rollup, old form, read only | the aggregator's name and a colon; then the same two bytes |
| point of a group, default interval | 12 bits: second of the hour, 4 bits: flags |

A number of another width, or an integer that became a float, has another qualifier. A rewritten interval
could then have two cells, and TSDs would fail the query. So a rewrite deletes the existing cells in the same
mutation: see `stale_qualifiers`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bytes, Int64s, Kind
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, remove_cells
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import ColumnRange
from timebeam.schema.rollup.accumulate import numbers
from timebeam.schema.rollup.buckets import Buckets
from timebeam.schema.rollup.rollup_config import RollupInterval
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.keys import SPAN_S

FAMILY = "t"
ROLLUP_BYTES, POINT_BYTES = 3, 2


class Form(enum.Enum):
    """How many bytes a number takes; the value is the possible flags of a qualifier."""

    FIXED = (0x7, 0xF)
    """8 bytes, so there are two possible qualifiers."""
    FEWEST = (0x0, 0x1, 0x3, 0x7, 0xB, 0xF)
    """Integers on 1, 2, 4 or 8 bytes, floats on 8, as with HTTP /api/rollup; telnet also writes 4."""


def columns_of(ids: Iterable[int]) -> ColumnRange:
    """The columns of aggregation ids and those between, as one range, since several are slow to read."""
    sorted_ids = sorted(ids)
    return ColumnRange(FAMILY, bytes([sorted_ids[0]]), bytes([sorted_ids[-1] + 1]))


def stale_qualifiers(existing: Sequence[bytes], written: Iterable[bytes]) -> list[bytes]:
    """The existing qualifiers of a row that a rewrite deletes, since it does not write them."""
    kept_qualifiers = set(written)
    return [qualifier for qualifier in existing if qualifier not in kept_qualifiers]


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedRollups:
    """Encoded buckets: n cells of m rows, in columns, and the numbers that no cell can hold.

    Attributes:
      series: int64[m], the number of the series of each row in `Buckets.series`.
      bases_s: int64[m], base time of each row in seconds; rows are sorted by series and base time.
      firsts: int64[m + 1], the first cell of each row, and n; cells are sorted by aggregation id, then time.
      codes: uint32[n], qualifiers: aggregation id << 16, interval of the row << 4, flags.
      raws: uint64[n], the bytes of each value as a big-endian number.
      times_ms: int64[n], the timestamp of each cell: the start of its interval.
      qualifier_bytes: bytes of a qualifier.
    """

    series: Int64s
    bases_s: Int64s
    firsts: Int64s
    codes: el.Codes
    raws: el.Raws
    times_ms: Int64s
    qualifier_bytes: int
    rejected: Sequence[Rejected]

    @property
    def qualifiers(self) -> Bytes:
        """uint8[n, qualifier_bytes]: the last three bytes of `codes`, or the last two, without the ids."""
        return self.codes.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - self.qualifier_bytes :]


def encode_rollups(
    buckets: Buckets, interval: RollupInterval, stored: Mapping[int, str], form: Form
) -> EncodedRollups:
    """The rows of a rollup table.

    >>> from timebeam.schema.core.points import PointBatch, Series
    >>> from timebeam.schema.rollup.accumulate import accumulate
    >>> from timebeam.schema.rollup.day_plan import RowSpan
    >>> minute = RollupInterval("1m", RowSpan.parse("1h"), "tsdb-rollup-1m", "tsdb-rollup-preagg-1m")
    >>> batch = PointBatch.of([(Series.of("m", {"host": "a"}), 1356998460_000, False, 300)], 9000)
    >>> encoded = encode_rollups(accumulate(batch, 60), minute, {0: "sum"}, Form.FEWEST)
    >>> encoded.bases_s.tolist(), encoded.qualifiers.tobytes().hex(), encoded.raws.tolist()  # id 0, minute 1
    ([1356998400], '000011', [300])

    Args:
      buckets: of the interval.
      stored: by aggregation id, the number to store: sum, count, min, max, first or last.

    Raises:
      ValueError: buckets of another interval.
    """
    if buckets.interval_s != interval.seconds:
        raise ValueError(f"buckets of {buckets.interval_s} s do not have the interval {interval.interval}")
    starts_s = buckets.starts_ms // 1000
    bases = interval.row_span.bases(starts_s)
    return _encoded(buckets, bases, (starts_s - bases) // interval.seconds, stored, form, ROLLUP_BYTES)


def encode_points(buckets: Buckets, stored: str, form: Form) -> EncodedRollups:
    """The rows of the default interval's pre-aggregate table: plain points at the start of each bucket.

    Args:
      buckets: of groups.
      stored: the number to store: sum, count, min or max.
    """
    starts_s = buckets.starts_ms // 1000
    bases = starts_s - starts_s % SPAN_S
    return _encoded(buckets, bases, starts_s - bases, {0: stored}, form, POINT_BYTES)


def _encoded(
    buckets: Buckets,
    bases: Int64s,
    offsets: Int64s,
    stored: Mapping[int, str],
    form: Form,
    qualifier_bytes: int,
) -> EncodedRollups:
    m, k = len(buckets), len(stored)
    changes = (buckets.index[1:] != buckets.index[:-1]) | (bases[1:] != bases[:-1])
    firsts = np.concatenate([[0], np.flatnonzero(changes) + 1]) if m else np.zeros(0, np.int64)
    sizes = np.diff(firsts, append=m)
    # The cells of a row are sorted by id, then by time: the next id follows `sizes` cells later.
    positions = np.arange(m) + np.repeat(firsts * (k - 1), sizes)
    step = np.repeat(sizes, sizes)
    codes = np.empty(m * k, np.uint32)
    raws = np.empty(m * k, np.uint64)
    times_ms = np.empty(m * k, np.int64)
    bad = np.zeros(m * k, np.bool_)
    rejected: list[Rejected] = []
    shifted = (offsets << 4).astype(np.uint32)
    for number in sorted(stored):
        aggregates = numbers(buckets, stored[number])
        endless = (aggregates.kinds == Kind.FLOAT) & ~np.isfinite(aggregates.bits.view(np.float64))
        if endless.any():
            bad[positions] = endless
            rejected += [
                _too_large(buckets, index, stored[number]) for index in np.flatnonzero(endless).tolist()
            ]
        flags, raws[positions] = _values(aggregates.kinds, aggregates.bits, form)
        codes[positions] = shifted | np.uint32(number << 16) | flags
        times_ms[positions] = buckets.starts_ms
        positions += step
    ends = np.append(firsts * k, m * k)
    if rejected:
        is_good = ~bad
        codes, raws, times_ms = codes[is_good], raws[is_good], times_ms[is_good]
        ends = np.concatenate([[0], np.cumsum(is_good)])[ends]
        row_ends = np.flatnonzero(np.diff(ends))
        firsts, ends = firsts[row_ends], np.append(ends[row_ends], ends[-1])
    return EncodedRollups(
        buckets.index[firsts].astype(np.int64),
        bases[firsts],
        ends,
        codes,
        raws,
        times_ms,
        qualifier_bytes,
        rejected,
    )


def _too_large(buckets: Buckets, index: int, name: str) -> Rejected:
    where = f"{buckets.series[buckets.index[index]]} from {buckets.starts_ms[index]} ms"
    message = f"{name} of {where} on, {buckets.interval_s} s: it does not fit a 64-bit float"
    return Rejected(b"", Reason.NUMBER_OUT_OF_RANGE, message, Stage.ENCODE)


def _values(kinds: Bytes, bits: Int64s, form: Form) -> tuple[npt.NDArray[np.uint32], el.Raws]:
    """(flags uint32[n], raws uint64[n]) of numbers."""
    is_float = kinds == Kind.FLOAT
    if form is Form.FIXED:
        return np.where(is_float, np.uint32(0xF), np.uint32(0x7)), bits.view(np.uint64)
    flags, raws = el.integer_elements(bits)
    float_indices = np.flatnonzero(is_float)
    flags[float_indices], raws[float_indices] = el.float_elements(
        bits[float_indices], exact=False, short=False
    )
    return flags, raws


@dataclasses.dataclass(frozen=True, slots=True)
class DecodedRollups:
    """n numbers of one row, sorted by id and interval, one for each.

    Attributes:
      ids: int64[n], aggregation ids.
      starts_s: int64[n], the starts of their intervals.
      kinds, bits: as in `PointBatch`.
      timestamps_ms: int64[n], of the cells.
      corruption: what could not be read, in words.
    """

    ids: Int64s
    starts_s: Int64s
    kinds: Bytes
    bits: Int64s
    timestamps_ms: Int64s
    corruption: Sequence[str]


def decode_rollups(
    cells: Sequence[Cell], base_s: int, interval: RollupInterval, aggregation_ids: Mapping[str, int]
) -> DecodedRollups:
    """The numbers of a row of a rollup table.

    The newest cell wins an interval; of equal timestamps, the greater qualifier. Names in qualifiers may have
    upper case (TSDs read only lower case).
    """
    valid_ids, most = frozenset(aggregation_ids.values()), interval.row_intervals
    good: list[tuple[int, bytes, int, bytes, bytes]] = []  # timestamp, qualifier, id, offset and flags, value
    corruption = []
    for cell in cells:
        qualifier = cell.qualifier
        number = (
            qualifier[0] if len(qualifier) == ROLLUP_BYTES else _id_of_name(qualifier[:-2], aggregation_ids)
        )
        why = _corruption(cell, number, valid_ids, most)
        if why:
            corruption.append(f"column {qualifier[:16].hex()}: {why}")
        else:
            good.append((cell.timestamp_ms, qualifier, number, qualifier[-2:], cell.value))
    good.sort()
    codes = (
        el.split_columns(
            b"".join(cell_fields[3] for cell_fields in good), b"".join(cell_fields[4] for cell_fields in good)
        )
        if good
        else el.NONE
    )
    ids = np.array([cell_fields[2] for cell_fields in good], np.int64)
    offsets = (codes.codes >> 4).astype(np.int64)
    order = np.lexsort((offsets, ids))  # stable: of equal ones the winner comes last
    ids, offsets = ids[order], offsets[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (ids[1:] != ids[:-1]) | (offsets[1:] != offsets[:-1])
    bits, kinds, _ = codes.take(order[last]).values()
    timestamps = np.array([cell_fields[0] for cell_fields in good], np.int64)[order[last]]
    starts = base_s + offsets[last] * interval.seconds
    return DecodedRollups(ids[last], starts, kinds, bits, timestamps, corruption)


def _id_of_name(prefix: bytes, aggregation_ids: Mapping[str, int]) -> int:
    """The id of the aggregator whose name and a colon begin a qualifier; -1 if there is none."""
    if not prefix.endswith(b":"):
        return -1
    return aggregation_ids.get(prefix[:-1].decode("iso-8859-1").lower(), -1)


def _corruption(cell: Cell, number: int, valid_ids: frozenset[int], row_intervals: int) -> str:
    """Why a cell is not a rollup; empty if it is one."""
    if number not in valid_ids:
        return "no aggregator of the configuration has this id or name"
    flags = cell.qualifier[-1] & 0xF
    if flags not in Form.FEWEST.value:
        return f"flags {flags:x}: no number has this type and length"
    if len(cell.value) != (flags & 0x7) + 1:
        return f"{len(cell.value)} bytes where the qualifier says {(flags & 0x7) + 1}"
    offset = int.from_bytes(cell.qualifier[-2:], "big") >> 4
    if offset >= row_intervals:
        return f"interval {offset} of a row that has {row_intervals}"
    return ""


def remove_rollups(
    row: Row, base_ms: int, step_ms: int, qualifier_bytes: int, deleted: DeleteRange
) -> RowDeletion | None:
    """The deletion of the numbers in a row of rollups or pre-aggregates; None if it has none in the range.

    Docs: docs/spec/opentsdb.md §7.3. Cells of another form stay.

    Args:
      base_ms: the base time of the row, in ms.
      step_ms: from one column to the next, in ms.
      qualifier_bytes: 3 with an aggregation id, else 2.
    """
    times_ms = [
        base_ms + (int.from_bytes(cell.qualifier[-2:], "big") >> 4) * step_ms
        if len(cell.qualifier) == qualifier_bytes or (qualifier_bytes == 3 and b":" in cell.qualifier[:-2])
        else -1
        for cell in row.cells
    ]
    return remove_cells(row, np.array(times_ms, np.int64), deleted)
