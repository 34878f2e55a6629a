"""OpenTSDB's rules for the numbers and timestamps of incoming points, one record at a time.

Sources: core/Tags.looksLikeInteger and parseLong, core/TSDB.checkTimestampAndTags,
core/IncomingDataPoint.validate, tsd/PutDataPointRpc (OpenTSDB 2.4.1). The columnar path of
`lines` accepts a subset of what these functions accept, and sends everything else here.
"""

from __future__ import annotations

import math
import re

from timebeam.schema.points import Reason, RefusedError

FIRST_MILLISECOND = 1 << 32
"""Timestamps are milliseconds from this one on, else seconds (core/Const.SECOND_MASK)."""

LAST_MILLISECOND = (1 << 32) * 1000 - 1
"""The last millisecond whose base time fits 32 bits of seconds: 2106-02-07T06:28:15.999Z. OpenTSDB
takes up to 9999999999999 and wraps the base time; those are refused here."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SECONDS_AND_THOUSANDTHS = re.compile(r"[0-9]{1,10}\.[0-9]{3}")


def parse_value(text: str) -> int | float:
    """The number in a string: an integer if it has none of `.`, `e`, `E`, else a double.

    Java's `1.5f`, `0x1.8p1` and surrounding blanks, which a TSD accepts in decimals, are refused.

    Raises:
      RefusedError: EMPTY_VALUE, BAD_NUMBER (also NaN and infinities), NUMBER_OUT_OF_RANGE.
    """
    if not text:
        raise RefusedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if _INTEGER.fullmatch(text):
        value = int(text) if len(text) <= 40 else 1 << 64
        if not -(1 << 63) <= value < 1 << 63:
            raise RefusedError(
                Reason.NUMBER_OUT_OF_RANGE,
                f"integer {short(text)} needs more than 64 bits: send it as a decimal, or scale it",
            )
        return value
    if not _DECIMAL.fullmatch(text):
        raise RefusedError(Reason.BAD_NUMBER, f"Unable to parse value to a number: {short(text)!r}")
    number = float(text)
    if not math.isfinite(number):
        raise RefusedError(Reason.NUMBER_OUT_OF_RANGE, f"value is NaN or Infinite: {short(text)}")
    return number


def parse_time(text: str, *, dotted: bool = False) -> tuple[int, bool]:
    """(time in ms, whether it was given in ms) of a timestamp.

    Args:
      text: seconds or, from `FIRST_MILLISECOND` on, milliseconds.
      dotted: also accept seconds with exactly three decimals, as telnet `put` does. (For another number of
        decimals a TSD stores a wrong time; here it is refused.)

    Raises:
      RefusedError: BAD_TIMESTAMP (no integer, zero or negative), TIMESTAMP_OUT_OF_RANGE.
    """
    if dotted and _SECONDS_AND_THOUSANDTHS.fullmatch(text):
        text = text.replace(".", "")
    if not _INTEGER.fullmatch(text):
        raise RefusedError(
            Reason.BAD_TIMESTAMP,
            f"Invalid timestamp {short(text)!r}: give seconds or milliseconds since 1970 as an integer",
        )
    number = int(text) if len(text) <= 40 else 1 << 64
    if number <= 0:
        raise RefusedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {short(text)}: it must be above 0")
    if number < FIRST_MILLISECOND:
        return number * 1000, False
    if number > LAST_MILLISECOND:
        raise RefusedError(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"bad timestamp {short(text)}: the last that the row key can hold is {LAST_MILLISECOND} ms",
        )
    return number, True


def add_tag(tags: dict[str, str], key: str, value: str) -> None:
    """Adds a tag; equal tags count once (core/Tags.parse).

    Raises:
      RefusedError: DUPLICATE_TAG; the key already has another value.
    """
    if tags.setdefault(key, value) != value:
        raise RefusedError(Reason.DUPLICATE_TAG, f"duplicate tag: {key}={tags[key]} and {key}={value}")


def short(text: str) -> str:
    """At most 40 characters of a string, for error messages."""
    return text if len(text) <= 40 else text[:37] + "..."
