"""Keyed batches into pieces, pieces grouped by row, rows packed into cells."""

from __future__ import annotations

from collections.abc import Iterable

import apache_beam as beam

from schema.layouts import Cell, Layout, Packing, Row
from transforms import metrics
from transforms.assign import KeyedBatch
from transforms.bigtable.limits import over_limit, split_row
from transforms.rejected import RejectedOutput, refuse

RowKey = tuple[str, bytes]

_TIMESTAMP_BYTES = 8


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


class PackFn(beam.DoFn):
    """((table, row key), pieces) in; `Row` mutations out, those over a limit to `REJECTED`."""

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._layout, self._packing = layout, packing

    def process(self, group: tuple[RowKey, Iterable[bytes]]) -> Iterable[Row | RejectedOutput]:
        """See the class."""
        yield from self.pack(*group)

    def pack(self, at: RowKey, pieces: Iterable[bytes]) -> Iterable[Row | RejectedOutput]:
        """The mutations of one row."""
        table, key = at
        row = self._layout.pack(table, key, pieces, self._packing)
        rejected = over_limit(row)
        if rejected is not None:
            yield refuse(rejected)
            return
        metrics.count("rows_written")
        metrics.count("cells_written", len(row.cells))
        metrics.count("bytes_written", sum(_stored_bytes(key, cell) for cell in row.cells))
        yield from split_row(row)


class PackPieceFn(beam.DoFn):
    """((table, row key), one packed piece) in; the same out as from `PackFn` of that piece alone."""

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._packer = PackFn(layout, packing)

    def process(self, piece: tuple[RowKey, bytes]) -> Iterable[Row | RejectedOutput]:
        """See the class."""
        at, packed = piece
        return self._packer.pack(at, (packed,))


def _stored_bytes(key: bytes, cell: Cell) -> int:
    """What Bigtable keeps for a cell, before compression: key, family, qualifier, timestamp, value."""
    return len(key) + len(cell.family) + len(cell.qualifier) + _TIMESTAMP_BYTES + len(cell.value)
