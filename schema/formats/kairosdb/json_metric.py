"""One metric object of KairosDB's POST /api/v1/datapoints, and the rules for points of both of its formats.

A metric has one point (`timestamp` or `time`, and `value`), or `datapoints` with pairs of time in ms and
value, or both. The type is that of the metric, or the third element of a pair. Without one, numbers and
strings that look like numbers are double if they have a point, else long; all other values are strings.
Sources: DataPointsParser, Validator, Util.parseLong and telnet/PutCommand of KairosDB 1.3.0
(docs/spec/kairosdb.md §8), with their messages. Numbers that KairosDB changes silently, by overflow or by
cutting a fraction, are rejected.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from timebeam.schema.bits.json_text import JsonPairs, NumberText, check_string, members_of
from timebeam.schema.bits.reasons import Reason, RejectedError, short
from timebeam.schema.bits.text_columns import finite, integer
from timebeam.schema.core.declared_options import member
from timebeam.schema.core.points import Series
from timebeam.schema.formats.options import Ttl
from timebeam.schema.formats.record_rejections import RejectedPoints

_LONG = re.compile(r"-?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST = 400  # characters of a number; a long has 20


def ttl_option(options: Mapping[str, Any]) -> Ttl:
    """The option `kairosdb_ttl`.

    Raises:
      ValueError: it is neither `refuse` nor `ignore`.
    """
    return member(Ttl, "kairosdb_ttl", options.get("kairosdb_ttl", Ttl.REFUSE))


def check_ttl(seconds: int, ttl: Ttl) -> None:
    """Rejects a lifetime other than 0 (forever), unless lifetimes are ignored."""
    if seconds and ttl is Ttl.REFUSE:
        raise RejectedError(
            Reason.VALUE_NOT_STORABLE,
            f"ttl of {seconds} seconds: points have no lifetime of their own; "
            "store such points with --retention_class, and --kairosdb_ttl ignore",
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


Value = int | float | str

_FIELDS = {"name", "tags", "timestamp", "time", "value", "datapoints", "type", "ttl", "skip_validate"}
_JAVA_LONG = re.compile(r"[+-]?\d+")  # digits of any script, as in Character.isDigit


class Metric(NamedTuple):
    """The content of a metric object: good points as (time in ms, value), and a rejection for each reason."""

    series: Series
    points: list[tuple[int, Value]]
    refused: list[RejectedError]


def read_metric(value: object, number: int, ttl: Ttl) -> Metric:
    """The points of a metric object.

    Args:
      value: as `json_text.DECODER` reads it.
      number: of the element in the array, for error messages.

    Raises:
      RejectedError: no point of it can be stored.
    """
    subject = f"metric[{number}]"
    fields = members_of(value, subject, _FIELDS, where=f"{subject}: ")
    name = _text(fields.get("name"), f"metric[{number}].name", Reason.BAD_METRIC)
    tags = _tags(fields.get("tags"), f"metric[{number}]")
    time = fields.get("timestamp") if fields.get("time") is None else fields["time"]
    context = f"metric[{number}](name={short(name)})" if name else f"metric[{number}]"
    seconds = fields.get("ttl")
    if seconds is not None:
        check_ttl(long_of(_text(seconds, f"{context}.ttl", Reason.BAD_SYNTAX) or "", Reason.BAD_SYNTAX), ttl)
    skip = fields.get("skip_validate")
    if not (skip is True or (isinstance(skip, str) and skip.lower() == "true")):
        _validate(name, tags, time, fields, number)
    if not name or None in tags.values():
        raise RejectedError(
            Reason.BAD_METRIC if not name else Reason.BAD_TAG, f"{context}: a name is missing"
        )
    series = Series.of(name, {key: text for key, text in tags.items() if text is not None})
    data_type = _text(fields.get("type"), f"{context}.type", Reason.BAD_SYNTAX)
    reader = _PointReader(context, data_type)
    if time is not None and "value" in fields:
        reader.add("", [time, fields["value"]])
    points = fields.get("datapoints")
    if points is not None and type(points) is not list:
        raise RejectedError(Reason.BAD_SYNTAX, f"{context}.datapoints must be an array of arrays")
    for i, pair in enumerate(points or ()):
        reader.add(f".datapoints[{i}]", pair)
    return Metric(series, reader.points, reader.refused.of_record("the metric's points"))


def _validate(
    name: str | None, tags: dict[str, str | None], time: Any, fields: dict[str, Any], number: int
) -> None:
    """Rejects a metric that DataPointsParser rejects, with all of its messages."""
    errors: list[tuple[Reason, str]] = []
    context = f"metric[{number}]"
    if name:
        context += f"(name={short(name)})"
    else:
        errors.append((Reason.BAD_METRIC, f"{context}.name {_missing(name)}"))
    value = fields.get("value")
    if time is not None:
        if value is None or value == "":
            errors.append(
                (Reason.EMPTY_VALUE, f"{context}.value {_missing('' if 'value' in fields else None)}")
            )
    elif value is not None:
        errors.append((Reason.BAD_TIMESTAMP, f"{context}.timestamp may not be null."))
    if not tags:
        errors.append((Reason.NO_TAGS, f"{context}.tags count must be greater than or equal to 1."))
    for i, (key, text) in enumerate(tags.items()):
        if not key:
            errors.append((Reason.BAD_TAG, f"{context}.tag[{i}].name may not be empty."))
        if not text:
            errors.append((Reason.BAD_TAG, f"{context}.tag[{short(key) or i}].value {_missing(text)}"))
    if errors:
        raise RejectedError(errors[0][0], " ".join(text for _, text in errors))


def _missing(text: str | None) -> str:
    return "may not be null." if text is None else "may not be empty."


def _tags(value: Any, context: str) -> dict[str, str | None]:
    """The tags of a metric; numbers and booleans become strings."""
    if value is None:
        return {}
    if not isinstance(value, JsonPairs):
        raise RejectedError(Reason.BAD_TAG, f"{context}.tags must be a JSON object of strings")
    tags: dict[str, str | None] = {}
    for key, text in value:
        if key in tags:
            raise RejectedError(Reason.DUPLICATE_TAG, f"duplicate key: {short(key)}")
        check_string(key)
        tags[key] = _text(text, f"{context}.tag[{short(key)}].value", Reason.BAD_TAG)
    return tags


def _text(value: Any, context: str, reason: Reason) -> str | None:
    """A string; numbers and booleans become strings, as with Gson."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise RejectedError(reason, f"{context}: expected a string")
    check_string(value)
    return str(value)


