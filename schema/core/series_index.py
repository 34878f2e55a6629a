"""What some stores have: index tables, and names of rollups that are ordinary series."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Protocol

from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Reader, Selected, Selection


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
