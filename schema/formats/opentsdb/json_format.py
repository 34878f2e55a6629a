"""Message format `opentsdb-json`, and the JSON that all of OpenTSDB's HTTP bodies share.

Bodies of /api/put: one object, an array of objects, or one of either per line; also an array over several
lines. Source: core/IncomingDataPoint and tsd/PutDataPointRpc of OpenTSDB 2.4.1 (docs/spec/opentsdb.md
§9.2). Stricter than a TSD where a TSD changes input silently: decimal timestamps, duplicate keys and
metrics that are not strings are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, byte_view
from timebeam.schema.bits.json_text import (
    JsonPairs,
    NumberText,
    check_string,
    elements,
    has_strings,
    members_of,
)
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import LAST_MILLISECOND, Series, add_tag
from timebeam.schema.formats.base import Framing, Point
from timebeam.schema.formats.linewise import LineFormat, LineRecord, Places
from timebeam.schema.formats.opentsdb.text_format import parse_time, parse_value

T = TypeVar("T")


def values(
    text: bytes, start: int, end: int, read: Callable[[object], T]
) -> Iterator[tuple[int, int, T | RejectedError]]:
    """(start, end, outcome) of the value of a line or document, or of each element of its array.

    Args:
      start, end: the span of the line in the text, in bytes.
      read: makes the outcome of a value; raises RejectedError.
    """
    for element in elements(text, start, end):
        if isinstance(element.value, RejectedError):
            yield element.start, element.end, element.value
            continue
        try:
            yield element.start, element.end, read(element.value)
        except RejectedError as error:
            if not element.in_array:  # rejected with the text after it
                yield element.start, start + len(text[start:end].rstrip(b" \t\r\n")), error
                return
            yield element.start, element.end, error


class OpenTsdbJson(LineFormat):
    """`{"metric": "sys.cpu", "timestamp": 1356998400, "value": 42.5, "tags": {"host": "web01"}}`.

    >>> from timebeam.schema.formats.base import Message
    >>> body = b'{"metric":"sys.cpu","timestamp":1356998400500,"value":7,"tags":{"host":"web01"}}'
    >>> batch = OpenTsdbJson().parse(Message(body, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.in_ms.tolist(), batch.value(0)
    ('sys.cpu{host=web01}', [1356998400500], [True], 7)
    """

    name = "opentsdb-json"
    example = b'{"metric":"sys.cpu","timestamp":1356998400,"value":42.5,"tags":{"host":"web01"}}'
    framing = Framing.JSON
    documents = True

    def good_points(self, text: bytes) -> int | None:
        """See `MessageFormat.good_points`: of an object or array of plain points.

        So many strings as plain points have leave none for other members or duplicate keys.
        """
        try:
            content = _PLAIN_POINTS.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        points = content if isinstance(content, list) else [content]
        strings = 5 * len(points) + 2 * sum(len(point.tags) for point in points)
        if not points or b"\\" in text or not has_strings(text, strings):
            return None
        times = [point.timestamp for point in points]
        if set(map(type, times)) != {int} or min(times) < 1 or max(times) > LAST_MILLISECOND:
            return None
        values = [point.value for point in points]
        return len(points) if min(values) >= -(1 << 63) and max(values) < 1 << 63 else None

    def split(self, text: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
        """See `LinewiseFormat.split`: an array of objects is a span for each."""
        view = byte_view(text)
        # Shorter ones hold no point; their spans would need hundreds of times their bytes.
        arrays = np.flatnonzero((view[starts] == ord("[")) & (ends - starts >= _BYTES_AN_OBJECT))
        cuts = {
            number: cut for number in arrays.tolist() if (cut := _objects(text, starts[number], ends[number]))
        }
        if not cuts:
            return starts, ends
        pieces: list[tuple[Int64s, Int64s]] = []
        first = 0
        for number, cut in cuts.items():
            pieces += [(starts[first:number], ends[first:number]), cut]
            first = number + 1
        pieces.append((starts[first:], ends[first:]))
        return np.concatenate([piece[0] for piece in pieces]), np.concatenate([piece[1] for piece in pieces])

    def locate(self, text: bytes, view: Bytes, starts: Int64s, ends: Int64s) -> Places:
        """See `LineFormat.locate`: after `"timestamp":` and `"value":`, anywhere in the line."""
        times = text_columns.find(text, b'"timestamp":', starts, ends, starts)
        values = text_columns.find(text, b'"value":', starts, ends, np.maximum(times, starts))
        is_plain = (times >= 0) & (values >= 0)
        return Places(_number_start(view, times, is_plain), _number_start(view, values, is_plain), is_plain)

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """The points of one object, or of each object of an array."""
        for first, last, outcome in values(text, start, end, _point):
            yield LineRecord(first, last, outcome)


class _PlainPoint(msgspec.Struct, gc=False):
    """A point with four members and no other, whose tags are strings."""

    metric: Annotated[str, msgspec.Meta(min_length=1)]
    timestamp: int | float
    value: int | float
    tags: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


_PLAIN_POINTS = msgspec.json.Decoder(list[_PlainPoint] | _PlainPoint)


def _objects(text: bytes, start: int, end: int) -> tuple[Int64s, Int64s] | None:
    """(starts, ends) of the elements of an array of objects in a text; None if it is anything else.

    Also None for more objects than points fit into the text, whose spans could need much memory.
    """
    if text.count(b"{", start, end) * _BYTES_AN_OBJECT > end - start:
        return None
    try:
        line = text[start:end]
        line.decode()  # a line that is not UTF-8 is rejected as a whole
        elements = _ARRAY.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    lengths = np.fromiter(map(len, elements), np.int64, len(elements))
    if lengths.sum() + len(lengths) + 1 == len(line):  # no blanks between the elements
        ends = np.cumsum(lengths + 1) + start
        starts = ends - lengths
    else:
        starts = np.empty(len(elements), np.int64)
        position = int(start)
        for number, element in enumerate(elements):
            position = starts[number] = text.index(element, position)
            position += len(element)
        ends = starts + lengths
    is_object = byte_view(text)[starts] == ord("{")
    return (starts, ends) if is_object.all() else None


_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_BYTES_AN_OBJECT = 24  # a point has two, and at least 54 bytes


def _point(value: object) -> Point:
    """The point of one JSON object, checked in OpenTSDB's order."""
    members = members_of(value, "a data point", ("metric", "timestamp", "value", "tags"))
    metric, time_ms, in_ms = metric_and_time(members)
    number = members.get("value")
    if number is None:
        raise RejectedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if not isinstance(number, str):
        raise RejectedError(Reason.BAD_NUMBER, "Unable to parse value to a number: neither number nor string")
    return Point(Series.of(metric, tags_of(members.get("tags"))), time_ms, in_ms, parse_value(number))


def metric_and_time(members: Mapping[str, Any]) -> tuple[str, int, bool]:
    """(metric, time in ms, whether it has milliseconds) of a data point or histogram.

    Raises:
      RejectedError: it has none, or wrong ones.
    """
    metric = members.get("metric")
    if metric is None or metric == "":
        raise RejectedError(Reason.BAD_METRIC, "Metric name was empty")
    if not isinstance(metric, str) or isinstance(metric, NumberText):
        raise RejectedError(Reason.BAD_METRIC, "the metric must be a string")
    check_string(metric)
    time = members.get("timestamp")
    if not isinstance(time, str):
        raise RejectedError(Reason.BAD_TIMESTAMP, "Invalid timestamp: give an integer above 0")
    return metric, *parse_time(time)


def tags_of(value: object) -> dict[str, str]:
    """The tags of a point; numbers and booleans become strings, as with Jackson."""
    if value is None or value == ():
        raise RejectedError(Reason.NO_TAGS, "Missing tags: give at least one")
    if not isinstance(value, JsonPairs):
        raise RejectedError(Reason.BAD_TAG, "the tags must be a JSON object of strings")
    tags: dict[str, str] = {}
    for key, text in value:
        check_string(key)
        if isinstance(text, bool):
            text = "true" if text else "false"
        if not isinstance(text, str):
            raise RejectedError(Reason.BAD_TAG, f"Invalid tag value with key [{key}]: not a string")
        check_string(text)
        add_tag(tags, key, str(text))
    return tags


def _number_start(view: Bytes, behind_colon: Int64s, is_present: Bools) -> Int64s:
    """int64[n]: where the number starts, after an optional blank and quote; 0 if there is none."""
    positions = behind_colon if is_present.all() else np.where(is_present, behind_colon, 0)
    before = view[positions]
    if ((before == 32) | (before == 34)).any():  # rare: most programs write neither
        positions = positions + (before == 32)
        positions += view[positions] == 34
    return positions
