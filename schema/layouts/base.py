"""The contract of a stored layout: what turns points into the rows of Bigtable tables, and back.

A layout knows nothing of Beam or of the network. To add one: a module or package here with a
`Layout`, its line in `schema.layouts.LAYOUTS`, its golden vectors and its test module.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from schema.points import Int64s, PointBatch, RefusedError, Rejected, Series, join


class Packing(str, enum.Enum):
    """How the points of one row are laid into cells."""

    POINTS = "points"
    COMPACTED = "compacted"
    APPEND = "append"


class Cell(NamedTuple):
    """One cell of a row; the timestamp in ms, the family as Bigtable names it."""

    family: str
    qualifier: bytes
    timestamp_ms: int
    value: bytes


class Deletion(NamedTuple):
    """The versions of one column that are older than `before_ms`; None for all of them."""

    family: str
    qualifier: bytes
    before_ms: int | None = None


class Row(NamedTuple):
    """Cells of one row: to be written as one mutation, or as they were read (newest version only).

    `deleted` is what the mutation deletes before it sets the cells.
    """

    table: str
    key: bytes
    cells: Sequence[Cell]
    deleted: Sequence[Deletion] = ()


class SeriesKey(NamedTuple):
    """What the row keys of one series have in common: the bytes before and behind the time."""

    head: bytes
    tail: bytes


class Name(NamedTuple):
    """A name that a layout stores as a UID, and its kind (`metrics`, `tagk`, `tagv`)."""

    kind: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class UidSpec:
    """Where a layout keeps the UIDs of its names, in OpenTSDB's way.

    Attributes:
      table: name of the UID table, with prefix.
      widths: bytes of a UID, by kind.
    """

    table: str
    widths: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that a layout needs.

    Attributes:
      name: with prefix.
      families: versions that garbage collection keeps of each cell, by family.
      holds_points: whether pipelines write points into it.
      is_index: whether pipelines write the rows of `Layout.index` into it.
      same_keys: whether its rows have the keys of data rows.
      cell_time: what its cell timestamps are, in words: that from which an age counts. Empty where a
        maximum age would delete what is in use, as names and index entries.
    """

    name: str
    families: Mapping[str, int]
    holds_points: bool
    is_index: bool = False
    same_keys: bool = False
    cell_time: str = dataclasses.field(default="", compare=False)


ARRIVAL = "the arrival of the data (modification time of its file, publish time of its message)"
"""The `cell_time` of tables whose cells have the arrival of their points as timestamp."""


class Piece(NamedTuple):
    """The points of one batch in one row, packed: opaque to everything but the layout."""

    table: str
    key: bytes
    packed: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """What a batch became.

    Attributes:
      pieces: one for each row (and arrival time) that the batch touches.
      rejected: the points that the layout cannot hold.
      duplicates: points left out because a later one of the batch has the same instant.
    """

    pieces: Sequence[Piece]
    rejected: Sequence[Rejected]
    duplicates: int


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """The rows that can hold the answer to a query.

    Attributes:
      table: the table to read.
      ranges: half-open ranges [start, end) of row keys, ascending; an empty end is that of the table.
      key_pattern: RE2 over the raw bytes of the row key that every wanted row matches; or None.
      columns: what is wanted of each row; None for everything.
      keys_only: give every cell an empty value, which saves the transfer.
      versions: of each cell, the newest so many.
    """

    table: str
    ranges: Sequence[tuple[bytes, bytes]]
    key_pattern: bytes | None = None
    columns: ColumnRange | None = None
    keys_only: bool = False
    versions: int = 1


class ColumnRange(NamedTuple):
    """The columns of one family from `start` on and before `end`; an empty end is that of the family."""

    family: str
    start: bytes
    end: bytes


