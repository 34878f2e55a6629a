"""Reading a data row: its cells into points (docs/spec/heroic.md §4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.layouts.heroic.keys import KeyForm
from timebeam.schema.layouts.heroic.pieces import DISTRIBUTIONS, POINTS
from timebeam.schema.layouts.reading import Decoded
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.points import Kind, PointBatch, Series

_SHOWN = 16  # bytes of a bad qualifier in a message


def read_row(cells: Sequence[Cell], base_ms: int, series: Series, form: KeyForm) -> Decoded:
    """The points of a row; of one instant a double and a distribution are two.

    Cells of other families (Heroic's `events`) are counted in `skipped`.
    """
    doubles, opaque, skipped = [], [], 0
    damage = []
    for cell in cells:
        if cell.family == POINTS:
            if len(cell.qualifier) != form.qualifier_bytes:
                damage.append(_bad_qualifier(cell))
            elif len(cell.value) != 8:
                damage.append(f"column {cell.qualifier.hex()}: a double of {len(cell.value)} bytes")
            else:
                doubles.append(cell)
        elif cell.family != DISTRIBUTIONS:
            skipped += 1
        elif len(cell.qualifier) != form.qualifier_bytes:
            damage.append(_bad_qualifier(cell))
        else:
            opaque.append(cell)
    found = doubles + opaque
    offsets = form.offsets(b"".join([cell.qualifier for cell in found]))
    damage += [_bad_qualifier(found[i]) for i in np.flatnonzero(offsets < 0).tolist()]
    n = len(doubles)
    bits = np.arange(-n, len(opaque), dtype=np.int64)
    bits[:n] = np.frombuffer(b"".join([cell.value for cell in doubles]), ">i8")
    kinds = np.full(len(found), Kind.FLOAT, np.uint8)
    kinds[n:] = Kind.OPAQUE
    batch = PointBatch(
        (series,),
        np.zeros(len(found), np.int32),
        base_ms + offsets,
        (base_ms + offsets) % 1000 != 0,
        kinds,
        bits,
        np.fromiter((cell.timestamp_ms for cell in found), np.int64, len(found)),
        payloads=[cell.value for cell in opaque],
    )
    order = np.argsort(offsets, kind="stable")
    return Decoded(batch.take(order[offsets[order] >= 0]), damage, skipped)


def _bad_qualifier(cell: Cell) -> str:
    return f"column {cell.qualifier[:_SHOWN].hex()} of {cell.family}: no offset from the base has this form"
