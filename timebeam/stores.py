"""Stores: the layouts of OpenTSDB, Heroic and KairosDB as classes, and what a store of your own derives from.

A store is a stored layout of series with its options. It knows where the points of a series are in the
tables, and what their bytes mean; it reads and writes no table itself.

    >>> key = bytes.fromhex("00000150e22700000001000001")
    >>> points = OpenTsdb().decode(Row("tsdb", key, [Cell("t", b"\\x00\\x10", 9000, b"\\x07")]))
    >>> [(str(series), time_ms, value) for series, time_ms, value in points.points()]
    [('000001{000001=000001}', 1356998401000, 7)]

A store of another package is experimental. It is used by name once the package is installed and declares it:

    [project.entry-points."timebeam.stores"]
    firm-hours = "firm_hours:FirmHours"

`timebeam ingest`, `query`, `check` and `copy` take it, and `tables create` makes its table.
`timebeam.testing.check_store` holds it to the rules. docs/reference/python.md explains both. Imports neither
Beam nor Google's clients.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.batches import latest_points
from timebeam.schema.core.contract import ReadableStore, Restored, Store
from timebeam.schema.core.declared_options import DeclaredOptions
from timebeam.schema.core.decode_point_cells import hours_of, joined, restored_points
from timebeam.schema.core.point_fragments import (
    CellColumns,
    Encoded,
    Name,
    Packing,
    SlotPoints,
    row_numbers,
    sorted_rows,
)
from timebeam.schema.core.points import LAST_MILLISECOND, PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Stage
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, remove_cells
from timebeam.schema.core.rows import ARRIVAL, KEY_BYTES, WHOLE_TABLE, Cell, Row, TableSpec
from timebeam.schema.core.selection import DecodedRows, Finding, Reader, Scan, Selected, Selection, Severity
from timebeam.schema.stores import StoreName
from timebeam.schema.stores.heroic import layout as heroic
from timebeam.schema.stores.heroic.options import HeroicOptions, HeroicReadableOptions
from timebeam.schema.stores.kairosdb import layout as kairosdb
from timebeam.schema.stores.kairosdb.options import KairosDbOptions
from timebeam.schema.stores.opentsdb import layout as opentsdb
from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

if TYPE_CHECKING:
    from timebeam.schema.core.points import PointBatch as Points

__all__ = [
    "Cell",
    "CellStore",
    "Heroic",
    "HeroicReadable",
    "KairosDb",
    "OpenTsdb",
    "Row",
    "Store",
    "StoreName",
    "StoreOptions",
]


class OpenTsdb(opentsdb.OpenTsdb):
    """The tables of OpenTSDB 2.4, byte for byte; the options are those of its TSDs.

    docs/reference/layouts.md explains each.
    """

    def __init__(
        self,
        *,
        table_prefix: str = "",
        salt_width: int = 0,
        salt_buckets: int = 20,
        uid_width_metric: int = 3,
        uid_width_tagk: int = 3,
        uid_width_tagv: int = 3,
        names: Literal["refuse", "escape", "replace"] = "refuse",
        max_tags: int = 30,
        decimals: Literal["exact", "double", "float"] = "exact",
        cell_time: Literal["arrival", "event"] = "arrival",
        use_max_value: bool = True,
        archive: bool = False,
        marked_since: str = "",
    ) -> None:
        """The store with these options; widths in bytes, `marked_since` a day such as 2026-11-20.

        Raises:
          ValueError: a value is out of its range; the message names it.
        """
        super().__init__(OpenTsdbOptions.of(_given(locals())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, opentsdb.OpenTsdb) and self.options == other.options

    __hash__ = opentsdb.OpenTsdb.__hash__

    def decode(self, row: Row, names: Mapping[tuple[str, bytes], str] | None = None) -> Points:
        """The points of a row of the data table, one per time, ascending; times in ms since 1970.

        Args:
          names: of UIDs, by (`metrics`, `tagk` or `tagv`, UID). A UID without one is its own name, in hex.

        Raises:
          ValueError: the key is none of this store, or a cell is corrupt.
        """
        key, names = parse_key(self.options, row.key), names or {}
        metric = names.get(("metrics", key.metric), key.metric.hex())
        pairs = [
            (names.get(("tagk", tag), tag.hex()), names.get(("tagv", value), value.hex()))
            for tag, value in key.tags
        ]
        return _points(self, row, Series.of(metric, dict(pairs)))


class Heroic(heroic.Heroic):
    """The table `metrics` of Heroic's Bigtable backend, byte for byte, and a table of its series.

    >>> Heroic(table_prefix="prod-").tables()[0].name
    'prod-metrics'
    """

    def __init__(self, *, table_prefix: str = "", archive: bool = False) -> None:
        """The store with these options."""
        super().__init__(HeroicOptions.of(_given(locals())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, heroic.Heroic) and self.options == other.options

    __hash__ = heroic.Heroic.__hash__

    def decode(self, row: Row) -> Points:
        """The points of a row of the data table, one per time, ascending; times in ms since 1970.

        Raises:
          ValueError: the key is none of this store, or a cell is corrupt.
        """
        return _points(self, row, self.index.entry_of(row.key)[0])


class HeroicReadable(Heroic):
    """The same with keys and qualifiers as text, which Heroic itself cannot read.

    >>> HeroicReadable().name
    'heroic-readable'
    """

    def __init__(
        self, *, table_prefix: str = "", resource_names: bool = False, archive: bool = False
    ) -> None:
        """The store with these options; `resource_names`: keys hold the names of resources too."""
        heroic.Heroic.__init__(self, HeroicReadableOptions.of(_given(locals())))


class KairosDb(kairosdb.KairosDb):
    """The tables of KairosDB 1.3.0, byte for byte.

    >>> KairosDb(row_spec="milliseconds", retention="7,90").tables()[0].families
    {'d': 1, 'd7': 1, 'd90': 1}
    """

    def __init__(
        self,
        *,
        table_prefix: str = "",
        row_spec: Literal["legacy", "milliseconds", "seconds"] = "legacy",
        retention: str = "",
        retention_class: int = 0,
        archive: bool = False,
    ) -> None:
        """The store with these options; `retention`: the retention classes in days, such as 7,90.

        Raises:
          ValueError: a value is out of its range; the message names it.
        """
        super().__init__(KairosDbOptions.of(_given(locals())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, kairosdb.KairosDb) and self.options == other.options

    __hash__ = kairosdb.KairosDb.__hash__

    def decode(self, row: Row) -> Points:
        """The points of a row of the data table, one per time, ascending; times in ms since 1970.

        Raises:
          ValueError: the key is none of this store, or a cell is corrupt.
        """
        return _points(self, row, self.index.entry_of(row.key)[0])


def _given(local: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a constructor, out of its local names."""
    return {name: value for name, value in local.items() if name not in ("self", "__class__")}


