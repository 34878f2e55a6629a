"""A cell for each point: points by their place in a row, in columns, and as the fragments that are shuffled.

A slot is the place of a point in its row, a number below 2**33: one column of one family. A fragment holds
the points of one batch in one row.

| bytes | content |
|---|---|
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
| 4, 4 | number of points n; number of slots of 2**32 or more, which come last |
| 4, 4 | number of arrivals, number of sizes: n, or 1 if all are the same |
| 8 each | arrivals in ms |
| 4 n | slots, modulo 2**32, each once |
| 4 each | sizes of the values |
| rest | values |

All numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.core.points import source_checksum
from timebeam.schema.core.rejections import Origins
from timebeam.schema.core.rows import Cell

HIGH = 1 << 32
"""The first slot of the second family of a row."""

Strings = tuple[bytes, Int64s]
"""n byte strings: concatenated, and int64[n + 1], the start of each, and the end."""

_HEADER = struct.Struct("<IQIIII")
_ARRIVAL = struct.Struct("<q")
_SLOT_BITS = 33


@dataclasses.dataclass(frozen=True, slots=True)
class CellColumns:
    """n cells of r rows, row by row.

    Attributes:
      bounds: int64[r + 1], the first cell of each row, and n.
      families: the families of the cells.
      family_of: int64[n], the number of each cell's family.
      times_ms: int64[n], the cell timestamps.
    """

    bounds: Int64s
    families: Sequence[str]
    family_of: Int64s
    qualifiers: Strings
    times_ms: Int64s
    values: Strings

    @classmethod
    def of(cls, rows: Sequence[Sequence[Cell]]) -> CellColumns:
        """The cells of rows with an object for each: for few rows."""
        in_rows = [cell for cells in rows for cell in cells]
        families = tuple(dict.fromkeys(cell.family for cell in in_rows))
        qualifiers, values = (
            (b"".join(texts), starts_of(np.array([len(text) for text in texts], np.int64)))
            for texts in ([cell.qualifier for cell in in_rows], [cell.value for cell in in_rows])
        )
        return cls(
            starts_of(np.array([len(cells) for cells in rows], np.int64)),
            families,
            np.array([families.index(cell.family) for cell in in_rows], np.int64),
            qualifiers,
            np.array([cell.timestamp_ms for cell in in_rows], np.int64),
            values,
        )

    def cells(self, row: int) -> list[Cell]:
        """The cells of one row with an object for each: for few rows."""
        numbers = range(*self.bounds[row : row + 2].tolist())
        qualifiers, values = (
            [content[starts[number] : starts[number + 1]] for number in numbers]
            for content, starts in (self.qualifiers, self.values)
        )
        first, end = numbers.start, numbers.stop
        families = [self.families[number] for number in self.family_of[first:end].tolist()]
        return list(map(Cell, families, qualifiers, self.times_ms[first:end].tolist(), values))


@dataclasses.dataclass(frozen=True, slots=True)
class SlotPoints:
    """n points of r rows, row by row, in columns.

    Attributes:
      bounds: int64[r + 1], the first point of each row, and n.
      slots: int64[n].
      arrivals_ms: int64[n].
      values: as they are stored.
    """

    bounds: Int64s
    slots: Int64s
    arrivals_ms: Int64s
    values: Strings

    @property
    def rows(self) -> Int64s:
        """int64[n]: the number of each point's row."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    def take(self, order: Int64s) -> SlotPoints:
        """A selection, ordered by row, with at least one point of each row."""
        bounds = np.searchsorted(self.rows[order], np.arange(len(self.bounds)))
        return SlotPoints(bounds, self.slots[order], self.arrivals_ms[order], take(self.values, order))

    def newest(self) -> SlotPoints:
        """The points by slot, the latest arrival of each; within one arrival, the last point."""
        keys = self.rows << _SLOT_BITS | self.slots
        if (keys[1:] > keys[:-1]).all():
            return self
        return self.take(newest(keys, self.arrivals_ms))

    def fragments(self, checksum: int, offset: int) -> list[bytes]:
        """A fragment of each row, one point of each slot, those of 2**32 or more last; see `origin_of`."""
        content, starts = self.values
        sizes = np.diff(starts)
        raw_slots = self.slots.astype("<u4").tobytes()
        raw_arrivals, raw_sizes = self.arrivals_ms.astype("<i8").tobytes(), sizes.astype("<u4").tobytes()
        counts = zip(
            np.add.reduceat(self.slots >= HIGH, self.bounds[:-1], dtype=np.int64).tolist(),
            _distinct(self.arrivals_ms, self.bounds),
            _distinct(sizes, self.bounds),
            itertools.pairwise(self.bounds.tolist()),
            itertools.pairwise(starts[self.bounds].tolist()),
            strict=True,
        )
        return [
            b"".join(
                (
                    _HEADER.pack(checksum, offset, end - start, high, arrivals, lengths),
                    raw_arrivals[8 * start : 8 * (start + arrivals)],
                    raw_slots[4 * start : 4 * end],
                    raw_sizes[4 * start : 4 * (start + lengths)],
                    content[first:last],
                )
            )
            for high, arrivals, lengths, (start, end), (first, last) in counts
        ]

    @classmethod
    def of(cls, rows: Iterable[Iterable[bytes]]) -> SlotPoints:
        """The points of the fragments of each row, in the order of their sources."""
        headers, arrivals, slots, sizes, values = [], [], [], [], []
        counts = []  # of fragments, up to each row's last
        for packed in rows:
            for fragment in sorted(packed, key=_order):
                header = _HEADER.unpack_from(fragment)
                _, _, n, _, arrival_count, size_count = header
                headers.append(header[2:])
                slots_at = _HEADER.size + 8 * arrival_count
                sizes_at = slots_at + 4 * n
                values_at = sizes_at + 4 * size_count
                arrivals.append(fragment[_HEADER.size : slots_at])
                slots.append(fragment[slots_at:sizes_at])
                sizes.append(fragment[sizes_at:values_at])
                values.append(fragment[values_at:])
            counts.append(len(headers))
        points, high, arrival_counts, size_counts = np.array(headers, np.int64).reshape(-1, 4).T
        all_slots = np.frombuffer(b"".join(slots), "<u4").astype(np.int64)
        if high.any():
            from_end = np.repeat(np.cumsum(points), points) - np.arange(len(all_slots))
            all_slots[from_end <= np.repeat(high, points)] += HIGH
        all_arrivals = _repeated(np.frombuffer(b"".join(arrivals), "<i8"), points, arrival_counts)
        all_sizes = _repeated(np.frombuffer(b"".join(sizes), "<u4"), points, size_counts)
        bounds = starts_of(points)[[0, *counts]]
        return cls(bounds, all_slots, all_arrivals, (b"".join(values), starts_of(all_sizes)))


