"""Metadata of series and names: its JSON, and its rows (docs/spec/opentsdb.md §5.3 and §5.4).

meta/TSMeta and meta/UIDMeta of OpenTSDB 2.4.1.

| table | row | family | qualifier | value |
|---|---|---|---|---|
| meta | TSUID, without salt and time | `name` | `ts_meta` | JSON |
| meta | the same | `name` | `ts_ctr` | points seen, 8 bytes, signed; 1 if they are not counted |
| UID | UID | `name` | `metric_meta`, `tagk_meta`, `tagv_meta` | JSON, without UID and name |

A TSD shows the cell timestamp of `ts_ctr` as the time of the last point it received: here the arrival of
the newest point. The cells of new series are set only where none exist. The cell timestamp of new JSON is 1
ms, so that every later write of a TSD is newer, whatever the clocks; it has no other meaning.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from timebeam.schema.bits import java_text
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.series.series_patterns import Listed, SeriesQuery
from timebeam.schema.stores.opentsdb.keys import UidPair
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory

_AT_ONCE = 2_000
"""Rows whose names are looked up together."""


TABLE = "tsdb-meta"
FAMILY = "name"
DOCUMENT, COUNTER = b"ts_meta", b"ts_ctr"

_COUNTER_BYTES = 8


def meta_table(prefix: str) -> TableSpec:
    return TableSpec(prefix + TABLE, {FAMILY: 1}, holds_points=False)


@dataclasses.dataclass(frozen=True, slots=True)
class TsMeta:
    """The stored metadata of a series.

    Attributes:
      created: when, in seconds.
      custom: the user's own fields; a TSD stores them in the order of its java.util.HashMap.
      retention: how long the user wants to keep points; without effect.
      maximum, minimum: of the values, as set by the user; NaN if unknown.
    """

    tsuid: bytes
    created: int
    display_name: str = ""
    description: str = ""
    notes: str = ""
    custom: Mapping[str, str] | None = None
    units: str = ""
    data_type: str = ""
    retention: int = 0
    maximum: float = math.nan
    minimum: float = math.nan

    def to_bytes(self) -> bytes:
        """The stored bytes (TSMeta.getStorageJSON).

        Raises:
          RejectedError: a string has half a surrogate pair.
        """
        return java_text.to_bytes(self.members().items())

    def members(self) -> dict[str, Any]:
        """The members of the stored JSON, in its order."""
        return {
            "tsuid": self.tsuid.hex().upper(),
            "displayName": self.display_name,
            "description": self.description,
            "notes": self.notes,
            "created": self.created,
            "custom": None if self.custom is None else dict(self.custom),
            "units": self.units,
            "dataType": self.data_type,
            "retention": self.retention,
            "max": self.maximum,
            "min": self.minimum,
        }

    @classmethod
    def from_bytes(cls, tsuid: bytes, raw: bytes) -> TsMeta:
        """Reads the cell in the row of a TSUID, members in any order.

        Raises:
          ValueError: it is corrupt, or belongs to another series.
        """
        members = java_text.StoredJson(raw)
        text = members.text("tsuid")
        if text.upper() not in ("", tsuid.hex().upper()):
            raise ValueError(f"metadata of series {text} in the row of {tsuid.hex().upper()}")
        return cls(
            tsuid,
            members.integer("created"),
            members.text("displayName"),
            members.text("description"),
            members.text("notes"),
            members.strings("custom"),
            members.text("units"),
            members.text("dataType"),
            members.integer("retention"),
            members.number("max"),
            members.number("min"),
        )

    @property
    def is_edited(self) -> bool:
        """Whether a user has edited it since a TSD or an ingest created it."""
        return self.to_bytes() != TsMeta(self.tsuid, self.created).to_bytes()


def counter_bytes(points: int) -> bytes:
    """The value of `ts_ctr`.

    >>> counter_bytes(3).hex()
    '0000000000000003'
    """
    return points.to_bytes(_COUNTER_BYTES, "big", signed=True)


def counter_value(raw: bytes) -> int:
    """The number of points in a cell `ts_ctr`.

    Raises:
      ValueError: it does not have 8 bytes.
    """
    if len(raw) != _COUNTER_BYTES:
        raise ValueError(f"counter of {len(raw)} bytes instead of {_COUNTER_BYTES}")
    return int.from_bytes(raw, "big", signed=True)


_TYPES = {"metrics": "METRIC", "tagk": "TAGK", "tagv": "TAGV"}

QUALIFIERS = {kind: f"{name.lower()}_meta".encode() for kind, name in _TYPES.items()}
"""By the kind of names, as in the UID table."""

KINDS = {qualifier: kind for kind, qualifier in QUALIFIERS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class UidMeta:
    """The stored metadata of a name.

    Attributes:
      kind: `metrics`, `tagk` or `tagv`.
      created: when, in seconds.
      custom: the user's own fields; a TSD stores them in the order of its java.util.HashMap.
    """

    kind: str
    created: int
    display_name: str = ""
    description: str = ""
    notes: str = ""
    custom: Mapping[str, str] | None = None

    def to_bytes(self) -> bytes:
        """The stored bytes (UIDMeta.getStorageJSON).

        Raises:
          RejectedError: a string has half a surrogate pair.
        """
        return java_text.to_bytes(
            (
                ("type", _TYPES[self.kind]),
                ("displayName", self.display_name),
                ("description", self.description),
                ("notes", self.notes),
                ("created", self.created),
                ("custom", self.custom),
            )
        )

    @classmethod
    def from_bytes(cls, kind: str, raw: bytes) -> UidMeta:
        """Reads the cell of a kind, members in any order.

        Raises:
          ValueError: it is corrupt, or belongs to another kind.
        """
        members = java_text.StoredJson(raw)
        name = members.text("type")
        if name not in ("", _TYPES[kind]):
            raise ValueError(f"metadata of type {name} in the column of {_TYPES[kind]}")
        return cls(
            kind,
            members.integer("created"),
            members.text("displayName"),
            members.text("description"),
            members.text("notes"),
            members.strings("custom"),
        )


_DOCUMENT_MS = 1


class MetaMode(enum.StrEnum):
    """What an ingest writes for new series.

    TRACK is what a TSD writes with `tsd.core.meta.enable_tsuid_tracking`; FULL is what it writes with
    `enable_realtime_ts` and `enable_realtime_uid` as well.
    """

    OFF = "off"
    TRACK = "track"
    FULL = "full"


def series_row(
    table: str, tsuid: bytes, created_s: int, arrival_ms: int, *, points: int = 1, document: bool = True
) -> Row:
    """The row of a series in the meta table.

    Args:
      created_s: when it was first seen, in seconds.
      arrival_ms: when its newest point was stored.
      points: their number; 1 if they are not counted.
      document: write `ts_meta` beside `ts_ctr`.
    """
    cells = [Cell(FAMILY, COUNTER, arrival_ms, counter_bytes(points))]
    if document:
        raw = TsMeta(tsuid, created_s).to_bytes()
        cells.append(Cell(FAMILY, DOCUMENT, _DOCUMENT_MS, raw))
    return Row(table, tsuid, cells)


def uid_rows(table: str, names: Mapping[UidPair, int]) -> list[Row]:
    """The rows of the UID table with metadata of names; kinds with the same UID share a row.

    Args:
      names: when each name was first seen, in seconds.
    """
    cells: dict[bytes, list[Cell]] = {}
    for (kind, uid), created_s in names.items():
        raw = UidMeta(kind, created_s).to_bytes()
        cell = Cell(FAMILY, QUALIFIERS[kind], _DOCUMENT_MS, raw)
        cells.setdefault(uid, []).append(cell)
    return [Row(table, uid, uid_cells) for uid, uid_cells in cells.items()]


def listed(
    rows: Iterable[Row], names: UidDirectory, query: SeriesQuery
) -> Iterator[Listed | tuple[bytes, str]]:
    """The series of rows whose keys are TSUIDs; or (key, why) for a row that cannot be read.

    Args:
      rows: of the meta table, or rows without cells.
    """
    for batch in batched(rows, _AT_ONCE):
        yield from _listed(batch, names, query)


def _listed(
    rows: Sequence[Row], names: UidDirectory, query: SeriesQuery
) -> Iterator[Listed | tuple[bytes, str]]:
    series_of = names.series(row.key for row in rows)
    for row in rows:
        series = series_of[row.key]
        if isinstance(series, str):
            yield row.key, series
        elif query.takes(series):
            try:
                yield _with_meta(row, series)
            except ValueError as error:
                yield row.key, str(error)


def _with_meta(row: Row, series: Series) -> Listed:
    """A series with the metadata of its row; raises ValueError if a cell is corrupt."""
    cells = {cell.qualifier: cell.value for cell in row.cells if cell.family == FAMILY}
    document, counter = cells.get(DOCUMENT), cells.get(COUNTER)
    created_s = None if document is None else TsMeta.from_bytes(row.key, document).created
    times_ms = [cell.timestamp_ms for cell in row.cells if cell.qualifier != DOCUMENT]
    return Listed(
        series,
        row.key,
        created_s,
        None if counter is None else counter_value(counter),
        min(times_ms, default=None) if created_s is None else created_s * 1000,
    )
