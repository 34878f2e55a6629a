"""The contract of a store: points in columns to rows and cells of Bigtable, and back.

A store is a stored layout of series with its options; it knows nothing of Beam or the network. To add one: a
package in `timebeam.schema.stores`, a line in the registry there, its variants in the tests of all stores;
see CONTRIBUTING.

- A write calls `reject`, `uids.names`, `series_key` and `encode`, groups by row, and calls `cells`.
- A read calls `select`, which scans tables with a reader, then `decode_rows`.
- A deletion calls `select`, then `remove`; `timebeam check` calls `audit`; `timebeam replay` calls `restore`.

What only some stores have is an attribute: `index`, `rollup_names`, and the archive
(`timebeam.schema.archive`). What only OpenTSDB has takes an `OpenTsdb`: `timebeam.schema.stores.as_opentsdb`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Floats
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.declared_options import DeclaredOptions
from timebeam.schema.core.point_fragments import CellColumns, Encoded, Name, Packing, SlotPoints, UidSpec
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion
from timebeam.schema.core.rows import Row, TableSpec
from timebeam.schema.core.selection import (
    DecodedRows,
    Finding,
    Reader,
    RollupNames,
    Selected,
    Selection,
    SeriesIndex,
)


class Restored(NamedTuple):
    """A rejected row mutation, split so that it can be stored again.

    Attributes:
      points: to be encoded again.
      rest: the other cells, to be written as they are; without cells if there are none.
    """

    points: PointBatch
    rest: Row


class WriteRules(NamedTuple):
    """What a store with its options takes from those who write to it.

    Attributes:
      packings: those that the options allow, the default for files first.
      packing_limit: why the options allow only one packing; empty if they allow all.
      read_only: why the options do not allow writing, and what to do; None if they do.
      takes_resources: whether series may have resources.
      narrows_floats: whether floats are rounded to 4 bytes where these hold them; see `stored_floats`.
      marked_since_s: all writers mark the hours of points from this time on, in s; None if some may not.
      append_qualifier: of the column to which packing `append` appends.
    """

    packings: Sequence[Packing] = (Packing.POINTS,)
    packing_limit: str = ""
    read_only: str | None = None
    takes_resources: bool = False
    narrows_floats: bool = False
    marked_since_s: int | None = None
    append_qualifier: bytes = b""

    def stored_floats(self, floats: Floats) -> Floats:
        """float64[n]: floats as the store keeps them.

        >>> WriteRules(narrows_floats=True).stored_floats(np.array([0.1, 1e300])).tolist()
        [0.10000000149011612, 1e+300]
        """
        if not self.narrows_floats:
            return floats
        with np.errstate(over="ignore"):
            narrow = floats.astype(np.float32)
        return np.where(np.isfinite(narrow), narrow.astype(np.float64), floats)


class ReadableStore(abc.ABC):
    """A store that points can be read from: by queries, copies, checks and rollups.

    Instances are immutable and can be pickled.

    Attributes:
      name: its value of the option --layout.
      index: its index tables; None if it has none.
    """

    name: str

    @abc.abstractmethod
    def tables(self) -> Sequence[TableSpec]:
        """The tables it needs, data tables first."""

    @abc.abstractmethod
    def select(self, selection: Selection, reader: Reader) -> Iterator[Selected | Finding]:
        """The data rows that can hold selected points, and findings about rows that cannot be read.

        A row may hold points outside of the time range too. The rows of one series come in the order
        of time within each range of keys; rows of several series may be mixed.

        Raises:
          UnknownNameError: a metric or tag is not in the index of a store that has one.
        """

    @abc.abstractmethod
    def decode_rows(self, rows: Sequence[Selected]) -> DecodedRows:
        """The points of data rows; never raises for corrupt cells.

        A store that does not keep the unit of a time reads whole seconds as seconds.
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

    @abc.abstractmethod
    def restore(self, row: Row, reader: Reader) -> Restored:
        """The content of a row mutation from an untrusted source, after checks of table, key and cells.

        Raises:
          ValueError: this store, with these options, writes no such row.
        """

    @property
    def index(self) -> SeriesIndex | None:
        return None

    def key_error(self, key: bytes) -> str:
        """Why no data row can have this key with these options; empty if one can."""
        if self.index is not None:
            try:
                self.index.entry_of(key)
            except ValueError as error:
                return str(error)
        return ""

    def full_scan(self, selection: Selection) -> str:
        """Why a selection reads all rows of a table, in words; empty if ranges of keys serve it."""
        return ""

    def cut_at(self, key: bytes) -> bytes:
        """The place, at or before a key, where workers may split the data table.

        Rows that can hold the same time of one series stay together, also those of index tables with the
        same keys.
        """
        return key

    def several_rows(self, selection: Selection, reader: Reader) -> frozenset[Series]:
        """The series that may have the same time in several selected rows.

        The latest arrival wins; within one arrival, the row that is read last.
        """
        return frozenset()


class Store(ReadableStore):
    """A store that points can be written to, too.

    Attributes:
      options_class: the class of its options, of a store of another package: it is called with an instance.
      rollup_names: how rollups are named that are ordinary series; None if they have tables of their own.
      writing: what it takes.
      uids: the UIDs of names; None for a store of names themselves.
    """

    options_class: ClassVar[type[DeclaredOptions]]
    rollup_names: ClassVar[RollupNames | None] = None

    @property
    def writing(self) -> WriteRules:
        return WriteRules()

    @property
    def uids(self) -> UidSpec | None:
        return None

    @abc.abstractmethod
    def reject(self, series: Series) -> RejectedError | None:
        """Why the store cannot hold a series, or None if it can."""

    @abc.abstractmethod
    def series_key(self, series: Series, uids: Mapping[Name, bytes]) -> SeriesKey:
        """The parts of the row keys of a series; callers cache it, since it is slow.

        Args:
          series: one for which `reject` gives None.
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

    @abc.abstractmethod
    def hours(
        self, keys: Sequence[bytes], counts: Sequence[int], qualifiers: bytes
    ) -> set[tuple[bytes, int]]:
        """The hours that have points in m rows as `pack_row` makes them.

        Args:
          keys, counts: the key of each row, and the number of its cells.
          qualifiers: of all cells, concatenated.

        Returns:
          (the metric as in row keys: UID or name; start of an hour in s since 1970).
        """


def pack_row(store: Store, table: str, key: bytes, packed: Sequence[bytes], packing: Packing) -> Row:
    """One row mutation from the fragments of one row, whatever their order."""
    return Row(table, key, store.cells([key], SlotPoints.of([packed]), packing).cells(0))
