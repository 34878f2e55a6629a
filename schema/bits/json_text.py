"""JSON read without loss: the values of a line or document, one by one, also those before what is not JSON.

Numbers stay as they were written, and objects keep their members in order, duplicate keys included, so that
formats can reject what a server would change silently.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.reasons import Reason, RejectedError, decoded

_BLANKS = " \t\r\n"
_FIRST, _FASTER = 4096, 8
"""Bytes of a document that are looked at first, and how many times as many then, if it goes on."""


class NumberText(str):
    """The text of a JSON number, as it was written."""

    __slots__ = ()


class JsonPairs(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in their order; a key may be duplicate."""

    __slots__ = ()


DECODER = json.JSONDecoder(
    object_pairs_hook=JsonPairs, parse_float=NumberText, parse_int=NumberText, parse_constant=NumberText
)
"""Reads JSON into `JsonPairs` and `NumberText`; NaN and infinities are numbers too, for formats to reject."""


class Element(NamedTuple):
    """A value, or the rejection of some bytes, with its span.

    Attributes:
      start, end: in bytes of the text.
      value: as `DECODER` reads it, or a `RejectedError`.
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
        line = decoded(raw)
    except RejectedError as error:
        yield Element(start, end, error, in_array=False)
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
            yield position, len(line), RejectedError(Reason.BAD_SYNTAX, f"not JSON: {error}"), in_array
            return
        yield position, end, value, in_array
        position = _skip_blanks(line, end)
        mark = line[position : position + 1]
        if not in_array:
            position += mark == ","
            break
        if mark not in (",", "]"):
            rejected = RejectedError(Reason.BAD_SYNTAX, "not JSON: expected , or ] in the array")
            yield position, len(line), rejected, in_array
            return
        is_end = mark == "]"
        if not is_end:
            position = _skip_blanks(line, position + 1)
            is_end = trailing_comma and line[position : position + 1] == "]"
    position = _skip_blanks(line, position + in_array)
    if position < len(line):
        rejected = RejectedError(Reason.BAD_SYNTAX, "surplus text after the JSON value")
        yield position, len(line), rejected, in_array


_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def array_spans(text: bytes, start: int, end: int) -> tuple[Int64s, Int64s] | None:
    """(starts, ends) int64[n] of the elements of the array from `start` to `end`; None if it is none.

    >>> starts, ends = array_spans(b'[{"a": 1}, 2]', 0, 13)
    >>> starts.tolist(), ends.tolist()
    ([1, 11], [9, 12])
    """
    try:
        elements = _ARRAY.decode(text[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    lengths = np.fromiter(map(len, elements), np.int64, len(elements))
    if lengths.sum() + len(lengths) + 1 == end - start:  # no blanks between the elements
        ends = np.cumsum(lengths + 1) + start
        return ends - lengths, ends
    starts = np.empty(len(elements), np.int64)
    position = start
    for number, element in enumerate(elements):
        position = starts[number] = text.index(element, position)
        position += len(element)
    return starts, starts + lengths


def is_document(text: bytes) -> bool:
    """Whether a text is one JSON value over several lines; else each of its lines is a record."""
    if b"\n" not in text:
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)  # stops early in a text of lines
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _may_be_document(text) and _is_json(text)  # such as one with NaN, whose points are rejected
    return b"\n" in text.strip()


def _may_be_document(text: bytes) -> bool:
    """Whether the first line of a text looks like the beginning of a value over several lines."""
    text = text.lstrip()
    first = text[: max(text.find(b"\n"), 0)].strip()
    if not first:
        return False
    return first in (b"[", b"{") or (first[:1] in (b"[", b"{") and first[-1:] in (b",", b"{", b"[", b":"))


def _is_json(text: bytes) -> bool:
    """Whether the whole text is one JSON value; NaN and infinities are numbers."""
    try:
        DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def starts_document(head: bytes | memoryview, longest: int) -> bool:
    """Whether a text is a JSON value over several lines, or in one line that is too long.

    An array with each element and each bracket on its own line is read as lines.

    Args:
      head: the first `longest` + 1 bytes of the text, or the whole text. Only what is needed of it is looked
        at, since many short documents may follow each other.
      longest: the most bytes of a line.
    """
    size = _FIRST
    while True:
        text = bytes(head[:size]).decode(errors="replace").lstrip()
        starts = _starts(text, is_all=size >= len(head), is_long=len(head) > longest)
        if starts is not None:
            return starts
        size *= _FASTER


def _starts(text: str, *, is_all: bool, is_long: bool) -> bool | None:
    """See `starts_document`; None if more of the text decides. `is_long`: whether all of it is too long."""
    if not text.startswith(("[", "{")):
        return False if text or is_all else None
    first, _, rest = text.partition("\n")
    if first.rstrip() == "[":
        second, newline, _ = rest.lstrip().partition("\n")
        if not newline and not is_all:
            return None
        second = second.rstrip().removesuffix(",")
        if second == "]" or _value(second) == (len(second), False):
            return False
    end, is_cut = _value(text)
    if is_cut and not is_all:
        return None
    return "\n" in text[:end] or (is_cut and is_long)


def _value(text: str) -> tuple[int, bool]:
    """(end of the JSON value at the start of a text, 0 if there is none; whether the text ends within it)."""
    try:
        return DECODER.raw_decode(text)[1], False
    except json.JSONDecodeError as error:
        is_cut = error.pos > len(text) - 8 or error.msg.startswith("Unterminated string")
        return (len(text) if is_cut else 0), is_cut
    except RecursionError:
        return 0, False


def check_string(text: str) -> None:
    """Rejects half a surrogate pair, which JSON's escapes can express and no encoding can.

    Raises:
      RejectedError: BAD_ENCODING.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RejectedError(Reason.BAD_ENCODING, f"half a surrogate pair: {text[:80]!a}") from error


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position] in _BLANKS:
        position += 1
    return position


