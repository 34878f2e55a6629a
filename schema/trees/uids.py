"""Reads names and the custom fields of UID meta for rules (docs/spec/opentsdb.md §5.3)."""

from __future__ import annotations

import json

from timebeam.schema.layouts import Row
from timebeam.schema.layouts.opentsdb import uid_table
from timebeam.schema.meta.uid_meta import QUALIFIERS
from timebeam.schema.points import Reason, RefusedError
from timebeam.schema.trees.evaluate import Custom, Uid


def read_uid(row: Row | None, kind: str, uid: bytes) -> Uid | RefusedError:
    """The name and custom fields of a UID from its row, or why there are none."""
    name: str | None = None
    custom: Custom = {}
    for cell in row.cells if row else ():
        if cell.family != uid_table.NAME_FAMILY:
            continue
        if cell.qualifier == kind.encode():
            name = uid_table.name_text(cell.value)
        elif cell.qualifier == QUALIFIERS[kind]:
            try:
                custom = read_custom(cell.value)
            except ValueError as error:
                why = f"the UID meta of {kind} {uid.hex()} cannot be read: {error}"
                return RefusedError(Reason.BAD_SYNTAX, why)
    if name is None:
        return RefusedError(Reason.UNKNOWN_NAME, f"UID {uid.hex()} of kind {kind} has no name")
    return Uid(name, custom)


def read_custom(meta: bytes) -> Custom:
    """The custom fields of a UIDMeta JSON; numbers and booleans as strings, as in a TSD.

    Raises:
      ValueError: it is not such JSON.
    """
    document = json.loads(meta, parse_int=str, parse_float=str)
    custom = document.get("custom") if isinstance(document, dict) else ()
    if custom is None:
        return {}
    if not isinstance(custom, dict):
        raise ValueError("custom is not an object")
    fields: dict[str, str | None] = {}
    for key, value in custom.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        if not (value is None or isinstance(value, str)):
            raise ValueError(f"custom field {key!r} is not a string")
        fields[key] = value
    return fields
