"""What is read of a layout: a selection of points, scans of tables, selected rows, decoded points.

And what some stores have: index tables of their series, and names of rollups that are ordinary series.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import difflib
import enum
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from timebeam.schema.core.batches import join
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row

_NEAR_AMONG = 2_000
"""Names with the same beginning that are compared with an unknown name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """The rows that can hold the answer to a query.

    Attributes:
      table: the table to read.
      ranges: half-open ranges [start, end) of row keys, ascending; an empty end is the end of the table.
      key_pattern: RE2 over the raw bytes of the row key that every selected row matches; or None.
      columns: the columns to read; None for all.
      keys_only: give every cell an empty value, which saves the transfer.
      versions: the number of versions to read of each cell, newest first.
    """

    table: str
    ranges: Sequence[tuple[bytes, bytes]]
    key_pattern: bytes | None = None
    columns: ColumnRange | None = None
    keys_only: bool = False
    versions: int = 1


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """The range [start, end) of all keys with a prefix; an empty end is the end of the table."""
    bare = prefix.rstrip(b"\xff")
    return prefix, bare[:-1] + bytes([bare[-1] + 1]) if bare else b""


class ColumnRange(NamedTuple):
    """Columns of one family, from `start` to before `end`; an empty end is the end of the family."""

    family: str
    start: bytes
    end: bytes


class Reader(Protocol):
    """Reads tables for a layout: newest versions of cells only."""

    def scan(self, scan: Scan) -> Iterable[Row]:
        """The rows of a scan, ascending by key within each of its ranges."""

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """The rows, of those with these keys, that exist; by key."""


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The points that a query reads.

    Attributes:
      metric: None for every metric.
      tags: for each tag key that a series must have, the values it may have; empty for any.
      start_ms, end_ms: first and last time, in ms, both inclusive.
      explicit_tags: whether a series may have no other tag keys than those of `tags`.
      tsuids: the only series, of one metric and in place of `tags`; for a layout with TSUIDs alone.
      reject_ambiguous: whether rows of two TSUIDs that both have the names of a series raise
        `AmbiguousNameError`; None: never.
    """

    metric: str | None
    tags: Mapping[str, frozenset[str]]
    start_ms: int
    end_ms: int
    explicit_tags: bool = False
    tsuids: frozenset[bytes] | None = None
    reject_ambiguous: Callable[[Series], bool] | None = None

    def takes(self, series: Series) -> bool:
        """Whether a series is selected."""
        if self.metric is not None and series.metric != self.metric:
            return False
        tags = dict(series.tags)
        if self.explicit_tags and tags.keys() != self.tags.keys():
            return False
        return all(key in tags and (not values or tags[key] in values) for key, values in self.tags.items())


class UnknownNameError(LookupError):
    """A metric, tag key or tag value that the tables do not know.

    Args:
      name: the unknown name.
      names_from: gives the stored names of its kind that begin with a string.
    """

    def __init__(
        self, message: str, name: str = "", names_from: Callable[[str], Iterable[str]] | None = None
    ) -> None:
        super().__init__(message)
        self._name, self._names_from = name, names_from

    def told(self) -> str:
        """The message, with the stored names that resemble the unknown one."""
        near = " or ".join(map(repr, self.near()))
        return f"{self.args[0]}; did you mean {near}?" if near else str(self.args[0])

    def near(self) -> list[str]:
        """Up to three stored names that resemble the unknown name, the closest first.

        Compared are names that begin with its first half or its first character, and the first names of all:
        at most 2,000 of each.
        """
        if self._names_from is None or not self._name:
            return []
        first = self._name[0]
        by_lower: dict[str, str] = {}
        for start in dict.fromkeys((self._name[: len(self._name) // 2], first, first.swapcase(), "")):
            with contextlib.suppress(UnicodeEncodeError):  # no name can begin so
                for name in itertools.islice(self._names_from(start), _NEAR_AMONG):
                    by_lower.setdefault(name.lower(), name)
        return [
            by_lower[name] for name in difflib.get_close_matches(self._name.lower(), by_lower, cutoff=0.7)
        ]


class AmbiguousNameError(ValueError):
    """The tables have two series of the same names, which no answer by names can keep apart."""

    @classmethod
    def of(cls, series: Series, tsuids: Collection[bytes]) -> AmbiguousNameError:
        """The error for two TSUIDs with the names of a series."""
        texts = " and ".join(tsuid.hex().upper() for tsuid in sorted(tsuids))
        return cls(
            f"{series} is two series, TSUIDs {texts}: two UIDs have one name, as `timebeam check` "
            "reports; query one by its TSUID, or make them one with `timebeam names merge`"
        )


class ArchiveRead(NamedTuple):
    """How a row of the archive is read.

    Attributes:
      late: rows of the data table in its span, which are decoded with it.
      points: how many points its cells have.
      period: [start, end) in ms of those of its points that are read with the late rows; None for all.
    """

    late: Sequence[Row] = ()
    points: int = 0
    period: tuple[int, int] | None = None

    @property
    def is_merged(self) -> bool:
        """Whether it is not decoded alone."""
        return bool(self.late) or self.period is not None


class Selected(NamedTuple):
    """A row that a query reads, and its series.

    Attributes:
      archived: of a row of the archive; None for a data row.
    """

    row: Row
    series: Series
    archived: ArchiveRead | None = None

    @property
    def size(self) -> int:
        """About the number of its points: a cell may hold many."""
        if self.archived is None:
            return _size(self.row.cells)
        return self.archived.points + _size([cell for row in self.archived.late for cell in row.cells])


def row_findings(row: Row, archived: ArchiveRead | None, text: str) -> Iterator[Finding]:
    """Why a row, and the late rows beside it, cannot be read."""
    for each in (row, *(archived.late if archived else ())):
        yield Finding(Severity.CORRUPT, each.table, each.key, text)


def _size(cells: Sequence[Cell]) -> int:
    """About the number of points in cells: one each, and more if the first is long."""
    return len(cells) + (len(cells[0].qualifier) + len(cells[0].value)) // 8 if cells else 0


@dataclasses.dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows read back.

    Attributes:
      batch: their points; those of a row one per time, ascending in time. Arrivals are the timestamps of
        the cells.
      corruption: (row, what of it could not be read, in words).
      skipped: cells that hold no points (annotations, histograms).
      outside: positions of rows with points outside of their row's time span. No writer makes such rows; a
        reader that relies on the order of points must leave them out.
    """

    batch: PointBatch
    corruption: Sequence[tuple[Row, str]]
    skipped: int
    outside: Sequence[int] = ()

    @classmethod
    def joined(cls, contents: Sequence[DecodedRows]) -> DecodedRows:
        """The content of rows that were decoded apart, without `outside`."""
        batches = [content.batch for content in contents if len(content.batch)]
        batch = join(batches) if len(batches) > 1 else batches[0] if batches else PointBatch.of([], 0)
        corruption = [entry for content in contents for entry in content.corruption]
        return cls(batch, corruption, sum(content.skipped for content in contents))

    def within(self, start_ms: int, end_ms: int) -> DecodedRows:
        """The same with only the points in [start_ms, end_ms)."""
        times_ms = self.batch.times_ms
        if not len(times_ms) or (times_ms.min() >= start_ms and times_ms.max() < end_ms):
            return self
        inside = (times_ms >= start_ms) & (times_ms < end_ms)
        return dataclasses.replace(self, batch=self.batch.take(np.flatnonzero(inside)))


