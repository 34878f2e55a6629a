"""Message format `opentsdb-text`: telnet `put` lines and the lines of `tsdb import`, also mixed.

`put <metric> <timestamp> <value> <tagk=tagv> [...]`, or the same without `put`. Source:
tsd/PutDataPointRpc and tools/TextImporter of OpenTSDB 2.4.1 (docs/spec/opentsdb.md §9.1 and §9.3).
Text is read as UTF-8 (a TSD's telnet port reads ISO-8859-1, its importer the platform's charset).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Bytes, Int64s, word, words
from timebeam.schema.bits.reasons import Reason, RejectedError, short
from timebeam.schema.bits.text_columns import finite, integer
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, Series, add_tag
from timebeam.schema.formats.base import Point
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
        yield LineRecord.of(text, start, end, _point)


def _point(line: str) -> Point:
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
    return Point(Series.of(metric, tags_of_words(pairs)), time_ms, in_ms, value)


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
