"""Metadata of one name, in the UID table (docs/spec/opentsdb.md §5.3; meta/UIDMeta of OpenTSDB 2.4.1).

| row | family | qualifier | value |
|---|---|---|---|
| UID | `name` | `metric_meta`, `tagk_meta`, `tagv_meta` | JSON |

The JSON holds neither UID nor name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from timebeam.schema.layouts.opentsdb import uid_table
from timebeam.schema.meta import storage_json

FAMILY = uid_table.NAME_FAMILY

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
          RefusedError: a string has half a surrogate pair.
        """
        return storage_json.to_bytes(
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
          ValueError: it is damaged, or belongs to another kind.
        """
        members = storage_json.StoredJson(raw)
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
