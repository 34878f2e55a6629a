"""Strings, numbers and JSON as Java and Jackson 2.9 write them, since TSDs update by comparing exact bytes.

Format: docs/spec/opentsdb.md §5.3. JSON has no spaces and a fixed order of keys; `NaN` and infinities are
strings.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from timebeam.schema.bits.reasons import Reason, RejectedError

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

    >>> hash_code("ROOT").hex(), int.from_bytes(hash_code("ROOT"), "big")
    ('002678e2', 2521314)

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


def json_object(pairs: Iterable[tuple[str, str]]) -> str:
    """An object of strings, in the order of the pairs."""
    return "{" + ",".join(f"{json_text(key)}:{json_text(text)}" for key, text in pairs) + "}"


Value = str | int | float | Mapping[str, str] | None


def to_bytes(members: Iterable[tuple[str, Value]]) -> bytes:
    """An object with these members, in their order.

    Raises:
      RejectedError: a string has half a surrogate pair, which a TSD would store as `?`.
    """
    text = "{" + ",".join(f"{json_text(name)}:{_value(value)}" for name, value in members) + "}"
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RejectedError(
            Reason.BAD_ENCODING, f"half a surrogate pair cannot be stored: {error.object[:80]!a}"
        ) from error


def _value(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return json_text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return java_double(value)
    return json_object(value.items())


def java_double(number: float) -> str:
    """A double as java.lang.Double.toString writes it; in quotes if not finite.

    It has the fewest digits that identify it; Java before 19 writes more digits for some numbers.
    """
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    sign = "-" if math.copysign(1, number) < 0 else ""
    if number == 0:
        return sign + "0.0"
    digits, _, exponent = f"{abs(number)!r}".lower().partition("e")
    integer, _, fraction = digits.partition(".")
    point = len(integer) + int(exponent or 0)  # the decimal point is before this digit
    figures = (integer + fraction).lstrip("0")
    point -= len(integer + fraction) - len(figures)
    figures = figures.rstrip("0") or "0"
    if 1e-3 <= abs(number) < 1e7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{figures}"
        figures = figures.ljust(point + 1, "0")
        return f"{sign}{figures[:point]}.{figures[point:]}"
    return f"{sign}{figures[0]}.{figures[1:] or '0'}E{point - 1}"


class StoredJson:
    """The members of a stored object; missing ones and null have the default, unknown ones are ignored.

    Raises:
      ValueError: the bytes are not a JSON object; from the getters: a member has another type.
    """

    def __init__(self, raw: bytes) -> None:
        try:
            members = json.loads(raw.decode())
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from error
        if not isinstance(members, dict):
            raise ValueError("not a JSON object")
        self._members: dict[str, Any] = members

    def text(self, name: str) -> str:
        """A string; empty by default."""
        value = self._members.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise ValueError(f"{name} is not a string: {value!r}")
        return value

    def integer(self, name: str) -> int:
        """A whole number; 0 by default."""
        value = self._members.get(name)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} is not a whole number: {value!r}")
        return value

    def number(self, name: str) -> float:
        """A number, or the string NaN or (-)Infinity; NaN by default."""
        value = self._members.get(name)
        if value is None:
            return math.nan
        if isinstance(value, bool) or not (isinstance(value, (int, float)) or value in _NOT_FINITE):
            raise ValueError(f"{name} is not a number: {value!r}")
        return float(value)

    def strings(self, name: str) -> dict[str, str] | None:
        """An object of strings, in its order; None by default."""
        value = self._members.get(name)
        if value is None:
            return None
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise ValueError(f"{name} is not an object of strings: {value!r}")
        return value


_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
