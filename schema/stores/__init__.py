"""Stored layouts by name: points in columns to rows and cells, and back; what each layout can do."""

from __future__ import annotations

from typing import TypeVar

from timebeam.schema.core.capabilities import (
    Annotations,
    Archive,
    Capability,
    Compaction,
    Histograms,
    HourMarks,
    Layout,
    RefusedRows,
    Replacing,
    Restored,
    RollupNames,
    RollupSeries,
    RollupTables,
    SeriesIndex,
    SeriesMeta,
    SeriesSpan,
    Trees,
    UidTables,
)
from timebeam.schema.core.reading import (
    Archived,
    ColumnRange,
    DecodedRows,
    Finding,
    ReadableLayout,
    Reader,
    Scan,
    Selected,
    Selection,
    Severity,
    UnknownNameError,
)
from timebeam.schema.core.rows import Cell, Deletion, Row, StoredLayout, TableSpec, UidSpec
from timebeam.schema.core.writing import Encoded, Name, Packing, RowFragment, SeriesKey, WritableLayout
from timebeam.schema.stores.heroic.layout import Heroic, HeroicReadable
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.schema.stores.opentsdb.layout import OpenTsdb

LAYOUTS: dict[str, type[Layout]] = {cls.name: cls for cls in (OpenTsdb, Heroic, HeroicReadable, KairosDb)}

__all__ = [
    "LAYOUTS",
    "Annotations",
    "Archive",
    "Archived",
    "Capability",
    "Cell",
    "ColumnRange",
    "Compaction",
    "DecodedRows",
    "Deletion",
    "Encoded",
    "Finding",
    "Histograms",
    "HourMarks",
    "Layout",
    "MissingCapabilityError",
    "Name",
    "Packing",
    "ReadableLayout",
    "Reader",
    "RefusedRows",
    "Replacing",
    "Restored",
    "RollupNames",
    "RollupSeries",
    "RollupTables",
    "Row",
    "RowFragment",
    "Scan",
    "Selected",
    "Selection",
    "SeriesIndex",
    "SeriesKey",
    "SeriesMeta",
    "SeriesSpan",
    "Severity",
    "StoredLayout",
    "TableSpec",
    "Trees",
    "UidSpec",
    "UidTables",
    "UnknownNameError",
    "WritableLayout",
    "capability",
    "find_capability",
]

C = TypeVar("C", bound=Capability)


class MissingCapabilityError(ValueError):
    """A layout lacks a capability.

    Args:
      layout: its name.
      capability: what it lacks.
    """

    def __init__(self, layout: str, capability: type[Capability]) -> None:
        able = [name for name, cls in LAYOUTS.items() if issubclass(cls, capability)]
        names = " and ".join([", ".join(able[:-1]), able[-1]] if len(able) > 1 else able)
        hint = f"; {names} {'have' if len(able) > 1 else 'has'}" if able else ""
        super().__init__(f"layout {layout} has no {capability.noun}{hint}")


def capability(layout: StoredLayout, kind: type[C]) -> C:
    """The layout, typed as one with the capability.

    Raises:
      MissingCapabilityError: it lacks it.
    """
    if not isinstance(layout, kind):
        raise MissingCapabilityError(layout.name, kind)
    return layout


def find_capability(layout: StoredLayout, kind: type[C]) -> C | None:
    """The layout, typed as one with the capability; None if it lacks it."""
    return layout if isinstance(layout, kind) else None
