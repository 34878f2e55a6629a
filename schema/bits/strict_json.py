"""JSON read without loss: numbers keep their digits, and duplicate keys are errors."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_BLANK_BEFORE_COLON = re.compile(r'"[ \t\r\n]+:')


class DuplicateKeyError(ValueError):
    """An object has a duplicate key."""


def check_keys(text: str) -> None:
    """Refuses duplicate keys, also in nested objects.

    Raises:
      DuplicateKeyError: an object has one.
      ValueError: the text is not JSON.
    """
    json.loads(text, object_pairs_hook=_distinct, parse_int=len, parse_float=len)


def members_written(text: str) -> int | None:
    """An upper bound for the members of all objects of a text, by its colons; None if unknown."""
    return None if _BLANK_BEFORE_COLON.search(text) else text.count('":')


def scalar(raw: msgspec.Raw) -> tuple[str | None, bool]:
    """(text, is a string?) of a JSON value: strings decoded, other values as written; None for null."""
    written = str(bytes(raw).strip(), "utf-8")
    if written.startswith('"'):
        text: str = msgspec.json.decode(raw)
        return text, True
    return (None if written == "null" else written), False


def _distinct(pairs: list[tuple[str, Any]]) -> int:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        repeated = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise DuplicateKeyError(f"duplicate key {repeated!r}")
    return 0
