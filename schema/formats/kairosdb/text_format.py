"""Message format `kairosdb-text`: telnet commands `put`, `putm`, `puts`; rules for points of both formats.

`put <metric> <time> <value> [tag=value ...]`: a time below 3000000000 is in seconds, others in ms. Times of
`putm` (numbers) and `puts` (strings) are always in ms. Source: telnet/WordSplitter, PutCommand,
PutMillisecondCommand and PutStringCommand of KairosDB 1.3.0 (docs/spec/kairosdb.md §8). Text is read as
UTF-8; KairosDB reads ISO-8859-1 and so stores other names than were sent. Numbers that KairosDB changes
silently, by overflow or by cutting a fraction (Util.parseLong), are rejected.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Bytes, Int64s, word, words
from timebeam.schema.bits.reasons import Reason, RejectedError, short
from timebeam.schema.bits.text_columns import finite
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.formats.base import Message, ParsedPoint
from timebeam.schema.formats.linewise import LineFormat, LineRecord, Places, Skeleton
from timebeam.schema.formats.options import Ttl

FIRST_MILLISECOND = 3_000_000_000
"""Times of `put` are in ms from this one on, else in seconds."""

_COMMANDS = ("put", "putm", "puts")
_TTL = "kairos_opt.ttl"
_NO_TAGS = {"add": "tag"}
_PUTM = word(b"putm \0\0\0")
_FIVE_BYTES = (1 << 40) - 1
_JAVA_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_LONG = re.compile(r"-?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST = 400  # characters of a number; a long has 20


def check_ttl(seconds: int, ttl: Ttl) -> None:
    """Rejects a lifetime other than 0 (forever), unless lifetimes are ignored."""
    if seconds and ttl is Ttl.REJECT:
        raise RejectedError(
            Reason.VALUE_NOT_STORABLE,
            f"ttl of {seconds} seconds: points have no lifetime of their own; "
            "store such points with --retention-class, and --kairosdb-ttl ignore",
        )


def checked_long(number: int, text: str, beyond: Reason = Reason.NUMBER_OUT_OF_RANGE) -> int:
    """An integer of at most 64 bits; `beyond` is the reason to reject any other."""
    if not -(1 << 63) <= number < 1 << 63:
        raise RejectedError(beyond, f"Over/underflow:  {short(text)}")
    return number


def strict_long(text: str, malformed: Reason, beyond: Reason = Reason.NUMBER_OUT_OF_RANGE) -> int:
    """The integer in a string of digits, with KairosDB's messages.

    Args:
      malformed, beyond: reasons to reject other strings, and integers of more than 64 bits.
    """
    if not text:
        raise RejectedError(malformed, "no number where one should be")
    if text == "-":
        raise RejectedError(malformed, "Missing digits:  -")
    if not _LONG.fullmatch(text):
        raise RejectedError(malformed, f"Malformed:  {short(text)}")
    return checked_long(int(text) if len(text) <= _LONGEST else 1 << 64, text, beyond)


def long_of(text: str, malformed: Reason, beyond: Reason = Reason.NUMBER_OUT_OF_RANGE) -> int:
    """The integer in any form of a number, such as 1e3; rejected if it has a fraction.

    Args:
      malformed, beyond: as in `strict_long`.
    """
    if not _DOUBLE.fullmatch(text) or len(text) > _LONGEST:
        raise RejectedError(malformed, f"{short(text)!r} is not an integer")
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:  # of the exponent
        raise RejectedError(malformed, f"{short(text)!r} is not an integer") from None
    if number and number.adjusted() > 40:
        raise RejectedError(beyond, f"Over/underflow:  {short(text)}")
    if number != number.to_integral_value():
        raise RejectedError(malformed, f"{short(text)} is not an integer: its fraction would be cut")
    return checked_long(int(number) if number else 0, text, beyond)


def double_of(text: str) -> float:
    """The double in a string. Java's `1.5f`, `0x1.8p1`, `NaN` and surrounding blanks are rejected."""
    if not _DOUBLE.fullmatch(text):
        raise RejectedError(Reason.BAD_NUMBER, f"{short(text)!r} is not a number")
    return finite(text)


