"""What an encoder makes of a batch: the points of rows by their place, in columns and as shuffled fragments.

A slot is the place of a point in its row, a number below 2**33: in packing `points` one column of one family.
A fragment holds the points of one batch in one row, in every layout and packing:

| bytes | content |
|---|---|
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
| 4, 4 | number of points n; number of slots of 2**32 or more, which come last |
| 1, 1 | bytes of a slot: 2 or 4; of a size: 1 or 4 |
| 1, 1 | 1 if each point has its own arrival, 1 if each has its own size; 0 if all have the same |
| 8 or 8 n | arrivals in ms |
| 2 n or 4 n | slots, modulo 2**32, each once |
| 1 or 4, once or n times | sizes of the values |
| rest | values |

All numbers are little-endian.

>>> values, arrivals_ms = (b"\x01\x02", np.arange(3)), np.array([9000, 9000])
>>> points = SlotPoints(np.array([0, 2]), np.array([3, 7]), arrivals_ms, values)
>>> (fragment,) = points.fragments(checksum=1, offset=0)
>>> fragment[:24].hex(" ", 4), fragment[24:].hex(" ")
('01000000 00000000 00000000 02000000 00000000 02010000', '28 23 00 00 00 00 00 00 03 00 07 00 01 01 02')
>>> SlotPoints.of([[fragment]]).slots.tolist()
[3, 7]
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Int32s, Int64s
from timebeam.schema.core.points import Series, source_checksum
from timebeam.schema.core.rejections import Origins, Rejected
from timebeam.schema.core.rows import Cell


class Packing(enum.StrEnum):
    """How the points of one row become cells."""

    POINTS = "points"
    COMPACTED = "compacted"
    APPEND = "append"


class Name(NamedTuple):
    """A name that a layout stores as a UID, and its kind (`metrics`, `tagk`, `tagv`)."""

    kind: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class UidSpec:
    """Where a layout keeps the UIDs of its names, in OpenTSDB's way.

    Attributes:
      table: name of the UID table, with prefix.
      widths: bytes of a UID, by kind.
      names: gives the names of a series that are stored as UIDs.
      replaced: gives (stored name, name) of each, if different names are stored as one; else none.
    """

    table: str
    widths: Mapping[str, int]
    names: Callable[[Series], Sequence[Name]]
    replaced: Callable[[Series], Sequence[tuple[Name, str]]]


class RowFragment(NamedTuple):
    """The points of one batch in one row, packed: opaque to all but the layout."""

    table: str
    key: bytes
    packed: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded batch.

    Attributes:
      fragments: of the rows that the batch touches.
      rejected: the points that the layout cannot hold.
      duplicates: number of points dropped since a later point of the batch has the same time.
    """

    fragments: Sequence[RowFragment]
    rejected: Sequence[Rejected]
    duplicates: int

    def by_row(self) -> dict[tuple[str, bytes], list[bytes]]:
        """The packed fragments of each row, by (table, row key)."""
        rows: dict[tuple[str, bytes], list[bytes]] = {}
        for table, key, packed in self.fragments:
            rows.setdefault((table, key), []).append(packed)
        return rows


class SeriesSpan(NamedTuple):
    """The points of one row: the row key without its time, the first and last time in ms."""

    series: bytes
    first_ms: int
    last_ms: int


HIGH = 1 << 32
"""The first slot of the second family of a row."""

Strings = tuple[bytes, Int64s]
"""n byte strings: concatenated, and int64[n + 1], the start of each, and the end."""

