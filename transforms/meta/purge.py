"""Finds the meta data of series without points, and removes it on demand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from timebeam.schema.layouts import Deletion, Row, SeriesMeta
from timebeam.schema.layouts.opentsdb import keys
from timebeam.schema.meta import tsuid as tsuids
from timebeam.schema.meta.ts_meta import meta_table
from timebeam.transforms.bigtable.mutate import mutate_rows
from timebeam.transforms.bigtable.reader import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.table_reader import scan_table

_EVER_MS = (1 << 32) * 1000 - 1


def orphans(target: Target, layout: SeriesMeta) -> Iterator[Row]:
    """The rows of the meta table whose series have no row in the data table, as they were read.

    The series of one metric are held in memory at once. Rows that are none of a series are left out.
    """
    options = layout.options
    rows = scan_table(target, meta_table(options.table_prefix).name)
    for metric, of_metric in itertools.groupby(rows, lambda row: row.key[: options.uid_width_metric]):
        meta_rows = {row.key: row for row in of_metric if _is_tsuid(layout, row.key)}
        for key in _data_keys(target, layout, metric) if meta_rows else ():
            meta_rows.pop(key, None)
            if not meta_rows:
                break
        yield from meta_rows.values()


def _is_tsuid(layout: SeriesMeta, key: bytes) -> bool:
    try:
        tsuids.pairs(layout.options, key)
    except ValueError:
        return False
    return True


def _data_keys(target: Target, layout: SeriesMeta, metric: bytes) -> Iterator[bytes]:
    """The TSUID of every row of a metric."""
    for start, end in keys.ranges(layout.options, metric, 0, _EVER_MS):
        for key in scan_keys(target, layout.data_table, start, end):
            try:
                yield tsuids.of_key(layout.options, key)[0]
            except ValueError:
                continue  # of no series


def remove(target: Target, rows: Sequence[Row]) -> None:
    """Deletes the cells of these rows that were read; what has been written since stays.

    Raises:
      GoogleAPICallError: they could not be deleted; some may be.
    """
    deletions = [
        Row(
            row.table,
            row.key,
            [],
            [Deletion(cell.family, cell.qualifier, cell.timestamp_ms + 1) for cell in row.cells],
        )
        for row in rows
    ]
    for _, error in mutate_rows(target, rows[0].table, deletions):
        raise error
