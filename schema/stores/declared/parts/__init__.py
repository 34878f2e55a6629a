"""The parts of row keys: a class for each kind, which a declaration names by its option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timebeam.schema.stores.declared.parts.digest_parts import Hash, Salt, Suffix
from timebeam.schema.stores.declared.parts.key_part import Const, Field, KeyFields, KeyPart
from timebeam.schema.stores.declared.parts.time_part import Time
from timebeam.schema.stores.declared.read_section import Location

KINDS: Sequence[type[KeyPart]] = (Const, Field, Time, Salt, Suffix, Hash)
"""All kinds; a section is of the first whose `kind` is one of its options."""


def parts_of(sections: Sequence[dict[str, Any]], place: Location) -> tuple[tuple[KeyPart, ...], KeyFields]:
    """The parts of the key of a layout, and the fields in them.

    Raises:
      ProblemError: one is wrong.
    """
    if not sections:
        raise place.problem("key", 'key lacks parts: list at least one, as key = [{ field = "NAME" }]')
    kinds = [_kind(section, place.within("key", number)) for number, section in enumerate(sections)]
    fields, key_parts = KeyFields(), dict[int, KeyPart]()
    for number in sorted(range(len(sections)), key=lambda number: kinds[number].refers):
        key_part = kinds[number].read(sections[number], place.within("key", number), fields)
        key_parts[number] = key_part
        if key_part.stored_field is not None:
            fields.named[key_part.stored_field] = key_part
    return tuple(key_parts[number] for number in range(len(sections))), fields


def _kind(section: dict[str, Any], place: Location) -> type[KeyPart]:
    for kind in KINDS:
        if kind.kind in section:
            return kind
    names = ", ".join(kind.kind for kind in KINDS)
    raise place.problem(None, f"a part of the key must have one of {names}")
