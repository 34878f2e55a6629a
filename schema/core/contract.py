"""The contract of a layout of series, and what only some layouts can do.

A layout knows nothing of Beam or the network. To add one: see CONTRIBUTING. Each capability is a class that a
layout derives from:

| capability | what it is for | layouts |
|---|---|---|
| `SeriesIndex` | index tables, rebuilt by `timebeam reindex` | heroic, heroic-readable, kairosdb |
| `RollupSeries` | rollups stored as ordinary series | heroic, heroic-readable, kairosdb |
| `RefusedRows` | rows that Bigtable refused, restored by `timebeam replay` | all |
| `HourMarks` | marks of changed hours for `timebeam rollup --touched` | all |
| `Replacing` | points of an instant that replace each other in different columns | opentsdb |

`timebeam.schema.stores.capability` looks one up. What only OpenTSDB has takes an `OpenTsdb`, which
`timebeam.schema.stores.as_opentsdb` gives; no other code asks a layout for its name or class.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from timebeam.schema.bits.arrays import Floats
from timebeam.schema.bits.reasons import RefusedError
from timebeam.schema.core.cell_fragments import CellColumns, SlotPoints
from timebeam.schema.core.option import Option
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.reading import (
    DecodedRows,
    Finding,
    Reader,
    Selected,
    Selection,
)
from timebeam.schema.core.removal import DeleteRange, RowDeletion
from timebeam.schema.core.rows import Cell, Row, StoredLayout, UidSpec
from timebeam.schema.core.writing import Encoded, Name, Packing, SeriesKey


class WritableLayout(StoredLayout):
    """A layout that points can be written to.

    A write calls `refuse`, `names` (which get UIDs), `series_key` and `encode`, groups by row, calls `pack`.
    """

    @property
    @abc.abstractmethod
    def packings(self) -> Sequence[Packing]:
        """The packings that these options allow, the default for files first."""

    @property
    def packing_limit(self) -> str:
        """Why these options allow only one packing; empty if they allow all."""
        return ""

    @property
    def read_only(self) -> str | None:
        """Why these options do not allow writing, and what to do; None if they do."""
        return None

    @property
    @abc.abstractmethod
    def uids(self) -> UidSpec | None:
        """The UIDs of names; None for a layout that stores names themselves."""

    @abc.abstractmethod
    def refuse(self, series: Series) -> RefusedError | None:
        """Why the layout cannot hold a series, or None if it can."""

    @abc.abstractmethod
    def names(self, series: Series) -> Sequence[Name]:
        """The names of a series that are stored as UIDs; none in a layout without UIDs."""

    def replaced_names(self, series: Series) -> Sequence[tuple[Name, str]]:
        """(stored name, name) of each name, if the layout stores different names as one; else none."""
        return ()

    @abc.abstractmethod
    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        """The parts of the row keys of a series; callers cache it, since it is slow.

        Args:
          series: one that `refuse` does not refuse.
          uids: the UID of each of its names.
        """

    @abc.abstractmethod
    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        """Encodes a batch into fragments of rows, whatever the packing.

        Args:
          keys: the key of each series of the batch; None for a series without points in it.
        """

    @abc.abstractmethod
    def cells(self, keys: Sequence[bytes], points: SlotPoints, packing: Packing) -> CellColumns:
        """The cells of rows with these keys and the points of their fragments (`SlotPoints.of`)."""

    def pack(self, table: str, key: bytes, packed: Sequence[bytes], packing: Packing) -> Row:
        """One row mutation from the fragments of one row, whatever their order."""
        return Row(table, key, self.cells([key], SlotPoints.of([packed]), packing).cells(0))

    def stored_floats(self, floats: Floats) -> Floats:
        """float64[n]: floats as the layout stores them; unchanged if it stores 8 bytes."""
        return floats


class ReadableLayout(StoredLayout):
    """A layout that points can be read from: by queries, copies, checks and rollups."""

    @abc.abstractmethod
    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """The data rows that can hold selected points, and findings about rows that cannot be read.

        A row may hold points outside of the time range too. The rows of one series come in the order
        of time within each range of keys; rows of several series may be mixed.

        Raises:
          UnknownNameError: a metric or tag is not in the index of a layout that has one.
        """

    @abc.abstractmethod
    def decode_rows(self, rows: Sequence[Selected]) -> DecodedRows:
        """The points of data rows; never raises for damaged cells.

        A layout that does not store the unit of a time reads whole seconds as seconds.
        """

    @abc.abstractmethod
    def remove(self, selected: Selected, deleted: DeleteRange) -> RowDeletion | None:
        """The deletion of points of a selected row; None if it has none of these.

        Raises:
          ValueError: the row cannot be rewritten without them.
        """

    @abc.abstractmethod
    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        """Everything in the tables that an operator should know.

        Args:
          read: returns all rows of a table, newest versions only.
        """

    def key_error(self, key: bytes) -> str:
        """Why no data row can have this key with these options; empty if one can."""
        return ""

    def full_scan(self, selection: Selection) -> str:
        """Why a selection reads all rows of a table, in words; empty if ranges of keys serve it."""
        return ""

    def cut_at(self, key: bytes) -> bytes:
        """The place, at or before a key, where workers may split the data table.

        Rows that can hold the same instant of one series stay together, also those of index tables with the
        same keys.
        """
        return key

    def with_existing(self, names: Callable[[], Sequence[str]]) -> ReadableLayout:
        """The same layout, which also reads those of its tables per day that exist.

        Args:
          names: gives the names of all tables.
        """
        return self

    def several_rows(self, selection: Selection, reader: Reader) -> frozenset[Series]:
        """The series that may have the same instant in several selected rows.

        The latest arrival wins; within one arrival, the row that is read last.
        """
        return frozenset()


class Layout(WritableLayout, ReadableLayout):
    """One stored layout of series, with its options.

    Attributes:
      declared_options: its options, without those that all layouts share, such as `table_prefix`.
      stores_resources: whether series may have resources.
    """

    stores_resources: ClassVar[bool] = False

    declared_options: ClassVar[tuple[Option, ...]] = ()

    @classmethod
    @abc.abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> Layout:
        """The layout with those of the options that it declares or shares.

        Raises:
          ValueError: a value is out of its range; the message names the option.
        """


class Capability(abc.ABC):
    """What some layouts can do.

    Attributes:
      noun: for errors such as "layout heroic has no NOUN".
    """

    noun: ClassVar[str]


class SeriesIndex(Capability, ReadableLayout):
    """A layout with index tables, whose rows say which series have points, and when."""

    noun = "index tables"

    @abc.abstractmethod
    def index_entries(self, batch: PointBatch) -> Sequence[tuple[int, int]]:
        """(number of a series in the batch, base time in ms) for each index entry that its points need.

        A worker calls `index` for each entry that it has not seen lately.
        """

    @abc.abstractmethod
    def index(self, series: Series, base_ms: int) -> Sequence[Row]:
        """The rows of the index tables for a series with points in the row of this base time.

        Always the same cells, timestamps included, so they may be written repeatedly and in any order.

        Args:
          base_ms: an entry of `index_entries`.
        """

    @abc.abstractmethod
    def entry_of(self, key: bytes) -> tuple[Series, int]:
        """The series and the index entry of a data row, from its key: this allows to rebuild an index.

        Raises:
          ValueError: the key does not hold them.
        """

    @abc.abstractmethod
    def index_keys(self, series: Series, base_ms: int) -> tuple[str, Sequence[bytes]]:
        """(index table, keys): one of these rows exists if the series has points of late.

        Args:
          base_ms: an entry of `index_entries`.
        """

    @abc.abstractmethod
    def indexed(self, metric: str | None, reader: Reader) -> Iterator[tuple[Series, int]]:
        """(series, base time in ms of a row of it), for the series in the index tables, each at least once.

        Args:
          metric: None for all.
        """

    @abc.abstractmethod
    def stale(self, selection: Selection, reader: Reader) -> Iterator[Selected]:
        """The index rows of selected series without data rows, with the cells that lead to no row.

        Raises:
          UnknownNameError: the index does not know the metric.
        """

    def key_error(self, key: bytes) -> str:
        try:
            self.entry_of(key)
        except ValueError as error:
            return str(error)
        return ""


class RollupNames(Protocol):
    """How a layout without rollup tables names rollups, which are ordinary series in other tables.

    Attributes:
      integers: whether whole numbers are stored as integers; else all numbers are floats.
    """

    integers: bool

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        """The series that holds an aggregator's rollups of a series.

        Raises:
          RefusedError: the series already has a tag with the key that rollups need.
        """

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        """(series, aggregator) of the rollups in a stored series; None if it holds no rollups."""


class RollupSeries(Capability, Layout):
    """A layout whose rollups are ordinary series.

    Attributes:
      rollup_names: how rollups are named.
    """

    noun = "rollups as series"
    rollup_names: RollupNames


class Restored(NamedTuple):
    """A refused row mutation, split so that it can be stored again.

    Attributes:
      points: to be encoded again.
      rest: the other cells, to be written as they are; without cells if there are none.
    """

    points: PointBatch
    rest: Row


class RefusedRows(Capability, StoredLayout):
    """A layout that can split its row mutations, so that refused ones are replayed."""

    noun = "restore of refused rows"

    @abc.abstractmethod
    def restore(self, row: Row, reader: Reader) -> Restored:
        """The content of a row mutation from an untrusted source, after checks of table, key and cells.

        Raises:
          ValueError: this layout, with these options, writes no such row.
        """


class HourMarks(Capability, StoredLayout):
    """A layout that tells which hours a row mutation changes."""

    noun = "marks of changed hours"

    @property
    def marked_since_s(self) -> int | None:
        """All writers mark the hours of points from this time on, in s; None if some may not."""
        return None

    @abc.abstractmethod
    def hours(
        self, keys: Sequence[bytes], counts: Sequence[int], qualifiers: bytes
    ) -> set[tuple[bytes, int]]:
        """The hours that have points in m rows as `pack` makes them.

        Args:
          keys, counts: the key of each row, and the number of its cells.
          qualifiers: of all cells, concatenated.

        Returns:
          (the metric as in row keys: UID or name; start of an hour in s since 1970).
        """


class SeriesSpan(NamedTuple):
    """The points of one row: the row key without its time, the first and last time in ms."""

    series: bytes
    first_ms: int
    last_ms: int


class Replacing(Capability, Layout):
    """A layout in which points of one instant, of different portions of an input, can be in two columns."""

    noun = "columns of several points"

    @abc.abstractmethod
    def replaces(self, packing: Packing) -> bool:
        """Whether a new column of this packing has to replace points of columns with the same timestamp."""

    @abc.abstractmethod
    def spans(self, keys: Sequence[bytes], points: SlotPoints) -> Sequence[SeriesSpan]:
        """The series and times of the points of each row with these keys."""

    @abc.abstractmethod
    def replacing(self, row: Row, existing: Sequence[Cell], packing: Packing) -> Row:
        """A row that removes its instants from existing cells of the row that are not newer than its own."""


class SeriesHeads(Protocol):
    """Finds the head of a row key: the bytes that data rows and archive rows of a series begin with."""

    def head_bytes(self, key: bytes) -> int:
        """The number of bytes before the time in a data row's key, or the span code in an archive row's.

        Raises:
          ValueError: the key is of neither kind.
        """


def restored_points(layout: WritableLayout, row: Row, decoded: DecodedRows, key: SeriesKey) -> PointBatch:
    """The points of a decoded row, after a check that this layout writes them into this row.

    Raises:
      ValueError: it does not, or the row is damaged.
    """
    if decoded.damage:
        raise ValueError(decoded.damage[0][1])
    batch = decoded.batch
    if not len(batch):
        return batch
    for series in batch.series:
        refusal = layout.refuse(series)
        if refusal is not None:
            raise refusal
    encoded = layout.encode(batch, [key])
    if encoded.rejected:
        raise ValueError(encoded.rejected[0].message)
    if any((fragment.table, fragment.key) != (row.table, row.key) for fragment in encoded.fragments):
        raise ValueError("its points belong in another row")
    return batch
