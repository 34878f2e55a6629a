"""Heroic's rules for the numbers, times and series of incoming points (docs/spec/heroic.md §7).

Stricter than Heroic where it loses or changes points silently.
"""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Iterable

from timebeam.schema.messages.rules import LAST_MILLISECOND, add_tag
from timebeam.schema.points import Reason, RefusedError, Series

Value = int | float | bytes
"""A number, or the bytes of a distribution."""


def check_time(time: object, first: int = 1) -> int:
    """A time in ms.

    Args:
      first: the first accepted time; 1 for consumers, 0 for POST /write.

    Raises:
      RefusedError: BAD_TIMESTAMP, TIMESTAMP_OUT_OF_RANGE.
    """
    if type(time) is not int:
        missing = "missing" if time is None else f"{str(time)[:40]!r} is not an integer"
        raise RefusedError(Reason.BAD_TIMESTAMP, f"time {missing}: give ms since 1970")
    if time < first:
        raise RefusedError(Reason.BAD_TIMESTAMP, f"time must be a positive number: {str(time)[:40]}")
    if time > LAST_MILLISECOND:
        raise RefusedError(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"time {str(time)[:40]} ms is beyond 2106-02-07; is the unit right?",
        )
    return time


def check_number(value: object, infinite: Reason = Reason.BAD_NUMBER) -> int | float:
    """A number of 64 bits.

    Args:
      infinite: the reason for infinities; in JSON they come from decimals beyond a double.

    Raises:
      RefusedError: EMPTY_VALUE, BAD_NUMBER, NUMBER_OUT_OF_RANGE.
    """
    if value is None:
        raise RefusedError(Reason.EMPTY_VALUE, "Empty value: give a number")
    if type(value) is int:
        if not -(1 << 63) <= value < 1 << 63:
            why = f"integer {str(value)[:40]} needs more than 64 bits: send it as a decimal, or scale it"
            raise RefusedError(Reason.NUMBER_OUT_OF_RANGE, why)
        return value
    if type(value) is not float:
        raise RefusedError(Reason.BAD_NUMBER, f"a value must be a number, not {str(value)[:40]!r}")
    if not math.isfinite(value):
        reason = infinite if math.isinf(value) else Reason.BAD_NUMBER
        raise RefusedError(reason, f"value is NaN or Infinite: {value}")
    return value


def distribution(text: object) -> bytes:
    """The bytes of a distribution in base64.

    Raises:
      RefusedError: EMPTY_VALUE, BAD_SYNTAX.
    """
    if text is None:
        raise RefusedError(Reason.EMPTY_VALUE, "Empty value: give a distribution in base64")
    with contextlib.suppress(ValueError):  # text that is not base64 is refused below
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    raise RefusedError(Reason.BAD_SYNTAX, f"a distribution must be base64, not {str(text)[:40]!r}")


def series_of(metric: str, tags: Iterable[tuple[str, str]], resources: Iterable[tuple[str, str]]) -> Series:
    """A series from its strings.

    Raises:
      RefusedError: DUPLICATE_TAG, for a tag or a resource.
    """
    tags_and_resources: tuple[dict[str, str], dict[str, str]] = {}, {}
    for pairs, into in zip((tags, resources), tags_and_resources, strict=True):
        for key, value in pairs:
            add_tag(into, key, value)
    return Series.of(metric, *tags_and_resources)
