"""The writing half of the contract of a layout: points in columns to row mutations."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.bits.arrays import Floats
from timebeam.schema.bits.reasons import RefusedError
from timebeam.schema.core.cell_fragments import CellColumns
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.reading import DecodedRows
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import Row, StoredLayout, UidSpec


class Packing(enum.StrEnum):
    """How the points of one row become cells."""

    POINTS = "points"
    COMPACTED = "compacted"
    APPEND = "append"


class SeriesKey(NamedTuple):
    """What the row keys of one series share: the bytes before and after the time."""

    head: bytes
    tail: bytes


class Name(NamedTuple):
    """A name that a layout stores as a UID, and its kind (`metrics`, `tagk`, `tagv`)."""

    kind: str
    text: str


class RowFragment(NamedTuple):
    """The points of one batch in one row, packed: opaque to all but the layout."""

    table: str
    key: bytes
    packed: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded batch.

    Attributes:
      fragments: of the rows that the batch touches.
      rejected: the points that the layout cannot hold.
      duplicates: number of points dropped since a later point of the batch has the same instant.
    """

    fragments: Sequence[RowFragment]
    rejected: Sequence[Rejected]
    duplicates: int


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
    def encode(
        self, batch: PointBatch, keys: Sequence[SeriesKey | None], packing: Packing | None = None
    ) -> Encoded:
        """Encodes a batch into fragments of rows.

        Args:
          keys: the key of each series of the batch; None for a series without points in it.
          packing: how the fragments are to be packed; None for the first of `packings`.
        """

    @abc.abstractmethod
    def packed_cells(self, rows: Sequence[tuple[bytes, Sequence[bytes]]], packing: Packing) -> CellColumns:
        """The cells of rows: (row key, its fragments, in any order) for each row."""

    def packs_together(self, packed: Sequence[bytes], packing: Packing) -> bool:
        """Whether the fragments of a row are packed with those of other rows, since it has many cells."""
        return packing is Packing.POINTS

    def pack(self, table: str, key: bytes, packed: Sequence[bytes], packing: Packing) -> Row:
        """One row mutation from the fragments of one row, whatever their order."""
        return Row(table, key, self.packed_cells([(key, packed)], packing).cells(0))

    def stored_floats(self, floats: Floats) -> Floats:
        """float64[n]: floats as the layout stores them; unchanged if it stores 8 bytes."""
        return floats


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
