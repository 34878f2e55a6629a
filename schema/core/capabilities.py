"""The contract of a layout of series, and what only some layouts can do.

`timebeam.schema.core.writing` and `timebeam.schema.core.reading` are the halves of the contract. A
layout knows nothing of Beam or the network. To add one: see CONTRIBUTING. Each capability is a class that a
layout derives from:

| capability | what it is for | layouts |
|---|---|---|
| `SeriesIndex` | index tables, rebuilt by `timebeam reindex` | heroic, heroic-readable, kairosdb |
| `RollupSeries` | rollups stored as ordinary series | heroic, heroic-readable, kairosdb |
| `RefusedRows` | rows that Bigtable refused, restored by `timebeam replay` | all |
| `HourMarks` | marks of changed hours for `timebeam rollup --touched` | all |
| `RollupTables` | rollup tables of OpenTSDB | opentsdb |
| `Annotations`, `Histograms` | cells beside the points of a row | opentsdb |
| `SeriesMeta`, `Trees` | metadata of series, and trees of them | opentsdb |
| `Compaction` | rows rewritten as one column | opentsdb |
| `Archive` | closed hours in long rows of compressed columns | all |
| `Replacing` | points of an instant that replace each other in different columns | opentsdb |

`timebeam.schema.stores.capability` looks one up; no other code asks a layout for its name or class.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from timebeam.schema.archive.keys import SeriesHeads
from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.core.option import Option
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.reading import Finding, ReadableLayout, Reader, Scan, Selected, Selection
from timebeam.schema.core.rows import Cell, Row, StoredLayout, UidSpec
from timebeam.schema.core.writing import Packing, SeriesKey, WritableLayout
from timebeam.schema.stores.opentsdb.key_ranges import LeadingTags
from timebeam.schema.stores.opentsdb.keys import OpenTsdbOptions


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


class UidTables(Capability, Layout):
    """A layout with OpenTSDB's two tables: rows of one hour with UIDs in their keys, and UIDs of names.

    Attributes:
      options: they define, for example, the fields of a row key.
      leading: the tags before filtered ones, as its reads have seen them in row keys.
    """

    noun = "UID tables"
    options: OpenTsdbOptions
    leading: LeadingTags

    @property
    @abc.abstractmethod
    def data_table(self) -> str:
        """Name of the data table, with prefix."""

    @property
    @abc.abstractmethod
    def uid_table(self) -> str:
        """Name of the UID table, with prefix."""

    @property
    @abc.abstractmethod
    def uids(self) -> UidSpec:
        """See `WritableLayout.uids`."""

    @abc.abstractmethod
    def select_metrics(
        self, metrics: Sequence[bytes], start_ms: int, end_ms: int, reader: Reader
    ) -> Iterator[Selected | Finding]:
        """Like `select`, for one or more metrics by UID; first and last time in ms, both inclusive."""

    @abc.abstractmethod
    def tsuid_of(self, table: str, key: bytes) -> bytes:
        """The TSUID of a row that `select` gives, of the data table or the archive.

        Raises:
          ValueError: the key is not one of such a row.
        """

    @abc.abstractmethod
    def metric_uids(self, reader: Reader) -> dict[str, bytes]:
        """The UIDs of all metrics by name, sorted by name."""


class RollupTables(UidTables):
    """A layout with rollup and pre-aggregate tables (docs/spec/opentsdb.md §7)."""

    noun = "rollup tables"


class Annotations(UidTables):
    """A layout with annotations of series and global ones, in cells (docs/spec/opentsdb.md §4.1)."""

    noun = "annotations"


class Histograms(UidTables):
    """A layout with histograms in cells beside the points (docs/spec/opentsdb.md §4.2)."""

    noun = "histograms"


class SeriesMeta(UidTables):
    """A layout with a table of metadata of series, and metadata of names in its UID table.

    Format: docs/spec/opentsdb.md §5.
    """

    noun = "metadata"


class Trees(UidTables):
    """A layout with a table of trees, which sort series by rules (docs/spec/opentsdb.md §6)."""

    noun = "trees"


class SeriesSpan(NamedTuple):
    """The points of one row: the row key without its time, the first and last time, and the arrivals, ms."""

    series: bytes
    first_ms: int
    last_ms: int
    arrivals_ms: set[int]


class Replacing(Capability, Layout):
    """A layout in which points of one instant, of different portions of an input, can be in two columns."""

    noun = "columns of several points"

    @abc.abstractmethod
    def replaces(self, packing: Packing) -> bool:
        """Whether a new column of this packing has to replace points of columns with the same timestamp."""

    @abc.abstractmethod
    def span(self, key: bytes, packed: Sequence[bytes], packing: Packing) -> SeriesSpan:
        """The series and times of the fragments of one row."""

    @abc.abstractmethod
    def replacing(self, row: Row, existing: Sequence[Cell], packing: Packing) -> Row:
        """A row that removes its instants from existing cells of the row that are not newer than its own."""


class Compaction(UidTables):
    """A layout whose rows can be rewritten as one column (docs/spec/opentsdb.md §2)."""

    noun = "compaction"


class DataRow(NamedTuple):
    """The content of a data row's key: the series, and the period [start, end) of its points, in ms."""

    series: SeriesKey
    start_ms: int
    end_ms: int


class Archive(Capability, Layout):
    """A layout whose closed hours can be sealed into a table of their own (docs/spec/archive.md).

    Attributes:
      by_kind: whether an integer, a float and another value of one instant are stored in different rows.
    """

    noun = "archive"
    by_kind: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def has_archive(self) -> bool:
        """Whether these tables have an archive."""

    @property
    @abc.abstractmethod
    def data_table(self) -> str:
        """Name of the data table, with prefix."""

    @property
    @abc.abstractmethod
    def archive_table(self) -> str:
        """Name of the table of the archive, with prefix."""

    @property
    @abc.abstractmethod
    def heads(self) -> SeriesHeads:
        """Finds the heads of row keys."""

    @abc.abstractmethod
    def metric_keys(self, reader: Reader) -> Mapping[str, bytes]:
        """The metrics by name: their UIDs, or their names as bytes."""

    @abc.abstractmethod
    def closed(self, metric: bytes, start_ms: int, end_ms: int, reader: Reader) -> Iterator[Scan]:
        """The scans of the data table that read the points of a metric in [start, end), in the order of time.

        Args:
          metric: as in `metric_keys`.
        """

    @abc.abstractmethod
    def data_row(self, key: bytes) -> DataRow:
        """Parses the key of a data row.

        Raises:
          ValueError: the key is not that of a data row.
        """

    @abc.abstractmethod
    def sealable(self, row: Row) -> tuple[Sequence[Cell], Int64s]:
        """The cells of a data row that hold only numbers, and int64[n], the time of one point of each, in ms.

        All points of a cell are in the hour of that time.
        """

    @abc.abstractmethod
    def row_at(self, series: SeriesKey, time_s: int) -> Row:
        """A data row with one cell, without value, at a time in s; `HourMarks.hours` finds its hour."""