def _points(store: ReadableStore, row: Row, series: Series) -> Points:
    decoded = store.decode_rows([Selected(row, series)])
    if decoded.corruption:
        raise ValueError(decoded.corruption[0][1])
    return decoded.batch


@dataclasses.dataclass(frozen=True, slots=True)
class StoreOptions(DeclaredOptions):
    """The options of a store of another package; it adds fields with `timebeam.formats.option`.

    The name of an added option begins with that of the store: `firm_hours_width` for `firm-hours`. Those that
    the bytes of the tables depend on are declared with `stored=True`.

    Attributes:
      table_prefix: put before the name of the table.

    >>> StoreOptions.of({"table_prefix": "prod-"})
    StoreOptions(table_prefix='prod-')
    """

    table_prefix: str = ""


@dataclasses.dataclass(frozen=True)
class CellStore(Store):
    """The base of a store of one table with a cell for each point; experimental, as all stores of packages.

    A row holds the points of one series in `row_ms` milliseconds. Its key is head, base time, tail: `head` is
    made from the metric, `tail` from the tags, `base` from the start of the row. A cell's qualifier is the
    offset of its point from the base time, in ms, in four bytes; its timestamp is the arrival, so a later
    correction wins; its value has `value_bytes` bytes.

    A subclass is a frozen dataclass without fields of its own. It has a `name`, a `table`, and the three
    methods `head`, `tail` and `parse`. It may have other values: `values_stored`, `write_values`,
    `read_values`.

    >>> class Hours(CellStore):
    ...     name, table = "hours", "points"
    ...     def head(self, metric):
    ...         return metric.encode() + b"#"
    ...     def tail(self, tags):
    ...         return "#".join(f"{key}={tags[key]}" for key in sorted(tags)).encode()
    ...     def parse(self, key):
    ...         metric, _, rest = key.partition(b"#")
    ...         tags = dict(pair.split("=") for pair in rest[8:].decode().split("#"))
    ...         return metric.decode(), tags, int.from_bytes(rest[:8], "big")
    >>> key = b"load#" + (1356998400_000).to_bytes(8, "big") + b"host=web01"
    >>> cell = Cell("p", bytes([0, 0, 0, 5]), 9000, b"\\x00" + (42).to_bytes(8, "big"))
    >>> list(Hours().decode(Row("points", key, [cell])).points())
    [(Series(metric='load', tags=(('host', 'web01'),), resources=()), 1356998400005, 42)]

    Attributes:
      options: an instance of `options_class`; a subclass with options of its own declares both.
      table: without prefix.
      family: of the cells.
      row_ms: at most 2**32.
    """

    options: StoreOptions = None  # type: ignore[assignment]  # of `options_class`

    options_class: ClassVar[type[StoreOptions]] = StoreOptions
    table: ClassVar[str]
    family: ClassVar[str] = "p"
    row_ms: ClassVar[int] = 3_600_000
    value_bytes: ClassVar[int] = 9

    def __post_init__(self) -> None:
        if self.options is None:
            object.__setattr__(self, "options", self.options_class())

    @abc.abstractmethod
    def head(self, metric: str) -> bytes:
        """The bytes of a key before the base time."""

    @abc.abstractmethod
    def tail(self, tags: Mapping[str, str]) -> bytes:
        """The bytes of a key behind the base time."""

    @abc.abstractmethod
    def parse(self, key: bytes) -> tuple[str, dict[str, str], int]:
        """(metric, tags, base time in ms) of a key.

        A series is rejected if this does not give it back, so that no two series share a row.

        Raises:
          ValueError: it is no key of this store.
        """

    def base(self, base_ms: int) -> bytes:
        """A base time in a key: as many bytes for each, in the order of time. By default 8, of the ms."""
        return base_ms.to_bytes(8, "big")

    def values_stored(self, kinds: Bytes, bits: Int64s) -> Bools:
        """bool[n]: which values can be stored; by default integers, and floats that are finite.

        Args:
          kinds: uint8[n]: 0 an integer, 1 a float; greater ones are texts and bytes.
          bits: int64[n]: the integer, or the bits of the float64.
        """
        return (kinds == Kind.INTEGER) | ((kinds == Kind.FLOAT) & np.isfinite(bits.view(np.float64)))

    def write_values(self, kinds: Bytes, bits: Int64s) -> Bytes:
        """uint8[n, value_bytes]: values as they are stored; by default the kind and the bits, big-endian."""
        raw = bits.astype(">i8").view(np.uint8).reshape(-1, 8)
        return np.hstack([kinds.reshape(-1, 1), raw])

    def read_values(self, content: Bytes) -> tuple[Bytes, Int64s, Bools]:
        """(kinds, bits, bool[n] which are good) of stored values, uint8[n, value_bytes]."""
        kinds = np.ascontiguousarray(content[:, 0])
        bits = np.ascontiguousarray(content[:, 1:]).view(">i8").ravel().astype(np.int64)
        return kinds, bits, self.values_stored(kinds, bits)

    def decode(self, row: Row) -> Points:
        """The points of a row, one per time, ascending; times in ms since 1970.

        Raises:
          ValueError: the key is none of this store, or a cell is corrupt.
        """
        return _points(self, row, self._parsed(row.key)[0])

    def tables(self) -> Sequence[TableSpec]:
        return (TableSpec(self._table, {self.family: 1}, holds_points=True, cell_time=ARRIVAL),)

    @property
    def _table(self) -> str:
        return self.options.table_prefix + self.table

    def _parsed(self, key: bytes) -> tuple[Series, int]:
        """(series, base time in ms) of a key; raises ValueError, whatever `parse` raises."""
        try:
            metric, tags, base_ms = self.parse(key)
            series = Series.of(metric, tags)
            is_same = base_ms % self.row_ms == 0 and key == self._key(self.series_key(series, {}), base_ms)
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise ValueError(f"row key {key[:80].hex()} is none of store {self.name}: {error}") from error
        if not is_same:
            raise ValueError(f"row key {key[:80].hex()} is not that of {series} at {base_ms} ms")
        return series, base_ms

    def _key(self, key: SeriesKey, base_ms: int) -> bytes:
        return key.head + self.base(base_ms) + key.tail

    def reject(self, series: Series) -> RejectedError | None:
        if series.resources:
            why = f"store {self.name} has no resources: send them as tags"
            return RejectedError(Reason.SERIES_NOT_STORABLE, why)
        try:
            key = self._key(self.series_key(series, {}), 0)
            found = self._parsed(key)[0]
        except ValueError as error:
            return RejectedError(Reason.NAME_NOT_STORABLE, str(error))
        if len(key) > KEY_BYTES:
            why = f"a row key of {len(key)} bytes: Bigtable takes at most {KEY_BYTES}"
            return RejectedError(Reason.NAME_NOT_STORABLE, why)
        if found != series:
            return RejectedError(Reason.NAME_NOT_STORABLE, f"its row key is also that of {found}")
        return None

    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        return SeriesKey(self.head(series.metric), self.tail(dict(series.tags)))

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        good = (batch.times_ms >= 0) & (batch.times_ms <= LAST_MILLISECOND)
        good &= self.values_stored(batch.kinds, batch.bits)
        rejected = batch.reject(np.flatnonzero(~good), lambda point: self._why(batch, point), Stage.ENCODE)
        duplicates = int(good.sum())
        batch = batch if good.all() else batch.take(np.flatnonzero(good))
        if not len(batch):
            return Encoded([], rejected, 0)
        numbers = batch.times_ms // self.row_ms
        offsets = batch.times_ms - numbers * self.row_ms
        order, bounds = sorted_rows(row_numbers(batch.index, numbers), offsets, batch.arrivals_ms)
        content = self.write_values(batch.kinds[order], batch.bits[order])
        values = content.tobytes(), np.arange(len(order) + 1) * self.value_bytes
        points = SlotPoints(bounds, offsets[order], batch.arrivals_ms[order], values)
        first = order[bounds[:-1]]
        rows = zip(batch.index[first].tolist(), (numbers[first] * self.row_ms).tolist(), strict=True)
        row_keys = [self._key(key, base_ms) for number, base_ms in rows if (key := keys[number]) is not None]
        fragments = points.row_fragments(self._table, row_keys, batch.origins)
        return Encoded(fragments, rejected, duplicates - len(order))

    def _why(self, batch: PointBatch, point: int) -> RejectedError:
        """Why a point cannot be stored."""
        time_ms = int(batch.times_ms[point])
        if not 0 <= time_ms <= LAST_MILLISECOND:
            why = f"time {time_ms} ms: times are from 0 to {LAST_MILLISECOND} ms"
            return RejectedError(Reason.TIMESTAMP_OUT_OF_RANGE, why)
        why = f"store {self.name} cannot hold this value: {str(batch.value(point))[:40]}"
        return RejectedError(Reason.VALUE_NOT_STORABLE, why)

    def cells(self, keys: Sequence[bytes], points: SlotPoints, packing: Packing) -> CellColumns:
        points = points.newest()
        n = len(points.slots)
        qualifiers = points.slots.astype(">u4").tobytes(), np.arange(n + 1) * 4
        family_of = np.zeros(n, np.int64)
        return CellColumns(
            points.bounds, (self.family,), family_of, qualifiers, points.arrivals_ms, points.values
        )

    def hours(
        self, keys: Sequence[bytes], counts: Sequence[int], qualifiers: bytes
    ) -> set[tuple[bytes, int]]:
        parsed = [self._parsed(key) for key in keys]
        metrics, bases_ms = [series.metric for series, _ in parsed], [base_ms for _, base_ms in parsed]
        return hours_of(metrics, bases_ms, counts, np.frombuffer(qualifiers, ">u4").astype(np.int64))

    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        first, last = max(0, selection.start_ms), min(LAST_MILLISECOND, selection.end_ms)
        if first > last:
            return
        key_range = WHOLE_TABLE
        if selection.metric is not None:
            head, start_ms = self.head(selection.metric), first - first % self.row_ms
            end_ms = last - last % self.row_ms + self.row_ms
            key_range = head + self.base(start_ms), head + self.base(end_ms)
        for row in reader.scan(Scan(self._table, [key_range])):
            try:
                series, base_ms = self._parsed(row.key)
            except ValueError as error:
                yield Finding(Severity.CORRUPT, row.table, row.key, str(error))
                continue
            if base_ms <= last and base_ms + self.row_ms > first and selection.takes(series):
                yield Selected(row, series)

    def full_scan(self, selection: Selection) -> str:
        if selection.metric is None:
            return f"store {self.name} reads all rows of table {self._table} if no metric is given"
        return ""

    def key_error(self, key: bytes) -> str:
        try:
            self._parsed(key)
        except ValueError as error:
            return str(error)
        return ""

    def decode_rows(self, rows: Sequence[Selected]) -> DecodedRows:
        cells = [cell for selected in rows for cell in selected.row.cells]
        row_of = np.repeat(np.arange(len(rows)), [len(selected.row.cells) for selected in rows])
        offsets, kinds, bits, good = self._read(cells)
        bases = [self._base_ms(selected.row.key) for selected in rows]
        base_ms = np.array(bases, np.int64)[row_of]
        good &= base_ms >= 0
        corruption = [
            (rows[number].row, f"{count} cells hold no points of store {self.name}")
            for number, count in enumerate(np.bincount(row_of[~good], minlength=len(rows)).tolist())
            if count
        ]
        series: dict[Series, int] = {}
        index = np.array([series.setdefault(selected.series, len(series)) for selected in rows], np.int32)
        times_ms, arrivals_ms = base_ms + offsets, np.array([cell.timestamp_ms for cell in cells], np.int64)
        batch = PointBatch(
            tuple(series), index[row_of], times_ms, times_ms % 1000 != 0, kinds, bits, arrivals_ms
        )
        chosen = np.flatnonzero(good)
        chosen = chosen[latest_points(row_of[chosen], times_ms[chosen], arrivals_ms[chosen])]
        return DecodedRows(batch.take(chosen), corruption, 0)

    def _base_ms(self, key: bytes) -> int:
        """The base time of a key in ms; -1 if it is none of this store."""
        try:
            return self._parsed(key)[1]
        except ValueError:
            return -1

    def _read(self, cells: Sequence[Cell]) -> tuple[Int64s, Bytes, Int64s, Bools]:
        """(offsets, kinds, bits, which are good) of cells."""
        qualifiers, of_four = joined([cell.qualifier for cell in cells], 4)
        values, of_width = joined([cell.value for cell in cells], self.value_bytes)
        offsets = np.frombuffer(qualifiers, ">u4").astype(np.int64)
        kinds, bits, good = self.read_values(np.frombuffer(values, np.uint8).reshape(-1, self.value_bytes))
        good = good & of_four & of_width & (offsets < self.row_ms)
        good &= np.array([cell.family == self.family for cell in cells], np.bool_)
        return offsets, kinds, bits, good

    def remove(self, selected: Selected, deleted: DeleteRange) -> RowDeletion | None:
        offsets, _, _, good = self._read(selected.row.cells)
        times_ms = np.where(good, self._parsed(selected.row.key)[1] + offsets, -1)
        return remove_cells(selected.row, times_ms, deleted)

    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        for row in read(self._table):
            if error := self.key_error(row.key):
                yield Finding(Severity.CORRUPT, row.table, row.key, error)
                continue
            for _, text in self.decode_rows([Selected(row, self._parsed(row.key)[0])]).corruption:
                yield Finding(Severity.CORRUPT, row.table, row.key, text)

    def restore(self, row: Row, reader: Reader) -> Restored:
        if row.table != self._table or not row.cells:
            raise ValueError(f"store {self.name} writes no such row of table {row.table!r}")
        series, _ = self._parsed(row.key)
        decoded = self.decode_rows([Selected(row, series)])
        points = restored_points(self, row, decoded, self.series_key(series, {}))
        return Restored(points, row._replace(cells=()))
