"""Downsampling in a request: core/DownsamplingSpecification of OpenTSDB 2.4.1, with its errors."""

from __future__ import annotations

import re

from timebeam.schema.api.times import parse_duration
from timebeam.schema.query.downsample import FUNCTIONS, Downsampling, Fill, calendar_interval
from timebeam.schema.query.question import NONE

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
