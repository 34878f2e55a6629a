"""The writing half of the contract of a layout: points in columns to row mutations."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.layouts.tables import Row, StoredLayout, UidSpec
from timebeam.schema.points import Floats, PointBatch, RefusedError, Rejected, Series


class Packing(enum.StrEnum):
    """How the points of one row are laid into cells."""

    POINTS = "points"
    COMPACTED = "compacted"
    APPEND = "append"


class SeriesKey(NamedTuple):
    """What the row keys of one series have in common: the bytes before and behind the time."""

    head: bytes
    tail: bytes


class Name(NamedTuple):
    """A name that a layout stores as a UID, and its kind (`metrics`, `tagk`, `tagv`)."""

    kind: str
    text: str


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


class WritableLayout(StoredLayout):
    """A layout that points can be written in.

    A write calls `refuse`, `names` (which get UIDs), `series_key`, `encode`, groups by row, calls `pack`.
    """

    @property
    @abc.abstractmethod
    def packings(self) -> Sequence[Packing]:
        """How it can lay points into cells with these options, the usual one for files first."""

    @property
    def packing_limit(self) -> str:
        """Why these options allow no other packing, in words; empty if they do."""
        return ""

    @property
    def read_only(self) -> str | None:
        """Why its tables cannot be written with these options, and what to do; None if they can."""
        return None

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
        """What the row keys of a series are made from; callers cache it, since it is slow.

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

    def stored_floats(self, floats: Floats) -> Floats:
        """float64[n]: what floats become in the cells of the layout; unchanged where it stores 8 bytes."""
        return floats
