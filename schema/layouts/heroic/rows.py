"""Reads a data row: cells into points (docs/spec/heroic.md §4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.layouts.heroic.fragments import DISTRIBUTIONS, POINTS
from timebeam.schema.layouts.heroic.keys import KeyForm
from timebeam.schema.layouts.reading import Decoded
from timebeam.schema.layouts.tables import Cell
from timebeam.schema.points import Kind, PointBatch, Series

_SHOWN = 16  # bytes of a bad qualifier in a message


def read_row(cells: Sequence[Cell], base_ms: int, series: Series, form: KeyForm) -> Decoded:
    """The points of a row; a double and a distribution of one instant are two points.

    Cells of other families (Heroic's `events`) are counted in `skipped`.
    """
    doubles, distributions, skipped = [], [], 0
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
            distributions.append(cell)
    point_cells = doubles + distributions
    offsets = form.offsets(b"".join([cell.qualifier for cell in point_cells]))
    damage += [_bad_qualifier(point_cells[i]) for i in np.flatnonzero(offsets < 0).tolist()]
    n = len(doubles)
    bits = np.arange(-n, len(distributions), dtype=np.int64)
    bits[:n] = np.frombuffer(b"".join([cell.value for cell in doubles]), ">i8")
    kinds = np.full(len(point_cells), Kind.FLOAT, np.uint8)
    kinds[n:] = Kind.OPAQUE
    batch = PointBatch(
        (series,),
        np.zeros(len(point_cells), np.int32),
        base_ms + offsets,
        (base_ms + offsets) % 1000 != 0,
        kinds,
        bits,
        np.fromiter((cell.timestamp_ms for cell in point_cells), np.int64, len(point_cells)),
        payloads=[cell.value for cell in distributions],
    )
    order = np.argsort(offsets, kind="stable")
    return Decoded(batch.take(order[offsets[order] >= 0]), damage, skipped)


def _bad_qualifier(cell: Cell) -> str:
    return f"column {cell.qualifier[:_SHOWN].hex()} of {cell.family}: not an offset from the base"
