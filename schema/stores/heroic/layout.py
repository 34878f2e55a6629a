"""Layouts `heroic` and `heroic-readable`: the table `metrics` of spotify/heroic, and the same as text.

Specification: docs/spec/heroic.md §2 to §6 and §8 (docs/reference/layouts.md in short). The two differ only
in keys and qualifiers. Both keep a series table beside the points, in place of Heroic's Elasticsearch.

Heroic itself stores no rollups. Here they are series with two more tags, `rollup` and `stat`, by which its
queries can filter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from timebeam.schema.archive.archive_rows import ArchiveKey, archive_findings
from timebeam.schema.archive.archive_rows import remove_points as remove_archived
from timebeam.schema.archive.view import Archivable
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.contract import Restored, WriteRules
from timebeam.schema.core.decode_point_cells import RowKind, decode_together, hours_of, restored_points
from timebeam.schema.core.point_fragments import CellColumns, Encoded, Name, Packing, SlotPoints
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, remove_cells
from timebeam.schema.core.rows import ARRIVAL, KEY_BYTES, Row, TableSpec
from timebeam.schema.core.selection import DecodedRows, Finding, Reader, Selected, Selection, Severity
from timebeam.schema.stores.heroic import decode, encode, select, series_table
from timebeam.schema.stores.heroic.archived import HeroicArchive
from timebeam.schema.stores.heroic.decode import SeriesTable
from timebeam.schema.stores.heroic.keys import KEY_LIMIT, LAST_BASE_MS, KeyForm, ReadableKeys
from timebeam.schema.stores.heroic.options import HeroicOptions, HeroicReadableOptions
from timebeam.schema.stores.heroic.select import HeroicIndex, ResourceNames
from timebeam.schema.stores.heroic.wire_key import WireKeys

ROLLUP, STAT = "rollup", "stat"


class HeroicRollupNames:
    """See `RollupNames`; Heroic stores only doubles."""

    integers = False

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        tags = dict(series.tags)
        for key in (ROLLUP, STAT):
            if key in tags:
                raise RejectedError(
                    Reason.SERIES_NOT_STORABLE, f"tag {key}={tags[key]}: rollups need this tag key"
                )
        return series._replace(tags=tuple(sorted({**tags, ROLLUP: interval, STAT: aggregator}.items())))

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        tags = dict(stored.tags)
        if tags.pop(ROLLUP, None) != interval or STAT not in tags:
            return None
        aggregator = tags.pop(STAT)
        return stored._replace(tags=tuple(sorted(tags.items()))), aggregator


_CELL_TIME = f"{ARRIVAL}, or the clock of the Heroic that wrote it; not the time of the points"


@dataclasses.dataclass(frozen=True)
class Heroic(Archivable):
    """The layout with its options; see `HeroicOptions`.

    Those of `heroic-readable` give text in keys and qualifiers, which Heroic cannot read; else the bytes are
    Heroic's own.
    """

    options: HeroicOptions = dataclasses.field(default_factory=HeroicOptions)

    rollup_names = HeroicRollupNames()

    @property
    def name(self) -> str:  # type: ignore[override]
        return "heroic-readable" if isinstance(self.options, HeroicReadableOptions) else "heroic"

    @property
    def writing(self) -> WriteRules:
        return WriteRules(takes_resources=True)

    @property
    def _form(self) -> KeyForm:
        """The form of its keys and qualifiers."""
        options = self.options
        return (
            ReadableKeys(options.resource_names) if isinstance(options, HeroicReadableOptions) else WireKeys()
        )

    @property
    def data_table(self) -> str:
        """Name of the data table; Heroic's default without prefix."""
        return self.options.table_prefix + "metrics"

    @property
    def series_table(self) -> str:
        """Name of the series table."""
        return self.options.table_prefix + "series"

    @property
    def archive_view(self) -> HeroicArchive:
        return HeroicArchive(self.options, self._form, self.data_table, self.series_table)

    @property
    def index(self) -> HeroicIndex:
        return HeroicIndex(self._form, self.data_table, self.series_table)

    def tables(self) -> Sequence[TableSpec]:
        return (
            TableSpec(
                self.data_table,
                {encode.POINTS: 1, encode.DISTRIBUTIONS: 1},
                holds_points=True,
                cell_time=_CELL_TIME,
            ),
            TableSpec(self.series_table, {series_table.FAMILY: 1}, holds_points=False, is_index=True),
            *self.archive_view.tables(),
        )

    def reject(self, series: Series) -> RejectedError | None:
        try:
            key = self.series_key(series, {})
        except UnicodeEncodeError as error:
            message = f"half a surrogate pair cannot be stored: {error.object[:80]!a}"
            return RejectedError(Reason.NAME_NOT_STORABLE, message)
        size = len(self._form.row_key(key, LAST_BASE_MS))
        if size >= KEY_LIMIT:
            message = (
                f"row key of {size} bytes: Heroic drops points with {KEY_LIMIT} or more; use shorter names"
            )
            return RejectedError(Reason.SERIES_NOT_STORABLE, message)
        size = series_table.longest_key(series)
        if size > KEY_BYTES:
            message = f"key of {size} bytes in the series table, Bigtable takes at most {KEY_BYTES}"
            return RejectedError(Reason.SERIES_NOT_STORABLE, message + ": use shorter names")
        return None

    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        return self._form.series_key(series)

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        return encode.encode(batch, keys, self.data_table, self._form)

    def cells(self, keys: Sequence[bytes], points: SlotPoints, packing: Packing) -> CellColumns:
        return encode.point_cells(points, self._form)

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """See `Store.select`; without distributions, which only their producer understands."""
        if self.options.archive:
            return self.archive_view.select(selection, reader)
        return select.select(self._form, self.data_table, self.series_table, selection, reader)

    def cut_at(self, key: bytes) -> bytes:
        """See `Store.cut_at`: with an archive, all rows of a metric and tags stay together."""
        with contextlib.suppress(ValueError):  # a key between the rows of two series
            return key[: self._form.head_bytes(key)] if self.options.archive else key
        return key

    def hours(
        self, keys: Sequence[bytes], counts: Sequence[int], qualifiers: bytes
    ) -> set[tuple[bytes, int]]:
        parsed = [self._form.parse(key) for key in keys]
        metrics, bases_ms = [key.series.metric for key in parsed], [key.base_ms for key in parsed]
        return hours_of(metrics, bases_ms, counts, self._form.offsets(qualifiers))

    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        table = decode.SeriesTable.of(read(self.series_table))
        yield from table.findings(self.series_table)
        archived_series = set[Series]()
        if self.options.archive:
            check = functools.partial(self._archive_findings, table, table.names(self._form), archived_series)
            yield from archive_findings(self._form, read(self.archive_view.table), check)
        data = read(self.data_table)
        yield from decode.data_findings(data, table, self.series_table, self._form, archived_series)

    def _archive_findings(
        self, table: SeriesTable, names: ResourceNames, archived: set[Series], row: Row, key: ArchiveKey
    ) -> Iterator[Finding]:
        """Adds the series of an archive row to the archived series; yields what is wrong with it."""
        try:
            series = names.series_of(self._form.parse(self._form.row_key(key.series, 0)))
        except ValueError as error:
            yield Finding(Severity.CORRUPT, row.table, row.key, str(error))
            return
        archived.add(series)
        if series_table.series_row(series) not in table.series:
            text = f"{series} is not in the series table: queries do not find it"
            yield Finding(Severity.CORRUPT, row.table, row.key, text)

    def decode_rows(self, rows: Sequence[Selected]) -> DecodedRows:
        form = self._form
        if any(selected.archived for selected in rows):
            return self.archive_view.decode_rows(rows, self.decode_rows)
        return decode_together(
            rows,
            lambda row: RowKind(form.parse(row.key).base_ms, Kind.FLOAT),
            lambda cells: decode.read_cells(cells, form),
            lambda row, series: decode.decode_row(row, series, form),
        )

    def remove(self, selected: Selected, deleted: DeleteRange) -> RowDeletion | None:
        row = selected.row
        if row.table == self.archive_view.table:
            return remove_archived(self._form, row, deleted)
        return remove_cells(
            row, decode.cell_times(row.cells, self._form.parse(row.key).base_ms, self._form), deleted
        )

    def restore(self, row: Row, reader: Reader) -> Restored:
        """See `ReadableStore.restore`; a row whose key lacks the names of resources stays as it is."""
        no_points = PointBatch.of([], 0)
        if row.table == self.series_table:
            series_table.check_index_row(row)
            return Restored(no_points, row)
        if row.table != self.data_table:
            raise ValueError(f"layout {self.name} has no table {row.table!r}")
        key = self._form.parse(row.key)
        decoded = decode.decode_row(row, key.series, self._form)
        if decoded.skipped or not row.cells:
            raise ValueError("a row of points must have only cells of points")
        points = restored_points(self, row, decoded, SeriesKey(key.head, key.tail))
        if not key.is_whole:
            return Restored(no_points, row)
        return Restored(points, row._replace(cells=()))