class Reader(Protocol):
    """What a layout reads with: newest versions of cells only."""

    def scan(self, scan: Scan) -> Iterable[Row]:
        """The rows of a scan, ascending by key within each of its ranges."""

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """Those of these rows that exist, by key."""


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What a query wants.

    Attributes:
      metric: None for every metric.
      tags: for each tag key that a series must have, the values it may have; empty for any.
      start_ms, end_ms: first and last time wanted, in ms, both inclusive.
    """

    metric: str | None
    tags: Mapping[str, frozenset[str]]
    start_ms: int
    end_ms: int

    def takes(self, series: Series) -> bool:
        """Whether a series is wanted."""
        if self.metric is not None and series.metric != self.metric:
            return False
        tags = dict(series.tags)
        return all(key in tags and (not values or tags[key] in values) for key, values in self.tags.items())


class UnknownNameError(LookupError):
    """A metric, tag key or tag value that the tables do not know."""


class Selected(NamedTuple):
    """A row that a query wants, and its series."""

    row: Row
    series: Series


@dataclasses.dataclass(frozen=True, slots=True)
class Decoded:
    """A row read back.

    Attributes:
      batch: its points, one per instant, ascending in time; arrivals are the cell timestamps.
      damage: what of the row could not be read, in words; empty if all could.
      skipped: cells that hold no points (annotations, histograms).
    """

    batch: PointBatch
    damage: Sequence[str]
    skipped: int


@dataclasses.dataclass(frozen=True, slots=True)
class DecodedRows:
    """Several rows read back.

    Attributes:
      batch: their points; those of a row one per instant, ascending in time.
      damage: rows, and what of each could not be read, in words.
      skipped: cells that hold no points (annotations, histograms).
      outside: numbers of the rows, as they were given, with points outside of the time that a row is for;
        no writer makes such rows, and a reader that relies on their order has to leave them out.
    """

    batch: PointBatch
    damage: Sequence[tuple[Row, str]]
    skipped: int
    outside: Sequence[int] = ()

    def within(self, start_ms: int, end_ms: int) -> DecodedRows:
        """The same with the points in [start_ms, end_ms) only."""
        times_ms = self.batch.times_ms
        inside = (times_ms >= start_ms) & (times_ms < end_ms)
        if inside.all():
            return self
        return dataclasses.replace(self, batch=self.batch.take(np.flatnonzero(inside)))


class Severity(str, enum.Enum):
    """How bad a finding is."""

    NOTE = "note"
    DAMAGE = "damage"


class Finding(NamedTuple):
    """Something about a row that an operator should know."""

    severity: Severity
    table: str
    key: bytes
    text: str


class RollupNames(Protocol):
    """How a layout without rollup tables of its own names rollups: as ordinary series, in other tables.

    Attributes:
      integers: whether whole numbers are stored as such; else all are floats.
    """

    integers: bool

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        """The series that holds an aggregator's rollups of a series.

        Raises:
          RefusedError: the series has a tag of that name already.
        """

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        """The series and the aggregator whose rollups a stored series holds; None if it holds none."""


class Layout(abc.ABC):
    """One stored layout, with its options. Instances are immutable and can be pickled.

    Attributes:
      rollup_names: how its rollups are named where they are ordinary series; None if they are not.
    """

    name: str
    rollup_names: RollupNames | None = None

    @property
    @abc.abstractmethod
    def packings(self) -> Sequence[Packing]:
        """How it can lay points into cells with these options, the usual one for files first."""

    @property
    def packing_limit(self) -> str:
        """Why there are no other packings, in words, where it is for these options; empty if it is not."""
        return ""

    @property
    def read_only(self) -> str | None:
        """Why its tables cannot be written with these options, and what to do; None if they can."""
        return None

    @classmethod
    @abc.abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> Layout:
        """The layout with those of the options that are its own.

        Raises:
          ValueError: a value is out of its range; the message names the option.
        """

    @abc.abstractmethod
    def tables(self) -> Sequence[TableSpec]:
        """The tables it needs, data tables first."""

    @property
    @abc.abstractmethod
    def uids(self) -> UidSpec | None:
        """Where names have UIDs; None for a layout that stores names as they are."""

    @abc.abstractmethod
    def refuse(self, series: Series) -> RefusedError | None:
        """Why the layout cannot hold a series, or None if it can."""

    @abc.abstractmethod
    def names(self, series: Series) -> Sequence[Name]:
        """The names of a series that are stored as UIDs; none in a layout without UIDs."""

    @abc.abstractmethod
    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        """What the row keys of a series are made from; worth remembering, for it costs.

        Args:
          series: one that `refuse` does not refuse.
          uids: the UID of each of its names.
        """

    @abc.abstractmethod
    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        """The rows of a batch.

        Args:
          keys: the key of each of the batch's series; None where none of its points is in the batch.
        """

    @abc.abstractmethod
    def pack(self, table: str, key: bytes, packed: Iterable[bytes], packing: Packing) -> Row:
        """One row mutation out of the pieces of one row, in any order: the same in every order."""

    @abc.abstractmethod
    def select(self, wanted: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """The data rows that can hold wanted points, and findings about rows that cannot be read.

        A row may hold points outside of the time range too. The rows of one series come in the order
        of time within each range of keys; rows of several series may be mixed.

        Raises:
          UnknownNameError: a metric or a tag is in no index, where the layout has one that tells.
        """

    def index_entries(self, batch: PointBatch) -> Sequence[tuple[int, int]]:
        """(number of a series in the batch, base time in ms): the index entries that its points need.

        A worker asks `index` for each that it has not seen lately. Here there are none.
        """
        return ()

    def index(self, series: Series, base_ms: int) -> Sequence[Row]:
        """The rows of the index tables for a series that has points in the row with this base time.

        `base_ms` is an entry of `index_entries`.

        The same cells, timestamps included, however often and in whatever order they are written.
        """
        return ()

    def entry_of(self, key: bytes) -> tuple[Series, int]:
        """The series and the index entry of a data row, out of its key alone: so an index can be rebuilt.

        Raises:
          ValueError: the key does not tell; always, in a layout without index tables.
        """
        raise ValueError(f"layout {self.name} has no index tables")

    def cut_at(self, key: bytes) -> bytes:
        """Where the data table may be cut, at or before a key, so that several workers read it.

        Rows that can hold the same instant of one series stay together.
        """
        return key

    def several_rows(self, wanted: Selection, reader: Reader) -> frozenset[Series]:
        """The series of which an instant may stand in several wanted rows; of the two points the one that
        arrived last counts, and of one arrival the one that is read last."""
        return frozenset()

    @abc.abstractmethod
    def hours(self, rows: Sequence[Row]) -> set[tuple[bytes, int]]:
        """The hours that have points in rows as `pack` makes them.

        Returns:
          (metric as it stands in row keys: its UID, or its name; start of an hour from 1970 on, in s).
        """

    @abc.abstractmethod
    def audit(self, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
        """Everything in the tables that is not as it should be.

        Args:
          read: gives all rows of a table, newest versions only.
        """

    def decode_rows(self, found: Sequence[Selected]) -> DecodedRows:
        """The points of several data rows; as `decode`, and never slower."""
        return join_decoded(found, [self.decode(*one) for one in found])

    @abc.abstractmethod
    def decode(self, row: Row, series: Series) -> Decoded:
        """The points of a data row; never raises for damaged cells.

        In a layout that does not know in which unit a time was given, whole seconds were given as such.
        """


def hours_of(
    metrics: Sequence[str], bases_ms: Sequence[int], counts: Sequence[int], offsets_ms: Int64s
) -> set[tuple[bytes, int]]:
    """`Layout.hours` of n points of m rows.

    Args:
      metrics, bases_ms, counts: of each row; how many points it has.
      offsets_ms: int64[n], of the points since the base of their row.
    """
    known: dict[str, int] = {}
    numbers = np.array([known.setdefault(one, len(known)) for one in metrics], np.int64)
    times_ms = np.repeat(np.array(bases_ms, np.int64), counts) + offsets_ms
    pairs = np.stack([np.repeat(numbers, counts), times_ms // 3_600_000])[:, times_ms >= 0]
    names = [one.encode() for one in known]
    return {(names[metric], hour * 3600) for metric, hour in np.unique(pairs, axis=1).T.tolist()}


def join_decoded(found: Sequence[Selected], decoded: Sequence[Decoded]) -> DecodedRows:
    """Rows that were read one by one as several."""
    damage = [(one.row, text) for one, content in zip(found, decoded, strict=True) for text in content.damage]
    batches = [content.batch for content in decoded if len(content.batch)]
    batch = join(batches) if batches else PointBatch.of([], 0)
    return DecodedRows(batch, damage, sum(content.skipped for content in decoded))
