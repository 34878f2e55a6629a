"""What an encoder makes of a batch: keys of series, and packed fragments of rows."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import NamedTuple

from timebeam.schema.core.rejections import Rejected


class Packing(enum.StrEnum):
    """How the points of one row become cells."""

    POINTS = "points"
    COMPACTED = "compacted"
    APPEND = "append"


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
      duplicates: number of points dropped since a later point of the batch has the same time.
    """

    fragments: Sequence[RowFragment]
    rejected: Sequence[Rejected]
    duplicates: int

    def by_row(self) -> dict[tuple[str, bytes], list[bytes]]:
        """The packed fragments of each row, by (table, row key)."""
        rows: dict[tuple[str, bytes], list[bytes]] = {}
        for table, key, packed in self.fragments:
            rows.setdefault((table, key), []).append(packed)
        return rows


class SeriesSpan(NamedTuple):
    """The points of one row: the row key without its time, the first and last time in ms."""

    series: bytes
    first_ms: int
    last_ms: int
