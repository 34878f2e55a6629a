"""Layout `kairosdb`: the tables of KairosDB 1.3.0 on Bigtable, keys, columns and values byte for byte.

Specification: docs/spec/kairosdb.md (docs/reference/layouts.md in short).

Rollups are series of the metric `{metric}.{interval}.{aggregator}`. The tag `saved_from` names the original
metric, as in KairosDB's own roll-up tasks (docs/spec/kairosdb.md §10). Unlike there, all tags are kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from timebeam.schema.archive.archive_rows import ArchiveKey, archive_findings
from timebeam.schema.archive.archive_rows import remove_points as remove_archived
from timebeam.schema.archive.view import Archivable
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.contract import Restored, WriteRules
from timebeam.schema.core.decode_point_cells import decode_together, hours_of, restored_points
from timebeam.schema.core.point_fragments import CellColumns, Encoded, Name, Packing, SlotPoints
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, remove_cells
from timebeam.schema.core.rows import ARRIVAL, Row, TableSpec
from timebeam.schema.core.selection import DecodedRows, Finding, Reader, Selected, Selection, Severity
from timebeam.schema.stores.kairosdb import decode, encode, keys, select
from timebeam.schema.stores.kairosdb.archived import KairosDbArchive
from timebeam.schema.stores.kairosdb.keys import parse_key
from timebeam.schema.stores.kairosdb.options import KairosDbOptions, RowSpec
from timebeam.schema.stores.kairosdb.select import KairosDbIndex

SAVED_FROM = "saved_from"


class KairosDbRollupNames:
    """See `RollupNames`."""

    integers = True

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        tags = dict(series.tags)
        if SAVED_FROM in tags:
            why = f"tag {SAVED_FROM}={tags[SAVED_FROM]}: rollups need this tag key"
            raise RejectedError(Reason.SERIES_NOT_STORABLE, why)
        tags[SAVED_FROM] = series.metric
        return Series.of(f"{series.metric}.{interval}.{aggregator}", tags)

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        tags = dict(stored.tags)
        metric = tags.pop(SAVED_FROM, None)
        head = f"{metric}.{interval}."
        if metric is None or not stored.metric.startswith(head):
            return None
        return Series.of(metric, tags), stored.metric[len(head) :]


@dataclasses.dataclass(frozen=True)
class KairosDb(Archivable):
    """The layout with its options; see `KairosDbOptions`.

    With the row spec `seconds` it is read-only, since KairosDB reads such times back changed.
    """

    options: KairosDbOptions = dataclasses.field(default_factory=KairosDbOptions)

    name = "kairosdb"
    rollup_names = KairosDbRollupNames()

    @property
    def writing(self) -> WriteRules:
        if self.options.row_spec is RowSpec.SECONDS:
            why = "row_spec seconds is for reading only: write with legacy or milliseconds"
            return WriteRules(read_only=why)
        return WriteRules()

    @property
    def data_table(self) -> str:
        return self.options.tables.data

    @property
    def archive_view(self) -> KairosDbArchive:
        return KairosDbArchive(self.options)

    @property
    def index(self) -> KairosDbIndex:
        return KairosDbIndex(self.options)

    def tables(self) -> Sequence[TableSpec]:
        """See `Store.tables`. The operator sets the maximum age of each retention class."""
        data, row_keys, strings = self.options.tables
        return (
            TableSpec(
                data,
                dict.fromkeys(self.options.families, 1),
                holds_points=True,
                cell_time=f"{ARRIVAL}, as KairosDB's ttl counts from its writing; not the time of the points",
            ),
            TableSpec(
                row_keys, {select.ROW_KEYS_FAMILY: 1}, holds_points=False, is_index=True, same_keys=True
            ),
            TableSpec(strings, {select.NAMES_FAMILY: 1}, holds_points=False, is_index=True),
            *self.archive_view.tables(),
        )

    def reject(self, series: Series) -> RejectedError | None:
        return keys.reject_series(series)

    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        """See `Store.series_key`; between head and tail come row time and type."""
        return keys.series_key(series)

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        """See `Store.encode`.

        Raises:
          ValueError: the row spec is `seconds`.
        """
        if self.writing.read_only:
            raise ValueError(self.writing.read_only)
        return encode.encode(batch, keys, self.data_table, self.options.row_spec)

    def cells(self, keys: Sequence[bytes], points: SlotPoints, packing: Packing) -> CellColumns:
        return encode.point_cells(points, self.options.family)

    def restore(self, row: Row, reader: Reader) -> Restored:
        """See `ReadableStore.restore`; points of any retention class go into the one of this run."""
        data, row_keys, strings = self.options.tables
        if row.table in (row_keys, strings):
            self.index.check_row(row)
            return Restored(PointBatch.of([], 0), row)
        if row.table != data:
            raise ValueError(f"layout {self.name} has no table {row.table!r}")
        series = parse_key(row.key).series
        decoded = decode.decode_row(self.options.row_spec, row, series)
        if decoded.skipped or not row.cells:
            raise ValueError("a row of points must have only cells of points")
        points = restored_points(self, row, decoded, keys.series_key(series))
        return Restored(points, row._replace(cells=()))

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        if self.options.archive:
            return self.archive_view.select(selection, reader)
        return select.select(self.options, selection, reader)

    def cut_at(self, key: bytes) -> bytes:
        """See `Store.cut_at`: rows of all types of a row time stay together; with an archive, a metric's."""
        return key.partition(b"\0")[0] if self.options.archive else keys.before_types(key)

    def several_rows(self, selection: Selection, reader: Reader) -> frozenset[Series]:
        """See `Store.several_rows`: the series with values of several types."""
        return select.of_several_types(self.options, selection, reader)

    def hours(
        self, keys: Sequence[bytes], counts: Sequence[int], qualifiers: bytes
    ) -> set[tuple[bytes, int]]:
        parsed = [parse_key(key) for key in keys]
        metrics, bases_ms = [key.series.metric for key in parsed], [key.row_ms for key in parsed]
        offsets = self.options.row_spec.offsets_ms(np.frombuffer(qualifiers, ">u4").astype(np.int64))
        return hours_of(metrics, bases_ms, counts, offsets)

    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        archived_series = set[SeriesKey]()
        if self.options.archive:
            check = functools.partial(_archive_findings, archived_series)
            yield from archive_findings(self.options, read(self.archive_view.table), check)
        yield from decode.findings(self.options.tables, self.options.row_spec, read, archived_series)

    def remove(self, selected: Selected, deleted: DeleteRange) -> RowDeletion | None:
        """See `Store.remove`; in all retention classes."""
        if selected.row.table == self.archive_view.table:
            return remove_archived(self.options, selected.row, deleted)
        return remove_cells(selected.row, decode.cell_times(selected.row, self.options.row_spec), deleted)

    def decode_rows(self, rows: Sequence[Selected]) -> DecodedRows:
        spec = self.options.row_spec
        if any(selected.archived for selected in rows):
            return self.archive_view.decode_rows(rows, self.decode_rows)
        return decode_together(
            rows,
            decode.kind_of,
            lambda cells: decode.read_cells(cells, spec),
            lambda row, series: decode.decode_row(spec, row, series),
        )


def _archive_findings(archived_series: set[SeriesKey], row: Row, key: ArchiveKey) -> Iterator[Finding]:
    """Adds the series of an archive row to the archived series; yields what is wrong with it."""
    archived_series.add(key.series)
    try:
        parse_key(keys.row_key(key.series, 0, Kind.INTEGER))
    except ValueError as error:
        yield Finding(Severity.CORRUPT, row.table, row.key, str(error))
