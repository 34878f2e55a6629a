"""The JSON objects of a line or a document, one by one: also those before a place that is no JSON.

An array that has each object on a line of its own may be of any length: a comma behind an object, and a line
with one bracket, belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from timebeam.schema.messages.kairosdb.metric import DECODER
from timebeam.schema.points import Reason, RefusedError

_BLANKS = " \t\r\n"


class Element(NamedTuple):
    """An element: its number in the array, its span in bytes, and its value or why it has none."""

    number: int
    start: int
    end: int
    value: object


def elements(text: bytes, start: int, end: int, number: int = 0) -> Iterator[Element]:
    """The elements of the array in a span, or its one object.

    Args:
      number: that of the first element.
    """
    raw = text[start:end]
    try:
        line = raw.decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start} of the record"
        yield Element(number, start, end, RefusedError(Reason.BAD_ENCODING, why))
        return
    wide = len(line) != len(raw)
    passed, position = 0, start  # characters so far, and where in the text they end
    for i, (first, last, value) in enumerate(_objects(line), number):
        begin = position + (first - passed)  # blanks and marks only
        position = begin + (len(line[first:last].encode()) if wide else last - first)
        passed = last
        yield Element(i, begin, position, value)


def _objects(line: str) -> Iterator[tuple[int, int, object]]:
    """(start, end, value or refusal) of each element of a line, in characters."""
    position = _skip_blanks(line, 0)
    if line.strip(_BLANKS) in ("[", "]", "[]"):
        return
    is_array = line[position] == "["
    if is_array:
        position = _skip_blanks(line, position + 1)
    while not (is_array and line[position : position + 1] == "]"):
        try:
            value, end = DECODER.raw_decode(line, position)
        except (json.JSONDecodeError, RecursionError) as error:
            yield position, len(line), RefusedError(Reason.BAD_SYNTAX, f"not JSON: {error}")
            return
        yield position, end, value
        position = _skip_blanks(line, end)
        mark = line[position : position + 1]
        if mark == "," or not is_array:
            position = _skip_blanks(line, position + (mark == ","))
        elif mark != "]":
            yield (
                position,
                len(line),
                RefusedError(Reason.BAD_SYNTAX, "not JSON: expected , or ] in the array"),
            )
            return
        if not is_array:
            break
    position = _skip_blanks(line, position + is_array)
    if position < len(line):
        yield position, len(line), RefusedError(Reason.BAD_SYNTAX, "surplus text behind the JSON value")


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position] in _BLANKS:
        position += 1
    return position
