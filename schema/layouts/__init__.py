"""Stored layouts by name: points in columns to rows and cells, and back."""

from __future__ import annotations

from schema.layouts.base import (
    Cell,
    Decoded,
    Encoded,
    Finding,
    Layout,
    Name,
    Packing,
    Piece,
    Row,
    Scan,
    SeriesKey,
    Severity,
    TableSpec,
    UidSpec,
)
from schema.layouts.opentsdb.layout import OpenTsdb

LAYOUTS: dict[str, type[Layout]] = {OpenTsdb.name: OpenTsdb}

__all__ = [
    "LAYOUTS",
    "Cell",
    "Decoded",
    "Encoded",
    "Finding",
    "Layout",
    "Name",
    "Packing",
    "Piece",
    "Row",
    "Scan",
    "SeriesKey",
    "Severity",
    "TableSpec",
    "UidSpec",
]
