"""A single row read back, which layouts decode as a list of one."""

from __future__ import annotations

from typing import NamedTuple

from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import ArchiveRead, Selected


class DecodedRow(NamedTuple):
    """As `DecodedRows`, with what could not be read in words alone."""

    batch: PointBatch
    corruption: list[str]
    skipped: int


def decode_row(
    layout: ReadableStore, row: Row, series: Series, archived: ArchiveRead | None = None
) -> DecodedRow:
    """The points of a row."""
    decoded = layout.decode_rows([Selected(row, series, archived)])
    return DecodedRow(decoded.batch, [text for _, text in decoded.corruption], decoded.skipped)
