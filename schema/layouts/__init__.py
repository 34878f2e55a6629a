"""Stored layouts by name: points in columns to rows and cells, and back."""

from __future__ import annotations

from schema.layouts.base import (
    Cell,
    ColumnRange,
    Decoded,
    DecodedRows,
    Deletion,
    Encoded,
    Finding,
    Layout,
    Name,
    Packing,
    Piece,
    Reader,
    RollupNames,
    Row,
    Scan,
    Selected,
    Selection,
    SeriesKey,
    Severity,
    TableSpec,
    UidSpec,
    UnknownNameError,
)
from schema.layouts.heroic.layout import Heroic, HeroicReadable
from schema.layouts.kairosdb.layout import KairosDb
from schema.layouts.opentsdb.layout import OpenTsdb

LAYOUTS: dict[str, type[Layout]] = {cls.name: cls for cls in (OpenTsdb, Heroic, HeroicReadable, KairosDb)}

__all__ = [
    "LAYOUTS",
    "Cell",
    "ColumnRange",
    "Decoded",
    "DecodedRows",
    "Deletion",
    "Encoded",
    "Finding",
    "Layout",
    "Name",
    "Packing",
    "Piece",
    "Reader",
    "RollupNames",
    "Row",
    "Scan",
    "Selected",
    "Selection",
    "SeriesKey",
    "Severity",
    "TableSpec",
    "UidSpec",
    "UnknownNameError",
]
