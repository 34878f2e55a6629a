"""Reading a data row: cells of every retention class into one sequence of points."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from timebeam.schema.layouts.kairosdb import keys, values
from timebeam.schema.layouts.kairosdb.options import RowSpec
from timebeam.schema.layouts.reading import Decoded
from timebeam.schema.layouts.tables import Cell, Row
from timebeam.schema.points import Bools, Bytes, Int64s, Kind, PointBatch, Series

_FAMILIES = re.compile(r"d[0-9]*")
_LAST_MS = (1 << 63) - 1

Found = tuple[Int64s, Bytes, list[bytes], Bools]
"""Of n cells: bits and kinds as in `PointBatch`, payloads, and bool[n]: which cells hold a value."""


def decode(spec: RowSpec, row: Row, series: Series) -> Decoded:
    """See `Layout.decode`. Families that are no retention class are passed over.

    Types that this layout does not write are read as bytes (`Kind.OPAQUE`); rows without type as KairosDB
    wrote them before 0.9.4.
    """
    try:
        parts = keys.parse_key(row.key)
    except ValueError as error:
        return Decoded(PointBatch.of([], 0), [str(error)], 0)
    every = [cell for cell in row.cells if _FAMILIES.fullmatch(cell.family)]
    cells = [cell for cell in every if len(cell.qualifier) == 4]
    damage = [
        f"column {cell.qualifier[:16].hex()}: not 4 bytes" for cell in every if len(cell.qualifier) != 4
    ]
    columns = np.frombuffer(b"".join([cell.qualifier for cell in cells]), ">u4").astype(np.int64)
    offsets = spec.offsets_ms(columns)
    untyped = parts.data_type is None
    foreign = (offsets >= spec.width_ms) | (offsets > _LAST_MS - parts.row_ms)
    if spec is RowSpec.LEGACY and not untyped:
        foreign |= columns & 1 == 1
    elif spec is not RowSpec.LEGACY and untyped:
        foreign[:] = True
    bits, kinds, payloads, good = _read(parts.data_type, cells, columns)
    damage += _damage(cells, foreign, good, spec)
    timestamps = np.fromiter((cell.timestamp_ms for cell in cells), np.int64, len(cells))
    which = np.flatnonzero(good & ~foreign)
    which = which[np.lexsort((timestamps[which], offsets[which]))]
    instants = offsets[which]
    which = which[np.append(instants[1:] != instants[:-1], True)] if len(which) else which
    times_ms = parts.row_ms + offsets[which]
    batch = PointBatch(
        (series,),
        np.zeros(len(which), np.int32),
        times_ms,
        times_ms % 1000 != 0,
        kinds[which],
        bits[which],
        timestamps[which],
        None,
        payloads,
    )
    return Decoded(batch, damage, len(row.cells) - len(every))


def _read(data_type: bytes | None, cells: Sequence[Cell], columns: Int64s) -> Found:
    """The values of the cells of a row of a data type (None: without type)."""
    n = len(cells)
    if data_type == keys.TYPES[Kind.INTEGER]:
        bits, good = values.read_longs([cell.value for cell in cells])
        return bits, np.full(n, Kind.INTEGER, np.uint8), [], good
    if data_type == keys.TYPES[Kind.FLOAT]:
        bits, good = values.read_doubles([cell.value for cell in cells])
        return bits, np.full(n, Kind.FLOAT, np.uint8), [], good
    if data_type == keys.TYPES[Kind.TEXT]:
        texts = [_text(cell.value) for cell in cells]
        good = np.fromiter((text is not None for text in texts), np.bool_, n)
        return np.arange(n), np.full(n, Kind.TEXT, np.uint8), [text or b"" for text in texts], good
    if data_type is not None:
        payloads = [cell.value for cell in cells]
        return np.arange(n), np.full(n, Kind.OPAQUE, np.uint8), payloads, np.ones(n, np.bool_)
    return _untyped(cells, columns & 1 == 1)


def _text(value: bytes) -> bytes | None:
    """The text of a cell in UTF-8, None if it is none."""
    try:
        return values.read_string(value)
    except ValueError:
        return None


def _untyped(cells: Sequence[Cell], flagged: Bools) -> Found:
    """The values of the cells of a row without type: seldom, so one by one."""
    bits = np.zeros(len(cells), np.int64)
    kinds = np.where(flagged, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))
    good = np.ones(len(cells), np.bool_)
    for i, (cell, is_float) in enumerate(zip(cells, flagged.tolist(), strict=True)):
        try:
            number = values.untyped_number(cell.value, flagged=is_float)
        except ValueError:
            good[i] = False
            continue
        if is_float:
            bits.view(np.float64)[i] = number
        else:
            bits[i] = number
    return bits, kinds, [], good


def _damage(cells: Sequence[Cell], foreign: Bools, good: Bools, spec: RowSpec) -> list[str]:
    """What of some cells could not be read, in words."""
    found = []
    strange = np.flatnonzero(foreign).tolist()
    if strange:
        first = cells[strange[0]].qualifier.hex()
        why = f"column {first} (and {len(strange) - 1} more) is none of row spec {spec.value}"
        found.append(why + ": is row_spec that of the store?")
    for i in np.flatnonzero(~good & ~foreign).tolist():
        cell = cells[i]
        found.append(f"column {cell.qualifier.hex()}: {cell.value[:16].hex()} is no value of the row's type")
    return found
