"""Pieces: what one batch holds of one row, packed; and the merging of pieces into cells.

| bytes | content |
|---|---|
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
| 4, 4 | number of points n, and how many of them, the last ones, are distributions |
| 4 | number of arrivals a: n, or 1 if all are the same |
| 8a | arrivals in ms, the cell timestamps |
| 8n | the bits of doubles; of distributions the length of the payload |
| 4n | offsets from the base in ms, ascending among the doubles and among the distributions |
| rest | the payloads of the distributions, one behind the other |

All numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from timebeam.schema.layouts.heroic.keys import PERIOD_MS, KeyForm
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.points import Int64s

POINTS = "points"
DISTRIBUTIONS = "distributionPoints"
DISTRIBUTION = PERIOD_MS
"""Added to the offset of a distribution, which makes it another slot than that of a double."""

_HEADER = struct.Struct("<IQIII")


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """n points of one or several rows, in columns int64[n].

    Attributes:
      slots: offset from the base in ms, plus `DISTRIBUTION` for a distribution: one point in each.
      values: the bits of a double, or the number of a payload.
    """

    slots: Int64s
    arrivals_ms: Int64s
    values: Int64s

    def take(self, indices: Int64s | slice) -> Points:
        """A selection."""
        return Points(self.slots[indices], self.arrivals_ms[indices], self.values[indices])


def packed_rows(
    points: Points, bounds: Int64s, payloads: Sequence[bytes], checksum: int, offset: int
) -> Iterator[bytes]:
    """The pieces of consecutive slices of points.

    Args:
      points: those of one row stand together, in the order of their slots, one of each.
      bounds: int64[r + 1], where each of the r rows starts, and the end.
      payloads: those that the values of distributions number.
    """
    is_opaque = points.slots >= DISTRIBUTION
    values = points.values
    if is_opaque.any():
        values = values.copy()
        values[is_opaque] = [len(payloads[number]) for number in points.values[is_opaque].tolist()]
    raw_values = values.astype("<i8").tobytes()
    raw_offsets = points.slots.astype("<u4").tobytes()
    raw_arrivals = points.arrivals_ms.astype("<i8").tobytes()
    opaque = np.add.reduceat(is_opaque.astype(np.int64), bounds[:-1]).tolist()
    varied = np.append(points.arrivals_ms[1:] != points.arrivals_ms[:-1], False)
    varied[bounds[1:] - 1] = False
    several = np.logical_or.reduceat(varied, bounds[:-1]).tolist()
    for row, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
        arrivals = end - start if several[row] else 1
        numbers = points.values[end - opaque[row] : end].tolist() if opaque[row] else ()
        parts = [
            _HEADER.pack(checksum, offset, end - start, opaque[row], arrivals),
            raw_arrivals[8 * start : 8 * (start + arrivals)],
            raw_values[8 * start : 8 * end],
            raw_offsets[4 * start : 4 * end],
            *(payloads[number] for number in numbers),
        ]
        yield b"".join(parts)


def cells(packed: Iterable[bytes], form: KeyForm) -> list[Cell]:
    """The cells of one row from its pieces: the same whatever their order.

    A cell for each point, its arrival as timestamp. The latest arrival of a slot wins; of one arrival
    what stands later in its source, sources being ordered by their checksum.
    """
    # Pieces that nothing else tells apart are put into the order of their bytes.
    in_order = sorted((*_HEADER.unpack_from(piece)[:2], piece) for piece in packed)
    payloads: list[bytes] = []
    points = _joined([_unpacked(piece, payloads) for _, _, piece in in_order])
    doubles = int(np.searchsorted(points.slots, DISTRIBUTION))
    found = _cells(points.take(slice(0, doubles)), POINTS, form, None)
    if doubles < len(points.slots):
        found += _cells(points.take(slice(doubles, None)), DISTRIBUTIONS, form, payloads)
    return found


def _unpacked(piece: bytes, payloads: list[bytes]) -> Points:
    """The points of a piece; its payloads are added to those given."""
    _, _, n, opaque, arrivals = _HEADER.unpack_from(piece)
    at = _HEADER.size
    arrivals_ms = np.frombuffer(piece, "<i8", arrivals, at).astype(np.int64)
    at += 8 * arrivals
    values = np.frombuffer(piece, "<i8", n, at).astype(np.int64)
    slots = np.frombuffer(piece, "<u4", n, at + 8 * n).astype(np.int64)
    if opaque:
        slots[n - opaque :] += DISTRIBUTION
        at += 12 * n
        sizes = values[n - opaque :].tolist()
        values[n - opaque :] = np.arange(len(payloads), len(payloads) + opaque)
        for size in sizes:
            payloads.append(piece[at : at + size])
            at += size
    return Points(slots, np.broadcast_to(arrivals_ms, n), values)


def _joined(parts: Sequence[Points]) -> Points:
    """The points of all parts in the order of their slots, one of each: the newest."""
    if len(parts) == 1:
        return parts[0]
    both = Points(
        np.concatenate([part.slots for part in parts]),
        np.concatenate([part.arrivals_ms for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
    order = np.lexsort((both.arrivals_ms, both.slots))
    slots = both.slots[order]
    return both.take(order[np.append(slots[1:] != slots[:-1], True)])


def _cells(points: Points, family: str, form: KeyForm, payloads: Sequence[bytes] | None) -> list[Cell]:
    """The cells of the points of one family; without `payloads` their values are doubles."""
    width = form.qualifier_bytes
    qualifiers = np.frombuffer(form.qualifiers(points.slots.astype(np.uint32)), f"V{width}").tolist()
    if payloads is None:
        values = np.frombuffer(points.values.astype(">i8").tobytes(), "V8").tolist()
    else:
        values = [payloads[number] for number in points.values.tolist()]
    made = zip(itertools.repeat(family), qualifiers, points.arrivals_ms.tolist(), values, strict=False)
    return list(map(partial(tuple.__new__, Cell), made))
