"""Fragments of rows, and the cells that they become: one batch's points of one arrival in one row.

Qualifiers and values are in their stored form, so the usual case (one fragment, or fragments that follow
each other in time) is packed without decoding. In packing `points` fragments are those of
`timebeam.schema.layouts.slots` instead.

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

from timebeam.schema.layouts import slots
from timebeam.schema.layouts.opentsdb import elements as el
from timebeam.schema.layouts.opentsdb import histogram_cells
from timebeam.schema.layouts.opentsdb.rows import merge
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.layouts.writing import Packing
from timebeam.schema.points import Int64s

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
    if packing is not Packing.APPEND:
        ascending = _ascending_columns(numbers)
        if ascending is not None:
            return ascending + histogram_columns
    fragments = [UnpackedFragment.of(fragment) for fragment in numbers]
    if not fragments:
        return histogram_columns
    if packing is Packing.APPEND:
        newest = max(fragment.arrival_ms for fragment in fragments)
        appended = el.append_bytes(_joined(fragments).elements())
        return [Cell(FAMILY, APPEND_QUALIFIER, newest, appended), *histogram_columns]
    fragments = _without_superseded(_by_arrival(fragments))
    number_columns = [_column(column) for fragment in fragments for column in _in_columns(fragment)]
    return number_columns + histogram_columns


def _ascending_columns(fragments: Iterable[bytes]) -> list[Cell] | None:
    """The columns of fragments whose arrivals and points ascend, as most of a stream; None for others.

    Also None for a column over Bigtable's limit. No object is made for a fragment: a row may have hundreds.
    """
    unpack, start = _HEADER.unpack_from, _HEADER.size
    columns = list[tuple[int, int, bytes, bytes]]()
    newest_ms, end_ms = -(1 << 64), -1
    for packed in fragments:
        arrival_ms, _, _, first_ms, last_ms, forms, size = unpack(packed)
        if first_ms <= end_ms or arrival_ms < newest_ms:
            return None
        qualifiers, values = packed[start : start + size], packed[start + size :]
        if arrival_ms == newest_ms:
            _, earlier_forms, earlier_qualifiers, earlier_values = columns.pop()
            forms |= earlier_forms
            qualifiers, values = earlier_qualifiers + qualifiers, earlier_values + values
        if len(qualifiers) > _QUALIFIER_BYTES:
            return None
        columns.append((arrival_ms, forms, qualifiers, values))
        newest_ms, end_ms = arrival_ms, last_ms
    return [_cell(*column) for column in columns]


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
    """The cell of a fragment that fits one."""
    return _cell(fragment.arrival_ms, fragment.forms, fragment.qualifiers, fragment.values)


def _cell(arrival_ms: int, forms: int, qualifiers: bytes, values: bytes) -> Cell:
    """One compacted column, or a plain point: a TSD misreads a compacted column of one point."""
    if len(qualifiers) == (4 if forms == _MILLISECONDS else 2):
        return Cell(FAMILY, qualifiers, arrival_ms, values)
    return Cell(FAMILY, qualifiers, arrival_ms, values + (b"\x01" if forms == _MIXED else b"\x00"))


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