class _PointReader:
    """Reads the points of one metric."""

    def __init__(self, context: str, data_type: str | None) -> None:
        self._context, self._type = context, data_type
        self.refused = RejectedPoints()
        self.points: list[tuple[int, Value]] = []

    def add(self, place: str, pair: Any) -> None:
        """Reads a pair into `points`, or keeps its rejection.

        Args:
          place: of the pair in the metric.
        """
        try:
            self.points.append(self._point(self._context + place, pair))
        except RejectedError as error:
            self.refused.add(error)

    def _point(self, place: str, pair: Any) -> tuple[int, Value]:
        if type(pair) is not list:
            raise RejectedError(Reason.BAD_SYNTAX, f"{place} must be an array of a time and a value")
        if not pair:
            raise RejectedError(Reason.BAD_TIMESTAMP, f"{place}.timestamp cannot be null or empty.")
        if len(pair) == 1:
            raise RejectedError(Reason.EMPTY_VALUE, f"{place}.value cannot be null or empty.")
        time, value = pair[0], pair[1]
        if time is None:
            raise RejectedError(Reason.BAD_TIMESTAMP, f"{place}.timestamp may not be null.")
        if not isinstance(time, str):
            raise RejectedError(Reason.BAD_TIMESTAMP, f"{place}.timestamp must be an integer")
        time_ms = long_of(time, Reason.BAD_TIMESTAMP, Reason.TIMESTAMP_OUT_OF_RANGE)
        if value is None or value == "":
            raise RejectedError(Reason.EMPTY_VALUE, f"{place}.value may not be empty.")
        if value == []:
            raise RejectedError(Reason.EMPTY_VALUE, f"{place}.value may not be an empty array.")
        data_type = self._type
        if len(pair) > 2:
            data_type = _text(pair[2], f"{place}.type", Reason.BAD_SYNTAX)
            if data_type is None:
                raise RejectedError(Reason.BAD_SYNTAX, f"{place}.type may not be null.")
        if not isinstance(value, str | bool):
            raise RejectedError(Reason.BAD_NUMBER, f"{self._context} value is an invalid type")
        return time_ms, _value(value, _type_of(value) if data_type is None else data_type)


def _type_of(value: str | bool) -> str:
    """The type of a value without a declared type."""
    if isinstance(value, str) and (isinstance(value, NumberText) or _looks_like_number(value)):
        return "double" if "." in value else "long"
    return "string"


def _looks_like_number(text: str) -> bool:
    """Util.isNumber: a sign or a point, then digits with at most one point, the last one a digit."""
    unsigned = text[1:] if text[0] in "+-." else text
    return (
        bool(unsigned)
        and unsigned[-1] != "."
        and unsigned.count(".") <= 1
        and unsigned.replace(".", "").isdecimal()
    )


def _value(value: str | bool, data_type: str) -> Value:
    if data_type == "string":
        return _text(value, "value", Reason.BAD_NUMBER) or ""
    if data_type not in ("long", "double"):
        raise RejectedError(Reason.VALUE_NOT_STORABLE, f"Unregistered data point type '{short(data_type)}'")
    if isinstance(value, bool):
        raise RejectedError(Reason.BAD_NUMBER, f"{str(value).lower()} is not a {data_type}")
    if data_type == "double":
        return double_of(value)
    if isinstance(value, NumberText):
        return long_of(value, Reason.BAD_NUMBER)
    if not _JAVA_LONG.fullmatch(value):
        raise RejectedError(Reason.BAD_NUMBER, f'For input string: "{short(value)}"')
    return checked_long(integer(value), value)
