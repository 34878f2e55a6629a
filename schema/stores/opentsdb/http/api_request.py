"""A request of the API, and its errors in the shape of a TSD's (tsd/HttpSerializer.formatErrorV1)."""

from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from timebeam.schema.bits.times import DAY_MS, HOUR_MS, LATEST_MS
from timebeam.schema.query.downsample import FUNCTIONS, Downsampling, Fill, calendar_interval
from timebeam.schema.query.question import NONE


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
      message: what is wrong, in a TSD's words where it has some.
      status: HTTP status.
      details: more of it; empty for none.
      headers: of the answer, beside the usual ones.
    """

    def __init__(
        self, message: str, status: int = 400, details: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.details = message, status, details
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON of the answer. There is never a trace in it."""
        error: dict[str, Any] = {"code": self.status, "message": self.message}
        if self.details:
            error["details"] = self.details
        return {"error": error}


class MissingParameterError(ApiError):
    """A required parameter of the query string is missing or empty."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Missing parameter <code>{name}</code>")


def not_found() -> ApiError:
    """The answer to a path that is no endpoint."""
    return ApiError("Endpoint not found", 404)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for.

    Attributes:
      method: in capital letters.
      path: decoded, without the query string.
      parameters: values by name, in their order; a parameter without a value has the empty one.
      body: as it was sent.
      leaves_out_nan: whether points that are NaN or null are left out of the answer, for Grafana's decoder.
    """

    method: str
    path: str
    parameters: Mapping[str, Sequence[str]]
    body: bytes = b""
    leaves_out_nan: bool = False

    def has(self, name: str) -> bool:
        """Whether a parameter is given, whatever its value."""
        return name in self.parameters

    def parameter(self, name: str) -> str | None:
        """The last value of a parameter, as a TSD takes it; None if it is missing."""
        values = self.parameters.get(name)
        return values[-1] if values else None

    def required(self, name: str) -> str:
        """The last value of a parameter.

        Raises:
          MissingParameterError: it is missing or empty.
        """
        value = self.parameter(name)
        if not value:
            raise MissingParameterError(name)
        return value

    def json(self) -> Any:
        """The body, decoded.

        Raises:
          ApiError: it is empty, or no JSON.
        """
        if not self.body:
            raise ApiError(
                "Missing message content",
                details="Supply valid JSON formatted data in the body of your request",
            )
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError("Unable to parse the given JSON", details=str(error)) from error


_UNIT_MS = {
    "s": 1000,
    "m": 60_000,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": 7 * DAY_MS,
    "n": 30 * DAY_MS,
    "y": 365 * DAY_MS,
}
_LONG_MAX = 2**63 - 1
_FORMS = {
    10: r"(\d+)/(\d+)/(\d+)",
    16: r"(\d+)/(\d+)/(\d+)[- ](\d+):(\d+)",
    19: r"(\d+)/(\d+)/(\d+)[- ](\d+):(\d+):(\d+)",
}
_DOTTED = re.compile(r"[0-9]{10}\.[0-9]{1,3}")
_MILLISECONDS = re.compile(r"([0-9]+)ms")
_SECONDS_DIGITS = 10


def parse_time(text: str, zone: str | None, now_ms: int) -> int:
    """The milliseconds since 1970 of a time.

    Args:
      zone: in which dates are; None for UTC.

    Raises:
      ValueError: no time, in a TSD's words.
    """
    if match := _MILLISECONDS.fullmatch(text):
        time_ms = parse_long(match[1])
    elif text.lower() == "now":
        time_ms = now_ms
    elif text.lower().endswith("-ago"):
        time_ms = now_ms - parse_duration(text[:-4])
    elif "/" in text or ":" in text:
        time_ms = _date_ms(text, zone)
    else:
        time_ms = _number_ms(text)
    if not 0 <= time_ms <= LATEST_MS:
        raise ValueError(f"Invalid time: {text}. It is not between 1970 and the year 9999")
    return time_ms


def parse_duration(text: str) -> int:
    """The milliseconds of a duration, as in 10m.

    Raises:
      ValueError: no duration, in a TSD's words.
    """
    if not text:
        raise ValueError("Cannot parse null or empty duration")
    digits = re.match(r"[0-9]*", text)
    number = digits[0] if digits else ""
    if number == text:
        raise ValueError(f"Invalid duration, must have an integer and unit: {text}")
    if not number or int(number) > _LONG_MAX:
        raise ValueError(f"Invalid duration (number): {text}")
    if int(number) == 0:
        raise ValueError(f"Zero or negative duration: {text}")
    unit = text[-1].lower()
    if unit == "s" and text[-2] == "m":
        return int(number)
    if unit not in _UNIT_MS:
        raise ValueError(f"Invalid duration (suffix): {text}")
    duration_ms = int(number) * _UNIT_MS[unit]
    if duration_ms > _LONG_MAX:
        raise ValueError(f"Duration must be < Long.MAX_VALUE ms: {text}")
    return duration_ms


