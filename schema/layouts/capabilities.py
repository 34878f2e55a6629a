"""What some layouts can do and others cannot: a capability is a class that a layout derives from.

| capability | what it is for | layouts |
|---|---|---|
| `SeriesIndex` | index tables, rebuilt by `timebeam reindex` | heroic, heroic-readable, kairosdb |
| `RollupSeries` | rollups stored as ordinary series | heroic, heroic-readable, kairosdb |
| `RefusedRows` | rows that Bigtable refused, restored by `timebeam replay` | all |
| `HourMarks` | marks of changed hours for `timebeam rollup --touched` | all |
| `RollupTables` | rollup tables of OpenTSDB | opentsdb |
| `Annotations`, `Histograms` | cells beside the points of a row | opentsdb |
| `SeriesMeta`, `Trees` | meta data of series, and trees of them | opentsdb |
| `Compaction` | rows rewritten as one column | opentsdb |

`timebeam.schema.layouts.capability` looks one up; nothing else asks a layout for its name or class.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from timebeam.schema.layouts.base import Layout
from timebeam.schema.layouts.opentsdb.options import OpenTsdbOptions
from timebeam.schema.layouts.reading import Decoded, Finding, ReadableLayout, Reader, Selected
from timebeam.schema.layouts.tables import Row, StoredLayout, UidSpec
from timebeam.schema.layouts.writing import SeriesKey, WritableLayout
from timebeam.schema.points import Int64s, PointBatch, Series


class Capability(abc.ABC):
    """What some layouts can do.

    Attributes:
      noun: in a plural, or without an article: "layout NAME has no NOUN".
    """

    noun: ClassVar[str]


class SeriesIndex(Capability, ReadableLayout):
    """A layout with index tables: rows that say which series have points, and when."""

    noun = "index tables"

    @abc.abstractmethod
    def index_entries(self, batch: PointBatch) -> Sequence[tuple[int, int]]:
        """(number of a series in the batch, base time in ms): the index entries that its points need.

        A worker asks `index` for each that it has not seen lately.
        """

    @abc.abstractmethod
    def index(self, series: Series, base_ms: int) -> Sequence[Row]:
        """The rows of the index tables for a series that has points in the row with this base time.

        The same cells, timestamps included, however often and in whatever order they are written.

        Args:
          base_ms: an entry of `index_entries`.
        """

    @abc.abstractmethod
    def entry_of(self, key: bytes) -> tuple[Series, int]:
        """The series and the index entry of a data row, from its key alone: so an index can be rebuilt.

        Raises:
          ValueError: the key does not tell.
        """

    def key_error(self, key: bytes) -> str:
        """See `ReadableLayout.key_error`."""
        try:
            self.entry_of(key)
        except ValueError as error:
            return str(error)
        return ""


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


class RollupSeries(Capability, Layout):
    """A layout whose rollups are ordinary series.

    Attributes:
      rollup_names: how they are named.
    """

    noun = "rollups as series"
    rollup_names: RollupNames


class Restored(NamedTuple):
    """A row mutation that was refused, taken apart to be stored again.

    Attributes:
      points: its points, to be encoded again.
      rest: its other cells, to be written as they are; no cells if there are none.
    """

    points: PointBatch
    rest: Row


class RefusedRows(Capability, StoredLayout):
    """A layout that takes its own row mutations apart, so that refused ones are replayed."""

    noun = "restore of refused rows"

    @abc.abstractmethod
    def restore(self, row: Row, reader: Reader) -> Restored:
        """The content of a row mutation from an untrusted source: its table, key and cells are checked.

        Raises:
          ValueError: this layout, with these options, writes no such row.
        """


class HourMarks(Capability, StoredLayout):
    """A layout that tells from a row mutation which hours change."""

    noun = "marks of changed hours"

    @abc.abstractmethod
    def hours(self, rows: Sequence[Row]) -> set[tuple[bytes, int]]:
        """The hours that have points in rows as `pack` makes them.

        Returns:
          (metric as it is in row keys: its UID, or its name; start of an hour since 1970, in s).
        """


class UidTables(Capability, Layout):
    """A layout with OpenTSDB's two tables: rows of an hour with UIDs in their keys, and the UIDs of names.

    Attributes:
      options: they say what is at which place of a row key.
    """

    noun = "UID tables"
    options: OpenTsdbOptions

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
        """As `select`, of one or more metrics by their UIDs; first and last time in ms, both inclusive."""

    @abc.abstractmethod
    def metric_uids(self, reader: Reader) -> dict[str, bytes]:
        """The UID of every metric that has one, by name, sorted."""


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
    """A layout with a table of meta data of series, and meta data of names in its UID table.

    Format: docs/spec/opentsdb.md §5.
    """

    noun = "meta data"


class Trees(UidTables):
    """A layout with a table of trees, which sort series by rules (docs/spec/opentsdb.md §6)."""

    noun = "trees"


class Compaction(UidTables):
    """A layout whose rows can be rewritten as one column (docs/spec/opentsdb.md §2)."""

    noun = "compaction"


def restored_points(layout: WritableLayout, row: Row, decoded: Decoded, key: SeriesKey) -> PointBatch:
    """The points of a row that was read back, if this layout writes them into that very row.

    Raises:
      ValueError: it does not.
    """
    if decoded.damage:
        raise ValueError(decoded.damage[0])
    batch = decoded.batch
    for series in batch.series if len(batch) else ():
        refusal = layout.refuse(series)
        if refusal is not None:
            raise refusal
    encoded = layout.encode(batch, [key])
    if encoded.rejected:
        raise ValueError(encoded.rejected[0].message)
    if any((piece.table, piece.key) != (row.table, row.key) for piece in encoded.pieces):
        raise ValueError("its points belong into another row")
    return batch


def hours_of(
    metrics: Sequence[str], bases_ms: Sequence[int], counts: Sequence[int], offsets_ms: Int64s
) -> set[tuple[bytes, int]]:
    """`HourMarks.hours` of n points of m rows.

    Args:
      metrics, bases_ms, counts: of each row; how many points it has.
      offsets_ms: int64[n], of the points since the base of their row.
    """
    numbers: dict[str, int] = {}
    indexes = np.array([numbers.setdefault(metric, len(numbers)) for metric in metrics], np.int64)
    times_ms = np.repeat(np.array(bases_ms, np.int64), counts) + offsets_ms
    pairs = np.stack([np.repeat(indexes, counts), times_ms // 3_600_000])[:, times_ms >= 0]
    names = [metric.encode() for metric in numbers]
    return {(names[metric], hour * 3600) for metric, hour in np.unique(pairs, axis=1).T.tolist()}
