"""Texts as Java has them: String.hashCode over UTF-16, and the JSON that Jackson 2.9 writes to bytes."""

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
      UnicodeEncodeError: the text has half a surrogate pair.
    """
    raw = text.encode("utf-16-be")
    h = 0
    for offset in range(0, len(raw), 2):
        h = (31 * h + (raw[offset] << 8 | raw[offset + 1])) & 0xFFFFFFFF
    return h.to_bytes(4, "big")


def json_text(text: str) -> str:
    """A text as Jackson's UTF8JsonGenerator writes it, quotes included.

    Control characters are short escapes or \\u00XX, and what is beyond U+FFFF is two escapes of its
    UTF-16 units, with capital hex digits; all else stands as it is.
    """
    return '"' + _SPECIAL.sub(_escaped, text) + '"'


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    raw = character.encode("utf-16-be").hex().upper()
    return "".join(f"\\u{raw[offset : offset + 4]}" for offset in range(0, len(raw), 4))