def members_of(
    value: object,
    subject: str,
    once: Container[str] | None = None,
    *,
    where: str = "",
    skip_null: bool = False,
) -> dict[str, Any]:
    """The members of a JSON object, as `DECODER` reads it.

    Args:
      subject: what it is, for the message.
      once: the keys that must not be duplicate; None for all.
      where: what the message about a duplicate key begins with.
      skip_null: leave out members that are null; their keys may be duplicate.

    Raises:
      RejectedError: BAD_SYNTAX; it is no object, or a key is duplicate.
    """
    if not isinstance(value, JsonPairs):
        raise RejectedError(Reason.BAD_SYNTAX, f"{subject} must be a JSON object")
    members: dict[str, Any] = {}
    for key, member in value:
        if key in members and (once is None or key in once):
            raise RejectedError(Reason.BAD_SYNTAX, f"{where}duplicate key {key[:80]!r}")
        if member is not None or not skip_null:
            members[key] = member
    return members


class DuplicateKeyError(ValueError):
    """An object has a duplicate key."""


def distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object, as `object_pairs_hook` of the standard library takes it.

    Raises:
      DuplicateKeyError: a key is duplicate.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        (repeated, _), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
        raise DuplicateKeyError(f"duplicate key {repeated!r}")
    return members


def check_keys(text: str) -> None:
    """Rejects duplicate keys, also in nested objects.

    Raises:
      DuplicateKeyError: an object has one.
      ValueError: the text is not JSON.
    """
    json.loads(text, object_pairs_hook=lambda pairs: len(distinct(pairs)), parse_int=len, parse_float=len)


def has_strings(text: bytes, count: int) -> bool:
    """Whether a text of JSON surely has only so many strings, keys and values: those that were decoded.

    Then it has no duplicate key, and none that was passed over. Without an escaped quote, a string has two.

    >>> has_strings(b'{"a": ":"}', 2), has_strings(b'{"a": ":", "a": 1}', 2)
    (True, False)
    """
    return text.count(b'"') == 2 * count and b'\\"' not in text


def members_written(text: str) -> int | None:
    """An upper bound for the members of all objects of a text, by its colons; None if unknown.

    A text of whose values only the members were told apart has no duplicate key if it has no more of them.
    """
    return None if _BLANK_BEFORE_COLON.search(text) else text.count('":')


_BLANK_BEFORE_COLON = re.compile(r'"[ \t\r\n]+:')


def scalar(raw: msgspec.Raw) -> tuple[str | None, bool]:
    """(text, is a string?) of a JSON value: strings decoded, other values as written; None for null."""
    written = str(bytes(raw).strip(), "utf-8")
    if written.startswith('"'):
        text: str = msgspec.json.decode(raw)
        return text, True
    return (None if written == "null" else written), False


def line_spans(text: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) of the lines that hold more than blanks, without newlines; `start` is that of the text."""
    for line in text.split(b"\n"):
        if line.strip():
            yield start, start + len(line)
        start += len(line) + 1


def record_spans(text: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) of the records of a JSON text: a document over several lines, or its lines."""
    if is_document(text):
        yield start, start + len(text)
    else:
        yield from line_spans(text, start)