def parse_long(text: str) -> int:
    """A number as core/Tags.parseLong reads it.

    Raises:
      ValueError: no number, in a TSD's words.
    """
    if not text:
        raise ValueError("Empty string")
    digits = text[1:] if text[0] in "+-" else text
    if not digits:
        raise ValueError(f"Just a sign, no value: {text}")
    if len(digits) > len(str(_LONG_MAX)):
        raise ValueError(f"Value too long: {text}")
    for character in digits:
        if character not in "0123456789":
            raise ValueError(f"Invalid character '{character}' in {text}")
    if int(digits) > _LONG_MAX:
        raise ValueError(f"Overflow in {text}")
    return int(text)


def check_zone(name: str) -> zoneinfo.ZoneInfo:
    """The time zone of a name.

    Raises:
      ValueError: there is none.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise ValueError(f"Invalid timezone name: {name}") from error


def _date_ms(text: str, zone: str | None) -> int:
    """A date as java.text.SimpleDateFormat reads it leniently: the 32nd of a month is in the next one."""
    form = _FORMS.get(len(text))
    if form is None:
        raise ValueError(f"Invalid absolute date: {text}")
    match = re.match(form, text)
    where = check_zone(zone) if zone else datetime.UTC
    if match is None:
        raise ValueError(f'Invalid date: {text}. Unparseable date: "{text}"')
    year, month, day, hour, minute, second = (*map(int, match.groups()), 0, 0, 0)[:6]
    try:
        first = datetime.datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)
        shifted = first + datetime.timedelta(days=day - 1, hours=hour, minutes=minute, seconds=second)
        return int(shifted.replace(tzinfo=where).timestamp()) * 1000
    except (ValueError, OverflowError) as error:
        raise ValueError(f"Invalid date: {text}. {error}") from error


def _number_ms(text: str) -> int:
    """Seconds of up to ten characters, else milliseconds."""
    digits = text
    if "." in text:
        if not _DOTTED.fullmatch(text):
            raise ValueError(
                f"Invalid time: {text}. Millisecond timestamps must be in the format <seconds>.<ms> where "
                "the milliseconds are limited to 3 digits"
            )
        digits = text.replace(".", "")
    try:
        time = parse_long(digits)
    except ValueError as error:
        raise ValueError(f"Invalid time: {text}. {error}") from error
    if time < 0:
        raise ValueError(f"Invalid time: {text}. Negative timestamps are not supported.")
    return time * 1000 if len(text) <= _SECONDS_DIGITS else time


_CALENDAR = re.compile(r"([0-9]{1,9})(ms|[smhdwny])", re.IGNORECASE)


def parse_downsampling(text: str, use_calendar: bool, zone: str) -> Downsampling:
    """The downsampling that `<interval>-<function>[-<fill>]` describes.

    Args:
      use_calendar: whether intervals are aligned to the calendar, as if they ended in `c`.
      zone: the time zone of calendar intervals.

    Raises:
      ValueError: another form, an unknown function or fill, or a bad interval, in a TSD's words.
    """
    words = text.split("-")
    while words and not words[-1]:  # as Java splits
        words.pop()
    if len(words) < 2:
        raise ValueError(
            f"Invalid downsampling specifier '{text}': must provide at least interval and function"
        )
    if len(words) > 3:
        raise ValueError(
            f"Invalid downsampling specifier '{text}': must consist of interval, function, and optional "
            "fill policy"
        )
    interval, function = words[:2]
    duration = interval.removesuffix("c") if "all" not in interval else interval
    interval_ms = None if "all" in interval else parse_duration(duration)
    if function not in (*FUNCTIONS, NONE):
        raise ValueError(f"No such downsampling function: {function}")
    if function == NONE:
        raise ValueError("cannot use the NONE aggregator for downsampling")
    fills = [policy.value for policy in Fill]
    if len(words) == 3 and words[2].lower() not in fills:
        raise ValueError(f"Unrecognized fill policy: {words[2]}")
    fill = Fill(words[2].lower()) if len(words) == 3 else Fill.NONE
    if interval_ms is None or not (use_calendar or duration != interval):
        return Downsampling(interval_ms, function, fill)
    match = _CALENDAR.fullmatch(duration)
    if match is None:
        raise ValueError(f"Invalid duration (number): {duration}")
    return Downsampling(interval_ms, function, fill, calendar_interval(match[1], match[2], zone))
