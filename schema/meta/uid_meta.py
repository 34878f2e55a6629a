"""Meta data of one name, in the UID table (docs/spec/opentsdb.md §5.3; meta/UIDMeta of OpenTSDB 2.4.1).

| row | family | qualifier | value |
|---|---|---|---|
| UID | `name` | `metric_meta`, `tagk_meta`, `tagv_meta` | JSON |

Neither UID nor name stand in the JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from timebeam.schema.layouts.opentsdb import uid_table
from timebeam.schema.meta import storage_json

FAMILY = uid_table.NAME_FAMILY

_TYPES = {"metrics": "METRIC", "tagk": "TAGK", "tagv": "TAGV"}

QUALIFIERS = {kind: f"{name.lower()}_meta".encode() for kind, name in _TYPES.items()}
"""By kind of name, as the UID table calls it."""

KINDS = {qualifier: kind for kind, qualifier in QUALIFIERS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class UidMeta:
    """What is stored of a name.

    Attributes:
      kind: `metrics`, `tagk` or `tagv`.
      created: in seconds.
      custom: fields of the user's own; a TSD stores them in the order of its java.util.HashMap.
    """

    kind: str
    created: int
    display_name: str = ""
    description: str = ""
    notes: str = ""
    custom: Mapping[str, str] | None = None

    def to_bytes(self) -> bytes:
        """As it is stored (UIDMeta.getStorageJSON).

        Raises:
          RefusedError: a text is no Unicode.
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
          ValueError: it is damaged, or of another kind.
        """
        members = storage_json.Members(raw)
        name = members.text("type")
        if name not in ("", _TYPES[kind]):
            raise ValueError(f"meta data of type {name} in the column of {_TYPES[kind]}")
        return cls(
            kind,
            members.integer("created"),
            members.text("displayName"),
            members.text("description"),
            members.text("notes"),
            members.texts("custom"),
        )
