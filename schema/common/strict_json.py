"""JSON read without losing anything: numbers keep their digits, and a key that stands twice is an error."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_BLANK_BEFORE_COLON = re.compile(r'"[ \t\r\n]+:')


class RepeatedKeyError(ValueError):
    """A key stands twice in one object."""


def check_keys(text: str) -> None:
    """Refuses objects, nested ones too, in which a key stands twice.

    Raises:
      RepeatedKeyError: one does.
      ValueError: the text is not JSON.
    """
    json.loads(text, object_pairs_hook=_distinct, parse_int=len, parse_float=len)


def members_written(text: str) -> int | None:
    """At most how many members the objects of a text have, by its colons; None if that cannot be said."""
    return None if _BLANK_BEFORE_COLON.search(text) else text.count('":')


def scalar(raw: msgspec.Raw) -> tuple[str | None, bool]:
    """(text, is a text?) of a JSON value: texts decoded, all else as it was written; None for null."""
    written = str(bytes(raw).strip(), "utf-8")
    if written.startswith('"'):
        text: str = msgspec.json.decode(raw)
        return text, True
    return (None if written == "null" else written), False


def _distinct(pairs: list[tuple[str, Any]]) -> int:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        repeated = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise RepeatedKeyError(f"the key {repeated!r} stands twice")
    return 0
