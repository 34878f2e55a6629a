"""The JSON of OpenTSDB's HTTP bodies: a value or an array of values per line, or a document over lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from timebeam.schema.messages.json_elements import elements
from timebeam.schema.points import RefusedError

T = TypeVar("T")


def is_document(text: bytes) -> bool:
    """Whether a text is one JSON value over several lines."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)  # stops early in a text of lines
    except (msgspec.DecodeError, RecursionError):
        return _may_be_document(text) and _is_json(text)  # such as one with NaN, whose points are refused
    return b"\n" in text.strip()


def values(
    text: bytes, start: int, end: int, read: Callable[[object], T]
) -> Iterator[tuple[int, int, T | RefusedError]]:
    """(start, end, outcome) of the value of a line or document, or of each element of its array.

    Args:
      start, end: the span of the line in the text, in bytes.
      read: makes the outcome of a value; raises RefusedError.
    """
    for element in elements(text, start, end):
        if isinstance(element.value, RefusedError):
            yield element.start, element.end, element.value
            continue
        try:
            yield element.start, element.end, read(element.value)
        except RefusedError as error:
            if not element.in_array:  # refused with the text after it
                yield element.start, start + len(text[start:end].rstrip(b" \t\r\n")), error
                return
            yield element.start, element.end, error


def _may_be_document(text: bytes) -> bool:
    """Whether the first line of a text looks like the beginning of a value over several lines."""
    text = text.lstrip()
    first = text[: max(text.find(b"\n"), 0)].strip()
    if not first:
        return False
    return first in (b"[", b"{") or (first[:1] in (b"[", b"{") and first[-1:] in (b",", b"{", b"[", b":"))


def _is_json(text: bytes) -> bool:
    """Whether the whole text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
