"""The JSON objects of a line or a document, one by one: also those before a place that is no JSON.

An array that has each object on a line of its own may be of any length: a comma behind an object, and a line
with one bracket, belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from schema.messages.kairosdb_metric import DECODER
from schema.points import Reason, RefusedError

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
    passed, at = 0, start  # characters so far, and where in the text they end
    for i, (first, last, value) in enumerate(_objects(line), number):
        begin = at + (first - passed)  # blanks and marks only
        at = begin + (len(line[first:last].encode()) if wide else last - first)
        passed = last
        yield Element(i, begin, at, value)


def _objects(line: str) -> Iterator[tuple[int, int, object]]:
    """(start, end, value or refusal) of each element of a line, in characters."""
    at = _skip_blanks(line, 0)
    if line.strip(_BLANKS) in ("[", "]", "[]"):
        return
    is_array = line[at] == "["
    if is_array:
        at = _skip_blanks(line, at + 1)
    while not (is_array and line[at : at + 1] == "]"):
        try:
            value, end = DECODER.raw_decode(line, at)
        except (json.JSONDecodeError, RecursionError) as error:
            yield at, len(line), RefusedError(Reason.BAD_SYNTAX, f"not JSON: {error}")
            return
        yield at, end, value
        at = _skip_blanks(line, end)
        mark = line[at : at + 1]
        if mark == "," or not is_array:
            at = _skip_blanks(line, at + (mark == ","))
        elif mark != "]":
            yield at, len(line), RefusedError(Reason.BAD_SYNTAX, "not JSON: expected , or ] in the array")
            return
        if not is_array:
            break
    at = _skip_blanks(line, at + is_array)
    if at < len(line):
        yield at, len(line), RefusedError(Reason.BAD_SYNTAX, "surplus text behind the JSON value")


def _skip_blanks(line: str, at: int) -> int:
    while at < len(line) and line[at] in _BLANKS:
        at += 1
    return at
