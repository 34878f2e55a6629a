"""Statistics of the columns of a row group, compared with their values: engines leave out rows by them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from timebeam.schema.formats.parquet.footer import RowGroup

_MAX, _MIN, _NULLS, _MAX_VALUE, _MIN_VALUE = 1, 2, 3, 5, 6
_BOUNDS = {_MAX: "maximum", _MIN: "minimum", _MAX_VALUE: "maximum", _MIN_VALUE: "minimum"}
_NUMBERS = {2: "<q", 5: "<d"}  # by physical type: int64, double


def wrong_statistics(group: RowGroup, rows: pa.Table) -> Iterator[str]:
    """What the footer says wrongly of a row group, in words.

    Args:
      rows: of the group; strings and bytes are dictionaries. Statistics of maps are not compared.
    """
    for chunk in group.chunks:
        said = chunk.statistics
        if not said or len(chunk.leaf.path) > 1:
            continue
        name, column = chunk.leaf.name, rows[chunk.leaf.name]
        if said.get(_NULLS, column.null_count) != column.null_count:
            yield f"{said[_NULLS]:,} nulls in {name}, which has {column.null_count:,}"
        least, greatest = _extent(column)
        for field, bound_name in _BOUNDS.items():
            if field not in said:
                continue
            right = greatest if bound_name == "maximum" else least
            bound = _value(said[field], chunk.leaf.physical)
            if bound != right:
                yield f"{bound!r} as the {bound_name} of {name}, which is {right!r}"


def _extent(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """(minimum, maximum) of a column, as numbers or bytes; None if all are null."""
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        values: list[bytes] = []
        for chunk in column.chunks:
            used = np.unique(chunk.indices.drop_null().to_numpy())
            values += chunk.dictionary.take(pa.array(used)).cast(pa.binary()).to_pylist()
        return (min(values), max(values)) if values else (None, None)
    number = column if pa.types.is_floating(column.type) else column.cast(pa.int64())
    extent = pc.min_max(number).as_py()
    return extent["min"], extent["max"]


def _value(raw: bytes, physical: int) -> Any:
    """A bound: a number, or bytes as they are, also of a number that has not its size."""
    form = _NUMBERS.get(physical)
    return struct.unpack(form, raw)[0] if form and len(raw) == struct.calcsize(form) else raw
