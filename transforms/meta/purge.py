"""Finds the metadata of series without points, and removes it on demand."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from timebeam.schema.layouts import Deletion, Row, SeriesMeta
from timebeam.schema.meta import tsuid as tsuids
from timebeam.schema.meta.ts_meta import meta_table
from timebeam.transforms.bigtable.mutate import write_all
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.meta.find import metric_keys
from timebeam.transforms.readers.table_reader import scan_table


def orphans(target: Target, layout: SeriesMeta) -> Iterator[Row]:
    """The rows of the meta table whose series have no row in the data table; memory for one metric's series.

    Rows whose key is not a TSUID are left out.
    """
    options = layout.options
    rows = scan_table(target, meta_table(options.table_prefix).name)
    for metric, of_metric in itertools.groupby(rows, lambda row: row.key[: options.uid_width_metric]):
        meta_rows = {row.key: row for row in of_metric if _is_tsuid(layout, row.key)}
        for key in metric_keys(target, layout, metric) if meta_rows else ():
            with contextlib.suppress(ValueError):  # not the key of a series
                meta_rows.pop(tsuids.of_key(options, key)[0], None)
            if not meta_rows:
                break
        yield from meta_rows.values()


def _is_tsuid(layout: SeriesMeta, key: bytes) -> bool:
    try:
        tsuids.pairs(layout.options, key)
    except ValueError:
        return False
    return True


def remove(target: Target, rows: Sequence[Row]) -> None:
    """Deletes the cells of these rows; cells written since they were read stay.

    Raises:
      GoogleAPICallError: cells could not be deleted; others may have been.
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
    write_all(target, rows[0].table, deletions)
