"""Strings as in Java: String.hashCode over UTF-16, and the JSON that Jackson 2.9 writes as bytes."""

from __future__ import annotations

import functools
import re

_SPECIAL = re.compile('["\\\\\x00-\x1f\U00010000-\U0010ffff]')
_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


@functools.lru_cache(maxsize=100_000)
def hash_code(text: str) -> bytes:
    """String.hashCode, 4 bytes: h = 31 * h + unit for each UTF-16 unit, cut to 32 bits.

    Raises:
      UnicodeEncodeError: the string has half a surrogate pair.
    """
    raw = text.encode("utf-16-be")
    h = 0
    for offset in range(0, len(raw), 2):
        h = (31 * h + (raw[offset] << 8 | raw[offset + 1])) & 0xFFFFFFFF
    return h.to_bytes(4, "big")


def json_text(text: str) -> str:
    """A string as Jackson's UTF8JsonGenerator writes it, with quotes.

    Control characters become short escapes or \\u00XX, characters above U+FFFF two escapes of their UTF-16
    units, with capital hex digits; all other characters stay.
    """
    return '"' + _SPECIAL.sub(_escaped, text) + '"'


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    raw = character.encode("utf-16-be").hex().upper()
    return "".join(f"\\u{raw[offset : offset + 4]}" for offset in range(0, len(raw), 4))
