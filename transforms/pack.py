"""Keyed batches into pieces, pieces grouped by row, rows packed into cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from schema.layouts import Cell, Deletion, Layout, Packing, Row
from schema.sizing.figures import stored_bytes
from transforms import metrics
from transforms.assign import KeyedBatch
from transforms.bigtable.limits import over_limit, split_row
from transforms.rejected import RejectedOutput, refuse

RowKey = tuple[str, bytes]


class EncodeFn(beam.DoFn):
    """`KeyedBatch` in; ((table, row key), packed piece) out, unstorable points to `REJECTED`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def process(self, keyed: KeyedBatch) -> Iterable[tuple[RowKey, bytes] | RejectedOutput]:
        """See the class."""
        encoded = self._layout.encode(keyed.batch, keyed.keys)
        for rejected in encoded.rejected:
            yield refuse(rejected)
        metrics.count("points_duplicate", encoded.duplicates)
        metrics.count("points_packed", len(keyed.batch) - encoded.duplicates - len(encoded.rejected))
        for table, key, packed in encoded.pieces:
            yield (table, key), packed


class EncodeTogetherFn(EncodeFn):
    """`KeyedBatch` in; ((table, row key), pieces) out, for each row the pieces of this batch.

    What `EncodeFn` and a GroupByKey give, but for one batch alone: no shuffle.
    """

    def process(self, keyed: KeyedBatch) -> Iterable[Any]:
        """See the class."""
        rows: dict[RowKey, list[bytes]] = {}
        for one in super().process(keyed):
            if isinstance(one, TaggedOutput):
                yield one
            else:
                at, packed = one
                rows.setdefault(at, []).append(packed)
        yield from rows.items()


class PackFn(beam.DoFn):
    """((table, row key), pieces) in; `Row` mutations out, those over a limit to `REJECTED`."""

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._layout, self._packing = layout, packing

    def process(self, group: tuple[RowKey, Iterable[bytes]]) -> Iterable[Row | RejectedOutput]:
        """See the class."""
        (table, key), pieces = group
        return mutations((self._layout.pack(table, key, pieces, self._packing),))


def over_standing(row: Row, standing: Iterable[Cell]) -> Row:
    """The mutation that leaves of a row the new cells alone: it deletes those that stand there besides."""
    new = {(cell.family, cell.qualifier): cell.timestamp_ms for cell in row.cells}
    stale = {
        (cell.family, cell.qualifier)
        for cell in standing
        if new.get((cell.family, cell.qualifier)) != cell.timestamp_ms
    }
    return row._replace(deleted=[Deletion(*one) for one in sorted(stale)])


def mutations(rows: Iterable[Row]) -> Iterable[Row | RejectedOutput]:
    """Rows as mutations that Bigtable takes, counted as written; the refusals of others."""
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
