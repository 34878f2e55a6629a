"""Message format `opentsdb-json`: the bodies of OpenTSDB's HTTP /api/put.

One object, an array of objects, or one of either per line; also an array over several lines.
Source: core/IncomingDataPoint and tsd/PutDataPointRpc of OpenTSDB 2.4.1 (format notes, section 9.2).
Stricter than a TSD where a TSD bends silently: decimal timestamps, the same key twice and metrics
that are no text are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from schema.messages import columns
from schema.messages.base import Point
from schema.messages.lines import LineFormat, Places, Record
from schema.messages.opentsdb_rules import add_tag, parse_time, parse_value
from schema.points import Bools, Bytes, Int64s, Reason, RefusedError, Series

_BLANKS = " \t\r\n"


class NumberText(str):
    """The text of a JSON number, kept as it was written: the number rule works on text."""

    __slots__ = ()


class _Pairs(tuple[tuple[str, Any], ...]):
    """The members of a JSON object in their order, a key perhaps twice."""

    __slots__ = ()


def _constant(text: str) -> NumberText:
    """NaN and the infinities, which json would read as numbers; the number rule refuses them."""
    return NumberText(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_float=NumberText, parse_int=NumberText, parse_constant=_constant
)


class OpenTsdbJson(LineFormat):
    """`{"metric": "sys.cpu", "timestamp": 1356998400, "value": 42.5, "tags": {"host": "web01"}}`."""

    name = "opentsdb-json"
    example = b'{"metric":"sys.cpu","timestamp":1356998400,"value":42.5,"tags":{"host":"web01"}}'

    def spans(self, text: bytes) -> tuple[Int64s, Int64s]:
        """See `LineFormat.spans`; text spread over several lines is one document."""
        if _may_be_document(text) and _is_json(text):
            return np.zeros(1, np.int64), np.full(1, len(text))
        return super().spans(text)

    def is_lines(self, text: bytes) -> bool:
        """See `LinewiseFormat.is_lines`: not a document over several lines."""
        return not (b"\n" in text and _may_be_document(text) and _is_json(text))

    def locate(self, text: bytes, view: Bytes, starts: Int64s, ends: Int64s) -> Places:
        """Behind `"timestamp":` and `"value":`, wherever they stand in the line."""
        times = columns.find(text, b'"timestamp":', starts, ends, starts)
        values = columns.find(text, b'"value":', starts, ends, np.maximum(times, starts))
        found = (times >= 0) & (values >= 0)
        return Places(_number_start(view, times, found), _number_start(view, values, found), found)

    def records(self, text: bytes, start: int, end: int) -> Iterator[Record]:
        """The points of one object, or of each object of an array."""
        raw = text[start:end]
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            why = f"not UTF-8 at byte {error.start} of the record"
            yield Record(start, end, RefusedError(Reason.BAD_ENCODING, why))
            return
        wide = len(line) != len(raw)
        passed, at = 0, start  # characters so far, and where in the text they end
        for first, last, outcome in _objects(line):
            begin = at + (first - passed)  # blanks and marks only
            at = begin + (len(line[first:last].encode()) if wide else last - first)
            passed = last
            yield Record(begin, at, outcome)


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


def _objects(line: str) -> Iterator[tuple[int, int, Point | RefusedError]]:
    """(start, end, point or refusal) of each element of a line, in characters.

    An array that has each object on a line of its own may be of any length: a comma behind an
    object, and a line with one bracket, belong to it.
    """
    at = _skip_blanks(line, 0)
    if line.strip(_BLANKS) in ("[", "]"):
        return
    is_array = line[at : at + 1] == "["
    if is_array:
        at = _skip_blanks(line, at + 1)
        if line[at : at + 1] == "]":
            yield from _surplus(line, at + 1)
            return
    while True:
        try:
            value, end = _DECODER.raw_decode(line, at)
        except (json.JSONDecodeError, RecursionError) as error:
            yield at, len(line), RefusedError(Reason.BAD_SYNTAX, f"not JSON: {error}")
            return
        try:
            yield at, end, _point(value)
        except RefusedError as error:
            if not is_array:
                yield at, len(line.rstrip(_BLANKS)), error  # with what stands behind it
                return
            yield at, end, error
        at = _skip_blanks(line, end)
        mark = line[at : at + 1]
        if not is_array:
            at += mark == ","
            break
        if mark not in (",", "]"):
            yield at, len(line), RefusedError(Reason.BAD_SYNTAX, "not JSON: expected , or ] in the array")
            return
        at = _skip_blanks(line, at + 1)
        if mark == "]":
            break
    yield from _surplus(line, at)


def _surplus(line: str, at: int) -> Iterator[tuple[int, int, RefusedError]]:
    """A refusal of what stands behind the JSON text of a line, if anything does."""
    at = _skip_blanks(line, at)
    if at < len(line):
        yield at, len(line), RefusedError(Reason.BAD_SYNTAX, "surplus text behind the JSON value")


def _skip_blanks(line: str, at: int) -> int:
    while at < len(line) and line[at] in _BLANKS:
        at += 1
    return at


def _point(value: object) -> Point:
    """The point of one JSON object, checked in OpenTSDB's order."""
    if not isinstance(value, _Pairs):
        raise RefusedError(Reason.BAD_SYNTAX, "a data point must be a JSON object")
    members: dict[str, Any] = {}
    for key, member in value:
        if key in members and key in ("metric", "timestamp", "value", "tags"):
            raise RefusedError(Reason.BAD_SYNTAX, f"the key {key!r} stands twice")
        members[key] = member
    metric = members.get("metric")
    if metric is None or metric == "":
        raise RefusedError(Reason.BAD_METRIC, "Metric name was empty")
    if not isinstance(metric, str) or isinstance(metric, NumberText):
        raise RefusedError(Reason.BAD_METRIC, "the metric must be a text")
    _check_text(metric)
    time = members.get("timestamp")
    if not isinstance(time, str):
        raise RefusedError(Reason.BAD_TIMESTAMP, "Invalid timestamp: give an integer above 0")
    time_ms, in_ms = parse_time(time)
    number = members.get("value")
    if number is None:
        raise RefusedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if not isinstance(number, str):
        raise RefusedError(Reason.BAD_NUMBER, "Unable to parse value to a number: neither number nor text")
    return Point(Series.of(metric, _tags(members.get("tags"))), time_ms, in_ms, parse_value(number))