class Severity(enum.StrEnum):
    """How bad a finding is."""

    NOTE = "note"
    CORRUPT = "corruption"


class Finding(NamedTuple):
    """Something about a row that an operator should know."""

    severity: Severity
    table: str
    key: bytes
    text: str


class SeriesIndex(abc.ABC):
    """The index tables of a store, whose rows say which series have points, and when."""

    @abc.abstractmethod
    def entries(self, batch: PointBatch) -> Sequence[tuple[int, int]]:
        """(number of a series in the batch, base time in ms) for each index entry that its points need.

        A worker calls `rows` for each entry that it has not seen lately.
        """

    @abc.abstractmethod
    def rows(self, series: Series, base_ms: int) -> Sequence[Row]:
        """The rows of the index tables for a series with points in the row of this base time.

        Always the same cells, timestamps included, so they may be written repeatedly and in any order.

        Args:
          base_ms: an entry of `entries`.
        """

    @abc.abstractmethod
    def entry_of(self, key: bytes) -> tuple[Series, int]:
        """The series and the index entry of a data row, from its key: this allows to rebuild an index.

        Raises:
          ValueError: the key does not hold them.
        """

    @abc.abstractmethod
    def keys(self, series: Series, base_ms: int) -> tuple[str, Sequence[bytes]]:
        """(index table, keys): one of these rows exists if the series has points of late.

        Args:
          base_ms: an entry of `entries`.
        """

    @abc.abstractmethod
    def series(self, metric: str | None, reader: Reader) -> Iterator[tuple[Series, int]]:
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


class RollupNames(Protocol):
    """How a store without rollup tables names rollups, which are ordinary series in other tables.

    Attributes:
      integers: whether whole numbers are stored as integers; else all numbers are floats.
    """

    integers: bool

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        """The series that holds an aggregator's rollups of a series.

        Raises:
          RejectedError: the series already has a tag with the key that rollups need.
        """

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        """(series, aggregator) of the rollups in a stored series; None if it holds no rollups."""
