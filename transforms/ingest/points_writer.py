"""Points stored by one process, without Beam: the steps of an ingest, for one batch at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.point_fragments import SlotPoints
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow, TableSpec
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import requests
from timebeam.transforms.ingest.row_mutations import encoded_rows, hours_written, store_index, write_batch
from timebeam.transforms.ingest.series_keys import SeriesKeys, UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter


@dataclasses.dataclass(frozen=True, slots=True)
class PointsWriter:
    """Stores batches in a store, packed as an ingest of files packs them by default.

    Attributes:
      hours_writer: marks the hours of the points, if the tables say that all writers do; else None.
    """

    target: Target
    store: Store
    uids: UidOptions
    hours_writer: ChangedHoursWriter | None

    @classmethod
    def of(cls, target: Target, store: ReadableStore, *, auto_create_metrics: bool) -> Self:
        """The writer of a store; raises ValueError if it cannot be written to."""
        if not isinstance(store, Store):
            raise ValueError(f"layout {store.name} stores records: write them with `timebeam ingest`")
        if store.writing.read_only:
            raise ValueError(f"layout {store.name}: {store.writing.read_only}")
        marks = store.writing.marked_since_s is not None
        uids = UidOptions(UidPolicy(auto_create_metrics=auto_create_metrics))
        return cls(target, store, uids, ChangedHoursWriter(store) if marks else None)

    @property
    def tables(self) -> Sequence[TableSpec]:
        """The tables that must exist beside those of the store."""
        return [] if self.hours_writer is None else [self.hours_writer.table]

    def write(self, points: PointBatch) -> list[Rejected]:
        """Stores points; returns those that are rejected.

        Raises:
          GoogleAPICallError: rows could not be written for a reason that is not their own.
        """
        keys = SeriesKeys(self.target, self.store, self.uids)
        keys.open()
        keyed, rejected = keys.assign(points)
        if not len(keyed):
            return rejected
        index = self.store.index
        if index is not None:
            entries = [(keyed.series[number], base) for number, base in index.entries(keyed)]
            rejected += store_index(self.target, index, entries, dry_run=False)[1]
        encoded = self.store.encode(keyed, keyed.keys)
        rejected += encoded.rejected
        tables: dict[str, dict[bytes, list[bytes]]] = {}
        for (table, key), fragments in encoded.by_row().items():
            tables.setdefault(table, {})[key] = fragments
        for table, rows in tables.items():
            rejected += self._store_rows(table, rows)
        return rejected

    def _store_rows(self, table: str, rows: dict[bytes, list[bytes]]) -> list[Rejected]:
        """Stores rows of one table, given the fragments of each; returns those that are rejected."""
        packing = self.store.writing.packings[0]
        cells = self.store.cells([*rows], SlotPoints.of(rows.values()), packing)
        rejected: list[Rejected] = []
        mutations: list[EncodedRow] = []
        for row in encoded_rows(table, [*rows], cells):
            (rejected if isinstance(row, Rejected) else mutations).append(row)  # type: ignore[arg-type]
        for request in requests(mutations):
            with hours_written(self.target, self.hours_writer, request):
                rejected += write_batch(self.target, table, request)
        return rejected
