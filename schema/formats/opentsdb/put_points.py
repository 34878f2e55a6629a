"""Message formats `opentsdb-text` and `opentsdb-json`, and what OpenTSDB's other lines and bodies share.

`opentsdb-text`: telnet `put` lines and the lines of `tsdb import`, also mixed:
`put <metric> <timestamp> <value> <tagk=tagv> [...]`, or the same without `put`. Text is read as UTF-8 (a
TSD's telnet port reads ISO-8859-1, its importer the platform's charset).

`opentsdb-json`: bodies of /api/put: one object, an array of objects, or one of either per line; also an array
over several lines. Stricter than a TSD where a TSD changes input silently: decimal timestamps, duplicate keys
and metrics that are not strings are rejected.

Source: tsd/PutDataPointRpc, core/IncomingDataPoint and tools/TextImporter of OpenTSDB 2.4.1
(docs/spec/opentsdb.md §9.1 to §9.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, byte_view, word, words
from timebeam.schema.bits.json_text import (
    JsonPairs,
    NumberText,
    array_spans,
    check_string,
    elements,
    has_strings,
    members_of,
)
from timebeam.schema.bits.reasons import Reason, RejectedError, short
from timebeam.schema.bits.text_columns import finite, integer
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, Series, add_tag
from timebeam.schema.formats.base import Framing, ParsedPoint
from timebeam.schema.formats.linewise import LineFormat, LineRecord, Places

_PUT = word(b"put \0\0\0\0")
_FOUR_BYTES = 0xFFFFFFFF


_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SECONDS_AND_THOUSANDTHS = re.compile(r"[0-9]{1,10}\.[0-9]{3}")


def parse_value(text: str) -> int | float:
    """The number in a string: an integer if it has none of `.`, `e`, `E`, else a double.

    Java's `1.5f`, `0x1.8p1` and surrounding blanks, which a TSD accepts in decimals, are rejected.

    Raises:
      RejectedError: EMPTY_VALUE, BAD_NUMBER (also NaN and infinities), NUMBER_OUT_OF_RANGE.
    """
    if not text:
        raise RejectedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if _INTEGER.fullmatch(text):
        value = integer(text)
        if not -(1 << 63) <= value < 1 << 63:
            raise RejectedError(
                Reason.NUMBER_OUT_OF_RANGE,
                f"integer {short(text)} needs more than 64 bits: send it as a decimal, or scale it",
            )
        return value
    if not _DECIMAL.fullmatch(text):
        raise RejectedError(Reason.BAD_NUMBER, f"Unable to parse value to a number: {short(text)!r}")
    return finite(text)


def parse_time(text: str, *, dotted: bool = False) -> tuple[int, bool]:
    """(time in ms, whether it was given in ms) of a timestamp.

    >>> parse_time("1356998400"), parse_time("1356998400500"), parse_time("1356998400.500", dotted=True)
    ((1356998400000, False), (1356998400500, True), (1356998400500, True))

    Args:
      text: seconds or, from `FIRST_MILLISECOND` on, milliseconds.
      dotted: also accept seconds with exactly three decimals, as telnet `put` does. (For another number of
        decimals a TSD stores a wrong time; here it is rejected.)

    Raises:
      RejectedError: BAD_TIMESTAMP (no integer, zero or negative), TIMESTAMP_OUT_OF_RANGE.
    """
    if dotted and _SECONDS_AND_THOUSANDTHS.fullmatch(text):
        text = text.replace(".", "")
    if not _INTEGER.fullmatch(text):
        raise RejectedError(
            Reason.BAD_TIMESTAMP,
            f"Invalid timestamp {short(text)!r}: give seconds or milliseconds since 1970 as an integer",
        )
    number = integer(text)
    if number <= 0:
        raise RejectedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {short(text)}: it must be above 0")
    if number < FIRST_MILLISECOND:
        return number * 1000, False
    if number > LAST_MILLISECOND:
        raise RejectedError(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"bad timestamp {short(text)}: the last that the row key can hold is {LAST_MILLISECOND} ms",
        )
    return number, True


class OpenTsdbText(LineFormat):
    """`put sys.cpu 1356998400 42.5 host=web01`, or the same without `put`.

    >>> from timebeam.schema.formats.base import Message
    >>> line = b"put sys.cpu 1356998400 42.5 host=web01"
    >>> batch = OpenTsdbText().parse(Message(line, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.in_ms.tolist(), batch.value(0)
    ('sys.cpu{host=web01}', [1356998400000], [False], 42.5)
    """

    name = "opentsdb-text"
    example = b"put sys.cpu 1356998400 42.5 host=web01"

    def locate(self, text: bytes, view: Bytes, starts: Int64s, ends: Int64s) -> Places:
        """See `LineFormat.locate`: the words after the first blank, or after the second in a `put` line."""
        blanks = np.append(np.flatnonzero(view == 32), np.full(4, len(text) - text_columns.WINDOW - 8))
        is_put = (words(text, starts) & _FOUR_BYTES) == _PUT
        nth = np.searchsorted(blanks, starts) + is_put
        nth = np.minimum(nth, len(blanks) - 2)
        times, values = blanks[nth] + 1, blanks[nth + 1] + 1
        return Places(times, values, (values > times + 1) & (values < ends))

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """The point of one line."""
        yield LineRecord.of(text, start, end, _of_line)


def _of_line(line: str) -> ParsedPoint:
    """The point of one line, checked in the order of PutDataPointRpc."""
    words = line.rstrip("\r").split(" ")
    telnet = words[0] == "put"
    if telnet:
        words = words[1:]
    if len(words) < 4:
        raise RejectedError(
            Reason.BAD_SYNTAX if len(words) < 3 else Reason.NO_TAGS,
            f"not enough arguments (need least 4, got {len(words)}): metric timestamp value tagk=tagv",
        )
    metric, time, number, *pairs = words
    if not metric:
        raise RejectedError(Reason.BAD_METRIC, "empty metric name")
    time_ms, in_ms = parse_time(time, dotted=telnet)
    value = parse_value(number)
    return ParsedPoint(Series.of(metric, tags_of_words(pairs)), time_ms, in_ms, value)


def tags_of_words(words: Sequence[str]) -> dict[str, str]:
    """The tags of a telnet line: words `tagk=tagv`, at least one; empty words are skipped."""
    tags: dict[str, str] = {}
    for pair in words:
        if not pair:
            continue
        key, equals, tag = pair.partition("=")
        if not key or not equals or not tag or "=" in tag:
            raise RejectedError(Reason.BAD_TAG, f"invalid tag: {pair[:80]}")
        add_tag(tags, key, tag)
    if not tags:
        raise RejectedError(Reason.NO_TAGS, "Missing tags: give at least one tagk=tagv")
    return tags


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
        for first, last, outcome in values(text, start, end, _of_object):
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
        text[start:end].decode()  # a line that is not UTF-8 is rejected as a whole
    except UnicodeDecodeError:
        return None
    spans = array_spans(text, int(start), int(end))
    return spans if spans is not None and (byte_view(text)[spans[0]] == ord("{")).all() else None


_BYTES_AN_OBJECT = 24  # a point has two, and at least 54 bytes


def _of_object(value: object) -> ParsedPoint:
    """The point of one JSON object, checked in OpenTSDB's order."""
    members = members_of(value, "a data point", ("metric", "timestamp", "value", "tags"))
    metric, time_ms, in_ms = metric_and_time(members)
    number = members.get("value")
    if number is None:
        raise RejectedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if not isinstance(number, str):
        raise RejectedError(
            Reason.BAD_NUMBER, "Unable to parse value to a number: neither a number nor a string"
        )
    return ParsedPoint(Series.of(metric, tags_of(members.get("tags"))), time_ms, in_ms, parse_value(number))


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
