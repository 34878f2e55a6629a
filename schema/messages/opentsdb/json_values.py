"""The JSON of OpenTSDB's HTTP bodies: a value or an array of values per line, or a document over lines.

Numbers stay as they were written, and objects keep their members in their order, a key perhaps twice, so
that what a TSD bends silently can be refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from timebeam.schema.points import Reason, RefusedError

T = TypeVar("T")

_BLANKS = " \t\r\n"


class NumberText(str):
    """The text of a JSON number, kept as it was written: the number rule works on text."""

    __slots__ = ()


class JsonPairs(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in their order, a key perhaps twice."""

    __slots__ = ()


def _constant(text: str) -> NumberText:
    """NaN and the infinities, which json would read as numbers; the number rule refuses them."""
    return NumberText(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=JsonPairs, parse_float=NumberText, parse_int=NumberText, parse_constant=_constant
)


def is_document(text: bytes) -> bool:
    """Whether a text is one JSON value that goes over several lines."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)  # ends soon in a text of lines
    except (msgspec.DecodeError, RecursionError):
        return _may_be_document(text) and _is_json(text)  # as of NaN, which is refused by itself
    return b"\n" in text.strip()


def values(
    text: bytes, start: int, end: int, read: Callable[[object], T]
) -> Iterator[tuple[int, int, T | RefusedError]]:
    """(start, end, outcome) of the value of a line or document, or of each element of an array.

    Args:
      start, end: where the line is in the text.
      read: makes the outcome of a value; raises RefusedError.
    """
    raw = text[start:end]
    try:
        line = raw.decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start} of the record"
        yield start, end, RefusedError(Reason.BAD_ENCODING, why)
        return
    wide = len(line) != len(raw)
    passed, position = 0, start  # characters so far, and where in the text they end
    for first, last, outcome in _values(line, read):
        begin = position + (first - passed)  # blanks and marks only
        position = begin + (len(line[first:last].encode()) if wide else last - first)
        passed = last
        yield begin, position, outcome


def _may_be_document(text: bytes) -> bool:
    """Whether a text's first line looks as if one array or object went over several lines."""
    text = text.lstrip()
    first = text[: max(text.find(b"\n"), 0)].strip()
    if not first:
        return False
    return first in (b"[", b"{") or (first[:1] in (b"[", b"{") and first[-1:] in (b",", b"{", b"[", b":"))


def _is_json(text: bytes) -> bool:
    """Whether a whole text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _values(line: str, read: Callable[[object], T]) -> Iterator[tuple[int, int, T | RefusedError]]:
    """(start, end, outcome) of each element of a line, in characters.

    An array that has each object on a line of its own may be of any length: a comma behind an
    object, and a line with one bracket, belong to it.
    """
    position = _skip_blanks(line, 0)
    if line.strip(_BLANKS) in ("[", "]"):
        return
    is_array = line[position : position + 1] == "["
    if is_array:
        position = _skip_blanks(line, position + 1)
        if line[position : position + 1] == "]":
            yield from _surplus(line, position + 1)
            return
    while True:
        try:
            value, end = _DECODER.raw_decode(line, position)
        except (json.JSONDecodeError, RecursionError) as error:
            yield position, len(line), RefusedError(Reason.BAD_SYNTAX, f"not JSON: {error}")
            return
        try:
            yield position, end, read(value)
        except RefusedError as error:
            if not is_array:
                yield position, len(line.rstrip(_BLANKS)), error  # with what stands behind it
                return
            yield position, end, error
        position = _skip_blanks(line, end)
        mark = line[position : position + 1]
        if not is_array:
            position += mark == ","
            break
        if mark not in (",", "]"):
            yield (
                position,
                len(line),
                RefusedError(Reason.BAD_SYNTAX, "not JSON: expected , or ] in the array"),
            )
            return
        position = _skip_blanks(line, position + 1)
        if mark == "]":
            break
    yield from _surplus(line, position)


def _surplus(line: str, position: int) -> Iterator[tuple[int, int, RefusedError]]:
    """A refusal of what stands behind the JSON text of a line, if anything does."""
    position = _skip_blanks(line, position)
    if position < len(line):
        yield position, len(line), RefusedError(Reason.BAD_SYNTAX, "surplus text behind the JSON value")


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position] in _BLANKS:
        position += 1
    return position


def check_text(text: str) -> None:
    """Refuses what JSON's escapes can say and no encoding can: one half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"half a surrogate pair: {text[:80]!a}") from error