_HEADER = struct.Struct("<IQIIBBBB")
_FIELDS = np.dtype("<u4, <u8, <u4, <u4, u1, u1, u1, u1")
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
        return dataclasses.replace(self.part(order), bounds=bounds)

    def part(self, order: Int64s) -> SlotPoints:
        """Some points of one row, as its only ones."""
        bounds, values = np.array([0, len(order)]), take(self.values, order)
        return SlotPoints(bounds, self.slots[order], self.arrivals_ms[order], values)

    def of_rows(self, chosen: Bools) -> SlotPoints:
        """The points of some rows, bool[r], as the only ones."""
        bounds = starts_of(np.diff(self.bounds)[chosen])
        return dataclasses.replace(self.part(np.flatnonzero(chosen[self.rows])), bounds=bounds)

    def newest(self) -> SlotPoints:
        """The points by slot, the latest arrival of each; within one arrival, the last point."""
        return self.newest_of(self.slots, _SLOT_BITS)

    def newest_of(self, places: Int64s, bits: int) -> SlotPoints:
        """As `newest`, by other numbers of so many bits, int64[n]: several slots can be one place."""
        if is_ascending(places, self.bounds):
            return self
        return self.take(newest(self.rows << bits | places, self.arrivals_ms))

    def fragments(self, checksum: int, offset: int) -> list[bytes]:
        """A fragment of each row, one point of each slot, those of 2**32 or more last.

        Args:
          checksum: of the name of the batch's source.
          offset: of the batch in it, in bytes.
        """
        content, starts = self.values
        sizes = np.diff(starts)
        lowest = self.slots & (HIGH - 1)
        slot_bytes = 2 if int(lowest.max()) < 1 << 16 else 4
        size_bytes = 1 if int(sizes.max()) < 1 << 8 else 4
        raw_slots, raw_sizes = (
            lowest.astype(f"<u{slot_bytes}").tobytes(),
            sizes.astype(f"<u{size_bytes}").tobytes(),
        )
        raw_arrivals = self.arrivals_ms.astype("<i8").tobytes()
        pack = _HEADER.pack
        return [
            b"".join(
                (
                    pack(
                        checksum, offset, end - start, high, slot_bytes, size_bytes, each_arrival, each_size
                    ),
                    raw_arrivals[8 * start : 8 * (end if each_arrival else start + 1)],
                    raw_slots[slot_bytes * start : slot_bytes * end],
                    raw_sizes[size_bytes * start : size_bytes * (end if each_size else start + 1)],
                    content[first:last],
                )
            )
            for high, each_arrival, each_size, (start, end), (first, last) in zip(
                np.add.reduceat(self.slots >= HIGH, self.bounds[:-1], dtype=np.int64).tolist(),
                _vary(self.arrivals_ms, self.bounds),
                _vary(sizes, self.bounds),
                itertools.pairwise(self.bounds.tolist()),
                itertools.pairwise(starts[self.bounds].tolist()),
                strict=True,
            )
        ]

    def row_fragments(self, table: str, keys: Iterable[bytes], origins: Origins | None) -> list[RowFragment]:
        """The fragments of rows with these keys, of a batch with these origins."""
        origin = (source_checksum(origins.source), max(0, origins.offset)) if origins else (0, 0)
        return list(map(RowFragment, itertools.repeat(table), keys, self.fragments(*origin)))

    @classmethod
    def of(cls, rows: Iterable[Sequence[bytes]]) -> SlotPoints:
        """The points of the fragments of each row, in the order of their sources."""
        headers, arrivals, slots, sizes, values = [], [], [], [], []
        counts = [0]  # of fragments, up to each row's last
        unpack, head = _HEADER.unpack_from, _HEADER.size
        for packed in rows:
            for fragment in packed if len(packed) == 1 else sorted(packed, key=_order):
                _, _, n, _, slot_bytes, size_bytes, each_arrival, each_size = unpack(fragment)
                slots_at = head + 8 * (n if each_arrival else 1)
                sizes_at = slots_at + slot_bytes * n
                values_at = sizes_at + size_bytes * (n if each_size else 1)
                headers.append(fragment[:head])
                arrivals.append(fragment[head:slots_at])
                slots.append(fragment[slots_at:sizes_at])
                sizes.append(fragment[sizes_at:values_at])
                values.append(fragment[values_at:])
            counts.append(len(headers))
        fields = np.frombuffer(b"".join(headers), _FIELDS)
        points, high = fields["f2"].astype(np.int64), fields["f3"].astype(np.int64)
        all_slots = _numbers(slots, fields["f4"])
        if high.any():
            from_end = np.repeat(np.cumsum(points), points) - np.arange(len(all_slots))
            all_slots[from_end <= np.repeat(high, points)] += HIGH
        all_arrivals = _repeated(np.frombuffer(b"".join(arrivals), "<i8"), points, fields["f6"])
        all_sizes = _repeated(_numbers(sizes, fields["f5"]), points, fields["f7"])
        bounds = starts_of(points)[counts]
        return cls(bounds, all_slots, all_arrivals, (b"".join(values), starts_of(all_sizes)))


def is_ascending(numbers: Int64s, bounds: Int64s) -> bool:
    """Whether the numbers of the points of each row ascend, int64[n]; see `SlotPoints`."""
    later = numbers[1:] > numbers[:-1]
    later[bounds[1:-1] - 1] = True
    return bool(later.all())


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


def row_numbers(index: Int32s, periods: Int64s) -> Int64s:
    """int64[n]: a number for the row (series, period) of each point; small where possible."""
    low, high = int(periods.min()), int(periods.max())
    return index.astype(np.int64) * (high - low + 1) + (periods - low)


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


def _vary(numbers: Int64s, bounds: Int64s) -> list[bool]:
    """Whether the numbers of the points of a row differ, for each row."""
    changes = np.append(numbers[1:] != numbers[:-1], False)
    changes[bounds[1:] - 1] = False
    return np.logical_or.reduceat(changes, bounds[:-1]).tolist()


def _numbers(stored: Sequence[bytes], widths: Bytes) -> Int64s:
    """int64[n]: the unsigned numbers of fragments, each fragment with numbers of one width."""
    if (widths == widths[0]).all():
        return np.frombuffer(b"".join(stored), f"<u{widths[0]}").astype(np.int64)
    return np.concatenate(
        [
            np.frombuffer(part, f"<u{width}").astype(np.int64)
            for part, width in zip(stored, widths, strict=True)
        ]
    )


def _repeated(numbers: Int64s, points: Int64s, each: Bytes) -> Int64s:
    """int64[n]: a number for each point; a fragment has one for each of its points, or one for all."""
    if each.all():
        return numbers
    return np.repeat(numbers, np.repeat(np.where(each, 1, points), np.where(each, points, 1)))


def _order(fragment: bytes) -> tuple[int, int, int, bytes]:
    """Sort key: a later fragment of a row wins over an earlier one; equal keys mean equal fragments.

    The first arrival only saves time: by it the points of most streams ascend, and need no sorting.
    """
    checksum, offset, *_ = _HEADER.unpack_from(fragment)
    return checksum, offset, *_ARRIVAL.unpack_from(fragment, _HEADER.size), fragment
