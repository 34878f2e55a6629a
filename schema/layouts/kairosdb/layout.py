"""Layout `kairosdb`: the tables of KairosDB 1.3.0 on Bigtable, keys, columns and values byte for byte.

Specification: docs/spec/kairosdb.md (docs/reference/kairosdb.md in short).

Rollups are series of the metric `{metric}.{interval}.{aggregator}`. The tag `saved_from` names the original
metric, as in KairosDB's own roll-up tasks (docs/spec/kairosdb.md §10). Unlike there, all tags are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from timebeam.schema.layouts.capabilities import (
    HourMarks,
    RefusedRows,
    Restored,
    RollupSeries,
    SeriesIndex,
    hours_of,
    restored_points,
)
from timebeam.schema.layouts.kairosdb import audit, encode, keys, select
from timebeam.schema.layouts.kairosdb.keys import (
    OPTIONS,
    KairosDbOptions,
    RowSpec,
    parse_key,
    parse_retention,
)
from timebeam.schema.layouts.kairosdb.select import Tables
from timebeam.schema.layouts.point_cells import decode_together
from timebeam.schema.layouts.reading import Decoded, DecodedRows, Finding, Reader, Selected, Selection
from timebeam.schema.layouts.removal import Deleted, Removal, remove_cells
from timebeam.schema.layouts.slots import CellColumns
from timebeam.schema.layouts.tables import ARRIVAL, Row, TableSpec
from timebeam.schema.layouts.writing import Encoded, Name, Packing, SeriesKey
from timebeam.schema.points import PointBatch, Reason, RefusedError, Series

SAVED_FROM = "saved_from"


class KairosDbRollupNames:
    """See `RollupNames`."""

    integers = True

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        """See `RollupNames.stored`."""
        tags = dict(series.tags)
        if SAVED_FROM in tags:
            why = f"tag {SAVED_FROM}={tags[SAVED_FROM]}: rollups need this tag key"
            raise RefusedError(Reason.SERIES_NOT_STORABLE, why)
        tags[SAVED_FROM] = series.metric
        return Series.of(f"{series.metric}.{interval}.{aggregator}", tags)

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        """See `RollupNames.source`."""
        tags = dict(stored.tags)
        metric = tags.pop(SAVED_FROM, None)
        head = f"{metric}.{interval}."
        if metric is None or not stored.metric.startswith(head):
            return None
        return Series.of(metric, tags), stored.metric[len(head) :]


@dataclasses.dataclass(frozen=True)
class KairosDb(SeriesIndex, RollupSeries, RefusedRows, HourMarks):
    """The layout with its options; see `KairosDbOptions`.

    With the row spec `seconds` it is read-only, since KairosDB reads such times back changed.
    """

    options: KairosDbOptions = dataclasses.field(default_factory=KairosDbOptions)

    name = "kairosdb"
    declared_options = OPTIONS
    packings = (Packing.POINTS,)
    uids = None
    rollup_names = KairosDbRollupNames()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> KairosDb:
        """See `Layout.from_options`; the options are named as the fields of `KairosDbOptions`.

        `retention` is a string such as `7,90`.
        """
        fields = {field.name for field in dataclasses.fields(KairosDbOptions)}
        values = {name: value for name, value in options.items() if name in fields}
        if "row_spec" in values:
            values["row_spec"] = RowSpec(values["row_spec"])
        if "retention" in values:
            values["retention"] = parse_retention(values["retention"])
        return cls(KairosDbOptions(**values))

    @property
    def read_only(self) -> str | None:
        """See `Layout.read_only`."""
        if self.options.row_spec is RowSpec.SECONDS:
            return "row_spec seconds is for reading only: write with legacy or milliseconds"
        return None

    @property
    def table_names(self) -> Tables:
        """Names of the tables, with prefix."""
        prefix = self.options.table_prefix
        return Tables(prefix + "data_points", prefix + "row_keys", prefix + "string_index")

    def tables(self) -> Sequence[TableSpec]:
        """See `Layout.tables`. The operator sets the maximum age of each retention class."""
        data, row_keys, strings = self.table_names
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
        )

    def refuse(self, series: Series) -> RefusedError | None:
        """See `Layout.refuse`."""
        return keys.refuse_series(series)

    def names(self, series: Series) -> Sequence[Name]:
        """See `Layout.names`."""
        return ()

    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        """See `Layout.series_key`; between head and tail come row time and type."""
        return keys.series_key(series)

    def encode(
        self, batch: PointBatch, keys: Sequence[SeriesKey | None], packing: Packing | None = None
    ) -> Encoded:
        """See `Layout.encode`.

        Raises:
          ValueError: the row spec is `seconds`.
        """
        if self.read_only:
            raise ValueError(self.read_only)
        return encode.encode(batch, keys, self.table_names.data, self.options.row_spec)

    def point_cells(self, rows: Sequence[tuple[bytes, Iterable[bytes]]]) -> CellColumns:
        """See `Layout.point_cells`."""
        return encode.point_cells((packed for _, packed in rows), self.options.family)

    def index_entries(self, batch: PointBatch) -> Sequence[tuple[int, int]]:
        """See `Layout.index_entries`; entries are as in `index`, not base times."""
        return select.entries(batch, self.options.row_spec)

    def index(self, series: Series, base_ms: int) -> Sequence[Row]:
        """See `Layout.index`; `base_ms` is an entry of `index_entries`."""
        tables = self.table_names
        return select.rows(series, base_ms, self.options.row_spec, tables.row_keys, tables.strings)

    def stale(self, selection: Selection, reader: Reader) -> Iterator[Selected]:
        """See `SeriesIndex.stale`: entries of data rows that are gone; names stay."""
        return select.stale(self.options, self.table_names, selection, reader)

    def entry_of(self, key: bytes) -> tuple[Series, int]:
        """See `Layout.entry_of`; rows without a type, written by old KairosDBs, have no entry."""
        return select.entry_of(key)

    def index_keys(self, series: Series, base_ms: int) -> tuple[str, Sequence[bytes]]:
        """See `SeriesIndex.index_keys`: the row of the entry and the one before, of any type."""
        return self.table_names.row_keys, select.index_keys(series, base_ms, self.options.row_spec)

    def indexed(self, metric: str | None, reader: Reader) -> Iterator[tuple[Series, int]]:
        """See `SeriesIndex.indexed`."""
        return select.indexed(self.table_names.row_keys, metric, reader)

    def restore(self, row: Row, reader: Reader) -> Restored:
        """See `Layout.restore`; points of any retention class go into the one of this run."""
        data, row_keys, strings = self.table_names
        if row.table in (row_keys, strings):
            select.check_row(row, self.options.row_spec, row_keys, strings)
            return Restored(PointBatch.of([], 0), row)
        if row.table != data:
            raise ValueError(f"layout {self.name} has no table {row.table!r}")
        series = parse_key(row.key).series
        decoded = self.decode(row, series)
        if decoded.skipped or not row.cells:
            raise ValueError("a row of points must have only cells of points")
        points = restored_points(self, row, decoded, keys.series_key(series))
        return Restored(points, row._replace(cells=()))

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """See `Layout.select`."""
        return select.select(self.options, self.table_names, selection, reader)

    def cut_at(self, key: bytes) -> bytes:
        """See `Layout.cut_at`: for each row time, the rows of all types stay together."""
        return keys.before_types(key)

    def several_rows(self, selection: Selection, reader: Reader) -> frozenset[Series]:
        """See `Layout.several_rows`: the series with values of several types."""
        return select.of_several_types(self.options, self.table_names, selection, reader)

    def hours(
        self, keys: Sequence[bytes], counts: Sequence[int], qualifiers: bytes
    ) -> set[tuple[bytes, int]]:
        """See `HourMarks.hours`."""
        parsed = [parse_key(key) for key in keys]
        metrics, bases_ms = [key.series.metric for key in parsed], [key.row_ms for key in parsed]
        offsets = self.options.row_spec.offsets_ms(np.frombuffer(qualifiers, ">u4").astype(np.int64))
        return hours_of(metrics, bases_ms, counts, offsets)

    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        """See `Layout.audit`."""
        return audit.findings(self.table_names, self.options.row_spec, read)

    def remove(self, selected: Selected, deleted: Deleted) -> Removal | None:
        """See `Layout.remove`; in all retention classes."""
        return remove_cells(selected.row, audit.cell_times(selected.row, self.options.row_spec), deleted)

    def decode_rows(self, rows: Sequence[Selected]) -> DecodedRows:
        """See `Layout.decode_rows`."""
        spec = self.options.row_spec
        return decode_together(rows, audit.kind_of, lambda cells: audit.read_cells(cells, spec), self.decode)

    def decode(self, row: Row, series: Series) -> Decoded:
        """See `Layout.decode`."""
        return audit.decode(self.options.row_spec, row, series)