class KairosDbText(LineFormat):
    r"""`put sys.cpu 1356998400 42.5 host=web01`.

    >>> from timebeam.schema.formats.base import Message
    >>> lines = b"put m 2999999999 1 host=a\nput m 3000000000 -7 host=a"  # in s, then in ms
    >>> batch = KairosDbText().parse(Message(lines, arrival_ms=0)).batch
    >>> [(str(series), time_ms, value) for series, time_ms, value in batch.points()]
    [('m{host=a}', 2999999999000, 1), ('m{host=a}', 3000000000, -7)]
    """

    name = "kairosdb-text"
    example = b"put sys.cpu 1356998400 42.5 host=web01"

    def locate(self, text: bytes, view: Bytes, starts: Int64s, ends: Int64s) -> Places:
        """See `LineFormat.locate`: the third and fourth word; values with an exponent take the slow path."""
        blanks = np.append(np.flatnonzero(view == 32), np.full(4, len(text) - text_columns.WINDOW - 8))
        nth = np.minimum(np.searchsorted(blanks, starts) + 1, len(blanks) - 2)
        times, values = blanks[nth] + 1, blanks[nth + 1] + 1
        window = text_columns.windows(text, np.minimum(values, len(text) - text_columns.WINDOW))
        _, exponent = text_columns.decimals(window, text_columns.number_lengths(window))
        return Places(times, values, (values > times + 1) & (values < ends) & ~exponent)

    def columnar(self, message: Message, starts: Int64s, ends: Int64s) -> tuple[PointBatch, Int64s]:
        """See `LineFormat.columnar`; converts times from OpenTSDB's rule to KairosDB's."""
        read_columns, slow = super().columnar(message, starts, ends)
        if read_columns.origins is None or len(read_columns) == 0:
            return read_columns, slow
        is_putm = (words(message.text, read_columns.origins.starts) & _FIVE_BYTES) == _PUTM
        raw = read_columns.times_ms // 1000
        is_different = ~read_columns.in_ms & (is_putm | (raw >= FIRST_MILLISECOND))
        read_columns.times_ms[is_different] = raw[is_different]
        read_columns.in_ms[is_different] = True
        return read_columns, slow

    def _probe(self, skeleton: Skeleton, time_first: bool) -> Series | None:
        """See `LineFormat`; probes `putm` as `put`, since only the unit of the time differs."""
        if skeleton[0].startswith(b"putm "):
            skeleton = (b"put" + skeleton[0][4:], *skeleton[1:])
        return super()._probe(skeleton, time_first)

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """The point of one line."""
        yield LineRecord.of(text, start, end, self._point)

    def _point(self, line: str) -> ParsedPoint:
        """The point of one line, checked in the order of PutMillisecondCommand."""
        words = split_words(line)
        command = words[0] if words else ""
        if command not in _COMMANDS:
            raise RejectedError(Reason.BAD_SYNTAX, f"{short(command)!r} is not one of put, putm, puts")
        if len(words) < 4:
            why = f"{command} needs a metric, a time and a value, then tags as name=value"
            raise RejectedError(Reason.BAD_SYNTAX, why)
        time = strict_long(words[2], Reason.BAD_TIMESTAMP, Reason.TIMESTAMP_OUT_OF_RANGE)
        in_ms = command != "put" or time >= FIRST_MILLISECOND
        time_ms = time if in_ms else checked_long(time * 1000, words[2], Reason.TIMESTAMP_OUT_OF_RANGE)
        if not words[1]:
            raise RejectedError(Reason.BAD_METRIC, "metricName may not be empty.")
        value: Any = words[3] if command == "puts" else _number(words[3])
        return ParsedPoint(Series.of(words[1], self._tags(words[4:])), time_ms, in_ms, value)

    def _tags(self, words: list[str]) -> dict[str, str]:
        """The tags of a line, without the option for its lifetime."""
        tags: dict[str, str] = {}
        for text in words:
            name, value = _tag(text, len(tags))
            if name == _TTL:
                if not _JAVA_INTEGER.fullmatch(value):
                    raise RejectedError(Reason.BAD_TAG, f"tag[{_TTL}] must be a number")
                check_ttl(int(value), self._options.kairosdb_ttl)
            elif name in tags:
                why = f"Multiple entries with same key: {name}={short(tags[name])} and {name}={short(value)}"
                raise RejectedError(Reason.DUPLICATE_TAG, why)
            else:
                tags[name] = value
        return tags or _NO_TAGS


def _number(text: str) -> int | float:
    """The value of `put` and `putm`: a double if it has a point, else an integer."""
    if not text:
        raise RejectedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if "." not in text:
        return strict_long(text, Reason.BAD_NUMBER)
    return double_of(text)


def _tag(word: str, number: int) -> tuple[str, str]:
    """(name, value) of a word; rejects a second `=`, at which KairosDB would cut the value."""
    name, equals, value = word.partition("=")
    if not equals or not value.strip("="):
        raise RejectedError(Reason.BAD_TAG, f"tag[{number}] must be in the format 'name=value'.")
    if not name:
        raise RejectedError(Reason.BAD_TAG, f"tag[{number}].name may not be empty.")
    if value.startswith("="):
        raise RejectedError(Reason.BAD_TAG, f"tag[{number}].value may not be empty.")
    if "=" in value:
        why = f"tag[{number}] has a second '=', at which its value would be cut: {short(word)}"
        raise RejectedError(Reason.BAD_TAG, why)
    return name, value


def split_words(line: str) -> list[str]:
    """The words of a line: split at blanks and control characters, but not between double quotes.

    Quotes count at the start of a word and before the blank that ends it. Without a closing quote the word
    extends to the end of the line. All as in WordSplitter.splitString.
    """
    words: list[str] = []
    quoted, start, previous = False, 0, " "
    for i, character in enumerate(line):
        if character <= " " and (not quoted or previous == '"'):
            if i > start:
                words.append(line[start : i - quoted])
            quoted, start = False, i + 1
        elif character == '"' and previous <= " " and not quoted:
            quoted, start = True, i + 1
        previous = character
    if start < len(line):
        words.append(line[start : len(line) - (quoted and line[-1] == '"')])
    return words
