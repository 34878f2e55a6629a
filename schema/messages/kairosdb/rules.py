"""What both ways to send points to KairosDB share: lifetimes, and numbers that must not change.

Sources: Util.parseLong, telnet/PutCommand and http/rest/json/DataPointsParser of KairosDB 1.3.0
(docs/spec/kairosdb.md §8). Numbers that KairosDB changes silently, by overflow or by cutting a fraction, are
refused here.
"""

from __future__ import annotations

import decimal
import enum
import math
import re
from collections.abc import Mapping
from typing import Any

from timebeam.schema.common.option import Option, values_of
from timebeam.schema.messages.base import member
from timebeam.schema.messages.rules import short
from timebeam.schema.points import Reason, RefusedError

_LONG = re.compile(r"-?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST = 400  # characters of a number; a long has 20


class Ttl(enum.StrEnum):
    """What to do with points that have their own lifetime, which Bigtable cannot keep for single points."""

    REFUSE = "refuse"
    IGNORE = "ignore"


TTL_OPTION = Option(
    "kairosdb_ttl",
    "kairosdb: refuse points with a ttl of their own, or ignore it and store them as others",
    default=Ttl.REFUSE.value,
    choices=values_of(Ttl),
)
"""The option of both formats of KairosDB."""


def ttl_option(options: Mapping[str, Any]) -> Ttl:
    """The option `kairosdb_ttl`.

    Raises:
      ValueError: it is neither `refuse` nor `ignore`.
    """
    return member(Ttl, "kairosdb_ttl", options.get("kairosdb_ttl", Ttl.REFUSE))


def check_ttl(seconds: int, ttl: Ttl) -> None:
    """Refuses a lifetime other than 0 (forever), unless lifetimes are ignored."""
    if seconds and ttl is Ttl.REFUSE:
        raise RefusedError(
            Reason.VALUE_NOT_STORABLE,
            f"ttl of {seconds} seconds: points have no lifetime of their own; "
            "store such points with --retention_class, and --kairosdb_ttl ignore",
        )


def checked_long(number: int, text: str, beyond: Reason = Reason.NUMBER_OUT_OF_RANGE) -> int:
    """An integer of at most 64 bits; `beyond` is the reason to refuse any other."""
    if not -(1 << 63) <= number < 1 << 63:
        raise RefusedError(beyond, f"Over/underflow:  {short(text)}")
    return number


def strict_long(text: str, malformed: Reason, beyond: Reason = Reason.NUMBER_OUT_OF_RANGE) -> int:
    """The integer in a string of digits, with KairosDB's messages.

    Args:
      malformed, beyond: reasons to refuse other strings, and integers of more than 64 bits.
    """
    if not text:
        raise RefusedError(malformed, "no number where one should be")
    if text == "-":
        raise RefusedError(malformed, "Missing digits:  -")
    if not _LONG.fullmatch(text):
        raise RefusedError(malformed, f"Malformed:  {short(text)}")
    return checked_long(int(text) if len(text) <= _LONGEST else 1 << 64, text, beyond)


def long_of(text: str, malformed: Reason, beyond: Reason = Reason.NUMBER_OUT_OF_RANGE) -> int:
    """The integer in any form of a number, such as 1e3; refused if it has a fraction.

    Args:
      malformed, beyond: as in `strict_long`.
    """
    if not _DOUBLE.fullmatch(text) or len(text) > _LONGEST:
        raise RefusedError(malformed, f"{short(text)!r} is not an integer")
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:  # of the exponent
        raise RefusedError(malformed, f"{short(text)!r} is not an integer") from None
    if number and number.adjusted() > 40:
        raise RefusedError(beyond, f"Over/underflow:  {short(text)}")
    if number != number.to_integral_value():
        raise RefusedError(malformed, f"{short(text)} is not an integer: its fraction would be cut")
    return checked_long(int(number) if number else 0, text, beyond)


def double_of(text: str) -> float:
    """The double in a string. Java's `1.5f`, `0x1.8p1`, `NaN` and surrounding blanks are refused."""
    if not _DOUBLE.fullmatch(text):
        raise RefusedError(Reason.BAD_NUMBER, f"{short(text)!r} is not a number")
    number = float(text)
    if not math.isfinite(number):
        raise RefusedError(Reason.NUMBER_OUT_OF_RANGE, f"value is NaN or Infinite: {short(text)}")
    return number
