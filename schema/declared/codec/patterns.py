"""Times as text of fixed width: the placeholders of a time part's format, many at a time.

`%Y %m %d %H %M %S` as strftime has them, `%L` for milliseconds (3 digits), `%f` for microseconds (6).
Their order must be from large to small, from the year on, so that strings sort by time.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timebeam.schema.common.spans import DAY_MS, UTC, Span, first_instant, local_ms
from timebeam.schema.points import Int64s

# Where the digits are in YYYY-MM-DDThh:mm:ss.ffffff; the length of what a placeholder leaves open.
_DIGITS = {
    "Y": (0, 4),
    "m": (5, 7),
    "d": (8, 10),
    "H": (11, 13),
    "M": (14, 16),
    "S": (17, 19),
    "L": (20, 23),
    "f": (20, 26),
}
_LENGTHS = {
    "Y": Span(12 * 31 * DAY_MS, 12),
    "m": Span(31 * DAY_MS, 1),
    "d": Span(DAY_MS),
    "H": Span(3_600_000),
    "M": Span(60_000),
    "S": Span(1000),
    "L": Span(1),
    "f": Span(1),
}
"""How long the times are that a pattern whose last placeholder this is gives one text."""
_ORDER = ("Y", "m", "d", "H", "M", "S")
_PIECE = re.compile(r"%(.)|([^%]+)")

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def placeholders(pattern: str) -> Iterator[tuple[str, str]]:
    """(placeholder letter, "") or ("", literal text), in order.

    Raises:
      ValueError: a placeholder is unknown.
    """
    for match in _PIECE.finditer(pattern):
        if match[1] is not None and match[1] not in _DIGITS:
            raise ValueError(f"unknown placeholder %{match[1]}: known are %Y %m %d %H %M %S %L %f")
        yield match[1] or "", match[2] or ""
    if pattern.endswith("%") and not pattern.endswith("%%"):
        raise ValueError("a lone % at the end")


def check(pattern: str, zone: str) -> int:
    """The width of the texts of a pattern, in bytes.

    Raises:
      ValueError: a placeholder is unknown, or the strings would not sort by time.
    """
    letters = [letter for letter, _ in placeholders(pattern) if letter]
    expected = list(_ORDER[: len(letters)])
    if len(letters) == len(_ORDER) + 1 and letters[-1] in ("L", "f"):
        expected.append(letters[-1])
    if not letters or letters != expected:
        raise ValueError(
            f"{pattern!r} does not sort by time: its placeholders must be %Y%m%d%H%M%S%L, or a start of it"
        )
    if len(letters) > 3 and zone != UTC:
        raise ValueError(
            f'{pattern!r} in {zone} does not sort by time where clocks go back an hour: use tz = "UTC"'
        )
    return sum(
        _DIGITS[letter][1] - _DIGITS[letter][0] if letter else len(text.encode())
        for letter, text in placeholders(pattern)
    )


def length(pattern: str) -> Span:
    """How long the times are that have one text, in whole milliseconds."""
    return _LENGTHS[[letter for letter, _ in placeholders(pattern) if letter][-1]]


def render(times_us: Int64s, pattern: str, zone: str) -> pa.Array:
    """binary[n]: the texts of times in microseconds since 1970, up to the year 9999."""
    if zone != UTC:
        times_us = local_ms(times_us // 1000, zone) * 1000 + times_us % 1000
    digits = np.datetime_as_string(times_us.astype("datetime64[us]"), unit="us").astype("S26")
    table = digits.view(np.uint8).reshape(len(times_us), 26)
    texts = []
    for letter, text in placeholders(pattern):
        if letter:
            start, end = _DIGITS[letter]
            texts.append(table[:, start:end])
        else:
            literal = np.frombuffer(text.encode(), np.uint8)
            texts.append(np.broadcast_to(literal, (len(times_us), len(literal))))
    return fixed(np.concatenate(texts, axis=1))


def fixed(table: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    """binary[n] from the bytes uint8[n, width]."""
    n, width = table.shape
    offsets = pa.py_buffer(np.arange(0, (n + 1) * width, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), n, [None, offsets, pa.py_buffer(np.ascontiguousarray(table))])


def parse(text: bytes, pattern: str, zone: str) -> int:
    """The first microsecond since 1970 that has this text.

    Raises:
      ValueError: it is not a text of the pattern.
    """
    numbers = {"Y": 1970, "m": 1, "d": 1, "H": 0, "M": 0, "S": 0, "L": 0, "f": 0}
    offset = 0
    for letter, literal in placeholders(pattern):
        width = _DIGITS[letter][1] - _DIGITS[letter][0] if letter else len(literal.encode())
        piece = text[offset : offset + width]
        offset += width
        if letter and not (piece.isdigit() and len(piece) == width):
            raise ValueError(f"{text!r} is not a time of the form {pattern}")
        if not letter and piece != literal.encode():
            raise ValueError(f"{text!r} is not a time of the form {pattern}")
        if letter:
            numbers[letter] = int(piece)
    if offset != len(text):
        raise ValueError(f"{text!r} is not a time of the form {pattern}")
    moment = datetime.datetime(
        numbers["Y"],
        numbers["m"],
        numbers["d"],
        numbers["H"],
        numbers["M"],
        numbers["S"],
        tzinfo=datetime.UTC,
    )
    local = int(moment.timestamp()) * 1000 + numbers["L"]
    return int(first_instant(np.array([local], np.int64), zone)[0]) * 1000 + numbers["f"]
