"""Layout `opentsdb`: the data and UID tables of OpenTSDB 2.4, byte for byte.

Specification: docs/spec/opentsdb.md §1, §2, §3 and §5 (docs/reference/layouts.md in short).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from timebeam.schema.archive.archive_rows import parse_key as parse_archive_key
from timebeam.schema.archive.archive_rows import remove_points as remove_archived
from timebeam.schema.archive.view import Archivable
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.batches import join
from timebeam.schema.core.contract import Restored, WriteRules
from timebeam.schema.core.point_fragments import CellColumns, Encoded, Name, Packing, SlotPoints, UidSpec
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion
from timebeam.schema.core.rows import ARRIVAL, Row, TableSpec
from timebeam.schema.core.selection import DecodedRows, Finding, Reader, Selected, Selection
from timebeam.schema.stores.opentsdb import check_data_rows, encode, select
from timebeam.schema.stores.opentsdb import keys as row_keys
from timebeam.schema.stores.opentsdb.archived import OpenTsdbArchive
from timebeam.schema.stores.opentsdb.columns import decode_row, decode_rows, rewrite_row
from timebeam.schema.stores.opentsdb.columns.decode_row import winner_of
from timebeam.schema.stores.opentsdb.options import BASE_BYTES, Decimals, Names, OpenTsdbOptions
from timebeam.schema.stores.opentsdb.select import LeadingTags
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.repair_uids import UidMaps
from timebeam.schema.stores.opentsdb.uids.uid_table import names_from

_CELL_TIME = (
    f"{ARRIVAL}, or the clock of the TSD that wrote it; in a compacted row the newest of these; not the time "
    "of the points"
)

_HOUR_MS = row_keys.SPAN_S * 1000

_EVENT_TIME = "the time of the point; in a row that a TSD has compacted, the time of its newest point"


@dataclasses.dataclass(frozen=True)
class OpenTsdb(Archivable):
    """The layout with its options; see `OpenTsdbOptions`.

    >>> from timebeam.schema.core.rows import Cell
    >>> value = bytes.fromhex("01 02 012c 3ff8000000000000 00")
    >>> column = Cell("t", bytes.fromhex("0000 0010 0021 003f"), 9000, value)
    >>> row = Row("tsdb", bytes.fromhex("00000150e22700000001000001"), [column])
    >>> batch = OpenTsdb(OpenTsdbOptions()).decode_rows([Selected(row, Series.of("m", {"host": "a"}))]).batch
    >>> [(time_ms - 1356998400_000, value) for _, time_ms, value in batch.points()]
    [(0, 1), (1000, 2), (2000, 300), (3000, 1.5)]

    Attributes:
      leading: the tags before filtered ones, as its reads have seen them in row keys.
    """

    options: OpenTsdbOptions = dataclasses.field(default_factory=OpenTsdbOptions)
    leading: LeadingTags = dataclasses.field(default_factory=LeadingTags, compare=False, repr=False)

    name = "opentsdb"

    @property
    def writing(self) -> WriteRules:
        rules = WriteRules(
            (Packing.COMPACTED, Packing.POINTS, Packing.APPEND),
            narrows_floats=self.options.decimals is Decimals.FLOAT,
            marked_since_s=self.options.marked_since_s,
            append_qualifier=encode.APPEND_QUALIFIER,
        )
        if not self.options.is_event_time:
            return rules
        limit = "with cell_time event a cell has the time of its point, so it holds one point"
        return rules._replace(packings=(Packing.POINTS,), packing_limit=limit)

    @property
    def data_table(self) -> str:
        """Name of the data table."""
        return self.options.table_prefix + "tsdb"

    @property
    def archive_view(self) -> OpenTsdbArchive:
        return OpenTsdbArchive(self)

    def tables(self) -> Sequence[TableSpec]:
        return (
            TableSpec(
                self.data_table,
                {encode.FAMILY: 1},
                holds_points=True,
                cell_time=_EVENT_TIME if self.options.is_event_time else _CELL_TIME,
            ),
            TableSpec(
                self.options.uid_table, {uid_table.ID_FAMILY: 1, uid_table.NAME_FAMILY: 1}, holds_points=False
            ),
            *self.archive_view.tables(),
        )

    @property
    def uids(self) -> UidSpec:
        widths = {kind: self.options.uid_width(kind) for kind in uid_table.KINDS}
        return UidSpec(self.options.uid_table, widths, self._names, self._replaced_names)

    def reject(self, series: Series) -> RejectedError | None:
        return uid_table.reject_series(self._reduced(series), self.options.max_tags, self.options.names)

    def _reduced(self, series: Series) -> Series:
        """The series as it is stored; see `Overflow`."""
        overflow = self.options.overflow
        return overflow.reduced(series) if overflow and len(series.tags) > self.options.max_tags else series

    def _names(self, series: Series) -> Sequence[Name]:
        series = self._reduced(series)
        stored = self.options.names.stored if self.options.names is not Names.REFUSE else str
        stored_names = [Name("metrics", stored(series.metric))]
        for key, value in series.tags:
            stored_names += (Name("tagk", stored(key)), Name("tagv", stored(value)))
        return stored_names

    def _replaced_names(self, series: Series) -> Sequence[tuple[Name, str]]:
        """(stored name, name) of each name, if different names are stored as one; else none."""
        if self.options.names is not Names.REPLACE:
            return ()
        series = self._reduced(series)
        texts = (series.metric, *(text for pair in series.tags for text in pair))
        return list(zip(self._names(series), texts, strict=True))

    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        metric, *pairs = (uids[name] for name in self._names(series))
        return row_keys.series_key(self.options, metric, list(zip(pairs[::2], pairs[1::2], strict=True)))

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        return encode.encode(batch, keys, self.data_table, self.options)

    def cells(self, keys: Sequence[bytes], points: SlotPoints, packing: Packing) -> CellColumns:
        bases_ms = None
        if self.options.is_event_time:
            bases_ms = np.array([row_keys.base_s_of(self.options, key) for key in keys], np.int64) * 1000
        return encode.cell_columns(points, packing, bases_ms)

    def replacing(self, packing: Packing) -> rewrite_row.Replacing | None:
        """What replaces points of columns with the same timestamp; None if a new column need not.

        It need not in an append column, nor if reading chooses among all values.
        """
        if packing is Packing.APPEND or self.options.is_event_time:
            return None
        return rewrite_row.Replacing(self.options, packing)

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        if self.options.archive:
            return self.archive_view.select(selection, (selection.start_ms, selection.end_ms), reader)
        return select.select(self, self.data_table, selection, reader)

    def cut_at(self, key: bytes) -> bytes:
        """See `Store.cut_at`: with an archive, each metric of a salt bucket stays together."""
        if not self.options.archive:
            return key
        return key[: self.options.salt_width + self.options.uid_width_metric]

    def metric_uids(self, reader: Reader) -> dict[str, bytes]:
        return dict(sorted(names_from(self.options, "metrics", "", reader)))

    def key_error(self, key: bytes) -> str:
        """See `Store.key_error`: checks length, base time and salt."""
        try:
            key_fields = row_keys.parse_key(self.options, key)
        except ValueError as error:
            return str(error)
        if key_fields.base_s % row_keys.SPAN_S:
            return f"row key {key.hex()} has the base time {key_fields.base_s}, which is not a whole hour"
        if key_fields.salt != row_keys.salt(self.options, key_fields.metric, key_fields.tail):
            return f"row key {key.hex()} does not have the salt of its series"
        return ""

    def hours(
        self, keys: Sequence[bytes], counts: Sequence[int], qualifiers: bytes
    ) -> set[tuple[bytes, int]]:
        """See `Store.hours`; the keys alone tell them."""
        start = self.options.salt_width
        base = start + self.options.uid_width_metric
        heads = {key[start : base + BASE_BYTES] for key in keys}
        width = base - start
        return {(head[:width], int.from_bytes(head[width:], "big")) for head in heads}

    def restore(self, row: Row, reader: Reader) -> Restored:
        """See `ReadableStore.restore`; annotations and histograms stay cells."""
        return rewrite_row.restore(self, row, reader)

    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        maps = UidMaps(read(self.options.uid_table))
        yield from maps.findings(self.options.uid_table, self.options)
        yield from check_data_rows.data_findings(read(self.data_table), maps, self.options)
        if self.options.archive:
            yield from check_data_rows.archive_findings(read(self.archive_view.table), maps, self.options)

    def remove(self, selected: Selected, deleted: DeleteRange) -> RowDeletion | None:
        """See `Store.remove`; histograms are points too. Of a row of the archive without its late rows."""
        if selected.row.table == self.archive_view.table:
            return remove_archived(self.options, selected.row, deleted)
        base_ms = row_keys.base_s_of(self.options, selected.row.key) * 1000
        return rewrite_row.remove_points(selected.row, base_ms, winner_of(self.options), deleted)

    def decode_rows(self, selected_rows: Sequence[Selected]) -> DecodedRows:
        if any(selected.archived for selected in selected_rows):
            return self.archive_view.decode_rows(selected_rows, self.decode_rows)
        together = decode_rows.read_rows([selected.row for selected in selected_rows])
        unread = [selected_rows[number] for number in together.unread]
        decoded_singly = [decode_row.decode_row(self.options, each.row, each.series) for each in unread]
        singles = DecodedRows.joined(decoded_singly)
        bases = [row_keys.base_s_of(self.options, each.row.key) * 1000 for each in selected_rows]
        outside = [
            number
            for number, decoded in zip(together.unread, decoded_singly, strict=True)
            if len(decoded.batch) and decoded.batch.times_ms[-1] - bases[number] >= _HOUR_MS
        ]
        outside += [number for number, base_ms in enumerate(bases) if base_ms % _HOUR_MS]
        if len(together.numbers):  # the last point of a row is its latest
            last = together.offsets_ms[np.cumsum(together.counts) - 1]
            outside += together.numbers[last >= _HOUR_MS].tolist()
        outside = sorted(set(outside))
        if not len(together.numbers):
            return dataclasses.replace(singles, outside=outside)
        numbers: dict[Series, int] = {}
        index = [numbers.setdefault(each.series, len(numbers)) for each in selected_rows]
        times_ms = np.repeat(np.array(bases, np.int64)[together.numbers], together.counts)
        times_ms += together.offsets_ms
        batch = PointBatch(
            tuple(numbers),
            np.repeat(np.array(index, np.int32)[together.numbers], together.counts),
            times_ms,
            together.in_ms,
            together.kinds,
            together.bits,
            together.arrivals_ms,
        )
        if len(singles.batch):
            batch = join([batch, singles.batch])
        return DecodedRows(batch, singles.corruption, singles.skipped, outside)

    def tsuid_of(self, table: str, key: bytes) -> bytes:
        if self.options.archive and table == self.archive_view.table:
            archived = parse_archive_key(self.options, key)
            key = row_keys.row_key(archived.series, archived.base_s)
        return row_keys.tsuid_of_key(self.options, key)[0]
