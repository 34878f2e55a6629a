"""Keyed batches encoded as fragments by row, and the fragments of a row packed into cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from timebeam.schema.common.cell_size import stored_bytes
from timebeam.schema.layouts import Cell, Deletion, Layout, Packing, Row
from timebeam.transforms import metrics
from timebeam.transforms.dead_letters.rejected import RejectedOutput, over_limit, refuse, split_row
from timebeam.transforms.ingest.assign import KeyedBatch

RowKey = tuple[str, bytes]


class EncodeFn(beam.DoFn):
    """`KeyedBatch` in; ((table, row key), packed fragment) out, unstorable points to `REJECTED`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def process(self, keyed: KeyedBatch) -> Iterable[tuple[RowKey, bytes] | RejectedOutput]:
        """See the class."""
        encoded = self._layout.encode(keyed.batch, keyed.keys)
        for rejected in encoded.rejected:
            yield refuse(rejected)
        metrics.count("points_duplicate", encoded.duplicates)
        metrics.count("points_packed", len(keyed.batch) - encoded.duplicates - len(encoded.rejected))
        for table, key, packed in encoded.fragments:
            yield (table, key), packed


class EncodeTogetherFn(EncodeFn):
    """`KeyedBatch` in; ((table, row key), fragments) out, for each row the fragments of this batch.

    As `EncodeFn` and a GroupByKey, but for one batch and without a shuffle.
    """

    def process(self, keyed: KeyedBatch) -> Iterable[Any]:
        """See the class."""
        rows: dict[RowKey, list[bytes]] = {}
        for output in super().process(keyed):
            if isinstance(output, TaggedOutput):
                yield output
            else:
                row_key, packed = output
                rows.setdefault(row_key, []).append(packed)
        yield from rows.items()


class PackFn(beam.DoFn):
    """((table, row key), fragments) in; `Row` mutations out, rows over a limit to `REJECTED`."""

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._layout, self._packing = layout, packing

    def process(self, group: tuple[RowKey, Iterable[bytes]]) -> Iterable[Row | RejectedOutput]:
        """See the class."""
        (table, key), packed = group
        return mutations((self._layout.pack(table, key, packed, self._packing),))


def merged_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for each table and key; of cells with one column and timestamp, the last one."""
    by_key: dict[RowKey, list[Row]] = {}
    for row in rows:
        by_key.setdefault((row.table, row.key), []).append(row)
    return [group[0] if len(group) == 1 else _merged_row(group) for group in by_key.values()]


def _merged_row(rows: Sequence[Row]) -> Row:
    """One row of several with the same key."""
    cells = {cell[:3]: cell for row in rows for cell in row.cells}
    return rows[0]._replace(cells=list[Cell](cells.values()))


def overwriting(row: Row, existing: Iterable[Cell]) -> Row:
    """Replaces the row: sets its cells, deletes all others in `existing`."""
    new = {(cell.family, cell.qualifier): cell.timestamp_ms for cell in row.cells}
    stale = {
        (cell.family, cell.qualifier)
        for cell in existing
        if new.get((cell.family, cell.qualifier)) != cell.timestamp_ms
    }
    return row._replace(deleted=[Deletion(*column) for column in sorted(stale)])


def mutations(rows: Iterable[Row]) -> Iterable[Row | RejectedOutput]:
    """Mutations of rows within Bigtable's limits, counted as written; refusals of other rows."""
    count = cells = size = 0
    for row in rows:
        rejected = over_limit(row)
        if rejected is not None:
            yield refuse(rejected)
            continue
        count += 1
        cells += len(row.cells)
        size += sum([stored_bytes(row.key, cell) for cell in row.cells])
        yield from split_row(row)
    metrics.count("rows_written", count)
    metrics.count("cells_written", cells)
    metrics.count("bytes_written", size)