def fragment_of(
    origin: tuple[int, int], arrival_ms: int, slots: npt.NDArray[np.uint32], sizes: Int64s, values: bytes
) -> bytes:
    """The fragment of points of one arrival in one row; see the module's table and `origin_of`."""
    n = len(slots)
    header = _HEADER.pack(*origin, n, 0, 1, n) + _ARRIVAL.pack(arrival_ms)
    return b"".join((header, slots.astype("<u4").tobytes(), sizes.astype("<u4").tobytes(), values))


def newest(keys: Int64s, arrivals_ms: Int64s) -> Int64s:
    """int64[m]: the points by key, the latest arrival of each; within one arrival, the last point."""
    order = np.lexsort((arrivals_ms, keys))
    in_order = keys[order]
    return order[np.append(in_order[1:] != in_order[:-1], True)]


def sorted_rows(rows: Int64s, slots: Int64s, arrivals_ms: Int64s) -> tuple[Int64s, Int64s]:
    """(order, bounds): the points of a batch by row and slot, one of each; the start of each row and the end.

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


def origin_of(origins: Origins | None) -> tuple[int, int]:
    """(checksum of the source's name, byte offset in it) of a batch."""
    return (source_checksum(origins.source), max(0, origins.offset)) if origins else (0, 0)


def starts_of(sizes: Int64s) -> Int64s:
    """int64[n + 1]: the starts of consecutive strings of these sizes, and their end."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def take(strings: Strings, order: Int64s) -> Strings:
    """A selection of byte strings."""
    content, starts = strings
    sizes = np.diff(starts)[order]
    selected = starts_of(sizes)
    positions = np.repeat(starts[:-1][order] - selected[:-1], sizes) + np.arange(selected[-1])
    return np.frombuffer(content, np.uint8)[positions].tobytes(), selected


def _distinct(numbers: Int64s, bounds: Int64s) -> list[int]:
    """For each row 1 if all its numbers are the same, else how many there are."""
    changes = np.append(numbers[1:] != numbers[:-1], False)
    changes[bounds[1:] - 1] = False
    is_varied = np.logical_or.reduceat(changes, bounds[:-1])
    return np.where(is_varied, np.diff(bounds), 1).tolist()


def _repeated(numbers: Int64s, counts: Int64s, stored: Int64s) -> Int64s:
    """int64[n]: a number for each point; a fragment of `counts` points has `stored` numbers, 1 or as many."""
    return np.repeat(numbers.astype(np.int64), np.repeat(np.where(stored == 1, counts, 1), stored))


def _order(fragment: bytes) -> tuple[int, int, int, bytes]:
    """Sort key: a later fragment of a row wins over an earlier one; equal keys mean equal fragments.

    The first arrival only saves time: by it the points of most streams ascend, and need no sorting.
    """
    checksum, offset, *_ = _HEADER.unpack_from(fragment)
    return checksum, offset, *_ARRIVAL.unpack_from(fragment, _HEADER.size), fragment
