"""The index tables: which rows there are, and which names (docs/spec/kairosdb.md §1 and §7).

`row_keys` has the key of each data row with an empty cell: the old `row_key_index` with the metric moved
into the key. `string_index` has three rows, with a column for each name and one zero byte as value.

The key of an entry holds the type, so entries are numbers that hold it too: row time + kind, 0 to 2. Row
times are multiples of the width of a row, so no two entries are one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from timebeam.schema.layouts.kairosdb import keys
from timebeam.schema.layouts.kairosdb.encode import KINDS, row_numbers, storable
from timebeam.schema.layouts.kairosdb.options import RowSpec
from timebeam.schema.layouts.tables import Cell, Row
from timebeam.schema.points import PointBatch, Series

ROW_KEYS_FAMILY, NAMES_FAMILY = "k", "s"

METRICS, TAG_NAMES, TAG_VALUES = b"metric_names", b"tag_names", b"tag_values"

_NAME_MS = 0
"""The cell timestamp of names: a constant, since they never change."""


def entries(batch: PointBatch, spec: RowSpec) -> list[tuple[int, int]]:
    """(number of a series, entry) for each row that the storable points of a batch are in."""
    good = storable(batch)
    if not good.all():
        batch = batch.take(np.flatnonzero(good))
    if len(batch) == 0:
        return []
    numbers = batch.times_ms // spec.width_ms
    first = np.unique(row_numbers(batch, numbers), return_index=True)[1]
    found = numbers[first] * spec.width_ms + batch.kinds[first]
    return list(zip(batch.index[first].tolist(), found.tolist(), strict=True))


def rows(series: Series, entry: int, spec: RowSpec, row_keys: str, strings: str) -> list[Row]:
    """The rows of the index tables for an entry of `entries`.

    Args:
      row_keys, strings: names of the tables.
    """
    kind = entry % spec.width_ms
    assert kind < KINDS
    row_ms = entry - kind
    key = keys.row_key(keys.series_key(series), row_ms, kind)
    return [
        Row(row_keys, key, [Cell(ROW_KEYS_FAMILY, b"", row_ms, b"")]),
        Row(strings, METRICS, _names([series.metric])),
        Row(strings, TAG_NAMES, _names(name for name, _ in series.tags)),
        Row(strings, TAG_VALUES, _names({value for _, value in series.tags})),
    ]


def check_row(row: Row, spec: RowSpec, row_keys: str, strings: str) -> None:
    """Checks that the cells of a row of an index table are some that `rows` makes.

    Raises:
      ValueError: they are not.
    """
    if row.table == strings:
        good = row.key in (METRICS, TAG_NAMES, TAG_VALUES)
        good &= list(row.cells) == _names(cell.qualifier.decode() for cell in row.cells)
        good &= all(cell.qualifier for cell in row.cells)
    else:
        series, entry = entry_of(row.key)
        refusal = keys.refuse_series(series)
        if refusal is not None:
            raise refusal
        row_ms = keys.parse_key(row.key).row_ms
        if not 0 <= row_ms <= keys.LAST_MS or row_ms % spec.width_ms:
            raise ValueError(f"row time {row_ms} is none of row spec {spec.value}")
        good = rows(series, entry, spec, row_keys, strings)[0] == row._replace(cells=list(row.cells))
    if not good or not row.cells:
        raise ValueError(f"row {row.key[:80]!r} is none of table {row.table}")


def entry_of(key: bytes) -> tuple[Series, int]:
    """The series and the entry of a data row.

    Raises:
      ValueError: the key is none, or has no type that points are written with.
    """
    parts = keys.parse_key(key)
    for kind, name in keys.TYPES.items():
        if parts.data_type == name:
            return parts.series, parts.row_ms + kind
    raise ValueError(f"row key {key[:80].hex()} is of type {parts.data_type!r}, which has no index entry")


def _names(texts: Iterable[str]) -> Sequence[Cell]:
    """The cells of some names, ascending."""
    return [Cell(NAMES_FAMILY, name, _NAME_MS, b"\0") for name in sorted(text.encode() for text in texts)]