def _tags(value: object) -> dict[str, str]:
    """The tags of a point; numbers and booleans become their text, as Jackson makes of them."""
    if value is None or value == ():
        raise RefusedError(Reason.NO_TAGS, "Missing tags: give at least one")
    if not isinstance(value, _Pairs):
        raise RefusedError(Reason.BAD_TAG, "the tags must be a JSON object of texts")
    tags: dict[str, str] = {}
    for key, text in value:
        _check_text(key)
        if isinstance(text, bool):
            text = "true" if text else "false"
        if not isinstance(text, str):
            raise RefusedError(Reason.BAD_TAG, f"Invalid tag value with key [{key}]: not a text")
        _check_text(text)
        add_tag(tags, key, str(text))
    return tags


def _check_text(text: str) -> None:
    """Refuses what JSON's escapes can say and no encoding can: one half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"half a surrogate pair: {text[:80]!a}") from error


def _number_start(view: Bytes, behind_colon: Int64s, found: Bools) -> Int64s:
    """Where the number starts: after one blank, and after a quote; 0 where there is none."""
    at = behind_colon if found.all() else np.where(found, behind_colon, 0)
    before = view[at]
    if ((before == 32) | (before == 34)).any():  # seldom, in the lines of most programs
        at = at + (before == 32)
        at += view[at] == 34
    return at
