"""JSON read without loss: the values of a line or document, one by one, also those before what is not JSON.

Numbers stay as they were written, and objects keep their members in order, duplicate keys included, so that
formats can refuse what a server would change silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from timebeam.schema.bits.reasons import Reason, RefusedError

_BLANKS = " \t\r\n"


class NumberText(str):
    """The text of a JSON number, as it was written."""

    __slots__ = ()


class JsonPairs(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in their order; a key may be duplicate."""

    __slots__ = ()


DECODER = json.JSONDecoder(
    object_pairs_hook=JsonPairs, parse_float=NumberText, parse_int=NumberText, parse_constant=NumberText
)
"""Reads JSON into `JsonPairs` and `NumberText`; NaN and infinities are numbers too, for formats to refuse."""


class Element(NamedTuple):
    """A value, or the refusal of some bytes, with its span.

    Attributes:
      start, end: in bytes of the text.
      value: as `DECODER` reads it, or a `RefusedError`.
      in_array: whether it is an element of an array; else it is the value of the line.
    """

    start: int
    end: int
    value: object
    in_array: bool


def elements(text: bytes, start: int, end: int, *, trailing_comma: bool = False) -> Iterator[Element]:
    """The value of a line or document, or the elements of its array.

    An array with each element on a line of its own may have any length: a comma after an element, and a line
    with a single bracket, belong to it.

    Args:
      start, end: the span of the line in the text, in bytes.
      trailing_comma: accept a comma before the end of an array.
    """
    raw = text[start:end]
    try:
        line = raw.decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start} of the record"
        yield Element(start, end, RefusedError(Reason.BAD_ENCODING, message), in_array=False)
        return
    is_ascii = len(line) == len(raw)
    characters, position = 0, start  # the end of the last element, in characters and in bytes
    for first, last, value, in_array in _elements(line, trailing_comma):
        element_start = position + (first - characters)  # blanks and marks only
        position = element_start + (last - first if is_ascii else len(line[first:last].encode()))
        characters = last
        yield Element(element_start, position, value, in_array)


def _elements(line: str, trailing_comma: bool) -> Iterator[tuple[int, int, object, bool]]:
    """The fields of `Element` for a line, with spans in characters."""
    if line.strip(_BLANKS) in ("[", "]"):
        return
    position = _skip_blanks(line, 0)
    in_array = line[position : position + 1] == "["
    if in_array:
        position = _skip_blanks(line, position + 1)
    is_end = in_array and line[position : position + 1] == "]"
    while not is_end:
        try:
            value, end = DECODER.raw_decode(line, position)
        except (json.JSONDecodeError, RecursionError) as error:
            yield position, len(line), RefusedError(Reason.BAD_SYNTAX, f"not JSON: {error}"), in_array
            return
        yield position, end, value, in_array
        position = _skip_blanks(line, end)
        mark = line[position : position + 1]
        if not in_array:
            position += mark == ","
            break
        if mark not in (",", "]"):
            refused = RefusedError(Reason.BAD_SYNTAX, "not JSON: expected , or ] in the array")
            yield position, len(line), refused, in_array
            return
        is_end = mark == "]"
        if not is_end:
            position = _skip_blanks(line, position + 1)
            is_end = trailing_comma and line[position : position + 1] == "]"
    position = _skip_blanks(line, position + in_array)
    if position < len(line):
        refused = RefusedError(Reason.BAD_SYNTAX, "surplus text after the JSON value")
        yield position, len(line), refused, in_array


def is_json(text: bytes) -> bool:
    """Whether a text is one JSON value; stops after the first value."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def check_string(text: str) -> None:
    """Refuses half a surrogate pair, which JSON's escapes can express and no encoding can.

    Raises:
      RefusedError: BAD_ENCODING.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"half a surrogate pair: {text[:80]!a}") from error


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position] in _BLANKS:
        position += 1
    return position


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
