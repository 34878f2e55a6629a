"""Layout `opentsdb`: the data and UID tables of OpenTSDB 2.4, byte for byte.

Specification: docs/spec/opentsdb.md §1, §2, §3 and §5 (docs/reference/opentsdb.md in short).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from timebeam.schema.layouts.capabilities import (
    Annotations,
    Compaction,
    Histograms,
    HourMarks,
    RefusedRows,
    Restored,
    RollupTables,
    SeriesMeta,
    Trees,
)
from timebeam.schema.layouts.opentsdb import audit, many_rows, names, pieces, restore, rows, select, uid_table
from timebeam.schema.layouts.opentsdb import keys as row_keys
from timebeam.schema.layouts.opentsdb.encode import encode
from timebeam.schema.layouts.opentsdb.merge import winner_of
from timebeam.schema.layouts.opentsdb.options import OPTIONS, CellTime, Decimals, OpenTsdbOptions
from timebeam.schema.layouts.reading import (
    Decoded,
    DecodedRows,
    Finding,
    Reader,
    Selected,
    Selection,
    join_decoded,
)
from timebeam.schema.layouts.tables import ARRIVAL, Row, TableSpec, UidSpec
from timebeam.schema.layouts.writing import Encoded, Name, Packing, SeriesKey
from timebeam.schema.points import Floats, PointBatch, RefusedError, Series, join

_CELL_TIME = (
    f"{ARRIVAL}, or the clock of the TSD that wrote it; of a compacted row the newest of these; not the time "
    "of the points"
)

_HOUR_MS = row_keys.SPAN_S * 1000

_EVENT_TIME = "the time of the points; of a row that a TSD has compacted that of its newest point"


@dataclasses.dataclass(frozen=True)
class OpenTsdb(RollupTables, Annotations, Histograms, SeriesMeta, Trees, Compaction, RefusedRows, HourMarks):
    """The layout with its options; see `OpenTsdbOptions`."""

    options: OpenTsdbOptions = dataclasses.field(default_factory=OpenTsdbOptions)

    name = "opentsdb"
    declared_options = OPTIONS

    @property
    def packings(self) -> Sequence[Packing]:
        """See `Layout.packings`."""
        if self.options.is_event_time:
            return (Packing.POINTS,)
        return (Packing.COMPACTED, Packing.POINTS, Packing.APPEND)

    @property
    def packing_limit(self) -> str:
        """See `Layout.packing_limit`."""
        if not self.options.is_event_time:
            return ""
        return "with cell_time event a cell has the time of its point, and so holds one"

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> OpenTsdb:
        """See `Layout.from_options`; the options are named as the fields of `OpenTsdbOptions`."""
        fields = {field.name for field in dataclasses.fields(OpenTsdbOptions)}
        values = {name: value for name, value in options.items() if name in fields}
        if "decimals" in values:
            values["decimals"] = Decimals(values["decimals"])
        if "cell_time" in values:
            values["cell_time"] = CellTime(values["cell_time"])
        return cls(OpenTsdbOptions(**values))

    @property
    def data_table(self) -> str:
        """Name of the data table."""
        return self.options.table_prefix + "tsdb"

    @property
    def uid_table(self) -> str:
        """Name of the UID table."""
        return self.options.table_prefix + "tsdb-uid"

    def tables(self) -> Sequence[TableSpec]:
        """See `Layout.tables`."""
        return (
            TableSpec(
                self.data_table,
                {pieces.FAMILY: 1},
                holds_points=True,
                cell_time=_EVENT_TIME if self.options.is_event_time else _CELL_TIME,
            ),
            TableSpec(self.uid_table, {uid_table.ID_FAMILY: 1, uid_table.NAME_FAMILY: 1}, holds_points=False),
        )

    @property
    def uids(self) -> UidSpec:
        """See `Layout.uids`."""
        return UidSpec(self.uid_table, {kind: self.options.uid_width(kind) for kind in uid_table.KINDS})

    def refuse(self, series: Series) -> RefusedError | None:
        """See `Layout.refuse`."""
        return names.refuse_series(series, self.options.max_tags)

    def names(self, series: Series) -> Sequence[Name]:
        """See `Layout.names`."""
        found = [Name("metrics", series.metric)]
        for key, value in series.tags:
            found += (Name("tagk", key), Name("tagv", value))
        return found

    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        """See `Layout.series_key`."""
        tags = [(uids[Name("tagk", key)], uids[Name("tagv", value)]) for key, value in series.tags]
        return row_keys.series_key(self.options, uids[Name("metrics", series.metric)], tags)

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        """See `Layout.encode`."""
        return encode(batch, keys, self.data_table, self.options)

    def pack(self, table: str, key: bytes, packed: Iterable[bytes], packing: Packing) -> Row:
        """See `Layout.pack`."""
        if self.options.is_event_time:
            return Row(table, key, pieces.event_cells(packed, row_keys.parse_key(self.options, key).base_s))
        return Row(table, key, pieces.cells(packed, packing))

    def select(self, wanted: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """See `Layout.select`."""
        return select.select(self.options, self.data_table, self.uid_table, wanted, reader)

    def select_metrics(
        self, metrics: Sequence[bytes], start_ms: int, end_ms: int, reader: Reader
    ) -> Iterator[Selected | Finding]:
        """As `select`, of one or more metrics by their UIDs; first and last time in ms, both inclusive."""
        tables = self.data_table, self.uid_table
        return select.select_metrics(self.options, *tables, metrics, start_ms, end_ms, reader)

    def metric_uids(self, reader: Reader) -> dict[str, bytes]:
        """The UID of every metric that has one, by name, sorted."""
        return select.metric_uids(self.uid_table, reader)

    def stored_floats(self, floats: Floats) -> Floats:
        """See `Layout.stored_floats`: with `decimals` float they are rounded to 4 bytes."""
        if self.options.decimals is not Decimals.FLOAT:
            return floats
        with np.errstate(over="ignore"):
            narrow = floats.astype(np.float32)
        return np.where(np.isfinite(narrow), narrow.astype(np.float64), floats)

    def key_error(self, key: bytes) -> str:
        """See `Layout.key_error`: its length, the hour that it begins at, and its salt."""
        try:
            parts = row_keys.parse_key(self.options, key)
        except ValueError as error:
            return str(error)
        if parts.base_s % row_keys.SPAN_S:
            return f"row key {key.hex()} has the base time {parts.base_s}, which is no whole hour"
        pairs = b"".join(tag_key + value for tag_key, value in parts.tags)
        if parts.salt != row_keys.salt(self.options, parts.metric, pairs):
            return f"row key {key.hex()} has another salt than its series"
        return ""

    def hours(self, rows: Sequence[Row]) -> set[tuple[bytes, int]]:
        """See `Layout.hours`."""
        found = (row_keys.parse_key(self.options, row.key) for row in rows)
        return {(parts.metric, parts.base_s) for parts in found}

    def restore(self, row: Row, reader: Reader) -> Restored:
        """See `Layout.restore`; annotations and histograms stay cells."""
        return restore.restore(self, row, reader)

    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        """See `Layout.audit`."""
        maps = audit.UidMaps(read(self.uid_table))
        yield from maps.findings(self.uid_table, self.options)
        yield from audit.data_findings(read(self.data_table), maps, self.options)

    def decode_rows(self, found: Sequence[Selected]) -> DecodedRows:
        """See `Layout.decode_rows`."""
        many = many_rows.read_rows([one.row for one in found])
        left = [found[number] for number in many.left]
        one_by_one = [self.decode(*one) for one in left]
        others = join_decoded(left, one_by_one)
        bases = [row_keys.base_s_of(self.options, row.key) * 1000 for row, _ in found]
        outside = [
            number
            for number, decoded in zip(many.left, one_by_one, strict=True)
            if len(decoded.batch) and decoded.batch.times_ms[-1] - bases[number] >= _HOUR_MS
        ]
        outside += [number for number, base_ms in enumerate(bases) if base_ms % _HOUR_MS]
        if len(many.numbers):  # the last point of a row is its latest
            last = many.offsets_ms[np.cumsum(many.counts) - 1]
            outside += many.numbers[last >= _HOUR_MS].tolist()
        outside = sorted(set(outside))
        if not len(many.numbers):
            return dataclasses.replace(others, outside=outside)
        numbers: dict[Series, int] = {}
        index = [numbers.setdefault(series, len(numbers)) for _, series in found]
        times_ms = np.repeat(np.array(bases, np.int64)[many.numbers], many.counts)
        times_ms += many.offsets_ms
        batch = PointBatch(
            tuple(numbers),
            np.repeat(np.array(index, np.int32)[many.numbers], many.counts),
            times_ms,
            many.in_ms,
            many.kinds,
            many.bits,
            many.arrivals_ms,
        )
        if len(others.batch):
            batch = join([batch, others.batch])
        return DecodedRows(batch, others.damage, others.skipped, outside)

    def decode(self, row: Row, series: Series) -> Decoded:
        """See `Layout.decode`."""
        content = rows.read_row(row.cells, winner_of(self.options))
        base_ms = row_keys.parse_key(self.options, row.key).base_s * 1000
        bits, kinds, _ = content.elements.values()
        n = len(bits)
        timestamps = np.array(content.timestamps_ms, np.int64)
        batch = PointBatch(
            (series,),
            np.zeros(n, np.int32),
            base_ms + content.elements.offsets_ms,
            content.elements.in_ms,
            kinds,
            bits,
            timestamps[content.column] if n else np.zeros(0, np.int64),
        )
        return Decoded(batch, content.damage, content.skipped)
