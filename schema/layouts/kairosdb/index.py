"""The index tables: the keys of data rows, and names (docs/spec/kairosdb.md §1 and §7).

`row_keys` has the key of each data row with an empty cell: the old `row_key_index` with the metric moved
into the key. `string_index` has three rows, with a column for each name and one zero byte as value.

A row key holds the type of values, so an entry is a number that holds it too: row time + kind, 0 to 2. Row
times are multiples of the width of a row, so two entries never share a number.
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
    """(number of a series, entry) for each row with storable points of a batch."""
    good = storable(batch)
    if not good.all():
        batch = batch.take(np.flatnonzero(good))
    if len(batch) == 0:
        return []
    numbers = batch.times_ms // spec.width_ms
    first = np.unique(row_numbers(batch, numbers), return_index=True)[1]
    entry_numbers = numbers[first] * spec.width_ms + batch.kinds[first]
    return list(zip(batch.index[first].tolist(), entry_numbers.tolist(), strict=True))


def rows(series: Series, entry: int, spec: RowSpec, row_keys: str, strings: str) -> list[Row]:
    """The rows of the index tables for one of the `entries`.

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
    """Checks that `rows` makes these cells of an index table.

    Raises:
      ValueError: it does not.
    """
    if row.table == strings:
        is_valid = row.key in (METRICS, TAG_NAMES, TAG_VALUES)
        is_valid &= list(row.cells) == _names(cell.qualifier.decode() for cell in row.cells)
        is_valid &= all(cell.qualifier for cell in row.cells)
    else:
        series, entry = entry_of(row.key)
        refusal = keys.refuse_series(series)
        if refusal is not None:
            raise refusal
        row_ms = keys.parse_key(row.key).row_ms
        if not 0 <= row_ms <= keys.LAST_MS or row_ms % spec.width_ms:
            raise ValueError(f"row time {row_ms} does not fit row spec {spec.value}")
        is_valid = rows(series, entry, spec, row_keys, strings)[0] == row._replace(cells=list(row.cells))
    if not is_valid or not row.cells:
        raise ValueError(f"row {row.key[:80]!r} is not of table {row.table}")


def entry_of(key: bytes) -> tuple[Series, int]:
    """The series and the entry of a data row.

    Raises:
      ValueError: the key does not parse, or points are not written with its type.
    """
    row_key = keys.parse_key(key)
    for kind, name in keys.TYPES.items():
        if row_key.data_type == name:
            return row_key.series, row_key.row_ms + kind
    raise ValueError(f"row key {key[:80].hex()} is of type {row_key.data_type!r}, which has no index entry")


def _names(names: Iterable[str]) -> Sequence[Cell]:
    """The cells of some names, ascending."""
    return [Cell(NAMES_FAMILY, name, _NAME_MS, b"\0") for name in sorted(text.encode() for text in names)]
