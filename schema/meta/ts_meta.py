"""Metadata of one series (docs/spec/opentsdb.md §5.4; meta/TSMeta of OpenTSDB 2.4.1).

| row | family | qualifier | value |
|---|---|---|---|
| TSUID, without salt and time | `name` | `ts_meta` | JSON |
| the same | `name` | `ts_ctr` | points seen, 8 bytes, signed; 1 if they are not counted |

A TSD shows the cell timestamp of `ts_ctr` as the time of the last point it received.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from timebeam.schema.layouts.tables import TableSpec
from timebeam.schema.meta import storage_json

TABLE = "tsdb-meta"
FAMILY = "name"
DOCUMENT, COUNTER = b"ts_meta", b"ts_ctr"

_COUNTER_BYTES = 8


def meta_table(prefix: str) -> TableSpec:
    """The meta table."""
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
          RefusedError: a string has half a surrogate pair.
        """
        return storage_json.to_bytes(
            (
                ("tsuid", self.tsuid.hex().upper()),
                ("displayName", self.display_name),
                ("description", self.description),
                ("notes", self.notes),
                ("created", self.created),
                ("custom", self.custom),
                ("units", self.units),
                ("dataType", self.data_type),
                ("retention", self.retention),
                ("max", self.maximum),
                ("min", self.minimum),
            )
        )

    @classmethod
    def from_bytes(cls, tsuid: bytes, raw: bytes) -> TsMeta:
        """Reads the cell in the row of a TSUID, members in any order.

        Raises:
          ValueError: it is damaged, or belongs to another series.
        """
        members = storage_json.StoredJson(raw)
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
    """The value of `ts_ctr`."""
    return points.to_bytes(_COUNTER_BYTES, "big", signed=True)


def counter_value(raw: bytes) -> int:
    """The number of points in a cell `ts_ctr`.

    Raises:
      ValueError: it does not have 8 bytes.
    """
    if len(raw) != _COUNTER_BYTES:
        raise ValueError(f"counter of {len(raw)} bytes instead of {_COUNTER_BYTES}")
    return int.from_bytes(raw, "big", signed=True)
